"""Memory of a model of many layers from programs of two and of three: instant by instant.

What is alive while an instruction of the first layer runs, or of the last one, or outside of the
layers, is linear in their number; in between it is between those two. So each instruction of the
smaller program is found in the larger one, which has one layer more in the middle, and the line
through both says what is alive there in any model: the peak is the largest of these, wherever it
lies. (The line through the two peaks is not it: in a deep model the peak is elsewhere.)

What a step of a dense Transformer takes on a machine, from plans of two and of three layers.

Layers are alike: one more layer adds the same operators and the same bytes, so that what a program
does is linear in their number, and so is what is alive at each of its instructions
(`models.deeper`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from shardalg.algebra.mesh import Mesh
from shardalg.costs.analyses.limits import StepLimits
from shardalg.costs.calibration.by_cause import ProgramAmounts, amounts, items
from shardalg.costs.cost import MEASURED, Cost, Item, Totals
from shardalg.costs.hardware import Hardware
from shardalg.costs.memory import Alive, Liveness, Scan
from shardalg.costs.topology import Topology, machine
from shardalg.costs.walk import AliveBytes, LiveValue, ProgramPoint
from shardalg.errors import HardwareError, StrategyError
from shardalg.graph.ir import Graph
from shardalg.models.dense_strategies import SLICE
from shardalg.plan.plan import Plan
from shardalg.sizes.recorded import first_largest
from shardalg.spmd.instruction import Block
from shardalg.spmd.instructions import Apply
from shardalg.spmd.program import SpmdProgram

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Instant:
    """The bytes alive while an instruction runs; equal instructions have equal keys."""

    key: Key
    place: ProgramPoint
    bytes: Any


@dataclass
class _Every(AliveBytes):
    """A timeline that keeps every instant, also of loop bodies."""

    instants: list[tuple[ProgramPoint, Any]] = field(default_factory=list)

    @property
    def peak(self) -> tuple[int, ProgramPoint]:
        """Nothing, so that no sizes are compared."""
        return 0, ()

    def reach(self, i: int, inner: AliveBytes | None) -> None:
        """Instruction `i` runs now; `inner` is the body of the loop that it is."""
        super().reach(i, inner)
        within = inner.instants if isinstance(inner, _Every) else []
        # Bytes inside a loop body count beside the values that are alive around the loop.
        self.instants += [((i, *place), self.total + size) for place, size in within]
        if not within:
            self.instants.append(((i,), self.totals[-1][0]))


class _Instants(Scan):
    """Goes through a program and keeps every instant."""

    def begin(self, start: dict[int, LiveValue]) -> AliveBytes:
        """Start a timeline that keeps every instant."""
        line = super().begin(start)
        return _Every(line.alive, line.total, totals=line.totals, instants=[((), line.total)])

    def largest(self, lines: list[AliveBytes], most: int) -> AliveBytes:
        """Return the largest body's timeline, with the instants of all bodies."""
        both = lines[most]
        assert isinstance(both, _Every), "begun by this scan"
        both.instants = [at for line in lines if isinstance(line, _Every) for at in line.instants]
        return both


@dataclass(frozen=True, eq=False)
class Shallow:
    """A program of few layers; the fields are the arguments of `memory.liveness`."""

    program: SpmdProgram
    graph: Graph
    roles: Sequence[str] | None
    donated: Sequence[int]
    rebuild: bool

    @cached_property
    def instants(self) -> list[Instant]:
        """Every instant; sizes may be recorded."""
        scan = _Instants(self.program, self.graph, (), self.rebuild)
        line = scan.peak(self.program.block, scan.lives(self.donated))
        assert isinstance(line, _Every), "begun by this scan"
        keys = _Keys(self.program)
        block = self.program.block
        return [Instant(keys.of(block, place), place, size) for place, size in line.instants]

    def at(self, place: ProgramPoint) -> Liveness:
        """Return the live values at a place of the program."""
        scan = Scan(self.program, self.graph, tuple(self.roles or ()), self.rebuild)
        return scan.liveness(scan.lives(self.donated), place)

    @property
    def peak(self) -> int:
        """The instant at which most is alive."""
        return first_largest([one.bytes for one in self.instants])


@dataclass(frozen=True)
class _Keys:
    """The key of an instruction, equal for equal instructions of two programs."""

    program: SpmdProgram

    def of(self, block: Block, place: ProgramPoint) -> Key:
        """Kind, operator, phase and results of the instruction at a place."""
        if not place:
            return ()
        instruction = block.instructions[place[0]]
        attributes, below = instruction.attributes, ()
        if attributes.bodies:
            # Instants inside branches have the key of the whole instruction.
            below = self.of(attributes.bodies[0], place[1:]) if len(attributes.bodies) == 1 else ()
            return type(attributes), below
        primitive = attributes.primitive if isinstance(attributes, Apply) else ""
        results = tuple(self.type(result) for result in instruction.results)
        return type(attributes), primitive, instruction.phase, results

    def type(self, result: int) -> Key:
        """Item type and shape."""
        local = self.program.locals[result]
        return local.dtype, *local.shape


