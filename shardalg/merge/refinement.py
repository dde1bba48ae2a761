"""Refinement of one sharding by another, for all sizes of a mesh's axes or for some of them.

Theorem (refinement). Dimension d has D >= 1 elements. `fine` splits it into N parts and `coarse`
into n parts, in blocks of f = ceil(D/N) and s = ceil(D/n) elements.

1. Let the axes of `coarse` be a major part of the axes of `fine`, N = n*m. Every block of `fine` is
   inside the device's block of `coarse` if and only if s = m*f, n = 1 or D = 1. (Lemmas
   `refine_if`, `refine_rounding`, `refine_only_if`. The block that leaves has coordinate 0 on all
   other dimensions, so it has elements there, and no other dimension changes the answer.)
2. Let axis a be unused in `fine`, or the most minor axis of a dimension of at least 2 elements. The
   device at coordinate 1 on a and 0 elsewhere has elements (`refine_minor`). If its partition id
   on d is 0 in `fine` and positive in `coarse`, its blocks are disjoint for all sizes
   (`refine_apart`). They are also disjoint if a is the most minor axis of d in `fine`, and `coarse`
   splits d by axes of `fine` with another axis below a (`refine_ahead`).
3. Otherwise the answer depends on the sizes, since blocks without elements are inside any other.
   `Inside` evaluates the definition.

Case 2 is a statement for all sizes, case 1 a condition, s = m*f. Each of them is one formula.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from shardalg.algebra.digits import Digit, Digits, canonical
from shardalg.algebra.sharding import Sharding
from shardalg.merge.places import Monomial, NamedDigit

Dims = tuple[tuple[NamedDigit, ...], ...]


@dataclass(frozen=True)
class Inside:
    """Every block of `fine` that has elements is inside the device's block of `coarse`.

    Attributes:
      dim: the dimension on which the blocks are compared.
      fine: the digits of all dimensions, which say where a device has elements.
      coarse: the digits of the dimension.
      devices: the number of devices.
      texts: both shardings as text.
    """

    dim: int
    fine: Dims
    coarse: tuple[NamedDigit, ...]
    shape: tuple[int, ...]
    devices: Monomial
    texts: tuple[str, str]

    @property
    def terms(self) -> tuple[Monomial, ...]:
        """All products of sizes that the statement is about."""
        digits = [*itertools.chain(*self.fine), *self.coarse]
        return (self.devices, *(term for digit in digits for term in (digit.stride, digit.size)))

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the statement is true at given sizes; every device is checked."""
        positions = np.arange(self.devices.at(sizes))
        # A device without elements on some dimension has none at all, and is inside.
        not_empty = np.ones(len(positions), dtype=bool)
        for dim, size in enumerate(self.shape):
            start, stop = _block(self.fine[dim], size, (positions, sizes))
            not_empty &= start < stop
            if dim == self.dim:
                fine_block = start, stop
        start, stop = _block(self.coarse, self.shape[self.dim], (positions, sizes))
        return bool(np.all(~not_empty | ((start <= fine_block[0]) & (fine_block[1] <= stop))))

    def __repr__(self) -> str:
        """Return the statement in words."""
        fine, coarse = self.texts
        return (
            f"every non-empty block of {fine} of {self.shape} is inside the device's block of "
            f"{coarse} on dimension {self.dim}"
        )


def _block(
    digits: tuple[NamedDigit, ...], size: int, at: tuple[np.ndarray, Mapping[str, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the start and the end of each device's elements on one dimension.

    Args:
      digits: the digits that split the dimension; size: its number of elements.
      at: the devices' positions, and the sizes of the named axes.
    """
    # Strides and sizes are products of names, so they have no values before the sizes are given.
    positions, sizes = at
    ids, count = positions * 0, 1
    for digit in digits:
        number = digit.size.at(sizes)
        ids = ids * number + positions // digit.stride.at(sizes) % number
        count *= number
    block = -(-size // count)
    return np.minimum(ids * block, size), np.minimum((ids + 1) * block, size)


def atoms_of(digits: Digits, cuts: Iterable[int]) -> tuple[Digit, ...]:
    """Return the axes and sub-axes that digits of one mesh consist of, major first.

    Args:
      cuts: strides and periods of all digits that are compared.

    >>> atoms_of((Digit(1, 8),), (1, 2, 8))
    (Digit(stride=2, size=4), Digit(stride=1, size=2))
    """
    # Neighbouring cuts divide each other on one mesh, so the quotient of two of them is the size of
    # an axis or of a sub-axis.
    steps = list(itertools.pairwise(sorted(cuts)))
    return tuple(
        Digit(low, high // low)
        for digit in canonical(digits)
        for low, high in reversed(steps)
        if digit.stride <= low < digit.stride * digit.size
    )


def apart_along(fine: Sharding, coarse: Sharding) -> tuple[int, Digit] | None:
    """Return a dimension and an axis that show that `fine` refines `coarse` at no sizes.

    On the device at coordinate 1 on this axis and 0 elsewhere, the blocks of both shardings are
    disjoint in this dimension, whatever the sizes (case 2 of the theorem in this module). None if
    there is no such axis. Both shardings must have the same mesh axes.

    An atom in the code is an axis or a sub-axis that no digit of the two shardings splits further.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh = Mesh({"x": 2, "y": 3})
    >>> x, y, xy = (Sharding.from_axes([e], mesh, (24,)) for e in ("x", "y", ("x", "y")))
    >>> apart_along(x, y), apart_along(x, xy), apart_along(xy, y)
    ((0, Digit(stride=1, size=3)), (0, Digit(stride=1, size=3)), None)
    """
    if not math.prod(fine.shape):
        return None
    # In atoms, two shardings of one mesh use an axis or a sub-axis either whole or not at all.
    cuts = cuts_of((fine, coarse))
    rows = [[atoms_of(digits, cuts) for digits in s.canonical_dims] for s in (fine, coarse)]
    used = {atom: dim for dim, row in enumerate(rows[0]) for atom in row}
    for dim, (mine, theirs) in enumerate(zip(*rows, strict=True)):
        for nth, atom in enumerate(theirs):
            place = used.get(atom)
            if place is not None and (rows[0][place][-1] != atom or fine.shape[place] < 2):
                continue  # the device at 1 on this axis may have no elements
            # Either the partition id in `fine` is 0 (lemma `refine_apart`), or another axis is
            # below this one in `coarse` (lemma `refine_ahead`).
            if place != dim or (nth < len(theirs) - 1 and set(theirs) <= set(mine)):
                return dim, atom
    return None


def cuts_of(shardings: Iterable[Sharding]) -> set[int]:
    """Return all strides and periods (stride * size) of the shardings' digits and the mesh's axes.

    The numbers 1 and the size of the mesh are included.
    """
    operands = list(shardings)
    mesh = operands[0].mesh
    digits = [d for s in operands for _, row in s.split_places for d in row]
    digits += [mesh.digit(name) for name in mesh.axis_names]
    return {1, mesh.size} | {n for d in digits for n in (d.stride, d.stride * d.size)}
