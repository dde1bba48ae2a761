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
        found = [self.numbers[v] for v in values if v in self.numbers]
        return list(map(int, found)) if len(found) == len(values) else None

    def fill(self, value: int, region: int) -> int | None:
        """The number that a value made in a region repeats everywhere; None if it is none."""
        node = self._producer(value)
        if node is None or node.primitive != "broadcast_in_dim" or node.region != region:
            return None
        return None if node.signature.operands[0].shape else node.operands[0]

    def same(self, one: int, other: int) -> bool:
        """Whether two values of rank 0 are one number, bit for bit."""
        if one == other:
            return True
        pair = self.numbers.get(one), self.numbers.get(other)
        if pair[0] is None or pair[1] is None:
            return False
        return pair[0].dtype == pair[1].dtype and pair[0].tobytes() == pair[1].tobytes()

    def _producer(self, value: int) -> Node | None:
        producer = self.graph.producer[value]
        return None if producer is None else self.graph.nodes[producer]
