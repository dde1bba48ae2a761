"""A plan compared with the user's own `jax.jit`, and the prices of XLA's own collectives."""

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
from shardalg.costs.topology import Topology
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
"""Programs that differ by a smaller share are not mentioned."""


class StepBytes(NamedTuple):
    """Bytes that a device sends per step, and its peak memory."""

    wire_bytes: int | float
    peak_memory_bytes: int

    @staticmethod
    def of(stages: Stages) -> StepBytes:
        """Return the bytes of a plan, without pricing its seconds."""
        return StepBytes(stages.traffic.wire_bytes, stages.peak_memory_bytes)


@dataclass(frozen=True, eq=False)
class OwnJit:
    """Bytes of a plan, and of a plan in the shardings that the installed jax chooses.

    XLA chooses its own collectives between its shardings. `least` is a lower bound of the bytes
    that they send (`shardalg.xla.least` has the argument). `theirs` is an estimate: the bytes of
    our collectives between the same shardings. `Plan.compare_xla` measures XLA's own program.

    Attributes:
      stages, options: the stages and the options of the plan.
      asked: the wire bytes of XLA's own program; None until `compare_xla` is called.
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
        """Wire bytes and peak memory of this plan."""
        return StepBytes.of(self.stages)

    @cached_property
    def _followed(self) -> Stages:
        """The plan with the shardings that the installed jax's partitioner chooses."""
        # The plan has these shardings already: it need not be made again.
        if self.options.policy in ("jit", self.partitioner):
            return self.stages
        followed = replace(self.options, policy="jit")
        return planned(self.stages.traced, self.stages.annotations, followed)

    @cached_property
    def theirs(self) -> StepBytes:
        """Bytes of our plan in the partitioner's shardings, as an estimate of XLA's bytes."""
        return self.ours if self._followed is self.stages else StepBytes.of(self._followed)

    @cached_property
    def least(self) -> int | float:
        """A lower bound of the bytes that XLA's program sends per device and step."""
        # Our program in the same shardings shows that its bytes are enough: they cap the bound.
        return min(least_sent(self._followed), self.theirs.wire_bytes)

    @property
    def table(self) -> Table:
        """A row per program, with its wire bytes and peak memory per device and step."""
        return Table(COLUMNS, tuple(self._rows()))

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of `table`: this plan, a bound of XLA's program, and XLA's program."""
        named = NAMES[self.partitioner]
        yield _row("this plan", self.options.followed, self.ours)
        yield _row("your jax.jit, at least", named, self.theirs._replace(wire_bytes=self.least))
        if self.asked is not None:
            # `compare_xla` keeps only the wire bytes of XLA's program, so this row has no peak
            # memory.
            yield ("your jax.jit, as XLA compiles it", named, self.asked, None)

    @property
    def differs(self) -> bool:
        """True if bytes sent or peak memory of the two programs differ by more than a tenth."""
        # XLA's program may send nothing: 0 bytes are an answer, only None is not.
        sent = self.theirs.wire_bytes if self.asked is None else self.asked
        pairs = (
            (self.ours.wire_bytes, sent),
            (self.ours.peak_memory_bytes, self.theirs.peak_memory_bytes),
        )
        return any(abs(a - b) > _DIFFERS * max(a, b) for a, b in pairs)

    def __str__(self) -> str:
        """Return bytes sent and peak memory of `jax.jit` and of this plan, as text."""
        # XLA's own bytes need a compilation, so without `compare_xla` only a bound and an estimate
        # of them are known.
        about = bytes_text(self.theirs.wire_bytes)
        least = "" if self.least == self.theirs.wire_bytes else f" (estimate {about})"
        sent = f"at least {bytes_text(self.least)} sent{least}"
        if self.asked is not None:
            sent = f"{bytes_text(self.asked)} sent"
        return (
            f"your jax.jit ({NAMES[self.partitioner]}'s shardings): {sent} "
            f"and {bytes_text(self.theirs.peak_memory_bytes)} peak memory; this plan: "
            f"{bytes_text(self.ours.wire_bytes)} and {bytes_text(self.ours.peak_memory_bytes)}"
        )

    def warnings(self) -> Table:
        """Return the row of `Plan.warnings` about `jax.jit`; empty unless `differs`."""
        if not self.differs:
            return Table(WARNING_COLUMNS, ())
        # Without XLA's own bytes this is the lower bound, so that the figure is never too large.
        more = max((self.least if self.asked is None else self.asked) - self.ours.wire_bytes, 0)
        remedy = (
            "run this plan with plan.lower(), or plan as your jax.jit does: Options(policy='jit')"
        )
        return Table(WARNING_COLUMNS, (("jax.jit", "", 1, more, str(self), remedy, 0),))


def _row(program: str, layouts: str, amounts: StepBytes) -> tuple[Any, ...]:
    return program, layouts, number(amounts.wire_bytes), number(amounts.peak_memory_bytes)


PRICED_COLUMNS = ("kind", "mesh_axes", "executions", "wire_bytes_per_step", "time_s")
_SUB_AXIS = re.compile(r"(?P<name>.+):\((?P<pre>\d+)\)(?P<size>\d+)")
UNNAMED = "?"


def beside_jit(plan: Plan) -> OwnJit:
    """Return the comparison with `jax.jit`, with XLA's bytes if `compare_xla` was called."""
    told = plan._told.get(installed_partitioner())
    return plan._under_jit if told is None else replace(plan._under_jit, asked=told)


