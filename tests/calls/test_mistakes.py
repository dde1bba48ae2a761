"""Mistakes of new users in a call: each error has the value, the place and the remedy.

With the table of `tests/test_bad_input.py` these are more than a hundred mistakes.
"""

import functools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardalg as sa
from tests import test_bad_input
from tests.calls import programs

MESH = sa.Mesh({"X": 2, "Y": 4})
X, W = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((8, 16), (16, 32)))
ONES = np.ones((8, 16), "float32"), np.ones((16, 32), "float32")


def dot(x, w):
    return x @ w


def named(*sizes, kind=AxisType.Auto):
    return AbstractMesh(sizes, ("X", "Y"), axis_types=(kind,) * 2)


def given(*specs, fn=dot, args=(X, W), **more):
    return sa.plan(fn, *args, **{"mesh": MESH, "in_shardings": specs or None, **more})


@functools.cache
def plan():
    return given(P("X", "Y"), P("Y"))


@functools.cache
def lowered():
    return sa.plan(
        jax.jit(lambda x, n: x * n, static_argnums=1), X, 3, mesh=sa.Mesh({"X": 1})
    ).lower()


def layer(params, x):
    return x @ params["w"]


def on(mesh, *spec):
    return NamedSharding(mesh, P(*spec))


def by_switch(x, train):
    return x * 2 if train else x


