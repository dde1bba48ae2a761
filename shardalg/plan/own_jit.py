"""A plan beside the one that the same annotations give under the layouts of the own `jax.jit`.

The collectives of XLA's own program, under the prices that a plan's have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import AxisRef, Mesh
from shardalg.costs.hardware import Hardware
from shardalg.costs.network.collective_seconds import collective_s
from shardalg.costs.topology import Topology, machine
from shardalg.graph.tracing.parts import installed_partitioner
from shardalg.lower.xla_dump.hlo_collectives import HloCollective
from shardalg.plan.explain.warnings.roundabout import WARNING_COLUMNS
from shardalg.planner.propagate.options import Options
from shardalg.planner.stages import Stages, planned
from shardalg.sizes.amounts import number
from shardalg.sizes.recorded import total
from shardalg.tables import Table, bytes_text
from shardalg.xla.least.least_sent import least_sent

if TYPE_CHECKING:
    from shardalg.plan.plan import Plan
    from shardalg.tables import DataFrame

COLUMNS = ("program", "layouts", "wire_bytes", "peak_memory_bytes")
NAMES = {"gspmd": "GSPMD", "shardy": "Shardy"}
_DIFFERS = 0.1
"""The share from which two programs are worth a word."""


class StepBytes(NamedTuple):
    """Bytes that a device sends per step, and holds at the peak of memory."""

    wire_bytes: int | float
    peak_memory_bytes: int

    @staticmethod
    def of(stages: Stages) -> StepBytes:
        """Return the amounts of a plan. Seconds are not priced: nothing here asks for them."""
        return StepBytes(stages.traffic.wire_bytes, stages.peak_memory_bytes)


@dataclass(frozen=True, eq=False)
class OwnJit:
    """What a plan sends and holds, beside a plan in the layouts that the installed jax chooses.

    XLA chooses its own collectives between its layouts. `least` is a lower bound of the bytes that
    they send (`shardalg.xla.least` has the argument). `theirs` is an estimate: the amounts of our
    collectives between the same layouts. `Plan.compare_xla` gets XLA's own figure.

    Attributes:
      asked: the wire bytes that XLA's own program sends, where it was asked.
    """

    stages: Stages
    options: Options
    asked: int | float | None = None

    @cached_property
    def partitioner(self) -> str:
        """The partitioner that the installed jax uses."""
        return installed_partitioner()

    @cached_property
    def ours(self) -> StepBytes:
        """The plan's own figures."""
        return StepBytes.of(self.stages)

    @cached_property
    def _followed(self) -> Stages:
        """The plan in the partitioner's layouts."""
        if self.options.policy in ("jit", self.partitioner):
            return self.stages
        followed = replace(self.options, policy="jit")
        return planned(self.stages.traced, self.stages.annotations, followed)

    @cached_property
    def theirs(self) -> StepBytes:
        """The figures of our plan in the partitioner's layouts, as an estimate of XLA's figures."""
        return self.ours if self._followed is self.stages else StepBytes.of(self._followed)

    @cached_property
    def least(self) -> int | float:
        """The lower bound of the bytes that XLA's program sends per device and step."""
        return min(least_sent(self._followed), self.theirs.wire_bytes)

    @property
    def table(self) -> Table:
        """A row per program, with its wire bytes and peak memory per device and step."""
        return Table(COLUMNS, tuple(self._rows()))

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        named = NAMES[self.partitioner]
        yield _row("this plan", self.options.followed, self.ours)
        yield _row("your jax.jit, at least", named, self.theirs._replace(wire_bytes=self.least))
        if self.asked is not None:
            yield ("your jax.jit, as XLA compiles it", named, self.asked, None)

    @property
    def differs(self) -> bool:
        """Whether the two send, or hold, amounts that are more than a tenth apart."""
        pairs = (
            (self.ours.wire_bytes, self.asked or self.theirs.wire_bytes),
            (self.ours.peak_memory_bytes, self.theirs.peak_memory_bytes),
        )
        return any(abs(a - b) > _DIFFERS * max(a, b) for a, b in pairs)

    def __str__(self) -> str:
        about = bytes_text(self.theirs.wire_bytes)
        least = "" if self.least == self.theirs.wire_bytes else f", an estimated {about},"
        sent = f"at least {bytes_text(self.least)} sent{least}"
        if self.asked is not None:
            sent = f"{bytes_text(self.asked)} sent"
        return (
            f"your jax.jit ({NAMES[self.partitioner]}'s layouts): {sent} "
            f"and {bytes_text(self.theirs.peak_memory_bytes)} held; this plan "
            f"{bytes_text(self.ours.wire_bytes)} and {bytes_text(self.ours.peak_memory_bytes)}"
        )

    def warnings(self) -> Table:
        """The row of `Plan.warnings` that says so, if they differ."""
        if not self.differs:
            return Table(WARNING_COLUMNS, ())
        more = max((self.least if self.asked is None else self.asked) - self.ours.wire_bytes, 0)
        remedy = (
            "run this plan by plan.lower(), or plan as your jax.jit does: Options(policy='jit')"
        )
        return Table(WARNING_COLUMNS, (("jax.jit", "", 1, more, str(self), remedy, 0),))