def deeper(low: Shallow, high: Shallow, share: int) -> Liveness:
    """Memory of the model at `low + share * (high - low)`, by class."""
    sizes, pairs = held_bytes(low, high, share)
    i, j = pairs[first_largest(sizes)]
    return interpolated_memory(
        low.at(low.instants[i].place), high.at(high.instants[j].place), share
    )


def interpolated_memory(low: Liveness, high: Liveness, share: float) -> Liveness:
    """Return memory by class, interpolated linearly between the live values of two models."""

    def line(one: float, other: float) -> int:
        return round(one + (other - one) * share)

    classes = dict.fromkeys((*low.by_class, *high.by_class))
    # A class that one model lacks has no bytes there.
    sizes = {c: line(low.by_class.get(c, 0), high.by_class.get(c, 0)) for c in classes}
    alive = tuple(Alive(-1, name, name, size) for name, size in sizes.items())
    return Liveness(
        sum(sizes.values()),
        high.instruction,
        tuple(sorted(alive, key=lambda one: -one.bytes)),
        line(low.argument_bytes, high.argument_bytes),
        line(low.result_bytes, high.result_bytes),
        high.place,
    )


def held_bytes(low: Shallow, high: Shallow, share: int) -> tuple[list[Any], list[tuple[int, int]]]:
    """Return the bytes alive at each instant of the deeper model, and both programs' instants.

    Where the larger program is not the smaller one with some runs more, there is one instant, on
    the line through the peaks of both.

    Returns:
      The bytes, and for each the instant of the smaller and of the larger program.
    """
    one, other = low.instants, high.instants
    pairs = aligned([at.key for at in one], [at.key for at in other])
    # Programs that do not align have one instant: the two peaks.
    if pairs is None:
        pairs = [(low.peak, high.peak)]
    return [one[i].bytes + (other[j].bytes - one[i].bytes) * share for i, j in pairs], pairs


def aligned(low: Sequence[Key], high: Sequence[Key]) -> list[tuple[int, int]] | None:
    """Each place of the shorter sequence with its place in the longer one; None if it has none.

    Of what repeats, the first and the last stay: the longer one has more in between.

    >>> aligned("p12ab12ab12e", "p12ab12ab12ab12e")[4:9]
    [(4, 4), (5, 9), (6, 10), (7, 11), (8, 12)]
    """
    more = [0] * len(low)  # how much farther on each is in `high`
    i = shift = 0
    while i < len(low):
        if i + shift < len(high) and low[i] == high[i + shift]:
            more[i] = shift
            i += 1
            continue
        # The longer program has another repetition here: skip the run that aligns best.
        run = _run(low, high, i, i + shift)
        if run is None:
            return None
        _moved(more, high, i, shift, run)
        shift += run
    if rest := len(high) - len(low) - shift:
        _moved(more, high, len(low), shift, rest)
    return [(i, i + shift) for i, shift in enumerate(more)]


def _run(low: Sequence[Key], high: Sequence[Key], i: int, j: int) -> int | None:
    """Return how many keys to skip at `j` of the longer program for the longest agreement."""
    best, longest = None, 0
    for run in range(1, len(high) - j):
        agrees, most = 0, min(len(low) - i, len(high) - j - run)
        while agrees < most and low[i + agrees] == high[j + run + agrees]:
            agrees += 1
        if agrees > longest:
            best, longest = run, agrees
    return best


def _moved(more: list[int], high: Sequence[Key], i: int, shift: int, run: int) -> None:
    """Leave out the second of the runs that are alike, not what comes behind the last of them."""
    start = i + shift
    # Move the skipped run as far forward as it repeats, so that the last repetition is kept.
    while start and start + run - 1 < len(high) and high[start - 1] == high[start - 1 + run]:
        start -= 1
    for at in range(max(start + run - shift, 0), i):
        more[at] += run


SHALLOW = (2, 3)
"""Numbers of layers of the two plans between which costs are interpolated."""


def machine_for(mesh: Mesh, hardware: str | Hardware | Topology) -> Topology | Hardware:
    """Return the machine that a mesh of these models is on.

    A chip alone becomes as many chips as the mesh has devices for, in the shape that the vendor
    gives so many; the model's axis `slice` counts the slices and crosses their network. A chip of
    which nothing is known but its links is itself. A topology keeps its own `network_axes`.

    >>> machine_for(Mesh({"slice": 2, "fsdp": 256}), "v5e")
    Topology(tpu_v5e:16x16, slices=2, network_axes=slice)

    Raises:
      HardwareError: an unknown chip, or no slice of so many chips.
    """
    found = machine(hardware)
    slices = mesh.shape.get(SLICE, 1)
    crossing = (SLICE,) if slices > 1 else ()
    if isinstance(found, Topology):
        # A topology that says which axes cross the network is used unchanged.
        is_given = found.network_axes or found.order or found.slices == 1
        return found if is_given or not crossing else replace(found, network_axes=crossing)
    # A chip without a known shape stays a chip: each axis has links of its own.
    if not (found.interconnect.dimensions or found.interconnect.island):
        return found
    # On TPU v2 and v3 a device is a core, and two cores share a chip and its links.
    cores = found.interconnect.cores_per_chip
    chips = mesh.size // slices // cores
    try:
        return Topology(found, chips=chips, slices=slices, network_axes=crossing)
    except HardwareError as error:
        devices = f"{mesh.size} devices" + (f", {cores} to a chip" if cores > 1 else "")
        raise HardwareError(f"{mesh!r} has {devices}: {error}") from None


