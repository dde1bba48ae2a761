"""Cost and memory of a model with many layers, from plans with two and with three layers.

All layers are equal: one more layer adds the same operators and the same bytes. So the amounts of
work are linear in the number of layers, and the line through both plans is exact.

The peak memory is not linear, because the instruction with the most live bytes changes with the
depth. But the live bytes at one instruction of the first layer, of the last layer or outside of the
layers are linear in the number of layers; an instruction in between has live bytes between those of
the first and the last layer. So each instruction of the smaller program is found in the larger
program, which has one layer more in the middle. The line through both gives the live bytes in a
model of any depth, and the peak is the largest of these.
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
    """The bytes alive while an instruction runs.

    Attributes:
      key: a key that equal instructions of two programs have in common (`_Keys`).
      place: the indices of the loops that contain the instruction, then its own; () is the start.
      bytes: the bytes alive.
    """

    key: Key
    place: ProgramPoint
    bytes: Any


@dataclass
class _Every(AliveBytes):
    """A timeline of live bytes that keeps every instant, also those of loop bodies."""

    instants: list[tuple[ProgramPoint, Any]] = field(default_factory=list)

    @property
    def peak(self) -> tuple[int, ProgramPoint]:
        """The constant (0, ()) in place of the true peak (bytes, point of the program).

        The true peak would need comparisons of live bytes. If sizes are named, each comparison
        would be recorded as a condition of the plan.
        """
        return 0, ()

    def reach(self, i: int, inner: AliveBytes | None) -> None:
        """Record the live bytes at instruction `i`.

        `inner` is the timeline of its body if the instruction is a loop, otherwise None.
        """
        super().reach(i, inner)
        within = inner.instants if isinstance(inner, _Every) else []
        # A body's timeline counts only its own values: the values that are alive around the loop
        # are in memory at the same time.
        self.instants += [((i, *place), self.total + size) for place, size in within]
        if not within:
            self.instants.append(((i,), self.totals[-1][0]))


class _Instants(Scan):
    """A scan of a program that records the live bytes at every instruction."""

    def begin(self, start: dict[int, LiveValue]) -> AliveBytes:
        """Return a count of bytes alive that keeps the bytes at each instruction.

        Args:
          start: the values alive at the start of the block.
        """
        line = super().begin(start)
        return _Every(line.alive, line.total, totals=line.totals, instants=[((), line.total)])

    def largest(self, lines: list[AliveBytes], most: int) -> AliveBytes:
        """Return the timeline of the body that needs the most memory, with the instants of all.

        The instants of the other bodies are added, so that every instruction has one.

        Args:
          lines: the timeline of live bytes of each body of a loop or branch.
          most: the number of the body that needs the most memory.
        """
        largest = lines[most]
        assert isinstance(largest, _Every), "made by `begin`"
        largest.instants = [
            instant for line in lines if isinstance(line, _Every) for instant in line.instants
        ]
        return largest


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
        """For each instruction, in program order, the bytes alive while it runs.

        The bytes are numbers. If sizes are named, these numbers also record their formulas.
        """
        # Roles only divide the bytes into classes, so the scan for totals gets none.
        scan = _Instants(self.program, self.graph, (), self.rebuild)
        block = self.program.block
        # `peak` scans the block and returns a timeline of the live bytes. An `_Instants` scan makes
        # timelines of the class `_Every`, which keep all instants instead of the largest one only.
        timeline = scan.peak(block, scan.lives(self.donated))
        assert isinstance(timeline, _Every), "made by `_Instants.begin`"
        # The key of an instruction finds the equal instruction in a program with more layers.
        keys = _Keys(self.program)
        return [Instant(keys.of(block, place), place, size) for place, size in timeline.instants]

    def at(self, place: ProgramPoint) -> Liveness:
        """Return the live values at a place of the program."""
        scan = Scan(self.program, self.graph, tuple(self.roles or ()), self.rebuild)
        return scan.liveness(scan.lives(self.donated), place)

    @property
    def peak(self) -> int:
        """The index in `instants` of the instant with the most live bytes."""
        return first_largest([one.bytes for one in self.instants])


@dataclass(frozen=True)
class _Keys:
    """The keys of a program's instructions, by which two programs are aligned."""

    program: SpmdProgram

    def of(self, block: Block, place: ProgramPoint) -> Key:
        """Return the key of the instruction at a place of a block.

        The key depends on the instruction:
          the start of a block, which is no instruction: ()
          an instruction without a body: (kind, operator, phase, types of its results)
          an instruction in the body of a loop: (kind of the loop, key in the body)
          an instruction in one of several bodies: (kind of the conditional or loop, ())

        Args:
          place: the index of an instruction in `block`, then the indices in bodies inside of it.
        """
        if not place:
            return ()
        index, inner_place = place[0], place[1:]
        instruction = block.instructions[index]
        attributes = instruction.attributes
        kind, bodies = type(attributes), attributes.bodies
        if len(bodies) == 1:
            return kind, self.of(bodies[0], inner_place)
        # A place does not say in which of several bodies it is, so all their instructions have the
        # key of the whole instruction.
        if bodies:
            return kind, ()
        # Only an `Apply` has an operator; the other kinds are collectives and local moves of data.
        primitive = attributes.primitive if isinstance(attributes, Apply) else ""
        result_types = tuple(self.type(result) for result in instruction.results)
        return kind, primitive, instruction.phase, result_types

    def type(self, result: int) -> Key:
        """Return the element type and the local shape of a result, as a tuple."""
        local = self.program.locals[result]
        return local.dtype, *local.shape


