"""Notebook displays of each object: its own figures, and True or False by its edge."""

import re

import jax
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa

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
