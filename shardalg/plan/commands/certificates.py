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
    if options.json:
        print_json({"about": content["about"], **found._asdict()})
        return 0
    print(content["about"])
    unit = content["unit_s"]
    print(f"no layouts of the table take less than {seconds_text(found.bound_ps * unit)}: proved")
    if found.cost_ps is not None:
        gap = found.cost_ps / found.bound_ps - 1 if found.bound_ps > 0 else 0.0
        print(f"the solution takes {seconds_text(found.cost_ps * unit)}, {gap:.3%} above the bound")
    return 0


CERTIFICATE = Command(HELP, add_options, run)
