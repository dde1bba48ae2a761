"""Emission for GPUs without a GPU: lowered for CUDA, and compiled if its plugin is installed."""

import re

import pytest

from shardalg.errors import DeviceError
from shardalg.plan.running import executable
from tests.lower.test_one_shard import planned


def test_every_collective_of_the_plan_is_one_operator():
    plan = planned(2, 4)
    text = executable(plan, plan._traced, None, "cuda").stage.as_text()
    kinds = plan.collectives().groupby("kind")["executions"].sum().to_dict()
    assert kinds.keys() >= {"all_gather", "all_reduce", "reduce_scatter"}
    found = {kind: len(re.findall(rf'"?stablehlo\.{kind}"?\(', text)) for kind in kinds}
    assert found == kinds


def test_the_gpu_compiler_takes_it():
    plan = planned(2, 4)
    try:
        answer = plan.aot("h100:1x8")
    except DeviceError as error:  # neither a plugin nor a GPU: the reason is printed
        pytest.skip(str(error))
    assert "h100" in answer.where
    assert len(answer.table.rows) > 3  # memory, flops, collectives as the compiler has them
