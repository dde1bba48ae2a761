"""Settings of the property tests, and the recorded answers of XLA as fixtures."""

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
