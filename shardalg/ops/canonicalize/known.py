"""What is known of a graph's values without running it: numbers, vectors of them, fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardalg.graph.ir import Graph, Node
from shardalg.ops.canonicalize.fold import folded, numbers


@dataclass(frozen=True)
class Known:
    """The known values of one graph."""

    graph: Graph

    @cached_property
    def numbers(self) -> Mapping[int, np.ndarray]:
        """Values of rank 0."""
        return dict(numbers(self.graph)) | folded(self.graph)

    @cached_property
    def arrays(self) -> Mapping[int, object]:
        """Constants of any rank."""
        return dict(self.graph.constants)

    def vector(self, value: int) -> tuple[int, ...] | None:
        """The integers of a value of rank 1, such as `[1, 0]`; None where they are not known."""
        value = self._outermost(value)
        if value in self.arrays:
            return tuple(int(n) for n in np.asarray(self.arrays[value]))
        node = self._producer(value)
        if node is None:
            return None
        if node.primitive == "broadcast_in_dim" and node.operands[0] in self.numbers:
            number = int(self.numbers[node.operands[0]])
            return (number,) * node.signature.results[0].shape[0]
        if node.primitive != "concatenate":
            return None
        parts = [part for v in node.operands if (part := self.vector(v)) is not None]
        return tuple(n for p in parts for n in p) if len(parts) == len(node.operands) else None

    def integers(self, values: Sequence[int]) -> list[int] | None:
        """The integers that scalars are; None where one of them is not known."""
        found = [n for n in map(self.number, values) if n is not None]
        return list(map(int, found)) if len(found) == len(values) else None

    def fill(self, value: int, region: int) -> int | None:
        """The number that a value read in a region repeats everywhere; None if it is none there.

        One that is made around a loop, and is a constant of it, repeats a literal number. Keys are
        none: JAX pads no array of them.
        """
        if self.graph.values[value].type.dtype.startswith("key<"):
            return None
        node = self._producer(self._outermost(value))
        if node is None or node.primitive != "broadcast_in_dim" or node.signature.operands[0].shape:
            return None
        (number,) = node.operands
        return number if node.region == region or number in self.numbers else None

    def number(self, value: int) -> np.ndarray | None:
        """What a value of rank 0 is, also inside of a loop of which it is a constant."""
        return self.numbers.get(self._outermost(value))

    def same(self, one: int, other: int) -> bool:
        """Whether two values of rank 0 are one number, bit for bit."""
        if one == other:
            return True
        pair = self.number(one), self.number(other)
        if pair[0] is None or pair[1] is None:
            return False
        return pair[0].dtype == pair[1].dtype and pair[0].tobytes() == pair[1].tobytes()

    @cached_property
    def _entering(self) -> Mapping[int, int]:
        """Arguments of bodies that are constants of their calls, and what these are outside."""
        arguments = self.graph.region_arguments
        return {tie.target: tie.source for tie in arguments if tie.kind == "const"}

    def _outermost(self, value: int) -> int:
        while value in self._entering:
            value = self._entering[value]
        return value

    def _producer(self, value: int) -> Node | None:
        producer = self.graph.producer[value]
        return None if producer is None else self.graph.nodes[producer]
