import subprocess
import sys

import pytest

from shardalg.pictures import png
from shardalg.show.diagram import boxes
from shardalg.show.figures import Panel, draw_programs, measured_times, wire_bytes_bars
from shardalg.show.tables import collectives, strategies
from shardalg.tables import Table
from tests.costs.handmade import B, H, M, ffn_graph, ffn_program, loop_program

NAMES = {B: "B", M: "M", H: "H"}


def text(tokens):
    return " ".join(t.text + ("_" + "".join(t.axes) if t.axes else "") for t in tokens)


def drawn(**options):
    return boxes(ffn_program(), ffn_graph(), dim_names=NAMES, **options)


def test_the_feed_forward_layer_reads_as_in_the_paper():
    """GSPMD, figure 7, 2D finalized: gather the activation along Y and the weights along X."""
    main = [b for b in drawn() if b.lane == 0]
    assert [text(b.label) for b in main] == ["x", "AG_Y", "Einsum", "max", "Einsum", "RS_Y"]
    assert [text(b.value) for b in main] == [
        "b_X m_Y", "b_X M", "b_X h_Y", "b_X h_Y", "b_X M Σ_Y", "b_X m_Y",
    ]  # fmt: skip
    side = [b for b in drawn() if b.lane]
    assert [text(b.label) for b in side] == ["w_in", "AG_X", "w_out", "AG_X"]
    assert [b.wire_bytes for b in main if b.kind in ("all_gather", "reduce_scatter")] == [192, 192]


@pytest.mark.parametrize("nodes", [None, {0}, {2}, {0, 1, 2}, set()])
def test_no_two_boxes_share_a_place_and_arrows_go_right(nodes):
    found = drawn(nodes=nodes)
    places = [(b.column, b.lane) for b in found]
    assert len(set(places)) == len(places)
    assert all(found[i].column < b.column for b in found for i in b.inputs)


def test_a_slice_of_a_program_starts_with_what_comes_in():
    found = drawn(nodes={2})
    assert {text(b.label) for b in found if b.kind == "value"} == {"r", "w_out"}


def test_sizes_stand_where_a_dimension_has_no_letter():
    assert text(boxes(ffn_program(), ffn_graph())[0].value) == f"{B}_X {M}_Y"


def width_and_height(image):
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(image[16:20], "big"), int.from_bytes(image[20:24], "big")


def test_figures_are_painted():
    panels = [Panel(str(i), ffn_program(), ffn_graph(), None, NAMES) for i in range(3)]
    one = draw_programs(panels[:1])
    three = draw_programs(panels)
    single, triple = width_and_height(png(one)), width_and_height(png(three))
    assert triple[0] == single[0] > 800
    assert triple[1] > 2 * single[1]
    texts = [t.get_text() for axes in three.axes for t in axes.texts]
    assert {"0", "1", "2", "192 B"} <= set(texts)


def test_bars_are_as_long_as_the_bytes():
    table = strategies({"a": collectives(ffn_program(), ffn_graph()),
                        "b": collectives(loop_program(), ffn_graph())})  # fmt: skip
    figure = wire_bytes_bars(table)
    (axes,) = figure.axes
    assert sum(p.get_width() for p in axes.patches) == sum(table["wire_bytes_per_step"])
    assert [t.get_text() for t in axes.get_yticklabels()] == ["a · forward", "b · forward"]
    png(figure)


def test_bars_of_programs_without_collectives():
    empty = strategies({"a": Table(collectives(ffn_program(), ffn_graph()).columns)})
    png(wire_bytes_bars(empty))


def test_measured_times_show_median_and_quartiles():
    columns = ("executable", "median_s", "quartile_1_s", "quartile_3_s")
    rows = (("shardalg", 1e-3, 0.9e-3, 1.4e-3), ("xla", 2e-3, 1.9e-3, 2.2e-3))
    figure = measured_times({"ffn": Table(columns, rows)})
    (axes,) = figure.axes
    assert [round(p.get_width(), 6) for p in axes.patches] == [1, 2]
    spans = [c.get_segments()[0][:, 0].tolist() for c in axes.collections]
    assert [[round(x, 6) for x in s] for s in spans] == [[0.9, 1.4], [1.9, 2.2]]
    png(figure)


@pytest.mark.slow
def test_figures_need_no_screen_and_keep_no_state():
    code = (
        "import sys, shardalg.show.figures; assert 'matplotlib' not in sys.modules\n"
        "from shardalg.tables import Table\n"
        "shardalg.show.figures.measured_times({})\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
