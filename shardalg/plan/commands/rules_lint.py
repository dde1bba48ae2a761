"""`shardalg rules lint`: logical-axis rules that are silently wrong for the arrays of a model."""

from __future__ import annotations

import argparse
import os
from typing import Any

from shardalg.algebra.notation.read import mesh_of
from shardalg.errors import CommandError
from shardalg.plan.commands.function import arguments, loaded
from shardalg.plan.commands.messages import Command, add_json, print_json, records
from shardalg.plan.rules.findings import Findings

HELP = "find logical-axis rules that are silently wrong for your arrays"
FOUND = 1
EXAMPLE = """\
exit status: 0 no findings, 1 findings

example of a model.py; rules may also be a file of MaxText's YAML, given as --rules base.yml:

  rules = [("batch", "data"), ("embed", "data"), ("mlp", "model")]

  def arrays():
      return {"w": ((1024, 4096), "bfloat16", ("embed", "mlp"))}

  shardalg rules lint model.py:arrays --mesh data=8,model=4
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLE
    option = parser.add_argument
    option("action", choices=("lint",), help="what to do with the rules")
    option(
        "arrays",
        metavar="module:function",
        help="a function that returns the arrays with the names of their dimensions",
    )
    option("--mesh", required=True, metavar="data=8,model=4", help="mesh axes and their sizes")
    option(
        "--rules", metavar="FILE",
        help="YAML with logical_axis_rules (default: `rules` in the module of the arrays)",
    )  # fmt: skip
    option(
        "--function", metavar="module:function",
        help="a function of the arrays: its values are checked, and repairs are tried",
    )  # fmt: skip
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the findings, and return the exit status."""
    # Planning needs no accelerator, and starting one takes seconds.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    found = _linted(options)
    if options.json:
        print_json({"mesh": found.rules.mesh.shape, "findings": records(found.rows())})
    else:
        print(found)
    return FOUND if found else 0


def _linted(options: argparse.Namespace) -> Findings:
    """Return the findings that the options ask for.

    Raises:
      CommandError: no such function or no rules, or the user's code fails.
      StrategyError: arrays or rules that cannot be read.
    """
    import shardalg as sa

    # `arrays` names a function like any command does, but this function itself returns the arrays.
    _, module = loaded(argparse.Namespace(function=options.arrays, args=None))
    given: Any = options.rules
    if given is None:
        given = getattr(module, "rules", None)
        if given is None:
            raise CommandError(
                f"{module.__file__} defines no `rules`. Define them there, or give --rules FILE."
            )
    rules = sa.logical_rules(given, mesh_of(options.mesh))
    made = arguments(module, options.arrays.rpartition(":")[2])
    if len(made) != 1:
        raise CommandError(
            f"{options.arrays} returns {len(made)} values. Return one dict of arrays."
        )
    if options.function is None:
        return rules.lint(made[0])
    fn, _ = loaded(argparse.Namespace(function=options.function, args=None))
    return rules.lint(made[0], fn=fn)


RULES = Command(HELP, add_options, run)
