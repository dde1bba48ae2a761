"""The effect of each switch of `Options`, and cheaper policies, found by planning again.

Policies complete shardings in different orders. If two operands of a product propose the same mesh
axis for different dimensions of its result, the order decides, and a later operator may pay for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from shardalg.costs.hardware import Hardware
from shardalg.costs.topology import Topology, machine
from shardalg.costs.walk import walk
from shardalg.plan.explain.why_not import annotated_as
from shardalg.planner.partition.partition import gather_choices
from shardalg.planner.partition.partition_options import PartitionOptions
from shardalg.planner.propagate.options import POLICIES, Options
from shardalg.planner.propagate.sharded import ShardedGraph
from shardalg.planner.reshard.closed_forms import primes
from shardalg.planner.stages import Completions, Stages, planned, priced
from shardalg.planner.trials import TrialOutcome, Trials
from shardalg.show.formatting import formatting
from shardalg.sizes.amounts import number
from shardalg.spmd.instruction import Collective
from shardalg.tables import Table, bytes_text, seconds_text

SHARE = 0.1
"""Another policy is named if it saves at least this share of a step's time."""
# Planning takes as long as the program is large. Above these limits (operators, and `_search_size`
# for policy "cost"), other policies would make an overview slow.
LARGEST, LARGEST_BY_COST = 400, 6_400
MOST_TRIED = 8
"""Each tried annotation is a whole plan."""


def cheaper_policy(trials: Trials, hardware: str | Hardware | Topology) -> str:
    """Return a sentence about the cheapest other policy; "" if none is a tenth cheaper.

    The sentence has seconds and bytes of both, and an annotation that makes a step as cheap under
    the plan's own policy, if there is one. Every figure belongs to a plan on the hardware.
    Graphs with more than `LARGEST` operators, and named sizes, are not planned again.
    """
    stages, on = trials.stages, machine(hardware)
    if stages.is_named or len(stages.graph.nodes) > LARGEST:
        return ""
    outcome_now = _outcome(stages, on)
    outcome_by_policy = {
        name: (other_plan, _outcome(other_plan, on)) for name, other_plan in _others(trials)
    }
    if not outcome_by_policy:
        return ""
    name, (other, best_outcome) = min(outcome_by_policy.items(), key=lambda pair: pair[1][1].price)
    # A faster plan that does not fit is no advice, unless the present one does not fit either.
    if best_outcome.step_time_s >= (1 - SHARE) * outcome_now.step_time_s or (
        outcome_now.fits and not best_outcome.fits
    ):
        return ""
    annotation = _annotation(trials, other, best_outcome, on)
    as_much = (
        f" Under this policy, {annotation[0]}: {_change(outcome_now, annotation[1])}."
        if annotation
        else ""
    )
    change = _change(outcome_now, best_outcome)
    return f"Options(policy={name!r}) is cheaper: {change} on {on.chip.name}.{as_much}"


def _outcome(stages: Stages, hardware: Hardware | Topology) -> TrialOutcome:
    """Return the time, bytes and memory of a plan when it is priced on `hardware`."""
    cost = priced(stages.traced, stages.program, stages.machine(hardware))
    figures = {"step_time_s": cost.step_time_s, "fits": cost.fits}
    return replace(TrialOutcome.of(stages), peak_memory_bytes=cost.peak_memory_bytes, **figures)


def _others(trials: Trials) -> Iterator[tuple[str, Stages]]:
    """Yield (name, plan) for each policy except the plan's own, if it can be planned quickly.

    A policy is a way to choose shardings, such as "paper" (GSPMD's completion) or "cost" (a search
    by price).
    """
    stages, options = trials.stages, trials.options
    for name in POLICIES:
        # The policy "jit" stands for another one (`way`): that of the installed jax.
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
    trials: Trials, other: Stages, then: TrialOutcome, hardware: Hardware | Topology
) -> tuple[str, TrialOutcome] | None:
    """Return an annotation under which the plan's own policy is as cheap as another policy.

    It is the first one in program order, as text, with the figures of its plan; None if none of
    the tried annotations is as cheap.

    Args:
      other, then: the plan under the other policy, and its figures.
    """
    stages = trials.stages
    # Values correspond only within one graph: a policy can rewrite it (transforms in stages).
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
        # One percent: the annotated plan need not equal the other policy's in every operator.
        if outcome.step_time_s <= 1.01 * then.step_time_s and outcome.fits >= then.fits:
            name = stages.graph.values[value].name
            return f"annotate {name} as {layout.text()}", outcome
    return None


