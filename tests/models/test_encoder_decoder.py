"""Two pipelines over one mesh whose axes change their meaning: figure 2 of the paper."""

import pytest

import shardalg as sa
from shardalg.costs.pipelines.loops import pipeline_loops
from shardalg.costs.pipelines.schedules import Schedule
from shardalg.models.published.encoder_decoder import FIGURE_2, EncoderDecoder
from shardalg.models.published.moe import MoEConfig

MESH = sa.Mesh({"X": 4, "Y": 4})


@pytest.fixture(scope="module")
def plan():
    sizes = MoEConfig(B=16, L=8, E=4, dtype="float32")
    return EncoderDecoder(sizes, 4, Schedule(4, 4)).model.plan(MESH, FIGURE_2)


@pytest.mark.slow
def test_is_proved_on_the_mesh_of_the_figure(plan):
    assert plan.verify().ok


@pytest.mark.slow
def test_both_sides_are_pipelines_forward_and_backward(plan):
    loops = pipeline_loops(plan.graph).values()
    assert [loop.stages for loop in loops] == [4] * 4


@pytest.mark.slow
def test_along_x_stages_shift_and_nothing_else_moves_in_the_loops(plan):
    rows = [r for r in plan.collectives().to_dict("records") if r["executions"] > 1]
    stages = [r for r in rows if "X" in r["mesh_axes"]]
    # two values travel on each side; what the decoder attends to has a gradient, as all but counts
    assert {r["kind"] for r in stages} == {"collective_permute"}
    assert {r["executions"] for r in stages} == {Schedule(4, 4).iterations}
    assert len([r for r in stages if r["phase"] == "forward"]) == 4
    assert len([r for r in stages if r["phase"] == "backward"]) == 4


def test_along_y_tokens_go_to_experts_and_back(plan):
    rows = plan.collectives().to_dict("records")
    sent = [r for r in rows if r["kind"] == "all_to_all" and r["mesh_axes"] == "Y"]
    forward = [r for r in sent if r["phase"] == "forward"]
    assert len(forward) == 2
    # in the backward pass those of the gradients, and those that are computed again
    assert len(sent) - len(forward) == 4
    assert {r["executions"] for r in sent} == {Schedule(4, 4).iterations}


def test_axes_change_their_meaning(plan):
    """X: data parallelism in embedding and softmax. Y: the vocabulary there."""
    named = {site.name: layout for site, layout in zip(
        plan.graph.sites, plan._annotations.sites, strict=True
    )}  # fmt: skip
    assert named["embedded"].text() == "[X, None, None]"
    assert named["logits"].text() == "[X, None, Y]"
    assert "Y" in named["layer_output"].text()


def test_a_schedule_that_does_not_divide_the_decoder():
    with pytest.raises(sa.PipelineError, match="3 layers are not divisible by 4 stages"):
        EncoderDecoder(MoEConfig(B=16, L=8, E=4), 3, Schedule(4, 4))
