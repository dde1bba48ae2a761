"""Peak memory of a program on one device, from the time that each local value is alive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from shardalg.costs.analyses.scaling import reused_arguments
from shardalg.costs.collectives import is_collective
from shardalg.costs.compute import contracts
from shardalg.costs.fusion import EXPANDS, NO_CASTS, Casts, casts, on_chip, traits, values_in_memory
from shardalg.costs.kernels.kernel_price import is_kernel
from shardalg.costs.saved_activations import last_uses, lifetimes
from shardalg.costs.walk import NOTHING, AliveBytes, LiveValue, ProgramPoint, local_bytes
from shardalg.graph.ir import Graph
from shardalg.palette import GREY, MEMORY
from shardalg.sizes.recorded import are_numbers, first_largest, total
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.instructions import (
    Apply,
    Branches,
    CollectiveMatmul,
    Control,
    Loop,
    Manual,
    While,
)
from shardalg.spmd.program import SpmdProgram
from shardalg.svg import Bar, Segment, bar_text, draw_bars, drawing_card
from shardalg.tables import MOST_ROWS, Table, bytes_text

_CLASS = {
    "activation": "activations",
    "gradient": "gradients",
    "loss": "transients",
    "constant": "constants",
    "unknown": "unknown",
    None: "transients",
}
"""For the role of a graph value, the class of its local values in memory.

