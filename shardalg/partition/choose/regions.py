"""Calls: the border at which a body and its surroundings agree, and what lies alike on both sides.

Each body is planned once behind its border. What lies alike is decided together by `policy="cost"`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shardalg.algebra.derived_layouts import interned, whole
from shardalg.algebra.digits import parts
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph, Node, Region, RegionArgument
from shardalg.propagate.sharded import RegionBorder
from shardalg.spmd.manual import manual_layouts


def stacked(sharding: Sharding, length: int) -> Sharding:
    """Layout of `length` values of `sharding` along a new leading dimension, not partitioned."""
    shape, dims = (length, *sharding.shape), ((), *sharding.dims)
    return interned(sharding.mesh, shape, dims, sharding.unreduced)


def border(graph: Graph, node: Node, value_shardings: Sequence[Sharding]) -> RegionBorder:
    """The border of a call whose values have these homes."""
    regions = [graph.regions[body] for body in node.bodies]
    return _BORDERS[node.primitive](node, regions, value_shardings)


def _scan(
    node: Node, regions: Sequence[Region], value_shardings: Sequence[Sharding]
) -> RegionBorder:
    """A carry has the layout of the body's argument wherever it appears.

    Stacked values have their body's layout behind a leading dimension.
    """
    (region,) = regions
    consts, carry, length = (node.signature.param(n) for n in ("num_consts", "num_carry", "length"))
    arguments = tuple(value_shardings[v] for v in region.arguments)
    results = arguments[consts : consts + carry] + tuple(
        value_shardings[v] for v in region.results[carry:]
    )
    outer_in = tuple(
        s if i < consts + carry else stacked(s, length) for i, s in enumerate(arguments)
    )
    outer_out = tuple(s if i < carry else stacked(s, length) for i, s in enumerate(results))
    return RegionBorder(outer_in, ((arguments, results),), outer_out)


def _while(
    node: Node, regions: Sequence[Region], value_shardings: Sequence[Sharding]
) -> RegionBorder:
    """The condition's carry has the layout of the body's; what it says is whole everywhere."""
    condition, body = regions
    first, second = (node.signature.param(n) for n in ("cond_nconsts", "body_nconsts"))
    own = tuple(value_shardings[v] for v in condition.arguments[:first])
    arguments = tuple(value_shardings[v] for v in body.arguments)
    carry = arguments[second:]
    says = tuple(whole(value_shardings[v]) for v in condition.results)
    return RegionBorder(own + arguments, (((*own, *carry), says), (arguments, carry)), carry)


def _branches(
    node: Node, regions: Sequence[Region], value_shardings: Sequence[Sharding]
) -> RegionBorder:
    """All branches take the operands as they are, and give the results in one layout."""
    which, rest = (
        value_shardings[node.operands[0]],
        [value_shardings[v] for v in regions[0].arguments],
    )
    results = tuple(value_shardings[v] for v in node.results)
    return RegionBorder((whole(which), *rest), ((tuple(rest), results),) * len(regions), results)


def _manual(
    node: Node, regions: Sequence[Region], value_shardings: Sequence[Sharding]
) -> RegionBorder:
    """Operands and results as the specs say; inside, a device has all of its own values."""
    (region,) = regions
    operands, results = manual_layouts(node, value_shardings[0].mesh)
    arguments = tuple(whole(value_shardings[v]) for v in region.arguments)
    return RegionBorder(
        operands, ((arguments, tuple(whole(value_shardings[v]) for v in region.results)),), results
    )


_BORDERS: dict[str, Callable[[Node, Sequence[Region], Sequence[Sharding]], RegionBorder]] = {
    "scan": _scan,
    "while": _while,
    "cond": _branches,
    "shard_map": _manual,
}


BorderSlot = tuple[int, int]
"""A value, and the length of a leading dimension that it has beside the layout; 0: it has none."""


@dataclass(frozen=True)
class TiedArguments:
    """Values of one layout: what a loop carries, a constant of it, what a branch reads or gives.

    Attributes:
      call: its node. asks: brought into the layout from outside, and from the bodies' ends.
      makes: have the layout without a move: arguments of bodies, results of the call.
    """

    call: int
    asks: tuple[BorderSlot, ...]
    makes: tuple[BorderSlot, ...]

    @property
    def plain(self) -> tuple[int, ...]:
        """The values that have the layout itself."""
        return tuple(v for v, length in (*self.makes, *self.asks) if not length)


def tied(graph: Graph) -> tuple[TiedArguments, ...]:
    """All of a graph but those of manual regions, whose specs say how values lie.

    >>> import jax, jax.numpy as jnp
    >>> from shardalg.graph.tracing.trace import trace
    >>> double = lambda x: jax.lax.scan(lambda c, _: (c * 2, None), x, length=3)[0]
    >>> graph = trace(double, jnp.ones(4))
    >>> [(len(one.asks), len(one.makes)) for one in tied(graph)]
    [(2, 2)]
    """
    classes: dict[int, list[RegionArgument]] = {}
    for tie in graph.region_arguments:
        if not tie.is_manual:
            near = {id(c): c for v in _joined(graph, tie) for c in [classes.get(v, [])]}
            one = [t for c in near.values() for t in c] + [tie]
            for other in one:
                classes |= dict.fromkeys(_joined(graph, other), one)
    return tuple(_tied(graph, one) for one in {id(c): c for c in classes.values()}.values())


def _joined(graph: Graph, tie: RegionArgument) -> tuple[int, ...]:
    """The values of a tie that are inside of the call or its results: not what it is given."""
    given = tie.source in graph.nodes[tie.call].operands
    return (tie.target,) if given else (tie.source, tie.target)


def _tied(graph: Graph, region_arguments: list[RegionArgument]) -> TiedArguments:
    call = region_arguments[0].call
    length = dict(graph.nodes[call].signature.params).get("length", 0)
    makes = {t.target: length * (t.kind == "ys") for t in region_arguments}
    asks = {t.source: length * (t.kind == "xs") for t in region_arguments if t.source not in makes}
    return TiedArguments(call, tuple(asks.items()), tuple(makes.items()))


def laid(place: BorderSlot, layout: Sharding) -> tuple[int, Sharding]:
    """A value with its layout, from that of its group."""
    value, length = place
    return value, stacked(layout, length) if length else layout


def layouts(completed: Sharding) -> Iterator[Sharding]:
    """A layout, and all others that put each axis of the mesh on a dimension it splits evenly."""
    yield completed
    mesh, shape = completed.mesh, completed.shape
    digits = [mesh.digit(name) for name, size in mesh.axes if size > 1]
    for picked in itertools.product((None, *range(len(shape))), repeat=len(digits)):
        pairs = tuple(zip(digits, picked, strict=True))
        dims = tuple(tuple(d for d, at in pairs if at == dim) for dim in range(len(shape)))
        if all(n % parts(dim) == 0 for n, dim in zip(shape, dims, strict=True)):
            yield interned(mesh, shape, dims, ())
