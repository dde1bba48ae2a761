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
    """An entry of `PASSES`: a rewrite of the whole program.

    Attributes:
      name: the name in `Plan.stages()`.
      rewriter: a function from a program, its graph and the name of a chip to the rewriter that
        runs the pass.
      switch: the field of `Switches` that turns the pass on; None if it always runs.
    """

    name: str
    rewriter: Callable[[SpmdProgram, Graph, str], Rewriter]
    switch: str | None = None


def _rules(rewriter: type[Rewriter]) -> Callable[[SpmdProgram, Graph, str], Rewriter]:
    """Return `Pass.rewriter` for a rewriter class whose only argument is the list of locals."""
    return lambda program, graph, hardware: rewriter(list(program.locals))


def _collective_matmuls(program: SpmdProgram, graph: Graph, hardware: str) -> CollectiveMatmuls:
    """Return the pass that makes rings of products and collectives if they are faster on a chip."""
    from shardalg.costs.step_time import pricing  # only plans with rings are priced here

    times = pricing(program, graph, machine(hardware).on(DATASHEET)).ring
    return CollectiveMatmuls(list(program.locals), graph, times)


# The stage before all passes has a name, too, so that `Plan.stages()` shows the program as
# `Partitioner` emits it.
EMIT = "emit"
PASSES = (
    # A mask overwrites the padding of a block with a number. It moves to where its value is
    # computed, so that all readers share it. It is dropped if the padding has this number already;
    # for this, the pass is told which constants are arrays of one number.
    Pass(
        "move_masks",
        lambda program, graph, hardware: MoveMasks(
            list(program.locals),
            graph,
            {local: ValueFacts(number=graph.numbers.get(v)) for local, v in program.constants},
        ),
        "join_formatting",
    ),
    # Nodes are emitted one by one, so that neighbours can repeat or undo each other's masks,
    # resizes, slices and permutes. This runs after masks moved, because moved masks meet.
    Pass("merge_formatting", _rules(MergeFormatting), "join_formatting"),
    # The previous passes replace results, so that nothing reads some instructions any longer.
    Pass("drop_unread", _rules(DropUnread)),
    # dynamic_slice(all_reduce(x)) = reduce_scatter(x), also for maxima and products.
    Pass("scatter_reductions", _rules(ScatterReductions), "join_formatting"),
    # If each element comes from one device and the others send 0, the sum would turn -0 into +0.
    # The bits are combined instead.
    Pass("join_as_bits", _rules(JoinAsBits)),
    # Last, because the passes above still make reduce_scatters, with which a product can form a
    # ring of permutes.
    Pass("collective_matmul", _collective_matmuls, "collective_matmul"),
)


@dataclass(frozen=True)
class ProgramStage:
    """The program after one pass, for `Plan.stages()`.

    Attributes:
      name: the name of the pass, or `EMIT`.
      program: the program after the pass.
      before: the program that the pass read; None for `EMIT`.
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
        """Return a heading with the pass's name, followed by the program if the pass changed it."""
        if self.is_changed:
            return f"// after {self.name}\n{self.program.text(graph)}"
        reason = f"off, Switches({self.off}=True) runs it" if self.off else "no change"
        return f"// after {self.name}: {reason}"


@dataclass(frozen=True, repr=False)
class ProgramStages:
    """The program of a plan after each pass, as `Plan.stages()` returns it; `print` shows all.

    Attributes:
      stages: the program as it was emitted, then the program after each pass. The last one is
        `plan.program`.
      graph: the traced function, for source lines.
    """

    stages: tuple[ProgramStage, ...]
    graph: Graph

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the stages: `EMIT`, then the passes in their order."""
        return tuple(stage.name for stage in self.stages)

    def __iter__(self) -> Iterator[ProgramStage]:
        return iter(self.stages)

    def __len__(self) -> int:
        return len(self.stages)

    def __getitem__(self, name: str) -> ProgramStage:
        """Return the stage of the pass with this name.

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
    """Return the program that every device runs, after all passes and checked.

    Each node is computed along the digits that the shardings of its operands and results suggest,
    in the way that takes least time (`partition/choose`). Values are moved by explicit collectives
    (GSPMD, arXiv:2105.04663, section 4). Partial sums are deferred where operators allow it
    (`Rule.passes`).

    Args:
      sharded: the completed graph.
      roles: the role of every graph value, for reports on collectives.
      options: the user's options.
      partitioner: the subclass of `Partitioner` that emits the program.
      kept: gathered copies that are kept for the backward pass, in addition to those of
        `Options.keep_gathers`.
    """
    emitted = _emitted(sharded, roles, options, partitioner, kept)
    return check(after_passes(emitted, sharded.graph, options.switches, options.hardware))


def after_passes(
    program: SpmdProgram, graph: Graph, switches: Switches, hardware: str
) -> SpmdProgram:
    """Return the program after all passes that the switches turn on.

    Args:
      program: an emitted program.
      graph: the graph that it computes.
      hardware: the chip by whose times passes decide.
    """
    *_, last = _stages(program, graph, switches, hardware)
    return last.program


def program_stages(
    sharded: ShardedGraph, roles: Sequence[str], options: Options, kept: Kept
) -> ProgramStages:
    """Return the program after each pass; the arguments are those of `partition`."""
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
    # `keep_gathers` may be a number of bytes for kept copies. Which gathers a program has is known
    # only once it is emitted, so a first run lists them and the best ones that fit are kept.
    if not isinstance(options.keep_gathers, bool | None):
        first = partitioner(sharded, roles, given)
        first.run()
        found = node_classes.gather_choices(sharded.graph, first.context.repeated())
        kept = node_classes.copies_within_budget(found, options.keep_gathers)
    return partitioner(sharded, roles, given, kept=kept).run()


def _stages(
    program: SpmdProgram, graph: Graph, switches: Switches, hardware: str
) -> Iterator[ProgramStage]:
    """Yield the emitted program, then the program after each pass.

    A pass that a switch turns off is listed, too, with an unchanged program. A stage has the name
    of the pass, the program after and before it, and the name of the switch, or "".
    """
    yield ProgramStage(EMIT, program)
    for one in PASSES:
        # A pass without a switch always runs.
        switch = one.switch or ""
        is_off = switch and not getattr(switches, switch)
        before = program
        if not is_off:
            program = rewrite(program, one.rewriter(program, graph, hardware))
        yield ProgramStage(one.name, program, before, switch if is_off else "")