Arguments, constants and results have classes of their own. A second layout of an argument is a
copy, so it is a transient.
"""


@dataclass(frozen=True, slots=True)
class Alive:
    """A local value that is in memory when the most bytes are alive.

    Attributes:
      local: number of the local value.
      memory_class: its class, such as "parameters" (see `Liveness.by_class`).
      name: name of its graph value, or `%` and its number.
      bytes: bytes that it takes on one device.
      of: local values whose sizes add up to `bytes`: the value itself, or the operands of
        a broadcast that is never written, or () for an argument that a loop shares with its body.
    """

    local: int
    memory_class: str
    name: str
    bytes: Any
    of: tuple[int, ...] = ()


@dataclass(frozen=True)
class Liveness:
    """Memory of one device at the moment when a program needs the most.

    Attributes:
      peak_bytes: the most bytes alive at once.
      instruction: the instruction that runs at the peak; None if the arguments alone are the peak.
        If the peak is in a loop body, it is the outermost loop.
      alive: the values alive at the peak, largest first.
      argument_bytes, result_bytes: bytes of the program's arguments and results, with padding.
      place: number of the instruction, then numbers inside of bodies (`costs.walk.ProgramPoint`).
      reused: donated arguments in whose memory results are written.
      reused_bytes: bytes of `reused_arguments`. Arguments and results together take
        `argument_bytes + result_bytes - reused_bytes`.
      capacity_bytes: memory of a device; None if no chip is known.
    """

    peak_bytes: Any
    instruction: Instruction | None
    alive: tuple[Alive, ...]
    argument_bytes: Any
    result_bytes: Any
    place: ProgramPoint = ()
    reused: tuple[int, ...] = ()
    reused_bytes: Any = 0
    capacity_bytes: Any = field(default=None, compare=False)

    @cached_property
    def by_class(self) -> dict[str, Any]:
        """Bytes alive at the peak, by class of value.

        Classes of arguments are "parameters", "optimizer_state" and "data". Other classes are
        "activations", "gradients", "constants", "results" and "transients" (intermediates). A value
        whose role is unknown has the class "unknown".
        """
        found: dict[str, list[Any]] = defaultdict(list)
        for value in self.alive:
            found[value.memory_class].append(value.bytes)
        return {name: total(sizes) for name, sizes in found.items()}

    def priced(self, program: SpmdProgram) -> Liveness:
        """Return this liveness with all bytes as formulas; peak and values alive do not change.

        Args:
          program: the same program with formulas for the sizes of its local values.
        """
        values = tuple(
            Alive(a.local, a.memory_class, a.name, local_bytes(program, a.of), a.of)
            for a in self.alive
        )
        return Liveness(
            total(a.bytes for a in values),
            self.instruction,
            values,
            local_bytes(program, program.block.arguments),
            local_bytes(program, program.block.results),
            self.place,
            self.reused,
            local_bytes(program, self.reused),
        )

    def table(self) -> Table:
        """Return a table of the values alive at the peak, largest first."""
        rows = ((a.name, a.memory_class, a.bytes) for a in self.alive if a.bytes)
        return Table(("value", "memory_class", "bytes"), tuple(rows))

    @property
    def sentence(self) -> str:
        """The peak with its share of the device's memory, as text."""
        peak, capacity = _amount(self.peak_bytes), self.capacity_bytes
        # A formula has no share of a number, and some devices have no known capacity.
        if not capacity or not isinstance(self.peak_bytes, int | float):
            return f"Peak memory {peak}"
        share = self.peak_bytes / capacity
        percent = f"{100 * share:.3g} %" if share >= 1e-3 else "less than 0.1 %"
        fit_text = "" if share <= 1 else ", does not fit"
        return f"Peak memory {peak} of {bytes_text(capacity)} ({percent}){fit_text}"

    def __repr__(self) -> str:
        """Return the peak and a bar per class of memory, the largest first.

        >>> from shardalg.costs.memory import Alive, Liveness
        >>> kept = Alive(0, "parameters", "w", 6_000_000), Alive(1, "activations", "y", 2_000_000)
        >>> Liveness(8_000_000, None, kept, 0, 0, capacity_bytes=16_000_000)
        Peak memory 8 MB of 16 MB (50 %)
        parameters   ██████████████████         6 MB
        activations  ██████                     2 MB
        """
        rows = [(name, size) for name, size in self.by_class.items() if size]
        # Formulas have no length for a bar, so they are listed.
        if not all(isinstance(size, int | float) for _, size in rows):
            parts = ", ".join(f"{name} {_amount(size)}" for name, size in rows)
            return f"{self.sentence}: {parts}"
        width = max((len(name) for name, _ in rows), default=0)
        lines = [
            f"{name.ljust(width)}  {bar_text(size, self.peak_bytes).ljust(25)}  {bytes_text(size)}"
            for name, size in sorted(rows, key=lambda row: -row[1])
        ]
        return "\n".join([self.sentence, *lines])

    def _repr_html_(self) -> str:
        """Return a drawing for notebooks: a bar by class with the capacity, and a table."""
        # Formulas have no length for a bar; the table below has them.
        rows = [(n, s) for n, s in self.by_class.items() if s and isinstance(s, int | float)]
        ordered = sorted(rows, key=lambda row: -row[1])
        parts = tuple(
            Segment(name.replace("_", " "), size, bytes_text(size), MEMORY.get(name, GREY))
            for name, size in ordered
        )
        capacity = self.capacity_bytes or 0
        limit = f"{bytes_text(capacity)} of the device" if capacity else ""
        canvas = draw_bars((Bar("", parts),), limit=capacity, limit_text=limit)
        table = self.table()
        shown = Table(
            ("value", "memory_class", "size"),
            tuple((n, c, _amount(b)) for n, c, b in table.rows[:MOST_ROWS]),
        )
        left = len(table) - len(shown)
        more = (f"... and {left} more rows.",) if left else ()
        ok = None if not capacity or not rows else bool(self.peak_bytes <= capacity)
        return drawing_card(f"{self.sentence}.", canvas, shown, *more, ok=ok)


def _amount(size: Any) -> str:
    """Return bytes with a unit, and a formula of bytes as it is."""
    return bytes_text(size) if isinstance(size, int | float) else f"{size} B"


