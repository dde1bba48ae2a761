"""GSPMD (arXiv:2105.04663), figure 8: all-to-alls between experts and batch, box by box."""

import numpy as np

from shardalg.lab import figure_8
from shardalg.pictures import png
from shardalg.show.figures import draw_programs
from shardalg.spmd.host.simulate import simulate
from tests.report.test_figure_7 import ways

# "GSPMD will insert AllToAll operators to switch the sharded dimension between E and B" (5.4);
# "the MoE layers' H dimension is sharded on Y, while the E dimension is sharded on X" (5.5).
FIGURE_8 = {
    "8a": [
        "shares b_X S E C > Einsum b_X S M",
        "shares b_X S E C > gt b_X S E C > Einsum b_X E C M > A2A_X e_X B C M > Einsum e_X B C H"
        " > max e_X B C H > Einsum e_X B C M > A2A_X E b_X C M",
        "x b_X S M", "w_in e_X M H", "w_out e_X H M",
    ],
    "8b": [
        "shares b_X S E C > Einsum b_X S m_Y",
        "shares b_X S E C > gt b_X S E C > Einsum b_X E C m_Y > A2A_X e_X B C m_Y > AG_Y e_X B C M"
        " > Einsum e_X B C h_Y > max e_X B C h_Y > Einsum e_X B C M Σ_Y > RS_Y e_X B C m_Y"
        " > A2A_X E b_X C m_Y",
        "x b_X S m_Y", "w_in e_X M h_Y", "w_out e_X h_Y M",
    ],
}  # fmt: skip


def test_the_drawn_layers_are_the_paper_s():
    assert {panel.title[:2]: ways(panel.boxes) for panel in figure_8.panels()} == FIGURE_8


def test_the_two_are_one_figure():
    assert len(png(draw_programs(figure_8.panels()))) > 50_000


def test_the_drawn_layer_is_what_one_device_computes():
    rng = np.random.default_rng(8)
    for mesh, layout in figure_8.DRAWN.values():
        plan = figure_8.layer_plan(mesh, layout)
        w_in, w_out, shares, x = (
            rng.integers(-1, 2, plan.graph.values[v].type.shape).astype("float32")
            for v in plan.graph.arguments
        )
        hidden = np.maximum(np.einsum("bsm,bsec,emh->ebch", x, shares > 0, w_in, optimize=True), 0)
        want = np.einsum("ebch,ehm,bsec->bsm", hidden, w_out, shares, optimize=True)
        (made,) = simulate(plan.program, plan.graph, w_in, w_out, shares, x)
        np.testing.assert_allclose(made, want, rtol=1e-5)
        assert plan.verify().ok