def deeper(low: Shallow, high: Shallow, share: int) -> Liveness:
    """Return the peak memory of the model with `low + share * (high - low)` layers, by class."""
    sizes, pairs = held_bytes(low, high, share)
    i, j = pairs[first_largest(sizes)]
    return interpolated_memory(
        low.at(low.instants[i].place), high.at(high.instants[j].place), share
    )


def interpolated_memory(low: Liveness, high: Liveness, share: float) -> Liveness:
    """Return the live bytes of each class of values on the line through two models.

    Args:
      low, high: the memory of the models with fewer and with more layers.
      share: the position on the line: 0 is `low`, 1 is `high`.
    """

    def line(one: float, other: float) -> int:
        return round(one + (other - one) * share)

    classes = dict.fromkeys((*low.by_class, *high.by_class))
    # The line needs both ends: a class of values that one model lacks has zero bytes there.
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
    """Return the bytes alive in the deeper model while each of its instructions runs.

    They follow from two programs of fewer layers, whose instructions are paired. If the two
    programs cannot be aligned, only their two peaks are compared.

    Args:
      share: the deeper model has the layers of `low` and `share` times the difference to `high`.

    Returns:
      The bytes per pair of instructions, and per pair its indices in `low.instants` and in
      `high.instants`.
    """
    one, other = low.instants, high.instants
    pairs = aligned([at.key for at in one], [at.key for at in other])
    # Without an alignment no other pair of instants is known to belong together.
    if pairs is None:
        pairs = [(low.peak, high.peak)]
    return [one[i].bytes + (other[j].bytes - one[i].bytes) * share for i, j in pairs], pairs


def aligned(low: Sequence[Key], high: Sequence[Key]) -> list[tuple[int, int]] | None:
    """Return each index of the shorter sequence with its index in the longer one.

    The longer sequence has more repetitions in the middle: the first and the last repetition of
    both are paired. None: the longer sequence is not the shorter one with more repetitions.

    Both sequences are scanned together; `shift` keys of the longer one have no partner so far.
    Where the keys differ, the longer one has one repetition more. `_run` finds its length, and
    `_moved` chooses which of the equal repetitions is skipped. `more` has the shift of each index
    of the shorter sequence.

    >>> aligned("p12ab12ab12e", "p12ab12ab12ab12e")[4:9]
    [(4, 4), (5, 9), (6, 10), (7, 11), (8, 12)]
    """
    shifts = [0] * len(low)
    index = shift = 0
    while index < len(low):
        if index + shift < len(high) and low[index] == high[index + shift]:
            shifts[index] = shift
            index += 1
            continue
        # The keys differ, so the longer sequence has more repetitions here, or is another one.
        run = _run(low, high, index, index + shift)
        if run is None:
            return None
        _moved(shifts, high, index, shift, run)
        shift += run
    # Keys that are left at the end of the longer sequence are repetitions, too.
    if final_run := len(high) - len(low) - shift:
        _moved(shifts, high, len(low), shift, final_run)
    return [(index, index + shift) for index, shift in enumerate(shifts)]


