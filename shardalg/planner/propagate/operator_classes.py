"""Operator classes: the role of an operator in completion, and the loops that carry digits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile

from shardalg.algebra.digits import Digits, take
from shardalg.graph.ir import Signature
from shardalg.graph.ops.loops import BROADCAST, COMPOUND, PASS, SELECTED, loop_class, row_class
from shardalg.graph.ops.rule import Rule
from shardalg.planner.propagate.gspmd import image
from shardalg.planner.propagate.gspmd.image import Image, image_of
from shardalg.planner.propagate.layouts import Map, row_maps

Dims = tuple[Digits, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class OperatorClass:
    """All facts about an operator that a step depends on, besides shardings.

    A step is decided once for all operators of equal class. Tensors are numbered operands first.

    Attributes:
      role: the role class, a key of `image.LEVELS`.
      maps: per tensor and dimension, the loops that index it with their extents (see `layouts.py`).
      shapes: the global shape of every tensor.
      bytes: the size of each tensor if the larger operand's offer has precedence, as in a product;
        else 0.
      single: per result, whether it has exactly one user.
      image: the dimensions along which a convolution propagates; None for other operators.
      first: the operands in the order in which their shardings are offered to results. XLA reads
        the indices of a gather before its data (`sharding_propagation.cc`, kGather).
      through: loops that pass from operands to results one to one (Shardy's pass-through factors).
      alone: whether no operand has another user (for Shardy's first stage).
      blocks: loops in operands and results whose elements the operator needs all at once, such as
        the sorted dimension of a sort.
      is_closed: whether GSPMD propagates nothing through the operator, because no block of the
        result has the elements of a block of an operand.
      closed_operands: operands to which results offer no sharding, because no result has the loops
        of these operands.
    """

    role: str
    maps: tuple[Map, ...]
    shapes: tuple[Shape, ...]
    bytes: tuple[int, ...]
    num_operands: int
    single: tuple[bool, ...]
    image: Image | None = None
    first: tuple[int, ...] = ()
    through: frozenset[str] = frozenset()
    alone: bool = True
    blocks: frozenset[str] = frozenset()
    is_closed: bool = False
    closed_operands: frozenset[int] = frozenset()

    @property
    def operands(self) -> range:
        """The numbers of the operands."""
        return range(self.num_operands)

    @property
    def results(self) -> range:
        """The numbers of the results."""
        return range(self.num_operands, len(self.maps))

    def project(self, source: int, target: int, dims: Dims) -> Dims:
        """Return the sharding that tensor `source` on `dims` offers to tensor `target`.

        >>> from shardalg.algebra.digits import Digit
        >>> maps = ((("i", 4),), (("j", 8),)), ((("i", 4), ("j", 8)),)
        >>> merge = OperatorClass("layout", maps, ((4, 8), (32,)), (128, 128), 1, (True,))
        >>> merge.project(0, 1, ((Digit(2, 4),), (Digit(1, 2),)))
        ((Digit(stride=2, size=4), Digit(stride=1, size=2)),)
        >>> merge.project(1, 0, ((Digit(1, 2),),))
        ((Digit(stride=1, size=2),), ())
        """
        # The common case: each dimension is one whole loop, so digits move from dimension to
        # dimension.
        picks = self._picks[source][target]
        if picks is not None:
            padded = (*dims, ())
            return tuple([padded[k] for k in picks])
        # In general, the digits go from the source's dimensions to loops, and from the loops to the
        # target's dimensions:  [(i, j)] on (x, y)  ->  i on x, j on y  ->  [i on x], [j on y]
        loops: dict[str, Digits] = {}
        for digits, entry in zip(dims, self.maps[source], strict=True):
            if digits:
                _spread(digits, entry, loops)
        used: set[str] = set()
        found = tuple(_gathered(entry, loops, used) for entry in self.maps[target])
        return _with_majors(found, dims)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The extent of each loop, in Shardy's order: a contraction's result first."""
        # The order of loops breaks ties between equal ranks in Shardy.
        order = [*self.operands, *self.results]
        if self.role == image.CONTRACTION:
            order = order[::-1]
        found: dict[str, int] = {}
        # A single loop has the extent 0 in `maps` (any digits may shard it): the size counts then.
        for tensor in order:
            for size, entry in zip(self.shapes[tensor], self.maps[tensor], strict=True):
                for loop, extent in entry:
                    found[loop] = max(found.get(loop, 0), extent or size)
        return found

    @cached_property
    def elements(self) -> tuple[int, ...]:
        """Per tensor, the product of the extents of its loops."""
        sizes = self.sizes
        return tuple(math.prod(sizes[n] for e in dims for n, _ in e) for dims in self.maps)

    @cached_property
    def lost(self) -> tuple[tuple[bool, ...], ...]:
        """For each dimension of each tensor, whether none of its loops indexes a result."""
        kept = {loop for k in self.results for entry in self.maps[k] for loop, _ in entry}
        return tuple(
            tuple(not any(loop in kept for loop, _ in entry) for entry in dims)
            for dims in self.maps
        )

    @cached_property
    def needs_sharded_result(self) -> bool:
        """True if operands of a scatter take each other's shardings once the result has a sharding.

        In XLA, they do so only then. Operands of a contraction need no such condition, because its
        result has a sharding as soon as an operand has one.
        """
        return self.role == image.GATHER and any(
            any(entry and lost for entry, lost in zip(self.maps[k], self.lost[k], strict=True))
            for k in self.operands
        )

    @cached_property
    def has_equal_maps(self) -> bool:
        """True if all tensors have the same loops in the same dimensions, each a whole loop."""
        same = len(set(self.maps)) == 1
        return same and self._picks[0][0] == tuple(range(len(self.maps[0])))

    @cached_property
    def _picks(self) -> tuple[tuple[tuple[int, ...] | None, ...], ...]:
        """The result of `_picked` for each pair of tensors, by the number of source and target."""
        return tuple(tuple(_picked(a, b) for b in self.maps) for a in self.maps)


def _picked(source: Map, target: Map) -> tuple[int, ...] | None:
    """Return, for each dimension of the target, the source's dimension along the same loop, or -1.

    With this table, a sharding is passed on dimension by dimension. The result is None if that is
    impossible, so that shardings must be passed on loop by loop: a dimension has several loops, a
    loop has several dimensions, or the digits of a loop must divide its extent.

    Args:
      source, target: for each dimension of both tensors, its loops as (name, extent that the
        digits must divide; 0 for any).
    """
    for side in (source, target):
        loops = [entry for entry in side if entry]
        if len(set(loops)) < len(loops) or any(len(e) > 1 or e[0][1] for e in loops):
            return None
    places = {entry: dim for dim, entry in enumerate(source)}
    return tuple(places.get(entry, -1) if entry else -1 for entry in target)


def _spread(digits: Digits, entry: tuple[tuple[str, int], ...], loops: dict[str, Digits]) -> None:
    """Give a dimension's digits to its loops, major first, each as far as its extent allows.

    Args:
      entry: the loops of the dimension, each with its extent.
      loops: the digits of each loop so far, extended in place.
    """
    rest = digits
    for loop, extent in entry:
        # Extent 0 means that the loop takes any digits.
        taken, rest, room = take(rest, extent) if extent else (rest, (), 0)
        # `room` is the part of the extent that is not partitioned. A more minor loop gets digits
        # only if it is 1: otherwise its blocks would not be contiguous in the dimension.
        if taken:
            loops.setdefault(loop, taken)
        if not rest or room != 1:
            return


def _gathered(
    entry: tuple[tuple[str, int], ...], loops: dict[str, Digits], used: set[str]
) -> Digits:
    """Return the digits of a dimension from the digits of its loops.

    A loop gives its digits to the first dimension of a tensor that has it.

    Args:
      entry: the loops of the dimension, each with its extent. loops: the digits of each loop.
      used: the loops that earlier dimensions of the tensor have, extended in place.
    """
    out: Digits = ()
    for loop, extent in entry:
        digits = () if loop in used else loops.get(loop, ())
        # `taken` divide the extent evenly, `rest` do not, and `room` elements per part are left.
        taken, rest, room = take(digits, extent) if extent else (digits, (), 0)
        used.add(loop)
        out += taken
        # Digits of a minor loop may follow only if the major loop is split to single elements.
        if rest or room != 1:
            break
    return out


def _with_majors(found: Dims, given: Dims) -> Dims:
    """Return the target's dimensions, each cut before the first digit without its major part.

    A reshape may pass only some digits of a mesh axis from the source to the target. A minor digit
    without the more major digits of its axis would divide the tensor into other blocks. It is
    dropped, and so are the digits after it. XLA's reshape also stops at the first tiles that fit no
    dimension of the target (`ReshapeSharding`).

    Args:
      found: the digits of the target's dimensions.
      given: the digits of the source's dimensions.
    """
    whole = {digit for digits in given for digit in digits}
    placed = {digit for digits in found for digit in digits}
    if placed <= whole:
        return found
    # A digit that begins neither with an axis nor behind a placed part has lost its major part.
    tops = {digit.stride * digit.size for digit in whole} | {digit.stride for digit in placed}
    return tuple(
        tuple(takewhile(lambda digit: digit.stride * digit.size in tops, digits))
        for digits in found
    )


def operator_class(
    signature: Signature, rules: tuple[Rule, ...], single: tuple[bool, ...]
) -> OperatorClass:
    """Return the operator class of a node: all nodes of one class propagate shardings alike.

    Args:
      single: per result, whether it has exactly one user.
    """
    rule = rules[0]
    # An operand is closed if one of its loops is whole and in no result. A block of a result then
    # has the elements of no block of the operand, so results offer the operand no sharding.
    closed_operands = frozenset(
        k
        for k in range(len(signature.operands))
        # A whole loop that a result shares, such as that of a sort, does not close the operand.
        if rule.whole.intersection(n for i in rule.indices(k) for n in i.variables)
        - rule.result_loops
    )
    # The sharding of a sort's dimension propagates. A solve needs it whole on both sides.
    blocks = frozenset() if closed_operands else rule.whole & rule.result_loops & rule.operand_loops
    maps = row_maps(signature, rules, blocks)
    # Whole loops that only the result has: no block of the result is a block of an operand.
    unmatched = rule.whole & rule.result_loops - rule.operand_loops
    types = (*signature.operands, *signature.results)
    role, operands = role_of(rule), range(len(signature.operands))
    sizes = tuple(math.prod(t.shape) * t.itemsize for t in types)
    # Shardy's pass-through factors: loops of a result along which no device needs the elements of
    # another one. A selected loop counts only if an operand has it, because digits pass between
    # operands and results.
    through = frozenset(
        loop
        for row in rules
        for loop in row.result_loops
        if (loop_kind := loop_class(row, loop)) in (PASS, COMPOUND, BROADCAST)
        or (loop_kind == SELECTED and loop in row.operand_loops)
    )
    # XLA propagates from the indices of a gather before its data (kGather).
    indices = {symbol.operand for symbol in rule.symbols}
    shapes = tuple(t.shape for t in types)
    # Bytes matter only in products, where the larger operand has precedence; 0 elsewhere lets more
    # nodes share a class. A class is closed for GSPMD if only its result has a whole loop, or if no
    # dimension of any tensor has a loop.
    return OperatorClass(
        role=role,
        maps=maps,
        shapes=shapes,
        bytes=sizes if role in image.MATRIX else (0,) * len(types),
        num_operands=len(operands),
        single=single,
        image=image_of(rule, shapes) if role == image.CONVOLUTION else None,
        first=tuple(sorted(operands, key=lambda k: role == image.GATHER and k not in indices)),
        through=through,
        blocks=blocks,
        is_closed=bool(unmatched and not rule.batched)
        or not any(entry for tensor in maps for entry in tensor),
        closed_operands=closed_operands,
    )


def role_of(rule: Rule) -> str:
    """Return the role class of a row.

    A formatting operator with several operands that have loops counts as a contraction, even if it
    sums over no loop.
    """
    read = {dims for dims in rule.operands.values() if dims}
    role = row_class(rule)
    return image.CONTRACTION if role == image.LAYOUT and len(read) > 1 else role


def edge(shape: Shape, sources: int, targets: int, *, role: str, alone: bool) -> OperatorClass:
    """Return the operator class of a step that lets several values share one sharding.

    Args:
      sources, targets: how many of the values are operands, and how many are results.
      alone: whether no operand has another user.
    """
    maps = tuple(((f"d{i}", 0),) for i in range(len(shape)))
    count, through = sources + targets, frozenset(f"d{i}" for i in range(len(shape)))
    single, zeros = (False,) * targets, (0,) * count
    return OperatorClass(
        role=role,
        maps=(maps,) * count,
        shapes=(shape,) * count,
        bytes=zeros,
        num_operands=sources,
        single=single,
        image=None,
        first=tuple(range(sources)),
        through=through,
        alone=alone,
    )


def tuple_class(shape: Shape, count: int) -> OperatorClass:
    """Return the class of the step that puts one value into several tuples.

    Args:
      shape: the shape of the value.
      count: the number of entries of tuples that are this value.
    """
    kind = edge(shape, 1, count, role=image.TUPLE, alone=False)
    return replace(kind, single=(True,) * count)


def pass_through(shape: Shape, single: bool, drop: tuple[int, int] = (0, 0)) -> OperatorClass:
    """Return the class of a step across the border of a loop or branch.

    One tensor is the step's operand on one side of the border, and its result on the other side.

    Args:
      shape: the shape that both sides have in common.
      single: whether the result has exactly one user.
      drop: the numbers of leading dimensions that only the operand, or only the result, has.
    """
    rank = len(shape)
    inner = tuple(((f"d{i}", 0),) for i in range(rank))
    # An additional leading dimension has no loop, so that no sharding passes along it. Its size is
    # not used, and neither are the bytes: 0.
    maps = tuple(((),) * extra + inner for extra in drop)
    shapes = tuple((0,) * extra + shape for extra in drop)
    role = image.STACK if any(drop) else image.LOOP
    return OperatorClass(
        role=role,
        maps=maps,
        shapes=shapes,
        bytes=(0, 0),
        num_operands=1,
        single=(single,),
        image=None,
        first=(0,),
    )


def stack_update_class(shape: Shape) -> OperatorClass:
    """Return the class of the step in which one loop iteration writes its slice into a stack.

    The step has two operands, the slice and the stack, and the new stack as its result.
    """
    inner = tuple(((f"d{i}", 0),) for i in range(1, len(shape)))
    whole = ((("d0", 0),), *inner)
    maps, shapes = (inner, whole, whole), (shape[1:], shape, shape)
    return OperatorClass(
        role=image.STACK,
        maps=maps,
        shapes=shapes,
        bytes=(0, 0, 0),
        num_operands=2,
        single=(False,),
        image=None,
        first=(0, 1),
    )
