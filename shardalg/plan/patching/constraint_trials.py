"""Figures of XLA's program under a set of constraints: bytes, flops, and estimated seconds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from shardalg.costs.topology import Machine
from shardalg.errors import ShardalgError
from shardalg.plan.own_jit import xla_prices
from shardalg.plan.patching.probes import Constraint, MarkedPlan
from shardalg.planner.stages import planned, priced
from shardalg.xla.dump import ask

if TYPE_CHECKING:
    from shardalg.costs.cost import Cost
    from shardalg.planner.propagate.options import Options
    from shardalg.planner.propagate.strategy import Annotations
    from shardalg.planner.traced import Traced
    from shardalg.tables import Table

Chosen = frozenset[Constraint]


class XlaFigures(NamedTuple):
    """Figures of XLA's program for one device and step.

    Attributes:
      wire_bytes: bytes that it sends.
      flops: floating-point operations of our plan in the shardings of XLA's program.
      counted_flops: operations as XLA counts them, with copies and selects of its resharding; None
        without a count.
      step_s: seconds of the step, an estimate: see `xla_step_s`.
      peak_bytes: peak memory of our plan in the shardings of XLA's program.
    """

    wire_bytes: float
    flops: float
    counted_flops: float | None
    step_s: float
    peak_bytes: float


def xla_figures(
    traced: Traced, annotations: Annotations, options: Options, on: Machine, partitioner: str
) -> XlaFigures:
    """Compile a function with XLA under annotations, and return the figures of its program.

    Bytes are those of XLA's collectives. Flops and memory are those of our plan in the shardings
    that XLA chose, because XLA's counts are not comparable with the plan's.

    Args:
      on: the machine by which seconds are priced.
      partitioner: "gspmd" or "shardy".

    Raises:
      LoweringError: XLA ends without an answer. ShardalgError: the function has no plan with the
        layouts of `jax.jit`.
    """
    # XLA partitions the function as it is written (`whole`), without the planner's rewrites.
    answer = ask(traced.whole or traced.graph, annotations, partitioner)
    sent_bytes = float(sum(each.wire_bytes * each.count for each in answer.collectives))
    followed = planned(traced, annotations, replace(options, policy="jit"))
    cost = priced(followed.traced, followed.program, on)
    step_s = xla_step_s(cost, xla_prices(answer.collectives, answer.mesh, on))
    flops, peak_bytes = float(cost.at_hints.flops), float(cost.at_hints.peak_memory_bytes)
    return XlaFigures(sent_bytes, flops, answer.flops, step_s, peak_bytes)


def xla_step_s(cost: Cost, prices: Table) -> float:
    """Return the estimated seconds of XLA's step.

    Its computation is that of our plan in XLA's shardings. Its collectives have the plan's prices,
    and the share of them that nothing hides is the plan's.

    Args:
      cost: the price of our plan in XLA's shardings.
      prices: the prices of XLA's collectives (`xla_prices`).
    """
    at = cost.at_hints
    compute, sent = float(at.compute_s), float(at.communication_s)
    exposed = max(0.0, float(at.step_time_s) - compute)
    (*_, taken) = prices.rows[-1]
    share = min(1.0, exposed / sent) if sent else 1.0
    return compute + share * float(taken)


@dataclass(eq=False)
class ConstraintTrials:
    """Sets of constraints that XLA was asked about.

    Attributes:
      marked: the plan whose function has marks.
      on: the machine by which seconds are priced.
      known: the figures of each set that was tried; None if XLA or JAX refuses it.
    """

    marked: MarkedPlan
    on: Machine
    partitioner: str
    known: dict[Chosen, XlaFigures | None] = field(default_factory=dict)

    def figures(self, chosen: Chosen) -> XlaFigures | None:
        """Return the figures of XLA's program under a set of constraints, None if it is refused."""
        if chosen not in self.known:
            self.known[chosen] = self._asked(chosen)
        return self.known[chosen]

    def _asked(self, chosen: Chosen) -> XlaFigures | None:
        """Compile the function with XLA under constraints; return None if they are refused."""
        plan = self.marked.plan
        try:
            annotations = self.marked.annotations(sorted(chosen))
            return xla_figures(
                self.marked.traced, annotations, plan.options, self.on, self.partitioner
            )
        except ShardalgError:
            # A constraint may not fit a value, for example along an axis of a manual region.
            return None
