"""Calls: the border at which a body and its surroundings agree, and what lies alike on both sides.

Each body is planned once behind its border. What lies alike is decided together by `policy="cost"`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from shardalg.algebra.derived_layouts import interned, whole
from shardalg.algebra.digits import parts
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph, Node, Region, RegionArgument
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import SUM, Rule
from shardalg.planner.propagate.sharded import RegionBorder
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

    What one call hands on may be what another one takes: each has a layout of its own for it.

    >>> import jax, jax.numpy as jnp
    >>> from shardalg.graph.tracing.trace import trace
    >>> double = lambda x: jax.lax.scan(lambda c, _: (c * 2, None), x, length=3)[0]
    >>> graph = trace(double, jnp.ones(4))
    >>> [(len(one.asks), len(one.makes)) for one in tied(graph)]
    [(2, 2)]
    """
    classes: dict[tuple[int, int], list[RegionArgument]] = {}
    for tie in graph.region_arguments:
        if not tie.is_manual:
            near = {id(c): c for v in _joined(graph, tie) for c in [classes.get(v, [])]}
            one = [t for c in near.values() for t in c] + [tie]
            for other in one:
                classes |= dict.fromkeys(_joined(graph, other), one)
    return tuple(_tied(graph, one) for one in {id(c): c for c in classes.values()}.values())


def _joined(graph: Graph, tie: RegionArgument) -> tuple[tuple[int, int], ...]:
    """The values of a tie that are inside of the call or its results: not what it is given.

    Each with the call.
    """
    given = tie.source in graph.nodes[tie.call].operands
    values = (tie.target,) if given else (tie.source, tie.target)
    return tuple((tie.call, value) for value in values)


def _tied(graph: Graph, region_arguments: list[RegionArgument]) -> TiedArguments:
    call = region_arguments[0].call
    length = dict(graph.nodes[call].signature.params).get("length", 0)
    makes = {t.target: length * (t.kind == "ys") for t in region_arguments}
    asks = {t.source: length * (t.kind == "xs") for t in region_arguments if t.source not in makes}
    return TiedArguments(call, tuple(asks.items()), tuple(makes.items()))


@dataclass(frozen=True)
class LoopSum:
    """What a loop adds up, or stacks: its partial sums may wait until the loop is over.

    Attributes:
      number: of the body's result that it is; result: that value.
      added: what every iteration adds to the carry, and nothing else reads; of what is stacked,
        the value itself.
      waits: values whose partial sums wait on the way to it, it included.
    """

    number: int
    result: int
    added: tuple[int, ...]
    waits: frozenset[int]


def loop_sums(graph: Graph, node: Node) -> tuple[LoopSum, ...]:
    """The sums of a scan: of its carry what the body only adds to, and all that it stacks.

    Sums wait behind products too: the numbers of deferred sums are taken as finite.

    >>> import jax, jax.numpy as jnp
    >>> from shardalg.graph.tracing.trace import trace
    >>> step = lambda c, x: ((c[0] + x, c[1] * 2), None)
    >>> graph = trace(lambda x: jax.lax.scan(step, (0.0, 1.0), x)[0], jnp.ones(4))
    >>> (scan,) = graph.nodes_of(("scan",))
    >>> [one.number for one in loop_sums(graph, scan)]
    [0]
    """
    body = _BodySums(graph, graph.regions[node.bodies[0]])
    consts, carried = (node.signature.param(name) for name in ("num_consts", "num_carry"))
    found = []
    for number, value in enumerate(body.region.results):
        first = body.region.arguments[consts + number] if number < carried else None
        added, chain = ((value,), ()) if first is None else body.added(first, value)
        if added and body.is_last(value):
            waits = {v for one in added for v in body.before(one)} | {*chain, value}
            found.append(LoopSum(number, value, added, frozenset(waits)))
    return tuple(found)


