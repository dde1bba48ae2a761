"""`sa.compare`: every row equals the plan made alone; ranking, reasons, and bad input."""

import pickle
import subprocess
import sys
from concurrent.futures import Future
from functools import cache

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardalg as sa

X, W, V = (
    jax.ShapeDtypeStruct(shape, "bfloat16") for shape in ((4096, 2048), (2048, 8192), (8192, 2048))
)
MESH = sa.Mesh({"data": 4, "model": 2})
WEIGHTS = {"up": W, "down": V}
ROLES = ("parameters", "data")
STRATEGIES = {
    "data": sa.Strategy(MESH, (P(), P(("data", "model")))),
    "fsdp": sa.Strategy(MESH, (P("data"), P(("data", "model")))),
    "tensor": sa.Strategy(MESH, ({"up": P(None, "model"), "down": P("model", None)}, P("data"))),
}


def loss(weights, x):
    def of(weights):
        hidden = jax.nn.gelu(x @ weights["up"])
        return jnp.mean((hidden @ weights["down"]).astype(jnp.float32) ** 2)

    return jax.grad(of)(weights)


@cache
def usual():
    return sa.compare(
        loss, WEIGHTS, X, strategies=STRATEGIES, hardware="h100:8", roles=ROLES, progress=False
    )


def compared(**more):
    """Return the usual comparison, which is made once, or one with other arguments."""
    options = {"strategies": STRATEGIES, "hardware": "h100:8", "roles": ROLES, **more}
    return sa.compare(loss, WEIGHTS, X, **options) if more else usual()


def test_each_row_is_the_plan_made_alone():
    found = compared()
    order = sorted(STRATEGIES, key=lambda name: found[name].step_s)
    assert [row.name for row in found.rows] == order
    for name, strategy in STRATEGIES.items():
        alone = sa.plan(
            loss, WEIGHTS, X, strategy=strategy, roles=ROLES, options=sa.Options(hardware="h100")
        )
        cost, row = alone.cost("h100:8"), found[name]
        assert row.step_s == float(cost.step_time_s)
        assert row.peak_bytes == float(cost.peak_memory_bytes)
        waits = float(cost.step_time_s) - float(cost.compute_s)
        assert sum(row.exposed_s.values()) == pytest.approx(waits, rel=1e-9)
        record = row.record()
        assert record["mfu"] == cost.mfu
        assert record["wire_bytes"] == float(cost.wire_bytes)
        assert row.plan.program == alone.program
    assert found.best is found.rows[0]


def test_rows_name_the_links_that_their_price_assumes():
    """A plan at a value of named axes has links per axis, and a plan in numbers the vendor's."""
    layouts = {"in_shardings": (P("data"), P(None, "model"))}
    of = {
        kind: sa.plan(
            jnp.dot, X, W, mesh=sa.Mesh(dict(MESH.axes), symbolic=kind == "at"), **layouts
        )
        for kind in ("at", "numbers")
    }
    found = sa.compare({"at": of["at"].at(data=4), "numbers": of["numbers"]}, hardware="h100")
    assert {row.name: row.chip for row in found.rows} == {"at": "h100", "numbers": "h100:1x8"}
    links = "Rows on h100 have each mesh axis on links of its own."
    assert links in str(found)
    assert links not in str(compared())
    for row in found.rows:
        assert ("each mesh axis on links of its own" in repr(row.cost)) is (row.name == "at")


class Here:
    """An executor that runs each job at once, on a copy as another process gets it."""

    def submit(self, fn, job):
        future = Future()
        future.set_result(pickle.loads(pickle.dumps(fn(pickle.loads(pickle.dumps(job))))))
        return future


def test_an_executor_gives_the_same_rows_and_plans():
    few = sa.Strategy(sa.Mesh({"data": 4}), (P(), P("data")))
    asked = {"strategies": {**STRATEGIES, "few": few, "fsdp2": sa.recipes.fsdp("data")}}
    said = []
    found = compared(**asked, executor=Here(), progress=lambda *words: said.append(words[:2]))
    here = compared(**asked)
    assert found.table == here.table
    assert found.by_axis() == here.by_axis()
    assert found.memory() == here.memory()
    assert said[-1][0] == said[-1][1] == len(said) + 1
    assert found.best.plan.program == here.best.plan.program
    assert found.why("data", "tensor").sentence == here.why("data", "tensor").sentence
    with pytest.raises(sa.StrategyError, match="executor is 4: give an object with submit"):
        compared(executor=4)