# what is tried, then what its message says: the value, the place, the remedy
MISTAKES = {
    "an axis of another name": (lambda: given(P("data"), None), "'data'", "argument x", "Its axes are"),
    "an axis in lower case": (lambda: given(P("x"), None), "'x'", "argument x f32", r"\['X', 'Y'\]"),
    "a spec that is too long": (lambda: given(P("X", None, "Y"), None), "'Y'", "argument x", "Remove the entries"),
    "an axis twice": (lambda: given(P("X", "X"), None), r"\['X', 'X'\]", "argument x", "remove it"),
    "too few layouts": (lambda: given(P("X")), r"no entry for \[1\]", "in_shardings", "one entry for all"),
    "too many layouts": (lambda: given(None, None, P()), r"entry for \[2\]", "in_shardings", "Mirror them"),
    "a name for a layout": (lambda: given("X", None), "'X' is no sharding", "argument x", "Write one as"),
    "a tuple for a layout": (lambda: given(("X", None), None), r"\('X', None\)", r"in_shardings\[0\]", r"PartitionSpec\('X', None\)"),
    "text that is cut short": (lambda: given("[X, ", None), r"\[X, ", "argument x", "Write it as"),
    "text with a wrong axis": (lambda: given("[Z, None]", None), "'Z'", "argument x", "axes"),
    "text of another rank": (lambda: given("[X]", None), r"\[X\]", "argument x", "dimension"),
    "a wrong key": (lambda: given({"W": P("X")}, P("Y"), fn=layer, args=({"w": W}, X)), r"\['W'\]", r"in_shardings\[0\]", "Mirror them"),
    "no mesh": (lambda: sa.plan(dot, X, W, in_shardings=(P("X"), None)), "none", "plan\\(\\)", "Pass mesh="),
    "two meshes": (lambda: sa.plan(dot, X, W, in_shardings=(on(named(2, 4), "X"), on(named(4, 2), "X"))), r"Mesh\(X=2, Y=4\), Mesh\(X=4, Y=2\)", "2 meshes", "Pass mesh="),
    "a dict for a mesh": (lambda: sa.plan(dot, X, W, mesh={"X": 2}), r"\{'X': 2\}", "mesh is a dict", "Pass shardalg.Mesh"),
    "a layout on a mesh of other sizes": (lambda: given(on(named(4, 2), "X"), None), r"Mesh\(X=4, Y=2\)", "argument x", "Give a PartitionSpec"),
    "an array on a mesh of other sizes": (lambda: given(args=(jax.ShapeDtypeStruct((8, 16), "float32", sharding=on(named(4, 2), "X")), W)), r"Mesh\(X=4, Y=2\)", "X, Y has another size", "Give a PartitionSpec"),
    "a mesh's axes as tuples": (lambda: sa.Mesh((2, 4), ("X", "Y")), r"\(2, 4\)", "axes", "as in"),
    "a mesh's axes as keywords": (lambda: sa.Mesh(X=2, Y=4), "X, Y", r"Mesh\(\)", r"Mesh\(\{'X': 2, 'Y': 4\}\)"),
    "a size that is no integer": (lambda: sa.Mesh({"X": 2.0}), "2.0", "axis sizes", "Give each axis"),
    "a size of nothing": (lambda: sa.Mesh({"X": 0}), "'X': 0", "axis sizes", "Give each axis"),
    "a size that is a switch": (lambda: sa.Mesh({"X": True}), "True", "axis sizes", "Give each axis"),
    "no arguments": (lambda: sa.plan(dot, mesh=MESH), r"given \(\)", r"dot \(test_mistakes.py:\d+\)", "Pass plan"),
    "an argument too few": (lambda: given(args=(X,)), r"float32\[8, 16\]", "'w'", "Pass plan"),
    "an argument too many": (lambda: given(args=(X, W, X)), "too many", r"dot \(test_mistakes.py", "Pass plan"),
    "shapes for arrays": (lambda: given(args=((8, 16), (16, 32))), r"\(8, 16\) is a tuple", r"dot \(test_mistakes.py", "ShapeDtypeStruct"),
    "shapes that do not fit": (lambda: given(args=(X, X)), r"\(16,\) and \(8,\)", r"float32\[8, 16\]", "Give arguments"),
    "types that do not fit": (lambda: given(fn=lambda x, w: x.astype(int)[w], args=(X, W)), "float32", r"<lambda> \(test_mistakes.py", "Give arguments"),
    "a reshape that does not fit": (lambda: given(fn=lambda x: x.reshape(5, 5), args=(X,)), r"\(5, 5\)", r"test_mistakes.py:\d+", "Give arguments"),
    "keywords of the function": (lambda: sa.plan(dot, X, w=W, mesh=MESH), "w=", r"plan\(\) has no keyword", "kwargs="),
    "a wrong keyword": (lambda: sa.plan(dot, X, W, mesh=MESH, in_sharding=(P("X"), None)), "in_sharding=", r"plan\(\)", "near in_shardings"),
    "keywords that the function lacks": (lambda: sa.plan(dot, X, kwargs={"v": W}, mesh=MESH), "v=", "'w'", "kwargs="),
    "a switch that is traced": (lambda: given(fn=by_switch, args=(X, True)), "bool", r"by_switch \(test_mistakes.py", "static_argnames"),
    "text for an array": (lambda: given(fn=by_switch, args=(X, "a")), "'a'", "train is a str", "functools.partial"),
    "a function inside an argument": (lambda: given(fn=jax.jit(lambda m, x: x), args=(eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0)), X)), "custom_jvp", "m.activation", "functools.partial"),
    "another static value": (lambda: lowered()(ONES[0], 4), "is 4, planned was 3", "argument 1", "Plan it for that"),
    "another activation": (lambda: sa.plan(lambda m, x: m(x), eqx.nn.Lambda(jnp.sin), ONES[0], mesh=sa.Mesh({"X": 1})).lower()(eqx.nn.Lambda(jnp.cos), ONES[0]), "cos", "argument", "Plan it for that"),
    "a trace with arguments": (lambda: sa.plan(jax.jit(dot).trace(X, W), X, mesh=MESH), "1 more", "dot is traced already", "Pass the trace alone"),
    "what is lowered already": (lambda: sa.plan(jax.jit(dot).lower(X, W), mesh=MESH), "Lowered", "lowered already", "Pass the function"),
    "what is compiled already": (lambda: sa.plan(jax.jit(lambda x: x).lower(X).compile(), X, mesh=MESH), "Compiled", "lowered already", "Pass the function"),
    "no function": (lambda: sa.plan(3, X, mesh=MESH), "3 is no function", "3", "pass what is called"),
    "an axis of devices": (lambda: given(fn=lambda x: jax.lax.psum(x, "X"), args=(X,)), "X", r"test_mistakes.py:\d+", "shard_map"),
    "layouts that are no types": (lambda: given(P("X"), P("Y"), mesh=named(2, 4, kind=AxisType.Explicit), fn=lambda x, w: jnp.dot(x, w, out_sharding=P("Q"))), "'?Q", r"test_mistakes.py:\d+", "Give|name"),
    "an nnx step under jax.jit": (lambda: sa.plan(jax.jit(programs.nnx_train_step), *programs.nnx_state(), programs.X, programs.Y, mesh=MESH), "model.layers", "nnx_train_step", "without jax.jit"),
    "a setting with a slip": (lambda: sa.Options(polcy="shardy"), "polcy='shardy'", r"Options\(\)", "Did you mean policy"),
    "a switch with a slip": (lambda: sa.Switches(defer_sum=False), "defer_sum=False", r"Switches\(\)", "Did you mean defer_sums"),
    "an unknown policy": (lambda: sa.Options(policy="sharding"), "'sharding'", "policy", "Use Options"),
    "a dict of options": (lambda: given(options={"policy": "shardy"}), r"\{'policy'", "options", "as in Options"),
    "a role with a slip": (lambda: given(roles=("data", "params")), "'params'", "w:", "'parameters'"),
    "too few roles": (lambda: given(roles=("data",)), r"\[1\]", "roles", "one entry for all"),
    "a role of no argument": (lambda: given(roles={"y": "data"}), "y", "roles", "Give a path"),
    "what cannot be donated": (lambda: given(donate_argnums=5), r"\[5\]", "donate_argnums", "numbered from 0"),
    "donated by name": (lambda: given(donate_argnums="w"), r"\['w'\]", "donate_argnums", "numbered from 0"),
    "a value of no name": (lambda: plan().explain("foo"), "'foo'", "Similar names", r"shardings\(\)"),
    "a collective of no number": (lambda: plan().explain(99), "99", "has 1", "Pass the name"),
    "nothing to explain": (lambda: plan().explain(), "None", "collective", "Pass the name"),
    "why not, of another rank": (lambda: plan().why_not("x", P("X", "Y", None)), "None", "x f32", "Remove the entries"),
    "no chip": (lambda: plan().cost(), "None", "hardware", "h100"),
    "an unknown chip": (lambda: plan().cost("gpu9"), "'gpu9'", "hardware", "tpu_v3"),
    "by what is no table": (lambda: plan().collectives(by="layer"), "'layer'", "by=", "'module'"),
    "more devices than there are": (lambda: sa.plan(dot, X, W, mesh=sa.Mesh({"X": 4096})).lower(), "4096", r"Mesh\(X=4096\)", "host_devices"),
    "another shape than planned": (lambda: lowered()(ONES[1], 3), r"float32\[16,32\]", "x:", "Pass arrays as planned"),
    "a shape for numbers": (lambda: lowered()(X, 3), "ShapeDtypeStruct", "argument", "Pass arrays"),
    "a number for devices": (lambda: plan().lower(devices=3), "got 3", "devices", "as jax.devices"),
    "too few devices": (lambda: plan().lower(devices=jax.devices()[:1]), "there are 1", "Mesh", "Give 8 of them"),
    "nowhere to save": (lambda: plan().save(None), "None cannot be written", "None", "Save to another place"),
    "nowhere to load from": (lambda: sa.load_plan(None), "None cannot be read", "None", "Save it again"),
    "a block that does not divide": (lambda: sa.plan(sa.manual(dot, "X"), ONES[0][:7], ONES[1], mesh=MESH), "2 does not evenly divide 7", "trace dot", "Give arguments"),
    "a layout of a value without a name": (lambda: sa.plan(dot, X, W, strategy=sa.Strategy(MESH, sites={"h": P()})), "'h'", "sites are", r"sa\.annotate"),
    "sizes of a plan in numbers": (lambda: plan().at(B=3), "B", "all sizes of this plan are fixed", r"sa\.dims"),
    "a spec for a strategy": (lambda: plan().replan(P("X")), r"P\('X',\)", "strategy", "as in Strategy"),
    "a mesh for a strategy": (lambda: plan().replan(sa.Mesh({"X": 4})), r"Mesh\(X=4\)", "strategy", r"replan\(mesh="),
    "a strategy and a mesh": (lambda: plan().replan(sa.Strategy(MESH), mesh=MESH), "a strategy", "replan", "give one"),
    "a mesh without the axes": (lambda: plan().replan(mesh=sa.Mesh({"Z": 4})), "'X'", r"Mesh\(Z=4\)", "Give a Strategy"),
    "a plan file that is not there": (lambda: sa.load_plan("nope.json"), "No such file", "nope.json", "Save it again"),
    "an answer with a slip": (lambda: plan().collective(), "'collective'", "plan", "Did you mean collectives"),
    "a name with a slip": (lambda: sa.Plans, "'Plans'", "shardalg", "Did you mean Plan"),
    "shape and mesh the wrong way": (lambda: sa.Sharding.from_spec(P("X"), (8, 16), MESH), r"\(8, 16\)", "mesh of", "The order is"),
    "text of no notation": (lambda: sa.Sharding.parse("[X None]", (8, 16), MESH), "'N'", "column 4", "Write it as"),
    "specs to merge": (lambda: sa.merge(P("X"), P(None, "Y")), r"P\('X',\)", "compared", "from_spec"),
}  # fmt: skip


@pytest.mark.sampled(70)
@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_has_value_place_and_remedy(name):
    act, *parts = MISTAKES[name]
    with pytest.raises((sa.ShardalgError, AttributeError)) as caught:
        act()
    for part in parts:
        assert re.search(part, str(caught.value), re.DOTALL), f"no {part!r} in: {caught.value}"


def test_there_are_more_than_a_hundred():
    assert len(MISTAKES) + len(test_bad_input.ALL) > 140


def test_what_the_users_own_code_raises_stays_as_it_is():
    def mine(x):
        raise TypeError("my own")

    with pytest.raises(TypeError, match=r"^my own") as caught:
        given(fn=mine, args=(X,))
    assert type(caught.value) is TypeError
