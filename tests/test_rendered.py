"""Notebook displays of each object: its own figures, and True or False by its edge."""

import doctest
import re
from xml.etree import ElementTree

import jax
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg import palette
from shardalg.algebra.affine import Index
from shardalg.models.ranking.ranked import Ranking
from tests.test_layers import ROOT

MESH = sa.Mesh({"X": 2, "Y": 4})
HOLDS, REFUSED = "#2e7d32", "#c62828"


def rows(html):
    """Return the cells of the rows below the heads."""
    found = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", html)]
    return [cells for cells in found if cells]


def planned():
    x = jax.ShapeDtypeStruct((8, 16), "float32")
    return sa.plan(lambda x: x.sum(0), x, mesh=MESH, in_shardings=(P("X"),))


def test_a_sharding_shows_the_block_of_each_device():
    sharding = sa.mesh_split((10, 6), MESH, [1, 0])
    shown = rows(sharding._repr_html_())
    assert len(shown) == MESH.size
    for device, (name, block) in enumerate(shown):
        slices = sharding.shard_slices(device)
        assert (name, block) == (str(device), ", ".join(f"{s.start}:{s.stop}" for s in slices))


def compared():
    x = jax.ShapeDtypeStruct((8, 16), "float32")
    specs = {"rows": P("X"), "columns": P(None, "Y")}
    ways = {name: sa.Strategy(MESH, (spec,)) for name, spec in specs.items()}
    return sa.compare(lambda x: x.sum(0), x, hardware="tpu_v3", strategies=ways)


DRAWN = {
    "mesh": lambda: MESH,
    "mesh of 2,048 devices": lambda: LARGE,
    "sharding": lambda: sa.mesh_split((64, 128), MESH, [0, 1]),
    "scalar": lambda: sa.mesh_split((), MESH, []),
    "three split dimensions": lambda: sa.Sharding.parse(
        "[a, b, c]", (8, 8, 8), sa.Mesh(dict.fromkeys("abc", 2))
    ),
    "padding": lambda: sa.mesh_split((5,), sa.Mesh({"X": 4}), [0]),
    "large sharding": lambda: sa.mesh_split((4096, 512), LARGE, [0, 1]),
    "merge": lambda: sa.merge(*(sa.mesh_split((8, 8), MESH, d) for d in ([0, -1], [-1, 1]))),
    "halo": lambda: sa.halo(sa.Window(3, padding_low=1, padding_high=1), size=32, parts=4),
    "halo of many": lambda: sa.halo(sa.Window(3), size=40960, parts=2048),
    "exchange": lambda: sa.exchange(sa.Interval(Index.of("p") * 3 - 1, 4), size=12, count=4),
    "memory": lambda: planned().memory,
    "cost": lambda: planned().cost("tpu_v3"),
    "timeline": lambda: planned().timeline("tpu_v3"),
    "ranking": lambda: Ranking((), (("a", "b"),), 0),
    "comparison": compared,
    "refusal": lambda: sa.merge(*(sa.mesh_split((8, 8), MESH, d) for d in ([0, -1], [-1, 0]))),
}
LARGE = sa.Mesh({"data": 32, "model": 64})


@pytest.mark.parametrize("name", DRAWN)
def test_the_drawing_comes_first_and_needs_no_script(name):
    html = DRAWN[name]()._repr_html_()
    assert 0 < html.index("<svg") < html.index("</svg>") < html.index("<details") < 25_000
    assert html.index("<details") < html.index("<table")
    assert not re.search(r"<script|<style|<image|href|url\(|on[a-z]+=", html)
    ElementTree.fromstring(f"<div>{html}</div>")
    assert len(str(DRAWN[name]())) < 8000


def test_amounts_have_units():
    plan = planned()
    memory = plan.memory
    for shown in (memory, plan.cost("tpu_v3"), plan.timeline("tpu_v3")):
        html = shown._repr_html_()
        assert re.search(r"[0-9] ?(B|kB|ns|µs)\b", html)
        assert not re.search(r"[0-9]e-[0-9]|[0-9]{7}", html)
    assert repr(memory).startswith("Peak memory ")
    assert " of 17.2 GB (" in repr(memory)


