"""Complaints of users: they still hold for this XLA, and the remedies help."""

import jax
import numpy as np
import pytest

import shardalg as sa
from shardalg.lab.complaints import COMPLAINTS, EIGHT, GRID

WITH_REMEDY = [name for name, c in COMPLAINTS.items() if c.has_remedy]
GOOD = [name for name in COMPLAINTS if name not in WITH_REMEDY]


def planned(complaint):
    return sa.plan(complaint.function, *complaint.arguments, strategy=complaint.strategy)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", WITH_REMEDY)
def test_the_remedy_spares_xla_bytes(name, show):
    complaint = COMPLAINTS[name]
    now, then = (planned(c).compare_xla("shardy") for c in (complaint, complaint.remedied))
    show(f"{name}: XLA sends {now.xla_wire_bytes:,} bytes, {then.xla_wire_bytes:,} with the remedy")
    assert then.xla_wire_bytes <= 0.2 * now.xla_wire_bytes
    assert then.wire_bytes <= now.wire_bytes


@pytest.mark.parametrize("name", GOOD)
def test_the_good_cases_send_the_same(name):
    found = planned(COMPLAINTS[name]).compare_xla("shardy")
    assert found.wire_bytes == found.xla_wire_bytes


@pytest.mark.parametrize("name", WITH_REMEDY)
def test_the_remedy_computes_the_same(name):
    """Microbatches have the same rows, and padded arrays the same with zeros after them."""
    complaint = COMPLAINTS[name]
    rng = np.random.default_rng(0)
    shapes = [(8, 8, 8) if shape == (256,) * 3 else shape for shape in complaint.shapes]
    arguments = [rng.standard_normal(shape, np.float32) for shape in shapes]
    now, then = (
        np.asarray(jax.jit(c.function)(*arguments)) for c in (complaint, complaint.remedied)
    )
    if name == "microbatches":
        now, then = (np.sort(y.reshape(-1, y.shape[-1]), axis=0) for y in (now, then))
    np.testing.assert_allclose(then[: len(now)], now, rtol=1e-4, atol=1e-4)
    assert not then[len(now) :].any()


def test_every_complaint_is_proved():
    assert {c.strategy.mesh for c in COMPLAINTS.values()} == {EIGHT, GRID}
    assert all(planned(c).verify().ok for c in COMPLAINTS.values())


def test_a_site_without_a_layout_is_no_annotation():
    """The site's sharding comes from the annotation after it, and the explanation says so."""
    plan = planned(COMPLAINTS["two layouts of a sum"])
    (behind,) = plan.explain("on the way").annotations
    assert str(behind).startswith("site annotate:1@complaints.py")
    assert [a.kind for a in plan.explain(0).needs.annotations] == ["site"]
