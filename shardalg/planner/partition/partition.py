"""The partitioner: it visits the nodes of a sharded graph in order and emits their instructions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import takewhile
from math import prod

from shardalg.algebra.derived_layouts import even_prefix, interned, plain, undivided, whole
from shardalg.algebra.layout import in_order
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.costs.compute import contracts, operand_type
from shardalg.costs.topology import machine
from shardalg.graph.ir import Node
from shardalg.planner.partition.bodies import BodyPartitioner
from shardalg.planner.partition.choose import node_classes
from shardalg.planner.partition.choose.co_operands import meetings
from shardalg.planner.partition.choose.key import NodeKey
from shardalg.planner.partition.choose.node_classes import (
    KEPT,
    Copied,
    GatherChoice,
    elementwise,
    formats,
    kinds,
    repeats,
)
from shardalg.planner.partition.choose.node_plan import NodePlan, node_plan
from shardalg.planner.partition.choose.sent import sent_bytes
from shardalg.planner.partition.emit.context import UNMADE, Cause, PartitionContext
from shardalg.planner.partition.emit.node import Recipe, place_result, recipe, remake
from shardalg.planner.partition.partition_options import PartitionOptions
from shardalg.planner.propagate.other_mesh import border_orders
from shardalg.planner.propagate.sharded import ShardedGraph
from shardalg.planner.reshard.links import links_on
from shardalg.planner.reshard.paths import reshard_price
from shardalg.spmd.instruction import Block, Purpose, Why
from shardalg.spmd.manual import user_collective
from shardalg.spmd.program import SpmdProgram

MOVING = {"parameters": "weight", "data": "activation"}
"""Reports on collectives name the role of the moved value ("weight"), not the argument's role."""


Kept = frozenset[tuple[int, Sharding]]
"""(value, sharding) of gathered copies that later phases (backward, update) read, too."""
NONE: Kept = frozenset()


