"""The program under construction: locals, the current block, the layouts at hand of each value.

The program under construction as a list: locals and the instructions that make them.

With `context` this is all of the package that writes instructions; what they are is decided before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from shardalg.algebra.derived_layouts import whole
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import ITEM_SIZES, Graph, Node
from shardalg.planner.partition.choose.node_classes import Copied
from shardalg.planner.partition.partition_options import PartitionOptions
from shardalg.planner.reshard.exchanges import DimProgram, DimStep, Retile, retiled
from shardalg.planner.reshard.links import Links
from shardalg.planner.reshard.path_instructions import moves
from shardalg.planner.reshard.paths import nearest, turned
from shardalg.spmd.instruction import UNSTATED, Attributes, Instruction, Why
from shardalg.spmd.instructions import Slice
from shardalg.spmd.local import Local

ANY_PHASE = ""
"""Mark of a layout that every phase may use: the value's home, and as it was made."""


class Cause(NamedTuple):
    """Whom an instruction is for: node, phase, role of what moves, what for."""

    node: int | None
    phase: str = "forward"
    role: str = "unknown"
    why: Why = UNSTATED


@dataclass
class BlockListing:
    """Locals and instructions of the current block; what is built is a `PartitionContext`.

    Attributes:
      fetched: (instruction, what it was run on, phase) to what was fetched of neighbours' blocks.
      options: whether copies are shared, within a phase and beyond it.
    """

    graph: Graph
    roles: tuple[str, ...]
    options: PartitionOptions = field(default_factory=PartitionOptions)
    locals: list[Local] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    fetched: dict[object, tuple[int, ...]] = field(default_factory=dict)

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

    def made_along(
        self, dim: int, step: DimStep, operands: tuple[int, ...], cause: Cause
    ) -> tuple[int, ...]:
        """The results of a step on locals, as the first of them but along one dimension."""
        like = self.locals[operands[0]]
        shapes = [(*like.shape[:dim], size, *like.shape[dim + 1 :]) for size in step.sizes]
        made = tuple([self.new_local(s, like.dtype, like.sharding) for s in shapes])
        self.emit(step.attributes, operands, made, cause)
        return made

    def run_along(
        self, program: DimProgram, inputs: tuple[int, ...], cause: Cause
    ) -> tuple[int, ...]:
        """The results of a program along one dimension of locals."""
        values = list(inputs)
        for step in program.steps:
            operands = tuple([values[number] for number in step.operands])
            made = self._fetched if step.places else self.made_along
            values += made(program.dim, step, operands, cause)
        return tuple([values[number] for number in program.results])

    def _fetched(
        self, dim: int, step: DimStep, operands: tuple[int, ...], cause: Cause
    ) -> tuple[int, ...]:
        """The results of a fetch of some places of locals, which is made once.

        A margin outlives its phase: it is smaller than the blocks, which whoever reads it again
        needs anyway. What is as large as the blocks is a copy, and kept as copies are.
        """
        known, options = self.fetched, self.options
        sizes = {local: self.locals[local].shape[dim] for local in operands}
        keeps = sum(step.sizes) < sum(sizes.values()) or options.keep_gathers
        places = tuple(zip(operands, step.places, strict=True))
        key = (step.attributes, places, ANY_PHASE if keeps else cause.phase)
        if key not in known or not options.share_gathers:
            cut = tuple([self._places(dim, *place, cause) for place in places])
            known[key] = self.made_along(dim, step, cut, cause)
        return known[key]

    def _places(self, dim: int, local: int, places: tuple[int, int], cause: Cause) -> int:
        """Places `[lower, upper)` of a local: itself, if these are all."""
        lower, upper = places
        if places == (0, self.locals[local].shape[dim]):
            return local
        cut = DimStep(Slice(dim, lower, upper - lower), (), (upper - lower,))
        return self.made_along(dim, cut, (local,), cause)[0]


UNMADE = -1
"""The local of a value that no instruction has made yet."""


@dataclass
class Tuples:
    """Tuples of layouts, each with a number: alike are those of one number."""

    known: list[tuple[Sharding, ...]] = field(default_factory=list)
    numbers: dict[tuple[Sharding, ...], int] = field(default_factory=dict)

    def number(self, layouts: tuple[Sharding, ...]) -> int:
        """The number of a tuple."""
        found = self.numbers.get(layouts)
        if found is None:
            found = self.numbers[layouts] = len(self.known)
            self.known.append(layouts)
        return found


