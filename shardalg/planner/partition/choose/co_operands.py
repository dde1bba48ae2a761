"""Products of the backward pass whose results meet forward values that have another sharding.

Completion shards a result from the operands of its own operator. The gradient of an activation is
read together with a value of the forward pass, which may have another sharding. With parameters
sharded along the batch's axis (FSDP):

    h = relu(x @ w1);  y = h @ w2          x: [B on data, D];  w2: [F on data, D]
    dh = dy @ w2.T                         [B, F on data]: completed from the weight w2
    dh * relu'(x @ w1)                     [B on data, F]: the sharding of the forward value

One of the two values is moved, whichever sharding the product computes. The product's own choice
counts the move to the completed sharding alone. It would gather the activation `dy`, and its reader
would move dh or the forward value. Here the shardings are compared with the bytes that the
readers send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from shardalg.algebra.derived_layouts import interned
from shardalg.algebra.sharding import Sharding
from shardalg.costs.compute import contracts
from shardalg.graph.ir import Graph, Node
from shardalg.graph.ops.rows import rules
from shardalg.planner.partition.choose.component import components
from shardalg.planner.partition.choose.key import Choice, NodeKey, Weighed, cost_weights
from shardalg.planner.partition.choose.node_classes import elementwise, remade_values
from shardalg.planner.partition.choose.node_plan import node_plan
from shardalg.planner.partition.choose.sent import sent_bytes
from shardalg.planner.reshard.paths import reshard_price
from shardalg.sizes.recorded import first_least

KeyOf = Callable[[Node, int, Sharding], NodeKey]
"""Returns the inputs of the choice at a node, with the given sharding of one value."""


@dataclass(frozen=True)
class Meeting:
    """A product's result that its readers read together with forward values.

    Attributes:
      node: the product.
      value: its result.
      readers: the nodes that read the result.
      shardings: the shardings to compare: first those of the forward values, then the completed.
    """

    node: Node
    value: int
    readers: tuple[Node, ...]
    shardings: tuple[Sharding, ...]

    def cheapest(self, key: KeyOf) -> Sharding:
        """Return the sharding of the result for which the product and its readers take least time.

        Forward values have precedence if times are equal: later products of the backward pass read
        these values, too.

        Args:
          key: a function from (node, value, sharding of the value) to the inputs of a decision.
        """
        # The choice at the product for each candidate sharding of its result.
        keys = [key(self.node, self.value, sharding) for sharding in self.shardings]
        choices = [node_plan(node_key).choice for node_key in keys]

        def time(number: int) -> tuple[Any, ...]:
            """Return the time of candidate `number`, as a tuple that is compared."""
            # The bytes of the readers depend on the sharding in which they find the result.
            sent = _sent_bytes(keys[number], choices[number])
            for reader in self.readers:
                reader_key = key(reader, self.value, self.shardings[number])
                sent += _sent_bytes(reader_key, node_plan(reader_key).choice)
            return (cost_weights(keys[number]).time(choices[number], sent),)

        def comparison(best: int, other: int) -> Weighed:
            """Return the record of two compared candidates, for explanations of the plan."""
            return Weighed(choices[best], choices[other], "time")

        ranks = [partial(time, number) for number in range(len(keys))]
        # The lower bound 0 excludes no candidate; the first one wins ties.
        bounds = [lambda: 0] * len(keys)
        return self.shardings[first_least(keys[0].numbers, bounds, ranks, comparison)]


def _sent_bytes(key: NodeKey, choice: Choice) -> Any:
    return sent_bytes(key, choice, partial(reshard_price, padded=key.padded))


def meetings(graph: Graph, shardings: Sequence[Sharding]) -> Iterator[Meeting]:
    """Yield the products of the backward pass whose results meet forward values sharded otherwise.

    A result is left out if it is returned, or if a reader is neither elementwise nor a product.

    Args:
      shardings: per value, its completed sharding.
    """
    # Values that are computed from numbers alone have every sharding at no cost.
    remade = remade_values(graph)
    returned = {*graph.results, *(v for region in graph.regions for v in region.results)}
    for node in graph.nodes:
        value = node.results[0] if len(node.results) == 1 else None
        if node.phase != "backward" or value is None or value in returned:
            continue
        readers = tuple(graph.nodes[user] for user in dict.fromkeys(graph.users[value]))
        if not readers or not contracts(node.signature) or shardings[value].unreduced:
            continue
        if not all(_is_plain(reader) and reader.region == node.region for reader in readers):
            continue
        # The shardings that the result would have beside each forward value that a reader reads. A
        # dictionary keeps their order and has each once.
        candidates: dict[Sharding, None] = {}
        for reader in readers:
            for other in reader.operands:
                if other not in remade and _is_forward(graph, other):
                    for sharding in _sharding_at(reader, value, other, shardings):
                        if sharding != shardings[value]:
                            candidates[sharding] = None
        if candidates:
            yield Meeting(node, value, readers, (*candidates, shardings[value]))


def _is_plain(reader: Node) -> bool:
    """Return whether a node is elementwise or a product, with one row of RULES."""
    rows = rules(reader.signature) if not reader.bodies else None
    known = rows is not None and len(rows) == 1
    return known and (elementwise(reader.signature) or contracts(reader.signature))


def _is_forward(graph: Graph, value: int) -> bool:
    """Return whether a value is an argument or is computed in the forward pass."""
    producer = graph.producer[value]
    return producer is None or graph.nodes[producer].phase == "forward"


def _sharding_at(
    reader: Node, value: int, other: int, shardings: Sequence[Sharding]
) -> Iterator[Sharding]:
    """Yield the sharding in which a reader has a value if its loops are sharded as another operand.

    Nothing is yielded if that shards no dimension of the value.
    """
    (component,) = components(rules(reader.signature) or ())
    tensor_of = {tensor.operand: tensor for tensor in component.tensors}
    other_tensor = tensor_of[reader.operands.index(other)]
    value_tensor = tensor_of[reader.operands.index(value)]
    # The other operand gives its digits to the loops of its dimensions. Dimensions of several loops
    # are left out: a part of one has no digits of its own.
    pairs = zip(other_tensor.dims, shardings[other].dims, strict=True)
    assigned = {loops[0][0]: digits for loops, digits in pairs if len(loops) == 1}
    dims = tuple(
        [assigned.get(loops[0][0], ()) if len(loops) == 1 else () for loops in value_tensor.dims]
    )
    if any(dims) and other != value and not shardings[other].unreduced:
        like = shardings[value]
        yield interned(like.mesh, like.shape, dims, ())