def test_samples_are_those_of_the_data_and_tokens_those_of_integers():
    row = compared().best
    assert row.samples == 4096
    assert row.tokens is None
    ids = jax.ShapeDtypeStruct((16, 128), "int32")
    table = jax.ShapeDtypeStruct((512, 64), "float32")
    embedded = sa.compare(
        lambda table, ids: table[ids],
        table,
        ids,
        strategies={"data": sa.Strategy(sa.Mesh({"d": 8}), (P(), P("d")))},
        hardware="h100:8",
        roles=ROLES,
    ).best
    assert (embedded.samples, embedded.tokens) == (16, 16 * 128)
    assert embedded.record()["tokens_per_s"] == 16 * 128 / embedded.step_s


def test_causes_by_axis_and_memory_add_up():
    found = compared()
    for row in found.rows:
        assert sum(row.limits.values()) == pytest.approx(row.step_s, rel=1e-9)
    by_axis = found.by_axis()
    for row in found.rows:
        sent = sum(r["wire_bytes"] for r in by_axis if r["strategy"] == row.name)
        assert sent == pytest.approx(row.record()["wire_bytes"])
    for row, held in zip(found.rows, found.memory(), strict=True):
        classes = sum(n or 0 for column, n in held.items() if column.endswith("_bytes"))
        assert classes == pytest.approx(2 * row.peak_bytes + row.capacity_bytes)


def test_a_row_names_the_axes_along_which_devices_repeat_work():
    """Batch on `data` alone: along `model`, each of 4 devices computes the same products."""
    mesh = sa.Mesh({"data": 2, "model": 4})
    replicated = {name: P() for name in WEIGHTS}
    rows = {
        "half": sa.Strategy(mesh, (replicated, P("data"))),
        "all": sa.Strategy(mesh, (replicated, P(("data", "model")))),
    }
    found = compared(strategies=rows)
    half, full = found["half"], found["all"]
    assert full.idle_s == {}
    assert [*half.idle_s] == ["model"]
    assert half.record()["idle_s"] == half.limits["idle devices along model"]
    # Three quarters of the time of each product are repeated work.
    spent = half.limits["matrix products"] + half.idle_s["model"]
    assert half.idle_s["model"] >= 0.75 * spent
    assert half.shown()["idle"].startswith("model ")
    assert "idle" in repr(found)
    assert "idle" not in repr(found.pareto()).splitlines()[1]


def test_why_names_the_cause_and_the_differences_add_up():
    found = compared()
    why = found.why("data", "tensor")
    apart = found["tensor"].step_s - found["data"].step_s
    assert sum(why.causes["difference_s"]) == pytest.approx(apart, rel=1e-9)
    faster = min("data", "tensor", key=lambda name: found[name].step_s)
    assert why.sentence.startswith(f"{faster} is ")
    own = found["data"].plan.collectives(by="module")
    for row in why:
        same = (own[column] == row[column] for column in ("module", "kind", "mesh_axes"))
        mine = own[next(same) & next(same) & next(same)]
        assert mine["wire_bytes_per_step"].sum() == pytest.approx(row["first_wire_bytes"])
    same = found.why("data", "data")
    assert same.sentence == "data and data take the same time."
    assert not len(same.table)


def test_a_strategy_that_has_no_plan_is_a_row_with_its_reason():
    few = sa.Strategy(sa.Mesh({"data": 4}), (P(), P("data")))
    found = compared(
        strategies={**STRATEGIES, "axis": sa.Strategy(MESH, (P("pipe"), P())), "few": few}
    )
    assert "names 'pipe'" in found["axis"].refused
    assert "the mesh has 4 devices, and h100:1x8 has 8" in found["few"].refused
    assert {row.name for row in found.rows[-2:]} == {"axis", "few"}
    assert "Refused: axis" in repr(found)
    with pytest.raises(sa.TableError, match="'axis' has no plan to compare"):
        found.why("axis", "data")


def test_nothing_fits():
    found = compared(reserve=0.9999)
    assert not any(row.fits for row in found.rows)
    least = min(found.rows, key=lambda row: row.peak_bytes)
    with pytest.raises(sa.TableError, match=f"{least.name!r} on .* needs the least memory"):
        _ = found.best
    assert "No strategy fits" in found.conclusion


