"""One node: operands into the chosen layouts, the local operator, results home.

What is done to the results of a local operator before they are those of the node.

Calls: the values at the border of each body, and the instruction around the bodies.

What nodes of one kind do whose values are at hand alike: worked out once, then repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from shardalg.algebra.derived_layouts import interned, undivided
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph, Node, Region
from shardalg.planner.partition.choose.node_classes import KEPT
from shardalg.planner.partition.choose.node_plan import NodePlan
from shardalg.planner.partition.choose.regroup import moved, regrouped
from shardalg.planner.partition.choose.windows import ShardedWindow, brought, together
from shardalg.planner.partition.emit.context import UNMADE, Cause, PartitionContext
from shardalg.spmd.instruction import Attributes, Block, Instruction, Purpose, Why
from shardalg.spmd.instructions import (
    ArgReduce,
    Branches,
    Dilate,
    ExclusiveScan,
    Fold,
    Join,
    Loop,
    Manual,
    OwnerSelect,
    Regroup,
    Slice,
    SliceAt,
    Top,
    ValueAt,
    While,
    leading,
)
from shardalg.spmd.local import Local

Given = tuple[int, ...]
"""A result and the operands of the operator that made it, as locals."""


Resizing = Dilate | Slice | SliceAt | OwnerSelect


def resized(attributes: Resizing, size: int) -> int:
    """Places of the dimension after an instruction that changes their number."""
    if isinstance(attributes, OwnerSelect):
        return 1
    return attributes.length(size) if isinstance(attributes, Dilate) else attributes.size


def done_after(
    context: PartitionContext,
    given: tuple[Given, Given],
    attributes: Attributes,
    causes: Sequence[Cause],
) -> Given:
    """The results after one more step, which joins all of them or is done to each.

    Args:
      given: results and operands of the operator.
      causes: per result.
    """
    results, operands = given
    if isinstance(attributes, Top | Fold):
        made = tuple([_like(context, result) for result in results])
        starts = operands[len(results) :] if isinstance(attributes, Fold) else ()
        context.emit(attributes, (*results, *starts), made, causes[0])
        return made
    return tuple(
        _after(context, (result, *operands), attributes, cause)
        for result, cause in zip(results, causes, strict=True)
    )


def _after(context: PartitionContext, given: Given, attributes: Attributes, cause: Cause) -> int:
    """A result after one more step, which may take more than one instruction."""
    if isinstance(attributes, ArgReduce):
        return _best_on(context, given, attributes, cause)
    if isinstance(attributes, ExclusiveScan):
        return _carry_on(context, given, attributes, cause)
    return apply_on(context, given[0], attributes, cause)


def apply_on(
    context: PartitionContext, local: int, attributes: Attributes, cause: Cause, *more: int
) -> int:
    """The local that an instruction on `local` (and `more`) makes."""
    like = context.locals[local]
    shape = list(like.shape)
    if isinstance(attributes, Resizing):
        shape[attributes.dim] = resized(attributes, shape[attributes.dim])
    made = context.new_local(tuple(shape), like.dtype, like.sharding)
    context.emit(attributes, (local, *more), (made,), cause)
    return made


def _like(context: PartitionContext, local: int) -> int:
    like = context.locals[local]
    return context.new_local(like.shape, like.dtype, like.sharding)


def _carry_on(context: PartitionContext, given: Given, carry: ExclusiveScan, cause: Cause) -> int:
    """The prefix of a block after that of all blocks before it."""
    local = given[0]
    size = context.locals[local].shape[carry.dim]
    end = apply_on(context, local, Slice(carry.dim, 0 if carry.reverse else size - 1, 1), cause)
    before = apply_on(context, end, carry, cause)
    return apply_on(context, local, Join(carry.dim, carry.combine), cause, before)


def _best_on(context: PartitionContext, given: Given, best: ArgReduce, cause: Cause) -> int:
    """The best place of all blocks, by its value in each."""
    place, block = (context.locals[local] for local in given)
    value = context.new_local(place.shape, block.dtype, place.sharding)
    context.emit(ValueAt(best.dim), given, (value,), cause)
    made = context.new_local(place.shape, place.dtype, place.sharding)
    context.emit(best, (value, given[0]), (made,), cause)
    return made


def open_body(
    context: PartitionContext, region: Region, arguments: tuple[Sharding, ...]
) -> tuple[int, ...]:
    """Locals of the body's arguments, held in the layouts of the border."""
    pairs = zip(region.arguments, arguments, strict=True)
    return tuple(context.given(value, layout) for value, layout in pairs)


def close_body(
    context: PartitionContext, node: Node, region: Region, results: tuple[Sharding, ...]
) -> tuple[int, ...]:
    """Locals of the body's results in the layouts of the border."""
    cause = context.cause(node, Why(Purpose.BODY_RESULT))
    return tuple(
        context.required(value, layout, cause)
        for value, layout in zip(region.results, results, strict=True)
    )


def control(graph: Graph, node: Node, blocks: Sequence[Block], mesh: Mesh) -> Attributes:
    """The instruction of a call around its planned bodies."""
    made = _CONTROL[node.primitive](node, mesh, *blocks)
    return replace(made, iterations=graph.iterations(node)) if type(made) is While else made


