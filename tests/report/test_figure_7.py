"""GSPMD (arXiv:2105.04663), figure 7: the feed-forward layer under the three strategies."""

import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from shardalg.pictures import png
from shardalg.show.diagram import boxes
from shardalg.show.figures import Panel, draw_programs
from tests.report.planned import DIM_NAMES, STRATEGIES, plan_on, planned

# The main path, then the side branches: labels and values as they stand in the drawing.
FIGURE_7 = {
    "2D attempt 1": [
        "x B S m_X > Einsum B S h_Y Σ_X > AR_X B S h_Y > max B S h_Y > Einsum B S m_X Σ_Y"
        " > AR_Y B S m_X",
        "w_in m_X h_Y", "w_out h_Y m_X",
    ],
    "2D attempt 2": [
        "x b_X S M > Einsum b_X S h_Y > max b_X S h_Y > Einsum b_X S M Σ_Y > AR_Y b_X S M",
        "w_in m_X h_Y > AG_X M h_Y", "w_out h_Y m_X > AG_X h_Y M",
    ],
    "2D finalized": [
        "x b_X S m_Y > AG_Y b_X S M > Einsum b_X S h_Y > max b_X S h_Y > Einsum b_X S M Σ_Y"
        " > RS_Y b_X S m_Y",
        "w_in m_X h_Y > AG_X M h_Y", "w_out h_Y m_X > AG_X h_Y M",
    ],
}  # fmt: skip


def text(tokens):
    return " ".join(t.text + ("_" + "".join(t.axes) if t.axes else "") for t in tokens)


def ways(found):
    """Every lane's boxes from left to right, a new way wherever a value comes in."""
    lines = {}
    for box in sorted(found, key=lambda b: (abs(b.lane), b.lane, b.column)):
        if box.kind == "value":
            line = lines.setdefault(box.index, [])
        line.append(f"{text(box.label)} {text(box.value)}")
    return [" > ".join(line) for line in lines.values()]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_drawn_layer_is_the_paper_s(strategy):
    program, graph, _ = planned("ffn", strategy)
    assert ways(boxes(program, graph, dim_names=DIM_NAMES)) == FIGURE_7[strategy]


@pytest.mark.parametrize("name", ["ffn_gradient", "attention"])
def test_every_box_has_its_own_place(name):
    for strategy in STRATEGIES:
        program, graph, _ = planned(name, strategy)
        found = boxes(program, graph)
        places = [(b.column, b.lane) for b in found]
        assert len(set(places)) == len(places)
        assert all(found[i].column < b.column for b in found for i in b.inputs)
        drawn = sum(b.kind in ("all_gather", "all_reduce", "reduce_scatter") for b in found)
        assert drawn > 0


def test_a_residual_goes_round_the_longest_way():
    def block(x):
        h = jnp.sin(x)
        return h + jnp.tanh(jnp.cos(h))

    program, graph, _ = plan_on(block, (16, 64), P("X", "Y"))
    assert ways(boxes(program, graph, dim_names=DIM_NAMES)) == [
        "x b_X s_Y > sin b_X s_Y > cos b_X s_Y > tanh b_X s_Y > add b_X s_Y"
    ]


def test_the_three_are_one_figure():
    panels = [Panel(name, *planned("ffn", name)[:2], None, DIM_NAMES) for name in STRATEGIES]
    assert len(png(draw_programs(panels))) > 50_000
