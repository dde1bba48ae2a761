"""What every test and doctest runs under: eight CPU devices, quick compiles, a printed seed."""

import gc
import importlib.util
import mmap
import os
from collections import defaultdict
from pathlib import Path

import pytest

# Read once, when jax starts: so it is set before any test module is imported.
_DEVICES = "--xla_force_host_platform_device_count=8"
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "agg")
# For programs that run once: an optimiser costs more than it saves, and so do fusions of their own.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")


def _is_known(flag: str) -> bool:
    """Whether the installed XLA has a flag: of one that it does not have it ends the process."""
    folder = Path(importlib.util.find_spec("jaxlib").origin).parent
    for library in folder.glob("libjax_common.*"):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as it:
            return it.find(b"\0" + flag.encode() + b"\0") >= 0  # a name, not one that was removed
    return False


_FUSIONS = "xla_cpu_use_fusion_emitters"
if _FUSIONS not in os.environ["XLA_FLAGS"] and _is_known(_FUSIONS):
    os.environ["XLA_FLAGS"] += f" --{_FUSIONS}=false"


# Young objects are collected more seldom: JAX and pytest make many that stay.
gc.set_threshold(10_000, 20, 20)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the cases that `sampled(n)` leaves out as slow: n of them stay, evenly spread."""
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for group in cases.values():
        (kept,) = group[0].get_closest_marker("sampled").args
        step = max(len(group) - 1, 1) / max(kept - 1, 1)
        stay = {round(k * step) for k in range(kept)}
        for number, item in enumerate(group):
            if number not in stay:
                item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter, config):
    """The figures that tests showed, from all workers, and the seed (-q hides the header)."""
    for report in terminalreporter.stats.get("passed", ()):
        for name, text in report.user_properties:
            if name == "shown":
                terminalreporter.write_line(f"{report.nodeid}:\n{text}")
    seed = config.getoption("--hypothesis-seed")
    terminalreporter.write_line(f"property tests ran with --hypothesis-seed={seed}")
