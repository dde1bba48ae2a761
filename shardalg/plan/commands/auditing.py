"""`shardalg audit`: XLA's partitioned program, checked against the program before partitioning."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from shardalg.algebra.notation.read import mesh_of
from shardalg.errors import CommandError
from shardalg.files import write_whole
from shardalg.plan.commands.function import arguments, loaded
from shardalg.plan.commands.messages import Command, add_json

REFUTED, UNDECIDED = 1, 4
EXAMPLE = """\
Give a function, or the two texts of XLA's partitioner:

  shardalg audit model.py:step --mesh data=2,model=4
  shardalg audit FOLDER/*before_spmd-partitioning*.txt FOLDER/*after_spmd-partitioning*.txt

XLA writes the texts with the flags
--xla_dump_to=FOLDER --xla_dump_hlo_pass_re=spmd --xla_dump_large_constants.
exit status: 0 proved, 1 an instruction is refuted, 4 an instruction is not understood
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `shardalg audit` to its parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLE
    option = parser.add_argument
    option(
        "program", nargs="+", metavar="module:function",
        help="a function, or two files: before and after partitioning",
    )  # fmt: skip
    option("--mesh", metavar="data=8,model=4", help="mesh axes and their sizes")
    option(
        "--args", type=Path, metavar="FILE",
        help="Python file with args() and in_shardings (default: the function's own module)",
    )  # fmt: skip
    option("--table", action="store_true", help="print every instruction")
    option("--page", type=Path, metavar="FILE", help="write the answer as a page to FILE")
    option("--save", type=Path, metavar="FILE", help="write the answer as JSON to FILE")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Audit XLA's partitioned program, print the verdict and return the exit status.

    The program is that of a function, or of two files of HLO. The status is 0 if it is proved, else
    `REFUTED` or `UNDECIDED`.

    Raises:
      CommandError: neither a function nor two files are given.
    """
    import shardalg as sa

    # The audit needs no accelerator, and starting one takes seconds.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if len(options.program) == 2:
        found = sa.audit_hlo(*map(Path, options.program))
    # `loaded` reads the function's name from the option that other commands have.
    elif len(options.program) == 1:
        options.function = options.program[0]
        function, specs = loaded(options)
        found = sa.audit(
            function,
            *arguments(specs),
            mesh=None if options.mesh is None else mesh_of(options.mesh),
            in_shardings=getattr(specs, "in_shardings", None),
            out_shardings=getattr(specs, "out_shardings", None),
        )
    else:
        raise CommandError(
            f"{len(options.program)} programs are given. Give one module:function, or two files: "
            "before and after partitioning."
        )
    print(found.to_json() if options.json else found)
    if options.table and not options.json:
        print(found.table())
    if options.save is not None:
        write_whole(options.save, found.to_json())
    if options.page is not None:
        found.page(options.page)
    return 0 if found.ok else REFUTED if found.verdict == "refuted" else UNDECIDED


AUDIT = Command(
    "prove or refute XLA's partitioned program against the program before partitioning",
    add_options,
    run,
)