def stops(graph: Graph, value: int) -> Node | None:
    """The operator of a scan's body behind which no sum of `value` waits; None if all let it.

    >>> import jax, jax.numpy as jnp
    >>> from shardalg.graph.tracing.trace import trace
    >>> step = lambda c, x: (c + jnp.tanh(x.sum()), None)
    >>> graph = trace(lambda x: jax.lax.scan(step, 0.0, x)[0], jnp.ones((4, 2)))
    >>> (total,) = graph.nodes_of(("reduce_sum",))
    >>> stops(graph, total.results[0]).primitive
    'tanh'
    """
    maker = graph.producer[value]
    region = None if maker is None else _body(graph, graph.regions[graph.nodes[maker].region])
    body = None if region is None else _BodySums(graph, region)
    while body is not None and value not in body.region.results:
        read = body.reader(value)
        if read is None:
            return graph.nodes[graph.users[value][0]] if graph.users[value] else None
        (value,) = read[0].results
    return None


def _body(graph: Graph, region: Region) -> Region | None:
    """The scan's body that a region is, or is computed again in; None if it is in none."""
    while region.kind == "remat" and region.parent is not None:
        region = graph.regions[region.parent]
    return region if region.kind == "scan" else None


@dataclass(frozen=True)
class _BodySums:
    """The partial sums of one body."""

    graph: Graph
    region: Region

    @cached_property
    def inside(self) -> frozenset[int]:
        """Its nodes, those that are computed again in it too."""
        return frozenset(self.region.nodes)

    def is_last(self, value: int) -> bool:
        """Whether it is made here, and handed on once, and not read."""
        made = self.graph.producer[value] in self.inside
        return made and not self.graph.users[value] and self.region.results.count(value) == 1

    def reader(self, value: int) -> tuple[Node, int, Rule] | None:
        """The one node that reads a value, as which operand: sums wait behind it."""
        users = self.graph.users[value]
        if len(users) != 1 or users[0] not in self.inside or value in self.region.results:
            return None
        node = self.graph.nodes[users[0]]
        rule = _row(node)
        places = [k for k, operand in enumerate(node.operands) if operand == value]
        passes = rule is not None and len(places) == 1
        if rule is None or not passes or places[0] not in rule.passes(finite=True):
            return None
        return node, places[0], rule

    def added(self, value: int, end: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the values that are added to a carry, and the values that the carry becomes.

        Both are empty if an operator between the carry and the body's end defers no sum.
        """
        found: list[int] = []
        chain: list[int] = []
        while value != end:
            read = self.reader(value)
            if read is None:
                return (), ()
            node, place, rule = read
            if place in rule.addends:
                others = [node.operands[k] for k in sorted(rule.addends - {place})]
                if any(self.reader(other) is None for other in others):
                    return (), ()
                found += others
            (value,) = node.results
            chain.append(value)
        return tuple(found), tuple(chain)

    def before(self, value: int) -> Iterator[int]:
        """The value, and those behind which its partial sums may have waited."""
        yield value
        producer = self.graph.producer[value]
        node = self.graph.nodes[producer] if producer in self.inside else None
        for operand in dict.fromkeys(node.operands) if node and not node.bodies else ():
            if self.reader(operand) is not None:
                yield from self.before(operand)


def _row(node: Node) -> Rule | None:
    """The row of a node that has one, and sums."""
    rows = None if node.bodies else rules(node.signature)
    one = rows is not None and len(rows) == 1 and len(node.results) == 1
    return rows[0] if one and rows and rows[0].combine == SUM else None


def with_sums(agreed: RegionBorder, sums: Mapping[int, Sharding], node: Node) -> RegionBorder:
    """A scan's border with results of the body that stay partial sums, each in its layout."""
    if not sums:
        return agreed
    ((arguments, results),) = agreed.bodies
    names = "num_consts", "num_carry", "length"
    consts, carry, length = (node.signature.param(name) for name in names)
    taken, given = list(agreed.operands), list(arguments)
    ends, made = list(results), list(agreed.results)
    for number, layout in sums.items():
        ends[number] = layout
        made[number] = layout if number < carry else stacked(layout, length)
        if number < carry:
            given[consts + number] = layout
            taken[consts + number] = interned(layout.mesh, layout.shape, layout.dims, ())
    return RegionBorder(tuple(taken), ((tuple(given), tuple(ends)),), tuple(made))


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
