"""One node: operands into the chosen layouts, the local operator, results home."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Node, Signature
from shardalg.ops.local_parameters import Emission, boxes, emit, local_shape
from shardalg.ops.rows import rules
from shardalg.ops.rule import ARGMAX, ARGMIN, PICK, SUM, TOP, USER, Rule
from shardalg.partition.choose.assign import choose
from shardalg.partition.choose.component import reduced_digits
from shardalg.partition.choose.key import Choice, NodeKey
from shardalg.partition.choose.picks import ELEMENT, picks
from shardalg.partition.choose.sent import through_windows
from shardalg.partition.emit.after import apply_on, done_after
from shardalg.partition.emit.context import Cause, PartitionContext
from shardalg.partition.emit.regroup import regroup
from shardalg.partition.emit.selections import indexed, result_shifts, shifts, within_margins
from shardalg.partition.emit.windows import Bringing, Kept, Window, kept, spans, together, windows
from shardalg.reshard.exchanges import Along
from shardalg.reshard.search import tile
from shardalg.sizes.decided import decided
from shardalg.spmd.boxes import Extract, Insert
from shardalg.spmd.program import (
    AllReduce,
    Apply,
    Attributes,
    Best,
    Carry,
    Choose,
    Dilate,
    FirstMember,
    Fold,
    Mask,
    MaskAt,
    MaskIndexed,
    Start,
    Top,
)
from shardalg.spmd.why import Purpose, Why

Operator = Apply | Choose | Extract | Insert
"""What stands for the operator on a device."""


@dataclass(frozen=True)
class NodePlan:
    """What every node of one key emits.

    Attributes:
      before: (operand, attributes) on operands; after: attributes on every result.
      apply: None where an exchange stands for it.
      indexed: (operand that was shifted, attributes) of the mask behind a gather.
      raw: layout of each result as the local operator leaves it, before `after`.
      windows: dimensions of operands of which a device needs an interval.
      kept: dimensions of the result that the local operator makes more of than the block.
    """

    choice: Choice
    before: tuple[tuple[int, Attributes], ...]
    apply: Operator | None
    after: tuple[Attributes, ...]
    indexed: tuple[int, MaskIndexed] | None
    raw: tuple[Sharding, ...]
    why: Why
    windows: tuple[Window, ...] = ()
    kept: tuple[Kept, ...] = ()

    @cached_property
    def is_bare(self) -> bool:
        """Whether the operator stands alone, on operands as they come."""
        return self.apply is not None and not (
            self.before or self.windows or self.indexed or self.after
        )

    @cached_property
    def along(self) -> tuple[list[Window], ...]:
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


@decided(1 << 14, lambda key: (n for home in key.homes for n in home.numbers))
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
        *((0, pick) for pick in taken),
        *_masks(rows, loops),
        *_around(rows[0], emission, loops),
        *shifts(emission, loops, blocks),
    )
    if emission.first_member is not None:
        pending = reduced_digits(rows[0], loops)
        if pending:
            before += ((emission.first_member, FirstMember(pending, rows[0].combine)),)
    cut = (*kept(rows[0], found, blocks), *within_margins(rows[0], emission, blocks))
    after = (
        *[k.cut for k in cut],
        *result_shifts(emission, loops, blocks),
        *_combines(rows[0], loops),
        *carries(rows[0], loops),
    )
    apply = _local(key.signature, emission, choice, blocks)
    mask = indexed(emission, loops, blocks)
    return NodePlan(choice, before, apply, after, mask, _raw(rows[0], choice), why, found, cut)


def _local(
    signature: Signature, emission: Emission, choice: Choice, blocks: dict[str, int]
) -> Operator:
    """What stands for the operator on a device."""
    if emission.boxed:
        return _box(signature, choice, blocks)
    if emission.chosen is None:
        return Apply(signature.primitive, emission.params, choice.loops)
    dim, sizes = emission.chosen
    (rule,) = rules(signature)
    loop = rule.results[0][dim].loop
    start = Start(Index.of(loop) * blocks[loop], ((loop, dict(choice.loops)[loop]),))
    return Choose(dim, start, sizes, choice.loops)


def _box(signature: Signature, choice: Choice, blocks: dict[str, int]) -> Extract | Insert:
    """What reads, or writes, a box at run-time starts."""
    (rule,) = rules(signature)
    loops = dict(choice.loops)
    places = tuple((dim, loops[loop], high) for dim, loop, high in boxes(rule, loops))
    if rule.init is not None:
        return Insert(places, choice.loops)
    return Extract(local_shape(rule, 0, blocks), places, choice.loops)


def _windows(key: NodeKey, rows: tuple[Rule, ...], choice: Choice) -> tuple[Window, ...]:
    """What a device needs of dimensions that are read through windows (of one row)."""
    if len(rows) > 1 or not choice.loops or not through_windows(key.signature):
        return ()
    held = tuple((k, choice.demands[k].dims) for k in rows[0].operands)
    return windows(rows[0], choice.loops, held, key.homes[0].mesh.size)


def _raw(rule: Rule, choice: Choice) -> tuple[Sharding, ...]:
    """Before it is combined, a result of any combine is partial along the combined digits."""
    pending = () if rule.combine in (SUM, PICK) else reduced_digits(rule, dict(choice.loops))
    if not pending:
        return choice.produced
    return tuple(replace(p, unreduced=p.unreduced + pending) for p in choice.produced)


def _masks(rows: tuple[Rule, ...], loops: dict[str, Digits]) -> tuple[tuple[int, Attributes], ...]:
    """Mask operands along a combined loop that does not divide: padding would be counted."""
    found: dict[tuple[int, Attributes], None] = {}
    for rule in rows:
        split = [name for name in _joined(rule) if name in loops]
        for operand, dims in rule.operands.items() if split and rule.combine != PICK else ():
            for dim, index in enumerate(dims):
                mask = _mask(rule, index.loop, loops) if index.loop in split else None
                if mask:
                    found[operand, _masking(rule, (operand, dim), mask)] = None
    return tuple(found)


def _masking(rule: Rule, place: tuple[int, int], mask: tuple[Digits, int, int]) -> Mask | MaskAt:
    """What fills the places beyond a loop: an identity, or the number that stands for it."""
    (operand, dim), (digits, block, size) = place, mask
    if rule.filler(operand) is None:
        return Mask(dim, *mask, rule.combine)
    loop = rule.operands[operand][dim].loop
    return MaskAt(dim, Start(Index.of(loop) * block, ((loop, digits),)), size, None)


def _joined(rule: Rule) -> tuple[str, ...]:
    """Loops whose padding joins what is kept: combined ones, and those of prefixes from the end."""
    return rule.reduced if rule.prefix is None or not rule.prefix[1] else (rule.prefix[0],)


def carries(rule: Rule, loops: Mapping[str, Digits]) -> Iterator[Carry]:
    """What joins the prefixes of the blocks of a sharded loop, along its dimension of a result."""
    loop, reverse = rule.prefix or (None, False)
    if loops.get(loop):
        (dim,) = [d for d, index in enumerate(rule.results[0]) if index.loop == loop]
        yield Carry(dim, loops[loop], rule.combine, reverse)


def _mask(rule: Rule, loop: str, loops: dict[str, Digits]) -> tuple[Digits, int, int] | None:
    """(digits, block, size) of a sharded loop with padding."""
    digits, extent = loops.get(loop, ()), rule.extents[loop]
    return (digits, tile(extent, parts(digits)), extent) if extent % parts(digits) else None


def _around(
    rule: Rule, emission: Emission, loops: dict[str, Digits]
) -> Iterator[tuple[int, Attributes]]:
    """Margins around a block that windows overlap; what is read there, or behind its end, is 0."""
    for dim, loop, width in emission.margins:
        mask = _mask(rule, loop, loops)
        if mask:
            yield 0, Mask(dim, *mask, SUM)
        yield 0, Dilate(dim, 1, width, width, SUM)


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
    return (Best(dim, loops[loop], block, rule.combine),)


def partition_node(
    context: PartitionContext, node: Node, plan: NodePlan, homes: tuple[Sharding, ...]
) -> None:
    """Emit `node` by its plan and hold its results, at home unless their sums are deferred."""
    results = emit_node(context, node, plan, node.phase)
    produced = plan.choice.produced
    for value, local, layout, home in zip(node.results, results, produced, homes, strict=True):
        settle(context, node, (value, local, layout), home)


def remake(
    context: PartitionContext, node: Node, plan: NodePlan, wanted: tuple[Sharding, Cause]
) -> int:
    """Make the result of a node once more, in the layout that is wanted: nothing is sent."""
    layout, cause = wanted
    (local,) = emit_node(context, node, plan, cause.phase)
    return context.move(local, plan.choice.produced[0], layout, cause)


def emit_node(context: PartitionContext, node: Node, plan: NodePlan, phase: str) -> tuple[int, ...]:
    """Bring the operands, run the local operator; locals of the results in the chosen layouts."""
    cause = Cause(node.index, phase, "unknown", plan.why)
    demand = context.demand
    pairs = zip(node.operands, plan.choice.demands, strict=True)
    operands = [demand(value, layout, cause) for value, layout in pairs]
    if plan.apply is None:
        layouts = plan.choice.demands[0], plan.choice.produced[0]
        return (regroup(context, node, operands[0], layouts),)
    for position, attributes in plan.before:
        role = context.roles[node.operands[position]]
        fill = rules(node.signature)[0].filler(position) if _fills(attributes) else None
        more = () if fill is None else (operands[fill],)
        operands[position] = apply_on(
            context, operands[position], attributes, cause._replace(role=role), *more
        )
    for along in plan.along:
        blocks = [(context.locals[o].dtype, context.locals[o].shape) for o in operands]
        for found in together(along, blocks):
            _bring(context, node, found, operands)
    results = _applied(context, node, plan, (tuple(operands), cause))
    if plan.indexed or plan.after:
        return _finished(context, node, plan, (tuple(operands), results))
    return results


def _applied(
    context: PartitionContext, node: Node, plan: NodePlan, given: tuple[tuple[int, ...], Cause]
) -> tuple[int, ...]:
    """Run the local operator on operands; its results, of their values if nothing comes after."""
    operands, cause = given
    values = (None,) * len(node.results) if plan.indexed or plan.after else node.results
    made = zip(values, node.signature.results, plan.raw, plan.shapes, strict=True)
    new = context.new_local
    results = tuple([new(shape, t.dtype, layout, value) for value, t, layout, shape in made])
    context.emit(plan.apply, operands, results, cause)
    return results


def _fills(attributes: Attributes) -> bool:
    """Whether places are filled with a number that is an operand."""
    return isinstance(attributes, MaskAt) and attributes.fill is None


def _bring(
    context: PartitionContext, node: Node, found: tuple[Window, ...], operands: list[int]
) -> None:
    """Replace operands' locals by the intervals that their windows read."""
    rule, first = rules(node.signature)[0], found[0]
    role = context.roles[node.operands[first.operand]]
    cause = Cause(node.index, node.phase, role, Why(Purpose.READS_WINDOW, node.primitive))
    fills = [rule.filler(window.operand) for window in found]
    bringing = [
        Bringing(context, window, rule, None if fill is None else operands[fill], cause)
        for window, fill in zip(found, fills, strict=True)
    ]
    locals_ = tuple(operands[window.operand] for window in found)
    if first.exchange.held:
        along = Along(context, first.dim, cause)
        intervals = along.deliver(locals_, tuple(window.exchange for window in found))
    else:
        pairs = zip(bringing, locals_, strict=True)
        intervals = tuple(one.own(local) for one, local in pairs)
    for window, one, interval in zip(found, bringing, intervals, strict=True):
        operands[window.operand] = one.run(interval)


