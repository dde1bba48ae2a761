"""What one call of a program costs on one device: time, communication, flops and memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shardalg.costs.analyses.crossing import largest, largest_near, less, turns
from shardalg.costs.collectives import RING_BYTES
from shardalg.costs.hardware import Hardware
from shardalg.costs.memory import Liveness
from shardalg.costs.network.placement import LINK
from shardalg.errors import TableError
from shardalg.sizes.amounts import number
from shardalg.sizes.formula import Formula, FormulaError, has_formula
from shardalg.sizes.maximum import larger, largest_of
from shardalg.sizes.recorded import total
from shardalg.tables import Table, bytes_text, html_part, seconds_text

if TYPE_CHECKING:
    from shardalg.costs.symbolic import Sizes


FORMATTING = "formatting"
MATRIX, MEMORY = "matrix", "memory"
"""Causes of seconds beside those of `costs.network.collective_seconds`: arithmetic at its peak, and
traffic to and from a device's own memory where that takes longer."""


@dataclass(frozen=True, slots=True)
class Item:
    """What the instructions of one kind, on the same axes, cost together on one device.

    Attributes:
      kind: "contraction", "other compute", "formatting" (slices, pads and masks that blocks need
        and the function does not have), or the kind of a collective.
      count: executions, trip counts included; flops, wire_bytes and seconds are of all of them.
      seconds: by cause: "matrix" or "memory" of a local operator, of which the longer counts; of a
        collective "link", "network" (between islands), "dcn" (between slices) and "latency".
    """

    kind: str
    axes: tuple[str, ...]
    role: str
    phase: str
    count: Any
    flops: Any
    wire_bytes: Any
    seconds: tuple[tuple[str, Any], ...]

    @property
    def time_s(self) -> Any:
        """Seconds of all causes together."""
        return total(seconds for _, seconds in self.seconds)

    @property
    def is_communication(self) -> bool:
        """Whether the item is a collective."""
        return self.kind in RING_BYTES


@dataclass(frozen=True)
class Totals:
    """Sums over the items and the memory: numbers, or formulas.

    Attributes:
      items: compute and collectives by kind, axes, role and phase.
      useful_flops: of one call on global shapes (`costs.compute.useful_flops`).
      useful_s: seconds that these would keep one device at its peak.
      devices: size of the mesh.
      memory: bytes alive at the peak, by class; of formulas, at the hints' peak.
      peaks: of formulas, makes the bytes of which the largest is the peak, wherever that is; None
        where they are not known.
    """

    items: tuple[Item, ...]
    useful_flops: Any
    useful_s: Any
    devices: Any
    memory: Liveness
    peaks: Callable[[], Sequence[Formula]] | None = field(default=None, compare=False)

    @cached_property
    def peak_bytes(self) -> Any:
        """Most bytes alive at once; of formulas the largest of those alive at each instruction."""
        return largest_of(self.peaks()) if self.peaks else self.memory.peak_bytes

    def sum(self, quantity: str, *, communication: bool | None = None) -> Any:
        """Sum of a field of the items, of all or of one sort."""
        chosen = (i for i in self.items if communication in (None, i.is_communication))
        return total(getattr(item, quantity) for item in chosen)

    def seconds(self) -> dict[str, Any]:
        """Seconds by cause; of links by the axes that collectives go along, as "link X,Y"."""
        found: dict[str, list[Any]] = {}
        for item in self.items:
            for cause, seconds in item.seconds:
                name = f"{LINK} {','.join(item.axes)}" if cause == LINK else cause
                found.setdefault(name, []).append(seconds)
        return {name: total(amounts) for name, amounts in found.items()}

    def named(self) -> Iterator[tuple[str, Any]]:
        """Every quantity with its name, as `Cost.formulas` prints them."""
        yield "step_time_s", self.sum("time_s")
        yield "compute_s", self.sum("time_s", communication=False)
        yield "communication_s", self.sum("time_s", communication=True)
        yield "wire_bytes", self.sum("wire_bytes")
        yield "flops", self.sum("flops")
        yield "useful_flops", self.useful_flops
        yield "peak_memory_bytes", self.peak_bytes
        yield from ((f"{name}_bytes", size) for name, size in self.memory.by_class.items())


