"""One node: operands into the chosen layouts, the local operator, results home."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from shardalg.algebra.derived_layouts import interned, undivided
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Node
from shardalg.partition.choose.node_classes import KEPT
from shardalg.partition.choose.node_plan import NodePlan
from shardalg.partition.choose.regroup import moved, regrouped
from shardalg.partition.choose.windows import Window, brought, together
from shardalg.partition.emit.after import apply_on, done_after
from shardalg.partition.emit.context import Cause, PartitionContext
from shardalg.spmd.instructions import Regroup, leading
from shardalg.spmd.why import Purpose, Why


def partition_node(
    context: PartitionContext, node: Node, plan: NodePlan, value_shardings: tuple[Sharding, ...]
) -> None:
    """Emit `node` by its plan and hold its results, at home unless their sums are deferred."""
    results = emit_node(context, node, plan, node.phase)
    for value, local, home in zip(node.results, results, value_shardings, strict=True):
        settle(context, node, value, local, home)


def remake(
    context: PartitionContext, node: Node, plan: NodePlan, layout: Sharding, cause: Cause
) -> int:
    """Make the result of a node once more, in the layout that is wanted: nothing is sent."""
    (local,) = emit_node(context, node, plan, cause.phase)
    return context.move(local, plan.choice.produced[0], layout, cause)


def emit_node(context: PartitionContext, node: Node, plan: NodePlan, phase: str) -> tuple[int, ...]:
    """Bring the operands, run the local operator; locals of the results in the chosen layouts."""
    cause = Cause(node.index, phase, "unknown", plan.why)
    required = context.required
    pairs = zip(node.operands, plan.choice.required_shardings, strict=True)
    operands = [required(value, layout, cause) for value, layout in pairs]
    if plan.apply is None:
        held, made = plan.choice.required_shardings[0], plan.choice.produced[0]
        return (regroup(context, node, operands[0], held, made),)
    for position, attributes, filler in plan.before:
        role = context.roles[node.operands[position]]
        more = () if filler is None else (operands[filler],)
        operands[position] = apply_on(
            context, operands[position], attributes, cause._replace(role=role), *more
        )
    for along in plan.along:
        blocks = [(context.locals[o].dtype, context.locals[o].shape) for o in operands]
        for found in together(along, blocks):
            _bring(context, node, found, operands)
    results = _applied(context, node, plan, tuple(operands), cause)
    if plan.indexed or plan.after:
        return _finished(context, node, plan, tuple(operands), results)
    return results


def _applied(
    context: PartitionContext,
    node: Node,
    plan: NodePlan,
    operands: tuple[int, ...],
    cause: Cause,
) -> tuple[int, ...]:
    """Run the local operator on operands; its results, of their values if nothing comes after."""
    values = (None,) * len(node.results) if plan.indexed or plan.after else node.results
    made = zip(values, node.signature.results, plan.raw, plan.shapes, strict=True)
    new = context.new_local
    results = tuple([new(shape, t.dtype, layout, value) for value, t, layout, shape in made])
    context.emit(plan.operator, operands, results, cause)
    return results


def _bring(
    context: PartitionContext, node: Node, found: tuple[Window, ...], operands: list[int]
) -> None:
    """Replace operands' locals by the intervals that their windows read."""
    role = context.roles[node.operands[found[0].operand]]
    cause = Cause(node.index, node.phase, role, Why(Purpose.READS_WINDOW, node.primitive))
    tensors = tuple(map(operands.index, operands))
    made = context.run_along(brought(found, tensors), tuple(operands), cause)
    for window, interval in zip(found, made, strict=True):
        operands[window.operand] = interval


def _finished(
    context: PartitionContext,
    node: Node,
    plan: NodePlan,
    operands: tuple[int, ...],
    results: tuple[int, ...],
) -> tuple[int, ...]:
    """The results after what has to be done on them; until then they are no layout of a value."""
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
    context: PartitionContext,
    node: Node,
    value: int,
    local: int,
    result_sharding: Sharding,
) -> None:
    """Bring a result home, where that adds up its partial sums or leaves a device less of it.

    Partial sums stay pending where the only user can pass them on. What is no smaller at home, and
    not annotated, is brought there, or elsewhere, by whoever reads it. By cost a reader may take
    what lay there before an annotation, which then is the layout of the value's own copy.
    """
    layout = context.locals[local].sharding
    if layout == result_sharding:
        context.hold(value, result_sharding, local)
        return
    waits = context.options.switches.defer_sums and value in context.deferrable
    stays = node.primitive not in KEPT and _is_no_smaller(result_sharding, layout)
    if waits if layout.unreduced else stays:
        context.hold(value, layout, local)
        return
    why = Why(Purpose.LEAVES_SUMS if layout.unreduced else Purpose.GIVES, node.primitive)
    cause = Cause(node.index, node.phase, context.roles[value], why)
    everywhere = undivided(result_sharding, among=layout.unreduced)
    if everywhere != result_sharding:
        local, layout = context.move(local, layout, everywhere, cause), everywhere
    context.hold(value, result_sharding, context.move(local, layout, result_sharding, cause))
    is_free = node.primitive not in KEPT or context.options.policy == "cost"
    if is_free and not layout.unreduced:
        context.hold(value, layout, local)


def _is_no_smaller(first: Sharding, second: Sharding) -> bool:
    """Whether a device holds no less of a value in one layout than in another."""
    return bool(prod(first.shard_shape) >= prod(second.shard_shape))


def regroup(
    context: PartitionContext, node: Node, local: int, held: Sharding, made: Sharding
) -> int:
    """Emit a reshape between two layouts: flat groups, an exchange each, the new dimensions."""
    every = regrouped(node.signature)
    role = context.roles[node.operands[0]]
    cause = Cause(node.index, node.phase, role, Why(Purpose.MOVES_BLOCKS, node.primitive))
    flat = Regroup(tuple((len(g.sizes), g.flat) for g in every))
    dims = tuple(held.dims[g.leads[0]] for g in every)
    view = interned(held.mesh, tuple(size for g in every for size in g.flat), dims, ())
    shape = flat.shape(context.locals[local].shape)
    local = _emitted(context, flat, local, cause, Made(shape, view))
    for dim, group in enumerate(every):
        if not group.is_kept:
            (local,) = context.run_along(moved(group, dim, held, made), (local,), cause)
    split = tuple(g.split_dim(made) for g in every)
    is_usual = split == tuple(leading(g.out_sizes) for g in every)
    out = Regroup(tuple((1, g.out_sizes) for g in every), () if is_usual else split)
    return _emitted(context, out, local, cause, Made(made.shard_shape, made, node.results[0]))


@dataclass(frozen=True)
class Made:
    """What an instruction leaves on a device: its shape, in which layout, and of which value."""

    shape: tuple[int, ...]
    layout: Sharding
    value: int | None = None


def _emitted(
    context: PartitionContext, attributes: Regroup, local: int, cause: Cause, made: Made
) -> int:
    dtype = context.locals[local].dtype
    result = context.new_local(made.shape, dtype, made.layout, made.value)
    context.emit(attributes, (local,), (result,), cause)
    return result