def liveness(
    program: SpmdProgram,
    graph: Graph | None = None,
    *,
    roles: Sequence[str] | None = None,
    donated: Sequence[int] = (),
    rebuild: bool = False,
) -> Liveness:
    """Return the most bytes alive on one device while the program runs, with the values alive.

    A value lives from the instruction that makes it to the last instruction that reads it.
    Constants, results, and arguments that are not donated live to the end. A donated argument
    lives until the result in its memory is made, or longer if it is still read. Without such a
    result it lives to the end (`costs.analyses.scaling.reused_arguments`).

    The operands and results of an instruction are alive together while it runs. A pointwise
    operator may write over an operand that dies; a contraction or a collective may not.
    A broadcast whose readers are all pointwise counts as its operands. A loop has its operands,
    stacked results and carry in memory. On top comes the peak of its body, in which one slice of
    each xs and the next carry are alive. A compiler with more fusion keeps fewer intermediates.
    A compiler that does not reuse buffers keeps more.

    Args:
      graph: if None, no instruction is known to write over its operand or to be a broadcast.
      roles: role of each graph value (`graph.ops.roles.roles`); if None, classes are "unknown".
      donated: positions of the flattened arguments whose buffers the program may take over.
      rebuild: whether pointwise operators are fused and repeated in the backward pass
        (`costs.saved_activations.lifetimes`). Values between fused operators take no memory.
        Needs the graph.

    The model is XLA's buffer assignment (`xla/service/buffer_assignment.h`) without layouts and
    fragmentation.
    """
    # The scan takes two thirds of the time of a price, so its result is cached for all chips.
    # Recorded sizes are scanned each time, because their comparisons must be recorded as guards.
    is_plain = are_numbers(local.bytes for local in program.locals)
    cache = vars(program).setdefault("_liveness", {}) if is_plain else {}
    key = (id(graph), tuple(roles or ()), tuple(donated), rebuild)
    if key not in cache:
        scan = Scan(program, graph, key[1], rebuild and graph is not None)
        lives = scan.lives(donated)
        found = scan.liveness(lives, scan.peak(program.block, lives).peak[1])
        arguments = tuple(reused_arguments(program, donated).values())
        found = replace(found, reused=arguments, reused_bytes=local_bytes(program, arguments))
        # The cache keeps the graph alive, so that no other graph gets its `id`.
        cache[key] = graph, found
    return cache[key][1]


def peak_place(program: SpmdProgram, graph: Graph, donated: Sequence[int] = ()) -> ProgramPoint:
    """Return the place of the instruction at which the most bytes are alive.

    Args:
      donated: positions of the flattened arguments whose buffers the program may take over.
    """
    scan = Scan(program, graph, ())
    return scan.peak(program.block, scan.lives(donated)).peak[1]


def peak_bytes(program: SpmdProgram, graph: Graph, *, donated: Sequence[int], rebuild: bool) -> Any:
    """Return the most bytes alive at once on one device, as a number or a formula.

    Args:
      donated: positions of the flattened arguments whose buffers the program may take over.
      rebuild: whether the backward pass recomputes cheap values instead of keeping them.
    """
    scan = Scan(program, graph, (), rebuild)
    return scan.peak(program.block, scan.lives(donated)).peak[0]


def held_bytes(
    program: SpmdProgram, graph: Graph, *, donated: Sequence[int], rebuild: bool
) -> list[Any]:
    """Return the bytes alive at each instruction of the program's outermost block.

    At a loop, they are the most bytes alive while its body runs.

    Args:
      donated: positions of the flattened arguments whose buffers the program may take over.
      rebuild: whether the backward pass recomputes cheap values instead of keeping them.
    """
    scan = Scan(program, graph, (), rebuild)
    line = scan.peak(program.block, scan.lives(donated))
    # The empty place is the start of the program, before any instruction.
    return [held for held, place in line.totals if place]


