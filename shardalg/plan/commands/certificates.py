"""`shardalg certificate check FILE`: the proof of a search's lower bound, without a solver."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.errors import CommandError
from shardalg.plan.commands.function import arguments, loaded
from shardalg.plan.commands.messages import Command, add_json, print_json

if TYPE_CHECKING:
    from shardalg.plan.search.mesh_search import MeshSearch

HELP = "check the proof that no layouts of a search are faster than its bound"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    option = parser.add_argument
    option("action", choices=("check",), help="verify a certificate")
    option("file", type=Path, metavar="FILE", help="a file of `Certificate.save`")
    option(
        "--table", dest="function", metavar="module:function",
        help="make the table of prices again from the function, and compare it",
    )  # fmt: skip
    option("--args", type=Path, metavar="FILE", help="Python file with args(), as for search")
    option(
        "--sample", type=int, default=0, metavar="20",
        help="plan so many solutions that differ in one entry, and compare prices; needs --table",
    )  # fmt: skip
    option("--seed", type=int, default=0, help="of the random choice; default %(default)s")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Check the certificate, print the bound that it proves, and return 0.

    A certificate proves that no layouts of a search take less time than a bound. With `--table`,
    the prices of the proof are compared with those of the function.

    Raises:
      CertificateError: the file is no certificate, was edited, or has a wrong step of its proof; or
        its prices are not those of the function that `--table` names.
      CommandError: `--sample` is given without `--table`.
    """
    from shardalg.plan.search.bound_certificate import read_certificate
    from shardalg.plan.search.check_certificate import check
    from shardalg.tables import seconds_text

    if options.sample and options.function is None:
        raise CommandError("--sample needs the function: give --table module:function.")
    content = read_certificate(options.file)
    found = check(content)
    unit, inputs = content["unit_s"], content.get("inputs", {})
    # With a price of memory, the proof is of time plus memory, at most that of the budget.
    memory_ps = (inputs.get("price_ps_per_byte") or 0) * (inputs.get("budget_bytes") or 0)
    bound_s = (found.bound_ps - memory_ps) * unit
    cost_s = (found.cost_ps - memory_ps) * unit
    # A row is (seconds by the table, seconds of the plan) of a solution.
    rows = []
    if options.function is not None:
        search = _searched(options, content)
        search.check_table(content)
        rows = search.sample(content, options.sample, options.seed)
    errors = sorted(abs(table / plan - 1) for table, plan in rows if plan) or [0.0]
    middle, worst = errors[len(errors) // 2], errors[-1]
    if options.json:
        figures = {"bound_s": bound_s, "cost_s": cost_s}
        if rows:
            figures |= {"samples": len(rows), "median_error": middle, "largest_error": worst}
        print_json({"about": content["about"], **figures})
        return 0
    print(content["about"])
    within = ""
    if memory_ps:
        within = f" within {inputs['budget_bytes']:,.0f} bytes per device"
    print(f"no layouts of the table{within} take less than {seconds_text(bound_s)}: proved")
    gap = cost_s / bound_s - 1 if bound_s > 0 else 0.0
    print(f"the solution takes {seconds_text(cost_s)}, {gap:.3%} above the bound")
    if options.function is not None:
        print(f"the table is that of {options.function}")
    if rows:
        print(
            f"{len(rows)} solutions with one other entry, planned again (seed {options.seed}): "
            f"table and plan differ by {middle:.2%} (median), at most {worst:.2%}"
        )
    return 0


def _searched(options: argparse.Namespace, content: Mapping[str, Any]) -> MeshSearch:
    """Return the search of a certificate, for the function that the options name.

    Raises:
      CommandError: no such function, or the user's code fails.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from shardalg.algebra.mesh import Mesh
    from shardalg.plan.planning import traced_call
    from shardalg.plan.search.mesh_search import MeshSearch
    from shardalg.planner.propagate.strategy import Strategy

    function, specs = loaded(options)
    given = {name: getattr(specs, name, None) for name in ("roles", "donate_argnums", "kwargs")}
    call = (arguments(specs), given["kwargs"] or {})
    # Tracing needs some mesh; the certificate's own one decides the table.
    strategy = Strategy(Mesh({"one": 1}))
    settings = (given["roles"], given["donate_argnums"], strategy, None)
    traced, _, made = traced_call(function, call, *settings)
    return MeshSearch.of_certificate(content, traced, made)


CERTIFICATE = Command(HELP, add_options, run)
