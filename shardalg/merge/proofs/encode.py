"""Digits as z3 integers: a device is one independent coordinate per axis, never one number.

With concrete sizes a partition id is linear in the coordinates. With symbolic sizes it would be a
polynomial, so the mixed-radix step `q*m + r` is an uninterpreted function `radix(q, r, m)`, of
which instances of one lemma (`radix_injective` in `lemmas/`) are given: it determines `q` and `r`.

Theorem (all sizes). Let all digits at hand be axes, or sub-axes, of one mesh. The map from a device
to its coordinates is one to one at every choice of sizes (lemmas `radix_encode`, `radix_decode`),
and a partition id is the mixed-radix number of the coordinates of its axes. Therefore a statement
about partition ids holds for all sizes of at least 2 if and only if the formula over coordinates
`0 <= c < size` with unknown sizes is valid. Merges and equality are such statements: the offset on
a dimension of D elements is `ceil(D/n)*id`, one to one in the id for D >= 1, and equal offsets mean
equally many parts (lemma `offset_zero`). Refinement also depends on D: see `merge/refinement.py`.

Unknown devices in formulas, and the formulas that are sent to the solver.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import z3

from shardalg.algebra.digits import Digit, Digits, canonical
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import MeshError

_INT = z3.IntSort()
RADIX = z3.Function("radix", _INT, _INT, _INT, _INT)
Number: TypeAlias = z3.ArithRef | int


@dataclass(frozen=True)
class Atom:
    """A place of the device position that all digits at hand keep whole: an axis or a sub-axis."""

    name: str
    digit: Digit


@dataclass(frozen=True)
class Space:
    """Devices as coordinates along atoms, major first.

    Attributes:
      symbolic: sizes are unknowns of at least 2 instead of the numbers of the mesh.
    """

    mesh: Mesh
    atoms: tuple[Atom, ...]
    symbolic: bool

    def size(self, atom: Atom) -> Number:
        """Number of values of one coordinate."""
        return z3.Int(f"size[{atom.name}]") if self.symbolic else atom.digit.size

    def device(self, tag: str) -> dict[Atom, z3.ArithRef]:
        """Coordinates of one unknown device."""
        return {atom: z3.Int(f"{tag}[{atom.name}]") for atom in self.atoms}

    def unit(self, atom: Atom | None) -> dict[Atom, Number]:
        """The device at coordinate 1 of `atom` and 0 elsewhere."""
        return {other: z3.IntVal(int(other == atom)) for other in self.atoms}

    def bounds(self, *devices: Mapping[Atom, Number]) -> list[z3.BoolRef]:
        """Every coordinate is on the mesh, and every unknown size is at least 2."""
        rows = [
            z3.And(device[atom] >= 0, device[atom] < self.size(atom))
            for device in devices
            for atom in self.atoms
        ]
        return rows + ([self.size(atom) >= 2 for atom in self.atoms] if self.symbolic else [])

    def atoms_of(self, digits: Digits) -> tuple[Atom, ...]:
        """The atoms that digits are made of, major first."""
        return tuple(
            atom
            for digit in canonical(digits)
            for atom in self.atoms
            if digit.stride <= atom.digit.stride < digit.stride * digit.size
        )

    def partition_id(self, atoms: tuple[Atom, ...], device: Mapping[Atom, Number]) -> Number:
        """Mixed-radix value of the atoms on a device: linear, or in `radix` for symbolic sizes."""
        return self.radix(atoms, device) if self.symbolic else self.polynomial(atoms, device)

    def radix(self, atoms: tuple[Atom, ...], device: Mapping[Atom, Number]) -> Number:
        """Mixed-radix value with the steps named, not written out."""
        if not atoms:
            return z3.IntVal(0)
        total = device[atoms[0]]
        for atom in atoms[1:]:
            total = RADIX(total, device[atom], self.size(atom))
        return total

    def polynomial(self, atoms: tuple[Atom, ...], device: Mapping[Atom, Number]) -> Number:
        """Mixed-radix value with `q*m + r` written out."""
        total: Number = z3.IntVal(0)
        for atom in atoms:
            total = total * self.size(atom) + device[atom]
        return total

    def count(self, atoms: tuple[Atom, ...]) -> Number:
        """Number of values of the atoms together."""
        total: Number = z3.IntVal(1)
        for atom in atoms:
            total = total * self.size(atom)
        return total

    def lemmas(
        self,
        atoms: tuple[Atom, ...],
        first: Mapping[Atom, Number],
        second: Mapping[Atom, Number],
    ) -> list[z3.BoolRef]:
        """Instances for two devices with one partition id, from the minor atom upwards."""
        return [self._lemma(atoms[:k], atoms[k], (first, second)) for k in range(1, len(atoms))]

    def _lemma(
        self, above: tuple[Atom, ...], atom: Atom, pair: tuple[Mapping[Atom, Number], ...]
    ) -> z3.BoolRef:
        (q, r), (p, t) = ((self.radix(above, d), d[atom]) for d in pair)
        size = self.size(atom)
        inside = z3.And(r >= 0, r < size, t >= 0, t < size)
        alike = RADIX(q, r, size) == RADIX(p, t, size)
        return z3.Implies(z3.And(inside, alike), z3.And(q == p, r == t))

    def position(self, values: Mapping[str, int], tag: str) -> int:
        """Position of the device that a model names `tag`."""
        return sum(values.get(f"{tag}[{a.name}]", 0) * a.digit.stride for a in self.atoms)

    def at(self, position: int) -> dict[Atom, Number]:
        """Coordinates of the device at a position (concrete sizes)."""
        return {atom: z3.IntVal(atom.digit.at(position)) for atom in self.atoms}


def space(mesh: Mesh, digits: Iterable[Digit], *, symbolic: bool) -> Space | None:
    """The coordinates in which all digits, and the axes of the mesh, are whole.

    None where no such coordinates exist: the digits belong to different meshes.
    """
    cuts = {1, mesh.size}
    for digit in (*digits, *(mesh.digit(name) for name in mesh.axis_names)):
        if digit.size == 1:
            continue
        cuts |= {digit.stride, digit.stride * digit.size}
    ordered = sorted(cuts)
    steps = list(itertools.pairwise(ordered))
    if any(high % low for low, high in steps) or ordered[-1] > mesh.size:
        return None
    atoms = [Digit(low, high // low) for low, high in reversed(steps)]
    return Space(mesh, tuple(Atom(_name(mesh, d), d) for d in atoms), symbolic)


def _name(mesh: Mesh, digit: Digit) -> str:
    try:
        return repr(mesh.axis_ref(digit))
    except MeshError:
        return f"d//{digit.stride}%{digit.size}"


def place_value(digits: Digits, position: Number) -> Number:
    """Partition id of one unknown position, by division and remainder (concrete sizes only)."""
    total: Number = z3.IntVal(0)
    for digit in digits:
        total = total * digit.size + (position / digit.stride) % digit.size
    return total


Values = tuple[tuple[str, int], ...]
MESHES_DIFFER = (
    "the digits belong to different meshes, so no one formula says it for all sizes: "
    "it can be proved for the sizes at hand (Verdict.condition says for which it holds)"
)


@dataclass(frozen=True)
class Obligation:
    """`hypotheses` imply `goal`, or `text` is unsatisfiable; `witness` reads a counterexample.

    Obligations of one `group` are alternatives: one of them is enough.
    """

    hypotheses: tuple[z3.BoolRef, ...]
    goal: z3.BoolRef
    witness: Callable[[Values], object] = lambda values: values
    group: str = ""
    text: str = ""


class Unprovable(Exception):
    """A claim that has no formula here, with the reason; it becomes the status "unknown"."""


@dataclass(frozen=True)
class Devices:
    """Unknown devices and how digits read on them: by coordinates, or by one position."""

    mesh_size: int
    space: Space | None

    def value(self, digits: Digits, tag: str = "d") -> Number:
        """Partition id of the device `tag`."""
        if self.space is None:
            return place_value(digits, z3.Int(tag))
        return self.space.partition_id(self.space.atoms_of(digits), self.space.device(tag))

    def bounds(self, *tags: str) -> list[z3.BoolRef]:
        """The devices are on the mesh."""
        if self.space is None:
            return [z3.And(z3.Int(tag) >= 0, z3.Int(tag) < self.mesh_size) for tag in tags]
        return self.space.bounds(*(self.space.device(tag) for tag in tags))

    def fixed(self, tag: str, position: int) -> list[z3.BoolRef]:
        """The device `tag` is the one at `position`."""
        if self.space is None:
            return [z3.Int(tag) == position]
        device, values = self.space.device(tag), self.space.at(position)
        return [device[atom] == values[atom] for atom in self.space.atoms]

    def position(self, values: Values, tag: str = "d") -> int:
        """Position of the device that a model names `tag`."""
        named = dict(values)
        return named.get(tag, 0) if self.space is None else self.space.position(named, tag)


def devices_of(
    shardings: Iterable[Sharding], *, symbolic: bool, by_position: bool = False
) -> Devices:
    """Unknown devices for the digits of all shardings.

    Args:
      symbolic: coordinates of unknown sizes.
      by_position: one number and its quotients, for sizes at hand; without it the coordinates.

    Raises:
      Unprovable: digits of different meshes, or orders of devices, that such devices cannot say.
    """
    held = list(shardings)
    mesh = held[0].mesh
    if len({s.mesh.device_ids for s in held}) > 1:
        raise Unprovable("the operands order their devices differently, which no digits say")
    if symbolic:
        _check_one_mesh(held)
    if by_position:
        return Devices(mesh.size, None)
    digits = [d for s in held for _, row in s.split_places for d in row]
    found = space(mesh, digits, symbolic=symbolic)
    if found is None and symbolic:
        raise Unprovable(MESHES_DIFFER)
    return Devices(mesh.size, found)


def _check_one_mesh(shardings: Iterable[Sharding]) -> None:
    """Check that one assignment of sizes to axes is a mesh for all shardings, the same one.

    Axes in another order, or fused, are the same positions at some sizes only: on (X=2, Y=4) and
    (Y=4, X=2) axis X of the second is a part of Y of the first, on (X=2, Y=3) it is not.

    Raises:
      Unprovable: other axes, or a digit of an axis of size 1, which has no formula.
    """
    held = list(shardings)
    if len({s.mesh.axes for s in held}) > 1:
        raise Unprovable(MESHES_DIFFER)
    digits = [
        d for s in held for row in (*s.dims, s.unreduced, s.manual, s.replicated) for d in row
    ]
    if any(digit.size == 1 for digit in digits):
        raise Unprovable(
            "an axis of size 1 is used, and all sizes are those of at least 2: leave the axis out, "
            "or give it a size of 2"
        )