@dataclass(frozen=True)
class Lives:
    """The times at which the local values of a block are in memory.

    Attributes:
      start: the values alive at the start of the block, with their bytes.
      pinned: values that stay in memory to the end of the block.
      last: for each value, the number of the last instruction that needs it.
      written: values that are in memory even if their readers fuse (`costs.fusion`).
      never: values that are never in memory.
      sources: for a value that each fused reader recomputes, the values in memory that it is
        computed from.
      shielded: values whose memory no fused operator takes over.
      reused: for each result of the program, the donated argument in whose memory it is written.
    """

    start: dict[int, LiveValue]
    pinned: frozenset[int]
    last: Mapping[int, int]
    written: frozenset[int] = frozenset()
    never: frozenset[int] = frozenset()
    sources: Mapping[int, frozenset[int]] = field(default_factory=dict)
    shielded: frozenset[int] = frozenset()
    reused: Mapping[int, int] = field(default_factory=dict)

    def ends(self, length: int) -> list[list[int]]:
        """Return, for each instruction of the block, the values that it is the last to need.

        Args:
          length: number of instructions in the block.
        """
        found: list[list[int]] = [[] for _ in range(length)]
        # A value that the block returns is needed one past the end: no instruction is the last.
        for value, i in self.last.items():
            if i < length and value not in self.pinned:
                found[i].append(value)
        return found


