"""Price of one call of a program on one device: time, communication, flops and memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shardalg.costs.analyses.cause_bars import cause_bar
from shardalg.costs.analyses.crossing import (
    compute_minus_communication,
    largest,
    largest_near,
    less,
    sign_changes,
)
from shardalg.costs.calibration.constants import EXPOSED, Calibration
from shardalg.costs.collectives import RING_BYTES
from shardalg.costs.hardware import Hardware
from shardalg.costs.memory import Liveness
from shardalg.costs.network.collective_seconds import DCN, NETWORK
from shardalg.costs.network.placement import LINK
from shardalg.errors import TableError
from shardalg.graph.ops.families.building import WORST
from shardalg.sizes.amounts import number, times
from shardalg.sizes.boundary import inequality
from shardalg.sizes.formula import Formula, FormulaError, has_formula
from shardalg.sizes.maximum import larger, largest_of
from shardalg.sizes.recorded import total
from shardalg.svg import draw_bars, drawing_card
from shardalg.tables import Table, bytes_text, seconds_text, with_units

if TYPE_CHECKING:
    from shardalg.costs.analyses.limits import StepLimits
    from shardalg.costs.symbolic import Sizes


FORMATTING = "formatting"
MATRIX, MEMORY = "matrix", "memory"
"""Causes of the seconds of local operators: arithmetic, or traffic to the device's own memory.