@dataclass
class PartitionContext(BlockListing):
    """Builds one block; a loop body has a context of its own (`inside`).

    Attributes:
      tuples: layouts that a value is at hand in, the first as it was made or brought home, copies
        of the phase behind: each tuple has a number.
      at_hand: per graph value, that number; of a value not made yet, that of its home.
      first: per graph value, the local that holds it in the first of its layouts;
        `UNMADE` before there is one.
      copies: (value, layout, phase) to the local that holds it in another one, in the current
        block.
      brought: (value, phase) to the layouts of its copies there.
      phase: of what is emitted; lasting: what is at hand in every phase of values with copies.
      deferrable: values whose partial sums may wait for whoever reads them.
      remade: values made from numbers alone, and how to make them in another layout.
      again: (value, layout) at hand that no instruction has made yet, and how to make it.
      repeat: makes a value again in a layout, from a smaller one that it repeats, where that sends
        less than moving it; else None.
      kept: values, each with a layout, whose copy made in one phase may serve another.
      links: of the mesh's axes, where they differ and paths heed that.
    """

    kept: frozenset[tuple[int, Sharding]] = frozenset()
    links: Links | None = None
    tuples: Tuples = field(default_factory=Tuples)
    available: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    copies: dict[tuple[int, Sharding, str], int] = field(default_factory=dict)
    brought: dict[tuple[int, str], list[Sharding]] = field(default_factory=dict)
    phase: str = "forward"
    lasting: dict[int, int] = field(default_factory=dict)
    deferrable: frozenset[int] = frozenset()
    remade: dict[int, Callable[[Sharding, Cause], int]] = field(default_factory=dict)
    again: dict[tuple[int, Sharding], Callable[[Sharding, Cause], int]] = field(
        default_factory=dict
    )
    repeat: Callable[[int, Sharding, Cause], int | None] = lambda value, layout, cause: None

    def inside(
        self, locals_: list[Local], available: list[int], first: list[int]
    ) -> PartitionContext:
        """Return the context of a body, in which only these values are at hand."""
        return PartitionContext(
            self.graph, self.roles, self.options, locals_, kept=self.kept, links=self.links,
            tuples=self.tuples, available=list(available), first=list(first), phase=self.phase,
            deferrable=self.deferrable,
        )  # fmt: skip

    def hold(self, value: int, layout: Sharding, local: int) -> None:
        """`local` is `value` in `layout`, for any phase."""
        if self.first[value] == UNMADE:
            self.available[value], self.first[value] = self.tuples.number((layout,)), local
        else:
            self.available[value] = self.tuples.number((*self.sources(value), layout))
            self.copies[value, layout, ANY_PHASE] = local

    def sources(self, value: int) -> tuple[Sharding, ...]:
        """The layouts that a value is at hand in."""
        return self.tuples.known[self.available[value]]

    def lasting_sources(self, value: int) -> tuple[Sharding, ...]:
        """The layouts that a value is at hand in for any phase."""
        return self.tuples.known[self.lasting.get(value, self.available[value])]

    def hold_remade(self, value: int, make: Callable[[Sharding, Cause], int]) -> None:
        """`value` can be had in every layout for nothing, as a slice of the whole would be."""
        result_sharding = self.sources(value)[0]
        self.remade[value] = make
        self.available[value] = self.tuples.number((result_sharding, whole(result_sharding)))

    def hold_again(
        self, value: int, layout: Sharding, make: Callable[[Sharding, Cause], int]
    ) -> None:
        """`value` can be had in one layout more for nothing; it is made where it is read."""
        self.again[value, layout] = make
        self._add(value, layout)

    def given(self, value: int, layout: Sharding) -> int:
        """A new local that holds `value` from the start of the current block."""
        dtype = self.graph.values[value].type.dtype
        local = self.new_local(layout.shard_shape, dtype, layout, value)
        self.hold(value, layout, local)
        return local

    def enter(self, phase: str) -> None:
        """Go on with what is of this phase: copies made in another one are not at hand."""
        self.phase = phase
        for value, number in self.lasting.items():
            self.available[value] = number
            for layout in self.brought.get((value, phase), ()):
                self._add(value, layout)

    def _add(self, value: int, layout: Sharding) -> None:
        known = self.sources(value)
        if layout not in known:
            self.available[value] = self.tuples.number((*known, layout))

    def _share(self, value: int, layout: Sharding, phase: str) -> None:
        """A copy serves whoever comes next in its phase, and is at hand where that is chosen."""
        self.brought.setdefault((value, phase), []).append(layout)
        if phase != ANY_PHASE:
            self.lasting.setdefault(value, self.available[value])
        elif value in self.lasting:
            known = self.tuples.known[self.lasting[value]]
            self.lasting[value] = self.tuples.number((*known, layout))
        self._add(value, layout)

    def required(self, value: int, layout: Sharding, cause: Cause) -> int:
        """A local with `value` in `layout`, moved there from the nearest layout at hand."""
        if layout == self.sources(value)[0]:
            return self.first[value]
        if cause.phase != self.phase:
            self.enter(cause.phase)
        found = self.copies.get((value, layout, ANY_PHASE))
        if found is None:
            phase = ANY_PHASE if self._lasts(value, layout) else cause.phase
            found = self.copies.get((value, layout, phase))
            if found is None or not self.options.share_gathers:
                found = self._bring(value, layout, cause)
                self.copies[value, layout, phase] = found
                if self.options.share_gathers and not layout.unreduced:
                    self._share(value, layout, phase)
        return found

    def _lasts(self, value: int, layout: Sharding) -> bool:
        """Whether a copy made in one phase serves another.

        Freeing one that is no larger than the value where it lies frees no more than sending it
        on would have: only what is gathered is gathered again.
        """
        keeps = self.options.keep_gathers or (value, layout) in self.kept
        result_sharding = self.sources(value)[0]
        return keeps or prod(layout.shard_shape) <= prod(result_sharding.shard_shape)

    def _bring(self, value: int, layout: Sharding, cause: Cause) -> int:
        cause = Cause(cause.node, cause.phase, self.roles[value], cause.why)
        if value in self.remade:
            return self.remade[value](layout, cause)
        repeated = self.repeat(value, layout, cause)
        if repeated is not None:
            return repeated
        source, local = self._nearest(value, layout, cause)
        return self.move(local, source, layout, cause)

    def _nearest(self, value: int, layout: Sharding, cause: Cause) -> tuple[Sharding, int]:
        """The layout at hand from which another one is nearest."""
        links = self.links and self.links.of(self.graph.values[value].type.itemsize)
        source = nearest(self.sources(value), layout, links, padded=self.options.pad_blocks)
        if source == self.sources(value)[0]:
            return source, self.first[value]
        for phase in (ANY_PHASE, cause.phase):
            if (value, source, phase) in self.copies:
                return source, self.copies[value, source, phase]
        local = self.copies[value, source, cause.phase] = self.again[value, source](source, cause)
        return source, local

    def move(self, local: int, source: Sharding, target: Sharding, cause: Cause) -> int:
        """Emit the steps from `source` to `target`; the local that holds the result."""
        dtype, origin = self.locals[local].dtype, self.locals[local].origin
        links = self.links and self.links.of(ITEM_SIZES.get(dtype, 4))
        every = moves(source, target, links, self.options.pad_blocks)
        chain = len(self.locals)
        for attributes, shape, layout, path in every:
            # what is padded to another size is no layout of the value
            named = origin if layout.shape == target.shape else None
            because = Cause(cause.node, cause.phase, cause.role, cause.why.along(path, chain))
            if isinstance(attributes, Retile):
                program = retiled(attributes, source.mesh.size)
                (local,) = self.run_along(program, (local,), because)
                self.locals[local] = Local(local, shape, dtype, layout, named)
            else:
                made = self.new_local(shape, dtype, layout, named)
                self.emit(attributes, (local,), (made,), because)
                local = made
        return local

    def turn(self, local: int, target: Sharding, mesh: Mesh, cause: Cause) -> int:
        """The local as it lies in another order of the devices of the mesh: one permute."""
        held = self.locals[local]
        made = self.new_local(held.shape, held.dtype, target, held.origin)
        self.emit(turned(held.sharding, target, mesh), (local,), (made,), cause)
        return made

    def cause(self, node: Node, why: Why) -> Cause:
        """The cause of what is emitted for `node`."""
        return Cause(node.index, node.phase, "unknown", why)

    def repeated(self) -> Iterator[Copied]:
        """Copies that a finished run made once in every phase that wants them."""
        phases: dict[tuple[int, Sharding], set[str]] = {}
        for value, layout, phase in self.copies:
            if phase != ANY_PHASE:
                phases.setdefault((value, layout), set()).add(phase)
        for (value, layout), found in phases.items():
            if len(found) > 1 and value not in self.remade:
                known, padded = self.lasting_sources(value), self.options.pad_blocks
                links = self.links and self.links.of(self.graph.values[value].type.itemsize)
                result_sharding = nearest(known, layout, links, padded=padded)
                yield Copied(value, result_sharding, layout, "keep_gathers", len(found), 1)
