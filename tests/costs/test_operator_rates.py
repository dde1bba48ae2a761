"""Prices from measured operators, and the fit that finds them."""

import json
import math

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.costs.calibration.fit import CoreTime, core_fit
from shardalg.costs.calibration.operator_rates import OperatorRates
from shardalg.costs.hardware import Hardware, from_json
from shardalg.models.measured.calibration_programs import programs
from shardalg.models.measured.this_machine import CalibrationRun, amounts, calibrated, in_turns

FIGURES = {
    "operator_flops_per_s.matmul.float32": 4e9,
    "operator_flops_per_s.pointwise.float32": 5e8,
    "operator_s": 1e-5,
    "collective_s.all_reduce": 3e-5,
    "collective_bytes_per_s.all_reduce": 2e8,
}
CHIP = Hardware(
    "core", (("float32", 1.0),), 16e9, 1e9, cores=2, operators=OperatorRates(tuple(FIGURES.items()))
)


def step(x, w):
    return (x @ w + 1).sum(0)


def planned(batch, mesh):
    x, w = (jax.ShapeDtypeStruct(s, "float32") for s in ((batch, 16), (16, 32)))
    return sa.plan(step, x, w, mesh=mesh, in_shardings=(P("X"), P()))


def by_hand(batch, n):
    """Seconds of a device: a product, an addition and a sum, an all-reduce of 32 numbers."""
    rows = batch // n
    product = 2 * rows * 16 * 32 / 4e9 + 1e-5
    pointwise = 2 * rows * 32 / 5e8 + 4 * (rows * 32 + 1 + 32) / 1e9  # the 1 that is added, too
    reduced = 2 * 4 * 32 * (n - 1) / n / 2e8 + 3e-5
    return (product + pointwise + reduced) * max(1, n / 2)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_devices_that_share_cores_take_turns(n):
    assert planned(64, sa.Mesh({"X": n})).cost(CHIP).step_time_s == pytest.approx(by_hand(64, n))


def test_formulas_at_the_hints_are_the_numbers():
    (batch,) = sa.dims("B", hint=64)
    plan = planned(batch, sa.Mesh({"X": 4}))
    formula = plan.cost(CHIP).step_time_s
    (symbol,) = formula.free_symbols
    for size in (64, 256):
        assert float(formula.subs({symbol: size})) == pytest.approx(by_hand(size, 4))


def test_a_file_holds_them():
    again = from_json(json.loads(json.dumps(CHIP.to_json())))
    assert dict(again.operators.figures) == FIGURES
    assert again.cores == 2
    assert again.shared(8).hbm_bytes == 2e9
    assert math.isinf(again.shared(8).cores)
    for name in ("operator_flops_per_s", "collective_s", "operator_s.x.y.z"):
        data = CHIP.to_json()
        data["figures"][name] = [{"value": -1, "source": "nobody"}]
        with pytest.raises(sa.HardwareError, match=name):
            from_json(data)


def test_what_was_put_in_comes_out_of_the_fit():
    """Programs priced by known rates are 'measured', and the fit finds these rates."""
    wanted = {
        **FIGURES,
        "operator_flops_per_s.matmul.bfloat16": 1e9,
        "operator_flops_per_s.convolution_2d.float32": 3e9,
        "operator_flops_per_s.convolution_3d.float32": 2e8,
        "operator_flops_per_s.convolution_3d_dilated.float32": 1e8,
    }
    for number, kind in enumerate(
        ("all_gather", "reduce_scatter", "all_to_all", "collective_permute"), 2
    ):
        wanted |= {f"collective_s.{kind}": 1e-5 * number}
        wanted |= {f"collective_bytes_per_s.{kind}": 1e8 * number}
    known = Hardware("known", hbm_bytes_per_s=7e8, operators=OperatorRates(tuple(wanted.items())))
    rows = []
    for program in programs(2):
        plan = program.plan(2)
        rows.append(CoreTime(program.name, amounts(plan), plan.cost(known).step_time_s))
    fit = core_fit(rows)
    assert max(map(abs, fit.errors.values())) < 1e-6
    found = calibrated(Hardware("rough", latency_s=1.0), fit)
    assert found.hbm_bytes_per_s == pytest.approx(7e8, rel=1e-3)
    assert dict(found.operators.figures) == pytest.approx(wanted, rel=1e-3)
    assert found.peak("bfloat16") == pytest.approx(1e9, rel=1e-3)
    assert all("least squares on" in s.source for s in found.sources)


@pytest.mark.slow
def test_this_machine_foretells_what_it_was_not_fitted_to(show):
    """`make hardware` has fifteen; here one, with the error that is allowed to the worst."""
    x, w, v = (np.ones(s, "float32") for s in ((2048, 128), (128, 384), (384, 128)))
    plan = sa.plan(
        lambda x, w, v: jax.nn.gelu(x @ w) @ v, x, w, v,
        mesh=sa.Mesh({"X": 2, "Y": 4}), in_shardings=(P("X"), P(None, "Y"), P("Y")),
    )  # fmt: skip
    calibration = CalibrationRun.on(jax.devices()[:8])
    *programs_ran, ran = in_turns([*calibration.steps, (plan.lower(), (x, w, v))], 15)
    chip, measured = calibration.hardware(programs_ran), ran.step_s
    error = plan.cost(chip).step_time_s / measured - 1
    show(f"predicted / measured - 1: {error:+.1%}")
    assert abs(error) < 0.35
