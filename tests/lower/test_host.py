"""CPU devices in a fresh process, and the figures of this machine."""

import math
import subprocess
import sys

import jax
import pytest

from shardalg.errors import DeviceError
from shardalg.lower.axes import host_devices
from shardalg.models.measured.this_machine import measure_hardware


def fresh(code, flags=""):
    """Return the output of a new Python, or the last line of its error."""
    environment = {"JAX_PLATFORMS": "cpu", "PATH": "", "XLA_FLAGS": flags}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    return result.stdout.strip() or result.stderr.strip().splitlines()[-1]


def test_before_jax_starts():
    code = "import shardalg.lower.axes as h; print(len(h.host_devices(6)), len(h.host_devices(3)))"
    assert fresh(code) == "6 3"


def test_after_jax_started():
    code = "import jax; jax.devices(); import shardalg.lower.axes as h; h.host_devices(5)"
    message = fresh(code)
    assert "5 CPU devices asked for, this process has 1: JAX started before" in message
    assert "XLA_FLAGS=--xla_force_host_platform_device_count=5" in message


def test_flags_of_the_environment_are_kept():
    assert len(host_devices(8)) == 8
    with pytest.raises(DeviceError, match="XLA_FLAGS sets --xla_force_host_platform_device_count"):
        host_devices(len(jax.devices()) + 1)
    with pytest.raises(DeviceError, match="at least 1, got 0"):
        host_devices(0)


def test_figures_of_this_machine():
    chip = measure_hardware(jax.devices()[:2], quick=True)
    assert {s.figure for s in chip.sources} >= {"hbm_bytes_per_s", "link_bytes_per_s", "latency_s"}
    assert 1e7 < chip.peak("float32") < 1e14
    assert 1e6 < chip.link(("x",)) < 1e13
    assert 0 < chip.latency_s < 1
    assert math.isfinite(chip.hbm_bytes)
