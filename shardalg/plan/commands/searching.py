"""`shardalg search`: the fastest layouts of a function of the user, with a lower bound."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any

from shardalg.algebra.notation.read import mesh_of
from shardalg.plan.commands.function import arguments, loaded
from shardalg.plan.commands.messages import Command, add_json, print_json, records

HELP = "find the fastest layouts of your function over all meshes, with a lower bound"
GIVEN = ("roles", "donate_argnums", "kwargs")
"""Arguments of `sa.search` that a specs file may define."""
UNITS = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    option = parser.add_argument
    option("function", metavar="module:function", help="a function, as step.py:step")
    option(
        "--args", type=Path, metavar="FILE",
        help="Python file with args(), which returns shapes or arrays "
        "(default: the function's own module)",
    )  # fmt: skip
    option("--hardware", required=True, help="chip, as h100, or topology, as h100:64")
    option("--devices", type=int, help="number of devices; default: that of the topology")
    option(
        "--memory", type=memory_bytes, metavar="'80 GB'",
        help="largest peak memory of a device; default: the memory of the chip",
    )  # fmt: skip
    option("--seconds", type=float, help="time of the search; default: until the proof is found")
    option("--axes", type=int, default=2, help="largest number of mesh axes; default %(default)s")
    option(
        "--mesh", action="append", metavar="data=8,model=4",
        help="search this mesh alone; may be repeated",
    )  # fmt: skip
    option("--certificate", type=Path, metavar="FILE", help="write the proof of the best mesh")
    option("--html", type=Path, metavar="FILE", help="write the answer as an HTML page to FILE")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Search the fastest layouts, print the answer, write its files, and return 0.

    Raises:
      CommandError: no such function, or the user's code fails. BudgetError: no plan fits.
    """
    # Planning needs no accelerator, and starting one takes seconds.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import shardalg as sa

    function, specs = loaded(options)
    given: dict[str, Any] = {name: getattr(specs, name) for name in GIVEN if hasattr(specs, name)}
    # None searches all meshes with this number of devices.
    meshes = options.mesh and [mesh_of(text) for text in options.mesh]
    found = sa.search(
        function,
        *arguments(specs),
        hardware=options.hardware,
        devices=options.devices,
        memory_bytes=options.memory,
        seconds=options.seconds,
        over=sa.family(axes=options.axes, meshes=meshes),
        **given,
    )
    if options.json:
        figures = {"step_s": found.step_s, "bound_s": found.bound_s, "gap_share": found.gap}
        print_json({**figures, "meshes": records(found.table)})
    else:
        print(found)
    if options.html is not None:
        found.page(options.html)
    # The rows are ranked, so the first one has the best mesh. It may have no proof yet.
    proof = found.rows[0].certificate if options.certificate is not None else None
    if proof is not None:
        proof.save(options.certificate)
    return 0


def memory_bytes(text: str) -> float:
    """Return the number of bytes in a text with a unit.

    Raises:
      ArgumentTypeError: the text is no positive number with a unit.

    >>> memory_bytes("80 GB"), memory_bytes("1.5GiB"), memory_bytes("8e9")
    (80000000000.0, 1610612736.0, 8000000000.0)
    """
    found = re.fullmatch(r"\s*(\d+\.?\d*(?:e\d+)?)\s*([A-Za-z]*)\s*", text)
    if found is None or found[2] not in UNITS or not float(found[1]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of bytes: write '80 GB' (units: {', '.join(UNITS)[2:]})."
        )
    return float(found[1]) * UNITS[found[2]]


SEARCH = Command(HELP, add_options, run)
