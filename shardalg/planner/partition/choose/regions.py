"""Borders of calls: the shardings of arguments and results of loops, branches and their bodies.

A call is a node with bodies: a scan, a while loop, a conditional, a `shard_map`. Each body is
planned once, with the shardings of its border. Values that must share a sharding, such as all
copies of a carry, are decided together by `policy="cost"`.
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


def stacked_sharding(sharding: Sharding, length: int) -> Sharding:
    """Return the sharding of `length` values with this sharding, stacked along a new dimension 0.

    The new dimension is not sharded.
    """
    shape, dims = (length, *sharding.shape), ((), *sharding.dims)
    return interned(sharding.mesh, shape, dims, sharding.unreduced)


def border(graph: Graph, node: Node, value_shardings: Sequence[Sharding]) -> RegionBorder:
    """Return the shardings of operands, results and bodies of a call.

    Args:
      value_shardings: the sharding of every graph value.
    """
    regions = [graph.regions[body] for body in node.bodies]
    return _BORDERS[node.primitive](node, regions, value_shardings)


def _scan(
    node: Node, regions: Sequence[Region], value_shardings: Sequence[Sharding]
) -> RegionBorder:
    """Return the border of a scan: the shardings of its operands, its results, and in its body.

    A carry has the sharding of the body's argument wherever it appears. A stacked value has the
    sharding of its slice in the body, with an unsharded leading dimension.
    """
    (region,) = regions
    consts, carry, length = (node.signature.param(n) for n in ("num_consts", "num_carry", "length"))
    arguments = tuple(value_shardings[v] for v in region.arguments)
    # The next iteration reads the carry as the body's argument, so the body must return it in the
    # argument's sharding.
    results = arguments[consts : consts + carry] + tuple(
        value_shardings[v] for v in region.results[carry:]
    )
    # The body reads constants and carries as they are outside, and one slice of each stack. Its
    # arguments are constants, carries and slices; its results carries and slices.
    operands = tuple(
        s if i < consts + carry else stacked_sharding(s, length) for i, s in enumerate(arguments)
    )
    outer_results = tuple(
        s if i < carry else stacked_sharding(s, length) for i, s in enumerate(results)
    )
    return RegionBorder(operands, ((arguments, results),), outer_results)


def _while(
    node: Node, regions: Sequence[Region], value_shardings: Sequence[Sharding]
) -> RegionBorder:
    """Return the border of a while loop.

    The condition's carry has the sharding of the body's carry. Its result is replicated, because
    all devices must leave the loop together.
    """
    # Operands are (constants of the condition, constants of the body, carry). Each region has its
    # own constants first, then the carry.
    condition, body = regions
    first, second = (node.signature.param(n) for n in ("cond_nconsts", "body_nconsts"))
    own = tuple(value_shardings[v] for v in condition.arguments[:first])
    arguments = tuple(value_shardings[v] for v in body.arguments)
    carry = arguments[second:]
    verdict = tuple(whole(value_shardings[v]) for v in condition.results)
    return RegionBorder(own + arguments, (((*own, *carry), verdict), (arguments, carry)), carry)


def _branches(
    node: Node, regions: Sequence[Region], value_shardings: Sequence[Sharding]
) -> RegionBorder:
    """Return the border of a conditional, whose branches all have the same shardings at it.

    Arguments of all branches have the shardings of the first branch's arguments. Results of all
    branches have the shardings of the call's results.
    """
    # Which branch runs is known at run time only, so all branches share the shardings at the
    # border. The operand that selects the branch is replicated: all devices must run the same one.
    which = value_shardings[node.operands[0]]
    rest = [value_shardings[v] for v in regions[0].arguments]
    results = tuple(value_shardings[v] for v in node.results)
    return RegionBorder((whole(which), *rest), ((tuple(rest), results),) * len(regions), results)


def _manual(
    node: Node, regions: Sequence[Region], value_shardings: Sequence[Sharding]
) -> RegionBorder:
    """Return the border of a `shard_map`.

    Its operands and results have the shardings of its specs. In the body every value is a whole
    value of each device.
    """
    (region,) = regions
    operands, results = manual_layouts(node, value_shardings[0].mesh)
    body_arguments = tuple(whole(value_shardings[v]) for v in region.arguments)
    body_results = tuple(whole(value_shardings[v]) for v in region.results)
    return RegionBorder(operands, ((body_arguments, body_results),), results)


_BORDERS: dict[str, Callable[[Node, Sequence[Region], Sequence[Sharding]], RegionBorder]] = {
    "scan": _scan,
    "while": _while,
    "cond": _branches,
    "shard_map": _manual,
}


BorderSlot = tuple[int, int]
"""A value, and the length of the dimension along which a scan stacks it; 0 if it does not."""


@dataclass(frozen=True)
class TiedArguments:
    """Values at the border of one call that share a sharding, such as all copies of a carry.

    Attributes:
      call: the index of the call's node.
      asks: values that are moved to the shared sharding: operands of the call, results of its
        bodies.
      makes: values that get the shared sharding without a move: arguments of bodies, results of the
        call.
    """

    call: int
    asks: tuple[BorderSlot, ...]
    makes: tuple[BorderSlot, ...]

    @property
    def plain(self) -> tuple[int, ...]:
        """The values of the group that have the shared sharding themselves.

        Values that are stacked over the iterations have one more dimension, and are left out.
        """
        return tuple(v for v, length in (*self.makes, *self.asks) if not length)


def tied(graph: Graph) -> tuple[TiedArguments, ...]:
    """Return all groups of values that must share a sharding because a loop or branch ties them.

    For example, the initial carry of a scan is tied to the body's argument and result, and to the
    scan's result. Manual regions have no groups, because their specs fix the shardings. A value
    that one call returns and another call reads belongs to a group of each of them.

    >>> import jax, jax.numpy as jnp
    >>> from shardalg.graph.tracing.trace import trace
    >>> double = lambda x: jax.lax.scan(lambda c, _: (c * 2, None), x, length=3)[0]
    >>> graph = trace(double, jnp.ones(4))
    >>> [(len(one.asks), len(one.makes)) for one in tied(graph)]
    [(2, 2)]
    """
    group_of: dict[tuple[int, int], list[RegionArgument]] = {}
    for tie in graph.region_arguments:
        if not tie.is_manual:
            # Union-find in its simplest form: all groups that share a value with this tie become
            # one, and each of their members then refers to the joint group. Groups are lists, which
            # have no hash, so they are told apart by their ids.
            members = _members(graph, tie)
            touching = {id(g): g for member in members for g in [group_of.get(member, [])]}
            joint = [other for group in touching.values() for other in group] + [tie]
            for other in joint:
                group_of |= dict.fromkeys(_members(graph, other), joint)
    found = []
    for group in {id(g): g for g in group_of.values()}.values():
        call = group[0].call
        # Only `xs` and `ys` of a scan are stacked outside of the body, along `length` iterations.
        length = dict(graph.nodes[call].signature.params).get("length", 0)
        makes = {t.target: length * (t.kind == "ys") for t in group}
        asks = {t.source: length * (t.kind == "xs") for t in group if t.source not in makes}
        found.append(TiedArguments(call, tuple(asks.items()), tuple(makes.items())))
    return tuple(found)


def _members(graph: Graph, tie: RegionArgument) -> tuple[tuple[int, int], ...]:
    """Return (call index, value) for each value of a tie that must have the sharding of its group.

    A tie is a pair of values on both sides of the border of a loop or branch, such as an operand
    and the body's argument. An operand of the call is left out: other nodes may read it in other
    shardings.
    """
    given = tie.source in graph.nodes[tie.call].operands
    values = (tie.target,) if given else (tie.source, tie.target)
    return tuple((tie.call, value) for value in values)


@dataclass(frozen=True)
class LoopSum:
    """A carry or stacked value of a scan whose partial sums may be deferred until the loop is over.

    Attributes:
      number: the number of the sum among the body's results.
      result: the graph value that the body returns for it.
      added: values that every iteration adds to the carry and no other node reads; for a stacked
        value, the value itself.
      waits: `result`, and all values from which it is computed whose partial sums may be deferred.
    """

    number: int
    result: int
    added: tuple[int, ...]
    waits: frozenset[int]


def loop_sums(graph: Graph, node: Node) -> tuple[LoopSum, ...]:
    """Return the results of a scan that could be partial sums until the loop ends.

    They are carries to which the body only adds, and stacked values. Sums may be deferred behind
    products, too, because all numbers are assumed to be finite.

    >>> import jax, jax.numpy as jnp
    >>> from shardalg.graph.tracing.trace import trace
    >>> step = lambda c, x: ((c[0] + x, c[1] * 2), None)
    >>> graph = trace(lambda x: jax.lax.scan(step, (0.0, 1.0), x)[0], jnp.ones(4))
    >>> (scan,) = graph.nodes_of(("scan",))
    >>> [one.number for one in loop_sums(graph, scan)]
    [0]
    """
    # sum over iterations t of (sum over devices p of x[t, p]) = sum over p of (sum over t of x[t,
    # p]): one collective after the loop replaces one in every iteration.
    body = _BodySums(graph, graph.regions[node.bodies[0]])
    consts, carried = (node.signature.param(name) for name in ("num_consts", "num_carry"))
    found = []
    for number, value in enumerate(body.region.results):
        first = body.region.arguments[consts + number] if number < carried else None
        # Every iteration writes one slice of a stacked value, so the slice itself may stay partial:
        # it is the only addend, and no carry leads to it.
        added: tuple[int, ...] = (value,)
        chain: tuple[int, ...] = ()
        if first is not None:
            added, chain = body.follow_carry(first, value)
        if added and body.is_only_returned(value):
            waits = {v for one in added for v in body.sources_of_sum(one)} | {*chain, value}
            found.append(LoopSum(number, value, added, frozenset(waits)))
    return tuple(found)


def stops(graph: Graph, value: int) -> Node | None:
    """Return the operator that prevents partial sums of `value` from being deferred, or None.

    It is the first operator between `value` and the results of a scan's body that cannot pass
    partial sums on. None if there is none, or if `value` is not computed in a scan.

    >>> import jax, jax.numpy as jnp
    >>> from shardalg.graph.tracing.trace import trace
    >>> step = lambda c, x: (c + jnp.tanh(x.sum()), None)
    >>> graph = trace(lambda x: jax.lax.scan(step, 0.0, x)[0], jnp.ones((4, 2)))
    >>> (total,) = graph.nodes_of(("reduce_sum",))
    >>> stops(graph, total.results[0]).primitive
    'tanh'
    """
    maker = graph.producer[value]
    if maker is None:
        return None
    region = graph.regions[graph.nodes[maker].region]
    # A rematerialised region computes values of the body around it.
    while region.kind == "remat" and region.parent is not None:
        region = graph.regions[region.parent]
    if region.kind != "scan":
        return None
    body = _BodySums(graph, region)
    while value not in body.region.results:
        read = body.reader(value)
        if read is None:
            return graph.nodes[graph.users[value][0]] if graph.users[value] else None
        (value,) = read[0].results
    return None


@dataclass(frozen=True)
class _BodySums:
    """Queries about partial sums in the body of one scan.

    Attributes:
      region: the body.
    """

    graph: Graph
    region: Region

    @cached_property
    def inside(self) -> frozenset[int]:
        """The indices of the nodes of the loop's body, also of those inside `jax.checkpoint`."""
        return frozenset(self.region.nodes)

    def is_only_returned(self, value: int) -> bool:
        """Return whether the body computes a value, returns it exactly once, and never reads it."""
        made = self.graph.producer[value] in self.inside
        return made and not self.graph.users[value] and self.region.results.count(value) == 1

    def reader(self, value: int) -> tuple[Node, int, Rule] | None:
        """Return the only node that reads a value, the operand's number, and the node's `Rule`.

        None if there is no such node, or if it cannot compute on partial sums of the value.
        """
        # With a second reader, the sum would have to be reduced for that one anyway. A result of
        # the region is read outside of it.
        users = self.graph.users[value]
        if len(users) != 1 or users[0] not in self.inside or value in self.region.results:
            return None
        node = self.graph.nodes[users[0]]
        rows = None if node.bodies else rules(node.signature)
        if rows is None or len(rows) != 1 or len(node.results) != 1 or rows[0].combine != SUM:
            return None
        # The node must be linear in the value: x * x of partial sums is not the square of the sum.
        places = [k for k, operand in enumerate(node.operands) if operand == value]
        if len(places) != 1 or places[0] not in rows[0].passes(finite=True):
            return None
        return node, places[0], rows[0]

    def follow_carry(self, value: int, end: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Follow a carry through the body; return (addends, successive values of the carry).

        For example, a body that returns the carry plus x @ w has the addend x @ w. Both are empty
        if an operator between the carry and the body's end cannot defer a sum.

        Args:
          value: the body's argument for the carry.
          end: the body's result for the carry.
        """
        addends: list[int] = []
        chain: list[int] = []
        while value != end:
            reader = self.reader(value)
            if reader is None:
                return (), ()
            node, place, rule = reader
            # If the node is an addition, its other operands are added to the carry.
            if place in rule.addends:
                others = [node.operands[k] for k in sorted(rule.addends - {place})]
                # The other addends must pass their partial sums on to this addition, too.
                if any(self.reader(other) is None for other in others):
                    return (), ()
                addends += others
            (value,) = node.results
            chain.append(value)
        return tuple(addends), tuple(chain)

    def sources_of_sum(self, value: int) -> Iterator[int]:
        """Yield a value, and all operands whose deferred partial sums the value may contain.

        If sums are not reduced at once, an operator that passes partial sums on computes a partial
        sum from that of its operand. The search goes back over such operators of the body. `reader`
        finds them: it is None for an operand of any other operator.
        """
        yield value
        producer = self.graph.producer[value]
        node = self.graph.nodes[producer] if producer in self.inside else None
        for operand in dict.fromkeys(node.operands) if node and not node.bodies else ():
            if self.reader(operand) is not None:
                yield from self.sources_of_sum(operand)


def with_sums(agreed: RegionBorder, sums: Mapping[int, Sharding], node: Node) -> RegionBorder:
    """Return the border of a scan, changed so that some results of its body are partial sums.

    Args:
      agreed: the border in which all values are reduced.
      sums: the sharding of each deferred sum, by its number among the body's results.
      node: the scan.
    """
    if not sums:
        return agreed
    ((arguments, results),) = agreed.bodies
    names = "num_consts", "num_carry", "length"
    consts, carry, length = (node.signature.param(name) for name in names)
    # Four lists are changed: `taken` for the scan's operands, `given` and `ends` for the arguments
    # and results of its body, and `made` for the scan's results.
    taken, given = list(agreed.operands), list(arguments)
    ends, made = list(results), list(agreed.results)
    for number, layout in sums.items():
        ends[number] = layout
        made[number] = layout if number < carry else stacked_sharding(layout, length)
        if number < carry:
            # The carry enters the loop complete; the body's argument is a partial sum.
            given[consts + number] = layout
            taken[consts + number] = interned(layout.mesh, layout.shape, layout.dims, ())
    return RegionBorder(tuple(taken), ((tuple(given), tuple(ends)),), tuple(made))


def slot_sharding(place: BorderSlot, layout: Sharding) -> tuple[int, Sharding]:
    """Return (value, its sharding) for one member of a group of tied values.

    Args:
      place: the member, with the length of its stacked dimension.
      layout: the sharding that the group shares.
    """
    value, length = place
    return value, stacked_sharding(layout, length) if length else layout


def layouts(completed: Sharding) -> Iterator[Sharding]:
    """Yield candidate shardings: the completed one, and all even ones along whole mesh axes."""
    yield completed
    mesh, shape = completed.mesh, completed.shape
    digits = [mesh.digit(name) for name, size in mesh.axes if size > 1]
    # All combinations are tried, because only the prices of the operators around the call tell
    # which one is best. An axis shards one dimension at most, and none if its entry is None.
    # `dim_of_axes` has, for each axis, the dimension that the axis shards.
    for dim_of_axes in itertools.product((None, *range(len(shape))), repeat=len(digits)):
        pairs = tuple(zip(digits, dim_of_axes, strict=True))
        dims = tuple(
            tuple(digit for digit, axis_dim in pairs if axis_dim == dim)
            for dim in range(len(shape))
        )
        # Only even shardings are candidates.
        if all(size % parts(digits) == 0 for size, digits in zip(shape, dims, strict=True)):
            yield interned(mesh, shape, dims, ())