def chip_of(on: Topology | Hardware) -> Hardware:
    """Return the chip of a machine."""
    return on.hardware if isinstance(on, Topology) else on


def work_of(depth: int, plans: Mapping[int, Plan], on: Topology | Hardware) -> ProgramAmounts:
    """Return the amounts of work of a model with so many layers.

    Args:
      plans: by layers: of `depth`, or of two numbers of layers.
    """
    done = {n: amounts(plan.program, plan.graph, on) for n, plan in plans.items()}
    if depth in plans:
        return done[depth]
    low, high = sorted(plans)
    # Each further layer adds the same amounts, so that the line through two depths is exact.
    return interpolated_amounts(done[low], done[high], (depth - low) // (high - low))


def totals_of(depth: int, plans: Mapping[int, Plan], on: Topology | Hardware) -> Totals:
    """Return the priced totals of a model with so many layers; see `work_of`."""
    found = {n: plan.cost(on).totals for n, plan in plans.items()}
    if depth in plans:
        return found[depth]
    low, high = sorted(plans)
    share = (depth - low) // (high - low)
    # The instruction with the most live bytes can change with the depth, so memory is interpolated
    # at every instruction and the largest result is the peak.
    one, other = (
        Shallow(p.program, p.graph, p._traced.roles, p._traced.donated, chip_of(on).rebuilds)
        for p in (plans[low], plans[high])
    )
    return _totals(found[low], found[high], share, deeper(one, other, share))


def interpolated_amounts(low: ProgramAmounts, high: ProgramAmounts, share: float) -> ProgramAmounts:
    """Interpolate linearly between two programs; keys of neither program are absent."""
    return low * (1 - share) + high * share


_SUMS = ("count", "flops", "wire_bytes")


def _totals(low: Totals, high: Totals, share: int, memory: Liveness) -> Totals:
    """Return the totals on the line through two models of few layers."""

    def line(one: Any, other: Any) -> Any:
        return one + (other - one) * share

    def key(item: Item) -> tuple[str, tuple[str, ...], str, str]:
        return item.kind, item.axes, item.role, item.phase

    summed = []
    before, after = ({key(item): item for item in totals.items} for totals in (low, high))
    for each in dict.fromkeys((*before, *after)):
        # A kind of work that one model does not have counts as none of it.
        one, other = (
            side.get(each) or Item(*each, count=0, flops=0, wire_bytes=0, seconds=())
            for side in (before, after)
        )
        seconds = [dict(item.seconds) for item in (one, other)]
        causes = dict.fromkeys((*seconds[0], *seconds[1]))
        by_cause = tuple((c, line(*(side.get(c, 0.0) for side in seconds))) for c in causes)
        sums = {n: line(getattr(one, n), getattr(other, n)) for n in _SUMS}
        summed.append(Item(*each, **sums, seconds=by_cause, slices=max(one.slices, other.slices)))
    return Totals(
        tuple(summed),
        line(low.useful_flops, high.useful_flops),
        line(low.useful_s, high.useful_s),
        low.devices,
        memory,
    )


def from_amounts(done: ProgramAmounts, devices: int, memory: Liveness, chip: Hardware) -> Cost:
    """Return the cost of amounts of work by the constants of a chip, without useful flops."""
    used = chip.calibration.pipelined() if done.pipelined else chip.calibration
    found = Totals(items(done, used), 0, 0, devices, memory)
    overlap = "none" if used.is_datasheet else MEASURED
    return Cost(replace(chip, calibration=used), found, found, overlap=overlap)


def cost_on(
    depth: int,
    plans: Mapping[int, Plan],
    on: Topology | Hardware,
    overlap: str | None = None,
) -> Cost:
    """Return the cost of a model with so many layers; see `totals_of`.

    Raises:
      StrategyError: a schedule as overlap, for a model that is interpolated between two others.
    """
    if depth in plans:
        return plans[depth].cost(on, overlap=overlap)
    if overlap in ("dependences", "asynchronous"):
        raise StrategyError(
            f"overlap {overlap!r} is a schedule of one program: write 'measured', 'none' or "
            "'full', or ask model.plan(...).cost(...)."
        )
    # The cost of few layers has the machine's text, the constants and the default overlap.
    found = totals_of(depth, plans, on)
    costs = {n: plan.cost(on, overlap=overlap) for n, plan in plans.items()}

    # The limits need an analysis of both programs, so they are computed only when a user asks.
    def limits() -> StepLimits:
        low, high = sorted(costs)
        share = (depth - low) // (high - low)
        return costs[low].limits * (1 - share) + costs[high].limits * share

    return replace(
        next(iter(costs.values())),
        totals=found,
        hints=found,
        by_module=None,
        elsewhere=None,
        analysis=limits,
    )