@dataclass(frozen=True)
class Scan:
    """Scan of a program that counts the bytes alive at each instruction.

    Attributes:
      graph: the program's graph; None if fusion is not considered.
      roles: role of each graph value, for the classes of memory; () if unknown.
      rebuild: whether the backward pass recomputes cheap values instead of keeping them.
    """

    program: SpmdProgram
    graph: Graph | None
    roles: tuple[str, ...]
    rebuild: bool = False

    def lives(self, donated: Sequence[int]) -> Lives:
        """Return when the values of the program's outermost block are in memory.

        The memory of donated arguments is reused for results.

        Args:
          donated: positions of the flattened arguments whose buffers the program may take over.
        """
        arguments = self.program.block.arguments
        start = dict.fromkeys([*arguments, *(local for local, _ in self.program.constants)])
        held = {v: self.whole[v] for v in start}
        # A result that no instruction makes is copied to its place when the program ends.
        block = self.program.block
        made = {value: at for at, one in enumerate(block.instructions) for value in one.results}
        pairs = {
            result: argument
            for result, argument in reused_arguments(self.program, donated).items()
            if result in made
        }
        # The caller keeps an argument that is not donated. XLA frees a donated one only if a result
        # takes its memory. So all other arguments live to the end.
        free = frozenset(pairs.values())
        lives = self.span(block, held, frozenset(start) - free)
        # Until its result is made, nothing else is written in the memory of an argument.
        last = dict(lives.last)
        for result, argument in pairs.items():
            last[argument] = max(last.get(argument, 0), made[result])
        return replace(lives, last=last, reused=pairs)

    def span(self, block: Block, start: dict[int, LiveValue], pinned: frozenset[int]) -> Lives:
        """Return the times at which each value of a block is in memory.

        Args:
          start: the values alive at the start of the block, with their bytes.
          pinned: values that stay in memory to the end of the block.

        There are three models. Without a graph, every value is in memory from its instruction to
        its last use. With a graph, values that kernels keep on the chip or cast themselves are not
        in memory. With `rebuild`, pointwise operators are also fused, and the backward pass repeats
        them instead of keeping their results.
        """
        graph = self.graph
        if graph is None:
            return Lives(start, pinned, last_uses(block.instructions, block.results))
        written, never = values_in_memory(block, graph), self.on_chip
        if not self.rebuild:
            last = last_uses(block.instructions, block.results)
            read = self.casts.read
            # `read` has, for the result of a cast, the value before the cast. A product reads that
            # value and casts it itself, so the value lives as long as its cast would.
            for value in last.keys() & read.keys():
                last[read[value]] = max(last[read[value]], last[value])
            return Lives(start, pinned, last, written, never.union(read))
        found = lifetimes(self.program, graph, block)
        never |= found.sources.keys()
        return Lives(start, pinned, found.last, written, never, found.sources, found.reduced)

    @cached_property
    def on_chip(self) -> frozenset[int]:
        """Values that attention kernels keep on the chip, so that they take no memory."""
        return on_chip(self.program, self.graph) if self.graph else frozenset()

    @cached_property
    def casts(self) -> Casts:
        """Casts that the kernels of products carry out (`costs.fusion.casts`)."""
        return casts(self.program, self.graph) if self.graph else NO_CASTS

    def liveness(self, lives: Lives, place: ProgramPoint) -> Liveness:
        """Return the `Liveness` of the values alive while the instruction at a place runs."""
        program, block = self.program, self.program.block
        timeline = self.peak(block, lives, stop=place)
        # If the place is in a loop body, the values alive there (`inner`) add to those around it.
        alive_sizes = {**timeline.alive, **timeline.inner}
        rows = (
            Alive(v, self.memory_class(v), self.name(v), *size) for v, size in alive_sizes.items()
        )
        # Ties are ordered by number, so that the order does not depend on the scan.
        alive = tuple(sorted(rows, key=lambda row: (-row.bytes, row.local)))
        return Liveness(
            sum(row.bytes for row in alive),
            block.instructions[place[0]] if place else None,
            alive,
            local_bytes(program, block.arguments),
            local_bytes(program, block.results),
            place,
        )

    @cached_property
    def whole(self) -> tuple[LiveValue, ...]:
        """The bytes of each local value, whether or not it is in memory.

        The kernel of a product may cast the result and write only the cast value. Then the entries
        of the result and of the cast value are equal: the bytes of the cast value.
        """
        held, written = self.program.locals, self.casts.written
        found = [LiveValue(v.bytes, (v.index,)) for v in held]
        for value, cast in written.items():
            found[value] = found[cast]
        return tuple(found)

    def peak(self, block: Block, lives: Lives, stop: ProgramPoint | None = None) -> AliveBytes:
        """Scan a block, and return the bytes alive at each of its instructions.

        Args:
          stop: the place of the instruction at which the scan ends, so that the result has the
            values alive there; None scans the whole block.
        """
        line = self.begin(lives.start)
        if stop == ():
            return line
        # A value without a reader has no last reader that would free it below.
        for value in lives.start.keys() - lives.last.keys() - lives.pinned:
            line.drop(value)
        count, last, whole = len(block.instructions), lives.last, self.whole
        ends, bits = lives.ends(count), traits(block, self.graph) if self.graph else bytes(count)
        for i, instruction in enumerate(block.instructions):
            dying, results = ends[i], instruction.results
            # Only values that die here can be overwritten. An operand that is overwritten is
            # dropped before the result is added, so that both are never counted together.
            for value in (
                self.values_overwritten(instruction, dying, line.alive, lives) if dying else ()
            ):
                line.drop(value)
            for value in results:
                held = NOTHING if value in lives.never else whole[value]
                # The readers of a broadcast repeat it, so it takes only the memory of its operand,
                # unless it is in memory for another reason (`written`).
                if bits[i] & EXPANDS and value not in lives.written:
                    held = self.broadcast_bytes(instruction, held, line.alive)
                line.add(value, held)
            # An instruction's total is taken here: its results are added, and its operands are not
            # freed yet.
            if stop is None:
                line.reach(i, self.inside(instruction))
            elif i == stop[0]:
                inner = self.inside(instruction, stop[1:])
                line.inner = inner.alive if inner else {}
                break
            # A result that nothing reads is alive only while its own instruction runs.
            for value in (*dying, *[v for v in results if v not in last]):
                line.drop(value)
        return line

    def begin(self, start: dict[int, LiveValue]) -> AliveBytes:
        """Return a count of bytes alive that starts with the values at the start of a block."""
        total = sum(held.bytes for held in start.values())
        return AliveBytes(dict(start), total, totals=[(total, ())])

    def inside(
        self, instruction: Instruction, stop: ProgramPoint | None = None
    ) -> AliveBytes | None:
        """Return the bytes alive in the body of an instruction; None if it has no body.

        Of several bodies, it is the one that needs the most memory. The bytes are in addition to
        the instruction's own operands and results.

        Args:
          stop: the place inside of the body at which the scan ends; None scans the whole body.
        """
        control = instruction.attributes
        blocks = control.bodies
        if not blocks:
            return None
        if isinstance(control, CollectiveMatmul):
            return self.travelling(control)
        # A loop cuts slices out of its other operands, and these need memory of their own. The
        # bodies of all other instructions read the operands themselves (None: all of them).
        outside = control.num_consts + control.num_carry if type(control) is Loop else None
        lines = [self.body(block, outside) for block in blocks]
        most = first_largest([line.peak[0] for line in lines])
        return self.largest(lines, most) if stop is None else self.body(blocks[most], outside, stop)

    def largest(self, lines: list[AliveBytes], most: int) -> AliveBytes:
        """Return the bytes alive in an instruction that runs one of several bodies.

        Args:
          lines: the bytes alive in each body.
          most: number of the body that needs the most memory.
        """
        # A subclass combines the counts of all bodies here (`analyses.peaks`).
        return lines[most]

    def travelling(self, ring: CollectiveMatmul) -> AliveBytes:
        """Return the bytes alive inside of a collective matmul: two blocks of its ring.

        They replace the intermediate value that a separate collective would write.
        """
        # A device multiplies one block while it receives the next.
        collective = ring.collective
        (moves,) = collective.operands if ring.gathers else collective.results
        (handed,) = ring.body.instructions[0].results
        held = LiveValue(2 * self.whole[moves].bytes, (moves, moves))
        return AliveBytes({handed: held}, held.bytes, totals=[(held.bytes, ())])

    def body(
        self, block: Block, outside: int | None, stop: ProgramPoint | None = None
    ) -> AliveBytes:
        """Return the bytes alive at each instruction in the body of a loop or a branch.

        Args:
          outside: number of leading arguments that share the memory of the loop's operands, so that
            they count 0 bytes; None means all arguments.
          stop: the place inside of the body at which the scan ends; None scans the whole body.
        """
        # The instruction around the body already counts constants and carries as its operands.
        start = dict.fromkeys(block.arguments[:outside], NOTHING)
        pinned = frozenset(start)
        held = {v: NOTHING if v in self.on_chip else self.whole[v] for v in block.arguments}
        start |= {v: held[v] for v in block.arguments if v not in start}
        line = self.peak(block, self.span(block, start, pinned), stop)
        line.alive.update(line.inner)
        return line

    def broadcast_bytes(
        self, instruction: Instruction, own: LiveValue, alive: dict[int, LiveValue]
    ) -> LiveValue:
        """Return the bytes that a broadcast takes if its readers repeat it.

        They are its own bytes, or the bytes of its operands if these are fewer.

        Args:
          own: the bytes of the broadcast's result.
          alive: the bytes of each value that is alive.
        """
        read = [alive.get(operand, NOTHING) for operand in instruction.operands]
        of = tuple(v for held in read for v in held.of)
        return min(own, LiveValue(sum(h.bytes for h in read), of), key=lambda held: held.bytes)

    def values_overwritten(
        self, instruction: Instruction, dying: list[int], alive: dict[int, LiveValue], lives: Lives
    ) -> Iterator[int]:
        """Yield the values whose memory a result of an instruction takes over.

        Args:
          dying: values that this instruction is the last to need.
          alive: the bytes of each value that is alive.
        """
        # `held` has the bytes of each value, and `free` the values that a fused operator may
        # overwrite. No value is overwritten twice, and no result takes over two values.
        held, written, free = self.whole, set(), set(dying) - lives.shielded
        # A donated argument and its result were paired beforehand, as XLA aliases them.
        for result in instruction.results if lives.reused else ():
            argument = lives.reused.get(result)
            # An operand is still read here. It is overwritten only by an operator that works in
            # place, see below.
            if argument in dying and argument not in instruction.operands:
                free.discard(argument)
                written.add(result)
                yield argument
        for operand, result in self.in_place(instruction, free, lives) if free else ():
            if operand not in free or result in written or operand not in alive:
                continue
            # A buffer is taken over only by a result of the same size that is in memory at all.
            if alive[operand].bytes == held[result].bytes and result not in lives.never:
                free.remove(operand)
                written.add(result)
                yield operand

    def in_place(
        self, instruction: Instruction, free: set[int], lives: Lives
    ) -> Iterable[tuple[int, int]]:
        """Return pairs (operand, result) in which the result may overwrite the operand.

        A loop may overwrite its carry, and a pointwise operator any operand. Pairs of a loop may
        contain operands outside of `free`; the caller skips these.

        Args:
          free: operands that no later instruction needs.
        """
        control = instruction.attributes
        if isinstance(control, Control):
            carry = _CARRIED[type(control)](control, instruction.operands)
            return zip(carry, instruction.results, strict=False)
        if self.writes_apart(instruction) or not instruction.results:
            return ()
        # An operand between fused operators is not in memory. The result can then overwrite the
        # values from which this operand is computed (`sources`).
        sources_of_operands = (lives.sources.get(v, (v,)) for v in instruction.operands)
        free_sources = [
            v
            for sources in sources_of_operands
            if not free.isdisjoint(sources)
            for v in sorted(free.intersection(sources))
        ]
        return [(operand, instruction.results[0]) for operand in free_sources]

    def writes_apart(self, instruction: Instruction) -> bool:
        """Return whether an instruction still reads operands while it writes its result.

        This holds for contractions, kernels and collectives. Their result cannot overwrite an
        operand.
        """
        if type(instruction.attributes) is not Apply:
            return is_collective(instruction.attributes)
        # Without the graph, every operator counts, so that the peak is not too low. An operator
        # without a node was added by partitioning, and is no contraction.
        if self.graph is None or instruction.node is None:
            return self.graph is None
        signature = self.graph.nodes[instruction.node].signature
        return contracts(signature) or is_kernel(signature)

    def memory_class(self, value: int) -> str:
        """Return the class of a local value, such as "parameters"; see `Liveness.by_class`."""
        role, border = self.role(value), self.border.get(value)
        if border == "argument":
            return role or "unknown"
        return border or _CLASS.get(role, "transients")

    @cached_property
    def border(self) -> dict[int, str]:
        """For each result, constant and argument: "results", "constants" or "argument"."""
        block = self.program.block
        return {
            **dict.fromkeys(block.results, "results"),
            **{local: "constants" for local, _ in self.program.constants},
            **dict.fromkeys(block.arguments, "argument"),
        }

    def role(self, value: int) -> str | None:
        """Return the role of a local value, such as "gradient"; None for an intermediate."""
        origin = self.program.locals[value].origin
        if origin is None:
            return None
        return self.roles[origin] if origin < len(self.roles) else "unknown"

    def name(self, value: int) -> str:
        """Return the name of a local value's graph value; an intermediate is `%` and its number."""
        origin = self.program.locals[value].origin
        if origin is None or self.graph is None:
            return f"%{value}"
        return self.graph.values[origin].name


_CARRIED: dict[type, Callable[..., tuple[int, ...]]] = {
    Loop: lambda loop, operands: operands[loop.num_consts : loop.num_consts + loop.num_carry],
    While: lambda loop, operands: operands[sum(loop.num_consts) :],
    Branches: lambda branches, operands: (),
    Manual: lambda region, operands: (),
    CollectiveMatmul: lambda ring, operands: (),
}
"""For each kind of instruction with bodies, its operands that are the carry of a loop.

The first results may take over the memory of these operands.
"""
