"""`plan.sweep` over lists: every point equals a plan made there; files, executors, bad input."""

import json
import random
import re
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.plan.comparing import sweep_file
from shardalg.show.sweep_points import draw_sweep
from shardalg.tables import bytes_text
from tests.strategies.sweep_steps import (
    AXES,
    SPECS,
    arguments,
    layer,
    made_there,
    named_plan,
    step_of,
)

MESHES = [{"data": 16, "model": 4}, {"data": 8, "model": 8}, {"data": 32, "model": 2}]
POLICIES = [None, "nothing_saveable", "dots_saveable", "everything_saveable"]
SEED = 20261128


@cache
def plan():
    return named_plan()


def figures_of(row):
    return row.step_s, row.peak_bytes, row.figures.wire_bytes


def check_points(found, hardware, count, seed):
    """Compare points with plans in numbers of the function with `jax.checkpoint` by hand."""
    draw, rows = random.Random(seed), [row for row in found.rows if row.figures]
    by_source = [[row for row in rows if row.source == kind] for kind in ("formula", "plan")]
    # Half of the points are by formula, as far as there are such points.
    half = min(len(by_source[0]), max(count // 2, count - len(by_source[1])))
    rows = [*draw.sample(by_source[0], half), *draw.sample(by_source[1], count - half)]
    for row in rows:
        axes = {n: int(size) for n, size in (part.split("=") for part in row.mesh.split(", "))}
        remat = None if row.remat == "as written" else row.remat
        seconds, peak, sent = made_there(hardware, axes, row.sizes, remat, plan().options)
        at = f"seed {seed}: {row.name} ({row.source}) on {hardware}"
        assert row.step_s == pytest.approx(seconds, rel=1e-9), at
        assert row.peak_bytes == peak, at
        # Uneven blocks send a fraction of a byte on average.
        assert row.figures.wire_bytes == pytest.approx(sent, rel=1e-15), at
    return {row.source for row in rows}


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("hardware", ["h100:64", "v5e"])
def test_points_equal_plans_made_there(hardware):
    found = plan().sweep(
        hardware, mesh=MESHES, B=[256, 384, 512, 768, 1000], remat=[None, "nothing_saveable"]
    )
    assert {row.source for row in found.rows} == {"formula", "plan"}
    assert check_points(found, hardware, 6, SEED) == {"formula", "plan"}


@pytest.mark.slow
def test_two_hundred_points_equal_plans_made_there(show):
    draw, sources = random.Random(SEED), {}
    for hardware in ("h100:64", "v5e:8x8", "h100", "v5e"):
        sides = [(d, 64 // d) for d in (4, 8, 16, 32, 64)]
        if ":" not in hardware:
            sides = [(d, m) for d in (1, 2, 3, 8, 16, 20) for m in (1, 2, 4, 8)]
        found = plan().sweep(
            hardware,
            mesh=[{"data": d, "model": m} for d, m in draw.sample(sides, 4)],
            B=draw.sample([64, 128, 256, 257, 384, 512, 640, 1000, 1024, 2048], 6),
            D=[256, draw.choice([128, 384, 512])],
            remat=draw.sample(POLICIES, 2),
        )
        check_points(found, hardware, 50, SEED)
        for row in found.rows:
            sources[row.source] = sources.get(row.source, 0) + 1
    show(f"points by source: {sources}")
    assert set(sources) == {"formula", "plan"}


def test_other_hints_give_formulas_where_those_of_the_plan_do_not_hold():
    """The plan's hints have B < F; at B > F the planner may decide otherwise."""
    batches = [64 * n for n in range(20, 60)]
    found = plan().sweep("v5e", B=batches)
    own = plan()._guards.holding([plan_point(size) for size in batches])
    by_formula = sum(row.source == "formula" for row in found.rows)
    assert by_formula > own.sum() + 20
    check_points(found, "v5e", 3, SEED)


def plan_point(batch):
    return {name: size.hint for name, size in plan().sizes.items()} | {"B": batch}


def test_a_plan_in_numbers_is_moved_to_each_mesh():
    numbers = sa.plan(
        step_of(layer), *arguments(64, 32, 128), mesh=sa.Mesh(AXES), roles=("parameters", "data"),
        **SPECS,
    )  # fmt: skip
    found = numbers.sweep("h100:64", mesh=[*MESHES, {"data": 64}, {"data": 8, "model": 4}])
    assert [row.source for row in found.rows] == ["plan"] * 3 + ["", ""]
    for row in found.rows[:3]:
        axes = {n: int(size) for n, size in (part.split("=") for part in row.mesh.split(", "))}
        there = numbers.replan(mesh=sa.Mesh(axes)).cost("h100:64")
        assert row.step_s == float(there.step_time_s)
        assert row.plan.cost("h100:64").step_time_s == there.step_time_s
    reasons = {row.mesh: row.refused for row in found.rows[3:]}
    assert "cannot be expressed on Mesh(data=64)" in reasons["data=64"]
    assert "the mesh has 32 devices, and h100:8x8 has 64" in reasons["data=8, model=4"]
    with pytest.raises(sa.TableError, match="has no plan: the"):
        _ = found.rows[3].plan


def test_links_of_a_chip_alone_are_the_same_at_all_points_and_named():
    """A mesh whose axes have another order is planned anew, and its links must not change."""
    turned = dict(reversed(AXES.items()))
    found = plan().sweep("h100", mesh=[AXES, turned], B=[512])
    assert "2 points on h100, each mesh axis on links of its own" in found.conclusion
    for row in found.rows:
        cost = row.plan.cost("h100")
        assert "each mesh axis on links of its own" in repr(cost)
        assert row.step_s == pytest.approx(float(cost.step_time_s), rel=1e-9)
    joined = named_plan(symbolic=False).sweep("h100", mesh=[AXES], B=[512])
    assert "1 point on h100, joined for each mesh as the vendor does" in joined.conclusion
    assert "joined as h100:8x8" in repr(joined.best.plan.cost("h100"))
    assert joined.best.step_s != found.at(mesh="data=16, model=4").step_s


def test_sizes_and_policies_of_a_plan_on_a_mesh_in_numbers():
    found = named_plan(symbolic=False).sweep("h100:64", B=[256, 512, 640], remat=POLICIES[:2])
    assert len(found.rows) == 6
    check_points(found, "h100:64", 3, SEED)


@pytest.mark.slow
def test_ranking_pareto_and_look_up(tmp_path):
    found = plan().sweep("v5e", mesh=MESHES, B=[384, 512], remat=POLICIES[:3])
    assert [row.order for row in found.rows] == sorted(row.order for row in found.rows)
    assert found.best is found.rows[0]
    assert found.best.order == found.best.step_s / found.best.sizes["B"]
    kept = {row.name for row in found.pareto().rows}
    for row in found.rows:
        beaten = any(
            (other.order, other.peak_bytes) != (row.order, row.peak_bytes)
            and other.order <= row.order
            and other.peak_bytes <= row.peak_bytes
            for other in found.rows
        )
        assert (row.name in kept) is not beaten
    one = found.at(mesh="data=8, model=8", B=384, remat="dots_saveable")
    assert one.plan.mesh == sa.Mesh(MESHES[1])
    cost = one.plan.cost("v5e")
    assert one.step_s == pytest.approx(float(cost.step_time_s), rel=1e-9)
    assert found.at(mesh=MESHES[1], B=384, remat="dots_saveable") is one
    assert found.at(mesh=sa.Mesh(MESHES[1]), B=384, remat=None).remat == "as written"
    with pytest.raises(sa.TableError, match="6 points of 18 have mesh='data=8, model=8'"):
        found.at(mesh="data=8, model=8")
    with pytest.raises(sa.TableError, match=r"0 points of 18 have B=385: B has 384, 512\."):
        found.at(B=385)
    with pytest.raises(sa.StrategyError, match="mesh has 8: give a Mesh"):
        found.at(mesh=8)
    with pytest.raises(sa.StrategyError, match="remat has 3, which is no policy"):
        found.at(remat=3)
    with pytest.raises(sa.TableError, match="Q was not swept: there are mesh, remat, B"):
        found.at(Q=1)
    assert "points on tpu_v5e" in found.page(tmp_path / "sweep.html").read_text()
    figure = found.draw()
    assert figure._repr_png_()[:4] == b"\x89PNG"
    (axes,) = figure.axes
    for axis, kind in ((axes.xaxis, r"[\d.]+ [kMG]?B"), (axes.yaxis, r"[\d.]+ [nµm]?s")):
        texts = [tick.label1.get_text() for tick in axis.get_major_ticks()]
        assert len(texts) > 1
        assert all(re.fullmatch(kind, text) for text in texts), texts
        assert not axis.get_minor_ticks()
    near = found.best.dot()._replace(capacity_bytes=2 * found.best.peak_bytes)
    (one,) = draw_sweep([near], [near], "sample").axes
    assert [text.get_text() for text in one.texts] == [found.best.name]
    assert f"usable: {bytes_text(near.capacity_bytes)}" in [line.get_label() for line in one.lines]
    assert found.table["B"].count(384) == 9


def test_nothing_fits():
    found = plan().sweep("v5e", B=[512], reserve=0.9999)
    assert "No point fits" in found.conclusion
    with pytest.raises(sa.TableError, match=r"no point fits\. data=16, model=4, B=512 needs"):
        _ = found.best


def test_an_executor_makes_the_same_plans():
    asked = {"mesh": MESHES[:2], "B": [1000, 1024], "remat": POLICIES[:2]}
    here = plan().sweep("h100:64", **asked)
    with ThreadPoolExecutor(2) as pool:
        there = plan().sweep("h100:64", executor=pool, **asked)
    assert any(row.source == "plan" for row in there.rows)
    assert there.table == here.table


class Broken:
    """An executor that fails at some of its jobs."""

    def __init__(self, *fails):
        self.fails, self.count = fails, 0

    def submit(self, fn, job):
        future = Future()
        self.count += 1
        if self.count in self.fails:
            future.set_exception(OSError("the worker is gone"))
        else:
            future.set_result(fn(job))
        return future


def test_failures_of_an_executor_are_rows_and_not_kept(tmp_path):
    asked = {"B": [1000, 1024, 2048], "file": tmp_path / "sweep.json"}
    found = plan().sweep("h100:64", executor=Broken(2), **asked)
    failed = [row for row in found.rows if row.refused]
    assert [row.refused for row in failed] == ["the executor failed: OSError: the worker is gone"]
    again = plan().sweep("h100:64", **asked)
    assert not any(row.refused for row in again.rows)
    with pytest.raises(sa.StrategyError, match=r"worker is gone\. It failed for 3 of 3"):
        plan().sweep("h100:64", executor=Broken(1, 2, 3), B=asked["B"])


def test_an_interruption_keeps_what_is_finished_and_the_file_goes_on(tmp_path, monkeypatch):
    path, batches = tmp_path / "sweep.json", [1000, 1024, 2048, 3000]

    def interrupt(number, count, name):
        if number == 2:
            raise KeyboardInterrupt

    found = plan().sweep("h100:64", B=batches, file=path, progress=interrupt)
    assert found.unfinished == 2
    assert [row.source for row in found.rows].count("plan") == 2
    assert "Interrupted: 2 points not finished." in found.conclusion
    assert "was interrupted before this point" in found.rows[-1].refused
    said = []
    again = plan().sweep(
        "h100:64", B=[*batches, 512], file=path, progress=lambda *words: said.append(words)
    )
    assert said[0] == (2, 5, "points of the file")
    assert again.unfinished == 0
    assert again.table == plan().sweep("h100:64", B=[*batches, 512]).table
    # All points are in the file, so that none is planned.
    monkeypatch.setattr(sa.Plan, "cost", None)
    third = plan().sweep("h100:64", B=[*batches, 512], file=path)
    assert third.table == again.table


def test_broken_and_foreign_files(tmp_path):
    path = tmp_path / "sweep.json"
    plan().sweep("h100:64", B=[512], file=path)
    text = path.read_text()
    made = json.loads(text)
    assert made["schema"] == sweep_file.SCHEMA
    wrong = {
        text[:50]: "it was cut short: it is not JSON",
        "[1, 2]": "is not a file of a sweep",
        text.replace("formula", "formulas"): "was edited: its digest is not",
    }
    for content, words in wrong.items():
        path.write_text(content)
        with pytest.raises(sa.PlanFileError, match=words):
            plan().sweep("h100:64", B=[512], file=path)
    path.write_text(text)
    with pytest.raises(sa.PlanFileError, match=r"another sweep \(hardware h100:8x8 .* tpu_v5e:8x8"):
        plan().sweep("v5e:8x8", B=[512], file=path)
    other = named_plan(fn=step_of(lambda h, w: (layer(h, w)[0] + 1, None)))
    with pytest.raises(sa.PlanFileError, match=r"another sweep .function as written"):
        other.sweep("h100:64", B=[512], file=path)
    with pytest.raises(sa.PlanFileError, match=r"the folder .* is missing"):
        plan().sweep("h100:64", B=[512], file=tmp_path / "no" / "sweep.json")


def test_a_size_that_the_function_refuses_is_a_row():
    (b,) = sa.dims("B", hint=64)

    def halves(x):
        if x.shape[0] % 2:
            raise RuntimeError("an odd batch")
        return (x.reshape(2, -1) ** 2).sum()

    x = jax.ShapeDtypeStruct((b,), "float32")
    found = sa.plan(halves, x, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),)).sweep(
        "v5e", B=[64, 63, 32]
    )
    assert found.at(B=63).refused == "RuntimeError: an odd batch"
    assert found.at(B=32).figures is not None


BAD = {
    "unknown size": ({"Q": [1]}, sa.SymbolError, "Q is in no argument's shape"),
    "zero": ({"B": [0]}, sa.SymbolError, "sizes are integers of at least 1"),
    "text": ({"B": ["64"]}, sa.SymbolError, "sizes are integers of at least 1"),
    "empty": ({"B": []}, sa.StrategyError, "B is an empty list"),
    "no mesh": ({"mesh": []}, sa.StrategyError, "mesh is an empty list"),
    "no policy": ({"remat": []}, sa.StrategyError, "remat is an empty list"),
    "twice": ({"B": [64, 32, 64]}, sa.StrategyError, "B has 64 twice"),
    "mesh twice": ({"mesh": [AXES, AXES]}, sa.StrategyError, "mesh has Mesh.* twice"),
    "none twice": ({"remat": [None, None]}, sa.StrategyError, "remat has None twice"),
    "no such mesh": ({"mesh": [8]}, sa.StrategyError, "mesh has 8: give a Mesh"),
    "named mesh": (
        {"mesh": [sa.Mesh(AXES, symbolic=True)]}, sa.StrategyError, "with named sizes: give num",
    ),
    "axis twice": ({"mesh": [AXES], "data": [8]}, sa.StrategyError, "data is an axis of mesh="),
    "policy": ({"remat": ["dots_savable"]}, sa.StrategyError, "Did you mean 'dots_saveable'"),
    "array and list": (
        {"B": [64], "D": jnp.arange(2, 4)}, sa.StrategyError, "D is an array and B is a list",
    ),
    "nested lists": ({"B": [[1], [2, 3]]}, sa.SymbolError, r"got B=\[1\]"),
    "many": (
        {"B": range(1, 1001), "D": range(1, 1001)}, sa.StrategyError, "has 1,000,000 points",
    ),
    "executor": ({"B": [8], "executor": ThreadPoolExecutor}, sa.StrategyError, "an object with"),
    "set": ({"B": {64, 128}}, sa.StrategyError, "B is a set: give a list, whose values have an"),
    "iterator": ({"B": iter([64])}, sa.StrategyError, "B is a list_iterator: give a list"),
    "file": ({"B": [64], "file": 3}, sa.PlanFileError, "file is 3: give the path of a file"),
    "progress": ({"B": [64], "progress": "yes"}, sa.StrategyError, "progress is 'yes': give True"),
    "reserve": ({"B": [8], "reserve": 2}, sa.StrategyError, "reserve is 2"),
    "chip": ({"B": [8], "hardware": "v9"}, sa.HardwareError, "no hardware 'v9'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        plan().sweep(**arguments)


def test_functions_without_a_place_for_a_policy(tmp_path):
    x = jax.ShapeDtypeStruct((64, 64), "float32")
    given = {"mesh": sa.Mesh({"X": 4}), "in_shardings": (P("X"),)}
    flat = sa.plan(jax.grad(lambda x: jnp.sin(x).sum()), x, **given)
    with pytest.raises(sa.StrategyError, match=r"no jax\.checkpoint, and no jax\.lax\.scan"):
        flat.sweep(remat=["nothing_saveable"])
    forward = sa.plan(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum()), x, **given)
    with pytest.raises(sa.StrategyError, match="the function has no backward pass"):
        forward.sweep(remat=["nothing_saveable"])
    flat.save(tmp_path / "plan.json")
    with pytest.raises(sa.StrategyError, match="a loaded plan has no function"):
        sa.load_plan(tmp_path / "plan.json").sweep(remat=["nothing_saveable"])
