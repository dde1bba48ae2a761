"""`shardalg calibrate`: this machine measured, as hardware that every command takes by name."""

from __future__ import annotations

import argparse
import sys

from shardalg.costs.hardware import check_own_name, keep, load

HELP = "measure this machine into a hardware file of your own, for --hardware NAME"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    option = parser.add_argument
    option("--name", default="this_machine", help="of the hardware; default %(default)s")
    option(
        "--devices", type=int, default=8, metavar="N",
        help="CPU devices that work at once, as many as plans are to run on; default %(default)s",
    )  # fmt: skip
    option("--quick", action="store_true", help="five probes of a second instead of programs")


def run(options: argparse.Namespace) -> int:
    """Measure, write and show; returns the exit status."""
    from shardalg.lower.host import host_devices
    from shardalg.models.measured.this_machine import measure_hardware

    check_own_name(options.name)
    devices = host_devices(options.devices)
    found = measure_hardware(devices, quick=options.quick, say=lambda x: print(x, file=sys.stderr))
    path = keep(found, options.name)
    print(load(options.name).table(), f"written to {path}; use it as --hardware {options.name}")
    return 0
