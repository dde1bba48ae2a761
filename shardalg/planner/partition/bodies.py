"""Calls with bodies: what enters and leaves a loop in which layout, each body planned once.

A body has a partitioner of its own (`BodyPartitioner._inside`). What a loop decides about its body
is read from a draft: a body that is planned on locals which nothing else shares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from copy import copy
from math import prod
from typing import Self

from shardalg.algebra.derived_layouts import interned
from shardalg.algebra.digits import overlap
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph, Node
from shardalg.planner.partition.choose.node_classes import Copied
from shardalg.planner.partition.choose.regions import LoopSum, border, loop_sums, with_sums
from shardalg.planner.partition.emit.context import Cause, PartitionContext
from shardalg.planner.partition.emit.node import TAKES, close_body, control, open_body, place_result
from shardalg.planner.partition.partition_options import PartitionOptions
from shardalg.planner.propagate.sharded import Layouts, ShardedGraph
from shardalg.spmd.instruction import Block, Why
from shardalg.spmd.instructions import FirstMember

Waiting = tuple[tuple[LoopSum, Sharding], ...]
"""What stays partial sums until a loop is over, each with its layout."""


class BodyPartitioner(ABC):
    """The part of a partitioner that plans calls and their bodies.

    Attributes:
      begin: what is at hand in every body, the program's constants, and how many locals hold it.
      hoisted: constants of loops that are gathered before the loop.
      waiting: values of loops whose partial sums may wait until the loop is over.
    """

    sharded: ShardedGraph
    graph: Graph
    options: PartitionOptions
    context: PartitionContext
    value_shardings: list[Sharding]
    begin: tuple[list[int], list[int], int]
    hoisted: list[Copied]
    waiting: frozenset[int] = frozenset()

    @abstractmethod
    def _region(self, index: int) -> None:
        """Emit the nodes of a region."""

    @abstractmethod
    def _repeat(self, value: int, layout: Sharding, cause: Cause) -> int | None:
        """Emit a value again from a smaller one that it repeats, where that sends less."""

    def _call(self, node: Node) -> None:
        context = self.context
        agreed = self.sharded.borders.get(node.index)
        if agreed is None:
            if node.primitive == "scan":
                self._place_constants(node)
            agreed = border(self.graph, node, self.value_shardings)
        waiting = self._waiting(node, agreed.bodies)
        agreed = with_sums(agreed, {s.number: layout for s, layout in waiting}, node)
        cause = context.cause(node, Why(TAKES[node.primitive]))
        operands = [
            context.required(v, layout, cause)
            for v, layout in zip(node.operands, agreed.operands, strict=True)
        ]
        self._begin_sums(node, waiting, operands, cause)
        blocks = [
            self._inside(waiting)._body(node, body, layouts)
            for body, layouts in zip(node.bodies, agreed.bodies, strict=True)
        ]
        made = tuple(
            context.new_local(layout.shard_shape, self.graph.values[v].type.dtype, layout, v)
            for v, layout in zip(node.results, agreed.results, strict=True)
        )
        around = control(self.graph, node, blocks, self.sharded.mesh)
        context.emit(around, tuple(operands), made, cause)
        for value, local in zip(node.results, made, strict=True):
            place_result(context, node, value, local, self.value_shardings[value])

    def _place_constants(self, node: Node) -> None:
        """Give the loop's constants, at its border, the layout in which alone its body reads them.

        Where a constant is brought home for the loop, and its body reads no larger blocks, that
        saves a move per trip and holds no more. By `hoist_gathers` any constant: a device then
        holds it gathered as long as the loop runs. The same holds for a loop that JAX writes out,
        if gathered copies are kept. The body is planned once to see what it reads.
        """
        is_unrolled = ("unrolled", True) in node.signature.params
        keeps = is_unrolled and self.options.keep_gathers
        hoists = keeps or self.options.hoist_gathers
        context, (body,) = self.context, node.bodies
        constants = self.graph.regions[body].arguments[: node.signature.param("num_consts")]
        outer = zip(constants, node.operands, strict=False)
        brought = {v for v, value in outer if self.value_shardings[v] not in context.sources(value)}
        if not (brought or hoists):
            return
        draft = self._inside(is_draft=True)
        block = draft._body(node, body, border(self.graph, node, self.value_shardings).bodies[0])
        copies = draft.context.copies
        read = Counter(local for each in block.instructions for local in each.operands)
        for value, local in zip(constants, block.arguments, strict=False):
            result_sharding = self.value_shardings[value]
            found = {layout for v, layout, _ in copies if v == value and layout != result_sharding}
            if len(found) != 1:
                continue
            (layout,) = found
            alone = value in brought and read[local] == 1 and local not in block.results
            is_free = alone and prod(layout.shard_shape) <= prod(result_sharding.shard_shape)
            if is_free or hoists:
                self.value_shardings[value] = layout
            if hoists and not (is_free or keeps):
                once = self.graph.trip_count(node)
                times = once * node.signature.param("length")
                copied = Copied(value, result_sharding, layout, "hoist_gathers", times, once)
                self.hoisted.append(copied)

    def _waiting(self, node: Node, bodies: Sequence[tuple[Layouts, Layouts]]) -> Waiting:
        """The sums that wait until the loop is over, as its body was planned with them.

        It is planned once to see what is left partial, and with the carries in those layouts until
        all of them come out as they go in. What is stacked waits where it is no larger for it, or
        where an outer loop adds it up.
        """
        options = self.options
        if node.primitive != "scan" or not (options.defer_in_loops and options.defer_sums):
            return ()
        sums = loop_sums(self.graph, node)
        ((arguments, results),) = bodies
        found: Waiting = ()
        undecided = tuple([(one, results[one.number]) for one in sums])
        seen = self._seen(node, arguments, undecided)
        for one in sums:
            own = results[one.number]
            (layout, *others) = dict.fromkeys(_carried(seen[v], own) for v in one.added)
            is_stacked = one.added == (one.result,)
            outer = node.results[one.number] in self.context.deferrable
            stays = outer or not is_stacked or _elements(layout) <= _elements(own)
            if layout.unreduced and not others and stays:
                found += ((one, layout),)
        return self._coming_round(node, arguments, found)

    def _coming_round(self, node: Node, arguments: Layouts, found: Waiting) -> Waiting:
        """Those of them that leave the body as they enter it."""
        consts, carried = (node.signature.param(name) for name in ("num_consts", "num_carry"))
        while found:
            inside = list(arguments)
            for one, layout in found:
                if one.number < carried:
                    inside[consts + one.number] = layout
            seen = self._seen(node, tuple(inside), found)
            kept = tuple([pair for pair in found if seen[pair[0].result] == pair[1]])
            if kept == found:
                break
            found = kept
        return found

    def _seen(self, node: Node, arguments: Layouts, sums: Waiting) -> dict[int, Sharding]:
        """Return how the body makes what is added up, and the sums, if these may be deferred."""
        (body,), draft = node.bodies, self._inside(sums, is_draft=True)
        open_body(draft.context, self.graph.regions[body], arguments)
        draft._region(body)
        values = {v for one, _ in sums for v in (one.result, *one.added)}
        return {v: draft.context.sources(v)[0] for v in values}

    def _begin_sums(self, node: Node, waiting: Waiting, operands: list[int], cause: Cause) -> None:
        """Carries that are partial sums begin on the first member alone."""
        context = self.context
        consts, carried = (node.signature.param(name) for name in ("num_consts", "num_carry"))
        for one, layout in waiting:
            if one.number < carried:
                place = consts + one.number
                like = context.locals[operands[place]]
                first = context.new_local(like.shape, like.dtype, layout)
                context.emit(FirstMember(layout.unreduced), (operands[place],), (first,), cause)
                operands[place] = first

    def _body(self, node: Node, body: int, layouts: tuple[Layouts, Layouts]) -> Block:
        """Return the block of a body, on locals of its own."""
        context, region = self.context, self.graph.regions[body]
        arguments = open_body(context, region, layouts[0])
        self._region(body)
        results = close_body(context, node, region, layouts[1])
        return Block(arguments, tuple(context.instructions), results)

    def _inside(self, sums: Waiting = (), *, is_draft: bool = False) -> Self:
        """Return the partitioner of a body.

        Args:
          sums: whose partial sums may be deferred in the body.
          is_draft: whether the body is planned only to read its decisions from it. It is then on
            locals of its own. Layouts of the constants of loops inside stay as the draft has them.
        """
        inner, (available, first, count) = copy(self), self.begin
        locals_ = self.context.locals[:count] if is_draft else self.context.locals
        waits = frozenset().union(*(one.waits for one, _ in sums))
        inner.waiting = self.waiting | waits
        inner.context = self.context.inside(locals_, available, first)
        inner.context.deferrable |= waits
        inner.context.repeat = inner._repeat
        return inner


def _carried(added: Sharding, own: Sharding) -> Sharding:
    """The layout of a carry to which partial sums are added; of rows of it, its own but for them.

    Args:
      own: the carry's in a loop where no sums wait.
    """
    if added.shape == own.shape or not added.unreduced:
        return added
    sums = added.unreduced
    dims = [tuple(d for d in dim if not any(overlap(d, s) for s in sums)) for dim in own.dims]
    return interned(own.mesh, own.shape, tuple(dims), sums)


def _elements(layout: Sharding) -> int:
    """Of a device."""
    return prod(layout.shard_shape)
