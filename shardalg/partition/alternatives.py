"""What else each operator of a plan could have done, priced in named sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

from shardalg.algebra.digits import Digits
from shardalg.algebra.sharding import Sharding
from shardalg.costs.collectives import step_wire_bytes
from shardalg.costs.compute import shaped_flops
from shardalg.costs.symbolic import Size, Sizes, Symbolised, formula_digits
from shardalg.graph.ir import Node, Signature
from shardalg.partition.choose.assign import alternatives
from shardalg.partition.choose.key import Choice, NodeKey
from shardalg.partition.emit.context import PartitionContext
from shardalg.partition.partition import Partitioner
from shardalg.propagate.options import Options
from shardalg.propagate.sharded import ShardedGraph
from shardalg.reshard.paths import nearest, reshard_path
from shardalg.sizes.conditions import Condition, conditions
from shardalg.sizes.formula import Formula, ceiling
from shardalg.spmd.instruction import Collective
from shardalg.spmd.instructions import AllToAll, ReduceScatter

Shape = tuple[Size, ...]


@dataclass(frozen=True)
class Decision:
    """A choice at a node, and the condition under which it stays the better one.

    Attributes:
      rests_on: earlier nodes whose choices decide what is at hand at this one. Where one of them
        chooses otherwise, the condition says nothing.
    """

    node: int
    condition: Condition
    rests_on: tuple[int, ...] = ()


class _Recorder(Partitioner):
    """Partitions once more, and remembers which node decided with which key."""

    def __init__(self, sharded: ShardedGraph, roles: Sequence[str], options: Options) -> None:
        super().__init__(sharded, roles, options)
        self.decided: list[tuple[Node, NodeKey]] = []

    def key(self, node: Node, homes: tuple[Sharding, ...]) -> NodeKey:
        """The key of a node, noted."""
        found = super().key(node, homes)
        self.decided.append((node, found))
        return found


def decisions(
    sharded: ShardedGraph, roles: Sequence[str], options: Options, *, named: Symbolised
) -> tuple[Decision, ...]:
    """Every choice of an operator that may be another one at other sizes, the closest first.

    Each alternative that the planner weighed gives one condition: that it computes on no more
    devices, where those are too few, or takes no less time. Those that hold at all sizes are left
    out, and each of the others is stated once, for the first operator that depends on it. The paths
    between layouts, and what operators before it left at hand, are those of the hints.
    """
    recorder = _Recorder(sharded, roles, options)
    recorder.run()
    pricer = _Pricer(named.sizes, sharded)
    found: dict[Condition, list[Node]] = {}
    seen: set[tuple[NodeKey, tuple[Shape, ...]]] = set()
    for node, key in recorder.decided:
        shapes = tuple(named.sizes.dims[v] for v in (*node.operands, *node.results))
        if (key, shapes) not in seen:
            seen.add((key, shapes))
            for condition in pricer.conditions(key, shapes):
                found.setdefault(condition, []).append(node)
    pairs = [pair for one in named.conditions for pair in one.divided]
    kept = conditions(found, hints=named.sizes.hints, shardings=pairs)
    open_ = {condition.difference for condition in kept}
    weighed = {n.signature for c, nodes in found.items() if c.difference in open_ for n in nodes}
    before = partial(_before, recorder.context, weighed)
    first = ((condition, found[condition][0]) for condition in kept)
    return tuple(Decision(node.index, condition, before(node)) for condition, node in first)


def _before(context: PartitionContext, weighed: Set[Signature], node: Node) -> tuple[int, ...]:
    """The nearest earlier nodes of open choices that decide what is at hand at a node."""
    nodes, found, left = context.graph.nodes, set[int](), {node.index}
    while left:
        direct = {n for index in left for n in _leaving(context, nodes[index])} - found
        found |= direct
        left = {n for n in direct if nodes[n].signature not in weighed}
    return tuple(sorted(n for n in found if nodes[n].signature in weighed))


def _leaving(context: PartitionContext, node: Node) -> Iterator[int]:
    """Earlier nodes that decide what is at hand of a node's operands.

    They read one too, so that their copy of it may serve again, or hand on a pending sum.
    """
    graph, keeps = context.graph, context.options.keep_gathers is not False
    for value in node.operands:
        for n in graph.users[value]:
            if n < node.index and (keeps or graph.nodes[n].phase == node.phase):
                yield n
        made = graph.producer[value]
        if value in context.deferrable and made is not None:
            yield made


@dataclass(frozen=True, eq=False)
class _Pricer:
    sizes: Sizes
    sharded: ShardedGraph

    @cached_property
    def counts(self) -> Callable[[Digits], Size]:
        """How many parts digits make."""
        mesh, axes = self.sharded.mesh, self.sizes.axes

        def count(digits: Digits) -> Size:
            return math.prod(d.size for d in formula_digits(mesh, axes, digits))

        return lru_cache(maxsize=None)(count)

    def conditions(self, key: NodeKey, shapes: tuple[Shape, ...]) -> Iterator[Condition]:
        """What ties the choice of a key to the hints."""
        for part in alternatives(key):
            best = part.best
            for other in part.others:
                what = f"{self.words(best)} rather than {self.words(other)}"
                if other.devices < part.least:
                    fewer, more = self.devices(other), self.devices(best)
                    yield Condition(fewer, more, f"{what} (devices)")
                elif part.weighs:
                    less, more = (self.time(key, choice, shapes) for choice in (best, other))
                    yield Condition(less, more, f"{what} (time)")
                else:
                    less, more = (self.price(key, choice, shapes) for choice in (best, other))
                    yield Condition(less, more, f"{what} (bytes)")

    def time(self, key: NodeKey, choice: Choice, shapes: tuple[Shape, ...]) -> Formula:
        """Bytes and arithmetic of a device, in flops, as `assign.weight` counts them."""
        rates, results = key.rates, shapes[len(key.sources) :]
        types = key.signature.results
        written = sum(
            math.prod(shape) * type_.itemsize for shape, type_ in zip(results, types, strict=True)
        )
        work = shaped_flops(key.signature, shapes) + written * rates.written_flops
        sent = self.price(key, choice, shapes) * rates.sent_flops
        return sent + Formula.of(work) / self.devices(choice)

    def words(self, choice: Choice) -> str:
        """The axes on the loops, in words."""
        mesh = self.sharded.mesh
        split = [f"{n} over {','.join(mesh.texts(d))}" for n, d in choice.loops if d]
        return ", ".join(split) or "the whole"

    def devices(self, choice: Choice) -> Formula:
        """In how many parts the iterations are computed."""
        held = {d for _, digits in choice.loops for d in digits}
        passed = {d for made in choice.produced for d in made.unreduced} - held
        digits = tuple(sorted(held | passed, reverse=True))
        return Formula.of(self.counts(digits))

    def price(self, key: NodeKey, choice: Choice, shapes: tuple[Shape, ...]) -> Formula:
        """Bytes that a device sends to bring operands in and results home."""
        total, count = Formula.of(0), len(key.sources)
        operands = zip(key.sources, choice.demands, key.signature.operands, shapes, strict=False)
        for sources, demand, type_, shape in operands:
            total += (
                self.path(nearest(sources, demand, padded=key.padded), demand, shape)
                * type_.itemsize
            )
        types = key.signature.results
        ends = zip(choice.produced, key.homes, types, shapes[count:], strict=True)
        for number, (made, home, type_, shape) in enumerate(ends):
            if number not in key.unread:
                total += self.path(made, home, shape) * type_.itemsize
        return total

    def path(self, source: Sharding, target: Sharding, shape: Shape) -> Formula:
        """Elements that a device sends from one layout to the other, on the path of the hints."""
        total = Formula.of(0)
        for step in reshard_path(source, target, None, False).steps:
            if isinstance(step.attributes, Collective):
                held = self.elements(source, shape, step.attributes, step.layout)
                size = self.counts(step.attributes.digits)
                total += step_wire_bytes(step.attributes.sent_as, group_size=size, local_bytes=held)
            source = step.layout
        return total

    def elements(self, source: Sharding, shape: Shape, attributes: Any, after: Sharding) -> Formula:
        """Elements on a device before a collective, padded where the collective cuts."""
        blocks = [self.tile(source, shape, dim) for dim in range(len(shape))]
        cut = _CUTS.get(type(attributes))
        if cut is not None:
            dim = getattr(attributes, cut)
            blocks[dim] = self.tile(after, shape, dim) * self.counts(attributes.digits)
        return math.prod(blocks, start=Formula.of(1))

    def tile(self, sharding: Sharding, shape: Shape, dim: int) -> Formula:
        """Elements of a block, without a ceiling where the parts divide at the hints."""
        ratio = Formula.of(shape[dim]) / self.counts(sharding.dims[dim])
        divides = sharding.shape[dim] % math.prod(d.size for d in sharding.dims[dim]) == 0
        return ratio if divides else ceiling(ratio)


_CUTS = {ReduceScatter: "dim", AllToAll: "split_dim"}