def test_pareto_leaves_out_what_is_beaten_in_both():
    found = compared()
    kept = {row.name for row in found.pareto().rows}
    for row in found.rows:
        beaten = any(
            other is not row and other.step_s <= row.step_s and other.peak_bytes <= row.peak_bytes
            for other in found.rows
        )
        assert (row.name in kept) is not beaten


def test_a_jitted_function_has_a_row_of_its_own_annotations():
    sa.host_devices(8)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    specs = ({"up": P(), "down": P()}, P("data"))
    own = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda leaf: isinstance(leaf, P)
    )
    step = jax.jit(loss, in_shardings=own)
    found = sa.compare(step, WEIGHTS, X, strategies=STRATEGIES, hardware="h100:8", roles=ROLES)
    options = sa.Options(policy="jit", hardware="h100")
    alone = sa.plan(step, WEIGHTS, X, roles=ROLES, options=options)
    assert found["current"].step_s == float(alone.cost("h100:8").step_time_s)
    assert "current" not in {row.name for row in compared().rows}


def test_plans_and_several_machines():
    plans = {
        name: sa.plan(loss, WEIGHTS, X, strategy=strategy, roles=ROLES)
        for name, strategy in STRATEGIES.items()
    }
    found = sa.compare(plans, hardware=["h100:8", "v5p:8"])
    assert len(found.rows) == 2 * len(plans)
    assert {row.chip for row in found.rows} == {"h100:1x8", "tpu_v5p:2x2x2"}
    with pytest.raises(sa.TableError, match="'data' is several rows"):
        _ = found["data"]


def test_the_page_and_the_picture(tmp_path):
    found = compared(strategies={**STRATEGIES, "axis": sa.Strategy(MESH, (P("pipe"), P()))})
    path = found.page(tmp_path / "page.html")
    text = path.read_text()
    assert found.conclusion in text
    assert "names 'pipe'" in text
    assert 'data-part="scatter"' in text
    for row in found.rows:
        assert f">{row.name}</td>" in text
    for place in (tmp_path / "none" / "page.html", tmp_path):
        with pytest.raises(OSError, match=str(place)):
            found.page(place)
    with pytest.raises(sa.TableError, match="its path is None"):
        found.page(None)
    widths = sum(bar.get_width() for bar in found.draw().axes[0].patches)
    steps = sum(row.step_s for row in found.rows if not row.refused)
    assert widths == pytest.approx(1e3 * steps, rel=1e-6)


def test_progress_counts_every_strategy():
    seen = []
    compared(progress=lambda *which: seen.append(which))
    assert seen == [(n, 3, name) for n, name in enumerate(STRATEGIES, 1)]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"strategies": {}}, "give a dict from names to strategies"),
        ({"strategies": None}, "give a dict from names to strategies"),
        ({"strategies": {"a": "fspd"}}, r"Did you mean sa.recipes.fsdp\(...\)\?"),
        ({"strategies": {1: STRATEGIES["data"]}}, "names are text"),
        ({"strategies": {"current": STRATEGIES["data"]}}, "the function's own annotations"),
        ({"roles": ("params", "data")}, "unknown roles .*'params'"),
        ({"reserve": 1.5}, "give a share from 0 to below 1"),
        ({"reserve": "10%"}, "give a share from 0 to below 1"),
        ({"meshes": [3]}, "give a Mesh, or axis sizes"),
        ({"hardware": "h1000:8"}, "h1000"),
        ({"hardware": []}, "hardware is an empty list"),
        ({"hardware": ["h100:8", "h100:1x8"]}, r"hardware has Topology\(h100:1x8\) twice"),
        ({"meshes": []}, "meshes is an empty list"),
        ({"meshes": [{"data": 8}, {"data": 8}]}, r"meshes has Mesh\(data=8\) twice"),
        ({"progress": "yes"}, "progress is 'yes': give True, False, or a function"),
    ],
)
def test_bad_input(more, text):
    with pytest.raises(sa.ShardalgError, match=text):
        compared(**more)


