"""The answer of a search: pins and bans, other strategies, memory, and stopped searches."""

import concurrent.futures
import math
import multiprocessing

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.plan.search.mesh_search import MeshSearch
from shardalg.plan.search.minimising import minimum as minimising
from tests.search.test_certificate import frustrated
from tests.search.test_scans import training

MESH = {"data": 2, "model": 4}


def struct(*shape, dtype="bfloat16"):
    return jax.ShapeDtypeStruct(shape, dtype)


def step(params, x):
    """Return the loss and new weights after a step of gradient descent."""

    def loss(params):
        y = jnp.tanh(x @ params["up"]) @ params["down"]
        return (y.astype("float32") ** 2).mean()

    value, slopes = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda w, g: w - 0.1 * g, params, slopes)


ARGS = {"up": struct(1024, 4096), "down": struct(4096, 1024)}, struct(2048, 1024)
ROLES = ("parameters", "data")


def searched(over=None, **more):
    over = over or sa.family(meshes=[MESH])
    return sa.search(step, *ARGS, hardware="h100:8", over=over, roles=ROLES, **more)


@pytest.fixture(scope="module")
def found():
    return searched()


def test_pins_and_bans_are_met(found):
    over = sa.family(meshes=[MESH]).pin("x", ("data", None)).ban("params/up", "model")
    pinned = searched(over.pin("*/down", P()))
    layouts = pinned.best.named_shardings(jax.devices("cpu")[:8])[0]
    assert layouts[1].spec == P("data", None)
    assert layouts[0]["down"].spec == P(None, None)
    assert "model" not in str(layouts[0]["up"].spec)
    # Fewer layouts cannot be faster.
    assert pinned.bound_s >= found.bound_s * (1 - 1e-9)
    counts = {(r["candidates"], r["reason"]): r["count"] for r in pinned.refused}
    assert counts["layouts of arguments", "another layout is pinned"] > 0
    assert counts["layouts of arguments", "an axis is banned"] > 0
    assert counts["layouts and ways", "another one is never slower"] > 0


def test_a_pin_of_a_stack_reaches_the_scan():
    pinned = sa.family(meshes=[{"a": 8}]).pin("ups", P(None, None, "a"))
    args = tuple(struct(*shape) for shape in ((2, 256, 512), (2, 512, 256), (256, 256)))
    plan = sa.search(training(is_scanned=True), *args, hardware="h100:8", over=pinned).best
    assert plan.named_shardings(jax.devices("cpu")[:8])[0][0].spec == P(None, None, "a")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda f: f.ban("x", "modle"), r"ban\('x', 'modle'\): the axes of the family's meshes"),
        (lambda f: f.pin("x", "data"), "the pin of 'x' is 'data': give a PartitionSpec"),
        (lambda f: f.pin("x", P("data", "data")), "uses data twice"),
        (lambda f: f.pin("x", P("data")).pin("x", P("model")), "two pins of 'x' conflict"),
        (lambda f: f.pin("y", P("data")), "'y' names no argument"),
        (lambda f: f.pin("x", P("z")), "a pin of x names z, which"),
        (lambda f: f.pin("x", P(("model", "data"))), "is no layout of .* that search decides"),
    ],
)
def test_wrong_pins_and_bans_are_errors(make, words):
    with pytest.raises(sa.StrategyError, match=words):
        searched(make(sa.family(meshes=[MESH])))


def test_another_strategy_is_explained(found):
    recipe = found.why_not(sa.recipes.fsdp("data", "model"))
    assert recipe.given.step_s == pytest.approx(found.step_s + recipe.difference_s)
    assert sum(recipe.causes["difference_s"]) == pytest.approx(recipe.difference_s)
    assert len(recipe.values) > 0
    assert "values are sharded differently. The given strategy loses" in repr(recipe)
    same = found.why_not(found.best)
    assert (same.difference_s, len(same.values)) == (0, 0)
    elsewhere = sa.Strategy(sa.Mesh({"data": 8}), (None, P("data")))
    assert "Its mesh was not searched" in repr(found.why_not(elsewhere))
    with pytest.raises(sa.StrategyError, match="3 is no strategy"):
        found.why_not(3)


def test_the_answer_as_other_forms(found):
    names = {"up": ("embed", "mlp"), "down": ("mlp", "embed")}
    rules = found.rules((names, None))
    assert rules.strategy((names, None)).mesh == found.best.mesh
    assert found.jit_kwargs(jax.devices("cpu")[:8])["in_shardings"]
    assert found.runner_up is None
    two = searched(sa.family(meshes=[{"data": 8}, {"model": 8}]))
    assert two.runner_up.step_s >= two.step_s


@pytest.mark.slow
def test_the_largest_batch_fits_and_the_next_does_not(found):
    budget = 1.5 * found.rows[0].peak_bytes
    answer = searched(memory_bytes=budget)
    batch = answer.largest_batch
    assert batch > 2048
    sides = answer.best.named_shardings(jax.devices("cpu")[:8])
    specs = jax.tree.map(lambda at: at.spec, sides)
    plain = sa.Strategy(answer.best.mesh, *specs)
    for number, fits in ((batch, True), (2 * batch, False)):
        args = ARGS[0], struct(number, 1024)
        options = sa.Options(hardware="h100:8")
        plan = sa.plan(step, *args, strategy=plain, roles=ROLES, options=options)
        assert (plan.cost("h100:8").peak_memory_bytes <= budget) is fits