def _change(now: TrialOutcome, then: TrialOutcome) -> str:
    """Return seconds and bytes of a step before and after a change, as text."""
    return (
        f"step {seconds_text(now.step_time_s)} to {seconds_text(then.step_time_s)}, sent "
        f"{bytes_text(now.wire_bytes)} to {bytes_text(then.wire_bytes)}"
    )


FLIPPED = (
    "share_gathers", "keep_gathers", "hoist_gathers", "defer_sums", "defer_in_loops",
    "finite_sums", "wide_sums", "join_formatting", "join_gathers", "pad_blocks",
    "collective_matmul", "stage_transforms", "turn_products", "keep_below_peak", "stream_layers",
)  # fmt: skip
IN_LOOPS = ("hoist_gathers", "defer_in_loops", "stream_layers")
"""Switches without effect in a program without loops."""
# Planning with named sizes leaves out these passes (`Options.where`), so flipping their switches
# would change nothing.
IN_NUMBERS = (
    "wide_sums",
    "collective_matmul",
    "stage_transforms",
    "turn_products",
    "keep_below_peak",
    "stream_layers",
)
FLIPPED_OF_NAMED = tuple(n for n in FLIPPED if n not in IN_NUMBERS)
SWITCH_COLUMNS = (
    "options", "collectives", "wire_bytes", "peak_memory_bytes", "local_instructions",
    "formatting_bytes",
)  # fmt: skip
GATHER_COLUMNS = (
    "value", "sharding", "option", "times", "wire_bytes", "saved_wire_bytes", "held_bytes",
)  # fmt: skip


def switch_table(stages: Stages, options: Options) -> Table:
    """Return the figures of a plan, and of plans with one option (switch) flipped, a row each."""
    # Most switches do not concern completion, so their plans share one completed graph (`known`).
    # This saves the time of completing it again.
    settings, completions = options.settings, Completions(stages.annotations)
    # None lets the roles decide, so the row of this switch flips the decided value.
    settings["keep_gathers"] = options.keeping(stages.traced.roles)
    planned_so_far = [(stages, _switch_outcome(stages))]
    rows = [("as planned", *planned_so_far[0][1])]
    # Without loops these switches change nothing, so their rows repeat the plan's figures.
    unread = frozenset() if any(n.bodies for n in stages.graph.nodes) else frozenset(IN_LOOPS)
    for name in FLIPPED if stages.traced.symbols is None else FLIPPED_OF_NAMED:
        flipped, outcome = not settings[name], planned_so_far[0][1]
        if name not in unread:
            other_options = Options.of({**settings, name: flipped})
            other_plan = planned(
                stages.traced, stages.annotations, other_options, known=completions
            )
            # Most switches change nothing. An equal program has the same price, so it is not priced
            # again.
            equal_outcomes = [
                priced
                for earlier_plan, priced in planned_so_far
                if earlier_plan.graph is other_plan.graph
                and earlier_plan.program == other_plan.program
            ]
            outcome = equal_outcomes[0] if equal_outcomes else _switch_outcome(other_plan)
            planned_so_far += [] if equal_outcomes else [(other_plan, outcome)]
        rows.append((f"{name}={flipped}", *outcome))
    return Table(SWITCH_COLUMNS, tuple(rows))


def _switch_outcome(stages: Stages) -> tuple[object, ...]:
    """Return the columns of `switch_table` after the first one, for one plan."""
    outcome = TrialOutcome.of(stages)
    steps = [step.instruction.attributes for step in walk(stages.program)]
    local = sum(not isinstance(attributes, Collective) for attributes in steps)
    # The last row of the table is the sum over all kinds of instructions.
    moved = formatting(stages.program, stages.graph)["memory_bytes"][-1]
    sent = number(outcome.wire_bytes)
    return outcome.collectives, sent, outcome.peak_memory_bytes, local, moved


def gather_table(sharded: ShardedGraph, roles: Sequence[str], options: Options) -> Table:
    """Return a row per copy of a value that is gathered more than once.

    A copy could be kept instead: the row has the bytes that this saves, and the memory that the
    copy takes (`held_bytes`). Copies come first whose keeping saves the most bytes.

    Args:
      roles: the role of each value, such as "weight".
    """
    choices = gather_choices(sharded, roles, PartitionOptions.of(options, roles))
    rows = (
        (
            sharded.graph.values[choice.value].name, choice.layout.text(), choice.option,
            choice.times, *map(number, (choice.wire_bytes, choice.saved_wire_bytes)),
            choice.held_bytes,
        )
        for choice in sorted(choices, key=lambda choice: -choice.saved_wire_bytes)
    )  # fmt: skip
    return Table(GATHER_COLUMNS, tuple(rows))