def test_a_strategy_without_work_has_no_share():
    x = jax.ShapeDtypeStruct((64, 64), "float32")
    mesh = sa.Mesh({"a": 4})
    nothing = sa.plan(lambda x: x, x, mesh=mesh, in_shardings=(P("a"),))
    product = sa.plan(lambda x: x @ x, x, mesh=mesh, in_shardings=(P("a"),))
    shown = repr(sa.compare({"nothing": nothing, "product": product}, hardware="h100:4"))
    assert "Next: product on a=4" in shown
    assert "slower" not in shown


@pytest.mark.parametrize("given", [{"a": 3}, {}])
def test_a_dict_of_other_things_is_refused(given):
    with pytest.raises(sa.StrategyError, match="are not plans"):
        sa.compare(given)


def test_arguments_of_a_function_beside_plans_are_refused():
    plans = {"data": sa.plan(loss, WEIGHTS, X, strategy=STRATEGIES["data"], roles=ROLES)}
    with pytest.raises(sa.StrategyError, match="got plans, and args, roles of a function"):
        sa.compare(plans, WEIGHTS, roles=ROLES)
    with pytest.raises(sa.TraceError, match="3 is no function: pass what is called"):
        sa.compare(3, strategies={"a": sa.recipes.fsdp("data")})


def test_unknown_names_have_near_ones():
    with pytest.raises(sa.TableError, match="Did you mean data"):
        _ = compared()["dat"]


def test_bytes_by_link_add_up_and_follow_the_islands():
    """Of 2 islands of 8 GPUs, an axis of 8 uses NVLink alone, and all 16 devices use both."""
    mesh = sa.Mesh({"pod": 2, "data": 8})
    x = jax.ShapeDtypeStruct((64, 32), "float32")
    rows = {
        "data": sa.Strategy(mesh, (P("data"), P("data"))),
        "both": sa.Strategy(mesh, (P(("pod", "data")), P(("pod", "data")))),
    }
    found = sa.compare(
        jnp.dot, jax.ShapeDtypeStruct((64, 64), "float32"), x, strategies=rows, hardware="h100:16"
    )
    sent = {r["strategy"]: (r["link_bytes"], r["network_bytes"]) for r in found.by_axis()}
    for row in found.by_axis():
        by_link = sum(row[f"{name}_bytes"] for name in ("link", "network", "dcn", "chip"))
        assert by_link == row["wire_bytes"]
    # The 8 KB of the second operand are gathered. In blocks of 512 bytes, each device sends its own
    # to the other island, and then two blocks to each of 7 neighbours.
    assert sent == {"data": (7 * 1024, 0), "both": (7 * 2 * 512, 512)}


def test_a_strategy_with_its_largest_batch():
    strategy = sa.Strategy(sa.Mesh({"data": 8}), (P("data"), P()))
    given = {
        "strategies": {"data": strategy},
        "hardware": "h100:8",
        "roles": ("data", "parameters"),
    }
    found = sa.compare(jnp.dot, X, W, batch="largest", reserve=0.999, **given)
    row = found["data"]
    assert row.samples == found.largest_batch("data") > len(X.shape)
    assert row.peak_bytes <= row.capacity_bytes
    x = jax.ShapeDtypeStruct((row.samples, X.shape[1]), X.dtype)
    alone = sa.compare(jnp.dot, x, W, **given)["data"]
    assert (alone.step_s, alone.peak_bytes) == (row.step_s, row.peak_bytes)
    assert alone.record()["wire_bytes"] == row.record()["wire_bytes"]
    small = sa.compare(jnp.dot, X, W, batch="largest", reserve=0.9999999, **given)
    assert small["data"].refused == "a batch of 1 does not fit"
    with pytest.raises(sa.StrategyError, match='batch is \'all\': give "fixed" or "largest"'):
        sa.compare(jnp.dot, X, W, batch="all", **given)
    with pytest.raises(sa.StrategyError, match=r"compare\(\) got plans, and batch of a function"):
        sa.compare({"a": row.plan}, batch="largest")


@pytest.mark.slow
def test_the_largest_batch_fits_and_a_larger_one_does_not():
    found = compared(reserve=0.99)
    for name in ("tensor",):
        largest = found.largest_batch(name)
        row = found[name]
        assert largest % 4 == 0

        def peak(batch, row=row):
            x = jax.ShapeDtypeStruct((batch, X.shape[1]), X.dtype)
            options = sa.Options(hardware="h100")
            plan = sa.plan(loss, WEIGHTS, x, strategy=row.strategy, roles=ROLES, options=options)
            return float(plan.cost("h100:8").peak_memory_bytes)

        assert peak(largest) <= row.capacity_bytes
        assert peak(2 * largest) > row.capacity_bytes