TAKES = {
    "scan": Purpose.LOOP_TAKES, "cond": Purpose.BODIES_TAKE, "while": Purpose.BODIES_TAKE,
    "shard_map": Purpose.REGION_TAKES,
}  # fmt: skip
"""Why operands of a call move."""


def _loop(node: Node, mesh: Mesh, body: Block) -> Loop:
    consts, carry, length = (node.signature.param(n) for n in ("num_consts", "num_carry", "length"))
    return Loop(body, consts, carry, length, bool(node.signature.param("reverse")))


def _repeated(node: Node, mesh: Mesh, condition: Block, body: Block) -> While:
    counts = (node.signature.param("cond_nconsts"), node.signature.param("body_nconsts"))
    return While(condition, body, counts)


_CONTROL: dict[str, Callable[..., Attributes]] = {
    "scan": _loop,
    "while": _repeated,
    "cond": lambda node, mesh, *blocks: Branches(blocks),
    "shard_map": lambda node, mesh, body: Manual(
        body, mesh.digits(name for name, _ in node.signature.param("axes"))
    ),
}


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
    context: PartitionContext, node: Node, found: tuple[ShardedWindow, ...], operands: list[int]
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
    waits = context.options.defer_sums and value in context.deferrable
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
    is_free = node.primitive not in KEPT or context.options.keep_unannotated
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
    local = _emitted(context, flat, local, cause, InstructionResult(shape, view))
    for dim, group in enumerate(every):
        if not group.is_kept:
            (local,) = context.run_along(moved(group, dim, held, made), (local,), cause)
    split = tuple(g.split_dim(made) for g in every)
    is_usual = split == tuple(leading(g.out_sizes) for g in every)
    out = Regroup(tuple((1, g.out_sizes) for g in every), () if is_usual else split)
    return _emitted(
        context, out, local, cause, InstructionResult(made.shard_shape, made, node.results[0])
    )


@dataclass(frozen=True)
class InstructionResult:
    """What an instruction leaves on a device: its shape, in which layout, and of which value."""

    shape: tuple[int, ...]
    layout: Sharding
    value: int | None = None


def _emitted(
    context: PartitionContext,
    attributes: Regroup,
    local: int,
    cause: Cause,
    made: InstructionResult,
) -> int:
    dtype = context.locals[local].dtype
    result = context.new_local(made.shape, dtype, made.layout, made.value)
    context.emit(attributes, (local,), (result,), cause)
    return result


class Recipe(NamedTuple):
    """What a node emits, and what it leaves at hand.

    Attributes:
      result_shardings: per result, its layout for whoever reads it.
      emit: how it is emitted.
      moved: operands that are asked for in a layout that is not the first at hand.
      made: per result its shape, type and layout, and the number of what is at hand then.
      settled: results that are not at home yet.
      is_remade: whether the result can be made again in every layout.
      again: a layout in which the result can be made again for nothing.
    """

    plan: NodePlan
    value_shardings: tuple[Sharding, ...]
    emit: Callable[[PartitionContext, Node, Recipe], None]
    moved: tuple[int, ...] = ()
    made: tuple[tuple[tuple[int, ...], str, Sharding, int], ...] = ()
    settled: tuple[int, ...] = ()
    is_remade: bool = False
    again: Sharding | None = None


def recipe(
    context: PartitionContext, node: Node, plan: NodePlan, value_shardings: tuple[Sharding, ...]
) -> Recipe:
    """The recipe of all nodes like `node`, as their values are at hand."""
    if not plan.is_bare:
        return Recipe(plan, value_shardings, _around)
    required_shardings = zip(node.operands, plan.choice.required_shardings, strict=True)
    moved = [
        k for k, (v, layout) in enumerate(required_shardings) if layout != context.sources(v)[0]
    ]
    sides = zip(plan.shapes, node.signature.results, plan.raw, value_shardings, strict=True)
    number = context.tuples.number
    made = [
        (shape, t.dtype, layout, number((result_sharding,)))
        for shape, t, layout, result_sharding in sides
    ]
    away = [k for k, result_sharding in enumerate(value_shardings) if made[k][2] != result_sharding]
    return Recipe(plan, value_shardings, _bare, tuple(moved), tuple(made), tuple(away))


def _around(context: PartitionContext, node: Node, recipe: Recipe) -> None:
    partition_node(context, node, recipe.plan, recipe.value_shardings)


def _bare(context: PartitionContext, node: Node, recipe: Recipe) -> None:
    """Nothing but the operator: by far most nodes, so that every look-up here is felt."""
    first, available, locals_, plan = context.first, context.available, context.locals, recipe.plan
    operands = [first[value] for value in node.operands]
    if recipe.moved:
        cause = context.cause(node, plan.why)
        for k in recipe.moved:
            operands[k] = context.required(
                node.operands[k], plan.choice.required_shardings[k], cause
            )
    local = start = len(locals_)
    for value, (shape, dtype, layout, number) in zip(node.results, recipe.made, strict=False):
        locals_.append(Local(local, shape, dtype, layout, value))
        available[value] = number
        first[value] = local
        local += 1
    results = (start,) if local == start + 1 else tuple(range(start, local))
    operator, why, read = plan.operator, plan.why, tuple(operands)
    context.instructions.append(
        Instruction(operator, read, results, node.index, node.phase, "unknown", why)
    )
    for k in recipe.settled:
        first[node.results[k]] = UNMADE
        settle(context, node, node.results[k], results[k], recipe.value_shardings[k])
