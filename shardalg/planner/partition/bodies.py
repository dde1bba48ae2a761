"""Partitioning of scans, while loops, conditionals and `shard_map` regions ("calls with bodies").

The body of a call is partitioned by a copy of the outer partitioner (`BodyPartitioner._inside`).
Some decisions about a loop depend on how its body is partitioned. They are read from a draft: the
body is partitioned once on local values of its own, inspected, and discarded.
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

DeferredSums = tuple[tuple[LoopSum, Sharding], ...]
"""Partial sums that are reduced once after a loop, not once per iteration, with their shardings."""


class BodyPartitioner(ABC):
    """The part of a partitioner that emits loops, conditionals and manual regions.

    `Partitioner` adds the part that emits all other operators.

    Attributes:
      value_shardings: per graph value, its completed sharding.
      begin: the lists `available` and `first` of a `PartitionContext` when only the arguments and
        the program's constants exist, and the number of local values then. Bodies start with these.
      hoisted: constants of loops that are gathered before the loop (`Options.hoist_gathers`).
      waiting: graph values inside of loops whose partial sums may stay unreduced until the loop
        ends.
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
        """Emit the instructions of all nodes of the region with this number."""

    @abstractmethod
    def _repeat(self, value: int, layout: Sharding, cause: Cause) -> int | None:
        """Emit a broadcast again with its result in `layout`, if that sends less than moving it.

        Returns the new local value. None if no broadcast computes `value`, or if a move is cheaper.
        """

    def _call(self, node: Node) -> None:
        """Emit a loop, conditional or manual region, including its bodies.

        Its operands are moved to the shardings that the bodies read. Its results are moved to their
        completed shardings if that is useful (`place_result`).
        """
        context = self.context
        # The border has the shardings of the operands, of each body's arguments and results, and of
        # the results. Policy "cost" has decided some borders already.
        agreed = self.sharded.borders.get(node.index)
        if agreed is None:
            if node.primitive == "scan":
                self._place_constants(node)
            agreed = border(self.graph, node, self.value_shardings)
        # Sums that a loop adds up can stay partial in the carry, and are reduced once after it.
        deferred = self._deferred_sums(node, agreed.bodies)
        agreed = with_sums(agreed, {s.number: layout for s, layout in deferred}, node)
        cause = context.cause(node, Why(TAKES[node.primitive]))
        operands = [
            context.required(v, layout, cause)
            for v, layout in zip(node.operands, agreed.operands, strict=True)
        ]
        # A carry that is a partial sum starts on the first member alone, so that it counts once.
        if deferred:
            names = "num_consts", "num_carry"
            consts, carried = (node.signature.param(name) for name in names)
            for loop_sum, layout in deferred:
                if loop_sum.number < carried:
                    place = consts + loop_sum.number
                    like = context.locals[operands[place]]
                    first = context.new_local(like.shape, like.dtype, layout)
                    select = FirstMember(layout.unreduced)
                    context.emit(select, (operands[place],), (first,), cause)
                    operands[place] = first
        # The two branches of a conditional, or the condition and the body of a while loop, are
        # planned separately: each sees only its own arguments and the program's constants.
        blocks = [
            self._inside(deferred)._body(node, body, layouts)
            for body, layouts in zip(node.bodies, agreed.bodies, strict=True)
        ]
        results = tuple(
            context.new_local(layout.shard_shape, self.graph.values[v].type.dtype, layout, v)
            for v, layout in zip(node.results, agreed.results, strict=True)
        )
        # One instruction, such as a loop, has the blocks of all bodies.
        control_flow = control(self.graph, node, blocks, self.sharded.mesh)
        context.emit(control_flow, tuple(operands), results, cause)
        for value, local in zip(node.results, results, strict=True):
            place_result(context, node, value, local, self.value_shardings[value])

    def _place_constants(self, node: Node) -> None:
        """Update the shardings of a scan's constants, so that they are moved before the loop.

        A constant is changed if the body reads it in one other sharding only, and one of two
        conditions holds: the moved copy needs no more memory, or the options ask for gathers before
        loops. A draft of the body shows the shardings in which the body reads its constants.
        """
        # `hoist_gathers` gathers every constant before the loop. A device then holds it gathered as
        # long as the loop runs. A loop that JAX writes out is treated so if copies are kept.
        is_unrolled = ("unrolled", True) in node.signature.params
        keeps = is_unrolled and self.options.keep_gathers
        hoists = keeps or self.options.hoist_gathers
        context, (body,) = self.context, node.bodies
        constants = self.graph.regions[body].arguments[: node.signature.param("num_consts")]
        # Constants that no available copy outside of the loop gives in the body's sharding.
        pairs = zip(constants, node.operands, strict=False)
        moved = {v for v, outer in pairs if self.value_shardings[v] not in context.sources(outer)}
        if not (moved or hoists):
            return
        draft = self._inside(is_draft=True)
        block = draft._body(node, body, border(self.graph, node, self.value_shardings).bodies[0])
        copies = draft.context.copies
        num_reads = Counter(local for each in block.instructions for local in each.operands)
        for value, local in zip(constants, block.arguments, strict=False):
            result_sharding = self.value_shardings[value]
            found = {layout for v, layout, _ in copies if v == value and layout != result_sharding}
            # If the body reads a constant in several shardings, one move before the loop could
            # serve only one of them.
            if len(found) != 1:
                continue
            (layout,) = found
            # The constant is moved for the loop anyway, and its body reads blocks that are no
            # larger. One move before the loop replaces one per iteration, and holds no more.
            reads_once = value in moved and num_reads[local] == 1 and local not in block.results
            is_free = reads_once and prod(layout.shard_shape) <= prod(result_sharding.shard_shape)
            # The body's partitioner reads this list, so that its readers find the constant moved.
            if is_free or hoists:
                self.value_shardings[value] = layout
            if hoists and not (is_free or keeps):
                once = self.graph.trip_count(node)
                times = once * node.signature.param("length")
                copied = Copied(
                    value=value,
                    before=result_sharding,
                    after=layout,
                    option="hoist_gathers",
                    times=times,
                    fewest=once,
                )
                self.hoisted.append(copied)

    def _deferred_sums(self, node: Node, bodies: Sequence[tuple[Layouts, Layouts]]) -> DeferredSums:
        """Return the sums of a scan that are reduced after the loop, not in every iteration.

        Each entry is a sum and the sharding of its partial value. Empty unless the call is a scan
        and both `defer_sums` and `defer_in_loops` are on.

        Args:
          bodies: per body, the shardings of its arguments and of its results.
        """
        options = self.options
        if node.primitive != "scan" or not (options.defer_in_loops and options.defer_sums):
            return ()
        sums = loop_sums(self.graph, node)
        ((arguments, results),) = bodies
        # Which sums stay partial depends on the choices of all nodes inside, so the body is planned
        # once as a draft, under the assumption that every sum may be deferred.
        found: DeferredSums = ()
        undecided = tuple([(one, results[one.number]) for one in sums])
        computed = self._draft_shardings(node, arguments, undecided)
        for one in sums:
            own = results[one.number]
            (layout, *others) = dict.fromkeys(_carry_sharding(computed[v], own) for v in one.added)
            # The partial sums of a stacked value are held for all iterations. That is worth it if
            # its blocks do not grow, or if an outer loop defers the same sum further.
            is_stacked = one.added == (one.result,)
            outer = node.results[one.number] in self.context.deferrable
            is_no_larger = prod(layout.shard_shape) <= prod(own.shard_shape)
            stays = outer or not is_stacked or is_no_larger
            if layout.unreduced and not others and stays:
                found += ((one, layout),)
        return self._stable_sums(node, arguments, found)

    def _stable_sums(self, node: Node, arguments: Layouts, found: DeferredSums) -> DeferredSums:
        """Return the deferred sums that a body returns in the sharding that `found` gives them.

        An iteration reads the carry that the previous one returned, so both shardings must agree.
        Removing one sum can change the sharding of another. The check is therefore repeated until
        no sum is removed.

        Args:
          arguments: the shardings of the body's arguments in the absence of deferred sums.
          found: the candidate sums with their shardings.
        """
        consts, carried = (node.signature.param(name) for name in ("num_consts", "num_carry"))
        # Only carries have a sharding at the start of the body; stacked values have none.
        while found:
            inside = list(arguments)
            for one, layout in found:
                if one.number < carried:
                    inside[consts + one.number] = layout
            computed = self._draft_shardings(node, tuple(inside), found)
            kept = tuple([pair for pair in found if computed[pair[0].result] == pair[1]])
            if kept == found:
                break
            found = kept
        return found

    def _draft_shardings(
        self, node: Node, arguments: Layouts, sums: DeferredSums
    ) -> dict[int, Sharding]:
        """Return the shardings of the sums and their addends in a draft of the body.

        The result maps graph values to the shardings in which the draft computes them. In the draft
        all of `sums` may stay partial.

        Args:
          arguments: the shardings of the body's arguments.
        """
        # The draft emits the body into a block that is thrown away; only its shardings are read.
        (body,), draft = node.bodies, self._inside(sums, is_draft=True)
        open_body(draft.context, self.graph.regions[body], arguments)
        draft._region(body)
        values = {v for one, _ in sums for v in (one.result, *one.added)}
        return {v: draft.context.sources(v)[0] for v in values}

    def _body(self, node: Node, body: int, layouts: tuple[Layouts, Layouts]) -> Block:
        """Return the instructions of one body as a `Block`, with its arguments and results.

        Args:
          layouts: the shardings of the body's arguments, and of its results.
        """
        context, region = self.context, self.graph.regions[body]
        arguments = open_body(context, region, layouts[0])
        self._region(body)
        results = close_body(context, node, region, layouts[1])
        return Block(arguments, tuple(context.instructions), results)

    def _inside(self, sums: DeferredSums = (), *, is_draft: bool = False) -> Self:
        """Return a copy of this partitioner that emits a body into a block of its own.

        Args:
          sums: sums that may be deferred in the body.
          is_draft: whether the body is discarded after its shardings were read. A draft has its own
            list of local values. Its changes of `value_shardings` (`_place_constants`) are kept,
            because that list is shared.
        """
        # `begin` has the copies of values as they were before the function's first instruction.
        # Later copies of the surroundings are not available in a body.
        inner, (available, first, count) = copy(self), self.begin
        locals_ = self.context.locals[:count] if is_draft else self.context.locals
        # Values whose partial sums wait for the end of the loop may be deferred in the body.
        waiting_values = frozenset().union(*(one.waits for one, _ in sums))
        inner.waiting = self.waiting | waiting_values
        inner.context = self.context.inside(locals_, available, first)
        inner.context.deferrable |= waiting_values
        inner.context.repeat = inner._repeat
        return inner


def _carry_sharding(added: Sharding, own: Sharding) -> Sharding:
    """Return the sharding of a loop carry that accumulates an addend without reducing it.

    It is `added` if both have one shape, or if the addend is no partial sum. If the addend is only
    a slice of the carry, the carry keeps its dimensions' digits, except those that overlap the
    partial sums' axes.

    Args:
      added: the sharding of the addend.
      own: the sharding of the carry if no sums are deferred.
    """
    if added.shape == own.shape or not added.unreduced:
        return added
    # Along the digits of a partial sum every device holds an addend of the same elements, so these
    # digits cannot divide a dimension of the carry, too.
    sums = added.unreduced
    dims = [tuple(d for d in dim if not any(overlap(d, s) for s in sums)) for dim in own.dims]
    return interned(own.mesh, own.shape, tuple(dims), sums)
