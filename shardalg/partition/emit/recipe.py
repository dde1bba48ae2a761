"""What nodes of one kind do whose values are at hand alike: worked out once, then repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Node
from shardalg.partition.choose.node_plan import NodePlan
from shardalg.partition.emit.context import UNMADE, PartitionContext
from shardalg.partition.emit.node import partition_node, settle
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.local import Local


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
