"""XLA's programs of the models from PyPI: the audit proves them, or random elements are equal."""

import pytest

import shardalg as sa
from tests.third_party.test_models import MESH, MODELS

# A reshape splits a padded dimension, which no rule explains.
EQUAL = ("state space",)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_xlas_program_is_right(name, show):
    step = MODELS[name]()
    found = sa.audit(
        step.step,
        *step.arguments,
        mesh=MESH,
        in_shardings=step.in_shardings,
        out_shardings=step.out_shardings,
    )
    show(f"{name}: {found.counts}, {found.seconds:.1f} s")
    assert found.verdict == ("equal" if name in EQUAL else "proved"), found
