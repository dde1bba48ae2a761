"""Donated arguments: the plan reuses the same bytes as the lowered program."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa

W, X = (256, 512), (128, 256)


def sgd(w, x):
    return w - 0.1 * jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)


def momentum(w, m, x):
    m = 0.9 * m + jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)
    return w - 0.1 * m, m


def scaled(w):
    return 2 * w + 1


def cache(c, k, i):
    return lax.dynamic_update_slice(c, k, (0, i, 0))


def squared(w):
    return (w * 2).T


def sums(a, b):
    return a + b


def two(a):
    return a + 1, a * 2


def swapped(a, b):
    return b + 1, a * 2


def handed_on(a, b):
    return b, a + 1


def twice(a):
    r = a + 1
    return r, r


def later(a, b):
    """Free the memory of `a` long before the result that reuses it."""
    s = a.sum()
    return jnp.tanh(b * s)[:256] * 2


# function, shapes, donated, layouts of the arguments and of the results
STEPS = {
    "sgd": (sgd, (W, X), (0,), (P(), P("x")), P()),
    "sgd by rows": (sgd, (W, X), (0,), (P("x"), P()), P("x")),
    "sgd fully sharded": (sgd, (W, X), (0,), (P("x", "y"), P("x")), P("x", "y")),
    "sgd to other layout": (sgd, (W, X), (0,), (P("x"), P()), P(None, "x")),
    "sgd from shards": (sgd, (W, X), (0,), (P("x"), P("x")), P()),
    "momentum": (momentum, (W, W, X), (0, 1), (P("x"), P("x"), P()), (P("x"), P("x"))),
    "momentum crossed": (momentum, (W, W, X), (0, 1), (P(), P("x"), P()), (P("x"), P())),
    "momentum of one": (momentum, (W, W, X), (0, 1), (P(), P("x"), P()), (P("x"), P("x"))),
    "by other axes": (scaled, (W,), (0,), (P(("x", "y")),), P(("y", "x"))),
    "to columns": (scaled, (W,), (0,), (P("x"),), P(None, "x")),
    "to fewer parts": (scaled, (W,), (0,), (P("x"),), P("y")),
    "to the whole": (scaled, (W,), (0,), (P("x"),), P()),
    "uneven": (scaled, ((254, 512),), (0,), (P("x"),), P("x")),
    "uneven to columns": (scaled, ((254, 510),), (0,), (P("x"),), P(None, "x")),
    "cache": (cache, ((8, 64, 64), (8, 1, 64), ()), (0,), (P("x"), P("x"), P()), P("x")),
    "cache by heads": (
        cache, ((8, 64, 64), (8, 1, 64), ()), (0,), (P("x"), P("x"), P()), P(None, None, "x"),
    ),
    "transposed": (squared, (W,), (0,), (P("x"),), P("x")),
    "two for one": (sums, (W, W), (0, 1), (P("x"), P("x")), P("x")),
    "one for two": (two, (W,), (0,), (P("x"),), (P(), P("x"))),
    "swapped": (swapped, (W, W), (0, 1), (P("x"), P("y")), (P("x"), P("y"))),
    "handed on": (handed_on, (W, W), (0,), (P("x"), P("x")), (P("x"), P("x"))),
    "returned twice": (twice, (W,), (0,), (P("x"),), (P("x"), P("x"))),
    "long before": (later, (W, (1024, 512)), (0,), (P("x"), P("x")), P("x")),
}  # fmt: skip


def planned(name, *, donates=True):
    function, shapes, donated, ins, outs = STEPS[name]
    args = [jax.ShapeDtypeStruct(s, "float32" if s else "int32") for s in shapes]
    more = {"donate_argnums": donated} if donates else {}
    mesh = sa.Mesh({"x": 4, "y": 2})
    return sa.plan(function, *args, mesh=mesh, in_shardings=ins, out_shardings=outs, **more)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", STEPS)
def test_reused_bytes_are_those_of_the_lowered_program(name):
    plan = planned(name)
    memory = plan.lower().compiled.memory_analysis()
    border = memory.argument_size_in_bytes + memory.output_size_in_bytes
    for made, reused in ((plan, memory.alias_size_in_bytes), (planned(name, donates=False), 0)):
        held = made.cost("h100").memory
        assert held.reused_bytes == reused
        priced = held.argument_bytes + held.result_bytes - held.reused_bytes
        assert priced == pytest.approx(border - reused, rel=0.01)


@pytest.mark.parametrize("name", STEPS)
def test_a_donation_saves_no_more_than_what_is_reused(name):
    plan, plain = planned(name), planned(name, donates=False)
    for chip in ("h100", "tpu_v3"):
        saved = plain.cost(chip).peak_memory_bytes - plan.cost(chip).peak_memory_bytes
        assert 0 <= saved <= plan.cost(chip).memory.reused_bytes


def test_memory_of_a_donated_argument_is_for_its_result_alone():
    """Between the last use of `a` and its result nothing else is written in its memory."""
    plan = planned("long before")
    held = {alive.name for alive in plan.cost("h100").memory.alive}
    assert "a" in held


@pytest.mark.sampled(21)
@pytest.mark.parametrize("name", STEPS)
def test_a_warning_names_the_arguments_that_are_not_reused(name):
    plan = planned(name)
    warned = plan._warnings_table.where(op="donation")
    reused = set(plan.cost("h100").memory.reused)
    arguments = plan.program.block.arguments
    left = [i for i in plan._traced.donated if arguments[i] not in reused]
    assert [row["source"] for row in warned] == [plan.graph.argument_paths[i] for i in left]


def test_the_result_sharding_of_a_warning_allows_reuse():
    row = planned("to columns")._warnings_table.where(op="donation").rows[0]
    assert "result as [x, None] would allow reuse" in row[4]
    assert row[5].startswith("annotate result result as [x, None]: peak memory 393 kB to 131 kB")
    function, shapes, donated, ins, _ = STEPS["to columns"]
    again = sa.plan(
        function,
        jax.ShapeDtypeStruct(shapes[0], "float32"),
        mesh=sa.Mesh({"x": 4, "y": 2}),
        in_shardings=ins,
        out_shardings=P("x"),
        donate_argnums=donated,
    )
    assert not again._warnings_table.where(op="donation").rows
    assert again.cost("h100").memory.reused_bytes == 131072


def test_an_argument_that_nothing_reads_is_not_reused():
    x = jax.ShapeDtypeStruct(W, "float32")
    mesh = sa.Mesh({"x": 4, "y": 2})
    how = {"mesh": mesh, "in_shardings": (P("x"), P("x")), "out_shardings": P("x")}
    plan = sa.plan(lambda a, b: b + 1, x, x, donate_argnums=0, **how)
    assert plan.lower().compiled.memory_analysis().alias_size_in_bytes == 0
    assert plan.cost("h100").memory.reused_bytes == 0
    assert len(plan._warnings_table.where(op="donation")) == 1
