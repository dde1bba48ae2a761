"""Unknown devices and their digits as z3 integers, and the formulas that are sent to the solver.

A device is one independent coordinate per axis. With concrete sizes a partition id is linear in
the coordinates. With symbolic sizes it would be a polynomial. There the mixed-radix step `q*m + r`
is an uninterpreted function `radix(q, r, m)`, and the solver receives instances of one lemma
(`radix_injective` in `lemmas/`): the value determines `q` and `r`.

Theorem (all sizes). Let all digits of a statement be axes, or sub-axes, of one mesh. The map from a
device to its coordinates is one to one at every choice of sizes (lemmas `radix_encode`,
`radix_decode`). A partition id is the mixed-radix number of the coordinates of its axes. Therefore
a statement about partition ids is true for all sizes of at least 2 if and only if the formula over
coordinates `0 <= c < size` with unknown sizes is valid. Merges and equality are such statements:
the offset on a dimension of D elements is `ceil(D/n)*id`, one to one in the id for D >= 1, and
equal offsets mean equally many parts (lemma `offset_zero`). Refinement also depends on D: see
`merge/refinement.py`.
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

# Products of unknown sizes are non-linear, which the solver decides badly. An uninterpreted
# function in their place keeps the formulas linear.
_INT = z3.IntSort()
RADIX = z3.Function("radix", _INT, _INT, _INT, _INT)
Number: TypeAlias = z3.ArithRef | int


@dataclass(frozen=True)
class Atom:
    """An axis or a sub-axis that no digit of the statement splits further."""

    name: str
    digit: Digit


@dataclass(frozen=True)
class Space:
    """The coordinates of devices along atoms (axes and sub-axes), major first.

    Attributes:
      symbolic: True if sizes are unknowns of at least 2 instead of the numbers of the mesh.
    """

    mesh: Mesh
    atoms: tuple[Atom, ...]
    symbolic: bool

    def size(self, atom: Atom) -> Number:
        """Return the size of an axis or sub-axis: its number, or an unknown if it is symbolic."""
        return z3.Int(f"size[{atom.name}]") if self.symbolic else atom.digit.size

    def device(self, tag: str) -> dict[Atom, z3.ArithRef]:
        """Return the coordinates of one unknown device."""
        return {atom: z3.Int(f"{tag}[{atom.name}]") for atom in self.atoms}

    def unit(self, atom: Atom | None) -> dict[Atom, Number]:
        """Return the device at coordinate 1 along `atom` and 0 elsewhere; None: at 0 everywhere."""
        return {other: z3.IntVal(int(other == atom)) for other in self.atoms}

    def bounds(self, *devices: Mapping[Atom, Number]) -> list[z3.BoolRef]:
        """Return the conditions that devices are on the mesh, and unknown sizes at least 2.

        A coordinate along an axis is from 0 to the size of the axis - 1.

        Args:
          devices: the coordinates of each device, as z3 terms.
        """
        ranges = [
            z3.And(device[atom] >= 0, device[atom] < self.size(atom))
            for device in devices
            for atom in self.atoms
        ]
        return ranges + ([self.size(atom) >= 2 for atom in self.atoms] if self.symbolic else [])

    def atoms_of(self, digits: Digits) -> tuple[Atom, ...]:
        """Return the atoms that make up the digits, major first.

        An atom is an axis or a sub-axis that no digit of the statement splits further. A digit is
        made of the atoms whose strides are in its range of strides.
        """
        return tuple(
            atom
            for digit in canonical(digits)
            for atom in self.atoms
            if digit.stride <= atom.digit.stride < digit.stride * digit.size
        )

    def partition_id(self, atoms: tuple[Atom, ...], device: Mapping[Atom, Number]) -> Number:
        """Return a device's partition id on a dimension that is split along atoms, major first.

        It is `radix` if sizes are symbolic, else `polynomial`.
        """
        return self.radix(atoms, device) if self.symbolic else self.polynomial(atoms, device)

    def radix(self, atoms: tuple[Atom, ...], device: Mapping[Atom, Number]) -> Number:
        """Return a device's partition id along atoms, without products of unknown sizes.

        Each step `q*m + r` is written as `radix(q, r, m)`, a function that the solver does not
        interpret.
        """
        if not atoms:
            return z3.IntVal(0)
        total = device[atoms[0]]
        for atom in atoms[1:]:
            total = RADIX(total, device[atom], self.size(atom))
        return total

    def polynomial(self, atoms: tuple[Atom, ...], device: Mapping[Atom, Number]) -> Number:
        """Return a device's partition id along atoms, computed by one step `q*m + r` per atom."""
        total: Number = z3.IntVal(0)
        for atom in atoms:
            total = total * self.size(atom) + device[atom]
        return total

    def count(self, atoms: tuple[Atom, ...]) -> Number:
        """Return the number of partition ids along the atoms: the product of their sizes."""
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
        """Return the lemmas that two devices with equal partition ids have equal coordinates.

        The partition id is computed by a step `q*m + r` per atom. There is a lemma for each step:
        equal values have equal q and r.

        Args:
          atoms: the axes or sub-axes of the partition id, major first.
          first, second: the coordinates of the two devices.
        """
        return [self._lemma(atoms[:k], atoms[k], (first, second)) for k in range(1, len(atoms))]

    def _lemma(
        self, above: tuple[Atom, ...], atom: Atom, pair: tuple[Mapping[Atom, Number], ...]
    ) -> z3.BoolRef:
        """Return the lemma that one step of the partition id, `q*m + r`, can be inverted.

        If two devices have equal values of `q*m + r` with `0 <= r < m`, then their q and r are
        equal. q is the partition id along `above`, m the size of `atom`, and r the coordinate along
        `atom`.

        Args:
          above: the atoms (axes or sub-axes) that are more major.
          pair: the coordinates of both devices.
        """
        (q, r), (p, t) = ((self.radix(above, d), d[atom]) for d in pair)
        size = self.size(atom)
        inside = z3.And(r >= 0, r < size, t >= 0, t < size)
        equal_values = RADIX(q, r, size) == RADIX(p, t, size)
        return z3.Implies(z3.And(inside, equal_values), z3.And(q == p, r == t))

    def position(self, values: Mapping[str, int], tag: str) -> int:
        """Return the position in the mesh of a device in a model (a solution) of the solver.

        Args:
          values: the model: a number for each name, such as "d[x]" for the coordinate of d along x.
          tag: the name of the device in the formulas, such as "d".
        """
        # A model leaves out a coordinate that may have any value.
        return sum(values.get(f"{tag}[{a.name}]", 0) * a.digit.stride for a in self.atoms)

    def at(self, position: int) -> dict[Atom, Number]:
        """Return the coordinates of the device at a position (concrete sizes)."""
        return {atom: z3.IntVal(atom.digit.at(position)) for atom in self.atoms}


