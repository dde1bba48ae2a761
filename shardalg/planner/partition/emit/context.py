"""The program under construction: local values, the current block, and the available copies.

A local value is one device's block of a graph value. An available copy is a sharding in which the
devices hold a graph value already, or can compute it again without communication.
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
from shardalg.planner.reshard.exchanges import DimProgram, DimStep, Retile, retile_program
from shardalg.planner.reshard.links import Links
from shardalg.planner.reshard.path_instructions import moves
from shardalg.planner.reshard.paths import nearest, order_permute
from shardalg.spmd.instruction import UNSTATED, Attributes, Instruction, Why
from shardalg.spmd.instructions import Slice
from shardalg.spmd.local import Local

# Copies that every phase may read have this in place of a phase, so that the keys of `copies` and
# `fetched` have one form.
ANY_PHASE = ""


class Cause(NamedTuple):
    """The reason for an instruction, which reports show.

    Attributes:
      node: the number of the graph node that needs the instruction, or None.
      phase: "forward", "backward" or "update".
      role: the role of the moved value, such as "weight".
      why: the purpose of the instruction.
    """

    node: int | None
    phase: str = "forward"
    role: str = "unknown"
    why: Why = UNSTATED


@dataclass
class BlockListing:
    """The local values and instructions of the block under construction.

    `PartitionContext`, the only subclass, adds the available copies.

    Attributes:
      roles: per graph value, its role in reports ("weight").
      options: whether copies are shared within a phase, and between phases.
      locals: all local values of the program; an index in this list is a local value's number.
      instructions: the instructions of the block so far.
      fetched: a cache of halos. The key is (instruction, operands with their ranges, phase), the
        value the numbers of the local values that hold the halos.
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
        """Add a local value and return its number.

        Args:
          shape: the shape of one device's block.
          origin: the graph value that it is a copy of, or None.
        """
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

    def emit_step(
        self, dim: int, step: DimStep, operands: tuple[int, ...], cause: Cause
    ) -> tuple[int, ...]:
        """Emit one step of a dimension program and return the numbers of its results.

        A step changes the size of dimension `dim` only. Its results have the type and the other
        dimensions of the first operand.
        """
        like = self.locals[operands[0]]
        shapes = [(*like.shape[:dim], size, *like.shape[dim + 1 :]) for size in step.sizes]
        made = tuple([self.new_local(s, like.dtype, like.sharding) for s in shapes])
        self.emit(step.attributes, operands, made, cause)
        return made

    def run_along(
        self, program: DimProgram, inputs: tuple[int, ...], cause: Cause
    ) -> tuple[int, ...]:
        """Emit the steps of a dimension program and return the numbers of its results.

        A dimension program is a list of instructions along one dimension, on numbered values.

        Args:
          inputs: the local values that the program reads.
        """
        # Inputs are the first values of a program; each step appends its results. A step with
        # `places` fetches halos, which other readers may have fetched before.
        values = list(inputs)
        for step in program.steps:
            operands = tuple([values[number] for number in step.operands])
            made = self._with_halos if step.places else self.emit_step
            values += made(program.dim, step, operands, cause)
        return tuple([values[number] for number in program.results])

    def _with_halos(
        self, dim: int, step: DimStep, operands: tuple[int, ...], cause: Cause
    ) -> tuple[int, ...]:
        """Return local values with ranges of operands that neighbours send (halos).

        Equal halos that were received before are returned again if they may be shared. Otherwise
        `step` is emitted.

        Args:
          dim: the dimension.
          step: the halo exchange, with the range that it needs of each operand.
        """
        known, options = self.fetched, self.options
        # A halo serves all phases: it is smaller than the blocks, which its readers need anyway. A
        # fetch as large as the blocks is a copy, and its lifetime is that of copies (`required`).
        sizes = {local: self.locals[local].shape[dim] for local in operands}
        keeps = sum(step.sizes) < sum(sizes.values()) or options.keep_gathers
        places = tuple(zip(operands, step.places, strict=True))
        key = (step.attributes, places, ANY_PHASE if keeps else cause.phase)
        if key not in known or not options.share_gathers:
            cut = tuple([self._slice(dim, *place, cause) for place in places])
            known[key] = self.emit_step(dim, step, cut, cause)
        return known[key]

    def _slice(self, dim: int, local: int, places: tuple[int, int], cause: Cause) -> int:
        """Return a local value with the elements `[lower, upper)` of `local` along a dimension.

        It is `local` itself if these are all elements; otherwise a slice is emitted.
        """
        lower, upper = places
        if places == (0, self.locals[local].shape[dim]):
            return local
        cut = DimStep(Slice(dim, lower, upper - lower), (), (upper - lower,))
        return self.emit_step(dim, cut, (local,), cause)[0]


