"""What every node of one kind does: its choice, and what stands around the local operator.

Masks where a combined loop is padded, windows, margins, shifted indices and masks around a local
gather or scatter, and what finishes the results; all read off the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Signature
from shardalg.graph.ops.local_parameters import Emission, IndexShift, boxes, emit, local_shape
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import ARGMAX, ARGMIN, PICK, SUM, TOP, USER, Access, Rule
from shardalg.planner.partition.choose.assign import choose
from shardalg.planner.partition.choose.component import reduced_digits
from shardalg.planner.partition.choose.key import Choice, NodeKey
from shardalg.planner.partition.choose.owner_select import ELEMENT, picks
from shardalg.planner.partition.choose.sent import through_windows
from shardalg.planner.partition.choose.windows import (
    Before,
    Kept,
    ShardedWindow,
    around,
    kept,
    masks,
    spans,
    windows,
)
from shardalg.planner.reshard.even import tile
from shardalg.sizes.decided import decided
from shardalg.spmd.instruction import Attributes, Purpose, Why
from shardalg.spmd.instructions import (
    AllReduce,
    Apply,
    ArgReduce,
    Choose,
    ExclusiveScan,
    Extract,
    FirstMember,
    Fold,
    Insert,
    MaskIndexed,
    Offset,
    Slice,
    Top,
)
from shardalg.spmd.local import Start

Operator = Apply | Choose | Extract | Insert
"""What stands for the operator on a device."""


@dataclass(frozen=True)
class NodePlan:
    """What every node of one key emits.

    Attributes:
      before: what is done to operands; after: attributes on every result.
      apply: None where an exchange stands for it.
      indexed: (operand that was shifted, attributes) of the mask behind a gather.
      raw: layout of each result as the local operator leaves it, before `after`.
      windows: dimensions of operands of which a device needs an interval.
      kept: dimensions of the result that the local operator makes more of than the block.
    """

    choice: Choice
    before: tuple[Before, ...]
    apply: Operator | None
    after: tuple[Attributes, ...]
    indexed: tuple[int, MaskIndexed] | None
    raw: tuple[Sharding, ...]
    why: Why
    windows: tuple[ShardedWindow, ...] = ()
    kept: tuple[Kept, ...] = ()

    @cached_property
    def is_bare(self) -> bool:
        """Whether the operator stands alone, on operands as they come."""
        return self.apply is not None and not (
            self.before or self.windows or self.indexed or self.after
        )

    @cached_property
    def operator(self) -> Operator:
        """What stands for the operator, where no exchange does."""
        assert self.apply is not None, "an exchange stands for the operator"
        return self.apply

    @cached_property
    def along(self) -> tuple[list[ShardedWindow], ...]:
        """The windows of each dimension."""
        dims = sorted({window.dim for window in self.windows})
        return tuple([window for window in self.windows if window.dim == dim] for dim in dims)

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The results as the local operator leaves them."""
        lengths = {k.dim: k.length for k in self.kept}
        return tuple(
            tuple(lengths.get(dim, size) for dim, size in enumerate(layout.shard_shape))
            for layout in self.raw
        )


@decided(1 << 14, lambda key: key.numbers)
def node_plan(key: NodeKey) -> NodePlan:
    """Choose the assignment and derive from the row what stands around the local operator."""
    choice = choose(key)
    rows = rules(key.signature)
    primitive = key.signature.primitive
    why = Why(Purpose.NEEDS, primitive)
    if rows is None:
        return NodePlan(choice, (), Apply(primitive), (), None, choice.produced, why)
    if choice.regrouped:
        return NodePlan(choice, (), None, (), None, choice.produced, why)
    loops = dict(choice.loops)
    extents = {name: extent for rule in rows for name, extent in rule.loops}
    blocks = {n: tile(e, parts(loops.get(n, ()))) for n, e in extents.items()}
    found = _windows(key, rows, choice)
    alone = len(rows) == 1
    taken = picks(key.signature, rows[0], choice) if alone else ()
    held = spans(found) | {(0, pick.dim): ELEMENT for pick in taken}
    emission = emit(key.signature, rows[0], blocks, held) if alone else Emission()
    before = (
        *(Before(0, pick) for pick in taken),
        *masks(rows, loops),
        *around(rows[0], emission, loops),
        *_shifts(emission, loops, blocks),
    )
    if emission.first_member is not None:
        pending = reduced_digits(rows[0], loops)
        if pending:
            first = FirstMember(pending, rows[0].combine)
            before = *before, Before(emission.first_member, first)
    cut = (*kept(rows[0], found, blocks), *_within_margins(rows[0], emission, blocks))
    after = (
        *[k.cut for k in cut],
        *_result_shifts(emission, loops, blocks),
        *_combines(rows[0], loops),
        *_carries(rows[0], loops),
    )
    apply = _local(key.signature, rows[0], emission, choice, blocks)
    mask = _indexed(emission, loops, blocks)
    return NodePlan(choice, before, apply, after, mask, _raw(rows[0], choice), why, found, cut)


def _local(
    signature: Signature, rule: Rule, emission: Emission, choice: Choice, blocks: dict[str, int]
) -> Operator:
    """What stands for the operator on a device."""
    if emission.boxed:
        return _box(rule, choice, blocks)
    if emission.chosen is None:
        return Apply(signature.primitive, emission.params, choice.loops)
    dim, sizes = emission.chosen
    loop = _loop(rule.results[0][dim])
    start = Start(Index.of(loop) * blocks[loop], ((loop, dict(choice.loops)[loop]),))
    return Choose(dim, start, sizes, choice.loops)


