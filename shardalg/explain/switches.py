"""What the switches of `Options` are worth in a plan: each flipped, and planned again."""

from __future__ import annotations

from collections.abc import Sequence

from shardalg.costs.cost import number
from shardalg.costs.walk import walk
from shardalg.explain.trials import Outcome
from shardalg.io.table import Table
from shardalg.partition.partition import gather_choices
from shardalg.planning.stages import Stages, planned
from shardalg.propagate.options import Options
from shardalg.propagate.sharded import ShardedGraph
from shardalg.report.formatting import formatting
from shardalg.spmd.instruction import Collective

FLIPPED = (
    "share_gathers", "keep_gathers", "hoist_gathers", "defer_sums", "defer_in_loops",
    "finite_sums", "wide_sums", "join_formatting", "pad_blocks", "collective_matmul",
    "stage_transforms", "turn_products", "stream_layers",
)  # fmt: skip
IN_NUMBERS = (
    "wide_sums",
    "collective_matmul",
    "stage_transforms",
    "turn_products",
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
    rows, settings = [("as planned", *_outcome(stages))], options.settings
    settings["keep_gathers"] = options.keeping(stages.traced.roles)
    for name in FLIPPED if stages.traced.symbols is None else FLIPPED_OF_NAMED:
        flipped = not settings[name]
        other = Options.of({**settings, name: flipped})
        made = planned(stages.traced, stages.annotations, other)
        rows.append((f"{name}={flipped}", *_outcome(made)))
    return Table(SWITCH_COLUMNS, tuple(rows))


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
