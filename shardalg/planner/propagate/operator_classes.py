"""What completion knows of a node: its role class, and the loops that carry digits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from shardalg.algebra.digits import Digits, take
from shardalg.graph.ir import Signature
from shardalg.graph.ops.loops import BROADCAST, COMPOUND, PASS, SELECTED, loop_class, row_class
from shardalg.graph.ops.rule import Rule
from shardalg.planner.propagate.gspmd import image as priority
from shardalg.planner.propagate.gspmd.image import Image, image_of
from shardalg.planner.propagate.layouts import Map, row_maps

Dims = tuple[Digits, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class OperatorClass:
    """All that a step depends on besides layouts. Tensors are numbered operands first.

    Operators of which all of this is the same are one kind: a step is decided once for all of them.

    Attributes:
      role: role class, a key of `priority.LEVELS`.
      maps: per tensor and dimension its loops (see `layouts.py`).
      shapes: global shape of every tensor.
      bytes: its size, where an operand's size decides; else 0.
      single: per result, whether it has exactly one user.
      image: of a convolution.
      first: operands in the order in which results follow them: XLA asks the indices of a gather
        before its data (`sharding_propagation.cc`, kGather).
      through: loops that pass from operands to results one to one (Shardy's pass-through factors).
      alone: whether no operand has another user (Shardy's first stage asks).
      blocks: loops that the operator takes as a block, but that operands and results share: a sort.
      is_closed: whether GSPMD infers nothing through it: a block of the result is no operand's.
      closed_operands: operands that results ask nothing of: factors, whose own block no result has.
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
        """Numbers of the operands."""
        return range(self.num_operands)

    @property
    def results(self) -> range:
        """Numbers of the results."""
        return range(self.num_operands, len(self.maps))

    def project(self, source: int, target: int, dims: Dims) -> Dims:
        """The layout that tensor `source` on `dims` asks of tensor `target`.

        >>> from shardalg.algebra.digits import Digit
        >>> maps = ((("i", 4),), (("j", 8),)), ((("i", 4), ("j", 8)),)
        >>> merge = OperatorClass("layout", maps, ((4, 8), (32,)), (128, 128), 1, (True,))
        >>> merge.project(0, 1, ((Digit(2, 4),), (Digit(1, 2),)))
        ((Digit(stride=2, size=4), Digit(stride=1, size=2)),)
        >>> merge.project(1, 0, ((Digit(1, 2),),))
        ((Digit(stride=1, size=2),), ())
        """
        picks = self._picks[source][target]
        if picks is not None:
            padded = (*dims, ())
            return tuple([padded[k] for k in picks])
        loops: dict[str, Digits] = {}
        for digits, entry in zip(dims, self.maps[source], strict=True):
            if digits:
                _spread(digits, entry, loops)
        used: set[str] = set()
        found = tuple(_gathered(entry, loops, used) for entry in self.maps[target])
        return _with_majors(found, dims)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Loop to its extent, in Shardy's order: a contraction's result first."""
        order = [*self.operands, *self.results]
        if self.role == priority.CONTRACTION:
            order = order[::-1]
        found: dict[str, int] = {}
        for tensor in order:
            for size, entry in zip(self.shapes[tensor], self.maps[tensor], strict=True):
                for loop, extent in entry:
                    found[loop] = max(found.get(loop, 0), extent or size)
        return found

    @cached_property
    def elements(self) -> tuple[int, ...]:
        """Per tensor the product of its loops' extents."""
        sizes = self.sizes
        return tuple(math.prod(sizes[n] for e in dims for n, _ in e) for dims in self.maps)

    @cached_property
    def lost(self) -> tuple[tuple[bool, ...], ...]:
        """Per tensor and dimension, whether no result has its loops."""
        kept = {loop for k in self.results for entry in self.maps[k] for loop, _ in entry}
        return tuple(
            tuple(not any(loop in kept for loop, _ in entry) for entry in dims)
            for dims in self.maps
        )

    @cached_property
    def needs_sharded_result(self) -> bool:
        """Whether operands follow each other, once the results are laid out: a scatter's.

        A contraction's do so too, and its result is laid out as soon as an operand is.
        """
        return self.role == priority.GATHER and any(
            any(entry and lost for entry, lost in zip(self.maps[k], self.lost[k], strict=True))
            for k in self.operands
        )

    @cached_property
    def has_equal_maps(self) -> bool:
        """Whether all tensors have the same loops in the same dimensions, each a whole one."""
        same = len(set(self.maps)) == 1
        return same and self._picks[0][0] == tuple(range(len(self.maps[0])))

    @cached_property
    def _picks(self) -> tuple[tuple[tuple[int, ...] | None, ...], ...]:
        return tuple(tuple(_picked(a, b) for b in self.maps) for a in self.maps)


def _picked(source: Map, target: Map) -> tuple[int, ...] | None:
    """Per dimension of the target the source's that is the same loop (-1: none).

    None where a dimension has several loops or a loop several dimensions, or where digits have to
    divide: such layouts are spread and gathered loop by loop.
    """
    for side in (source, target):
        loops = [entry for entry in side if entry]
        if len(set(loops)) < len(loops) or any(len(e) > 1 or e[0][1] for e in loops):
            return None
    places = {entry: dim for dim, entry in enumerate(source)}
    return tuple(places.get(entry, -1) if entry else -1 for entry in target)


def _spread(digits: Digits, entry: tuple[tuple[str, int], ...], loops: dict[str, Digits]) -> None:
    """Give a dimension's digits to its loops, major first: the next starts where one is used up."""
    rest = digits
    for loop, extent in entry:
        taken, rest, room = take(rest, extent) if extent else (rest, (), 0)
        if taken:
            loops.setdefault(loop, taken)
        if not rest or room != 1:
            return


def _gathered(
    entry: tuple[tuple[str, int], ...], loops: dict[str, Digits], used: set[str]
) -> Digits:
    """A dimension's digits from those of its loops; a loop serves one dimension of a tensor."""
    out: Digits = ()
    for loop, extent in entry:
        digits = () if loop in used else loops.get(loop, ())
        taken, rest, room = take(digits, extent) if extent else (digits, (), 0)
        used.add(loop)
        out += taken
        if rest or room != 1:
            break
    return out


def _with_majors(found: Dims, given: Dims) -> Dims:
    """Without the minor part of an axis whose major part has no place, and what stands behind it.

    XLA's reshape stops where it cannot place the tiles of a dimension (`ReshapeSharding`).
    """
    whole = {digit for digits in given for digit in digits}
    placed = {digit for digits in found for digit in digits}
    if placed <= whole:
        return found
    tops = {digit.stride * digit.size for digit in whole} | {digit.stride for digit in placed}
    return tuple(_until(digits, tops) for digits in found)


def _until(digits: Digits, tops: set[int]) -> Digits:
    """The digits before the first whose top is neither an axis's nor the end of a placed part."""
    for count, digit in enumerate(digits):
        if digit.stride * digit.size not in tops:
            return digits[:count]
    return digits


def kind_of(
    signature: Signature, rules: tuple[Rule, ...], single: tuple[bool, ...]
) -> OperatorClass:
    """The kind of a node."""
    rule = rules[0]
    closed_operands = frozenset(
        k for k in range(len(signature.operands)) if _block(rule, k) - rule.result_loops
    )
    # a sort's dimension is followed, a solve's is whole on both sides
    blocks = frozenset() if closed_operands else rule.whole & rule.result_loops & rule.operand_loops
    maps = row_maps(signature, rules, blocks)
    unmatched = rule.whole & rule.result_loops - rule.operand_loops
    types = (*signature.operands, *signature.results)
    role, operands = role_of(rule), range(len(signature.operands))
    sizes = tuple(math.prod(t.shape) * t.itemsize for t in types)
    indices = {symbol.operand for symbol in rule.symbols}
    return OperatorClass(
        role,
        maps,
        tuple(t.shape for t in types),
        sizes if role in priority.MATRIX else (0,) * len(types),
        len(operands),
        single,
        image_of(rule, tuple(t.shape for t in types)) if role == priority.CONVOLUTION else None,
        tuple(sorted(operands, key=lambda k: role == priority.GATHER and k not in indices)),
        frozenset(loop for r in rules for loop in r.result_loops if _passes(r, loop)),
        blocks=blocks,
        is_closed=bool(unmatched and not rule.batched)
        or not any(entry for tensor in maps for entry in tensor),
        closed_operands=closed_operands,
    )


def _block(rule: Rule, operand: int) -> frozenset[str]:
    """Loops that an operator takes whole of an operand."""
    read = {name for index in rule.indices(operand) for name in index.variables}
    return rule.whole & read


def _passes(rule: Rule, loop: str) -> bool:
    kind = loop_class(rule, loop)
    return kind in (PASS, COMPOUND, BROADCAST) or (kind == SELECTED and loop in rule.operand_loops)


def role_of(rule: Rule) -> str:
    """The role class of a row; operands with loops of their own are contracted, if over none."""
    read = {dims for dims in rule.operands.values() if dims}
    role = row_class(rule)
    return priority.CONTRACTION if role == priority.LAYOUT and len(read) > 1 else role


def edge(shape: Shape, sources: int, targets: int, *, role: str, alone: bool) -> OperatorClass:
    """The kind of values that share one layout across a border: all read, all written alike."""
    maps = tuple(((f"d{i}", 0),) for i in range(len(shape)))
    count, through = sources + targets, frozenset(f"d{i}" for i in range(len(shape)))
    single, zeros = (False,) * targets, (0,) * count
    return OperatorClass(
        role, (maps,) * count, (shape,) * count, zeros, sources, single, None,
        tuple(range(sources)), through, alone,
    )  # fmt: skip


def joined(shape: Shape, count: int) -> OperatorClass:
    """The kind of a value that is put into a tuple in so many places."""
    kind = edge(shape, 1, count, role=priority.TUPLE, alone=False)
    return replace(kind, single=(True,) * count)


def pass_through(shape: Shape, single: bool, drop: tuple[int, int] = (0, 0)) -> OperatorClass:
    """The kind of a tie: one tensor on both sides, but for leading dimensions one side lacks."""
    rank = len(shape)
    inner = tuple(((f"d{i}", 0),) for i in range(rank))
    maps = tuple(((),) * extra + inner for extra in drop)
    shapes = tuple((0,) * extra + shape for extra in drop)
    role = priority.STACK if any(drop) else priority.LOOP
    return OperatorClass(role, maps, shapes, (0, 0), 1, (single,), None, (0,))


def stacking(shape: Shape) -> OperatorClass:
    """The kind of what a trip writes into a stack of this shape: a slice, the stack, the stack."""
    inner = tuple(((f"d{i}", 0),) for i in range(1, len(shape)))
    whole = ((("d0", 0),), *inner)
    maps, shapes = (inner, whole, whole), (shape[1:], shape, shape)
    return OperatorClass(priority.STACK, maps, shapes, (0, 0, 0), 2, (False,), None, (0, 1))
