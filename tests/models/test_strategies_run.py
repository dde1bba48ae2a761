"""The three strategies of Table 1, run: simulated = lowered = one device, even and uneven."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

import shardalg as sa
from shardalg.lab import table1_strategies as table1
from shardalg.models import training
from shardalg.models.transformer import Config
from shardalg.spmd.host.simulate import simulate

EVEN = Config(B=4, S=4, M=16, H=32, N=8, D=4, V=16, dtype="float32")
UNEVEN = Config(B=5, S=7, M=9, H=10, N=6, D=3, V=11, dtype="float32")
SCANNED = Config(B=4, S=4, M=16, H=32, N=8, D=4, V=16, dtype="float32", scan=True)
MESH = sa.Mesh({"X": 2, "Y": 4})
# Position i of the mesh is device PERMUTED[i].
PERMUTED = sa.Mesh({"X": 2, "Y": 4}, device_ids=(3, 1, 2, 0, 7, 6, 5, 4))
STRATEGIES = tuple(table1.STRATEGIES)


def planned(strategy, config, part, mesh=MESH):
    chosen = training.part(part)
    return sa.plan(
        chosen.function(config),
        *chosen.arguments(config),
        strategy=table1.STRATEGIES[strategy](mesh, config, part),
        roles=chosen.roles(),
    )


@cache
def one_device(config, part):
    """Return arguments, and the part's results on one device."""
    chosen = training.part(part)
    arguments = chosen.random_arguments(config)
    return arguments, jax.tree.leaves(jax.jit(chosen.function(config))(*arguments))


def check(got, want):
    for a, b in zip(got, want, strict=True):
        a, b = (np.asarray(x, np.float64) for x in (a, b))
        assert np.abs(a - b).max() <= 1e-5 * max(1.0, np.abs(b).max())


def flat(arguments):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]


def check_plan(strategy, config, part, *, simulated=True):
    plan = planned(strategy, config, part)
    arguments, want = one_device(config, part)
    check(jax.tree.leaves(plan.lower()(*arguments)), want)
    if simulated:
        check(simulate(plan.program, plan.graph, *flat(arguments)), want)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("config", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if s != "attempt 1"])
def test_a_layer_forward_and_gradient(strategy, config):
    """Results are y and the gradients by weights and by x, of attention and feed-forward.

    Of attempt 1 in the slow matrix.
    """
    check_plan(strategy, config, "layer_gradient")


@pytest.mark.slow
def test_the_train_step_unrolled():
    check_plan("finalized", EVEN, "train_step")


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_train_step_scanned(strategy):
    """Simulated under the strategy with most collectives: each simulation costs seconds."""
    check_plan(strategy, SCANNED, "train_step", simulated=strategy == "finalized")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", ["ffn_gradient", "attention_gradient"])
def test_other_device_orders_change_nothing_but_the_devices(part):
    plan = planned("finalized", UNEVEN, part, PERMUTED)
    straight = planned("finalized", UNEVEN, part)
    assert plan.collectives_table == straight.collectives_table
    arguments, want = one_device(UNEVEN, part)
    check(simulate(plan.program, plan.graph, *flat(arguments)), want)
    results = plan.lower()(*arguments)
    check(jax.tree.leaves(results), want)
    devices = [d.id for d in jax.tree.leaves(results)[0].sharding.mesh.devices.flat]
    assert tuple(devices) == PERMUTED.device_ids


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_scanned_step_sends_what_the_unrolled_one_sends(strategy):
    """Nothing is gathered because a row is missing, and look-ahead follows the loop's gradient."""
    sent = []
    for scan in (False, True):
        plan = planned(strategy, Config(scan=scan), "train_step")
        found = plan.warnings().query("op != 'jax.jit'")
        assert all(text.startswith("idle axis") for text in found["warning"])
        table = plan.collectives()
        sent.append(int((table["wire_bytes"] * table["executions"]).sum()))
    assert sent[0] == sent[1] > 0


# The whole matrix, of which the tests above are the sample that every run can afford.
SIZES = {"even": EVEN, "uneven": UNEVEN}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("part", training.PARTS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_part(strategy, part, sizes):
    check_plan(strategy, SIZES[sizes], part)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("remat", [False, True], ids=["kept", "remat"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_scanned_train_step(strategy, remat, sizes):
    check_plan(strategy, replace(SIZES[sizes], scan=True, remat=remat), "train_step")