def space(mesh: Mesh, digits: Iterable[Digit], *, symbolic: bool) -> Space | None:
    """Return coordinates of devices in which all digits and all axes of the mesh can be written.

    The coordinates run along atoms: axes, or sub-axes into which the digits divide the axes. Return
    None if no such atoms exist, because the digits belong to different meshes.

    Args:
      symbolic: whether sizes of atoms are unknowns instead of the numbers of the mesh.
    """
    # Each stride and each period must be a border of coordinates. If every border divides the next
    # one, the quotients are the sizes of independent coordinates (a mixed radix).
    cuts = {1, mesh.size}
    for digit in (*digits, *(mesh.digit(name) for name in mesh.axis_names)):
        if digit.size == 1:  # its stride has no meaning
            continue
        cuts |= {digit.stride, digit.stride * digit.size}
    ordered = sorted(cuts)
    steps = list(itertools.pairwise(ordered))
    if any(high % low for low, high in steps) or ordered[-1] > mesh.size:
        return None
    atoms = []
    for low, high in reversed(steps):
        digit = Digit(low, high // low)
        try:
            name = repr(mesh.axis_ref(digit))
        except MeshError:
            name = f"d//{digit.stride}%{digit.size}"
        atoms.append(Atom(name, digit))
    return Space(mesh, tuple(atoms), symbolic)


def place_value(digits: Digits, position: Number) -> Number:
    """Return the partition id of an unknown position, by quotients and remainders.

    Only for concrete sizes.
    """
    # For positive divisors, `/` and `%` of z3 integers round like `//` and `%` in Python.
    total: Number = z3.IntVal(0)
    for digit in digits:
        total = total * digit.size + (position / digit.stride) % digit.size
    return total


Values = tuple[tuple[str, int], ...]
MESHES_DIFFER = (
    "the digits belong to different meshes, so there is no formula for all sizes: prove it with "
    "sizes='concrete' (Verdict.condition states the sizes at which it holds)"
)


@dataclass(frozen=True)
class Obligation:
    """A formula to prove: `hypotheses` imply `goal`, or `text` is unsatisfiable.

    Attributes:
      witness: returns the counterexample that a model of the negation describes.
      group: obligations of one group are alternatives: one of them has to be proved.
      text: SMT-LIB text of the negation, in place of hypotheses and goal.
    """

    hypotheses: tuple[z3.BoolRef, ...]
    goal: z3.BoolRef
    witness: Callable[[Values], object] = lambda values: values
    group: str = ""
    text: str = ""


class Unprovable(Exception):
    """The reason why an encoding has no formula for a claim; the proof's status is "unknown"."""


@dataclass(frozen=True)
class Devices:
    """Unknown devices, as coordinates of `space`, or as one position if `space` is None."""

    mesh_size: int
    space: Space | None

    def value(self, digits: Digits, tag: str = "d") -> Number:
        """Return the partition id, along `digits`, of the unknown device with the name `tag`.

        The result is a z3 term in the unknowns of this device.
        """
        if self.space is None:
            return place_value(digits, z3.Int(tag))
        return self.space.partition_id(self.space.atoms_of(digits), self.space.device(tag))

    def bounds(self, *tags: str) -> list[z3.BoolRef]:
        """Return the conditions that the devices are on the mesh."""
        if self.space is None:
            return [z3.And(z3.Int(tag) >= 0, z3.Int(tag) < self.mesh_size) for tag in tags]
        return self.space.bounds(*(self.space.device(tag) for tag in tags))

    def fixed(self, tag: str, position: int) -> list[z3.BoolRef]:
        """Return the conditions that the device `tag` is the one at `position`."""
        if self.space is None:
            return [z3.Int(tag) == position]
        device, values = self.space.device(tag), self.space.at(position)
        return [device[atom] == values[atom] for atom in self.space.atoms]

    def position(self, values: Values, tag: str = "d") -> int:
        """Return the position of the device that a model names `tag`."""
        number_of = dict(values)
        return number_of.get(tag, 0) if self.space is None else self.space.position(number_of, tag)


def devices_of(
    shardings: Iterable[Sharding], *, symbolic: bool, by_position: bool = False
) -> Devices:
    """Return unknown devices on which the digits of all shardings have formulas.

    Args:
      symbolic: use coordinates of unknown sizes.
      by_position: use one number and its quotients, for concrete sizes.

    Raises:
      Unprovable: the shardings order their devices differently; or sizes are symbolic and the
        digits belong to different meshes.
    """
    operands = list(shardings)
    mesh = operands[0].mesh
    # Equal positions are different devices then, so that one unknown position is not enough.
    if len({s.mesh.device_ids for s in operands}) > 1:
        raise Unprovable(
            "the operands order their devices differently, and no digits relate the orders"
        )
    if symbolic:
        _check_one_mesh(operands)
    if by_position:
        return Devices(mesh.size, None)
    # Without common coordinates, concrete sizes still allow a formula in one position.
    digits = [d for s in operands for _, row in s.split_places for d in row]
    coordinates = space(mesh, digits, symbolic=symbolic)
    if coordinates is None and symbolic:
        raise Unprovable(MESHES_DIFFER)
    return Devices(mesh.size, coordinates)


def _check_one_mesh(shardings: Iterable[Sharding]) -> None:
    """Raise unless all shardings have the same mesh axes, and no digit has size 1.

    A proof for all sizes needs digits whose relation does not depend on the sizes. Between meshes
    with another order of axes, or with fused axes, the relation depends on them. For example, take
    the meshes (X=2, Y=4) and (Y=4, X=2). Axis X of the second mesh is `position % 2`, which is a
    part of axis Y of the first, `position % 4`. With Y=3 it is no part of `position % 3`.

    Raises:
      Unprovable: the axes differ, or a digit belongs to an axis of size 1, which has no formula.
    """
    operands = list(shardings)
    if len({s.mesh.axes for s in operands}) > 1:
        raise Unprovable(MESHES_DIFFER)
    # In the formulas every size is an unknown of at least 2, so they say nothing about size 1.
    digits = [
        d for s in operands for row in (*s.dims, s.unreduced, s.manual, s.replicated) for d in row
    ]
    if any(digit.size == 1 for digit in digits):
        raise Unprovable(
            "an axis of size 1 is used, and all sizes are those of at least 2: leave the axis out, "
            "or give it a size of 2"
        )
