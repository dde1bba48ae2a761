"""`shardalg rules`: check logical-axis rules, or write those that give a strategy's layouts."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

from shardalg.algebra.notation.read import mesh_of
from shardalg.errors import CommandError
from shardalg.plan.commands.comparing import GIVEN, RECIPES, recipe
from shardalg.plan.commands.function import arguments, loaded
from shardalg.plan.commands.messages import Command, add_json, print_json, records

if TYPE_CHECKING:
    from shardalg.plan.rules.findings import Findings
    from shardalg.plan.rules.logical_rules import LogicalRules

HELP = "find logical-axis rules that are silently wrong for your arrays, or write rules"
FOUND = 1
STYLES = ("linen", "nnx", "haliax", "maxtext")
EXAMPLE = """\
lint: find rules that are silently wrong. Exit status: 0 no findings, 1 findings.
Example of a model.py; rules may also be a file of MaxText's YAML, given as --rules base.yml:

  rules = [("batch", "data"), ("embed", "data"), ("mlp", "model")]

  def arrays():
      return {"w": ((1024, 4096), "bfloat16", ("embed", "mlp"))}

  shardalg rules lint model.py:arrays --mesh data=8,model=4

write: print the fewest rules that give the layouts of a recipe, or of `strategy` in the module of
the function. Here names() returns a tuple: per argument of the function, its names, or None.

  def names():
      return {"w": ("embed", "mlp")}, ("batch", None)

  shardalg rules write model.py:names --mesh data=8,model=4 \\
      --function model.py:step --recipe fsdp:data+tensor:model --style maxtext
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLE
    option = parser.add_argument
    option("action", choices=("lint", "write"), help="check rules, or write them")
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
        help="lint: a function of the arrays, whose values are checked, to try repairs. "
        "write: the function that a recipe shards; its module defines args()",
    )  # fmt: skip
    option(
        "--recipe", metavar="fsdp:data+tensor:model",
        help=f"write: kind and mesh axes, joined by '+' (kinds: {', '.join(RECIPES)}; "
        "default: `strategy` in the function's module)",
    )  # fmt: skip
    option(
        "--leave-out", action="store_true",
        help="write: leave out arrays whose layouts no rules give, and name them",
    )  # fmt: skip
    option("--style", choices=STYLES, default="linen", help="write: the library; default linen")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the findings or the rules, and return the exit status.

    The status is `FOUND` if rules were checked and have faults, else 0.
    """
    # Planning needs no accelerator, and starting one takes seconds.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if options.action == "write":
        rules = _written(options)
        pairs = [{"name": rule.name, "axes": list(rule.axes)} for rule in rules.rules]
        if options.json:
            print_json({"mesh": rules.mesh.shape, "style": options.style, "rules": pairs})
        else:
            print(rules.text(options.style))
        return 0
    found = _linted(options)
    if options.json:
        print_json({"mesh": found.rules.mesh.shape, "findings": records(found.rows())})
    else:
        print(found)
    return FOUND if found else 0


def _linted(options: argparse.Namespace) -> Findings:
    """Check the rules of a file or a module, and return the findings.

    With --function, the values of this function are checked, too.

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


def _written(options: argparse.Namespace) -> LogicalRules:
    """Return the rules that give the layouts of a recipe or a strategy.

    The recipe is an option; without it, the strategy is `strategy` in the function's module.

    Raises:
      CommandError: no function, neither a recipe nor a strategy, or the user's code fails.
      StrategyError: no rules give the layouts.
    """
    import shardalg as sa

    if options.function is None:
        raise CommandError("write needs --function module:function, the function that is sharded.")
    fn, specs = loaded(argparse.Namespace(function=options.function, args=None))
    _, module = loaded(argparse.Namespace(function=options.arrays, args=None))
    names = arguments(module, options.arrays.rpartition(":")[2])
    if options.recipe is None:
        strategy = getattr(specs, "strategy", None)
        if strategy is None:
            raise CommandError(
                f"{specs.__file__} defines no `strategy`. Define one, or give --recipe fsdp:data."
            )
    else:
        given = {name: getattr(specs, name) for name in GIVEN if hasattr(specs, name)}
        # A recipe chooses shardings, for which donation does not matter.
        given.pop("donate_argnums", None)
        mesh = mesh_of(options.mesh)
        strategy = recipe(options.recipe).strategy(fn, *arguments(specs), mesh=mesh, **given)
    # Warnings about arrays that were left out go to stderr: stdout has only the rules.
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        rules = sa.rules_of(strategy, names, style=options.style, leave_out=options.leave_out)
    for one in recorded:
        print(f"warning: {one.message}", file=sys.stderr)
    return rules


RULES = Command(HELP, add_options, run)
