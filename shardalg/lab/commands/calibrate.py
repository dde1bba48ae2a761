"""`shardalg calibrate`: save measured hardware under a name that every command accepts.

The figures are measured on this machine now, or fitted to files of `measurement.save`.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

from shardalg.costs.hardware import Hardware, check_own_name, keep, load
from shardalg.plan.commands.messages import add_json, print_json

HELP = "a hardware file of your own, for --hardware NAME: this machine, or saved measurements"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
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
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Calibrate a machine: fit saved measurements, or measure this machine; return 0.

    The figures, such as bytes per second of a link, are printed and saved under `--name`.
    """
    # A name that cannot be saved raises before the measurement, which takes half a minute.
    check_own_name(options.name)
    if options.measurements:
        from shardalg.models.measured.saved_measurements import from_saved

        fit = from_saved(options.measurements)
        print(fit, file=sys.stderr if options.json else sys.stdout)
        found = fit.hardware
    else:
        from shardalg.lower.axes import host_devices
        from shardalg.models.measured.this_machine import measure_hardware

        devices = host_devices(options.devices)
        tell = partial(print, file=sys.stderr)
        found = measure_hardware(devices, quick=options.quick, say=tell)
    path = keep(found, options.name)
    if options.json:
        print_json(_data(load(options.name), options, str(path)))
    else:
        shown = load(options.name).table()
        print(shown, f"written to {path}; use it as --hardware {options.name}")
    return 0


def _data(hardware: Hardware, options: argparse.Namespace, path: str) -> dict[str, Any]:
    """Return the figures of a calibrated machine as plain data; a figure's name has its unit."""
    used = [row for row in hardware.table() if row["used"]]
    origin = ", ".join(options.measurements) or "this machine, measured now"
    return {
        "hardware": options.name,
        "machine": f"{hardware.name} ({origin})",
        "devices": None if options.measurements else options.devices,
        "file": path,
        "capacity_bytes": int(hardware.hbm_bytes),
        "figures": {row["figure"]: float(row["value"]) for row in used},
        "sources": {row["figure"]: row["source"] for row in used},
    }
