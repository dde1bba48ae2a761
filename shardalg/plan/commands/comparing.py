"""`shardalg compare`: a function of the user under several recipes, ranked."""

from __future__ import annotations

import argparse
import os
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.algebra.notation.read import mesh_of
from shardalg.errors import CommandError
from shardalg.plan.commands.function import SPECS, add_function, arguments, loaded
from shardalg.plan.commands.messages import Command, add_json, print_json, records

if TYPE_CHECKING:
    from shardalg.plan.comparing.compared import StrategyComparison

HELP = "compare strategies for your function: time, memory, communication, what fits"
RECIPES = ("data", "fsdp", "tensor", "sequence", "expert", "two_d", "zero1", "zero2", "zero3")
GIVEN = ("roles", "donate_argnums", "kwargs")
"""Arguments of `sa.compare` that a specs file may define; strategies have their own shardings."""
NO_PLAN = 1
"""Exit status if no strategy has a plan."""
DEFAULT = ("data:data", "fsdp:data", "fsdp:data+tensor:model")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_function(parser)
    option = parser.add_argument
    option(
        "--recipe", action="append", metavar="fsdp:data+tensor:model",
        help=f"kind and mesh axes, joined by '+'; may be repeated (kinds: {', '.join(RECIPES)}; "
        f"default: {' '.join(DEFAULT)})",
    )  # fmt: skip
    option(
        "--batch", choices=("fixed", "largest"), default="fixed",
        help="compare at the batch of the arguments, or each strategy at the largest that fits",
    )  # fmt: skip
    option("--html", type=Path, metavar="FILE", help="write the comparison as an HTML page to FILE")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the ranked strategies, write the page, and return the exit status.

    The status is `NO_PLAN` if no strategy has a plan, else 0.

    Raises:
      CommandError: neither a mesh nor a number of chips is given.
    """
    if options.mesh is None and ":" not in (options.hardware or ""):
        raise CommandError(
            "the number of devices is not known: give --hardware h100:64, or "
            "--mesh data=16,model=4."
        )
    # Planning needs no accelerator, and starting one takes seconds.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    found = _compared(options)
    if options.json:
        print_json({"strategies": records(found.table), "axes": records(found.by_axis())})
    else:
        print(found)
    if options.html is not None:
        found.page(options.html)
    return 0 if any(row.plan is not None for row in found.rows) else NO_PLAN


def _compared(options: argparse.Namespace) -> StrategyComparison:
    """Compare recipes, and the strategy in the user's module if there is one, for a function.

    Raises:
      CommandError: a recipe that cannot be read, no such function, or the user's code fails.
    """
    import shardalg as sa

    function, specs = loaded(options)
    given = {name: getattr(specs, name) for name in GIVEN if hasattr(specs, name)}
    strategies: dict[str, Any] = {text: recipe(text) for text in options.recipe or DEFAULT}
    # A strategy that the user wrote is compared with the recipes, under a name of its own.
    own = getattr(specs, "strategy", None)
    if own is not None:
        strategies[SPECS[2]] = own
    meshes = None if options.mesh is None else [mesh_of(options.mesh)]
    chip = {"hardware": options.hardware} if options.hardware else {}
    return sa.compare(
        function,
        *arguments(specs),
        strategies=strategies,
        hardware=options.hardware,
        meshes=meshes,
        options=sa.Options(policy=options.policy, **chip),
        batch=options.batch,
        **given,
    )


def recipe(text: str) -> Any:
    """Return the recipe that a text names: kinds with mesh axes, joined by "+".

    Raises:
      CommandError: an unknown kind, or a kind without an axis.

    >>> recipe("fsdp:data+tensor:model")
    sa.recipes.fsdp('data') | sa.recipes.tensor('model')
    >>> recipe("zero1:data")
    sa.recipes.zero(1, 'data')
    """
    from shardalg.plan.strategies import recipes

    found = None
    # `|` joins recipes in Python, so it is accepted here, too.
    for part in text.replace("|", "+").split("+"):
        kind, _, axes = part.strip().partition(":")
        names = [axis.strip() for axis in axes.split(",") if axis.strip()]
        if kind not in RECIPES or not names:
            near = get_close_matches(kind, RECIPES, 1)
            hint = f" Did you mean {near[0]}?" if near and near[0] != kind else ""
            raise CommandError(
                f"--recipe {text}: {part!r} is no kind with mesh axes. Write for example "
                f"fsdp:data or fsdp:data+tensor:model; kinds are {', '.join(RECIPES)}.{hint}"
            )
        # "zero1" has the level of ZeRO in its name, which `recipes.zero` takes as a number.
        if kind.startswith("zero"):
            one = recipes.zero(int(kind.removeprefix("zero")), *names)
        else:
            one = getattr(recipes, kind)(*names)
        found = one if found is None else found | one
    return found


COMPARE = Command(HELP, add_options, run)
