"""Layouts of one mesh as tuples of axis numbers, and the prices of moves between them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from shardalg.algebra.derived_layouts import interned
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.costs.collectives import seconds
from shardalg.costs.topology import Machine
from shardalg.planner.reshard.links import links_on
from shardalg.planner.reshard.paths import reshard_path
from shardalg.spmd.instruction import Collective
from shardalg.spmd.instructions import AllReduce

PICOSECONDS = 1e12
"""Picoseconds in a second."""
LARGE = 1 << 20
"""Size of each dimension of the value for which the path of a move is found."""
ENDLESS = 1 << 60
"""Bytes of a message in which latency takes no share of the seconds."""
STAYS, IMPOSSIBLE = 0, 1
"""Numbers of the two move patterns that have no path."""


class AxisLayout(NamedTuple):
    """The layout of a value: which axes shard which dimension, and along which sums are pending.

    Attributes:
      dims: per dimension, the numbers of its mesh axes in the order of the mesh.
      pending: the numbers of the axes along which the value is a partial sum.
    """

    dims: tuple[tuple[int, ...], ...]
    pending: tuple[int, ...] = ()

    @property
    def used(self) -> tuple[int, ...]:
        """The axes that shard a dimension."""
        return tuple(axis for dim in self.dims for axis in dim)


def replicated(rank: int) -> AxisLayout:
    """Return the layout of a value that every device has whole."""
    return AxisLayout(((),) * rank)


class MessageShares(NamedTuple):
    """The share of the values of a class whose all-reduces pay the latency of their message.

    Attributes:
      usual: the share along all axes that have no share of their own.
      shares: pairs of an all-reduce and the share.
    """

    usual: float = 1.0
    shares: tuple[tuple[AllReduce, float], ...] = ()

    def share(self, step: AllReduce) -> float:
        """Return the share of an all-reduce."""
        return dict(self.shares).get(step, self.usual)


class LayoutMoves:
    """The layouts of values on a mesh, in whole axes, and the picoseconds of moves between them.

    The path of a move depends on the two layouts up to the order of the dimensions, and not on the
    shape as long as blocks are even. So each such pattern is searched once, and priced once per
    number of bytes.
    """

    def __init__(self, mesh: Mesh, hardware: Machine) -> None:
        self.mesh = mesh
        self.hardware = hardware.shared(mesh.size)
        self.axes = tuple(name for name, size in mesh.axes if size > 1)
        self.sizes = tuple(mesh.shape[name] for name in self.axes)
        self._digits = tuple(mesh.digit(name) for name in self.axes)
        self._axis_of = {digit: number for number, digit in enumerate(self._digits)}
        self._links = links_on(mesh, self.hardware)
        self._numbers: dict[AxisLayout, int] = {}
        self._patterns: dict[tuple[AxisLayout, AxisLayout], int] = {}
        self._pattern_of: dict[tuple[int, int], int] = {}
        self._prices: dict[tuple[int, MessageShares], dict[int, float]] = {}
        self._paths: list[tuple[tuple[Collective, float], ...]] = [(), ()]

    def layout(self, sharding: Sharding) -> AxisLayout | None:
        """Return the layout of a sharding; None if it has parts of axes."""
        try:
            dims = tuple(tuple(self._axis_of[d] for d in digits) for digits in sharding.dims)
            return AxisLayout(dims, tuple(sorted(self._axis_of[d] for d in sharding.unreduced)))
        except KeyError:
            return None

    def sharding(self, layout: AxisLayout, shape: tuple[int, ...]) -> Sharding:
        """Return the sharding of a value of this shape."""
        dims = tuple(tuple(self._digits[axis] for axis in dim) for dim in layout.dims)
        pending = sorted((self._digits[axis] for axis in layout.pending), reverse=True)
        return interned(self.mesh, shape, dims, tuple(pending))

    def num_shards(self, layout: AxisLayout) -> int:
        """Return the number of distinct blocks of a value."""
        return math.prod(self.sizes[axis] for axis in layout.used)

    def is_even(self, layout: AxisLayout, shape: tuple[int, ...]) -> bool:
        """Return whether all blocks of a value of this shape have the same size."""
        return all(
            size % math.prod(self.sizes[axis] for axis in dim) == 0
            for size, dim in zip(shape, layout.dims, strict=True)
        )

    def all_layouts(self, shape: tuple[int, ...]) -> list[AxisLayout]:
        """Return every even layout that has each axis on one dimension or on none."""
        dims = range(len(shape))
        found = []
        for places in itertools.product((None, *dims), repeat=len(self.axes)):
            on = tuple(tuple(a for a, place in enumerate(places) if place == d) for d in dims)
            layout = AxisLayout(on)
            if self.is_even(layout, shape):
                found.append(layout)
        return found

    def gathered(self, layout: AxisLayout) -> Iterator[AxisLayout]:
        """Yield a layout, and every layout that is gathered from it along some of its axes."""
        used = layout.used
        for kept in itertools.product((True, False), repeat=len(used)):
            gone = {axis for axis, is_kept in zip(used, kept, strict=True) if not is_kept}
            yield AxisLayout(tuple(tuple(a for a in dim if a not in gone) for dim in layout.dims))

    def numbers(self, layouts: Sequence[AxisLayout]) -> np.ndarray:
        """Return a number per layout; equal layouts have equal numbers."""
        known = self._numbers
        return np.array([known.setdefault(each, len(known)) for each in layouts])

    def picoseconds(
        self,
        sources: Sequence[AxisLayout],
        targets: Sequence[AxisLayout],
        size: int,
        alone: MessageShares | None = None,
    ) -> np.ndarray:
        """Return the price of every move: a row per source and a column per target.

        The price is infinite if the target is a partial sum along an axis and the source is not.

        Args:
          size: bytes of the whole value.
          alone: the share of the values whose all-reduces are messages of their own; None for all.
        """
        alone = alone or MessageShares()
        patterns = self._all_patterns(sources, targets)
        prices = self._prices.setdefault((size, alone), {STAYS: 0.0, IMPOSSIBLE: math.inf})
        unique, inverse = np.unique(patterns, return_inverse=True)
        for pattern in unique.tolist():
            if pattern not in prices:
                steps = self._paths[pattern]
                prices[pattern] = sum(self.step_ps(one, part * size, alone) for one, part in steps)
        return np.array([prices[each] for each in unique.tolist()])[inverse].reshape(patterns.shape)

    def step_ps(self, step: Collective, size: float, alone: MessageShares) -> float:
        """Return the picoseconds of a collective, at most those of the plan.

        Independent all-reduces along equal axes are one message, whose seconds are a concave
        function of its bytes. So a message costs at least the price of one of its values alone,
        plus the least price per byte of all others, without latency.

        Args:
          size: bytes of the operand on a device.
          alone: the share of the values that are the first of their message.
        """

        def whole(bytes_: int) -> float:
            return float(seconds(step, bytes_, mesh=self.mesh, hardware=self.hardware))

        taken = whole(round(size))
        if isinstance(step, AllReduce):
            share = alone.share(step)
            taken *= share
            if share < 1:
                taken += whole(ENDLESS) * (size / ENDLESS) * (1 - share)
        return taken * PICOSECONDS

    def _all_patterns(
        self, sources: Sequence[AxisLayout], targets: Sequence[AxisLayout]
    ) -> np.ndarray:
        """Return the number of the pattern of each pair of layouts."""
        rows, columns = self.numbers(sources).tolist(), self.numbers(targets).tolist()
        known = self._pattern_of
        found = np.empty((len(rows), len(columns)), np.int64)
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                number = known.get((row, column))
                if number is None:
                    number = known[row, column] = self._pattern(sources[i], targets[j])
                found[i, j] = number
        return found

    def _pattern(self, source: AxisLayout, target: AxisLayout) -> int:
        """Return the number of the pattern of a move; its path is searched at the first use."""
        if source == target:
            return STAYS
        if not set(target.pending) <= set(source.pending):
            return IMPOSSIBLE
        pairs = sorted(pair for pair in zip(source.dims, target.dims, strict=True) if any(pair))
        # A path may scatter along a dimension that no axis shards, so one of these stays.
        if len(pairs) < len(source.dims):
            pairs.insert(0, ((), ()))
        first, last = (
            AxisLayout(tuple(pair[end] for pair in pairs), layout.pending)
            for end, layout in enumerate((source, target))
        )
        known = self._patterns.get((first, last))
        if known is None:
            known = self._patterns[first, last] = len(self._paths)
            self._paths.append(tuple(self._path(first, last)))
        return known

    def _path(self, source: AxisLayout, target: AxisLayout) -> Iterator[tuple[Collective, float]]:
        """Yield each collective of the path of a move, with its share of the value's bytes."""
        shape = (LARGE,) * len(source.dims)
        before = self.sharding(source, shape)
        for step in reshard_path(before, self.sharding(target, shape), self._links).steps:
            if isinstance(step.attributes, Collective):
                yield step.attributes, math.prod(before.shard_shape) / math.prod(shape)
            before = step.layout