class Partitioner(BodyPartitioner):
    """One run of partitioning: `run` emits the program of a sharded graph.

    Attributes:
      value_shardings: per graph value, the sharding that it is moved to after it is computed.
      alike: the equivalence classes of the graph's nodes (`choose/node_classes.py`).
      kinds: per node, the number of its class. Nodes of one operator class whose loops policy
        "cost" decided differently have different numbers. None for calls and user's collectives.
      recipes: per class, a dictionary of recipes. A key has the numbers of the sharding tuples that
        are available of the node's operands and results.
      context: the program under construction.
      rates: a cached function from an element type to the chip's rates.
    """

    def __init__(
        self,
        sharded: ShardedGraph,
        roles: Sequence[str],
        options: PartitionOptions,
        *,
        kept: Kept = NONE,
    ) -> None:
        """Set the shardings of values, the classes of nodes and an empty program.

        `alike` and `kinds` have the equivalence classes of nodes, and `recipes` the decisions so
        far, per class. `hoisted` will have the copies that are gathered before a loop. `context` is
        the program under construction, and `rates` caches the chip's rates by element type.

        Args:
          roles: the role of every graph value, such as "parameters".
          kept: gathered copies that later phases may read, too.
        """
        self.sharded = sharded
        self.graph = sharded.graph
        self.value_shardings = list(self._plain(sharded.shardings))
        self._adopt_result_shardings()
        self.alike = kinds(self.graph)
        self.kinds = self._classes()
        self.recipes: list[dict[tuple[int | str, ...], Recipe]] = [{} for _ in set(self.kinds)]
        self.options = options
        moving = tuple([MOVING.get(r, r) for r in roles])
        given = machine(options.hardware)
        # Only these options compare axes of different speed; else paths are chosen by bytes.
        links = links_on(sharded.mesh, given if options.weigh_links else None)
        self.context = PartitionContext(self.graph, moving, options, kept=kept, links=links)
        self.context.repeat = self._repeat
        self.hoisted: list[Copied] = []
        self.rates = lru_cache(maxsize=None)(given.chip.rates)
        self._adopt_forward_shardings()

    def run(self) -> SpmdProgram:
        """Emit the instructions of all nodes, and return the SPMD program.

        The passes of `planner/pipeline.py`, which improve the program, come later.
        """
        graph, context = self.graph, self.context
        # Before a value is computed, its completed sharding is its only source.
        context.available = [
            context.tuples.number((result_sharding,)) for result_sharding in self.value_shardings
        ]
        context.first = [UNMADE] * len(self.value_shardings)
        annotations = self.sharded.annotations
        # Arguments and results may be on a mesh with another order of the devices. The two
        # dictionaries have this mesh by the number of the argument or result.
        entering, leaving = border_orders(
            graph, annotations.sites, annotations.results, annotations.orders
        )
        arguments = tuple(
            self._argument_local(v, entering.get(number))
            for number, v in enumerate(graph.arguments)
        )
        # Every device has the whole of a constant.
        constants = tuple(
            (context.given(v, whole(self.value_shardings[v])), v) for v, _ in graph.constants
        )
        # Entry 0 of `deferrable` is right for all numbers, entry 1 only if all numbers are finite,
        # which the user states by `finite_sums`.
        context.deferrable = self.alike.deferrable[self.options.finite_sums]
        # The body of a call starts with these copies: others of its surroundings are not available.
        self.begin = list(context.available), list(context.first), len(context.locals)
        # Region 0 is the function itself. Loops and calls in it emit their own regions.
        self._region(0)
        result_layouts = self._plain(self.sharded.results)
        result_layouts = tuple(
            _in_device_order(layout, leaving.get(number))
            for number, layout in enumerate(result_layouts)
        )
        results = tuple(map(self._result_local, graph.results, result_layouts))
        return SpmdProgram(
            mesh=self.sharded.mesh,
            locals=tuple(context.locals),
            block=Block(arguments, tuple(context.instructions), results),
            argument_shardings=tuple(context.locals[local].sharding for local in arguments),
            result_shardings=result_layouts,
            constants=constants,
        )

    def _argument_local(self, value: int, order: Mesh | None) -> int:
        """Add the local value of an argument of the function, and return its number.

        Args:
          order: the mesh with the device order in which the caller passes the argument, or None. If
            it differs from the program's order, a permute is emitted.
        """
        result_sharding, context = self.value_shardings[value], self.context
        given = _in_device_order(result_sharding, order)
        if given is result_sharding:
            return context.given(value, result_sharding)
        # The value as it is passed is no available copy: operators use the program's order only.
        dtype = self.graph.values[value].type.dtype
        first = context.new_local(result_sharding.shard_shape, dtype, given, value)
        cause = Cause(None, "forward", context.roles[value], Why(Purpose.ARGUMENT_ORDER))
        context.hold(
            value,
            result_sharding,
            context.reorder_devices(first, result_sharding, result_sharding.mesh, cause),
        )
        return first

    def _result_local(self, value: int, layout: Sharding) -> int:
        """Return the number of a local value with a result of the function in the given sharding.

        A local value is a block of the program, as each device has one. Reshards are emitted if the
        value has another sharding. If the sharding has another mesh (another device order), a
        permute follows.
        """
        producer = self.graph.producer[value]
        phase = "forward" if producer is None else self.graph.nodes[producer].phase
        # The cause is recorded in the emitted instructions, for explanations of the plan.
        mesh, cause = self.sharded.mesh, Cause(None, phase, why=Why(Purpose.RESULT))
        if layout.mesh == mesh:
            return self.context.required(value, layout, cause)
        local = self.context.required(value, replace(layout, mesh=mesh), cause)
        reorder_cause = cause._replace(why=Why(Purpose.RESULT_ORDER))
        return self.context.reorder_devices(local, layout, mesh, reorder_cause)

    def _plain(self, shardings: Sequence[Sharding]) -> tuple[Sharding, ...]:
        """Return the shardings without open dimensions and without axes of size 1.

        An axis of size 1 splits nothing, so no move must reach a sharding that names one.
        """
        # Many values share one sharding object, and comparing ids is cheaper than hashing.
        seen: dict[int, Sharding] = {}
        for sharding in shardings:
            if id(sharding) not in seen:
                seen[id(sharding)] = plain(sharding)
        return tuple([seen[id(sharding)] for sharding in shardings])

    def _adopt_result_shardings(self) -> None:
        """Set the sharding of each value that is only returned to that of the function's result.

        "Only returned" means: returned once and read by no node. Two kinds of values keep their
        completed sharding: annotated ones, and contractions with even blocks.
        """
        # The completed sharding would need one more move. A contraction's sharding divides its
        # arithmetic, so it stays; an uneven one does not (XLA replicates such a result).
        graph, value_shardings = self.graph, self.value_shardings
        returned = Counter(graph.results)
        results = zip(graph.results, self._plain(self.sharded.results), strict=True)
        for value, result in results:
            made = graph.producer[value]
            if made is None or value in self.sharded.fixed or graph.users[value]:
                continue
            is_even = even_prefix(value_shardings[value]) == value_shardings[value]
            divides = is_even and contracts(graph.nodes[made].signature)
            if returned[value] == 1 and not divides:
                value_shardings[value] = result

    def _adopt_forward_shardings(self) -> None:
        """Set the sharding of products of the backward pass to that of a value beside them.

        Such a value of the forward pass is the other operand of an operator that reads the product
        (a meeting in `choose/co_operands.py`). The sharding changes only if the product and its
        readers then take less time. Annotated values keep theirs.
        """
        # Policy "cost" gives loops to every node, and has compared these shardings already.
        if self.sharded.loops:
            return
        for meeting in meetings(self.graph, tuple(self.value_shardings)):
            if meeting.value not in self.sharded.fixed:
                self.value_shardings[meeting.value] = meeting.cheapest(self._completed_key)

    def _completed_key(self, node: Node, value: int, layout: Sharding) -> NodeKey:
        """Return the inputs of the choice at a node whose other values have completed shardings.

        Args:
          value, layout: an operand or result of the node, and its sharding.
        """

        def sharding_of(number: int) -> Sharding:
            """Return the given sharding for the given value, and the completed one for others."""
            return layout if number == value else self.value_shardings[number]

        # The key has everything that a decision reads, so equal keys share one decision. Each
        # operand has one available copy here.
        class_number, options = self.alike.number(node), self.options
        return NodeKey(
            node.signature,
            self.alike.reads[class_number],
            tuple([(sharding_of(v),) for v in node.operands]),
            tuple(map(sharding_of, node.results)),
            self.rates(operand_type(node.signature)),
            padded=options.pad_blocks,
            finite=options.finite_sums,
        )

    def _classes(self) -> list[int | None]:
        """Return a class number per node, None for nodes without an operator class.

        Nodes have equal numbers if they have the same operator class, and policy "cost" decided the
        same loops and operand shardings for them (or none).
        """
        numbers, loops = self.alike.numbers, self.sharded.loops
        # Without decisions of policy "cost", the operator classes suffice.
        if not loops:
            return list(numbers)
        # A key is (operator class, decided loops, decided operand shardings); keys are numbered in
        # the order of their first node.
        number_of: dict[object, int] = {}
        required = self.sharded.required
        keys = [(k, loops.get(node), required.get(node)) for node, k in enumerate(numbers)]
        return [
            None if key[0] is None else number_of.setdefault(key, len(number_of)) for key in keys
        ]

    def _region(self, index: int) -> None:
        """Emit the nodes of the region with this number, in order.

        Nodes of one class whose operands have the same available copies emit the same instructions.
        Their recipe is derived once and then repeated.
        """
        context, nodes = self.context, self.graph.nodes
        kinds, pick, recipes = self.kinds, self.alike.pick, self.recipes
        for number in self.graph.regions[index].nodes:
            # `kind` is the number of the node's class; equal nodes have one class.
            kind, node = kinds[number], nodes[number]
            if node.phase != context.phase:
                context.enter(node.phase)
            # Calls and the user's collectives have no recipe: their bodies, or the axes that the
            # user wrote, decide what they emit.
            if kind is None:
                self._call(node) if node.bodies else self._emit_written_collective(node)
                continue
            # The key has the available copies of the node's own operands and results.
            key = pick[number](context.available)
            if self.waiting and self._waits(node):
                # Sums that a loop defers lead to another recipe with the same copies.
                key = (*key, "waits")
            found = recipes[kind].get(key)
            if found is None:
                found = recipes[kind][key] = self._recipe(node)
            found.emit(context, node, found)
            # Every device can compute some results in any sharding (`is_remade`), others in one
            # with larger blocks (`again`). Readers can then have this copy without communication.
            if found.is_remade:
                context.hold_remade(node.results[0], partial(self._remade, node))
            elif found.again is not None:
                context.hold_again(node.results[0], found.again, partial(self._remade, node))

    def _recipe(self, node: Node) -> Recipe:
        """Return the recipe of a node: the instructions that all nodes of its class emit.

        A recipe also has the shardings in which the result can be had without communication.
        """
        value_shardings = tuple([self.value_shardings[v] for v in node.results])
        made = recipe(self.context, node, self._planned(node, value_shardings), value_shardings)
        # Later nodes may read the result in the sharding `again` instead of gathering it.
        is_remade = self.alike.remade[self.alike.number(node)]
        return made._replace(is_remade=is_remade, again=self._again(node, value_shardings))

    def _again(self, node: Node, value_shardings: tuple[Sharding, ...]) -> Sharding | None:
        """Return a sharding with larger blocks in which a result needs no communication, or None.

        None if there is no such sharding, or if the node has several results.
        """
        layouts = (
            (self._wider_sharding(node, value_shardings[0]),) if len(value_shardings) == 1 else ()
        )
        if not layouts or layouts == value_shardings:
            return None
        # The node is planned as if the wider sharding were the completed one of its result.
        key = self.key(node, layouts)
        choice, price = node_plan(key).choice, partial(reshard_price, padded=key.padded)
        is_free = choice.produced == layouts and not sent_bytes(key, choice, price)
        return layouts[0] if is_free else None

    def _wider_sharding(self, node: Node, layout: Sharding) -> Sharding:
        """Return a sharding of a result with fewer digits that may need no communication.

        It is `layout` itself if no digit can be removed. The caller checks whether computing the
        result in the returned sharding sends something.
        """
        signature = node.signature
        if not any(layout.dims):
            return layout
        # All devices can hold a dimension of one element that formatting splits off.
        joined = undivided(layout) if 1 in layout.shape and formats(signature) else layout
        # Devices with a copy of the same block of a product would repeat its work. Annotations
        # (`KEPT`) have the sharding that the user asked for.
        if joined != layout or contracts(signature) or signature.primitive in KEPT:
            return joined
        # An elementwise result can be as wide as the widest copies of its operands.
        wider = self._common_dims(node, layout) if elementwise(signature) else layout
        if wider != layout:
            return wider
        # Any other result without contraction can be whole if its operands are.
        held = map(self.context.sources, node.operands)
        return whole(layout) if all(whole(sources[0]) in sources for sources in held) else layout

    def _common_dims(self, node: Node, layout: Sharding) -> Sharding:
        """Return `layout` reduced to the major digits that the operands' copies have, too.

        Of each operand the available copy with the largest block is compared, dimension by
        dimension. For example, (X, Y) and (X, Z) have (X,) in common. Operands of another rank are
        ignored.
        """
        dims = layout.dims
        for value in node.operands:
            copies = self.context.sources(value)
            # Mostly there is one copy, whose block size is not needed.
            one = len(copies) == 1
            widest = copies[0] if one else max(copies, key=lambda copy: prod(copy.shard_shape))
            if len(widest.dims) == len(dims) and widest.dims != dims:
                # Blocks along the common major digits contain the blocks of both shardings, so that
                # the operator needs no elements of other devices.
                common = (
                    takewhile(lambda pair: pair[0] == pair[1], zip(own, other, strict=False))
                    for own, other in zip(dims, widest.dims, strict=True)
                )
                dims = tuple([tuple([digit for digit, _ in pairs]) for pairs in common])
        return layout if dims == layout.dims else interned(layout.mesh, layout.shape, dims, ())

    def _emit_written_collective(self, node: Node) -> None:
        """Emit a collective that the user wrote in a `shard_map`, such as `lax.psum`.

        It is emitted as written. The context records its result as the value of the node.
        """
        context, (result,) = self.context, node.results
        why = Why(Purpose.WRITTEN)
        cause = context.cause(node, why)._replace(role=context.roles[node.operands[0]])
        # In a manual region a value is the device's own block, which counts as a whole value.
        operands = [
            context.required(v, whole(self.value_shardings[v]), cause) for v in node.operands
        ]
        layout, dtype = whole(self.value_shardings[result]), self.graph.values[result].type.dtype
        local = context.new_local(layout.shard_shape, dtype, layout, result)
        collective = user_collective(node.signature, self.sharded.mesh)
        assert collective is not None, f"{node.primitive} is no collective of the user's"
        context.emit(collective, tuple(operands), (local,), cause)
        # The result may have a completed sharding along axes that are not manual.
        place_result(context, node, result, local, self.value_shardings[result])

    def key(self, node: Node, value_shardings: tuple[Sharding, ...]) -> NodeKey:
        """Return the inputs of the choice at a node.

        They depend on the copies of its operands that are available at this point of the program.

        Args:
          value_shardings: the sharding that each result is to have.
        """
        available = tuple([self.context.sources(v) for v in node.operands])
        loops = self.sharded.loops.get(node.index, ())
        rates = self.rates(operand_type(node.signature))
        # `alike` has the properties of each class of equal nodes, by the number of the class.
        number, options = self.alike.number(node), self.options
        values, unread = self.alike.reads[number], self.alike.unread[number]
        waits = self._waits(node)
        return NodeKey(
            signature=node.signature,
            values=values,
            sources=available,
            value_shardings=value_shardings,
            rates=rates,
            loops=loops,
            unread=unread,
            padded=options.pad_blocks,
            # Sums that a loop defers are deferred behind products, too (`Switches.defer_in_loops`).
            finite=waits or options.finite_sums,
            waits=waits,
            # Only copies that are kept reach a later product of another phase.
            shared=self.alike.shared[number] if options.keep_gathers else (),
            required=self.sharded.required.get(node.index, ()),
            read_again=self.alike.read_again[number],
        )

    def _waits(self, node: Node) -> bool:
        """Return whether the node's only result may stay a partial sum until its loop ends."""
        return len(node.results) == 1 and node.results[0] in self.waiting

    def _planned(self, node: Node, value_shardings: tuple[Sharding, ...]) -> NodePlan:
        return node_plan(self.key(node, value_shardings))

    def _remade(self, node: Node, layout: Sharding, cause: Cause) -> int:
        """Emit a node a second time with its result in `layout`; return the new local value."""
        return remake(self.context, node, self._planned(node, (layout,)), layout, cause)

    def _repeat(self, value: int, layout: Sharding, cause: Cause) -> int | None:
        """Emit the broadcast that computes `value` again in `layout`, if that sends less.

        A broadcast returns more elements than it reads. Moving its operand can therefore be cheaper
        than moving its result. Returns the new local value. None if no broadcast computes `value`,
        or if moving the result sends no more.
        """
        producer, context = self.graph.producer[value], self.context
        if producer is None or not repeats(self.graph.nodes[producer].signature):
            return None
        node = self.graph.nodes[producer]
        # Both prices are bytes that a device sends: for the broadcast with its operand's moves, and
        # for the cheapest move of the result.
        key = self.key(node, (layout,))
        plan, price = node_plan(key), partial(reshard_price, padded=key.padded)
        least = min([price(source, layout) for source in context.sources(value)])
        moved = least * self.graph.values[value].type.itemsize
        if sent_bytes(key, plan.choice, price) < moved:
            return remake(context, node, plan, layout, cause)
        return None