@dataclass(frozen=True)
class Elsewhere:
    """What a plan with named sizes says of other sizes, where it is asked.

    Attributes:
      fits: whether the plan at a size of each name fits a device (`Plan.at`).
    """

    fits: Callable[[Mapping[str, int]], bool]


@dataclass(frozen=True, repr=False)
class Cost:
    """Price of one call of a program on one device of each kind of `hardware`.

    Of a plan with named sizes, every quantity is a sympy expression, in which the longer of
    arithmetic and memory traffic of an operator is a `Max`, and so is the peak of memory: the
    largest of the bytes alive at the instructions that can have most of them. Its classes
    (`memory_by_class`) are those at the instruction that is the peak at the hints.

    Attributes:
      totals: the exact prices, numbers or formulas.
      hints: the same in numbers, at the hints; of a plan in numbers, `totals` itself.
      sizes: the names of the sizes; None in a plan in numbers.
      by_module: makes the table by module; None where nothing tells modules.
      elsewhere: asks the plan at other sizes; None of a program that no plan made.
      overlap: of compute and collectives: "none", "asynchronous", "dependences" or "full".
      scheduled_s: the step with the overlap that dependences allow, at the hints.
      counted_once: lines of the `while` loops of unknown length, which count as one iteration.
      machine: text that names the chip, the number of devices, and the source of both.
    """

    hardware: Hardware
    totals: Totals
    hints: Totals
    sizes: Sizes | None = None
    overlap: str = "none"
    scheduled_s: float | None = None
    by_module: Callable[[], Table] | None = field(default=None, compare=False)
    elsewhere: Elsewhere | None = field(default=None, compare=False)
    counted_once: tuple[str, ...] = field(default=(), compare=False)
    machine: str = field(default="", compare=False)

    def _shown(self, value: Any) -> Any:
        """A number as it is, a formula in sympy."""
        return self.sizes.sympy(value) if self.sizes and has_formula((value,)) else value

    @property
    def items(self) -> tuple[Item, ...]:
        """Compute and collectives by kind, axes, role and phase, in numbers or formulas."""
        return self.totals.items

    @property
    def memory(self) -> Liveness:
        """Bytes alive at the peak, by class, in numbers or formulas."""
        return replace(self.totals.memory, peak_bytes=self.totals.peak_bytes)

    @cached_property
    def devices(self) -> Any:
        """Size of the mesh."""
        return self._shown(self.totals.devices)

    @cached_property
    def useful_flops(self) -> Any:
        """Floating-point operations of one call on global shapes."""
        return self._shown(self.totals.useful_flops)

    @cached_property
    def compute_s(self) -> Any:
        """Seconds of the local operators: the longer of arithmetic and memory traffic of each."""
        return self._shown(self.totals.sum("time_s", communication=False))

    @cached_property
    def communication_s(self) -> Any:
        """Seconds of the collectives, one after the other."""
        return self._shown(self.totals.sum("time_s", communication=True))

    @cached_property
    def seconds_by_cause(self) -> dict[str, Any]:
        """Seconds by what they are spent on, which together are `compute_s + communication_s`.

        "matrix": arithmetic at the peak; "memory": traffic to and from a device's own memory, where
        that takes longer than the arithmetic; "link X": bytes along axis X; "network": between
        islands; "dcn": between slices; "latency": of all hops.
        """
        return {name: self._shown(seconds) for name, seconds in self.totals.seconds().items()}

    @cached_property
    def formatting_s(self) -> Any:
        """Seconds of formatting, a part of `compute_s`: slices, pads, masks that nothing fuses."""
        chosen = (item.time_s for item in self.items if item.kind == FORMATTING)
        return self._shown(total(chosen))

    @cached_property
    def step_time_s(self) -> Any:
        """Seconds of a step: compute and communication as `overlap` says.

        "none": their sum; "full": the longer one; "dependences": what the program's dependences
        allow, "asynchronous": and the chip's compiler, neither of which has a formula.

        Raises:
          FormulaError: "dependences" or "asynchronous" of a plan with named sizes.
        """
        return self._shown(self._time(self.totals))

    def _time(self, totals: Totals) -> Any:
        """The step time of some totals, numbers or formulas."""
        compute, sent = (totals.sum("time_s", communication=c) for c in (False, True))
        if self.overlap == "none":
            return compute + sent
        if self.overlap == "full":
            return larger(compute, sent)
        if totals is not self.hints:
            raise FormulaError(
                f"overlap={self.overlap!r} is a schedule, which has no formula in named sizes: "
                "take 'none' or 'full', or ask plan.at(...) for numbers."
            )
        return self.scheduled_s

    @cached_property
    def peak_memory_bytes(self) -> Any:
        """Most bytes alive at once on one device."""
        return self._shown(self.totals.peak_bytes)

    @cached_property
    def memory_by_class(self) -> dict[str, Any]:
        """Bytes alive at the peak per class; see `costs.memory.Liveness.by_class`.

        Formulas are of the instruction that is the peak at the hints.
        """
        return {name: self._shown(size) for name, size in self.totals.memory.by_class.items()}

    @property
    def fits(self) -> Any:
        """Whether the peak is within the memory of a device; in formulas, the inequality."""
        return self.peak_memory_bytes <= self.hardware.hbm_bytes

    @cached_property
    def flops(self) -> Any:
        """Floating-point operations of one device, padding and repeated work included."""
        return self._shown(self.totals.sum("flops"))

    @cached_property
    def wire_bytes(self) -> Any:
        """Bytes that one device sends."""
        return self._shown(self.totals.sum("wire_bytes"))

    @property
    def flops_utilization(self) -> Any:
        """Useful share of what the devices could do: `useful_s / (devices * step_time_s)`."""
        if not self.step_time_s:
            return 0.0
        return self._shown(self.totals.useful_s) / (self.devices * self.step_time_s)

    def crossover(
        self, other: Cost, name: str, *, quantity: str = "step_time_s"
    ) -> tuple[int, ...]:
        """The values of a named size at which this costs more instead of less, or less again.

        All other sizes stay at their hints, and so does what planning decides (`Plan.holds`). At
        each of these integers the sign of the difference is another one than at the integer before;
        up to 16384 there is no other, beyond it some of two that are close may be left out.

        Args:
          quantity: as in `formulas`.

        Raises:
          FormulaError: plans in numbers, no cost, an unknown size or quantity, or one that does not
            depend on it.
        """
        difference, hints = self._less_than(other, quantity)
        if name not in hints:
            raise FormulaError(f"{name!r} is no size of the plans, which have {', '.join(hints)}.")
        return turns(difference, name, hints)

    def beats(self, other: Cost, *, quantity: str = "peak_memory_bytes") -> str:
        """The inequality of sizes under which this costs less than the other; "always", "never".

        Raises:
          FormulaError: plans in numbers, no cost, or an unknown quantity.
        """
        difference, _ = self._less_than(other, quantity)
        return less(Formula({}), -difference)

    def largest_batch_that_fits(self, name: str = "B") -> int:
        """The largest value of a named size that was found at which the plan fits; 0 if none does.

        All other sizes stay at their hints. The formulas of what is alive at each instruction say
        where to look; from there the plan is made at one size after the other, as `Plan.at` makes
        it, so that it fits at the one that comes back. Looked at are the multiples of the hint that
        all devices divide, then between two of them ever finer ones: a larger size that divides
        less evenly may fit.

        Raises:
          FormulaError: no such named size, or a program that no plan made.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> B, M = sa.dims("B M", hint=(64, 1024))
        >>> x = jax.ShapeDtypeStruct((B, M), "float32")
        >>> mesh = sa.Mesh({"X": 8}, symbolic=True)
        >>> plan = sa.plan(lambda x: x.sum(1), x, mesh=mesh, in_shardings=(P("X"),))
        >>> found = plan.cost("tpu_v3").largest_batch_that_fits("B")
        >>> fits = [plan.at(B=size).cost("tpu_v3").fits for size in (found, found + 8)]
        >>> found, fits
        (33521688, [True, False])
        """
        if self.sizes is None or name not in self.sizes.hints:
            known = sorted(self.sizes.hints) if self.sizes else "none: plan with sa.dims"
            raise FormulaError(f"{name!r} is no named size of this plan; there are {known}.")
        if self.elsewhere is None:
            raise FormulaError("no plan made this program: ask the cost of a plan, plan.cost(...).")
        others = {n: size for n, size in self.sizes.hints.items() if n != name}
        made = self.totals.peaks() if self.totals.peaks else (self.totals.peak_bytes,)
        peaks = [Formula.of(peak).subs(others) for peak in made]
        most, plan = self.hardware.hbm_bytes, self.elsewhere
        guess = largest(lambda n: all(peak.at({name: n}) <= most for peak in peaks))
        step = math.lcm(self.sizes.hints[name], self.hints.devices)
        return largest_near(lambda n: plan.fits({**others, name: n}), guess, step)

    def _less_than(self, other: Cost, quantity: str) -> tuple[Formula, dict[str, int]]:
        """What this costs more than another, and the hints of both."""
        if not isinstance(other, Cost):
            raise FormulaError(
                f"costs are compared, as plan.cost(hardware) gives them; got {other!r:.80}."
            )
        if self.sizes is None or other.sizes is None:
            raise FormulaError(
                "plans in numbers have no crossover: name sizes with sa.dims, or a symbolic mesh."
            )
        prices = [
            {**dict(c.totals.named()), "step_time_s": c._time(c.totals)} for c in (self, other)
        ]
        if any(quantity not in found for found in prices):
            raise FormulaError(f"{quantity!r} is none of {', '.join(prices[0])}.")
        ours, theirs = (Formula.of(found[quantity]) for found in prices)
        return ours - theirs, {**other.sizes.hints, **self.sizes.hints}

    def table(self, by: str | None = None) -> Table:
        """A row per kind, axes, role and phase, the longest (at the hints) first.

        Overlappable are collectives that the chip's compiler splits into a start and a done. Of
        all-reduces that are sent as one, the first has the time of all.

        Args:
          by: "module": a row per module of the function, alike ones folded, with what it takes,
            sends, and holds at the peak (at the hints).

        Raises:
          TableError: `by` something else, or of a program that no plan made.
        """
        if by is not None:
            if by != "module" or self.by_module is None:
                raise TableError(f"by={by!r}: the costs of a plan are folded by 'module', or None.")
            return self.by_module()
        pairs = zip(self.items, self.hints.items, strict=True)
        ordered = [item for item, hint in sorted(pairs, key=lambda pair: -pair[1].time_s)]
        rows = (
            (
                *(i.kind, ",".join(i.axes), i.role, i.phase),
                *map(self._shown, (i.count, i.flops, number(i.wire_bytes), i.time_s)),
                i.kind in self.hardware.interconnect.asynchronous,
            )
            for i in ordered
        )
        names = (
            "kind", "mesh_axes", "role", "phase", "executions", "flops", "wire_bytes_per_step",
            "time_s", "overlappable",
        )  # fmt: skip
        return Table(names, tuple(rows))

    def formulas(self) -> Table:
        """Every quantity as a formula in the named sizes, and as a number at the hints."""
        pairs = list(zip(self.totals.named(), self.hints.named(), strict=True))
        if self.overlap != "none":
            times = (self._time(self.totals), self._time(self.hints))
            pairs[0] = (("step_time_s", times[0]), ("step_time_s", times[1]))
        rows = ((name, self._shown(value), number(at)) for (name, value), (_, at) in pairs)
        return Table(("quantity", "formula", "at_hints"), tuple(rows))

    @property
    def machine_text(self) -> str:
        """Text that names the chip, the number of devices, and the source of both."""
        return self.machine or f"{self.hints.devices} x {self.hardware.name} (as asked for)"

    @property
    def at_hints(self) -> Cost:
        """The same cost in numbers, at the hints."""
        return replace(self, totals=self.hints, sizes=None)

    def __repr__(self) -> str:
        at = self.at_hints
        room = "fits in" if at.fits else "does not fit:"
        full = f" ({room} {bytes_text(self.hardware.hbm_bytes)})"
        names = f" in {', '.join(sorted(self.sizes.hints))}; at the hints" if self.sizes else ""
        lines = ", ".join(self.counted_once)
        once = f", per iteration of the while loops of unknown length at {lines}" if lines else ""
        return (
            f"Cost{names} on {self.machine_text}: step "
            f"{seconds_text(at.step_time_s)} = compute {seconds_text(at.compute_s)} + "
            f"communication {seconds_text(at.communication_s)}, peak memory "
            f"{bytes_text(at.peak_memory_bytes)}{full}, "
            f"flops utilization {at.flops_utilization:.1%}{once}"
        )

    def _repr_html_(self) -> str:
        table = self.formulas() if self.sizes else self.table()
        return html_part(repr(self)) + html_part(table)
