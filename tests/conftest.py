"""Settings of the property tests, and a way to print figures that survives capture and workers."""

import os

import pytest
from hypothesis import HealthCheck, settings

# Deadlines measure the machine, not the code: the first call of anything in JAX compiles.
settings.register_profile(
    "shardalg",
    deadline=None,
    print_blob=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shardalg")


@pytest.fixture
def show(record_property):
    """`show(text)`: print a figure or a table at the end of the run, if the test passes."""
    return lambda text: record_property("shown", str(text))


@pytest.fixture(scope="session")
def own_devices():
    """Return an environment without a number of devices, so that the process sets its own."""
    told = "--xla_force_host_platform_device_count"
    flags = [flag for flag in os.environ["XLA_FLAGS"].split() if not flag.startswith(told)]
    return {**os.environ, "XLA_FLAGS": " ".join(flags)}