def _in_device_order(layout: Sharding, order: Mesh | None) -> Sharding:
    """Return the sharding of a value whose blocks are assigned to devices in the order of `order`.

    The result names axes of `layout.mesh` if these can express the order. Otherwise its mesh has
    the device order of `order`. It is `layout` itself if `order` is None or all is replicated.
    """
    if order is None or layout.is_replicated:
        return layout
    found = in_order(replace(layout, mesh=order), layout.mesh)
    assert found is not None, f"{order} is over the devices of {layout.mesh}"
    return found


def gather_choices(
    sharded: ShardedGraph, roles: Sequence[str], options: PartitionOptions
) -> tuple[GatherChoice, ...]:
    """Return the copies that a step gathers several times, with the price of gathering once.

    Such a copy could be kept between phases, or gathered before a loop.
    """
    # A run that keeps no copies shows the copies that are gathered in several phases. A run that
    # hoists records the gathers that could be executed before a loop.
    none = Partitioner(sharded, roles, replace(options, keep_gathers=False, hoist_gathers=False))
    none.run()
    before = Partitioner(sharded, roles, replace(options, hoist_gathers=True))
    before.run()
    copies = (*none.context.repeated(), *before.hoisted)
    return tuple(node_classes.gather_choices(sharded.graph, copies))
