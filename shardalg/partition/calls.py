"""Scans: one body, planned once, behind a border at which both sides agree."""

from __future__ import annotations

from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Node, Region
from shardalg.partition.context import Cause, PartitionContext
from shardalg.partition.layouts import interned
from shardalg.spmd.program import Block, Instruction, Loop


def stacked(sharding: Sharding, length: int) -> Sharding:
    """Layout of `length` values of `sharding` along a new leading dimension, not partitioned."""
    shape, dims = (length, *sharding.shape), ((), *sharding.dims)
    return interned(sharding.mesh, shape, dims, sharding.unreduced)


def border(
    node: Node, region: Region, shardings: tuple[Sharding, ...]
) -> tuple[tuple[Sharding, ...], ...]:
    """(outer operands, body arguments, body results, outer results) of a scan, agreed layouts.

    A carry has the layout of the body's argument wherever it appears; stacked values have their
    body's layout behind a leading dimension.
    """
    consts, carry, length = (node.signature.param(n) for n in ("num_consts", "num_carry", "length"))
    arguments = tuple(shardings[v] for v in region.arguments)
    results = arguments[consts : consts + carry] + tuple(
        shardings[v] for v in region.results[carry:]
    )
    outer_in = tuple(
        s if i < consts + carry else stacked(s, length) for i, s in enumerate(arguments)
    )
    outer_out = tuple(s if i < carry else stacked(s, length) for i, s in enumerate(results))
    return outer_in, arguments, results, outer_out


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
    return tuple(
        context.demand(value, layout, Cause(node.index, node.phase, "unknown", "the loop carries"))
        for value, layout in zip(region.results, results, strict=True)
    )


def loop(
    node: Node,
    arguments: tuple[int, ...],
    instructions: list[Instruction],
    results: tuple[int, ...],
) -> Loop:
    """The instruction of a scan around its planned body."""
    names = ("num_consts", "num_carry", "length")
    consts, carry, length = (node.signature.param(n) for n in names)
    body = Block(arguments, tuple(instructions), results)
    return Loop(body, consts, carry, length, bool(node.signature.param("reverse")))
