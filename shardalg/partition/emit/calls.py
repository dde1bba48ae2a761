"""Control flow: each body, planned once, behind a border at which both sides agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardalg.algebra.derived_layouts import interned, whole
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph, Node, Region
from shardalg.partition.emit.context import PartitionContext
from shardalg.propagate.sharded import Border
from shardalg.spmd.manual import manual_layouts
from shardalg.spmd.program import Attributes, Block, Branches, Loop, Manual, While
from shardalg.spmd.why import Purpose, Why


def stacked(sharding: Sharding, length: int) -> Sharding:
    """Layout of `length` values of `sharding` along a new leading dimension, not partitioned."""
    shape, dims = (length, *sharding.shape), ((), *sharding.dims)
    return interned(sharding.mesh, shape, dims, sharding.unreduced)


def border(graph: Graph, node: Node, homes: Sequence[Sharding]) -> Border:
    """The border of a call whose values have these homes."""
    regions = [graph.regions[body] for body in node.bodies]
    return _BORDERS[node.primitive](node, regions, homes)


def _scan(node: Node, regions: Sequence[Region], homes: Sequence[Sharding]) -> Border:
    """A carry has the layout of the body's argument wherever it appears.

    Stacked values have their body's layout behind a leading dimension.
    """
    (region,) = regions
    consts, carry, length = (node.signature.param(n) for n in ("num_consts", "num_carry", "length"))
    arguments = tuple(homes[v] for v in region.arguments)
    results = arguments[consts : consts + carry] + tuple(homes[v] for v in region.results[carry:])
    outer_in = tuple(
        s if i < consts + carry else stacked(s, length) for i, s in enumerate(arguments)
    )
    outer_out = tuple(s if i < carry else stacked(s, length) for i, s in enumerate(results))
    return Border(outer_in, ((arguments, results),), outer_out)


def _while(node: Node, regions: Sequence[Region], homes: Sequence[Sharding]) -> Border:
    """The condition's carry has the layout of the body's; what it says is whole everywhere."""
    condition, body = regions
    first, second = (node.signature.param(n) for n in ("cond_nconsts", "body_nconsts"))
    own = tuple(homes[v] for v in condition.arguments[:first])
    arguments = tuple(homes[v] for v in body.arguments)
    carry = arguments[second:]
    says = tuple(whole(homes[v]) for v in condition.results)
    return Border(own + arguments, (((*own, *carry), says), (arguments, carry)), carry)


def _branches(node: Node, regions: Sequence[Region], homes: Sequence[Sharding]) -> Border:
    """All branches take the operands as they are, and give the results in one layout."""
    which, rest = homes[node.operands[0]], [homes[v] for v in regions[0].arguments]
    results = tuple(homes[v] for v in node.results)
    return Border((whole(which), *rest), ((tuple(rest), results),) * len(regions), results)


def _manual(node: Node, regions: Sequence[Region], homes: Sequence[Sharding]) -> Border:
    """Operands and results as the specs say; inside, a device has all of its own values."""
    (region,) = regions
    operands, results = manual_layouts(node, homes[0].mesh)
    arguments = tuple(whole(homes[v]) for v in region.arguments)
    return Border(operands, ((arguments, tuple(whole(homes[v]) for v in region.results)),), results)


_BORDERS: dict[str, Callable[[Node, Sequence[Region], Sequence[Sharding]], Border]] = {
    "scan": _scan,
    "while": _while,
    "cond": _branches,
    "shard_map": _manual,
}


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
        context.demand(value, layout, cause)
        for value, layout in zip(region.results, results, strict=True)
    )


def control(node: Node, blocks: Sequence[Block], mesh: Mesh) -> Attributes:
    """The instruction of a call around its planned bodies."""
    return _CONTROL[node.primitive](node, mesh, *blocks)


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
