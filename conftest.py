"""What every test and doctest runs under: eight CPU devices, and a printed seed."""

import os

# Read once, when jax starts: so it is set before any test module is imported.
_DEVICES = "--xla_force_host_platform_device_count=8"
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "agg")


def pytest_report_header(config):
    return f"property tests: --hypothesis-seed={config.getoption('--hypothesis-seed')}"
