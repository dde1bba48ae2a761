"""The partitioning stage: a sharded graph becomes the program of every device, in passes.

`partition` emits a program (`EMIT`) and then runs `PASSES`, each a pure function from one program
to the next. `Plan.stages()` prints the program after each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shardalg.costs.calibration.constants import DATASHEET
from shardalg.costs.topology import machine
from shardalg.errors import ProgramError
from shardalg.graph.ir import Graph
from shardalg.planner.partition.choose import node_classes
from shardalg.planner.partition.partition import NONE, Kept, Partitioner
from shardalg.planner.partition.partition_options import PartitionOptions
from shardalg.planner.partition.passes.collective_matmul import CollectiveMatmuls
from shardalg.planner.partition.passes.merge_formatting import MergeFormatting
from shardalg.planner.partition.passes.moving_masks import MoveMasks
from shardalg.planner.partition.passes.padding_values import ValueFacts
from shardalg.planner.partition.passes.scattering import ScatterReductions
from shardalg.planner.partition.passes.unread import DropUnread, JoinAsBits
from shardalg.planner.propagate.options import Options, Switches
from shardalg.planner.propagate.sharded import ShardedGraph
from shardalg.spmd.check import check
from shardalg.spmd.program import SpmdProgram
from shardalg.spmd.rewrite import Rewriter, rewrite


@dataclass(frozen=True)
class Pass:
    """A named pass over a program.

    Attributes:
      rewriter: makes the pass's rules for one program of a graph, on a chip.
      switch: the field of `Switches` that turns the pass on; None if it always runs.
    """

    name: str
    rewriter: Callable[[SpmdProgram, Graph, str], Rewriter]
    switch: str | None = None


def _rules(rewriter: type[Rewriter]) -> Callable[[SpmdProgram, Graph, str], Rewriter]:
    """Return the factory of a rewriter that needs nothing but the program's local values."""
    return lambda program, graph, hardware: rewriter(list(program.locals))


def _collective_matmuls(program: SpmdProgram, graph: Graph, hardware: str) -> CollectiveMatmuls:
    """Return the rewriter that makes rings of products, with their times on a chip."""
    from shardalg.costs.step_time import pricing  # only plans with rings are priced here

    times = pricing(program, graph, machine(hardware).on(DATASHEET)).ring
    return CollectiveMatmuls(list(program.locals), graph, times)


# The first stage: per node, a choice and its instructions (`partition.Partitioner`).
EMIT = "emit"
PASSES = (
    # A mask moves to where its value is made: one mask for all readers, and none if the padding is
    # known to be right already. A block that is full of one number has it in its padding, too.
    Pass(
        "move_masks",
        lambda program, graph, hardware: MoveMasks(
            list(program.locals),
            graph,
            {local: ValueFacts(number=graph.numbers.get(v)) for local, v in program.constants},
        ),
        "join_formatting",
    ),
    # Masks, resizes, slices and permutes that repeat or undo one another become one instruction.
    Pass("merge_formatting", _rules(MergeFormatting), "join_formatting"),
    # The passes before leave instructions whose results nobody reads.
    Pass("drop_unread", _rules(DropUnread)),
    # dynamic_slice(all_reduce(x)) = reduce_scatter(x), also for maxima and products.
    Pass("scatter_reductions", _rules(ScatterReductions), "join_formatting"),
    # If each element comes from one device and the others send 0, the sum would turn -0 into +0.
    # The bits are combined instead.
    Pass("join_as_bits", _rules(JoinAsBits)),
    # A product with its all_gather or reduce_scatter becomes a ring of permutes if that is faster.
    Pass("collective_matmul", _collective_matmuls, "collective_matmul"),
)


@dataclass(frozen=True)
class ProgramStage:
    """The program after a pass.

    Attributes:
      name: the name of the pass, or `EMIT`.
      before: the program that the pass read; None of `EMIT`.
      off: the switch that turns the pass on, if the plan's options leave it off; else "".
    """

    name: str
    program: SpmdProgram
    before: SpmdProgram | None = None
    off: str = ""

    @property
    def is_changed(self) -> bool:
        """True if the pass changed the program."""
        return self.program != self.before

    def text(self, graph: Graph) -> str:
        """Return a heading, and the program with source lines if the pass changed it."""
        if self.is_changed:
            return f"// after {self.name}\n{self.program.text(graph)}"
        reason = f"off, Switches({self.off}=True) runs it" if self.off else "no change"
        return f"// after {self.name}: {reason}"