def _loop(index: Index) -> str:
    """The loop that a dimension is."""
    assert index.loop is not None, f"{index} is no loop"
    return index.loop


def _box(rule: Rule, choice: Choice, blocks: dict[str, int]) -> Extract | Insert:
    """What reads, or writes, a box at run-time starts."""
    loops = dict(choice.loops)
    places = tuple((dim, loops[loop], high) for dim, loop, high in boxes(rule, loops))
    if rule.init is not None:
        return Insert(places, choice.loops)
    return Extract(local_shape(rule, 0, blocks), places, choice.loops)


def _windows(key: NodeKey, rows: tuple[Rule, ...], choice: Choice) -> tuple[ShardedWindow, ...]:
    """What a device needs of dimensions that are read through windows (of one row)."""
    if len(rows) > 1 or not choice.loops or not through_windows(key.signature):
        return ()
    held = tuple((k, choice.required_shardings[k].dims) for k in rows[0].operands)
    return windows(rows[0], choice.loops, held, key.value_shardings[0].mesh.size)


def _raw(rule: Rule, choice: Choice) -> tuple[Sharding, ...]:
    """Before it is combined, a result of any combine is partial along the combined digits."""
    pending = () if rule.combine in (SUM, PICK) else reduced_digits(rule, dict(choice.loops))
    if not pending:
        return choice.produced
    return tuple(replace(p, unreduced=p.unreduced + pending) for p in choice.produced)


def _carries(rule: Rule, loops: Mapping[str, Digits]) -> Iterator[ExclusiveScan]:
    """What joins the prefixes of the blocks of a sharded loop, along its dimension of a result."""
    loop, reverse = rule.prefix or ("", False)
    if loops.get(loop):
        (dim,) = [d for d, index in enumerate(rule.results[0]) if index.loop == loop]
        yield ExclusiveScan(dim, loops[loop], rule.combine, reverse)


def _combines(rule: Rule, loops: dict[str, Digits]) -> tuple[Attributes, ...]:
    """A combine other than a sum is finished at once; sums stay pending."""
    digits = reduced_digits(rule, loops)
    if not digits or rule.combine in (SUM, PICK):
        return ()
    if rule.combine not in (ARGMAX, ARGMIN, TOP):
        in_order = tuple(d for name in rule.reduced for d in loops.get(name, ()))
        return (Fold(in_order) if rule.combine == USER else AllReduce(digits, rule.combine),)
    (loop,) = rule.reduced
    (dim,) = [d for d, index in enumerate(rule.operands[0]) if index.loop == loop]
    block = tile(rule.extents[loop], parts(loops[loop]))
    if rule.combine == TOP:
        return (Top(dim, loops[loop], block),)
    return (ArgReduce(dim, loops[loop], block, rule.combine),)


def _shifts(
    emission: Emission, loops: dict[str, Digits], blocks: dict[str, int]
) -> tuple[Before, ...]:
    """(operand, instruction) where run-time numbers are shifted before the operator."""
    return tuple(
        Before(s.operand, _offset(s, loops[s.loop], blocks[s.loop]))
        for s in emission.shifts
        if s.operand is not None and loops.get(s.loop)
    )


def _result_shifts(
    emission: Emission, loops: dict[str, Digits], blocks: dict[str, int]
) -> tuple[Attributes, ...]:
    """Shifts of the result's numbers (positions)."""
    return tuple(
        _offset(s, loops[s.loop], blocks[s.loop])
        for s in emission.shifts
        if s.operand is None and loops.get(s.loop)
    )


def _offset(shift: IndexShift, digits: Digits, block: int) -> Offset:
    """The instruction that shifts run-time numbers."""
    scale = shift.sign * block
    return Offset(digits, scale, shift.component, shift.clamp, shift.more, shift.within)


def _within_margins(rule: Rule, emission: Emission, blocks: Mapping[str, int]) -> tuple[Kept, ...]:
    """The blocks of a result that was written with its margins."""
    found = []
    for _, loop, width in emission.margins if isinstance(rule.init, Access) else ():
        (dim,) = (d for d, made in enumerate(rule.results[0]) if made.loop == loop)
        block = blocks[loop]
        found.append(Kept(dim, block + 2 * width, Slice(dim, width, block)))
    return tuple(found)


def _indexed(
    emission: Emission, loops: dict[str, Digits], blocks: dict[str, int]
) -> tuple[int, MaskIndexed] | None:
    """(operand of the indices, what keeps of a gathered value what the own block holds)."""
    owned = [one for one in emission.owned if not one[1] or loops.get(one[1])]
    if not any(loop for _, loop, _ in owned):
        return None
    widths = {loop: width for _, loop, width in emission.margins}
    components = tuple((c, loops.get(o, ()), blocks.get(o, n), n) for c, o, n in owned)
    margins = tuple(widths.get(loop, 0) for _, loop, _ in owned) if widths else ()
    operand = next(s.operand for s in emission.shifts if s.operand is not None)
    return operand, MaskIndexed(components, emission.batch_dims, emission.fill, margins)
