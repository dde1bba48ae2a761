"""`shardalg calibrate`: measured hardware that every command takes by name.

This machine's, or that of measurements which were saved.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from shardalg.costs.hardware import Hardware, check_own_name, keep, load

HELP = "a hardware file of your own, for --hardware NAME: this machine, or saved measurements"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    option = parser.add_argument
    option(
        "measurements", nargs="*", metavar="FILE.json",
        help="what measurement.save wrote, to be fitted (default: measure this machine)",
    )  # fmt: skip
    option("--name", default="this_machine", help="of the hardware; default %(default)s")
    option(
        "--devices", type=int, default=8, metavar="N",
        help="CPU devices that work at once, as many as plans are to run on; default %(default)s",
    )  # fmt: skip
    option("--quick", action="store_true", help="five probes of a second instead of programs")


def run(options: argparse.Namespace) -> int:
    """Measure or read, write and show; returns the exit status."""
    check_own_name(options.name)
    found = _fitted(options.measurements) if options.measurements else _measured(options)
    path = keep(found, options.name)
    print(load(options.name).table(), f"written to {path}; use it as --hardware {options.name}")
    return 0


def _measured(options: argparse.Namespace) -> Hardware:
    from shardalg.lower.host import host_devices
    from shardalg.models.measured.this_machine import measure_hardware

    devices = host_devices(options.devices)
    return measure_hardware(devices, quick=options.quick, say=lambda x: print(x, file=sys.stderr))


def _fitted(measurements: Sequence[str]) -> Hardware:
    from shardalg.models.measured.saved_measurements import from_saved

    found = from_saved(measurements)
    print(found)
    return found.hardware