def _row(program: str, layouts: str, amounts: StepBytes) -> tuple[Any, ...]:
    return program, layouts, number(amounts.wire_bytes), number(amounts.peak_memory_bytes)


PRICED_COLUMNS = ("kind", "mesh_axes", "executions", "wire_bytes_per_step", "time_s")
_SUB_AXIS = re.compile(r"(?P<name>.+):\((?P<pre>\d+)\)(?P<size>\d+)")
UNNAMED = "?"


def beside_jit(plan: Plan) -> OwnJit:
    """Return a plan beside the own `jax.jit`, with XLA's own bytes if `compare_xla` was called."""
    told = plan._told.get(installed_partitioner())
    return plan._under_jit if told is None else replace(plan._under_jit, asked=told)


def cost_of_xla(
    plan: Plan, hardware: str | Hardware | Topology, partitioner: str | None
) -> DataFrame:
    """Return the collectives of XLA's own program with our prices; see `Plan.cost_of_xla`."""
    told = plan.compare_xla(partitioner).told
    return xla_prices(told.collectives, told.mesh, machine(hardware)).df


def xla_prices(
    collectives: Iterable[HloCollective], mesh: Mesh, hardware: Hardware | Topology
) -> Table:
    """A row per kind and axes, and one for all: executions, wire bytes and seconds of a step.

    An all-reduce of which each device keeps a block is priced as the reduce-scatter that TPUs and
    GPUs make of it. Groups that no axes of the mesh say have bytes and no seconds: the last row is
    then a lower bound.
    """
    spans = hardware.wiring(mesh).spans
    sums: dict[tuple[str, str], list[Any]] = {}
    for one in collectives:
        kind = "reduce_scatter" if one.is_scattered else one.kind
        row = sums.setdefault((kind, ",".join(one.axes)), [0, 0, 0.0])
        row[0] += one.count
        row[1] += one.count * one.wire_bytes
        if row[2] is not None and UNNAMED not in one.axes:
            taken = collective_s(kind, spans(_digits(mesh, one.axes)), one.operand_bytes)
            row[2] += one.count * float(total(taken.values()))
        else:
            row[2] = None
    return Table(PRICED_COLUMNS, tuple(_rows(sums)))


def _rows(sums: dict[tuple[str, str], list[Any]]) -> Iterator[tuple[Any, ...]]:
    yield from ((*key, *row) for key, row in sums.items())
    count, sent, time_s = (
        sum(row[at] for row in sums.values() if row[at] is not None) for at in range(3)
    )
    yield "all", "", count, sent, time_s


def _digits(mesh: Mesh, axes: Iterable[str]) -> Digits:
    return tuple(mesh.ref_digit(_ref(text)) for text in axes)


def _ref(text: str) -> AxisRef:
    found = _SUB_AXIS.fullmatch(text)
    return AxisRef(text) if found is None else AxisRef(found["name"], int(found[2]), int(found[3]))
