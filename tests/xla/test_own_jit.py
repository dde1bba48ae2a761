"""The policy of a plan's shardings, and the traffic of the user's own `jax.jit`."""

import json
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.graph.tracing.parts import installed_partitioner
from shardalg.plan import plan_file
from shardalg.renamed import RenamedWarning
from tests.oracle import corpus, farther, siblings
from tests.xla import least

F32 = "float32"
X, W = jax.ShapeDtypeStruct((64, 16), F32), jax.ShapeDtypeStruct((16, 512), F32)
MESH = sa.Mesh({"X": 2, "Y": 4})
BOTH = {"in_shardings": (P("X", "Y"), P("X", "Y"))}


def layer(x, w):
    """Return a product and its transpose, on which the partitioners agree."""
    return jnp.maximum(x @ w, 0) @ w.T


def disagreed(x, w):
    """Return a product whose operands need one axis on different loops; XLA uses two axes."""
    return jnp.sin(x @ w)


def planned(fn=layer, policy="paper", **specs):
    return sa.plan(fn, X, W, mesh=MESH, options=sa.Options(policy=policy), **(specs or BOTH))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("paper", "shardings completed by the paper's rules"),
        ("gspmd", "shardings completed by the rules of XLA's GSPMD"),
        ("shardy", "shardings completed by the rules of XLA's Shardy"),
        ("jit", r"completed as by your jax\.jit \((Shardy|GSPMD); collectives are shardalg's\)"),
        ("cost", "shardings chosen by cost"),
    ],
)
def test_every_plan_names_the_rules_that_completed_its_shardings(policy, words):
    assert re.search(words, repr(planned(policy=policy)))


def test_jit_is_the_installed_partitioner():
    ways = [planned(disagreed, name, in_shardings=(P("X"), P("X"))) for name in ("jit", "shardy")]
    assert installed_partitioner() == "shardy"
    assert ways[0].shardings().equals(ways[1].shardings())
    with jax_switch(shardy=False):
        assert installed_partitioner() == "gspmd"
        assert sa.Options(policy="jit").partitioner == "gspmd"


class jax_switch:
    """Another partitioner, as a user sets it, for the time of a block."""

    def __init__(self, *, shardy):
        self.now = shardy

    def __enter__(self):
        self.before = jax.config.jax_use_shardy_partitioner
        jax.config.update("jax_use_shardy_partitioner", self.now)

    def __exit__(self, *_):
        jax.config.update("jax_use_shardy_partitioner", self.before)


def differing(policy="paper"):
    """Return a sum of two shardings; the paper's completion sends a quarter of Shardy's bytes."""
    y = jax.ShapeDtypeStruct((512, 16), F32)
    specs = (P("X"), P("X", "Y"))
    options = sa.Options(policy=policy)
    return sa.plan(lambda x, y: x + y.T, W, y, mesh=MESH, in_shardings=specs, options=options)


def test_what_differs_is_said_and_xla_is_asked_only_when_asked():
    plan = differing()
    assert len(plan.beside_jit()) == 2
    ours, theirs = plan.beside_jit()["wire_bytes"]
    (row,) = plan.warnings().query("op == 'jax.jit'").to_dict("records")
    assert row["warning"].startswith("your jax.jit (Shardy's shardings): at least ")
    assert row["warning"] in str(plan)
    assert theirs == differing("jit").beside_jit()["wire_bytes"][0]
    beside = plan.compare_xla()
    assert beside.partitioner == "shardy"
    assert plan.beside_jit()["wire_bytes"].tolist() == [ours, theirs, beside.xla_wire_bytes]
    assert theirs <= beside.xla_wire_bytes


def test_a_file_of_the_old_schema_loads_as_the_papers(tmp_path):
    plan = planned()
    inputs = plan_file.inputs(plan._traced, plan._annotations, plan.options)
    inputs["options"]["policy"] = "gspmd"
    seal = plan_file.PlanFile(inputs, {}).sealed(plan.text())
    content = {**inputs, "program": seal}
    digest = plan_file.digest(plan_file.body(content))
    whole = {"schema": plan_file.WITH_GSPMD, "sha256": digest, "plan": content}
    (tmp_path / "old.json").write_text(json.dumps(whole))
    with pytest.warns(RenamedWarning, match="'paper'"):
        loaded = sa.load_plan(tmp_path / "old.json")
    assert loaded.options.policy == "paper"
    assert loaded.text() == plan.text()


