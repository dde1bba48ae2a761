"""Whether another policy is cheaper than the plan's own, and the annotation that gives as much.

A policy completes layouts in an order of its own. Where two operands of a product want one mesh
axis on different dimensions of its result, the order decides, and a later operator may pay for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from shardalg.costs.hardware import Hardware
from shardalg.costs.topology import Topology, machine
from shardalg.explain.trials import Outcome, Trials
from shardalg.explain.why_not import annotated_as
from shardalg.io.units import bytes_text, seconds_text
from shardalg.planning.stages import Stages, planned, priced
from shardalg.propagate.options import POLICIES
from shardalg.reshard.closed_forms import primes

SHARE = 0.1
"""The share of a step's time from which another policy is worth a word."""
LARGEST, LARGEST_BY_COST = 400, 6_400
"""Operators of the largest graph that is planned by other policies; the largest `_search_size`."""
MOST_TRIED = 8
"""So many annotations are planned."""


def cheaper_policy(trials: Trials, hardware: str | Hardware | Topology) -> str:
    """Return a sentence about the cheapest other policy; "" if none is a tenth cheaper.

    The sentence gives seconds and bytes of both, and the one annotation that takes no more time
    under the plan's own policy, if there is one. Every figure is that of a plan on the hardware.
    Graphs with more than `LARGEST` operators, and named sizes, are not planned again.
    """
    stages, given = trials.stages, machine(hardware)
    if stages.is_named or len(stages.graph.nodes) > LARGEST:
        return ""
    now = _outcome(stages, given)
    outcomes = {name: (made, _outcome(made, given)) for name, made in _others(trials)}
    if not outcomes:
        return ""
    name, (other, then) = min(outcomes.items(), key=lambda pair: pair[1][1].price)
    if then.step_time_s >= (1 - SHARE) * now.step_time_s or (now.fits and not then.fits):
        return ""
    found = _annotation(trials, other, then, given)
    as_much = f" Under this policy, {found[0]}: {_change(now, found[1])}." if found else ""
    return (
        f"Options(policy={name!r}) is cheaper: {_change(now, then)} on {given.chip.name}.{as_much}"
    )


def _outcome(stages: Stages, hardware: Hardware | Topology) -> Outcome:
    """Return the figures of a plan on some hardware."""
    cost = priced(stages.traced, stages.program, hardware)
    figures = {"step_time_s": cost.step_time_s, "fits": cost.fits}
    return replace(Outcome.of(stages), peak_memory_bytes=cost.peak_memory_bytes, **figures)


def _others(trials: Trials) -> Iterator[tuple[str, Stages]]:
    """Yield a plan by each other policy that is worth its time."""
    stages, options = trials.stages, trials.options
    for name in POLICIES:
        is_own = name in (options.policy, options.way)
        if is_own or (name == "cost" and _search_size(stages) > LARGEST_BY_COST):
            continue
        yield name, planned(stages.traced, stages.annotations, replace(options, policy=name))


def _search_size(stages: Stages) -> int:
    """Return the number of operators, times 4 for each prime factor of the number of devices.

    An operator's choices grow by about this factor with each axis of prime size. 100 operators on
    8 devices are searched in about a second, 33 operators on 64 devices in fourteen.
    """
    return len(stages.graph.nodes) * 4 ** len(primes(stages.mesh.digits(stages.mesh.axis_names)))


def _annotation(
    trials: Trials, other: Stages, then: Outcome, hardware: Hardware | Topology
) -> tuple[str, Outcome] | None:
    """Return the first annotation, in program order, that makes a step as cheap as the other."""
    stages = trials.stages
    if other.graph is not stages.graph:
        return None
    pairs = zip(stages.sharded.shardings, other.sharded.shardings, strict=True)
    differ = [
        (value, theirs)
        for value, (ours, theirs) in enumerate(pairs)
        if ours.dims != theirs.dims and any(theirs.dims) and value not in stages.sharded.fixed
    ]
    for value, layout in islice(differ, MOST_TRIED):
        outcome = _outcome(trials.under(annotated_as(stages, value, layout)), hardware)
        if outcome.step_time_s <= 1.01 * then.step_time_s and outcome.fits >= then.fits:
            name = stages.graph.values[value].name
            return f"annotate {name} as {layout.text()}", outcome
    return None


def _change(now: Outcome, then: Outcome) -> str:
    return (
        f"a step {seconds_text(now.step_time_s)} to {seconds_text(then.step_time_s)}, sent "
        f"{bytes_text(now.wire_bytes)} to {bytes_text(then.wire_bytes)}"
    )