def _run(low: Sequence[Key], high: Sequence[Key], i: int, j: int) -> int | None:
    """Return how many keys of `high` to skip from `j` on, so that the longest run of keys is equal.

    The run compares `low[i:]` with `high[j + skip:]`. Return None if `low[i]` is not in
    `high[j + 1:]`.
    """
    best_skip, longest = None, 0
    for skip in range(1, len(high) - j):
        num_equal, end = 0, min(len(low) - i, len(high) - j - skip)
        while num_equal < end and low[i + num_equal] == high[j + skip + num_equal]:
            num_equal += 1
        # Of equally long runs the first one stays, which skips the fewest keys.
        if num_equal > longest:
            best_skip, longest = skip, num_equal
    return best_skip


def _moved(more: list[int], high: Sequence[Key], i: int, shift: int, run: int) -> None:
    """Correct an alignment for `run` keys of `high` which have no partner in `low` (see `aligned`).

    The alignment pairs key `k` of `low` with key `k + more[k]` of `high`. The skipped keys are one
    repetition of a layer, found at key `i` of `low`. Any of the equal repetitions could be the
    skipped one. The second repetition is chosen: all keys of `low` from there to `i` move on by
    `run`.

    Args:
      more: the distance of each key of `low` to its partner in `high`; changed in place.
      i: the index in `low` at which the two sequences disagree.
      shift: the distance at `i` before the change.
    """
    start = i + shift
    # The skipped run may be any of the repetitions. Skipping the second one pairs the first and the
    # last ones of both programs, whose live bytes are linear in the number of layers.
    while start and start + run - 1 < len(high) and high[start - 1] == high[start - 1 + run]:
        start -= 1
    for at in range(max(start + run - shift, 0), i):
        more[at] += run


SHALLOW = (2, 3)
"""Numbers of layers of the two plans between which costs are interpolated."""


