"""Mesh axes laid onto the levels of a network, as JAX orders devices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from shardalg.algebra.digits import Digit
from shardalg.costs.network.span import Level, Span

Place = tuple[int, int, int]
"""A level by its number, how many of it, and the stride between them."""
Placement = dict[str, list[Place]]
"""Per axis what it takes, major first."""


def exact(sizes: Mapping[str, int], levels: Sequence[int]) -> Placement | None:
    """Each axis on whole levels, if there is such a way: the innermost axis chooses first.

    It takes as many levels together as make its size, as `jax.make_mesh` does
    (`jax.experimental.mesh_utils.create_device_mesh`).

    Args:
      sizes: of the axes, major first. levels: sizes of the levels, outermost first.

    >>> exact({"X": 8, "Y": 16}, [8, 8, 2]), exact({"X": 3}, [8])
    ({'X': [(1, 8, 1)], 'Y': [(0, 8, 1), (2, 2, 1)]}, None)
    """
    free = [i for i, size in enumerate(levels) if size > 1]
    found: Placement = {name: [] for name in sizes}
    for name in reversed(list(sizes)):
        ways = (c for n in range(len(free), 0, -1) for c in combinations(free, n))
        taken = next((c for c in ways if math.prod(levels[i] for i in c) == sizes[name]), ())
        if sizes[name] > 1 and not taken:
            return None
        found[name] = [(i, levels[i], 1) for i in taken]
        free = [i for i in free if i not in taken]
    return found


def filled(
    sizes: Mapping[str, int], levels: Sequence[int], *, shared: bool = False
) -> Placement | None:
    """Axes and levels filled from the inside, one after the other; None where sizes do not divide.

    Args:
      shared: an axis takes of each level what divides both, and leaves the rest to axes outside of
        it, as JAX splits dimensions of a torus (`allow_split_physical_axes`).

    >>> filled({"X": 4, "Y": 4}, [8, 2]), filled({"X": 3, "Y": 2}, [2, 3])
    ({'X': [(0, 4, 2)], 'Y': [(0, 2, 1), (1, 2, 1)]}, None)
    >>> filled({"X": 3, "Y": 2}, [2, 3], shared=True)
    {'X': [(1, 3, 1)], 'Y': [(0, 2, 1)]}
    """
    found: Placement = {name: [] for name in sizes}
    left, strides = list(levels), [1] * len(levels)
    for name in reversed(list(sizes)):
        rest = sizes[name]
        for i in reversed(range(len(left))):
            count = math.gcd(rest, left[i])
            if not shared and count < min(rest, left[i]):
                return None
            if count > 1:
                found[name].insert(0, (i, count, strides[i]))
            left[i] //= count
            strides[i] *= count
            rest //= count
        if rest > 1:
            return None
    return found


def spans(
    placed: Placement, sizes: Mapping[str, int], levels: Sequence[Level]
) -> Iterator[tuple[str, tuple[Span, ...]]]:
    """Per axis its spans, major first; their digits are those of the mesh with these axes."""
    stride = math.prod(sizes.values())
    for name, size in sizes.items():
        stride //= size
        found, below = [], size
        for i, count, apart in placed[name]:
            below //= count
            found.append(Span(levels[i], Digit(stride * below, count), apart))
        yield name, tuple(found)
