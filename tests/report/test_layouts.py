"""Drawings of shardings show every block once, with its devices."""

import pytest

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import ShardingError
from shardalg.report.draw_layouts import draw_shardings, held

MESH = Mesh({"X": 2, "Y": 4})


@pytest.mark.parametrize("entries", [["X", "Y"], [("Y", "X"), None], [None, None], ["Y"]])
def test_the_blocks_tile_the_tensor(entries):
    """Uneven and empty blocks too: areas add up, every device that holds something is named."""
    shape = (5, 7)[: len(entries)]
    sharding = Sharding.from_axes(entries, MESH, shape)
    blocks = held(sharding)
    height, width = (1, *shape)[-2:]
    areas = [(b - a) * (d - c) for (a, b), (c, d) in blocks]
    assert sum(areas) == height * width
    named = [device for devices in blocks.values() for device in devices]
    whole = [d for d in range(8) if all(sharding.valid_size(d, i) for i in range(len(shape)))]
    assert sorted(named) == whole


def test_a_figure_has_a_panel_per_sharding():
    rows = {"rows": ["X", None], "columns": [None, "Y"]}
    shardings = {name: Sharding.from_axes(e, MESH, (8, 8)) for name, e in rows.items()}
    figure = draw_shardings(shardings)
    assert [axes.get_title().splitlines() for axes in figure.axes] == [
        ["rows", "[X, None]"],
        ["columns", "[None, Y]"],
    ]
    assert [len(axes.patches) for axes in figure.axes] == [2, 4]
    assert figure.axes[0].texts[0].get_text() == "0 1 2 3"


def test_three_dimensions_are_not_drawn():
    with pytest.raises(ShardingError, match="has 3 dimensions; 1 or 2 are drawn"):
        draw_shardings({"cube": Sharding.from_axes([], MESH, (2, 2, 2))})