def test_a_large_mesh_is_abbreviated_and_says_so():
    text = str(LARGE)
    assert "2,048 devices" in text
    assert text.splitlines()[-1].split()[-2:] == ["…", "2047"]
    assert "… marks devices that are left out." in LARGE._repr_html_()
    assert "2,048 exist" in str(sa.mesh_split((4096, 512), LARGE, [0, 1]))


def test_sentences_have_objects_on_one_line():
    sharding = sa.mesh_split((8, 8), MESH, [0, 1])
    assert f"{MESH} {sharding}" == f"{MESH!r} {sharding!r}"


def test_a_refusal_is_marked_in_red_and_a_merge_is_not():
    merged, refused = DRAWN["merge"](), DRAWN["refusal"]()
    assert refused._repr_html_().count(palette.CLASH) == 1
    assert palette.CLASH not in merged._repr_html_()
    assert "!none!" in str(refused)


def brightness(color):
    """Return the relative luminance of a colour, as WCAG 2.1 defines it."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((brightness(one), brightness(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_is_readable_on_every_colour():
    fills = [*palette.BLOCKS, *palette.COLLECTIVES.values(), *palette.MEMORY.values(),
             *palette.CAUSES.values(), palette.CLASH]  # fmt: skip
    assert min(contrast(palette.INK, fill) for fill in fills) >= 4.5
    assert min(contrast(palette.PAPER, axis) for axis in palette.AXES) >= 4.5
    assert not set(palette.AXES) & set(fills)


def test_the_page_has_the_palette():
    page = (ROOT / "docs/drawings.md").read_text()
    for color in (*palette.AXES, *palette.COLLECTIVES.values(), *palette.TIME.values()):
        assert f"`{color}`" in page
    found = doctest.testfile(str(ROOT / "docs/drawings.md"), module_relative=False)
    assert found.attempted >= 4
    assert not found.failed


def test_a_mesh_shows_its_axes():
    assert rows(MESH._repr_html_()) == [["X", "2"], ["Y", "4"]]


def test_a_halo_shows_what_each_partition_reads():
    halo = sa.halo(sa.Window(size=3, padding_low=1, padding_high=1), size=32, parts=4)
    shown = rows(halo._repr_html_())
    assert [cells[1] for cells in shown] == ["0 to 8", "8 to 16", "16 to 24", "24 to 32"]
    assert [cells[2] for cells in shown] == ["-1 to 9", "7 to 17", "15 to 25", "23 to 33"]


@pytest.mark.parametrize(("other", "colour"), [([-1, 1], HOLDS), ([-1, 0], REFUSED)])
def test_a_verdict_and_its_proof_have_the_colour_of_the_answer(other, colour):
    first, second = sa.mesh_split((64, 64), MESH, [0, -1]), sa.mesh_split((64, 64), MESH, other)
    verdict = sa.merge(first, second)
    assert colour in verdict._repr_html_()
    assert HOLDS in sa.prove(verdict)._repr_html_()


def test_a_report_counts_its_claims():
    report = planned().verify()
    html = report._repr_html_()
    assert HOLDS in html
    assert sum(int(cells[-1]) for cells in rows(html)) == len(report.claims)


def test_a_strategy_shows_what_it_says():
    strategy = sa.Strategy(MESH, in_shardings=(P("X"),), sites={"hidden": ("X", None)})
    assert [cells[0] for cells in rows(strategy._repr_html_())] == ["arguments", "hidden"]


@pytest.mark.parametrize("make", [planned, lambda: planned().cost("tpu_v3"),
                                  lambda: planned().overview()])  # fmt: skip
def test_what_a_plan_gives_renders(make):
    assert make()._repr_html_().strip().startswith("<")
