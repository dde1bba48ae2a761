"""Emissions are computed once per class of equal nodes, and equal each node's own."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.planner.partition import partition as partition_module
from shardalg.planner.partition.partition import Partitioner

MESH = sa.Mesh({"X": 2, "Y": 4})
KEPT = sa.Options(keep_gathers=True)


class Forgetful(dict):
    """Recipes that are made anew for every node."""

    def get(self, key, default=None):
        return default


def layers(depth, rows=8):
    """Return the gradient of `depth` layers: gathered weights, pending sums, padded rows."""

    def loss(weights, x):
        for first, second in weights:
            x = x + jnp.tanh(x @ first) @ second
        return jax.nn.softmax(x).max() + x.sum()

    w = jax.ShapeDtypeStruct((rows, 16), "float32"), jax.ShapeDtypeStruct((16, rows), "float32")
    x = jax.ShapeDtypeStruct((6, rows), "float32")
    specs = [(P("X", "Y"), P("Y", "X"))] * depth, P("X", "Y")
    return jax.grad(loss), ([w] * depth, x), specs


def planned(depth, rows=8, options=KEPT):
    fn, arguments, specs = layers(depth, rows)
    return sa.plan(fn, *arguments, mesh=MESH, in_shardings=specs, options=options)


def scanned(x, w):
    """Return a body that uses its values at once, twice over a constant."""

    def body(carry, row):
        return jnp.tanh(carry @ w) + row.sum(), carry.max(0)

    return jax.lax.scan(body, x, jnp.ones((3, 8)))


def forget(monkeypatch):
    real = Partitioner.__init__

    def init(self, *args, **kwargs):
        real(self, *args, **kwargs)
        self.recipes = [Forgetful() for _ in self.recipes]

    monkeypatch.setattr(Partitioner, "__init__", init)


@pytest.mark.parametrize("rows", [8, 10], ids=["even", "padded"])
@pytest.mark.parametrize("options", [sa.Options(), KEPT], ids=["on demand", "kept"])
def test_alike_is_what_each_would_be_alone(rows, options, monkeypatch):
    made = planned(3, rows, options).program
    forget(monkeypatch)
    assert planned(3, rows, options).program == made


@pytest.mark.parametrize("hoist", [False, True])
def test_bodies_of_loops(hoist, monkeypatch):
    types = (jax.ShapeDtypeStruct((8, 8), "float32"),) * 2
    given = {"mesh": MESH, "in_shardings": (P("X", "Y"), P("Y", "X"))}
    made = sa.plan(scanned, *types, **given, options=sa.Options(hoist_gathers=hoist))
    forget(monkeypatch)
    alone = sa.plan(scanned, *types, **given, options=made.options)
    assert alone.program == made.program
    assert made.verify().ok


def recipes(depth, monkeypatch):
    count, real = [], partition_module.recipe
    with monkeypatch.context() as patch:
        patch.setattr(partition_module, "recipe", lambda *a: count.append(1) or real(*a))
        planned(depth)
    return len(count)


def test_recipes_do_not_grow_with_depth(monkeypatch):
    assert recipes(12, monkeypatch) == recipes(6, monkeypatch) < 60
