"""The first column of GSPMD's table 2: 64B parameters on 128 TPU v3 cores, priced, not measured."""

from dataclasses import replace

import pytest

from shardalg.algebra.mesh import Mesh
from shardalg.costs import estimate
from shardalg.costs.hardware import load
from shardalg.models.training import part
from shardalg.models.transformer import WIDE_64B
from shardalg.ops.roles import roles
from shardalg.paper import table1_strategies as table1
from tests.report.planned import plan_function

STEP_S, MEMORY_BYTES = 5.74, 15.3e9
# arXiv:2105.04663, table 2; the TPU compiler counts 2.198e14 flops per core of this step.
COMPILER_FLOPS = 2.198e14


@pytest.fixture(scope="module")
def cost():
    config = replace(WIDE_64B, L=32, B=64)
    step = part("train_step")
    args = step.arguments(config)
    mesh = Mesh({"X": 8, "Y": 16})
    strategy = table1.finalized(mesh, config, "train_step")
    program, graph, _ = plan_function(step.function(config), args, strategy)
    count = len(graph.arguments)
    leaf_roles = ("parameters",) * (count - 2) + ("data",) * 2
    return estimate(
        program, graph, load("tpu_v3"), roles=roles(graph, leaf_roles), donated=range(count - 2)
    )


def test_flops_are_the_compiler_s(cost):
    assert cost.flops == pytest.approx(COMPILER_FLOPS, rel=0.01)


def test_the_step_is_a_lower_bound_of_what_was_measured(cost, show):
    show(f"step {cost.step_time_s:.2f} s, measured {STEP_S} s")
    assert 0.75 * STEP_S < cost.step_time_s < STEP_S


def test_the_peak_is_within_a_tenth_and_fits(cost, show):
    show(f"peak {cost.peak_memory_bytes / 1e9:.2f} GB, measured {MEMORY_BYTES / 1e9} GB")
    assert cost.peak_memory_bytes == pytest.approx(MEMORY_BYTES, rel=0.1)
    assert cost.fits