def test_xlas_own_collectives_are_priced_as_the_plans_are():
    plan = planned()
    for chip in ("tpu_v3", "h100"):
        rows = plan.cost_of_xla(chip)
        ours = plan.cost(chip)
        assert rows["wire_bytes_per_step"].iloc[-1] == plan.compare_xla().xla_wire_bytes
        # the same collectives on the same axes: the same seconds
        sent = plan.collectives().groupby(["kind", "mesh_axes"])["wire_bytes_per_step"]
        kinds = sent.sum().to_dict()
        theirs = {(r.kind, r.mesh_axes): r.wire_bytes_per_step for r in rows[:-1].itertuples()}
        if kinds == theirs:
            assert rows["time_s"].iloc[-1] == pytest.approx(float(ours.communication_s))
        assert rows["time_s"].iloc[-1] == pytest.approx(rows["time_s"][:-1].sum())
    assert kinds == theirs


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", [*corpus.names(), *corpus.gradients()])
def test_xla_sends_no_less_than_the_bound(name):
    assert not least.violations(least.recorded([name]))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("template", ["ffn", "factor", "gated", "attention", "shift", "recurrent"])
@pytest.mark.parametrize("seed", [0, 6, 7, 103])
def test_xla_sends_no_less_than_the_bound_for_random_programs(template, seed):
    found = (siblings.TEMPLATES | farther.TEMPLATES)[template]
    assert not least.violations(least.drawn(1, seed, {template: found}))


@pytest.mark.parametrize(
    ("out", "share"), [(P(), 2 * 3 / 4), (P("X"), 3 / 4), (P(None, "X"), 3 / 4)]
)
def test_the_bound_of_a_sum_is_an_all_reduce_or_a_reduce_scatter(out, share):
    x, w = jax.ShapeDtypeStruct((16, 64), F32), jax.ShapeDtypeStruct((64, 32), F32)
    specs = (P(None, "X"), P("X"))
    made = {"mesh": sa.Mesh({"X": 4}), "in_shardings": specs, "out_shardings": out}
    plan = sa.plan(jnp.matmul, x, w, **made)
    assert plan.beside_jit()["wire_bytes"].iloc[1] == share * 16 * 32 * 4


def test_a_copy_that_two_operators_read_is_bounded_once():
    x, w = jax.ShapeDtypeStruct((8, 64), F32), jax.ShapeDtypeStruct((64, 32), F32)
    made = {"mesh": sa.Mesh({"X": 4}), "in_shardings": (P("X"), P(None, "X"))}
    plan = sa.plan(lambda x, w: jnp.sin(x @ w) + x @ (2 * w), x, w, **made)
    assert plan.beside_jit()["wire_bytes"].iloc[1] <= 3 / 4 * 64 * 32 * 4


def test_the_border_of_a_shard_map_counts_nothing_along_the_axes_that_it_leaves():
    x, w = jax.ShapeDtypeStruct((2, 16, 32), F32), jax.ShapeDtypeStruct((2, 32, 64), F32)
    mesh = sa.Mesh({"p": 2, "y": 4})

    def f(x, w):
        def body(x, w):
            return jax.lax.ppermute(jnp.einsum("lbd,ldf->lbf", x, w), "p", [(0, 1)])

        specs = {"in_specs": (P("p"), P("p")), "out_specs": P("p"), "axis_names": {"p"}}
        return jax.shard_map(body, **specs)(x, w)

    with jax.set_mesh(mesh.to_jax(jax.devices()[:8])):
        plan = sa.plan(f, x, w, mesh=mesh, in_shardings=(P("p"), P("p", None, "y")))
    assert plan.beside_jit()["wire_bytes"].iloc[1] <= 16 * 64 * 4 / 4


def test_an_estimate_is_not_called_a_bound():
    x = jax.ShapeDtypeStruct((16, 8), F32)
    made = {"mesh": sa.Mesh({"X": 4}), "in_shardings": (P("X"),)}
    own = sa.plan(lambda x: jnp.cumsum(jnp.sort(x, axis=0), axis=0), x, **made)._own_jit
    assert own.least < own.theirs.wire_bytes
    assert re.search(r"at least .* sent \(estimate .*\) and .* peak memory", str(own))


def test_a_compiled_program_that_sends_nothing_differs():
    """XLA's answer of 0 bytes counts; the estimate does not replace it."""
    x = jax.ShapeDtypeStruct((8, 16), "float32")
    mesh = sa.Mesh({"X": 4})
    plan = sa.plan(lambda x: x.sum(0), x, mesh=mesh, in_shardings=(P("X"),))
    own = plan._own_jit
    assert own.ours.wire_bytes == own.theirs.wire_bytes > 0
    assert not replace(own, asked=own.theirs.wire_bytes).differs
    assert replace(own, asked=0).differs
