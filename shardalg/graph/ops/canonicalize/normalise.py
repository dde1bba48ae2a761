"""The normal form of a traced graph: no dead nodes, explicit broadcasts, folded numbers.

`normalise` applies the rewrites of this folder. `with_padding` and `in_stages` replace single nodes
of a graph that is already normal, by the same rewriter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from shardalg.graph.ir import (
    SHORT,
    Graph,
    Node,
    Region,
    RegionArgument,
    Signature,
    Unread,
    Value,
    ValueType,
    shared_signature,
)
from shardalg.graph.ops.canonicalize.boxes import ends_joined, starts_written, unread_cut
from shardalg.graph.ops.canonicalize.cuts import join_cuts
from shardalg.graph.ops.canonicalize.indices import first_elements, indices_paired, scatters_added
from shardalg.graph.ops.canonicalize.known import computed_numbers, numbers
from shardalg.graph.ops.canonicalize.transforms import Order, WideSum, stages_of, wide_sum
from shardalg.graph.ops.families.data_formatting import joined_operands
from shardalg.graph.ops.families.pointwise import broadcast_operands
from shardalg.graph.source import own_line
from shardalg.pause import collection_paused


@collection_paused()
def normalise(graph: Graph, *, wide_sums: bool = False) -> Graph:
    """Return an equivalent graph in the normal form that the planner expects.

    - Nodes that no result needs are removed (a loop that runs keeps all of its body's results).
    - `sub f32[8,64] f32[8,1]` reads a `broadcast_in_dim` of its operand: completion has a rule of
      its own for broadcasts (XLA too has separate nodes for them).
    - A concatenation of the two ends of a value is a rotation, one node (`boxes.py`).
    - Boxes at constant starts are slices and pads (`boxes.py`). Consecutive slices and pads are
      merged (`cuts.py`).
    - Updates that are added to zeros and then to a table are added to the table (`indices.py`).
    - Indices 0, 1, 2, ... along a dimension are batch dimensions (`indices.py`).
    - A concatenation has no empty operands.
    - A kernel larger than its image has no taps at its ends that read only padding (`boxes.py`).
    - A gather that reads element 0 of a dimension has an index or a slice there (`indices.py`).
    - A rank-0 number that is computed from literals alone is a constant.

    Remaining nodes keep their names, sources, phases, regions and region arguments.

    Args:
      wide_sums: whether sums of narrow floats are computed in float32 and then rounded
      (`transforms.py`).
    """
    # Boxes first, because they become slices and pads. Rotations before `join_cuts`, because it
    # merges the `pad(x[a:])` that `ends_joined` matches.
    graph = scatters_added(join_cuts(ends_joined(starts_written(graph))))
    graph = indices_paired(graph)
    numbers = computed_numbers(graph)
    return _GraphRewriter(graph, numbers, live_nodes(graph, numbers), wide_sums=wide_sums).graph()


def in_stages(graph: Graph, orders: Mapping[int, Order]) -> Graph:
    """Return the graph with some Fourier transforms split into stages (`transforms.py`).

    Args:
      orders: by node index, the dimensions of each stage.
    """
    return _GraphRewriter(graph, {}, bytearray(b"\1" * len(graph.nodes)), orders=orders).graph()


class NodeReplacement(NamedTuple):
    """The replacement of a node that has one result.

    Attributes:
      operands: pairs of an operand's position and the operators that are applied to the operand
        first. A pad adds zeros.
      signature: the signature of the new node.
      cut: the operator that computes the old result from the new node's result; None if the two
        are the same.
    """

    operands: tuple[tuple[int, tuple[Signature, ...]], ...]
    signature: Signature
    cut: Signature | None


class Padding(NamedTuple):
    """Changes of a graph that add samples of zeros at the end of its batch dimensions.

    Attributes:
      changes: pairs of a node index and the replacement of the node.
      types: pairs of a value index and the value's new type.
    """

    changes: tuple[tuple[int, NodeReplacement], ...]
    types: tuple[tuple[int, ValueType], ...]


def with_padding(graph: Graph, padding: Padding) -> Graph:
    """Return the graph with samples of zeros added at the end of some batch dimensions.

    `planner/padded_samples.py` computes the changes: every device then has whole samples.
    """
    live = bytearray(b"\1" * len(graph.nodes))
    return _GraphRewriter(graph, {}, live, padding=padding).graph()


def live_nodes(graph: Graph, known: dict[int, np.ndarray] | None = None) -> bytearray:
    """Return a byte per node: 1 if a result of the program depends on the node, else 0.

    Args:
      known: values whose number is known, by value index. They become constants, so that they need
        no node.
    """
    needed = bytearray(len(graph.values))
    live = bytearray(len(graph.nodes))
    for value in graph.results:
        needed[value] = 1
    is_known = bytearray(len(graph.values))
    for value in known or ():
        is_known[value] = 1
    # In reverse order of execution all readers of a value come before its node.
    for node in reversed(list(graph.walk())):
        # The loop ends without `break` if no result is needed; the node is then dead.
        for value in node.results:
            if needed[value] and not is_known[value]:
                break
        else:
            continue
        live[node.index] = 1
        for value in node.operands:
            needed[value] = 1
        # The results of a loop body or of a branch are needed as soon as the call is.
        for body in node.bodies:
            for value in graph.regions[body].results:
                needed[value] = 1
    return live


def unread(graph: Graph, lost: Sequence[str] = ()) -> Unread | None:
    """Return a summary of traced nodes that no result needs; None if they are negligible.

    They are negligible if there are no products among them, no argument is lost, and at most the
    share `LEFT_OVER` of all nodes are dead operators of the backward pass.

    Every trace has some dead nodes: the loss in addition to its gradient, casts, broadcasts. Dead
    products and dead operators of the backward pass are different: the user probably needs their
    results.

    Args:
      lost: names of arguments that the function changed and did not return.
    """
    live = live_nodes(graph)
    dead = [node for node in graph.nodes if not live[node.index]]
    # The forward pass of a gradient computes the loss too, which `jax.grad` does not return.
    # Its dead products are therefore expected.
    losses = any(node.phase == "backward" for node in graph.nodes)
    products = [
        node
        for node in dead
        if node.primitive in _PRODUCTS and not (losses and node.phase == "forward")
    ]
    gradients = [n for n in dead if n.phase == "backward" and n.primitive not in _COPIES]
    chosen = {node.index for node in (*gradients, *products)}
    meant = [node for node in dead if node.index in chosen]
    backward = len(gradients)
    if not meant or not (products or lost or backward > LEFT_OVER * len(graph.nodes)):
        return None
    return Unread(len(dead), backward, len(graph.nodes), meant[0].source, tuple(lost))


LEFT_OVER = 0.01
"""Share of all operators up to which dead backward operators are attributed to JAX."""
_COPIES = ("broadcast_in_dim", "convert_element_type", "copy", "reshape", "squeeze", "transpose")
_PRODUCTS = ("dot_general", "conv_general_dilated", "ragged_dot_general", "grouped_dot")


class _GraphRewriter:
    """One pass over a graph that drops dead nodes, inserts new ones, and renumbers the rest.

    Attributes:
      old: the graph that is rewritten.
      wide_sums, orders: see `normalise` and `in_stages`.
      changes: the replacement of some nodes, by node index.
      types: the new type of some values, by value index.
      numbers: the number of each value that becomes a constant.
      live: 1 per node that stays, else 0.
      values, nodes, bindings, constants: the parts of the new graph so far.
      value_of: new value index by old value index; -1 for a removed value.
      node_of: by old node index, the new nodes that replace it. The last one has its results.
    """

    def __init__(
        self,
        graph: Graph,
        numbers: dict[int, np.ndarray],
        live: bytearray,
        *,
        wide_sums: bool = False,
        orders: Mapping[int, Order] = MappingProxyType({}),
        padding: Padding | None = None,
    ) -> None:
        """Store the arguments, and add all values of the old graph that stay to the new graph.

        The property `graph` rewrites the nodes later.

        Args:
          graph: the old graph.
          numbers: constants that replace values, by value index.
          live: per node, 1 if it stays, else 0.
          wide_sums: whether sums of 16-bit floats are computed in float32.
          orders: per node index of a Fourier transform, the dimensions of each of its stages.
          padding: replacements of nodes and types that pad samples; None for none.
        """
        self.old = graph
        self.wide_sums = wide_sums
        self.orders = orders
        self.changes = dict(padding.changes) if padding else {}
        self.types = dict(padding.types) if padding else {}
        self.numbers = numbers
        self.live = live
        self.values: list[Value] = []
        self.nodes: list[Node] = []
        self.bindings: list[Any] = []
        self.constants: list[tuple[int, Any]] = []
        self.value_of = self._keep_values()
        self.node_of: dict[int, range] = {}
        self._names = {value.name for value in graph.values}
        self._signatures: dict[object, Signature] = {}
        self._kept: dict[Signature, tuple[Signature, bool]] = {}
        self._broadcasts: dict[object, int] = {}
        self._counts: dict[tuple[str, str], int] = {}

    def graph(self) -> Graph:
        """Visit all live nodes in order and return the rewritten graph."""
        old = self.old
        for node in compress(old.nodes, self.live):
            self._add_node(node)
        regions, region_of = self._regions()
        # Only now are the final numbers of the regions known, because a region without nodes
        # disappears. A node that needs no other number stays the same object.
        self.nodes = [
            n
            if n.region == region_of[n.region] and not n.bodies
            else replace(
                n, region=region_of[n.region], bodies=tuple(region_of[b] for b in n.bodies)
            )
            for n in self.nodes
        ]
        # If several nodes replace an old one, its references go to the last, which has its results.
        return replace(
            old,
            values=tuple(self.values),
            nodes=tuple(self.nodes),
            regions=regions,
            region_arguments=tuple(
                RegionArgument(
                    self.node_of[tie.call][-1],
                    tie.kind,
                    self.value_of[tie.source],
                    self.value_of[tie.target],
                )
                for tie in old.region_arguments
                # A region argument connects a value outside of a call with one inside a body.
                if self.live[tie.call]
            ),
            arguments=tuple(self.value_of[v] for v in old.arguments),
            results=tuple(self.value_of[v] for v in old.results),
            sites=tuple(
                replace(site, node=self.node_of[site.node][-1])
                for site in old.sites
                if self.live[site.node]
            ),
            constants=tuple(self.constants),
            bindings=tuple(self.bindings) if old.bindings else (),
        )

    def _keep_values(self) -> list[int]:
        """Add the old values that the new graph refers to; return the new index of each old value.

        The values are in the old order. The index of a removed value is -1. For example, if value 1
        of three is removed, the result is [0, -1, 1].
        """
        is_used = self._used_values()
        new_index_of = [-1] * len(self.old.values)
        for value in compress(self.old.values, is_used):
            new_index_of[value.index] = index = len(self.values)
            type_ = self.types.get(value.index, value.type)
            # An unchanged value stays the same object, which costs less than a copy.
            is_unchanged = value.index == index and type_ is value.type
            self.values.append(
                value if is_unchanged else Value(index, type_, value.kind, value.name)
            )
        for index, array in self.old.constants:
            if is_used[index]:
                self.constants.append((new_index_of[index], array))
        # Values of known number are not used any more, except as constants, which come last.
        self._keep_numbers(new_index_of)
        return new_index_of

    def _used_values(self) -> bytearray:
        """Return, per value of the old graph, 1 if the new graph has this value, else 0.

        The entry is 1 if a live node, a body of one, or the graph's arguments or results contain
        the value. It is 0 for values in `numbers`, which become constants.
        """
        old, is_used = self.old, bytearray(len(self.old.values))
        for node in compress(old.nodes, self.live):
            bodies = [old.regions[b] for b in node.bodies]
            inside = [v for body in bodies for v in body.arguments + body.results]
            for value in (*node.operands, *node.results, *inside):
                is_used[value] = 1
        for value in (*old.arguments, *old.results):
            is_used[value] = 1
        for value in self.numbers:
            is_used[value] = 0
        return is_used

    def _keep_numbers(self, number_of: list[int]) -> None:
        """Add a constant for each value of `numbers` that is still read, and store its new index.

        `numbers` has the values that the rewriter computed already. Equal numbers of one type share
        a constant, also with constants of the old graph.

        Args:
          number_of: new value index by old value index, which this method updates.
        """
        old = self.old
        # A value has readers if a node reads it, or if a region, such as a loop body, returns it.
        operands_read = {v for node in compress(old.nodes, self.live) for v in node.operands}
        region_results = {v for region in old.regions for v in region.results}
        # The constants that the graph has already, by type and bytes.
        constant_of: dict[object, int] = {
            (old.values[i].type, array.tobytes()): number_of[i]
            for i, array in numbers(old)
            if number_of[i] >= 0
        }
        for value, array in self.numbers.items():
            if value in operands_read or value in region_results:
                type_ = old.values[value].type
                key = (type_, array.tobytes())
                if key not in constant_of:
                    constant_of[key] = len(self.values)
                    name = f"{array}:{SHORT.get(type_.dtype, type_.dtype)}"
                    self.values.append(Value(constant_of[key], type_, "constant", name))
                    self.constants.append((constant_of[key], array))
                number_of[value] = constant_of[key]

    def _add_node(self, node: Node) -> None:
        """Add a live node of the old graph to the new graph, in its normal form.

        If the normal form has several nodes, the last one has the results of the old node.
        """
        value_of, signature = self.value_of, node.signature
        operands = [value_of[v] for v in node.operands]
        results = tuple([value_of[v] for v in node.results])
        first = len(self.nodes)
        # Many nodes have equal signatures, so each is examined once (`_kept`).
        known_form = self._kept.get(signature)
        if known_form is None:
            # Most nodes are in normal form already. Their signature is reused, because building a
            # new one for each node takes most of the time of this pass.
            changes = (
                len(joined_operands(signature)) < len(signature.operands)
                or broadcast_operands(signature)
                or unread_cut(signature)
                or first_elements(signature)
                or self._wide_sum(signature)
            )
            known_form = self._kept[signature] = (shared_signature(signature), not changes)
        signature, is_normal = known_form
        # A transform that runs in stages (`orders`), an operator on padded samples (`changes`), or
        # one whose normal form has other operands. All other operators stay as they are.
        if node.index in self.orders:
            *before, signature = stages_of(signature, self.orders[node.index])
            for step in before:
                operands = [self._add(node, step, operands, step.primitive)]
        elif node.index in self.changes:
            signature, operands = self._replacement(node, self.changes[node.index], operands)
        elif not is_normal:
            signature, operands = self._normal_form(node, operands)
        provenance = (node.source, node.phase, node.region, node.bodies, node.module, node.kernel)
        self.nodes.append(Node(len(self.nodes), signature, tuple(operands), results, *provenance))
        # Only an unchanged operator can still be evaluated by the equation that it was traced from.
        is_same_operator = (signature.primitive, signature.params) == (
            node.primitive,
            node.signature.params,
        )
        has_equation = self.old.bindings and is_same_operator
        self.bindings.append(self.old.bindings[node.index] if has_equation else None)
        self.node_of[node.index] = range(first, len(self.nodes))

    def _wide_sum(self, signature: Signature) -> WideSum | None:
        """Return the sum in float32 that replaces a sum of narrow floats.

        Return None for any other operator, and if the rewriter leaves such sums as they are.
        """
        return wide_sum(signature) if self.wide_sums else None

    def _normal_form(self, node: Node, operands: list[int]) -> tuple[Signature, list[int]]:
        """Add all nodes of a node's normal form except the last one, which is returned.

        The result is the last node's signature and the new indices of its operands.

        The rewrites are applied in sequence, each to the result of the one before.
        """
        signature = node.signature
        # Broadcasts become nodes of their own, for which completion has a rule. An empty operand of
        # a concatenation has no block to send.
        repeated = broadcast_operands(signature)
        for position, shape in repeated:
            operands[position] = self._broadcast(node, operands[position], shape)
        joined = joined_operands(signature)
        operands = [operands[k] for k in joined]
        if repeated or len(joined) < len(node.operands):
            types = tuple([self.values[v].type for v in operands])
            # Each distinct signature is built once; later nodes share the object.
            key = (id(signature), types)
            if key not in self._signatures:
                self._signatures[key] = shared_signature(replace_operands(signature, types))
            signature = self._signatures[key]

        # Taps that read only padding are cut off: in XLA they have no effect (`boxes.py`).
        cut = unread_cut(signature)
        if cut is not None:
            image, kernel = operands
            signature = cut.rest
            operands = [image, self._add(node, cut.kernel, [kernel], "slice")]

        # A gather may read only element 0 of a dimension without an index. A slice, or an index 0,
        # states this explicitly.
        reading = first_elements(signature)
        if reading is not None:
            signature, (operand, indices) = reading.rest, operands
            if reading.cut is not None:
                operands = [self._add(node, reading.cut, [operand], "slice"), indices]
            else:
                assert reading.zeros is not None and reading.joined is not None, (
                    "cut, or both of these"
                )
                zero = self._zero(reading.zeros.operands[0])
                zeros = self._add(node, reading.zeros, [zero], "broadcast_in_dim")
                operands = [
                    operand,
                    self._add(node, reading.joined, [indices, zeros], "concatenate"),
                ]

        # A sum of narrow floats is computed in float32, so that it is rounded only once, at the
        # end.
        wide = self._wide_sum(signature)
        if wide is None:
            return signature, operands
        rows = zip(wide.reads, operands, strict=True)
        floats = [self._add(node, w, [v], "float32") if w else v for w, v in rows]
        return wide.rounded, [self._add(node, wide.added, floats, "float32")]

    def _replacement(
        self, node: Node, change: NodeReplacement, operands: list[int]
    ) -> tuple[Signature, list[int]]:
        """Add all operators of a node's replacement except the last one, which is returned.

        The result is the last operator's signature and the new indices of its operands. The order
        is: operators on single operands (such as a pad), the new node, and a cut that restores the
        old result. Without a cut, the new node is the last operator.

        Args:
          change: the operators that replace the node.
          operands: the node's operands, as value indices of the new graph.
        """
        for position, steps in change.operands:
            for step in steps:
                # A pad reads the number with which it pads as its second operand.
                fill = [self._zero(step.operands[1])] if step.primitive == "pad" else []
                step_operands = [operands[position], *fill]
                operands[position] = self._add(node, step, step_operands, step.primitive)
        if change.cut is None:
            return change.signature, operands
        return change.cut, [self._add(node, change.signature, operands, node.primitive)]

    def _zero(self, type_: ValueType) -> int:
        """Add a constant 0 of a type; return its value index."""
        zero = len(self.values)
        name = f"0:{SHORT.get(type_.dtype, type_.dtype)}"
        self.values.append(Value(zero, type_, "constant", name))
        self.constants.append((zero, np.zeros((), type_.dtype)))
        return zero

    def _add(self, node: Node, signature: Signature, operands: Sequence[int], kind: str) -> int:
        """Add a new operator at the place of `node`; return the value index of its result.

        Args:
          node: the old node whose source line, phase, region and module the new node gets.
          operands: value indices in the new graph.
          kind: the first word of the result's name.
        """
        result = len(self.values)
        name = self._free_name(kind, node.source)
        self.values.append(Value(result, signature.results[0], "node", name))
        place = (node.source, node.phase, node.region, (), node.module, node.kernel)
        self.nodes.append(Node(len(self.nodes), signature, tuple(operands), (result,), *place))
        self.bindings.append(None)
        return result

    def _broadcast(self, node: Node, value: int, shape: tuple[int, ...]) -> int:
        """Return the value index of `value` with its dimensions of size 1 repeated to a shape.

        For example, a value of shape (4, 1) is repeated to (4, 8). Readers in one region and phase
        share one `broadcast_in_dim`, which the first call adds.
        """
        key = (value, shape, node.region, node.phase)
        if key in self._broadcasts:
            return self._broadcasts[key]
        source = self.values[value].type
        target = ValueType(shape, source.dtype)
        # Signatures are compared often, so equal ones are one object.
        if (source, target) not in self._signatures:
            dims = ("broadcast_dimensions", tuple(range(len(shape))))
            params = (dims, ("shape", shape))
            broadcast = Signature("broadcast_in_dim", params, (source,), (target,))
            self._signatures[source, target] = shared_signature(broadcast)
        signature = self._signatures[source, target]
        result = self._broadcasts[key] = self._add(node, signature, [value], "broadcast_in_dim")
        return result

    def _free_name(self, kind: str, source: str) -> str:
        """Return a name that no value has, such as `broadcast_in_dim:3@model.py:41`.

        Args:
          kind: the first word of the name.
          source: the source line of the node, or "".
        """
        suffix = f"@{own_line(source)}" if source else ""
        while True:
            number = self._counts[kind, suffix] = self._counts.get((kind, suffix), 0) + 1
            name = f"{kind}:{number}{suffix}"
            if name not in self._names:
                self._names.add(name)
                return name

    def _regions(self) -> tuple[tuple[Region, ...], dict[int, int]]:
        """Return the regions of the new graph, and their new index by their old index.

        A body stays if its call is live, even if it is empty. A remat span stays if it has nodes.
        """
        old, kept_regions = self.old, []
        for region in old.regions:
            # A live call refers to its bodies by number, so that even an empty body stays. A remat
            # span has no call and disappears with its last node.
            has_live_call = region.node is None or self.live[region.node]
            new_nodes = [i for n in region.nodes if self.live[n] for i in self.node_of[n]]
            if region.index == 0 or (has_live_call and (new_nodes or region.node is not None)):
                kept_regions.append((region, tuple(new_nodes)))
        region_of = {region.index: i for i, (region, _) in enumerate(kept_regions)}
        # `region_of` must be complete first: a region refers to its parent by number.
        return tuple(self._region(*pair, region_of) for pair in kept_regions), region_of

    def _region(self, region: Region, nodes: tuple[int, ...], region_of: dict[int, int]) -> Region:
        """Return a region of the old graph with the new indices of nodes, values and regions.

        Args:
          nodes: the new node indices of the region.
          region_of: the new region index by the old one.
        """
        return replace(
            region,
            index=region_of[region.index],
            parent=None if region.parent is None else region_of[region.parent],
            # If several nodes replace the call, the last one is the call.
            node=None if region.node is None else self.node_of[region.node][-1],
            arguments=tuple(self.value_of[v] for v in region.arguments),
            results=tuple(self.value_of[v] for v in region.results),
            nodes=nodes,
        )


def replace_operands(signature: Signature, types: tuple[ValueType, ...]) -> Signature:
    """Return the signature with other operand types."""
    return Signature(signature.primitive, signature.params, types, signature.results)