def machine_for(mesh: Mesh, hardware: str | Hardware | Topology) -> Topology | Hardware:
    """Return the machine that a mesh of these models is on.

    A chip, or its name, becomes a topology with enough chips for the devices of the mesh, in the
    vendor's shape for this number. The mesh axis `slice` numbers the slices; its communication
    crosses their network. A chip without a known shape is returned as it is. A topology keeps its
    own `network_axes`.

    >>> machine_for(Mesh({"slice": 2, "fsdp": 256}), "v5e")
    Topology(tpu_v5e:16x16, slices=2, network_axes=slice)

    Raises:
      HardwareError: an unknown chip, or no slice of so many chips.
    """
    found = machine(hardware)
    slices = mesh.shape.get(SLICE, 1)
    crossing = (SLICE,) if slices > 1 else ()
    if isinstance(found, Topology):
        # The user's own choice of the axes that cross the network has priority over ours.
        is_given = found.network_axes or found.order or found.slices == 1
        return found if is_given or not crossing else replace(found, network_axes=crossing)
    # A chip without a known shape stays a chip: each axis has links of its own.
    if not (found.interconnect.dimensions or found.interconnect.island):
        return found
    # On TPU v2 and v3 a JAX device is a core, and two cores share a chip and its links: the
    # topology counts chips.
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
    """Return the amounts of work of a model with `depth` layers.

    Args:
      plans: the plan by its number of layers: the plan of `depth`, or two plans of fewer layers.
    """
    done = {n: amounts(plan.program, plan.graph, on) for n, plan in plans.items()}
    if depth in plans:
        return done[depth]
    low, high = sorted(plans)
    # Each further layer adds the same amounts, so that the line through two depths is exact. The
    # model is deeper than both plans: the point is beyond the second one.
    return interpolated_amounts(done[low], done[high], (depth - low) // (high - low))


def totals_of(depth: int, plans: Mapping[int, Plan], on: Topology | Hardware) -> Totals:
    """Return the priced totals of a model with `depth` layers.

    Args:
      plans: plans of the model with fewer layers, by their number of layers: one or two of them.
    """
    totals = {n: plan.cost(on).totals for n, plan in plans.items()}
    if depth in plans:
        return totals[depth]
    low, high = sorted(plans)
    # Share 0 is the lower model and share 1 the higher one; a deeper model has a larger share.
    share = (depth - low) // (high - low)
    # The line through both plans gives the totals of the deeper model. The instruction with the
    # most live bytes can change with the depth, so memory has a line for every instruction, and the
    # largest result is the peak (`deeper`).
    low_model, high_model = (
        Shallow(p.program, p.graph, p._traced.roles, p._traced.donated, chip_of(on).rebuilds)
        for p in (plans[low], plans[high])
    )
    return _totals(totals[low], totals[high], share, deeper(low_model, high_model, share))


def interpolated_amounts(low: ProgramAmounts, high: ProgramAmounts, share: float) -> ProgramAmounts:
    """Return the amounts on the line through two programs: `low` at share 0, `high` at share 1."""
    return low * (1 - share) + high * share


_SUMS = ("count", "flops", "wire_bytes")


def _totals(low: Totals, high: Totals, share: int, memory: Liveness) -> Totals:
    """Return the totals of a model whose depth is between or beyond two planned models.

    Totals are linear in the number of layers: share 0 gives `low`, share 1 gives `high`.

    Args:
      memory: the memory at this share, computed separately, because the peak is not linear.
    """

    def line(low_amount: Any, high_amount: Any) -> Any:
        """Return the amount at `share` on the line through the amounts of both models."""
        return low_amount + (high_amount - low_amount) * share

    def key(item: Item) -> tuple[str, tuple[str, ...], str, str]:
        return item.kind, item.axes, item.role, item.phase

    items = []
    low_items, high_items = ({key(item): item for item in totals.items} for totals in (low, high))
    for item_key in dict.fromkeys((*low_items, *high_items)):
        # The line needs both ends: a kind of work that one model lacks has zero amounts there.
        low_item, high_item = (
            side.get(item_key) or Item(*item_key, count=0, flops=0, wire_bytes=0, seconds=())
            for side in (low_items, high_items)
        )
        seconds = [dict(item.seconds) for item in (low_item, high_item)]
        causes = dict.fromkeys((*seconds[0], *seconds[1]))
        by_cause = tuple((c, line(*(side.get(c, 0.0) for side in seconds))) for c in causes)
        sums = {n: line(getattr(low_item, n), getattr(high_item, n)) for n in _SUMS}
        items.append(
            Item(*item_key, **sums, seconds=by_cause, slices=max(low_item.slices, high_item.slices))
        )
    return Totals(
        tuple(items),
        line(low.useful_flops, high.useful_flops),
        line(low.useful_s, high.useful_s),
        low.devices,
        memory,
    )


def from_amounts(done: ProgramAmounts, devices: int, memory: Liveness, chip: Hardware) -> Cost:
    """Return the cost of a step, given its amounts of work and the memory that it needs.

    The constants of the chip turn amounts into seconds. The cost has no useful flops.
    """
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
    """Return the cost of a model with `depth` layers; `plans` as in `work_of`.

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
    # One of the shallow costs is the base of the result, because the machine's text, the constants
    # and the overlap do not depend on the depth.
    found = totals_of(depth, plans, on)
    costs = {n: plan.cost(on, overlap=overlap) for n, plan in plans.items()}

    # The limits need an analysis of both programs, so they are computed only when a user asks.
    def limits() -> StepLimits:
        low, high = sorted(costs)
        share = (depth - low) // (high - low)
        return costs[low].limits * (1 - share) + costs[high].limits * share

    # Nothing was planned at this depth, so there is no table by module and no plan at other sizes.
    return replace(
        next(iter(costs.values())),
        totals=found,
        hints=found,
        by_module=None,
        elsewhere=None,
        analysis=limits,
    )