UNMADE = -1
"""The entry of `PartitionContext.first` for a graph value that no instruction has computed yet."""


@dataclass
class Tuples:
    """A table that numbers tuples of shardings, so that they are compared as integers.

    Attributes:
      known: the tuples; a tuple's index is its number.
      numbers: the number of each tuple.
    """

    known: list[tuple[Sharding, ...]] = field(default_factory=list)
    numbers: dict[tuple[Sharding, ...], int] = field(default_factory=dict)

    def number(self, layouts: tuple[Sharding, ...]) -> int:
        """Return the number of a tuple of shardings; a new tuple is added to the table."""
        found = self.numbers.get(layouts)
        if found is None:
            found = self.numbers[layouts] = len(self.known)
            self.known.append(layouts)
        return found


@dataclass
class PartitionContext(BlockListing):
    """The builder of one block, with the available copies of all graph values.

    A loop body has a context of its own (`inside`).

    Attributes:
      tuples: numbers the tuples of shardings in which values are available. The first sharding of a
        tuple is the one in which the value was computed or placed; copies of the current phase come
        last.
      available: per graph value, the number of the tuple of its available shardings. Before the
        value is computed, it is the tuple of its completed sharding.
      first: per graph value, the local value that holds its first copy; `UNMADE` before.
      copies: the local value of every other copy in the block, by (value, sharding, phase).
      shared: the shardings of the copies that one phase made, by (value, phase).
      phase: the phase of the instructions that are being emitted.
      lasting: for values with copies of one phase only, the number of the tuple of shardings that
        every phase may read.
      deferrable: values whose partial sums may be deferred to their reader.
      remade: values that are computed from numbers alone, with the function that computes them
        again in a given sharding.
      again: copies that cost no communication and are computed when they are first read: by (value,
        sharding), the function that computes them.
      repeat: emits a broadcast again, if that sends less than moving its result; otherwise it
        returns None (`BodyPartitioner._repeat`).
      kept: (value, sharding) of copies that one phase makes and the other phases may read, too.
      links: the links of the mesh axes; None if they do not influence paths.
    """

    kept: frozenset[tuple[int, Sharding]] = frozenset()
    links: Links | None = None
    tuples: Tuples = field(default_factory=Tuples)
    available: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    copies: dict[tuple[int, Sharding, str], int] = field(default_factory=dict)
    shared: dict[tuple[int, str], list[Sharding]] = field(default_factory=dict)
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
        """Return the context of a loop's or branch's body, with an empty block.

        Args:
          locals_: the list to which the body appends its local values.
          available, first: the copies that the body may read, as in the attributes.
        """
        return PartitionContext(
            self.graph, self.roles, self.options, locals_, kept=self.kept, links=self.links,
            tuples=self.tuples, available=list(available), first=list(first), phase=self.phase,
            deferrable=self.deferrable,
        )  # fmt: skip

    def hold(self, value: int, layout: Sharding, local: int) -> None:
        """Record that the local value `local` is a copy of `value` that every phase may read."""
        if self.first[value] == UNMADE:
            self.available[value], self.first[value] = self.tuples.number((layout,)), local
        else:
            self.available[value] = self.tuples.number((*self.sources(value), layout))
            self.copies[value, layout, ANY_PHASE] = local

    def sources(self, value: int) -> tuple[Sharding, ...]:
        """Return the shardings in which a value is available without communication.

        The first one is the sharding of the first copy, in which the value was computed or placed.
        """
        return self.tuples.known[self.available[value]]

    def lasting_sources(self, value: int) -> tuple[Sharding, ...]:
        """Return the shardings in which every phase may read a value."""
        return self.tuples.known[self.lasting.get(value, self.available[value])]

    def hold_remade(self, value: int, make: Callable[[Sharding, Cause], int]) -> None:
        """Record that `make` computes `value` in any sharding without communication."""
        # Every sharding is a slice of the replicated value. So a replicated copy is recorded as
        # available, and choices of layouts count no communication for this value.
        result_sharding = self.sources(value)[0]
        self.remade[value] = make
        self.available[value] = self.tuples.number((result_sharding, whole(result_sharding)))

    def hold_again(
        self, value: int, layout: Sharding, make: Callable[[Sharding, Cause], int]
    ) -> None:
        """Record that `make` can compute `value` in `layout` without communication.

        The copy counts as available. It is emitted when it is first read.
        """
        self.again[value, layout] = make
        self._add_source(value, layout)

    def given(self, value: int, layout: Sharding) -> int:
        """Add a local value for an argument or constant of the current block; return its number."""
        dtype = self.graph.values[value].type.dtype
        local = self.new_local(layout.shard_shape, dtype, layout, value)
        self.hold(value, layout, local)
        return local

    def enter(self, phase: str) -> None:
        """Start a phase. Copies that other phases made for themselves are no longer available."""
        self.phase = phase
        # Copies of the earlier phase may be freed, so a later reader must not count on them.
        for value, number in self.lasting.items():
            self.available[value] = number
            # Earlier copies of the phase that starts are available again.
            for layout in self.shared.get((value, phase), ()):
                self._add_source(value, layout)

    def _add_source(self, value: int, layout: Sharding) -> None:
        known = self.sources(value)
        if layout not in known:
            self.available[value] = self.tuples.number((*known, layout))

    def _share(self, value: int, layout: Sharding, phase: str) -> None:
        """Record that readers of a phase (`ANY_PHASE`: of all) may use a copy in `layout`.

        A phase is the forward pass, the backward pass or the update of a training step. Copies of a
        phase are freed at its end.
        """
        self.shared.setdefault((value, phase), []).append(layout)
        # `lasting` has the copies that are left when the phase ends: those before its first copy.
        if phase != ANY_PHASE:
            self.lasting.setdefault(value, self.available[value])
        # A copy for every phase stays available when this phase ends.
        elif value in self.lasting:
            lasting_copies = self.tuples.known[self.lasting[value]]
            self.lasting[value] = self.tuples.number((*lasting_copies, layout))
        self._add_source(value, layout)

    def required(self, value: int, layout: Sharding, cause: Cause) -> int:
        """Return a local value that holds `value` in `layout`.

        If there is no such copy, instructions are emitted that move the nearest available copy, or
        that compute the value again.

        Args:
          value: index of the value in the graph. The result is a number of a device's block.
          cause: the reader, which explains the emitted instructions.
        """
        # The first source is the value as it was computed; most readers use it.
        if layout == self.sources(value)[0]:
            return self.first[value]
        # `copies` and `available` are those of one phase, so they are switched first.
        if cause.phase != self.phase:
            self.enter(cause.phase)
        found = self.copies.get((value, layout, ANY_PHASE))
        if found is None:
            # A copy that is no larger than the value itself serves all phases: freeing it saves too
            # little memory to send it again. Only gathered copies are gathered again.
            keeps = self.options.keep_gathers or (value, layout) in self.kept
            keeps = keeps or prod(layout.shard_shape) <= prod(self.sources(value)[0].shard_shape)
            phase = ANY_PHASE if keeps else cause.phase
            found = self.copies.get((value, layout, phase))
            if found is None or not self.options.share_gathers:
                found = self._copy(value, layout, cause)
                self.copies[value, layout, phase] = found
                # Partial sums are of no use to other readers.
                if self.options.share_gathers and not layout.unreduced:
                    self._share(value, layout, phase)
        return found

    def _copy(self, value: int, layout: Sharding, cause: Cause) -> int:
        """Emit a copy of `value` in `layout`: computed again if that is cheaper, else moved.

        Returns the number of the local value.
        """
        cause = Cause(cause.node, cause.phase, self.roles[value], cause.why)
        # A value of numbers alone (zeros, a mask) is computed in any sharding without a move.
        if value in self.remade:
            return self.remade[value](layout, cause)
        # A broadcast can be repeated in the new sharding. None if that is not possible or cheaper.
        repeated = self.repeat(value, layout, cause)
        if repeated is not None:
            return repeated
        source, local = self._nearest(value, layout, cause)
        return self.move(local, source, layout, cause)

    def _nearest(self, value: int, layout: Sharding, cause: Cause) -> tuple[Sharding, int]:
        """Return the available copy from which a move to `layout` sends fewest bytes.

        Returns its sharding and its local value.
        """
        # Links are None if all are equally fast.
        links = self.links and self.links.of(self.graph.values[value].type.itemsize)
        options, joined = self.options, self.options.join_gathers
        source = nearest(
            self.sources(value), layout, links, padded=options.pad_blocks, joined=joined
        )
        # The first source is the value as it was computed.
        if source == self.sources(value)[0]:
            return source, self.first[value]
        # A gathered copy serves one phase if it is freed at its end, otherwise all (`ANY_PHASE`).
        for phase in (ANY_PHASE, cause.phase):
            if (value, source, phase) in self.copies:
                return source, self.copies[value, source, phase]
        # A copy without communication may never be read, so it is computed at its first read.
        local = self.copies[value, source, cause.phase] = self.again[value, source](source, cause)
        return source, local

    def move(self, local: int, source: Sharding, target: Sharding, cause: Cause) -> int:
        """Emit the instructions that move a local value from one sharding to another.

        Returns the local value in `target`; `local` itself if the shardings are equal.
        """
        dtype, origin = self.locals[local].dtype, self.locals[local].origin
        links = self.links and self.links.of(ITEM_SIZES.get(dtype, 4))
        given = self.options
        every = moves(source, target, links, given.pad_blocks, given.join_gathers)
        # The steps of one reshard share a number, so that reports can show them as one.
        chain = len(self.locals)
        for attributes, shape, layout, path in every:
            # A block that is padded to another size is not a copy of the graph value.
            named = origin if layout.shape == target.shape else None
            because = Cause(cause.node, cause.phase, cause.role, cause.why.along(path, chain))
            # A change of the block size is a small program: a margin of the neighbour's block is
            # fetched, joined to the own block, and the new block is cut out.
            if isinstance(attributes, Retile):
                program = retile_program(attributes, source.mesh.size)
                (local,) = self.run_along(program, (local,), because)
                self.locals[local] = Local(local, shape, dtype, layout, named)
            else:
                made = self.new_local(shape, dtype, layout, named)
                self.emit(attributes, (local,), (made,), because)
                local = made
        return local

    def reorder_devices(self, local: int, target: Sharding, mesh: Mesh, cause: Cause) -> int:
        """Emit the permute that moves blocks to the device order of `target`; return its result.

        Args:
          mesh: the mesh of the program, in whose digits the permute is written.
        """
        held = self.locals[local]
        made = self.new_local(held.shape, held.dtype, target, held.origin)
        self.emit(order_permute(held.sharding, target, mesh), (local,), (made,), cause)
        return made

    def cause(self, node: Node, why: Why) -> Cause:
        """Return the `Cause` of instructions for a node; the role of the moved value is unknown."""
        return Cause(node.index, node.phase, "unknown", why)

    def repeated(self) -> Iterator[Copied]:
        """Yield the copies of values that more than one phase (forward, backward, update) computes.

        With `Options(keep_gathers=True)` each of these copies would be computed once.
        """
        # A copy that every phase may read is made once. Values of numbers alone cost nothing again.
        phases: dict[tuple[int, Sharding], set[str]] = {}
        for value, layout, phase in self.copies:
            if phase != ANY_PHASE:
                phases.setdefault((value, layout), set()).add(phase)
        for (value, layout), copy_phases in phases.items():
            if len(copy_phases) > 1 and value not in self.remade:
                # Each phase moves the copy from the nearest source that does not end with a phase.
                sources, options = self.lasting_sources(value), self.options
                links = self.links and self.links.of(self.graph.values[value].type.itemsize)
                source = nearest(
                    sources, layout, links, padded=options.pad_blocks, joined=options.join_gathers
                )
                yield Copied(
                    value=value,
                    before=source,
                    after=layout,
                    option="keep_gathers",
                    times=len(copy_phases),
                    fewest=1,
                )