`costs.network.collective_seconds` has the causes of collectives.
"""
MEASURED = "measured"
"""The overlap mode in which measured shares of the communication, not a schedule, are exposed."""


@dataclass(frozen=True, slots=True)
class Item:
    """Cost on one device of all instructions with equal kind, axes, role and phase.

    Attributes:
      kind: "contraction", "other compute", "formatting" (slices, pads and masks that only the
        partitioning needs), or the kind of a collective.
      axes: mesh axes of the collective; () for local operators.
      role: role of the value that a collective moves, such as "weight" or "gradient", else "".
      phase: "forward", "backward" or "update".
      count: executions per call, trip counts included.
      flops, wire_bytes: floating-point operations, and bytes sent, of all executions together.
      seconds: pairs (cause, seconds of all executions). A local operator has "matrix" or "memory".
        A collective has "link", "network" (between islands), "dcn" (between slices), "latency".
      slices: number of slices that a collective joins.
    """

    kind: str
    axes: tuple[str, ...]
    role: str
    phase: str
    count: Any
    flops: Any
    wire_bytes: Any
    seconds: tuple[tuple[str, Any], ...]
    slices: float = 1

    @property
    def time_s(self) -> Any:
        """Seconds of all executions, the sum over all causes."""
        return total(seconds for _, seconds in self.seconds)

    @property
    def is_communication(self) -> bool:
        """True if the item is a collective."""
        return self.kind in RING_BYTES


def exposed_s(item: Item, calibration: Calibration) -> Any:
    """Return the seconds of a collective that computation does not hide.

    Each cause of its seconds is multiplied by a measured share. The share of transfers over links
    depends on the role of the moved value. Transfers between islands and between slices have shares
    of their own, and latency counts fully. All seconds of an all-reduce have the share of its
    slowest network. Formulas need one share, because they do not tell which of its two algorithms,
    with fewer bytes or fewer hops, is the faster one.

    Args:
      calibration: the measured shares of the chip.
    """
    shares = {
        DCN: calibration["exposed_slices"] + calibration["exposed_per_slice"] * item.slices,
        NETWORK: calibration["exposed_network"],
        LINK: calibration.exposed(item.kind, item.role),
    }
    if item.kind == "all_reduce":
        causes = {cause for cause, _ in item.seconds}
        slowest = next((cause for cause in shares if cause in causes), LINK)
        shares = dict.fromkeys(causes, shares[slowest])
    # Zeros are left out: a share of a zero is a float, and formulas take only exact numbers.
    found = ((seconds, shares.get(cause, 1.0)) for cause, seconds in item.seconds)
    return total(times(s, share) for s, share in found if has_formula((s,)) or s)


def measured_step_s(items: Iterable[Item], calibration: Calibration) -> Any:
    """Return the seconds of a step: computation plus the communication that it does not hide.

    A step is never shorter than its whole communication, so the result is at least that.

    Args:
      items: all items of the step, compute and collectives.
      calibration: the measured shares of the chip.
    """
    found = tuple(items)
    computed = total(item.time_s for item in found if not item.is_communication)
    sent = [item for item in found if item.is_communication]
    waits = [exposed_s(item, calibration) for item in sent]
    return larger(computed + total(waits), whole_communication_s(sent, calibration))


def whole_communication_s(items: Iterable[Item], calibration: Calibration) -> Any:
    """Return the seconds of all collectives if no computation hides them.

    If the calibration says that a collective takes longer than by the data sheet, it does here too.
    """
    shares = {n: max(1.0, calibration[n]) for n in EXPOSED}
    longer = calibration.changed(**shares)
    return total(exposed_s(item, longer) for item in items if item.is_communication)


@dataclass(frozen=True)
class Totals:
    """Costs of one call of a program before they are shown, in numbers or in formulas.

    Attributes:
      items: compute and collectives by kind, axes, role and phase.
      useful_flops: flops of one call on global shapes (`costs.compute.useful_flops`).
      useful_s: seconds that one device at its peak needs for `useful_flops`.
      devices: number of devices of the mesh.
      memory: the values alive at the peak. Formulas are for the instruction that is the peak at the
        hints, the sizes for which the program was planned.
      peaks: for formulas, a function that returns the bytes alive at all instructions that can be
        the peak; the peak is their maximum. Otherwise None.
    """

    items: tuple[Item, ...]
    useful_flops: Any
    useful_s: Any
    devices: Any
    memory: Liveness
    peaks: Callable[[], Sequence[Formula]] | None = field(default=None, compare=False)

    @cached_property
    def peak_bytes(self) -> Any:
        """Most bytes alive at once on one device, a number or a formula."""
        # In formulas the sizes decide which instruction is the peak, so all candidates count.
        return largest_of(self.peaks()) if self.peaks else self.memory.peak_bytes

    def sum(self, quantity: str, *, communication: bool | None = None) -> Any:
        """Return the sum of a field of `Item`, such as "time_s", over the items.

        Args:
          communication: True for collectives only, False for local operators only, None for both.
        """
        chosen = (i for i in self.items if communication in (None, i.is_communication))
        return total(getattr(item, quantity) for item in chosen)

    def seconds(self) -> dict[str, Any]:
        """Return the seconds of all items by cause.

        The cause "link" has the mesh axes in its key, as in "link X,Y".
        """
        seconds_by_cause: dict[str, list[Any]] = {}
        for item in self.items:
            for cause, seconds in item.seconds:
                name = f"{LINK} {','.join(item.axes)}" if cause == LINK else cause
                seconds_by_cause.setdefault(name, []).append(seconds)
        return {name: total(amounts) for name, amounts in seconds_by_cause.items()}

    def named(self) -> Iterator[tuple[str, Any]]:
        """Yield pairs (name, value) of all quantities, such as ("flops", 512).

        Names end with the unit, "_s" or "_bytes"; flops have no unit. Memory follows by class of
        value.
        """
        yield "step_time_s", self.sum("time_s")
        yield "compute_s", self.sum("time_s", communication=False)
        yield "communication_s", self.sum("time_s", communication=True)
        yield "wire_bytes", self.sum("wire_bytes")
        yield "flops", self.sum("flops")
        yield "useful_flops", self.useful_flops
        yield "peak_memory_bytes", self.peak_bytes
        yield from ((f"{name}_bytes", size) for name, size in self.memory.by_class.items())


def _check_tokens(name: str, value: Any) -> None:
    """Raise `TableError` unless a number of tokens is a finite number above 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:
        raise TableError(f"{name}={value!r}: give a number of tokens above 0, such as 4_194_304.")


