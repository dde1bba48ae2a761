"""Columns of public tables: no attribute of a DataFrame, old names refused, text printed whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.costs.hardware import load
from shardalg.tables import Table

ATTRIBUTES = frozenset(dir(pd.DataFrame))
(B,) = sa.dims("B", hint=(64,))


def step(w, x):
    def layer(h, w):
        return jnp.tanh(h @ w), None

    with jax.named_scope("layers"):
        h, _ = jax.lax.scan(layer, x, w)
    return jnp.fft.fft(h, axis=1).real.sum(0)


def planned(mesh, rows):
    given = (jax.ShapeDtypeStruct((3, 8, 8), "float32"), jax.ShapeDtypeStruct((rows, 8), "float32"))
    return sa.plan(step, *given, mesh=mesh, in_shardings=(P(None, "X"), P("Y", "X")))


@pytest.fixture(scope="module")
def plan():
    return planned(sa.Mesh({"X": 2, "Y": 4}), 64)


@pytest.fixture(scope="module")
def named():
    return planned(sa.Mesh({"X": 2, "Y": 4}, symbolic=True), B)


def reshard(mesh, **options):
    ends = (sa.Sharding.from_axes(axes, mesh, (8, 8)) for axes in (["X", None], [None, "X"]))
    return sa.reshard(*ends, dtype="float32", **options)


TABLES = {
    "collectives": lambda p, n: p.collectives(),
    "collectives by module": lambda p, n: p.collectives(by="module"),
    "named collectives": lambda p, n: n.collectives(),
    "shardings": lambda p, n: p.shardings(),
    "warnings": lambda p, n: p.warnings(),
    "switches": lambda p, n: p.switches(),
    "gathers": lambda p, n: p.gathers(),
    "formatting": lambda p, n: p.formatting("tpu_v3"),
    "beside jit": lambda p, n: p.beside_jit(),
    "conditions": lambda p, n: n.conditions(),
    "constants": lambda p, n: n.constants(),
    "changes": lambda p, n: n.at(B=65).changes,
    "claims": lambda p, n: p.verify().df,
    "cost": lambda p, n: p.cost("tpu_v3").table(),
    "cost by module": lambda p, n: p.cost("tpu_v3").table(by="module"),
    "formulas": lambda p, n: n.cost("tpu_v3").formulas(),
    "memory": lambda p, n: p.memory.table(),
    "overview": lambda p, n: p.overview("tpu_v3").df,
    "diff": lambda p, n: p.diff(p.replan(mesh=sa.Mesh({"X": 4, "Y": 2}))).df,
    "explained collective": lambda p, n: p.explain(0).df,
    "explained value": lambda p, n: p.explain("x").df,
    "why not": lambda p, n: p.why_not("x", P()).df,
    "timeline": lambda p, n: p.timeline("tpu_v3").table(),
    "reshard": lambda p, n: reshard(p.mesh).df,
    "links": lambda p, n: sa.Topology("v3", shape=(2, 2)).axes(p.mesh),
    "lemmas": lambda p, n: sa.lemmas().df,
    "halo": lambda p, n: sa.halo(sa.Window(3), size=12, parts=4).table(),
    "compared": lambda p, n: p.compare_xla().df,
    "compared by kind": lambda p, n: p.compare_xla().kinds,
    "compared by module": lambda p, n: p.compare_xla().modules,
    "priced": lambda p, n: p.cost_of_xla("tpu_v3"),
    "idle": lambda p, n: sa.logical_rules({"a": "X"}, sa.Mesh({"X": 2})).idle({}),
}


@pytest.mark.parametrize("name", TABLES)
def test_no_column_is_an_attribute_of_a_data_frame(name, plan, named):
    table = TABLES[name](plan, named)
    assert not set(table.columns) & ATTRIBUTES
    per_step = {"executions", "wire_bytes", "wire_bytes_per_step"} <= set(table.columns)
    if per_step and len(table):
        columns = map(table.__getitem__, ("executions", "wire_bytes", "wire_bytes_per_step"))
        each = zip(*columns, strict=True)
        assert all(times * once == whole for times, once, whole in each)


OLD = {
    "axes": ("mesh_axes", lambda t: t["axes"]),
    "axes of several": ("mesh_axes", lambda t: t[["kind", "axes"]]),
    "count": ("executions", lambda t: t["count"]),
    "grouped": ("mesh_axes", lambda t: t.groupby("axes")),
    "groups": ("executions", lambda t: t.groupby("kind")["count"].sum()),
    "query": ("executions", lambda t: t.query("count > 1")),
    "eval": ("executions", lambda t: t.eval("wire_bytes * count")),
    "sorted": ("executions", lambda t: t.sort_values("count")),
    "index": ("mesh_axes", lambda t: t.set_index(["kind", "axes"])),
    "selected rows": ("executions", lambda t: t[t["kind"] == "all_gather"]["count"]),
    "dropped": ("executions", lambda t: t.drop(columns=["count"])),
}


@pytest.mark.parametrize("use", OLD)
def test_an_old_name_is_refused_with_the_new_one(use, plan):
    new, call = OLD[use]
    with pytest.raises(sa.TableError, match=f"now named '{new}'"):
        call(plan.collectives())


def test_old_names_of_other_tables_are_refused(plan, named):
    with pytest.raises(sa.TableError, match="'wire_bytes_per_step'"):
        plan.collectives(by="module")["wire_bytes"]
    with pytest.raises(sa.TableError, match="'place'"):
        named.conditions()["where"]
    with pytest.raises(sa.TableError, match="'executions'"):
        plan.cost("tpu_v3").table()["count"]


def test_pandas_works_on_a_table_as_on_any_frame(plan):
    table = plan.collectives()
    plain = pd.DataFrame(table)
    assert isinstance(table, pd.DataFrame)
    assert table.mesh_axes.tolist() == plain["mesh_axes"].tolist()
    assert pd.concat([table, table]).groupby("kind")["executions"].sum().gt(0).all()
    assert table.merge(plain, on="kind").describe().shape[0] > 0
    assert table.pivot_table(index="kind", columns="mesh_axes", values="wire_bytes").size
    assert plan.shardings().count().tolist() == [len(plan.shardings())] * 5
    assert table.to_dict("records") == plain.to_dict("records")


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_the_same_type_and_methods(name, plan, named):
    """A table of plain rows and one that is a DataFrame answer the same questions."""
    table = TABLES[name](plan, named)
    assert isinstance(table, sa.Table)
    columns = list(table.columns)
    assert len(table.rows) == len(table)
    assert table.df.shape == table.shape == (len(table), len(columns))
    assert list(table.select(*columns[:2]).columns) == columns[:2]
    assert table.to_html().count("<tr") == len(table) + 1
    assert isinstance(table.df, pd.DataFrame)
    assert isinstance(table.df, sa.Table)
    if len(table):
        name, value = columns[0], table.rows[0][0]
        assert 1 <= len(table.where(**{name: value})) <= len(table)
        assert len(table.sort_values(name, key=lambda s: s.astype(str))) == len(table)
        assert table.groupby(name).size().sum() == len(table)
        assert len(table.iloc[:1]) == 1
    with pytest.raises(AttributeError):
        table.no_such_attribute  # noqa: B018


def test_claims_are_a_table_with_and_without_a_call(plan):
    report = plan.verify()
    assert type(report.table) is type(report.table()) is type(plan.collectives())
    assert report.table().equals(report.df)


DEFAULT, ASKED = "8 x tpu_v3 (the default chip; ", "8 x h100 (as asked for; "
TEXTS = {
    "plan": (lambda plan: repr(plan), None),
    "page": (lambda plan: plan._repr_html_(), None),
    "drawing": (lambda plan: plan.draw().axes[0].texts[0].get_text(), None),
    "explanation": (lambda plan: str(plan.explain(0)), None),
    "overview": (lambda plan: plan.overview().sentence, lambda p: p.overview("h100").sentence),
    "timeline": (lambda plan: repr(plan.timeline()), lambda plan: repr(plan.timeline("h100"))),
    "timeline's figure": (
        lambda plan: plan.timeline().figure().axes[0].get_title("left"),
        lambda plan: plan.timeline("h100").figure().axes[0].get_title("left"),
    ),
    "cost": (None, lambda plan: repr(plan.cost("h100"))),
    "cost in a notebook": (None, lambda plan: plan.cost("h100")._repr_html_()),
    "reshard": (
        None,
        lambda plan: str(reshard(plan.mesh, on="h100")),
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_chip_is_named_with_its_devices_and_its_origin(name, plan):
    default, asked = TEXTS[name]
    assert default is None or DEFAULT in default(plan).replace("\n", " ")  # titles have lines
    assert asked is None or ASKED in asked(plan).replace("\n", " ")


def test_a_text_names_the_topology_or_its_absence(plan):
    assert "joined as tpu_v3:2x2" in repr(plan.cost("v3"))
    own_links = load("v3").with_own_links()
    assert "each mesh axis on links of its own" in repr(plan.cost(own_links))
    assert plan.cost("v3").step_time_s == plan.cost("v3:2x2").step_time_s
    assert "joined as tpu_v3:2x2" in plan.overview("v3:2x2").sentence


def test_a_chip_of_the_options_is_named_as_such(plan, named):
    x = jax.ShapeDtypeStruct((8, 8), "float32")
    other = sa.plan(jnp.sin, x, mesh=plan.mesh, options=sa.Options(hardware="tpu_v3"))
    for text in (repr(other.timeline()), repr(other), other.draw().axes[0].texts[0].get_text()):
        assert "8 x tpu_v3 (the chip of the plan's options; " in text.replace("\n", " ")
    assert ASKED in repr(named.sweep("h100", B=np.array([64])))
    assert "X*Y x h100 (as asked for; " in repr(named.sweep("h100", X=np.array([2, 4])))


def test_text_is_printed_whole():
    text = "word " * 60
    rows = tuple((f"{text}{number}", number) for number in range(100))
    shown = repr(Table(("warning", "remedy"), rows).whole_df)
    assert all(f"{text}{number} " in shown for number in range(100))
    assert text + "99" in Table(("warning", "remedy"), rows).whole_df._repr_html_()
    assert "..." not in shown
    assert text in repr(Table(("warning", "remedy"), rows).df)


def test_warnings_and_switches_are_printed_whole(plan):
    for table in (plan.warnings(), plan.switches()):
        shown = repr(table)
        assert "..." not in shown
        for cell in table.to_numpy().ravel():
            assert not isinstance(cell, str) or cell in shown
