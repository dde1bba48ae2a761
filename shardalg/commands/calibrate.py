"""`shardalg calibrate`: this machine measured, as hardware that every command takes by name."""

from __future__ import annotations

import argparse

from shardalg.costs.hardware import keep, load

HELP = "measure this machine into a hardware file of your own, for --hardware NAME"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    option = parser.add_argument
    option("--name", default="this_machine", help="of the hardware; default %(default)s")
    option(
        "--devices", type=int, default=8, metavar="N",
        help="CPU devices that work at once, as many as plans are to run on; default %(default)s",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Measure, write and show; returns the exit status."""
    from shardalg.lower.calibrate import measure_hardware
    from shardalg.lower.host import host_devices

    path = keep(measure_hardware(host_devices(options.devices)), options.name)
    print(load(options.name).table(), f"written to {path}; use it as --hardware {options.name}")
    return 0
