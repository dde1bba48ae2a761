"""Calls: the values at the border of each body, and the instruction around the bodies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph, Node, Region
from shardalg.partition.emit.context import PartitionContext
from shardalg.spmd.instruction import Attributes, Block
from shardalg.spmd.instructions import Branches, Loop, Manual, While
from shardalg.spmd.why import Purpose, Why


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
