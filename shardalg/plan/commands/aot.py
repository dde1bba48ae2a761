"""`shardalg aot`: a function's plan beside what the compiler of a chip makes of it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from shardalg.errors import CommandError
from shardalg.plan.commands.function import add_function, machine_data, planned
from shardalg.plan.commands.messages import add_json, by_quantity, print_json

if TYPE_CHECKING:
    from shardalg.costs.topology import Topology
    from shardalg.plan.plan import Plan
    from shardalg.xla.aot_answer import BesideCompiler

HELP = "a function's plan beside the chip's own compiler, as in --hardware v3:8x8; no chip needed"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_function(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Compile, and print the comparison."""
    from shardalg.costs.topology import Topology

    if options.hardware is None:
        raise CommandError("what is compiled for? Write a chip and its shape: --hardware v3:8x8.")
    topology = Topology.parse(options.hardware)
    options.hardware = topology.hardware.name
    plan = planned(options)
    found = plan.aot(topology)
    if options.json:
        print_json(_data(found, plan, topology))
    else:
        print(found)
    return 0


def _data(found: BesideCompiler, plan: Plan, topology: Topology) -> dict[str, Any]:
    """Return the comparison as plain data; `fits` is False if the compiler runs out of memory."""
    on = machine_data(plan.cost(topology), plan.mesh)
    values = ("planned", "compiled", "xla", "error", "xla_error")
    rows = (
        {**row, "quantity": "flops" if row["kind"] == "flops" else "wire_bytes"}
        for row in found.differences
    )
    return {
        "where": found.where,
        **on,
        "fits": found.compiled.out_of_memory is None,
        "xla_fits": found.xla.out_of_memory is None,
        "figures": by_quantity(found.table, values),
        "differences": by_quantity(rows, ("planned", "its")),
        "notes": list(found.notes),
    }