def test_the_price_of_memory_is_the_difference_of_two_solves(found):
    tight = searched(memory_bytes=0.8 * found.rows[0].peak_bytes)
    price = tight.memory_price_s_per_gb
    # The next solve has room for the solution at the other end of the slope.
    faster = [row for row in found.pareto(12).rows if row.step_s < tight.step_s]
    near = min(faster, key=lambda row: row.peak_bytes)
    more = searched(memory_bytes=near.peak_bytes)
    saved = (tight.step_s - more.step_s) / (more.rows[0].peak_bytes - tight.rows[0].peak_bytes)
    assert price == pytest.approx(saved * 1e9, rel=0.05)
    assert found.memory_price_s_per_gb == 0
    assert "One more GB per device would save" in repr(tight)


def test_pareto_plans_trade_time_for_memory(found):
    rows = found.pareto(6).rows
    assert len(rows) > 1
    assert [row.step_s for row in rows] == sorted(row.step_s for row in rows)
    peaks = [row.peak_bytes for row in rows]
    assert peaks == sorted(peaks, reverse=True)
    assert rows[0].step_s == pytest.approx(found.step_s)
    with pytest.raises(sa.StrategyError, match="solves is 1"):
        found.pareto(1)


def test_a_search_that_runs_out_of_time_has_a_plan_and_a_true_bound(found):
    said = []
    over = sa.family(meshes=[MESH, {"data": 8}])
    quick = searched(over, seconds=1e-9, progress=said.append)
    assert quick.unfinished == (sa.Mesh({"data": 8}),)
    assert quick.bound_s <= found.bound_s * (1 + 1e-9)
    assert quick.step_s >= found.step_s * (1 - 1e-9)
    assert "no layouts so far take less than" in said[0]
    assert "Not searched: Mesh(data=8)" in repr(quick)
    with pytest.raises(sa.StrategyError, match="seconds is -1"):
        searched(seconds=-1)


def test_an_interruption_gives_the_best_so_far(monkeypatch):
    over = sa.family(meshes=[{"data": 8}, MESH])
    whole, run = [], MeshSearch.run

    def once(self, clock=None):
        if whole:
            raise KeyboardInterrupt
        whole.append(1)
        return run(self, clock)

    monkeypatch.setattr(MeshSearch, "run", once)
    found = searched(over)
    assert (found.best.mesh, found.unfinished) == (sa.Mesh({"data": 8}), (sa.Mesh(MESH),))
    whole.append(1)
    with pytest.raises(KeyboardInterrupt):
        searched(over)


def test_an_interruption_inside_of_a_minimum_keeps_the_bound(monkeypatch):
    class Stopping(minimising.MessagePassing):
        sweeps = 0

        def sweep(self):
            Stopping.sweeps += 1
            if Stopping.sweeps > minimising.CHECKED:
                raise KeyboardInterrupt
            return super().sweep()

    monkeypatch.setattr(minimising, "MessagePassing", Stopping)
    stopped = minimising.minimum(frustrated(5))
    monkeypatch.undo()
    whole = minimising.minimum(frustrated(5))
    assert (stopped.stopped, whole.stopped) == ("interrupted", "")
    assert stopped.bound_ps <= whole.bound_ps <= whole.cost_ps <= stopped.cost_ps


def test_a_file_keeps_finished_meshes(found, tmp_path, monkeypatch):
    path = tmp_path / "found.json"
    first = searched(file=path)
    text = path.read_text()
    monkeypatch.setattr(MeshSearch, "run", None)
    again = searched(file=path)
    assert again.table == first.table == found.table
    assert again.best.text() == first.best.text()
    assert path.read_text() == text
    path.write_text(text.replace("0.", "1.", 1))
    with pytest.raises(sa.PlanFileError, match="was edited or is no file of a search"):
        searched(file=path)
    with pytest.raises(sa.PlanFileError, match=r"folder .* is missing"):
        searched(file=tmp_path / "a" / "b.json")


def test_workers_of_an_executor_find_the_same(found):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert searched(executor=pool).table == found.table
    with pytest.raises(sa.StrategyError, match="executor is 3"):
        searched(executor=3)
    with pytest.raises(sa.StrategyError, match="the executor failed"):
        searched(executor=pool)


@pytest.mark.slow
def test_workers_in_other_processes_find_the_same(found):
    spawned = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawned) as pool:
        there = searched(executor=pool)
    assert there.table == found.table
    assert there.best.text() == found.best.text()
    assert there.rows[0].certificate.content() == found.rows[0].certificate.content()


def test_a_search_without_a_limit_of_memory(found):
    free = searched(memory_bytes=math.inf)
    assert free.table["step_s"] == found.table["step_s"]
