"""The convolution's image operand, as GSPMD propagates through it, and the levels of operators.

`Image` says along which dimensions of its image a convolution propagates.
Source: XLA's `sharding_propagation.cc`, InferConvolutionShardingFromOperands, and
`dot_as_convolution_util.cc`, ParseConvolutionDimsInfo.

`LEVELS` says when a step may act, by role class and direction. No operator is named here. The
levels are XLA's aggressiveness of sharding propagation (`sharding_propagation.cc`): each level is
run to its fixed point before the next. Pass-through operators come first, then those that merge,
then broadcasts towards their operand. Broadcasts forward come last, because the sharding of a
broadcast's operand says nothing about the new dimensions of its result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digits
from shardalg.graph.ops.rule import Rule
from shardalg.planner.propagate.layouts import Loops, Map

Dims = tuple[Digits, ...]
Sizes = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Image:
    """The operand of a convolution over which the window slides, and the roles of its dimensions.

    Attributes:
      operand, kernel: the operand number of the image, and that of the kernel.
      batch_dim: the image's batch dimension; None if the batch is in groups.
      feature_dims: the image's dimensions whose loops the kernel has, too.
      window_dims, kernel_dims: the dimensions of either operand along which a window slides.
      is_grouped: whether features or batch are in groups.
      is_small: whether the kernel is smaller than the result along every dimension.
      nests: per spatial dimension of the image, its loops with their extents, for Shardy. It treats
        the dimension like a reshaped one, with the longer loop as the major one; loops for which
        the size has no room are left out (`op_sharding_rule_registry.cc`, ConvolutionOp).
    """

    operand: int
    kernel: int
    batch_dim: int | None
    feature_dims: tuple[int, ...]
    window_dims: tuple[int, ...]
    kernel_dims: tuple[int, ...]
    is_grouped: bool
    is_small: bool
    nests: tuple[tuple[int, Loops], ...]

    def nested(self, maps: tuple[Map, ...]) -> tuple[Map, ...]:
        """Return `maps` with only those loops of a convolution that pass on sharding of the image.

        The image's spatial dimensions get their loops in `nests`, with the extents there. The
        window's other loops carry no digits, so they are removed from all tensors.

        Args:
          maps: per tensor and dimension, its loops with their extents.
        """
        # `known` has all loops that index a spatial dimension of the image or of the kernel. Of
        # these only the loops in `nests` stay.
        extents = {name: size for _, loops in self.nests for name, size in loops}
        known = {loop for d, _ in self.nests for loop, _ in maps[self.operand][d]}
        known |= {loop for d in self.kernel_dims for loop, _ in maps[self.kernel][d]}

        def passing_loops(loops: Loops) -> Loops:
            """Return the loops of a dimension that pass sharding on, with their extents."""
            return tuple(
                (loop, extents.get(loop, extent))
                for loop, extent in loops
                if loop not in known or loop in extents
            )

        nested_maps = [[passing_loops(loops) for loops in dims] for dims in maps]
        for dim, loops in self.nests:
            nested_maps[self.operand][dim] = loops
        return tuple(map(tuple, nested_maps))

    def slides(self, image: Dims, kernel: Dims) -> bool:
        """Return whether XLA propagates as through a window, and not as through a matrix product.

        XLA does so if the features or the batch are in groups, or if an operand is partitioned
        along a window.
        """
        split = any(image[d] for d in self.window_dims) or any(kernel[d] for d in self.kernel_dims)
        return bool(self.window_dims) and (self.is_grouped or split)

    def project(self, dims: Dims, project: Callable[[Dims], Dims]) -> Dims:
        """Return the sharding of a convolution's result that follows from the image's sharding.

        If a feature dimension of the image is sharded, the result is replicated. If the kernel is
        as large as the result, as in the gradient of a filter, the result is sharded along the
        batch dimension of the image only, as in XLA.

        Args:
          dims: the sharding of the image, a tuple of digits per dimension.
          project: moves digits of the image's dimensions to those of the result by the row's loops.
        """
        # The spatial dimensions of such a result are the filter's, so that no block of the image is
        # a block of them.
        if not self.is_small:
            return tuple(digits if d == self.batch_dim else () for d, digits in enumerate(dims))
        return ((),) * len(dims) if any(dims[d] for d in self.feature_dims) else project(dims)


def image_of(rule: Rule, shapes: tuple[tuple[int, ...], ...]) -> Image:
    """Return the image of a convolution, from the operator's row.

    A convolution has two operands, the image and the kernel. The result says which operand is the
    image, and which of its dimensions are batch, features, and spatial (read through a window). The
    batch is the row's first loop. The other dimensions that are not features are spatial.
    """
    reads, results = rule.terms[0], rule.result_loops
    # The image is the operand whose indices combine a loop of the result with a summed loop.
    position = max(range(len(reads)), key=lambda k: _spread(reads[k].dims, results))
    image, kernel = reads[position], reads[1 - position]
    # Features are summed, or grouped, together with the kernel, which thus has all their loops.
    shared = {loop for index in kernel.dims for loop in index.variables}
    features = [d for d, index in enumerate(image.dims) if shared.issuperset(index.variables)]
    batch = rule.loops[0][0]
    batches = [d for d, index in enumerate(image.dims) if batch in index.variables]
    spatial = [d for d in range(len(image.dims)) if d not in (*features, *batches)]
    # Along a spatial dimension that one loop covers, XLA parses the convolution as a product of
    # matrices, so that no window slides there.
    slid = [d for d in spatial if not _is_whole(rule, image.dims[d], shapes[image.operand][d])]
    taps = {loop for d in slid for loop in image.dims[d].variables} - results
    sizes = tuple(_sizes(rule, image.dims[d]) for d in spatial)
    loops_of_image = {v for index in image.dims for v in index.variables}
    return Image(
        operand=image.operand,
        kernel=kernel.operand,
        batch_dim=batches[0] if len(batches) == 1 and image.dims[batches[0]].loop else None,
        feature_dims=tuple(features),
        window_dims=tuple(slid),
        kernel_dims=tuple(d for d, index in enumerate(kernel.dims) if taps & set(index.variables)),
        # A loop in image, kernel and result numbers groups: it is summed in none of them.
        is_grouped=bool(shared & results & loops_of_image),
        is_small=_is_small(sizes),
        # The loops of each spatial dimension, for Shardy: it treats a window like a reshape.
        nests=tuple((d, _nest(rule, image.dims[d], shapes[image.operand][d])) for d in spatial),
    )


def _spread(dims: tuple[Index, ...], results: frozenset[str]) -> int:
    """Count the dimensions whose index has a loop of the result and a loop that is summed."""
    return sum(len({v in results for v in index.variables}) > 1 for index in dims)


def _is_whole(rule: Rule, index: Index, size: int) -> bool:
    """Return whether an index is one loop over the whole dimension, as in a product of matrices."""
    terms = [(n, c) for n, c in index.terms if rule.extents[n] > 1]
    plain = not index.constant and index.div == 1 and not index.mod
    return plain and all(c == 1 and rule.extents[n] == size for n, c in terms) and len(terms) <= 1


def _sizes(rule: Rule, index: Index) -> tuple[int, int]:
    """Return two products of extents: of an index's summed loops, and of its loops in the result.

    For an image dimension, the first number counts the kernel's taps along it.
    """
    own = index.variables
    taps = [rule.extents[v] for v in own if v not in rule.result_loops]
    return math.prod(taps), math.prod(rule.extents[v] for v in own if v in rule.result_loops)


def _nest(rule: Rule, index: Index, size: int) -> Loops:
    """Return the loops of an index with their extents, the longest loop first.

    The product of the extents is at most the dimension's size. So the index `i + r` of a dimension
    of 8, with 8 iterations of i and 3 of r, gives i alone.
    """
    nest = []
    # Of loops with equal extents, a loop of the result comes first.
    by_extent = sorted(
        index.variables, key=lambda name: (-rule.extents[name], name not in rule.result_loops)
    )
    # Each loop divides the size that is left; a loop for which 1 is left is dropped.
    for name in by_extent:
        extent = min(size, rule.extents[name])
        if extent > 1:
            nest.append((name, extent))
            size //= extent
    return tuple(nest)


def _is_small(sizes: Sizes) -> bool:
    """Return whether the kernel is small, as XLA's IsConvolutionKernelSmall decides.

    It is small if it has fewer taps than the result has elements, along every dimension. From the
    third dimension on, up to three taps are enough if the taps of all dimensions so far,
    multiplied, are fewer than the results multiplied.

    Args:
      sizes: per spatial dimension, the numbers of taps and of results.
    """
    # The limits are XLA's own. With others, some convolutions would be sharded unlike in XLA.
    for number, (taps, results) in enumerate(sizes):
        # Two products over the dimensions so far: of the taps, and of the results.
        before = [math.prod(column) for column in zip(*sizes[: number + 1], strict=True)]
        if taps >= results and (number < 2 or taps > 3 or before[0] >= before[1]):
            return False
    return True


FORWARD, BACKWARD = "forward", "backward"
POINTWISE, LAYOUT, LOOP, STACK = "pointwise", "layout", "loop", "stack"
DYNAMIC_SLICE, GATHER, REDUCE, CONTRACTION = "dynamic_slice", "gather", "reduce", "contraction"
CONVOLUTION, WINDOW, BROADCAST = "convolution", "window", "broadcast"
MATRIX = (CONTRACTION, CONVOLUTION)
"""Products of two operands: if both improve the result's sharding, the larger one goes first."""
ZEROS = "zeros"
"""A step between stacks of equal type, which begin as the same zeros: XLA makes them once."""
TUPLE, WHILE, BRANCH, ELEMENT = "tuple", "while", "branch", "element"
"""Steps of HLO's tuples.

TUPLE: a value is put into a tuple, in one place or several. WHILE, BRANCH: from the tuple before a
loop or a branch to the tuple of the loop or of the branch. ELEMENT: a value is taken out of a
tuple.
"""
EXIT = "exit"
"""A step from a result of the function to the value that has the result's annotation (Shardy)."""

LEVELS: dict[str, tuple[int, int]] = {
    POINTWISE: (0, 0),
    LAYOUT: (0, 0),
    LOOP: (0, 0),
    TUPLE: (0, 0),
    WHILE: (0, 0),
    BRANCH: (1, 1),
    ELEMENT: (0, 0),
    STACK: (0, 1),
    DYNAMIC_SLICE: (0, 1),
    GATHER: (1, 1),
    REDUCE: (1, 1),
    CONTRACTION: (1, 1),
    CONVOLUTION: (1, 1),
    WINDOW: (1, 1),
    BROADCAST: (3, 2),
    ZEROS: (2, 2),
}
"""Per role, the first level of its forward steps and of its backward steps."""
MERGING_LEVEL = 1
"""The first level at which two partial shardings of one value merge."""
LAST_LEVEL = 3


def level(role: str, direction: str) -> int:
    """Return the first level at which an operator of this role passes shardings on.

    XLA completes shardings in levels. At each further level, more kinds of operators take part.

    >>> level("broadcast", "forward"), level("broadcast", "backward"), level("layout", "forward")
    (3, 2, 0)
    """
    return LEVELS[role][direction == BACKWARD]