def cost_of_xla(
    plan: Plan, hardware: str | Hardware | Topology, partitioner: str | None
) -> DataFrame:
    """Return the collectives of XLA's own program with our prices; see `Plan.cost_of_xla`."""
    told = plan.compare_xla(partitioner).told
    return xla_prices(told.collectives, told.mesh, plan._stages.machine(hardware)).df


def xla_prices(
    collectives: Iterable[HloCollective], mesh: Mesh, hardware: Hardware | Topology
) -> Table:
    """Return executions, wire bytes and seconds per step, with a row per kind and axes, and a sum.

    An all-reduce of which each device keeps a block is priced as a reduce-scatter, because TPUs and
    GPUs run it so. Groups that are not along mesh axes have bytes but no seconds. The seconds of
    the last row are then a lower bound.
    """
    spans = hardware.wiring(mesh).spans
    sums: dict[tuple[str, str], list[Any]] = {}
    for one in collectives:
        kind = "reduce_scatter" if one.is_scattered else one.kind
        # XLA may merge or split collectives of one kind along the same axes, so that only their
        # sums (executions, bytes, seconds) can be compared.
        row = sums.setdefault((kind, ",".join(one.axes)), [0, 0, 0.0])
        row[0] += one.count
        row[1] += one.count * one.wire_bytes
        # A group that is not along mesh axes has no known links, so the row has no seconds.
        if row[2] is not None and UNNAMED not in one.axes:
            taken = collective_s(kind, spans(_digits(mesh, one.axes)), one.operand_bytes)
            row[2] += one.count * float(total(taken.values()))
        else:
            row[2] = None
    return Table(PRICED_COLUMNS, tuple(_rows(sums)))


def _rows(sums: dict[tuple[str, str], list[Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield one row per kind and axes for the table `xla_prices`, then a row with the sums.

    Args:
      sums: by (kind, axes): executions, bytes and seconds; seconds are None if unknown.
    """
    yield from ((*key, *row) for key, row in sums.items())
    count, sent, time_s = (
        sum(row[at] for row in sums.values() if row[at] is not None) for at in range(3)
    )
    yield "all", "", count, sent, time_s


def _digits(mesh: Mesh, axes: Iterable[str]) -> Digits:
    """Return axes of a mesh as digits (coordinates along an axis or a part of it).

    A sub-axis is text such as "X:(1)2": the factor of size 2 after a factor of size 1 of axis X.
    """
    refs = []
    for text in axes:
        sub_axis = _SUB_AXIS.fullmatch(text)
        # A name alone is a whole axis.
        if sub_axis is None:
            refs.append(AxisRef(text))
        else:
            refs.append(AxisRef(sub_axis["name"], int(sub_axis["pre"]), int(sub_axis["size"])))
    return tuple(mesh.ref_digit(ref) for ref in refs)
