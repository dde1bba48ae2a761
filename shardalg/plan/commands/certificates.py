"""`shardalg certificate check FILE`: the proof of a search's lower bound, without a solver."""

from __future__ import annotations

import argparse
from pathlib import Path

from shardalg.plan.commands.messages import Command, add_json, print_json

HELP = "check the proof that no layouts of a search are faster than its bound"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("action", choices=("check",), help="verify a certificate")
    parser.add_argument("file", type=Path, metavar="FILE", help="a file of `Certificate.save`")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Check the certificate, print what it proves, and return the exit status.

    Raises:
      CertificateError: the file is no certificate, was edited, or has a wrong step.
    """
    from shardalg.plan.search.check_certificate import check, read_certificate
    from shardalg.tables import seconds_text

    content = read_certificate(options.file)
    found = check(content)
    unit = content["unit_s"]
    bound_s = found.bound_ps * unit
    cost_s = found.cost_ps * unit
    if options.json:
        print_json({"about": content["about"], "bound_s": bound_s, "cost_s": cost_s})
        return 0
    print(content["about"])
    print(f"no layouts of the table take less than {seconds_text(bound_s)}: proved")
    gap = cost_s / bound_s - 1 if bound_s > 0 else 0.0
    print(f"the solution takes {seconds_text(cost_s)}, {gap:.3%} above the bound")
    return 0


CERTIFICATE = Command(HELP, add_options, run)
