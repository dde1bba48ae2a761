"""Drawings of shardings show every block once, with its devices."""

import pytest

from shardalg.algebra.draw_layouts import devices_by_block
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import ShardingError, TableError
from shardalg.merge.compatible import merge
from shardalg.pictures import draw

MESH = Mesh({"X": 2, "Y": 4})


@pytest.mark.parametrize("entries", [["X", "Y"], [("Y", "X"), None], [None, None], ["Y"]])
def test_the_blocks_tile_the_tensor(entries):
    """Uneven and empty blocks too: areas add up, every device that holds something is named."""
    shape = (5, 7)[: len(entries)]
    sharding = Sharding.from_axes(entries, MESH, shape)
    blocks = devices_by_block(sharding, tuple(range(len(shape))))
    height, width = (1, *shape)[-2:]
    areas = [(b - a) * (d - c) for (a, b), (c, d) in blocks]
    assert sum(areas) == height * width
    named = [device for devices in blocks.values() for device in devices]
    whole = [d for d in range(8) if all(sharding.valid_size(d, i) for i in range(len(shape)))]
    assert sorted(named) == whole


def test_a_figure_has_a_panel_per_sharding():
    rows = {"rows": ["X", None], "columns": [None, "Y"]}
    shardings = {name: Sharding.from_axes(e, MESH, (8, 8)) for name, e in rows.items()}
    figure = draw(shardings)
    assert [axes.get_title().splitlines() for axes in figure.axes] == [
        ["rows", "[X, None]"],
        ["columns", "[None, Y]"],
    ]
    assert [len(axes.patches) for axes in figure.axes] == [2, 4]
    assert figure.axes[0].texts[0].get_text() == "0 1 2 3"


def test_of_three_dimensions_those_are_drawn_that_are_split():
    cube = Sharding.from_axes(["X", None, "Y"], MESH, (2, 3, 4))
    (axes,) = cube.draw().axes
    assert axes.get_xlim() == (0, 4)
    assert axes.get_ylim() == (2, 0)
    assert len(axes.patches) == 8
    eight = Mesh({"X": 2, "Y": 2, "Z": 2})
    with pytest.raises(ShardingError, match=r"\[X, Y, Z\] split 3 dimensions; a drawing has two"):
        Sharding.from_axes(["X", "Y", "Z"], eight, (2, 2, 2)).draw()
    with pytest.raises(ShardingError, match="shardings of one rank, at least 1"):
        Sharding.from_axes([], MESH, ()).draw()


def test_a_refused_merge_shows_what_was_asked():
    rows, columns = (Sharding.from_axes(e, MESH, (8, 8)) for e in (["X"], [None, "X"]))
    titles = [axes.get_title().splitlines() for axes in merge(rows, columns).draw().axes]
    assert titles == [["first", "[X, None]"], ["second", "[None, X]"]]


def test_many_devices_of_a_block_are_counted():
    (axes,) = Sharding.from_axes(["X"], Mesh({"X": 2, "Y": 64}), (8,)).draw().axes
    assert axes.texts[0].get_text() == "64 devices\n0, 1, …, 63"


@pytest.mark.parametrize(
    ("things", "message"),
    [
        ({}, "nothing to draw: give objects by title"),
        ([MESH], "nothing to draw: give objects by title"),
        ({"mesh": MESH}, "'mesh' is Mesh.X=2, Y=4., which has no drawing"),
    ],
)
def test_what_cannot_be_drawn_is_said(things, message):
    with pytest.raises(TableError, match=message):
        draw(things)