@pytest.mark.slow
def test_the_largest_batch_of_the_present_annotations():
    mesh = jax.sharding.AbstractMesh((8,), ("data",))
    given = (NamedSharding(mesh, P()), NamedSharding(mesh, P("data")))
    x = jax.ShapeDtypeStruct((64, X.shape[1]), X.dtype)

    def found(x):
        return sa.compare(
            jax.jit(loss, in_shardings=given), WEIGHTS, x, strategies={"fsdp": STRATEGIES["fsdp"]},
            hardware="h100:8", roles=ROLES, reserve=0.99,
        )  # fmt: skip

    largest = found(x).largest_batch("current")
    for batch, fits in ((largest, True), (2 * largest, False)):
        row = found(jax.ShapeDtypeStruct((batch, X.shape[1]), X.dtype))["current"]
        assert row.fits is fits, batch


def test_a_largest_batch_needs_a_function_and_data():
    plans = {"data": sa.plan(loss, WEIGHTS, X, strategy=STRATEGIES["data"], roles=ROLES)}
    with pytest.raises(sa.TableError, match="has no function to plan"):
        sa.compare(plans, hardware="h100:8").largest_batch("data")
    with pytest.raises(sa.TableError, match="data arguments have 0 leading"):
        compared(roles=None).largest_batch("data")


def test_rows_of_one_name_are_told_apart_by_mesh_and_chip():
    found = compared(hardware=["h100:8", "v5p:8"])
    with pytest.raises(sa.TableError, match="'data on data=4, model=2 on h100:1x8'"):
        _ = found["data"]
    names = [f"data on data=4, model=2 on {chip}" for chip in ("h100:1x8", "tpu_v5p:2x2x2")]
    assert [found[name].chip for name in names] == ["h100:1x8", "tpu_v5p:2x2x2"]
    chips = {"h100:1x8", "tpu_v5p:2x2x2"}
    for table in (found.by_axis(), found.memory()):
        assert set(table["chip"]) == chips
        keys = [name for name in ("strategy", "mesh", "chip", "mesh_axes") if name in table.columns]
        rows = list(zip(*(table[key] for key in keys), strict=True))
        assert len(set(rows)) == len(rows)
    assert found.memory().columns[-2:] == ("peak_bytes", "capacity_bytes")
    sentence = found.why(*names).sentence
    assert all(name in sentence for name in names)


def test_images_are_no_tokens():
    image = jax.ShapeDtypeStruct((16, 8, 8, 3), "uint8")
    rows = {"rows": sa.Strategy(sa.Mesh({"d": 8}), (P("d"),))}
    found = sa.compare(lambda x: x + 1, image, strategies=rows, hardware="h100:8", roles=("data",))
    assert (found.best.samples, found.best.tokens) == (16, None)


@pytest.mark.parametrize("what", ["samples", "tokens"])
@pytest.mark.parametrize("count", [0, -3, "x", 1.5])
def test_a_number_that_counts_nothing(what, count):
    with pytest.raises(sa.StrategyError, match=f"{what} is .* whole number from 1 on"):
        compared(**{what: count})


def test_the_largest_cause_is_seen_in_the_table():
    found = compared()
    for row in found.rows:
        line = next(line for line in repr(found).splitlines() if line.startswith(row.name))
        cause, share = max(row.limits.items(), key=lambda part: part[1])
        assert f"{cause} {share / row.step_s:.0%}" in line


def test_a_comparison_in_numbers_imports_neither_sympy_nor_pandas():
    """Both take longer to import than a strategy takes to plan."""
    code = """
import sys, jax, shardalg as sa
w = jax.ShapeDtypeStruct((64, 64), "bfloat16")
found = sa.compare(lambda w, x: x @ w, w, w, strategies={"data": sa.recipes.data("x")},
                   roles=("parameters", "data"), hardware="h100:8")
assert "data on x=8" in repr(found), found
print(sorted({"sympy", "pandas", "matplotlib", "z3"} & {*sys.modules}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stdout + done.stderr
