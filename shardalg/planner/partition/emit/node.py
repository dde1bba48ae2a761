"""The instructions of one node: moves of operands, the local operator, and moves of results.

Steps after the local operator finish its results, for example an all-reduce of a maximum.

Calls (loops, conditionals, manual regions): `open_body` and `close_body` create the values at the
border of a body, `control` the instruction that contains the bodies.

Recipes: nodes of one equivalence class with equal available copies emit the same instructions. The
instructions are derived once and repeated (`Recipe`).
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
from shardalg.planner.partition.choose.regroup import exchange_program, regroups
from shardalg.planner.partition.choose.windows import ShardedWindow, fetch_program, together
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

Locals = tuple[int, ...]
"""Local values, as indices in `PartitionContext.locals`."""
Resizing = Dilate | Slice | SliceAt | OwnerSelect


def size_after(attributes: Resizing, size: int) -> int:
    """Return the size of a dimension of `size` elements after an instruction that changes it."""
    if isinstance(attributes, OwnerSelect):
        return 1
    return attributes.length(size) if isinstance(attributes, Dilate) else attributes.size


def finish_results(
    context: PartitionContext,
    given: tuple[Locals, Locals],
    attributes: Attributes,
    causes: Sequence[Cause],
) -> Locals:
    """Emit one step that finishes all results of a local operator; return the finished results.

    After the operator has run on each device's block, its results may be partial: for example, each
    device has the maximum of its block, and an all-reduce gives the maximum of all.

    Args:
      given: numbers of the local values that are the results and the operands of the operator.
      attributes: the step, such as an all-reduce of a maximum.
      causes: per result, the reason of the step.
    """
    results, operands = given
    if isinstance(attributes, Top | Fold):
        # These combine all results together; a fold also reads the start values.
        finished = []
        for result in results:
            like = context.locals[result]
            finished.append(context.new_local(like.shape, like.dtype, like.sharding))
        starts = operands[len(results) :] if isinstance(attributes, Fold) else ()
        context.emit(attributes, (*results, *starts), tuple(finished), causes[0])
        return tuple(finished)
    # All other steps treat each result alone.
    finished = []
    for result, cause in zip(results, causes, strict=True):
        if isinstance(attributes, ArgReduce):
            finished.append(_arg_reduce(context, (result, *operands), attributes, cause))
        elif isinstance(attributes, ExclusiveScan):
            finished.append(_prefix_of_all_blocks(context, result, attributes, cause))
        else:
            finished.append(apply_on(context, result, attributes, cause))
    return tuple(finished)


def apply_on(
    context: PartitionContext, local: int, attributes: Attributes, cause: Cause, *more: int
) -> int:
    """Emit an instruction with one result, and return the number of this local value.

    Args:
      local: the first operand. The result has its type and its shape, except for a dimension that
        the instruction resizes.
      more: the other operands.
    """
    like = context.locals[local]
    shape = list(like.shape)
    # For example, a gather makes its dimension longer, and a slice makes it shorter.
    if isinstance(attributes, Resizing):
        shape[attributes.dim] = size_after(attributes, shape[attributes.dim])
    result = context.new_local(tuple(shape), like.dtype, like.sharding)
    context.emit(attributes, (local, *more), (result,), cause)
    return result


def _prefix_of_all_blocks(
    context: PartitionContext, local: int, scan: ExclusiveScan, cause: Cause
) -> int:
    """Emit the rest of a cumulative operator (a cumsum); return the local value of its result.

    Args:
      local: the cumulative values within the device's own block. They are combined with the totals
        of all blocks before it.
      scan: the exclusive scan that computes these totals.
    """
    size = context.locals[local].shape[scan.dim]
    # The total of a block is the end of its own prefix.
    end = apply_on(context, local, Slice(scan.dim, 0 if scan.reverse else size - 1, 1), cause)
    before = apply_on(context, end, scan, cause)
    return apply_on(context, local, Join(scan.dim, scan.combine), cause, before)


def _arg_reduce(context: PartitionContext, given: Locals, best: ArgReduce, cause: Cause) -> int:
    """Emit the exchange of an argmax or argmin; return the local value with the global index.

    Args:
      given: the local values of the best index within the block, and of the block.
      best: the instruction that compares the best elements of all blocks.
    """
    # An index does not say how good its element is, so each device sends the element with its
    # index.
    place, block = (context.locals[local] for local in given)
    value = context.new_local(place.shape, block.dtype, place.sharding)
    context.emit(ValueAt(best.dim), given, (value,), cause)
    made = context.new_local(place.shape, place.dtype, place.sharding)
    context.emit(best, (value, given[0]), (made,), cause)
    return made


def open_body(
    context: PartitionContext, region: Region, arguments: tuple[Sharding, ...]
) -> tuple[int, ...]:
    """Add local values for the arguments of a loop's or branch's body; return their numbers.

    Args:
      arguments: the sharding of each argument.
    """
    pairs = zip(region.arguments, arguments, strict=True)
    return tuple(context.given(value, layout) for value, layout in pairs)


def close_body(
    context: PartitionContext, node: Node, region: Region, results: tuple[Sharding, ...]
) -> tuple[int, ...]:
    """Return the local values of a body's results, moved to the given shardings.

    Args:
      results: the sharding of each result.
    """
    cause = context.cause(node, Why(Purpose.BODY_RESULT))
    return tuple(
        context.required(value, layout, cause)
        for value, layout in zip(region.results, results, strict=True)
    )


def control(graph: Graph, node: Node, blocks: Sequence[Block], mesh: Mesh) -> Attributes:
    """Return the instruction of a loop, conditional or manual region.

    Args:
      blocks: the instructions of its bodies, in the order of `node.bodies`.
    """
    made = _CONTROL[node.primitive](node, mesh, *blocks)
    return replace(made, iterations=graph.iterations(node)) if type(made) is While else made


# Reports explain a move of a call's operand by this purpose, because the primitive alone (`scan`)
# does not say that its body reads the operand.
TAKES = {
    "scan": Purpose.LOOP_TAKES, "cond": Purpose.BODIES_TAKE, "while": Purpose.BODIES_TAKE,
    "shard_map": Purpose.REGION_TAKES,
}  # fmt: skip


def _loop(node: Node, mesh: Mesh, body: Block) -> Loop:
    consts, carry, length = (node.signature.param(n) for n in ("num_consts", "num_carry", "length"))
    return Loop(body, consts, carry, length, bool(node.signature.param("reverse")))


_CONTROL: dict[str, Callable[..., Attributes]] = {
    "scan": _loop,
    # The constants of the condition come first among the operands, then those of the body.
    "while": lambda node, mesh, condition, body: While(
        condition,
        body,
        tuple(node.signature.param(f"{block}_nconsts") for block in ("cond", "body")),
    ),
    "cond": lambda node, mesh, *blocks: Branches(blocks),
    "shard_map": lambda node, mesh, body: Manual(
        body, mesh.digits(name for name, _ in node.signature.param("axes"))
    ),
}


def remake(
    context: PartitionContext, node: Node, plan: NodePlan, layout: Sharding, cause: Cause
) -> int:
    """Emit a node again, so that its only result is in the given sharding; return the local value.

    Args:
      plan: how the node is computed; its result is moved to `layout` if it has another sharding.
    """
    (local,) = emit_node(context, node, plan, cause.phase)
    return context.move(local, plan.choice.produced[0], layout, cause)


def emit_node(context: PartitionContext, node: Node, plan: NodePlan, phase: str) -> tuple[int, ...]:
    """Emit all instructions of a node; return the local values of its results.

    They are: moves of the operands, the local operator, and the steps that finish its results.

    Args:
      plan: what was decided for the node: shardings, the local operator, steps before and after.
      phase: "forward", "backward" or "update".
    """
    cause = Cause(node.index, phase, "unknown", plan.why)
    required = context.required
    # Operands in another sharding than the required one are moved first.
    pairs = zip(node.operands, plan.choice.required_shardings, strict=True)
    operands = [required(value, layout, cause) for value, layout in pairs]
    # A reshape that moves elements between blocks is an exchange, and runs no operator of its own.
    if plan.apply is None:
        before, after = plan.choice.required_shardings[0], plan.choice.produced[0]
        return (regroup(context, node, operands[0], before, after),)
    # These instructions are, for example, masks of padding. `filler` is the number of the operand
    # with the value that overwrites the padding.
    for position, attributes, filler in plan.before:
        role = context.roles[node.operands[position]]
        more = () if filler is None else (operands[filler],)
        operands[position] = apply_on(
            context, operands[position], attributes, cause._replace(role=role), *more
        )
    # Windows over one dimension need blocks of the same neighbours, so one permute serves several.
    for along in plan.along:
        blocks = [(context.locals[o].dtype, context.locals[o].shape) for o in operands]
        for found in together(along, blocks):
            _fetch_windows(context, node, found, operands)
    results = _run_operator(context, node, plan, tuple(operands), cause)
    if plan.indexed or plan.after:
        return _finish_node(context, node, plan, tuple(operands), results)
    return results


def _run_operator(
    context: PartitionContext,
    node: Node,
    plan: NodePlan,
    operands: tuple[int, ...],
    cause: Cause,
) -> tuple[int, ...]:
    """Emit the local operator on a device's blocks and return the local values of its results.

    The plan has the local shape and the sharding (`raw`) that each result has directly after the
    operator.
    """
    # A result that further steps change is not yet a copy of its value.
    values = (None,) * len(node.results) if plan.indexed or plan.after else node.results
    made = zip(values, node.signature.results, plan.raw, plan.shapes, strict=True)
    new = context.new_local
    results = tuple([new(shape, t.dtype, layout, value) for value, t, layout, shape in made])
    context.emit(plan.operator, operands, results, cause)
    return results


def _fetch_windows(
    context: PartitionContext, node: Node, found: tuple[ShardedWindow, ...], operands: list[int]
) -> None:
    """Emit halo exchanges, and replace entries of `operands` by the elements that a window reads.

    Args:
      found: windows over one dimension whose exchanges share permutes.
      operands: the local value of each operand, changed in place.
    """
    role = context.roles[node.operands[found[0].operand]]
    cause = Cause(node.index, node.phase, role, Why(Purpose.READS_WINDOW, node.primitive))
    # Equal operands get the number of the first one, so that a value read twice is sent once.
    tensors = tuple(map(operands.index, operands))
    intervals = context.run_along(fetch_program(found, tensors), tuple(operands), cause)
    for window, interval in zip(found, intervals, strict=True):
        operands[window.operand] = interval


def _finish_node(
    context: PartitionContext,
    node: Node,
    plan: NodePlan,
    operands: tuple[int, ...],
    results: tuple[int, ...],
) -> tuple[int, ...]:
    """Emit the steps after the local operator and return the node's results.

    Args:
      plan: the decisions for the node, with the steps.
      operands, results: the local values that the operator read and returned.
    """
    cause = context.cause(node, Why(Purpose.COMBINES, node.primitive))
    causes = [cause._replace(role=context.roles[v]) for v in node.results]
    # A gather reads wrong elements for indices outside the block: they are masked first.
    if plan.indexed:
        operand, mask = plan.indexed
        results = (apply_on(context, results[0], mask, causes[0], operands[operand]),)
    for attributes in plan.after:
        results = finish_results(context, (results, operands), attributes, causes)
    # Only now are the local values copies of the node's results.
    for value, local, layout in zip(node.results, results, plan.choice.produced, strict=True):
        context.locals[local] = replace(context.locals[local], origin=value, sharding=layout)
    return results


def place_result(
    context: PartitionContext,
    node: Node,
    value: int,
    local: int,
    result_sharding: Sharding,
) -> None:
    """Record a computed result as an available copy of `value`, perhaps after a move.

    It is moved to `result_sharding` in three cases:
    - It is a partial sum that its reader cannot pass on.
    - A device holds less of the value after the move.
    - The node is an annotation or a barrier.
    Otherwise each reader moves it to the sharding that the reader requires.

    Args:
      local: the local value that the node computed.
    """
    layout = context.locals[local].sharding
    if layout == result_sharding:
        context.hold(value, result_sharding, local)
        return
    # A move that saves no memory is left to the readers: some of them may need no move, or another.
    defers = context.options.defer_sums and value in context.deferrable
    is_smaller = prod(result_sharding.shard_shape) < prod(layout.shard_shape)
    waits = node.primitive not in KEPT and not is_smaller
    stays = defers if layout.unreduced else waits
    if stays:
        context.hold(value, layout, local)
        return
    why = Why(Purpose.LEAVES_SUMS if layout.unreduced else Purpose.GIVES, node.primitive)
    cause = Cause(node.index, node.phase, context.roles[value], why)
    # One element cannot be scattered: a sum over the axes of such a dimension is all-reduced, then
    # cut. The whole element is an available copy, too.
    everywhere = undivided(result_sharding, among=layout.unreduced)
    if everywhere != result_sharding:
        local, layout = context.move(local, layout, everywhere, cause), everywhere
    context.hold(value, result_sharding, context.move(local, layout, result_sharding, cause))
    is_free = node.primitive not in KEPT or context.options.keep_unannotated
    if is_free and not layout.unreduced:
        context.hold(value, layout, local)


def regroup(
    context: PartitionContext, node: Node, local: int, held: Sharding, made: Sharding
) -> int:
    """Emit a reshape whose blocks begin at other elements than the result's blocks.

    The dimensions that contain the same elements before and after the reshape form a group. Each
    group is flattened to one dimension. Devices exchange its elements, and it is split into the new
    dimensions. Returns the local value of the result.

    Args:
      local: the operand.
      held, made: the shardings of the operand and of the result.
    """
    groups = regroups(node.signature)
    role = context.roles[node.operands[0]]
    cause = Cause(node.index, node.phase, role, Why(Purpose.MOVES_BLOCKS, node.primitive))
    # An exchange works along one dimension, so every group becomes one flat dimension first. It is
    # sharded as the group's leading dimension.
    flatten = Regroup(tuple((len(group.sizes), group.flat) for group in groups))
    dims = tuple(held.dims[group.leads[0]] for group in groups)
    view = interned(held.mesh, tuple(size for group in groups for size in group.flat), dims, ())
    shape = flatten.shape(context.locals[local].shape)
    local = _emit_regroup(context, flatten, local, cause, InstructionResult(shape, view))
    # Groups whose blocks begin at the same elements on both sides need no exchange.
    for dim, group in enumerate(groups):
        if not group.is_kept:
            (local,) = context.run_along(exchange_program(group, dim, held, made), (local,), cause)
    split_dims = tuple(group.split_dim(made) for group in groups)
    # The usual split is not stated, so that equal reshapes are equal instructions.
    is_usual = split_dims == tuple(leading(group.out_sizes) for group in groups)
    unflatten = Regroup(
        tuple((1, group.out_sizes) for group in groups), () if is_usual else split_dims
    )
    return _emit_regroup(
        context, unflatten, local, cause, InstructionResult(made.shard_shape, made, node.results[0])
    )


@dataclass(frozen=True)
class InstructionResult:
    """The description of a result, from which its local value is made.

    Attributes:
      shape: its shape on a device.
      layout: its sharding.
      value: the graph value that it is a copy of, or None.
    """

    shape: tuple[int, ...]
    layout: Sharding
    value: int | None = None


def _emit_regroup(
    context: PartitionContext,
    attributes: Regroup,
    local: int,
    cause: Cause,
    made: InstructionResult,
) -> int:
    """Emit a local reshape (`Regroup`) of a local value; return the number of its result."""
    dtype = context.locals[local].dtype
    result = context.new_local(made.shape, dtype, made.layout, made.value)
    context.emit(attributes, (local,), (result,), cause)
    return result


class Recipe(NamedTuple):
    """The instructions that all nodes of one class emit if their operands have equal copies.

    Attributes:
      plan: the choice at these nodes.
      value_shardings: per result, the completed sharding.
      emit: the function that emits the node.
      moved: numbers of the operands that are moved first, because their first available copy does
        not have the required sharding.
      made: per result, its local shape, its type, the sharding in which it is computed, and the
        number of the tuple of its available shardings afterwards.
      away: numbers of the results that are computed in another sharding than the completed one.
      is_remade: whether the result can be computed again in every sharding.
      again: another sharding in which the result can be computed without communication, or None.
    """

    plan: NodePlan
    value_shardings: tuple[Sharding, ...]
    emit: Callable[[PartitionContext, Node, Recipe], None]
    moved: tuple[int, ...] = ()
    made: tuple[tuple[tuple[int, ...], str, Sharding, int], ...] = ()
    away: tuple[int, ...] = ()
    is_remade: bool = False
    again: Sharding | None = None


def recipe(
    context: PartitionContext, node: Node, plan: NodePlan, value_shardings: tuple[Sharding, ...]
) -> Recipe:
    """Return the recipe by which `node` is emitted.

    It also holds for all nodes of its class whose operands have the same available copies.
    """
    if not plan.is_bare:
        return Recipe(plan, value_shardings, _emit_any)
    # All that follows from the class and the available copies is computed once here, so that
    # `_emit_bare` only copies it.
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
    # A result whose computed sharding (entry 2 of `made`) is not the completed one is moved.
    away = [k for k, result_sharding in enumerate(value_shardings) if made[k][2] != result_sharding]
    return Recipe(plan, value_shardings, _emit_bare, tuple(moved), tuple(made), tuple(away))


def _emit_any(context: PartitionContext, node: Node, recipe: Recipe) -> None:
    """Emit a node with all its steps, and record its results (`place_result`)."""
    results = emit_node(context, node, recipe.plan, node.phase)
    for value, local, sharding in zip(node.results, results, recipe.value_shardings, strict=True):
        place_result(context, node, value, local, sharding)


def _emit_bare(context: PartitionContext, node: Node, recipe: Recipe) -> None:
    """Emit a node that consists of its local operator and moves of its operands and results.

    Args:
      recipe: the decisions for all nodes of this class: the operator, which operands are moved
        (`moved`), the types of the results (`made`), and which results are moved (`away`).
    """
    # Most nodes take this path: it inlines `new_local`, `hold` and `emit` for planning time.
    first, available, locals_, plan = context.first, context.available, context.locals, recipe.plan
    # An operand is read in its completed sharding (its first copy), unless it must be moved.
    operands = [first[value] for value in node.operands]
    if recipe.moved:
        cause = context.cause(node, plan.why)
        for k in recipe.moved:
            operands[k] = context.required(
                node.operands[k], plan.choice.required_shardings[k], cause
            )
    # The results get the next numbers of local values, from `start` on.
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
    # `place_result` records the first copy of these results itself, perhaps after a move.
    for k in recipe.away:
        first[node.results[k]] = UNMADE
        place_result(context, node, node.results[k], results[k], recipe.value_shardings[k])
