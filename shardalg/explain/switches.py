"""What the switches of `Options` are worth in a plan: each flipped, and planned again."""

from __future__ import annotations

from collections.abc import Sequence

from shardalg.costs.walk import walk
from shardalg.explain.trials import Outcome
from shardalg.io.table import Table
from shardalg.partition.partition import gather_choices
from shardalg.planning.stages import Completions, Stages, planned
from shardalg.propagate.options import Options
from shardalg.propagate.sharded import ShardedGraph
from shardalg.report.formatting import formatting
from shardalg.sizes.amounts import number
from shardalg.spmd.instruction import Collective

FLIPPED = (
    "share_gathers", "keep_gathers", "hoist_gathers", "defer_sums", "defer_in_loops",
    "finite_sums", "wide_sums", "join_formatting", "pad_blocks", "collective_matmul",
    "stage_transforms", "turn_products", "keep_below_peak", "stream_layers",
)  # fmt: skip
IN_LOOPS = ("hoist_gathers", "defer_in_loops", "stream_layers")
"""Switches that have no effect in a program without loops."""
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
    """A row for the plan, and one per switch with that switch alone the other way."""
    settings, known = options.settings, Completions(stages.annotations)
    settings["keep_gathers"] = options.keeping(stages.traced.roles)
    found = [(stages, _outcome(stages))]
    rows = [("as planned", *found[0][1])]
    unread = frozenset() if any(n.bodies for n in stages.graph.nodes) else frozenset(IN_LOOPS)
    for name in FLIPPED if stages.traced.symbols is None else FLIPPED_OF_NAMED:
        flipped, outcome = not settings[name], found[0][1]
        if name not in unread:
            other = Options.of({**settings, name: flipped})
            made = planned(stages.traced, stages.annotations, other, known=known)
            # most switches change nothing, so that an equal program reuses its price
            alike = [priced for other, priced in found if _is_same(other, made)]
            outcome = alike[0] if alike else _outcome(made)
            found += [] if alike else [(made, outcome)]
        rows.append((f"{name}={flipped}", *outcome))
    return Table(SWITCH_COLUMNS, tuple(rows))


def _is_same(one: Stages, other: Stages) -> bool:
    return one.graph is other.graph and one.program == other.program


def _outcome(stages: Stages) -> tuple[object, ...]:
    outcome = Outcome.of(stages)
    steps = [step.instruction.attributes for step in walk(stages.program)]
    local = sum(not isinstance(attributes, Collective) for attributes in steps)
    moved = formatting(stages.program, stages.graph)["memory_bytes"][-1]
    sent = number(outcome.wire_bytes)
    return outcome.collectives, sent, outcome.peak_memory_bytes, local, moved


def gather_table(sharded: ShardedGraph, roles: Sequence[str], options: Options) -> Table:
    """What is gathered more than once, what saves most bytes first."""
    choices = gather_choices(sharded, roles, options)
    rows = (
        (
            sharded.graph.values[choice.value].name, choice.layout.text(), choice.option,
            choice.times, *map(number, (choice.wire_bytes, choice.saved_wire_bytes)),
            choice.held_bytes,
        )
        for choice in sorted(choices, key=lambda choice: -choice.saved_wire_bytes)
    )  # fmt: skip
    return Table(GATHER_COLUMNS, tuple(rows))
