"""A third-party train step, planned from the shardings of its arguments, and run for some steps."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from shardalg.lab.explore.settings import Settings
from shardalg.plan.explain.warnings.roundabout import warnings
from shardalg.plan.plan import Plan, plan
from shardalg.show import tables
from shardalg.show.html import Section
from shardalg.tables import Table

if TYPE_CHECKING:
    from shardalg.lab.foreign import Foreign

TITLE = "A train step that nobody here wrote"
PACKAGES = ("attnax", "flax", "optax")
MISSING = "it needs {missing}, not installed here (`make explore` installs the packages)"
INTRODUCTION = """The Transformer of attnax (on flax) and the AdamW of optax, both unchanged:
{sites} values inside are annotated. The plan is given the layouts and roles of the parameters, of
the optimizer state and of the data; the {nodes} operators follow by completion. Operators that are
gathered for want of a row send {fallback:,} of {total:,} wire bytes per step."""
RAN = """Then it ran {steps} steps on {devices} CPU devices, its state donated from step to step,
{kept} of its {state} arrays in the layout that they came in, beside the same step on one device.
The losses differ by at most {error:.1e}, relatively."""


@dataclass(frozen=True)
class Trained:
    """The plan of a train step from PyPI packages (flax and optax), and the losses of its runs.

    Attributes:
      losses: the loss after each step of our partitioned program; () if it was not run.
      expected: the loss after each step on one device; () if it was not run.
    """

    plan: Plan
    losses: tuple[float, ...] = ()
    expected: tuple[float, ...] = ()

    @property
    def error(self) -> float:
        """The largest relative difference between `losses` and `expected`; 0 if not run."""
        pairs = zip(self.losses, self.expected, strict=True)
        return max((abs(a - b) / abs(b) for a, b in pairs), default=0.0)

    @property
    def kept(self) -> tuple[bool, ...]:
        """For each donated array: True if the step returns it with the sharding of its argument."""
        program, donated = self.plan.program, self.plan._traced.donated
        # The step returns its new state first, in the order of the donated arguments.
        given = (program.argument_shardings[leaf] for leaf in donated)
        return tuple(a == b for a, b in zip(given, program.result_shardings, strict=False))


def missing() -> tuple[str, ...]:
    """Return the packages that the third-party train step needs and that are not installed."""
    return tuple(name for name in PACKAGES if find_spec(name) is None)


def plan_step(settings: Settings, step: Foreign) -> Plan:
    """Return the plan of a train step from PyPI packages (flax and optax).

    Parameters and optimizer state are donated.
    """
    from shardalg.lab.foreign import DONATED, ROLES

    return plan(
        step.step,
        *step.arguments,
        mesh=settings.mesh,
        in_shardings=step.in_shardings,
        out_shardings=step.out_shardings,
        roles=ROLES,
        donate_argnums=DONATED,
    )


def trained(settings: Settings) -> Trained:
    """Plan a train step from PyPI packages, and run it if there are enough devices.

    The packages (flax, optax and attnax) are imported here, because shardalg does not need them.
    """
    from shardalg.lab.foreign import build, train
    from shardalg.lower.three_ways import one_device

    x, y = settings.mesh.axis_names
    step = build(axes=(x, y))
    plan = plan_step(settings, step)
    if not settings.can_run:
        return Trained(plan)
    # The same steps run as planned and on one device, so that losses can be compared.
    runs = plan.lower(), one_device(step.step)
    ours, expected = (train(run, step.arguments, settings.steps) for run in runs)
    return Trained(plan, tuple(ours), tuple(expected))


def why_not(settings: Settings) -> str:
    """Return the reason why the third-party step is left out; "" if it is not left out."""
    if settings.quick:
        return "a quick exploration has no train steps"
    absent = missing()
    return MISSING.format(missing=", ".join(absent)) if absent else ""


def left_out(reason: str) -> Section:
    """Return a section with the reason why the third-party train step is left out."""
    return Section(TITLE, (f"Left out: {reason}.",))


def section(settings: Settings, found: Trained) -> Section:
    """Return a section with the plan's collectives, and the losses if the step was run."""
    collectives = tables.strategies({"step": found.plan._collectives_table})
    fallbacks = warnings(found.plan.program, found.plan.graph)
    shown = ("phase", "kind", "mesh_axes", "role", "executions", "wire_bytes_per_step")
    totals = collectives.select(*shown)
    introduction = INTRODUCTION.format(
        sites=len(found.plan.graph.sites) or "no",
        nodes=len(found.plan.graph.nodes),
        fallback=sum(fallbacks["wire_bytes_per_step"]),
        total=sum(totals["wire_bytes_per_step"]),
    )
    if not found.losses:
        return Section(TITLE, (introduction, totals))
    # Donated arrays, such as parameters, whose new value has the sharding of the argument.
    is_kept = found.kept
    run_text = RAN.format(
        steps=len(found.losses),
        devices=settings.mesh.size,
        error=found.error,
        kept=sum(is_kept),
        state=len(is_kept),
    )
    rows = enumerate(zip(found.losses, found.expected, strict=True), 1)
    losses = Table(("step", "loss", "one_device"), tuple((n, a, b) for n, (a, b) in rows))
    return Section(TITLE, (introduction, totals, run_text, losses))