@dataclass(frozen=True, repr=False)
class ProgramStages:
    """The program of a plan after each pass, in order; `print` shows all of them.

    Attributes:
      stages: the first one is the program as it was emitted, the last one is `plan.program`.
      graph: the traced function, for source lines.
    """

    stages: tuple[ProgramStage, ...]
    graph: Graph

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the stages."""
        return tuple(stage.name for stage in self.stages)

    def __iter__(self) -> Iterator[ProgramStage]:
        return iter(self.stages)

    def __len__(self) -> int:
        return len(self.stages)

    def __getitem__(self, name: str) -> ProgramStage:
        """Return the stage of a pass.

        Raises:
          ProgramError: no pass has this name.
        """
        if name not in self.names:
            raise ProgramError(f"no pass {name!r}; the passes are {', '.join(self.names)}.")
        return self.stages[self.names.index(name)]

    def __repr__(self) -> str:
        return "\n".join(stage.text(self.graph) for stage in self.stages)


def partition(
    sharded: ShardedGraph,
    roles: Sequence[str],
    options: Options,
    partitioner: Callable[..., Partitioner] = Partitioner,
    *,
    kept: Kept = NONE,
) -> SpmdProgram:
    """Turn completed shardings into the program that every device runs.

    Each node is partitioned as its operands' and results' shardings suggest, on the most devices
    and then with the fewest wire bytes. Values are moved by explicit collectives (GSPMD,
    arXiv:2105.04663, section 4). Partial sums are deferred where operators allow it
    (`Rule.passes`).

    Args:
      roles: the role of every graph value, for the table of collectives.
      partitioner: a kind of `Partitioner`.
      kept: gathered copies that stay for the backward pass, in addition to those of `keep_gathers`.
    """
    emitted = _emitted(sharded, roles, options, partitioner, kept)
    return check(after_passes(emitted, sharded.graph, options.switches, options.hardware))


def after_passes(
    program: SpmdProgram, graph: Graph, switches: Switches, hardware: str
) -> SpmdProgram:
    """Return an emitted program after all passes."""
    *_, last = _stages(program, graph, switches, hardware)
    return last.program


def program_stages(
    sharded: ShardedGraph, roles: Sequence[str], options: Options, kept: Kept
) -> ProgramStages:
    """Return the program after each pass of `partition`, with the same arguments."""
    emitted = _emitted(sharded, roles, options, Partitioner, kept)
    stages = _stages(emitted, sharded.graph, options.switches, options.hardware)
    return ProgramStages(tuple(stages), sharded.graph)


def _emitted(
    sharded: ShardedGraph,
    roles: Sequence[str],
    options: Options,
    partitioner: Callable[..., Partitioner],
    kept: Kept,
) -> SpmdProgram:
    """Return the program that the partitioner emits, before all passes.

    The arguments are those of `partition`.
    """
    given = PartitionOptions.of(options, roles)
    # A number of bytes: a first run finds the gathers, of which the best ones within it are kept.
    if not isinstance(options.keep_gathers, bool | None):
        first = partitioner(sharded, roles, given)
        first.run()
        found = node_classes.gather_choices(sharded.graph, first.context.repeated())
        kept = node_classes.within(found, options.keep_gathers)
    return partitioner(sharded, roles, given, kept=kept).run()


def _stages(
    program: SpmdProgram, graph: Graph, switches: Switches, hardware: str
) -> Iterator[ProgramStage]:
    """Yield the emitted program, and the program after each pass, also of passes that are off."""
    yield ProgramStage(EMIT, program)
    for one in PASSES:
        off = one.switch if one.switch and not getattr(switches, one.switch) else ""
        before = program
        if not off:
            program = rewrite(program, one.rewriter(program, graph, hardware))
        yield ProgramStage(one.name, program, before, off)