@dataclass(frozen=True)
class Elsewhere:
    """Access to the plan of a cost at other values of its named sizes.

    Attributes:
      fits: a function of a value per named size: whether the plan at these sizes fits a device.
    """

    fits: Callable[[Mapping[str, int]], bool]


@dataclass(frozen=True, repr=False)
class Cost:
    """Price of one call of a program on one device of the hardware.

    In a plan with named sizes, every quantity is a sympy expression. The hints are the numbers at
    which the plan was made, one per named size. A quantity has a maximum where an operator takes
    the longer of arithmetic and memory traffic. The peak of memory is a maximum too, over the
    instructions that can have the most bytes alive. Its classes (`memory_by_class`) are those of
    the instruction that is the peak at the hints.

    Attributes:
      totals: the exact prices, numbers or formulas.
      hints: the same prices in numbers, at the hints; in a plan in numbers, `totals` itself.
      sizes: the named sizes; None in a plan in numbers.
      by_module: function that returns the table by module; None if the program is from no plan.
      elsewhere: the plan at other sizes; None if the program is from no plan.
      analysis: function that returns the parts of the step's time; None if the program is from no
        plan.
      timed: function that returns every instruction with its seconds (`costs.step_time.timed`).
      overlap: overlap of compute and collectives: "none", "asynchronous", "dependences" or "full".
      scheduled_s: seconds of a step with the overlap that dependences allow, at the hints.
      counted_once: lines of the `while` loops of unknown length, which count as one iteration.
      unpriced: kernels without a price, with their lines: their flops count as 0.
      fused: lines of softmax attention that is priced as one kernel (`Options(fuse_attention)`).
      loads: lines whose price depends on the load factor of experts, with this factor
        (`Options(expert_load)`).
      assumed: item types of integer products without a peak rate, each with the first one's line:
        they run at the chip's slowest rate, an assumption.
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
    analysis: Callable[[], StepLimits] | None = field(default=None, compare=False)
    timed: Callable[[], tuple[Any, ...]] | None = field(default=None, compare=False)
    counted_once: tuple[str, ...] = field(default=(), compare=False)
    unpriced: tuple[str, ...] = field(default=(), compare=False)
    fused: tuple[str, ...] = field(default=(), compare=False)
    loads: tuple[tuple[str, float | str], ...] = field(default=(), compare=False)
    assumed: tuple[str, ...] = field(default=(), compare=False)
    machine: str = field(default="", compare=False)

    def _shown(self, value: Any) -> Any:
        """Return a number unchanged, and a formula as a sympy expression."""
        return self.sizes.sympy(value) if self.sizes and has_formula((value,)) else value

    @property
    def items(self) -> tuple[Item, ...]:
        """Costs of compute and collectives, one item per kind, axes, role and phase."""
        return self.totals.items

    @property
    def memory(self) -> Liveness:
        """The values alive when a device needs the most memory, and their bytes."""
        totals, room = self.totals, self.hardware.hbm_bytes
        return replace(totals.memory, peak_bytes=totals.peak_bytes, capacity_bytes=room)

    @cached_property
    def devices(self) -> Any:
        """Number of devices of the mesh."""
        return self._shown(self.totals.devices)

    @cached_property
    def useful_flops(self) -> Any:
        """Floating-point operations of one call on global shapes: no padding, no repeated work."""
        return self._shown(self.totals.useful_flops)

    @cached_property
    def compute_s(self) -> Any:
        """Seconds of all local operators of a call on one device.

        Each takes the longer of its arithmetic and its memory traffic. With a calibration of the
        chip, a product takes a weighted sum of both.
        """
        return self._shown(self.totals.sum("time_s", communication=False))

    @cached_property
    def communication_s(self) -> Any:
        """Seconds of all collectives of a call, one after the other."""
        return self._shown(self.totals.sum("time_s", communication=True))

    @cached_property
    def seconds_by_cause(self) -> dict[str, Any]:
        """Seconds by cause, as a dictionary; their sum is `compute_s + communication_s`.

        "matrix": arithmetic at the peak. "memory": traffic to and from a device's own memory, if
        it takes longer than the arithmetic. "link X": bytes along axis X. "network": bytes between
        islands. "dcn": bytes between slices. "latency": latency of all hops.
        """
        return {name: self._shown(seconds) for name, seconds in self.totals.seconds().items()}

    @cached_property
    def exposed_s(self) -> dict[str, Any]:
        """Seconds of communication that no computation hides; keys are mesh axes, as in "X,Y"."""
        constants = self.hardware.calibration
        seconds_by_axes: dict[str, list[Any]] = {}
        for item in self.items:
            if item.is_communication:
                # Only the measured model of overlap knows shares that computation hides; else all
                # seconds count.
                waiting_s = exposed_s(item, constants) if self.overlap == MEASURED else item.time_s
                seconds_by_axes.setdefault(",".join(item.axes), []).append(waiting_s)
        return {name: self._shown(total(amounts)) for name, amounts in seconds_by_axes.items()}

    @cached_property
    def limits(self) -> StepLimits:
        """The causes of the step's time, each with the seconds that removing it would save.

        The causes are products, memory traffic, exposed communication, pipeline bubbles,
        recomputation, padding and idle devices (`costs.analyses.limits`). In a plan with named
        sizes, seconds are at the hints, the sizes for which it was made.

        Raises:
          TableError: the program is from no plan.
        """
        if self.analysis is None:
            raise TableError("no plan made this program: ask the cost of a plan, plan.cost(...).")
        # Exposed seconds are distributed in proportion to the hidden ones, so the whole
        # communication along each set of axes is needed.
        whole: dict[str, float] = {}
        for item in self.hints.items:
            if item.is_communication:
                axes = ",".join(item.axes)
                sent = whole_communication_s((item,), self.hardware.calibration)
                whole[axes] = whole.get(axes, 0.0) + float(sent)
        return self.analysis().reaching(float(self.at_hints.step_time_s), whole)

    @property
    def mfu(self) -> float:
        """Model flops utilization: flops of the mathematical step over those of the peak.

        It is `model_flops / (devices * peak * step_time_s)`; named sizes have the numbers for which
        the plan was made. Recomputation, bubbles, padding and repeated work do not count (PaLM,
        arXiv:2204.02311, appendix B).
        """
        return self._utilisation(self.limits.model_s)

    @property
    def hfu(self) -> float:
        """Hardware flops utilization: all flops that the devices carry out over those at the peak.

        In contrast to `mfu`, recomputation, bubbles, padding and repeated work count.
        """
        found = self.limits
        return self._utilisation(found.model_s * found.executed_flops / (found.model_flops or 1))

    def _utilisation(self, seconds_at_peak: float) -> float:
        """Return the time of some work at the peak rate as a share of the step on all devices.

        Args:
          seconds_at_peak: seconds that one device needs for the work at its peak rate.
        """
        step = float(self.at_hints.step_time_s)
        return seconds_at_peak / (self.hints.devices * step) if step else 0.0

    def tokens_per_s(self, tokens_per_step: float) -> float:
        """Return the tokens per second of all devices; infinite if a step takes no time.

        Named sizes have the numbers for which the plan was made.

        Raises:
          TableError: the number of tokens is not above 0.
        """
        _check_tokens("tokens_per_step", tokens_per_step)
        step = float(self.at_hints.step_time_s)
        return tokens_per_step / step if step else math.inf

    def days(self, tokens: float, tokens_per_step: float) -> float:
        """Return the number of days that training on some tokens takes.

        Named sizes have the numbers for which the plan was made.

        Args:
          tokens: number of all tokens.
          tokens_per_step: number of tokens in one step.

        Raises:
          TableError: a number of tokens is not above 0.
        """
        _check_tokens("tokens", tokens)
        return tokens / self.tokens_per_s(tokens_per_step) / 86400

    @property
    def expected_error(self) -> tuple[float, float] | None:
        """Pair (median, worst) of the relative errors of the step time on published runs.

        They are leave-one-out errors of the runs that the chip's constants were fitted on
        (`Calibration.errors`). None if the step time does not use such constants.
        """
        return self.hardware.calibration.errors if self.overlap == MEASURED else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Pair of the least and the most seconds that the step may take.

        The bounds follow from the worst expected error. None if there is no expected error. Named
        sizes have the numbers for which the plan was made.
        """
        if self.expected_error is None:
            return None
        # An error is predicted / measured - 1, so that measured = predicted / (1 + error).
        step, worst = float(self.at_hints.step_time_s), min(self.expected_error[1], 0.9)
        return step / (1 + worst), step / (1 - worst)

    @cached_property
    def formatting_s(self) -> Any:
        """Seconds of slices, pads and masks that the partitioning adds, part of `compute_s`."""
        chosen = (item.time_s for item in self.items if item.kind == FORMATTING)
        return self._shown(total(chosen))

    @cached_property
    def step_time_s(self) -> Any:
        """Seconds of a step, with the overlap of compute and communication in `overlap`.

        "none" is the sum of both and "full" is the longer one. "dependences" is the overlap that
        the program's dependences allow; "asynchronous" also needs the chip's compiler to start
        the collective ahead. The last two are schedules, which have no formula.

        Raises:
          FormulaError: "dependences" or "asynchronous" of a plan with named sizes.
        """
        return self._shown(self._time(self.totals))

    def _time(self, totals: Totals) -> Any:
        """Return the seconds of a step under `overlap`; a formula if the totals are formulas."""
        compute, sent = (totals.sum("time_s", communication=c) for c in (False, True))
        if self.overlap == "none":
            constants = self.hardware.calibration
            # Fitted constants give only the part of the communication that computation does not
            # hide. Without overlap all of it counts. Times by a data sheet are whole already.
            is_plain = constants.is_datasheet
            return compute + (sent if is_plain else whole_communication_s(totals.items, constants))
        if self.overlap == "full":
            return larger(compute, sent)
        if self.overlap == MEASURED:
            return measured_step_s(totals.items, self.hardware.calibration)
        # The schedule was made at the hints, so only their totals have a step time.
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
        """Bytes alive at the peak by class of value, such as "parameters" and "activations".

        `costs.memory.Liveness.by_class` lists the classes. Formulas are for the instruction that is
        the peak at the sizes for which the plan was made.
        """
        return {name: self._shown(size) for name, size in self.totals.memory.by_class.items()}

    @property
    def fits(self) -> Any:
        """Whether the peak is within the memory of a device.

        With named sizes it is the inequality of sizes, as a sympy expression.
        """
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
        """Useful share of the flops that all devices could do: `useful_s / (devices * step)`.

        `useful_s` is the time of one device at its peak for the flops on global shapes, and `step`
        is `step_time_s`.
        """
        if not self.step_time_s:
            return 0.0
        return self._shown(self.totals.useful_s) / (self.devices * self.step_time_s)

    def crossover(
        self, other: Cost, name: str, *, quantity: str = "step_time_s"
    ) -> tuple[int, ...]:
        """Return the values of a named size at which this plan starts or stops to cost more.

        All other sizes stay at their hints, the numbers for which the plan was made. The decisions
        of the planner stay too (`Plan.holds`).
        Each returned integer is the first one after a change of which plan costs more. The list is
        complete up to 16384. Beyond, two crossovers that are close may be left out.

        Args:
          other: the cost of another plan.
          name: the named size that changes.
          quantity: the compared quantity, by its name in the first column of `formulas()`.

        Raises:
          FormulaError: a plan is in numbers, `other` is no cost, the size or quantity is unknown,
            or the quantity does not depend on the size.
        """
        difference, hints = self._less_than(other, quantity)
        if name not in hints:
            raise FormulaError(f"{name!r} is no size of the plans, which have {', '.join(hints)}.")
        return sign_changes(difference, name, hints)

    def beats(self, other: Cost, *, quantity: str = "peak_memory_bytes") -> str:
        """Return text: an inequality of named sizes under which this plan costs less than another.

        The text is "always" or "never" if that does not depend on the sizes.

        Args:
          other: the cost of another plan.
          quantity: the compared quantity, by its name in the first column of `formulas()`.

        Raises:
          FormulaError: a plan is in numbers, `other` is no cost, or the quantity is unknown.
        """
        difference, _ = self._less_than(other, quantity)
        return less(Formula({}), -difference)

    def compute_bound(self, *names: str, axes: Sequence[str] | None = None) -> str:
        """Return text: the inequality of sizes under which computation outlasts communication.

        There the step is compute-bound if both overlap fully. The inequality is solved for the
        first name in which it is linear. It holds near the hints: terms below 1 % there are left
        out, and ceilings are taken as quotients.

        Args:
          names: named sizes to solve for, in order of preference; none: all of them.
          axes: mesh axes; only communication along at least one of them counts. None counts all.

        Raises:
          FormulaError: the plan is in numbers, or a name is unknown.
          TableError: an axis is unknown.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> B, D, F = sa.dims("B D F", hint=(2**20, 8192, 32768))
        >>> x, w = (jax.ShapeDtypeStruct(s, "bfloat16") for s in ((B, D), (D, F)))
        >>> mesh = sa.Mesh({"X": 256}, symbolic=True)
        >>> specs = (P("X"), P("X"))
        >>> plan = sa.plan(lambda x, w: x @ w, x, w, mesh=mesh, in_shardings=specs)
        >>> chip = sa.Hardware("toy", (("bfloat16", 4e14),), link_bytes_per_s=1e11)
        >>> plan.cost(chip).compute_bound("B", "X")
        'B/X > 4000'
        """
        if self.sizes is None:
            raise FormulaError(
                "plans in numbers have no boundary: name sizes with sa.dims, or a symbolic mesh."
            )
        hints = self.sizes.hints
        for name in names:
            if name not in hints:
                raise FormulaError(
                    f"{name!r} is no size of the plan, which has {', '.join(hints)}."
                )
        # Only axes along which something is sent can limit the step.
        known_axes = {axis for item in self.items for axis in item.axes}
        for axis in axes or ():
            if axis not in known_axes:
                axes_text = ", ".join(sorted(known_axes)) or "none"
                raise TableError(f"no collective runs along {axis!r}; there are {axes_text}.")
        difference = compute_minus_communication(self.totals, axes)
        return inequality(difference, names or (*hints,), hints)

    def largest_batch_that_fits(self, name: str = "B") -> int:
        """Return the largest value found of a named size at which the plan fits a device, else 0.

        All other sizes stay at their hints, the numbers for which the plan was made. The formulas
        of the peak give a first guess. From there the function is planned at one size after the
        other, as by `Plan.at`, so that the plan certainly fits at the returned size. The search
        first tries common multiples of the hint and the number of devices, then finer multiples
        between two of these. A larger size that divides less evenly may fit.

        Raises:
          FormulaError: the named size is unknown, or the program is from no plan.

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
            known_names = sorted(self.sizes.hints) if self.sizes else "none: plan with sa.dims"
            raise FormulaError(f"{name!r} is no named size of this plan; there are {known_names}.")
        if self.elsewhere is None:
            raise FormulaError("no plan made this program: ask the cost of a plan, plan.cost(...).")
        other_sizes = {n: size for n, size in self.sizes.hints.items() if n != name}
        peak_formulas = self.totals.peaks() if self.totals.peaks else (self.totals.peak_bytes,)
        peaks = [Formula.of(peak).subs(other_sizes) for peak in peak_formulas]
        capacity, plan = self.hardware.hbm_bytes, self.elsewhere
        # The guess keeps the decisions of the hints. The search below plans anew at each size.
        guess = largest(lambda n: all(peak.at({name: n}) <= capacity for peak in peaks))
        step = math.lcm(self.sizes.hints[name], self.hints.devices)
        return largest_near(lambda n: plan.fits({**other_sizes, name: n}), guess, step)

    def _less_than(self, other: Cost, quantity: str) -> tuple[Formula, dict[str, int]]:
        """Return (a quantity of this plan minus that of another, the hints of both plans).

        The hints are the numbers for which the plans were made, by name of the size.

        Args:
          quantity: a name of `named`, such as "flops".

        Raises:
          FormulaError: `other` is no cost, a plan is in numbers, or the quantity is unknown.
        """
        if not isinstance(other, Cost):
            raise FormulaError(
                f"costs are compared, as plan.cost(hardware) gives them; got {other!r:.80}."
            )
        if self.sizes is None or other.sizes is None:
            raise FormulaError(
                "plans in numbers have no crossover: name sizes with sa.dims, or a symbolic mesh."
            )
        # The step time of a cost depends on its model of overlap, and `totals` has no overlap.
        prices = [
            {**dict(c.totals.named()), "step_time_s": c._time(c.totals)} for c in (self, other)
        ]
        if any(quantity not in found for found in prices):
            raise FormulaError(f"{quantity!r} is none of {', '.join(prices[0])}.")
        ours, theirs = (Formula.of(found[quantity]) for found in prices)
        return ours - theirs, {**other.sizes.hints, **self.sizes.hints}

    def table(self, by: str | None = None) -> Table:
        """Return a table with a row per kind, axes, role and phase, the longest time first.

        In the column "overlappable", True means that the chip's compiler splits the collective into
        a start and a done. If several all-reduces are combined into one, the first has the time of
        all.

        Args:
          by: "module" gives a row per module of the function, equal modules folded, with its
            seconds, bytes sent, and bytes alive at the peak. Its numbers are for the sizes at which
            the plan was made.

        Raises:
          TableError: `by` is another value, or no plan made the program.
        """
        if by is not None:
            if by != "module" or self.by_module is None:
                raise TableError(f"by={by!r}: the costs of a plan are folded by 'module', or None.")
            return self.by_module()
        # Formulas have no order. Rows are sorted by the numbers at the hints.
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
        """Return a table with a row per quantity: its formula, and its number at the hints.

        The hints are the numbers of the named sizes for which the plan was made.
        """
        pairs = list(zip(self.totals.named(), self.hints.named(), strict=True))
        # `named` adds compute and communication, so the first row is replaced if they overlap.
        if self.overlap != "none":
            times = (self._time(self.totals), self._time(self.hints))
            pairs[0] = (("step_time_s", times[0]), ("step_time_s", times[1]))
        rows = ((name, self._shown(value), number(at)) for (name, value), (_, at) in pairs)
        return Table(("quantity", "formula", "at_hints"), tuple(rows))

    @property
    def machine_text(self) -> str:
        """Text that names the number of devices, the chip, and who chose it."""
        return self.machine or f"{self.hints.devices} x {self.hardware.name} (as asked for)"

    @property
    def at_hints(self) -> Cost:
        """The same cost in numbers, for the sizes at which the plan was made (its hints)."""
        return replace(self, totals=self.hints, sizes=None)

    def __repr__(self) -> str:
        """Return a summary in numbers: time, its causes, memory, and assumptions of the price."""
        return "\n  ".join(self._lines())

    def _lines(self) -> tuple[str, ...]:
        """Return the lines of the text: the step, its causes, its two parts, and the memory."""
        totals = self.at_hints
        fit_text = "fits in" if totals.fits else "does not fit:"
        capacity = f" ({fit_text} {bytes_text(self.hardware.hbm_bytes)}, nothing reserved)"
        hint_names = (
            f" in {', '.join(sorted(self.sizes.hints))}; at the hints" if self.sizes else ""
        )
        unknown_loops = ", ".join(self.counted_once)
        notes = (
            f", per iteration of the while loops of unknown length at {unknown_loops}"
            if unknown_loops
            else ""
        )
        if self.fused:
            notes += f"; softmax attention at {', '.join(self.fused)} is priced as a fused kernel"
        # Lines with the same load factor share one note.
        for load in dict.fromkeys(load for _, load in self.loads):
            at_lines = ", ".join(line for line, own in self.loads if own == load)
            row_text = "the most rows possible" if load == WORST else f"{load} of the average rows"
            notes += f"; the busiest device has {row_text} at {at_lines} (Options(expert_load))"
        if self.unpriced:
            notes += f"; no price is known for {', '.join(self.unpriced)}: give one in "
            notes += "Options(prices={target: KernelPrice(flops=...)})"
        if self.assumed:
            notes += f"; not calibrated: products of {', '.join(self.assumed)} at the slowest peak"
        communication = f"communication {seconds_text(totals.communication_s)}"
        if self.overlap == MEASURED:
            # A step is at least as long as its whole communication (`measured_step_s`), so this can
            # be more than the measured shares of the collectives.
            exposed = seconds_text(max(0.0, float(totals.step_time_s - totals.compute_s)))
            # "communication 3 ms" becomes "exposed communication 1 ms of 3 ms".
            communication = f"exposed {communication.replace(' ', f' {exposed} of ', 1)}"
        step = f"step {seconds_text(totals.step_time_s)}{self._error_text}"
        # The causes of the step's time come first, because they tell a reader what to change.
        limits = (f"limited by: {self.limits}",) if self.analysis and totals.step_time_s else ()
        return (
            f"Cost{hint_names} on {self.machine_text}: {step}",
            *limits,
            f"compute {seconds_text(totals.compute_s)} + {communication}, "
            f"flops utilization {totals.flops_utilization:.1%}{notes}",
            f"peak memory {bytes_text(totals.peak_memory_bytes)}{capacity}",
        )

    @property
    def _error_text(self) -> str:
        """Return text with the expected error of the predicted step time, and its source.

        The text is "" for any overlap except "measured": only its errors are known.
        """
        if self.overlap != MEASURED:
            return ""
        constants = self.hardware.calibration
        if self.expected_error is None or self.interval is None:
            return f" (constants of {constants.software}, expected error unknown)"
        low, high = map(seconds_text, self.interval)
        runs = len(constants.provenance["rows"])
        source = f"{runs} published runs"
        if constants.borrowed:
            source = f"not calibrated: twice the errors of {source} on {constants.borrowed}"
        median, worst = self.expected_error
        errors = f"median {median:.1%}, worst {worst:.1%}"
        return f" ({low} to {high}; {constants.software}, {source}: {errors})"

    def _repr_html_(self) -> str:
        """Return a drawing for notebooks: the causes of the step's time, then the tables."""
        totals = self.at_hints
        seconds = {"computation": totals.compute_s, "communication": totals.communication_s}
        # The causes of the step's time divide both parts further.
        if self.analysis:
            seconds = dict(self.limits.seconds)
        canvas = draw_bars((cause_bar(seconds),))
        # The printed tables have units; `table()` and `formulas()` have plain numbers.
        limit_tables = (self.limits.shown(),) if self.analysis else ()
        table = self.formulas() if self.sizes else with_units(self.table())
        return drawing_card(
            "\n".join(self._lines()), canvas, *limit_tables, table, ok=bool(totals.fits)
        )
