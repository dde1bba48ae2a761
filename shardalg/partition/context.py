"""The program under construction: locals, the current block, the layouts at hand of each value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph, Node
from shardalg.partition.layouts import whole
from shardalg.partition.links import Links
from shardalg.partition.padding import padded_move
from shardalg.partition.reshard import nearest, reshard_path
from shardalg.propagate.strategy import Options
from shardalg.spmd.program import COLLECTIVES, Attributes, Instruction, Local

ANY_PHASE = ""
"""Mark of a layout that every phase may use: the value's home, and as it was made."""


class Cause(NamedTuple):
    """Whom an instruction is for: node, phase, role of what moves, the reason in words."""

    node: int | None
    phase: str = "forward"
    role: str = "unknown"
    why: str = ""


class Move(NamedTuple):
    """One instruction on the way between two layouts, and what it leaves."""

    attributes: Attributes
    shape: tuple[int, ...]
    layout: Sharding
    why: str


@lru_cache(maxsize=1 << 16)
def moves(source: Sharding, target: Sharding, links: Links | None = None) -> tuple[Move, ...]:
    """The cheapest path, with the padding and stripping that uneven sizes need around its steps."""
    found: list[Move] = []
    shape = source.shard_shape
    for step in reshard_path(source, target, links).steps:
        moving = isinstance(step.attributes, COLLECTIVES)
        why = f": {source.text()} to {step.layout.text()}" if moving else ""
        for attributes, after, layout in padded_move(shape, source, step.attributes, step.layout):
            found.append(Move(attributes, after, layout, why))
            shape = after
        source = step.layout
    return tuple(found)


@dataclass
class PartitionContext:
    """Builds one block at a time; loop bodies open a nested block over the same locals.

    Attributes:
      sources: per graph value, the layouts at hand for any phase; the first is its home.
      copies: (value, layout, phase) to the local that holds it in the current block.
      fetched: (instruction, what it was run on, phase) to what was fetched of neighbours' blocks.
      outputs: values that leave a region, and so must come home.
      remade: values made from numbers alone, and how to make them in another layout.
      options: whether copies are shared, within a phase and beyond it.
      kept: values, each with a layout, whose copy made in one phase may serve another.
      links: of the mesh's axes, where they differ and paths heed that.
    """

    graph: Graph
    roles: tuple[str, ...]
    options: Options = field(default_factory=Options)
    kept: frozenset[tuple[int, Sharding]] = frozenset()
    links: Links | None = None
    locals: list[Local] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    sources: dict[int, tuple[Sharding, ...]] = field(default_factory=dict)
    copies: dict[tuple[int, Sharding, str], int] = field(default_factory=dict)
    fetched: dict[object, tuple[int, ...]] = field(default_factory=dict)
    outputs: frozenset[int] = frozenset()
    remade: dict[int, Callable[[Sharding, Cause], int]] = field(default_factory=dict)

    def new_local(
        self, shape: tuple[int, ...], dtype: str, sharding: Sharding, origin: int | None = None
    ) -> int:
        """Add a local value; its index."""
        index = len(self.locals)
        self.locals.append(Local(index, shape, dtype, sharding, origin))
        return index

    def emit(
        self,
        attributes: Attributes,
        operands: tuple[int, ...],
        results: tuple[int, ...],
        cause: Cause,
    ) -> None:
        """Append an instruction to the current block."""
        self.instructions.append(Instruction(attributes, operands, results, *cause))

    def hold(self, value: int, layout: Sharding, local: int) -> None:
        """`local` is `value` in `layout`, for any phase."""
        known = self.sources.get(value)
        self.sources[value] = (layout,) if known is None else (*known, layout)
        self.copies[value, layout, ANY_PHASE] = local

    def hold_remade(self, value: int, make: Callable[[Sharding, Cause], int]) -> None:
        """`value` can be had in every layout for nothing, as a slice of the whole would be."""
        home = self.sources[value][0]
        self.remade[value] = make
        self.sources[value] = (home, whole(home))

    def given(self, value: int, layout: Sharding) -> int:
        """A new local that holds `value` from the start of the current block."""
        dtype = self.graph.values[value].type.dtype
        local = self.new_local(layout.shard_shape, dtype, layout, value)
        self.hold(value, layout, local)
        return local

    def demand(self, value: int, layout: Sharding, cause: Cause) -> int:
        """A local with `value` in `layout`, moved there from the nearest layout at hand."""
        found = self.copies.get((value, layout, ANY_PHASE))
        if found is None:
            keeps = self.options.keep_gathers is True or (value, layout) in self.kept
            phase = ANY_PHASE if keeps else cause.phase
            found = self.copies.get((value, layout, phase))
            if found is None or not self.options.share_gathers:
                found = self._bring(value, layout, cause)
                self.copies[value, layout, phase] = found
        return found

    def _bring(self, value: int, layout: Sharding, cause: Cause) -> int:
        if value in self.remade:
            return self.remade[value](layout, cause._replace(role=self.roles[value]))
        source = nearest(self.sources[value], layout, self.links)
        local = self.copies[value, source, ANY_PHASE]
        return self.move(local, source, layout, cause._replace(role=self.roles[value]))

    def move(self, local: int, source: Sharding, target: Sharding, cause: Cause) -> int:
        """Emit the steps from `source` to `target`; the local that holds the result."""
        dtype, origin = self.locals[local].dtype, self.locals[local].origin
        for attributes, shape, layout, why in moves(source, target, self.links):
            made = self.new_local(shape, dtype, layout, origin)
            self.emit(attributes, (local,), (made,), cause._replace(why=cause.why + why))
            local = made
        return local

    def cause(self, node: Node, why: str) -> Cause:
        """The cause of what is emitted for `node`."""
        return Cause(node.index, node.phase, "unknown", why)
