"""The program under construction: locals, the current block, the layouts at hand of each value."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph, Node
from shardalg.partition.padding import padded_move
from shardalg.partition.reshard import reshard_path
from shardalg.spmd.program import COLLECTIVES, Attributes, Instruction, Local


@dataclass(frozen=True, slots=True)
class Held:
    """One layout of a value that some local holds, and the phase that made it."""

    layout: Sharding
    local: int
    phase: str


@dataclass(frozen=True, slots=True)
class Cause:
    """Whom an instruction is for: node, phase, role of what moves, the reason in words."""

    node: int | None
    phase: str = "forward"
    role: str = "unknown"
    why: str = ""


@dataclass
class PartitionContext:
    """Builds one block at a time; loop bodies open a nested block over the same locals.

    Attributes:
      held: per graph value, the layouts at hand in the current block; the first is its home.
      outputs: values that leave a region, and so must come home.
      keep_gathers: whether a gathered copy made in one phase may serve another.
    """

    graph: Graph
    roles: tuple[str, ...]
    keep_gathers: bool = False
    locals: list[Local] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    held: dict[int, list[Held]] = field(default_factory=dict)
    outputs: frozenset[int] = frozenset()

    def new_local(
        self, shape: tuple[int, ...], dtype: str, sharding: Sharding, origin: int | None = None
    ) -> int:
        """Add a local value; its index."""
        self.locals.append(Local(len(self.locals), shape, dtype, sharding, origin))
        return len(self.locals) - 1

    def emit(
        self,
        attributes: Attributes,
        operands: tuple[int, ...],
        results: tuple[int, ...],
        cause: Cause,
    ) -> None:
        """Append an instruction to the current block."""
        self.instructions.append(
            Instruction(
                attributes, operands, results, cause.node, cause.phase, cause.role, cause.why
            )
        )

    def hold(self, value: int, layout: Sharding, local: int, phase: str) -> None:
        """Remember that `local` is `value` in `layout`."""
        self.held.setdefault(value, []).append(Held(layout, local, phase))

    def sources(self, value: int) -> tuple[Sharding, ...]:
        """Layouts in which `value` is at hand for any phase: its home, and as it was made."""
        return tuple(h.layout for h in self.held[value] if h.phase == "")

    def find(self, value: int, layout: Sharding, phase: str) -> int | None:
        """A local that holds `value` in `layout` and may serve `phase`."""
        for held in self.held[value]:
            shared = self.keep_gathers or held.phase in ("", phase)
            if held.layout is layout and shared:
                return held.local
        for held in self.held[value]:
            shared = self.keep_gathers or held.phase in ("", phase)
            if held.layout == layout and shared:
                return held.local
        return None

    def demand(self, value: int, layout: Sharding, cause: Cause) -> int:
        """A local with `value` in `layout`, moved there from the nearest layout at hand."""
        found = self.find(value, layout, cause.phase)
        if found is not None:
            return found
        at_hand = [h for h in self.held[value] if h.phase == ""]
        nearest = min(at_hand, key=lambda h: reshard_path(h.layout, layout).wire_elements)
        local = self.move(
            nearest.local, nearest.layout, layout, replace(cause, role=self.roles[value])
        )
        self.hold(value, layout, local, cause.phase)
        return local

    def move(self, local: int, source: Sharding, target: Sharding, cause: Cause) -> int:
        """Emit the steps from `source` to `target`; the local that holds the result."""
        for step in reshard_path(source, target).steps:
            local = self.step(local, source, step.attributes, (step.layout, cause))
            source = step.layout
        return local

    def step(
        self, local: int, source: Sharding, attributes: Attributes, after: tuple[Sharding, Cause]
    ) -> int:
        """One move with the padding and stripping that uneven sizes need around it."""
        layout, cause = after
        if isinstance(attributes, COLLECTIVES):
            cause = replace(cause, why=f"{cause.why}: {source.text()} to {layout.text()}")
        for move, shape in padded_move(self.locals[local].shape, source, attributes, layout):
            before = self.locals[local]
            made = self.new_local(shape, before.dtype, layout, before.origin)
            self.emit(move, (local,), (made,), cause)
            local = made
        return local

    def role(self, value: int) -> str:
        """Role of a graph value."""
        return self.roles[value]

    def cause(self, node: Node, why: str) -> Cause:
        """The cause of what is emitted for `node`."""
        return Cause(node.index, node.phase, "unknown", why)
