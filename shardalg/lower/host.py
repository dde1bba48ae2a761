"""CPU devices in this process, to run a plan for many devices on one machine."""

from __future__ import annotations

import os

import jax

from shardalg.errors import DeviceError

FORCED = "xla_force_host_platform_device_count"
"""The flag of XLA that sets how many CPU devices there are."""


def host_devices(n: int) -> list[jax.Device]:
    """The first `n` CPU devices; sets their number if JAX has not started yet.

    Raises:
      DeviceError: JAX has started, or was told to start, with fewer.

    >>> len(host_devices(2))
    2
    """
    if not isinstance(n, int) or n < 1:
        raise DeviceError(f"host_devices(n) needs a number of devices of at least 1, got {n!r}.")
    told = FORCED in os.environ.get("XLA_FLAGS", "")
    if not told:  # both at once is an error of JAX
        try:
            jax.config.update("jax_num_cpu_devices", n)
        except RuntimeError:  # JAX has started: what it has is what there is
            pass
    devices = jax.devices("cpu")
    if len(devices) < n:
        why = f"XLA_FLAGS sets --{FORCED}" if told else "JAX started before"
        raise DeviceError(
            f"{n} CPU devices asked for, this process has {len(devices)}: {why}. Call "
            f"host_devices({n}) before anything else uses JAX, or start Python with "
            f"XLA_FLAGS=--{FORCED}={n}."
        )
    return devices[:n]


def first_device() -> jax.Device:
    """The first of JAX's devices."""
    return jax.devices()[0]
