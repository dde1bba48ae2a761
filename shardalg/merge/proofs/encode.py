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
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import z3

from shardalg.algebra.digits import Digit, Digits, canonical
from shardalg.algebra.mesh import Mesh
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
