"""`shardalg strategies`: ways to train a model on so many devices, ranked by predicted time."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.files import check_place, write_whole
from shardalg.plan.commands.messages import add_json, print_json

if TYPE_CHECKING:
    from shardalg.models.ranking.ranked import Ranking

HELP = "mesh shapes, strategies, microbatches and remat for a model, ranked by seconds per sample"
INTERRUPTED = 130
REMAT = ("none", "full", "minimal")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    option = parser.add_argument
    option("--model", default="narrow-16b", metavar="NAME", help="narrow-16b (default), wide-64b")
    option("--sizes", default="", metavar="layers=32,...", help="change sizes of the model")
    option("--devices", type=int, required=True, metavar="N", help="of the mesh")
    option("--hardware", required=True, metavar="CHIP", help="a chip (v3), or a topology (v3:8x16)")
    option(
        "--memory",
        type=_positive(float),
        metavar="BYTES",
        help="of a device (default: what the chip has)",
    )
    option("--batch", type=_listed(_positive(int)), metavar="N,...", help="sequences of a step")
    option(
        "--microbatches", type=_listed(_positive(int)), metavar="N,...", help="parts of the batch"
    )
    option("--rounds", type=_listed(_positive(int)), metavar="N,...", help="of circular pipelines")
    option("--strategy", type=_listed(str), metavar="NAME,...", help="default: all")
    option("--remat", type=_listed(_remat), metavar="NAME,...", help=", ".join(REMAT))
    option("--optimizer", type=_listed(str), metavar="NAME,...", help="adafactor, adam, sgd")
    option("--order", type=_listed(str), metavar="NAME", help="of axes on devices: given or all")
    option("--processes", type=_positive(int), metavar="N", help="at most (default: one a core)")
    option(
        "--verify", type=_positive(int), default=0, metavar="N", help="plan and prove the best N"
    )
    option("--html", type=Path, metavar="FILE", help="write the ranking as a page to FILE")
    option("--top", type=_positive(int), default=20, metavar="N", help="rows (default %(default)s)")
    option("--refused", action="store_true", help="print what does not fit or divide, and why")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the ranking; after Ctrl-C print the candidates priced so far and return 130."""
    # Ranking runs no program, so JAX need not take hold of an accelerator.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # The search is slow, so an error about the file must come before it.
    if options.html is not None:
        check_place(options.html)
    # These modules load jax. Importing them only now keeps the error about a wrong option fast.
    from shardalg.algebra.notation.read import assignments
    from shardalg.models.ranking.candidate import model_of
    from shardalg.models.ranking.ranked import strategies

    ranking = strategies(
        model_of(options.model, assignments(options.sizes, "sizes", "layers=32")),
        options.devices,
        options.hardware,
        choices=_choices(options),
        memory_bytes=options.memory,
        progress=_say,
        processes=options.processes,
    )
    # Without this the first line of the table would be written behind the progress text, which
    # ends without a line break.
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    if options.html is not None:
        write_whole(options.html, ranking.page(max(options.top, 100)).to_html())
    if options.json:
        print_json(_data(ranking, options))
    else:
        print(ranking.table(options.top))
        for what, why in ranking.refused if options.refused else ():
            print(f"{what}: {why}")
        print(ranking.summary())
        if options.verify:
            print(ranking.verified(options.verify))
    return INTERRUPTED if ranking.left else 0


def _data(ranking: Ranking, options: argparse.Namespace) -> dict[str, Any]:
    """Return the ranking as plain data, with the chip and the memory capacity of a device."""
    from shardalg.costs.topology import machine

    chip = machine(options.hardware).chip
    data = ranking.to_json()
    # Only candidates that fit are ranked; each row says so, like the output of other commands.
    ranked = [{**row, "fits": True} for row in data["ranked"]]
    proof_entry = {"verified": list(ranking.verified(options.verify))} if options.verify else {}
    return {
        "hardware": chip.name,
        "machine": f"{options.devices} x {chip.name} (as asked for)",
        "devices": options.devices,
        "fits": bool(ranked),
        "capacity_bytes": int(options.memory or chip.hbm_bytes),
        **data,
        "ranked": ranked,
        **proof_entry,
    }


def _choices(options: argparse.Namespace) -> dict[str, Sequence[Any]]:
    """Return the choices to rank, by option, such as {"batch": [16, 32]}.

    They are keyword arguments of `ranked.strategies`. Options that the user left out are missing.
    """
    names = ("strategy", "batch", "microbatches", "rounds", "remat", "optimizer", "order")
    return {n: getattr(options, n) for n in names if getattr(options, n) is not None}


def _positive(kind: type) -> Callable[[str], Any]:
    """Return a function from an option's text to a number of this type, above 0."""

    def positive(text: str) -> Any:
        number = kind(text)
        if not 0 < number < math.inf:
            raise argparse.ArgumentTypeError(f"{text}: write a number above 0")
        return number

    positive.__name__ = kind.__name__
    return positive


def _remat(text: str) -> str | bool:
    """Return the option --remat as the models take it: False for "none", else the text itself."""
    if text not in REMAT:
        raise argparse.ArgumentTypeError(f"{text!r}: write one of {', '.join(REMAT)}")
    return False if text == "none" else text


def _listed(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Return a parser of an option: "1,2" becomes [1, 2] if `kind` is `int`.

    Args:
      kind: converts one part of the text.
    """

    def values(text: str) -> list[Any]:
        """Return the parts of an option's text; a part that `kind` refuses is an error."""
        try:
            return [kind(part.strip()) for part in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{text!r}: write whole numbers with commas between them, such as 16,32"
            ) from None

    return values


def _say(number: int, count: int, what: str) -> None:
    """Print the progress: in a terminal over the previous line, otherwise on a new line."""
    if sys.stderr.isatty():
        print(f"\r\033[K{number} of {count}: {what}", end="", file=sys.stderr, flush=True)
    else:
        print(f"{number} of {count}: {what}", file=sys.stderr, flush=True)