def _finished(
    context: PartitionContext,
    node: Node,
    plan: NodePlan,
    given: tuple[tuple[int, ...], tuple[int, ...]],
) -> tuple[int, ...]:
    """The results after what has to be done on them; until then they are no layout of a value."""
    operands, results = given
    cause = context.cause(node, Why(Purpose.COMBINES, node.primitive))
    causes = [cause._replace(role=context.roles[v]) for v in node.results]
    if plan.indexed:
        operand, mask = plan.indexed
        results = (apply_on(context, results[0], mask, causes[0], operands[operand]),)
    for attributes in plan.after:
        results = done_after(context, (results, operands), attributes, causes)
    for value, local, layout in zip(node.results, results, plan.choice.produced, strict=True):
        context.locals[local] = replace(context.locals[local], origin=value, sharding=layout)
    return results


def settle(
    context: PartitionContext, node: Node, made: tuple[int, int, Sharding], home: Sharding
) -> None:
    """Bring a result home; leave its partial sums pending where its only user can pass them on."""
    value, local, layout = made
    if layout == home:
        context.hold(value, home, local)
        return
    if layout.unreduced and context.options.defer_sums and value in context.deferrable:
        context.hold(value, layout, local)
        return
    why = Why(Purpose.LEAVES_SUMS if layout.unreduced else Purpose.GIVES, node.primitive)
    cause = Cause(node.index, node.phase, context.roles[value], why)
    context.hold(value, home, context.move(local, layout, home, cause))
    if not layout.unreduced:
        context.hold(value, layout, local)
