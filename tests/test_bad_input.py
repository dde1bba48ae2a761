"""Mistakes of users: each error names the place, the value at fault and the remedy."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import (
    DeviceError,
    HardwareError,
    LoweringError,
    MeshError,
    NotationError,
    RoleError,
    ShardalgError,
    ShardingError,
    StrategyError,
    TraceError,
)
from shardalg.lower.xla_dump.hlo_collectives import collectives
from tests.small_step import MESH

X, W = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((8, 16), (16, 4)))
PARAMS = {"w": W}


def dot(x, w):
    return x @ w


def layer(params, x):
    return {"y": sa.annotate(x @ params["w"], "hidden")}


def plan_dot(*specs, **given):
    return sa.plan(dot, X, W, **{"mesh": MESH, "in_shardings": specs or None, **given})


def plan_layer(**given):
    return sa.plan(layer, PARAMS, X, mesh=MESH, **given)


def plan_sites(**sites):
    return sa.plan(layer, PARAMS, X, strategy=sa.Strategy(MESH, sites=sites))


def split(shape, axes, mesh=MESH):
    return sa.Sharding.from_axes(axes, mesh, shape)


def on_other_devices():
    return NamedSharding(sa.Mesh({"A": 4}).to_jax(), P("A"))


# name: (what is done, class of the error, place, value at fault, remedy or what would be right).
SHARDINGS = {
    "unknown axis": (
        lambda: plan_dot(P("Z"), P()),
        StrategyError, r"argument x f32\[8,16\].*Mesh\(X=2, Y=4\)", r"'Z' \(on dimension 0\)",
        r"Its axes are \['X', 'Y'\]",
    ),
    "axis used twice": (
        lambda: plan_dot(P(), P("X", "X")),
        StrategyError, r"argument w f32\[16,4\]", "'X' on dimension 0 and on dimension 1",
        "remove it from the other",
    ),
    "spec longer than the shape": (
        lambda: plan_dot(P("X", None, "Y"), P()),
        StrategyError, "argument x", r"3 entries for 2 dimensions", "Remove the entries beyond",
    ),
    "sharding of another rank": (
        lambda: plan_dot(split((8,), ["X"]), P()),
        StrategyError, "argument x", r"shape \(8,\)", r"needs shape \(8, 16\)",
    ),
    "sharding on another mesh": (
        lambda: plan_dot(split((8, 16), ["X"], sa.Mesh({"X": 4})), P()),
        StrategyError, "argument x", r"of Mesh\(X=4\)", r"of Mesh\(X=2, Y=4\)",
    ),
    "NamedSharding on other devices": (
        lambda: plan_dot(on_other_devices(), P()),
        StrategyError, "argument x", r"Mesh\(A=4\)", "on a mesh over these devices",
    ),
    "text for a spec": (
        lambda: plan_dot("X", P()),
        StrategyError, "argument x", "'X' is no sharding", r"\[x, None",
    ),
    "unknown axis of a result": (
        lambda: plan_layer(out_shardings={"y": P("Z")}),
        StrategyError, r"result\['y'\] f32\[8,4\]", "'Z'", "Its axes are",
    ),
    "unknown axis of a site": (
        lambda: plan_sites(hidden=P("Z")),
        StrategyError, r"site hidden at test_bad_input\.py:\d+", "'Z'", "Its axes are",
    ),
    "site with a long spec": (
        lambda: plan_sites(hidden=P("X", None, "Y")),
        StrategyError, "site hidden at", "3 entries for 2 dimensions", "Remove",
    ),
    "unknown site": (
        lambda: plan_sites(hiden=P("X")),
        StrategyError, "function on Mesh", "no site is called 'hiden'", "Did you mean 'hidden'",
    ),
    "annotation on a mesh of fewer devices": (
        lambda: sa.plan(lambda x: sa.mesh_split(x, sa.Mesh({"A": 2}), [0, -1]), X, mesh=MESH),
        StrategyError, r"site \(no name\) at test_bad_input\.py:\d+", r"\[A, None\].*Mesh\(A=2\)",
        "on a mesh over these devices",
    ),
    "no mapping": (
        lambda: sa.mesh_split((8, 16), MESH, None),
        ShardingError, "mesh_split", "as its dims_mapping, got None", r"\[0, -1\]\)",
    ),
    "no mesh to split on": (
        lambda: sa.plan(lambda x: sa.mesh_split(x, None, [0, -1]), X, mesh=MESH),
        ShardingError, "mesh_split", "a shardalg.Mesh as its mesh, got None", r"Mesh\(",
    ),
    "mapping of another rank": (
        lambda: sa.mesh_split((8, 16), MESH, [0]),
        ShardingError, r"shape \(8, 16\)", r"\[0\] has 1 entries", "one axis, or -1, per dimension",
    ),
    "mapping of a value of another rank": (
        lambda: sa.plan(lambda x: sa.mesh_split(x, MESH, [0]), X, mesh=MESH),
        ShardingError, r"dims_mapping=\[0\]", "1 entries for a value of 2", "each dimension",
    ),
    "mapping onto an axis that is not there": (
        lambda: sa.plan(lambda x: sa.mesh_split(x, MESH, [0, 7]), X, mesh=MESH),
        NotationError, r"dims_mapping=\[0, 7\]", "7 in", r"\{0: 'X', 1: 'Y'\}",
    ),
    "mapping onto one axis twice": (
        lambda: sa.mesh_split((8, 16), MESH, [1, 1]),
        ShardingError, r"shape \(8, 16\)", "'Y' on dimension 0 and on dimension 1", "remove it",
    ),
    "unknown axis of a Sharding": (
        lambda: sa.Sharding.from_spec(P("Z"), MESH, (8,)),
        MeshError, r"shape \(8,\) on Mesh", "'Z'", "Its axes are",
    ),
    "a dict in place of the mesh of another plan": (
        lambda: plan_dot().replan(mesh={"X": 2}),
        MeshError, "expected a JAX mesh", r"dict: \{'X': 2\}", "Pass a jax.sharding.Mesh, or shard",
    ),
    "keyword arguments in a list": (
        lambda: sa.plan(dot, X, mesh=MESH, kwargs=[W]),
        TraceError, "kwargs", r"got \[", "a dict by the names of parameters",
    ),
    "shardings of two tensors": (
        lambda: sa.merge(split((8,), ["X"]), split((9,), ["X"])),
        ShardingError, "cannot be compared", r"\(8,\) and \(9,\)", "must be of one tensor",
    ),
}  # fmt: skip
TREES = {
    "too few entries": (
        lambda: plan_dot(P("X")),
        StrategyError, "in_shardings fits no prefix", r"no entry for \[1\]", "Mirror them",
    ),
    "too many entries": (
        lambda: plan_dot(P(), P(), P()),
        StrategyError, "in_shardings fits no prefix", r"\[2\], which does not exist", "Mirror them",
    ),
    "other keys": (
        lambda: plan_layer(in_shardings=({"v": P()}, P())),
        StrategyError, r"in_shardings\[0\]", r"\['v'\], which does not exist",
        r"have \['w'\] there",
    ),
    "a dict for an array": (
        lambda: plan_layer(in_shardings=(P(), {"a": P()})),
        StrategyError, r"in_shardings\[1\]", r"\['a'\]", "a single array there",
    ),
    "other keys of the result": (
        lambda: plan_layer(out_shardings={"z": P()}),
        StrategyError, "out_shardings", r"\['z'\]", r"The results have \['y'\]",
    ),
    "roles of other keys": (
        lambda: plan_layer(roles=({"v": "parameters"}, "data")),
        RoleError, r"roles\[0\]", r"\['v'\]", r"have \['w'\]",
    ),
    "too few roles": (
        lambda: plan_dot(roles=("data",)),
        RoleError, "roles fits no prefix", r"no entry for \[1\]", "Mirror them",
    ),
    "unknown roles": (
        lambda: plan_dot(roles=("dater", "weights")),
        RoleError, "unknown roles x", "x: 'dater'; w: 'weights'", "one of 'parameters'",
    ),
    "donation of nothing": (
        lambda: plan_dot(donate_argnums=(0, 2)),
        StrategyError, "donate_argnums", r"\[2\]", "2 arguments, numbered from 0",
    ),
    "donation of a part": (
        lambda: plan_dot(donate_argnums=1.0),
        StrategyError, "donate_argnums", r"\[1.0\]", "numbered from 0",
    ),
    "donation by name": (
        lambda: plan_dot(donate_argnums="x"),
        StrategyError, "donate_argnums", r"\['x'\]", "numbered from 0",
    ),
    "arguments of another structure": (
        lambda: plan_dot().lower()(np.ones((8, 16), "f")),
        LoweringError, "another structure", "in all tuple of 1 stands instead of tuple of 2",
        "given to plan",
    ),
    "arguments of other keys": (
        lambda: plan_layer().lower()({"v": np.ones((16, 4), "f")}, np.ones((8, 16), "f")),
        LoweringError, r"at \[0\] dict holds \['v'\] instead of \['w'\]", "another structure",
        "given to plan",
    ),
    "nothing for an argument": (
        lambda: plan_layer().lower()({"w": None}, np.ones((8, 16), "f")),
        LoweringError, r"at \[0\]\['w'\] None stands instead of an array", "another structure",
        "given to plan",
    ),
    "arguments of other shapes": (
        lambda: plan_dot().lower()(np.ones((3, 16), "f"), np.ones((16, 4), "f")),
        LoweringError, r"x: got float32\[3,16\]", r"float32\[8, 16\]", "plan again for these",
    ),
}  # fmt: skip


def decides(x):
    if x.sum() > 0:
        return x
    return -x


def reads(x):
    return io_callback(lambda x: x, x, x)


FUNCTIONS = {
    "a Python decision": (
        lambda: sa.plan(decides, X, mesh=MESH),
        TraceError, r"cannot trace decides \(test_bad_input\.py:\d+\)", "boolean conversion",
        r"jax\.lax\.cond",
    ),
    "numpy inside": (
        lambda: sa.plan(lambda x: np.asarray(x), X, mesh=MESH),
        TraceError, r"<lambda> \(test_bad_input\.py:\d+\)", r"float32\[8,16\]", r"jax\.numpy",
    ),
    "a size that depends on values": (
        lambda: sa.plan(lambda x: x[x > 0], X, mesh=MESH),
        TraceError, r"<lambda> \(test_bad_input\.py:\d+\)", "boolean", "out of the function",
    ),
    "a side effect with a result": (
        lambda: sa.plan(reads, X, mesh=MESH),
        TraceError, r"io_callback at test_bad_input\.py:\d+", "an effect", r"jax\.pure_callback",
    ),
    "numbers from a state of the device": (
        lambda: sa.plan(lambda x: x + jax.lax.rng_uniform(0.0, 1.0, x.shape), X, mesh=MESH),
        TraceError, r"rng_uniform at test_bad_input\.py:\d+", "would differ", r"jax\.random",
    ),
    "a result that is no array": (
        lambda: sa.plan(lambda x: "text", X, mesh=MESH),
        TraceError, "<lambda> cannot be planned", "str", "arrays only",
    ),
    "an argument that is no array": (
        lambda: sa.plan(lambda x, config: x, X, {"act": "relu"}, mesh=MESH),
        TraceError, r"config\['act'\]", r"str \('relu'\)", r"functools\.partial",
    ),
    "an annotated pytree": (
        lambda: sa.plan(lambda x: sa.annotate({"a": x}, "a"), X, mesh=MESH),
        TraceError, "needs one array", "got dict", "one by one",
    ),
    "an annotation without a name": (
        lambda: sa.plan(lambda x: sa.annotate(x, 3), X, mesh=MESH),
        TraceError, "needs a name", "got 3", r"annotate\(x, 'hidden'\)",
    ),
}  # fmt: skip
MESHES = {
    "no mesh": (
        lambda: plan_dot(mesh=None),
        StrategyError, r"plan\(\) needs a mesh", "0 meshes", "Pass mesh=",
    ),
    "a dict for a mesh": (
        lambda: plan_dot(mesh={"X": 2}),
        StrategyError, "mesh is a dict", r"\{'X': 2\}", r"Pass shardalg\.Mesh",
    ),
    "mesh and strategy": (
        lambda: plan_dot(strategy=sa.Strategy(MESH)),
        StrategyError, r"plan\(\)", "a strategy, or mesh and shardings", "into the Strategy",
    ),
    "an axis of size 0": (
        lambda: sa.Mesh({"X": 0}), MeshError, "axis sizes", r"\{'X': 0\}", "at least 1",
    ),
    "an axis named twice": (
        lambda: sa.Mesh([("X", 2), ("X", 2)]), MeshError, "a mesh", "'X', 'X'", "each axis once",
    ),
    "a device listed twice": (
        lambda: sa.Mesh({"X": 2}, device_ids=(0, 0)),
        MeshError, r"Mesh\(X=2\)", r"\[0\] occur", "List each device once",
    ),
    "devices as text": (
        lambda: sa.Mesh({"X": 3}, device_ids="abc"),
        MeshError, r"Mesh\(X=3\)", "'abc', no list of whole numbers", r"as in \(1, 0\)",
    ),
    "devices as fractions": (
        lambda: sa.Mesh({"X": 2}, device_ids=(0, 1.5)),
        MeshError, r"Mesh\(X=2\)", r"\(0, 1.5\), no list", "row-major order",
    ),
    "too few devices": (
        lambda: sa.plan(dot, X, W, mesh=sa.Mesh({"X": 4000})).lower(),
        DeviceError, r"Mesh\(X=4000\)", "needs 4000 devices", r"host_devices\(4000\)",
    ),
    "too many host devices": (
        lambda: sa.host_devices(4000),
        DeviceError, "4000 CPU devices", "this process has", r"host_devices\(4000\) before",
    ),
    "an unknown chip": (
        lambda: plan_dot().cost("tpu_v99"),
        HardwareError, "no hardware", "'tpu_v99'", "tpu_v3",
    ),
    "no chip": (
        lambda: plan_dot().cost(3),
        HardwareError, "hardware is 3", "tpu_v3", r"a Hardware",
    ),
    "no chip of a reshard": (
        lambda: sa.reshard(*[sa.Sharding.parse("[X, None]", (8, 16), MESH)] * 2, on=["tpu_v3"]),
        HardwareError, r"hardware is \['tpu_v3'\]", r"a Hardware",
    ),
    "a switch of options": (
        lambda: sa.Switches(pad_blocks="yes"),
        StrategyError, "pad_blocks is 'yes'", "True or False",
    ),
    "an unknown policy": (
        lambda: sa.Options(policy="best"),
        StrategyError, "policy", "'best'", r"Options\(policy='jit'\)",
    ),
    "an unknown value": (
        lambda: plan_dot().explain("dot_general"),
        StrategyError, "no value is called", "'dot_general'", r"plan\.shardings\(\)",
    ),
}  # fmt: skip
ALGEBRA = {
    "merging text": (
        lambda: sa.merge(split((8, 16), ["X"]), "[X, None]"),
        ShardingError, "only shardings", r"got '\[X, None\]'", r"Sharding\.parse",
    ),
    "refining a spec": (
        lambda: sa.refines(split((8, 16), ["X"]), P("X")),
        ShardingError, "only shardings", "got P", r"Sharding\.from_spec",
    ),
    "a halo of a number": (
        lambda: sa.halo(3, size=12, parts=4), ShardingError, "a halo", "got 3", "Window",
    ),
    "a mesh of a number": (
        lambda: sa.Mesh(8), MeshError, "axes", "got 8", r"\{'X': 8, 'Y': 16\}",
    ),
    "a spec of one device": (
        lambda: sa.Sharding.parse("{maximal device=3}", (8,)).to_spec(),
        ShardingError, "on one device", r"device_ids=\[3\]", "SingleDeviceSharding",
    ),
    "a hint that is no integer": (
        lambda: sa.dims("A", hint=3.5),
        sa.SymbolError, r"dims\('A'\)", "A=3.5", "a hint an integer",
    ),
    "a tuple of sizes for a size": (
        lambda: sa.plan(jnp.sum, jax.ShapeDtypeStruct((sa.dims("A", hint=8), 4), int), mesh=MESH),
        TraceError, "the shape", r"\(\(A,\), 4\)", r"\(B,\) = dims",
    ),
    "a reshard of text": (
        lambda: sa.reshard("[X]", split((8,), ["X"])),
        ShardingError, "needs two shardings", r"'\[X\]'", r"Sharding\.parse",
    ),
    "a reshard of an unknown type": (
        lambda: sa.reshard(split((8,), ["X"]), split((8,), ["Y"]), dtype="f99"),
        ShardingError, "unknown dtype", "'f99'", "float32",
    ),
    "a number for the name of a value": (
        lambda: plan_dot().why_not(0, P("X")), StrategyError, "no value", "0", "plan.shardings",
    ),
    "no function": (
        lambda: sa.plan(3, jnp.ones(4), mesh=MESH), TraceError, "3 is no function", "called",
    ),
    "a mesh for a strategy": (
        lambda: plan_dot().replan(MESH), StrategyError, "not a Strategy", r"Mesh\(", "in_shardings",
    ),
    "a mesh for a strategy of a plan": (
        lambda: sa.plan(jnp.sum, jnp.ones(4), strategy=MESH),
        StrategyError, "not a Strategy", r"Mesh\(", "in_shardings",
    ),
    "a policy for options": (
        lambda: sa.plan(jnp.sum, jnp.ones(4), mesh=MESH, options="shardy"),
        StrategyError, "not an Options", "'shardy'", "strict=True",
    ),
    "a difference from a number": (
        lambda: plan_dot().diff(3), StrategyError, r"plan\.diff", "3", "Plan",
    ),
    "why_not of a list": (
        lambda: plan_dot().why_not(["x"], P("X")),
        StrategyError, "no value", r"\['x'\]", "plan.shardings",
    ),
    "compare_xla with another function": (
        lambda: plan_dot(P("X"), P()).compare_xla("shardy", fn=lambda x: x),
        LoweringError, "does not take the planned arguments", "too many positional", "args=",
    ),
    "compare_xla with no partitioner of XLA's": (
        lambda: plan_dot(P("X"), P()).compare_xla([]),
        LoweringError, "no partitioner", r"\[\]", "gspmd",
    ),
    "at() of a plan in numbers": (
        lambda: plan_dot().at(X=4),
        sa.SymbolError, "sizes of this plan are fixed", "X cannot be changed", r"sa\.dims",
    ),
}  # fmt: skip
ALL = {**SHARDINGS, **TREES, **FUNCTIONS, **MESHES, **ALGEBRA}


@pytest.mark.parametrize("name", ALL)
def test_each_mistake_is_named_with_its_place_and_remedy(name):
    act, error, *parts = ALL[name]
    with pytest.raises(ShardalgError) as caught:
        act()
    assert type(caught.value) is error
    for part in parts:
        assert re.search(part, str(caught.value), re.DOTALL), f"no {part!r} in: {caught.value}"


def test_all_faults_are_named_at_once():
    strategy = sa.Strategy(
        MESH,
        in_shardings=({"w": P("Z")}, P("X", "X")),
        out_shardings=P(None, None, "Y"),
        sites={"hidden": P("Q"), "hiden": P()},
    )
    with pytest.raises(StrategyError) as caught:
        sa.plan(layer, PARAMS, X, strategy=strategy)
    faults = str(caught.value).splitlines()
    assert len(faults) == 6
    for part in ("params['w']", "argument x", "result['y']", "site hidden", "'hiden'"):
        assert sum(part in fault for fault in faults[1:]) == 1, part


HLO_SHARDINGS = [
    ("", r"column 1 of .*expected '\{'"),
    ("{tiled}", "column 2 .*expected 'devices=', 'maximal' or one of .*, found 'tiled'"),
    ("{devices=[8,1]<=[8]", r"column 20 .*expected '\}', found the end"),
    ("{devices=[2,2]0,1,2}", "column 15 .*4 tiles on 3 devices"),
    ("{devices=[2,2]<=[5]}", "4 tiles on 5 devices"),
    ("{devices=[8,1]0,0,1,2,3,4,5,6}", r"the devices \[0\] occur more than once"),
    ("{devices=[2,4]<=[8]T(1,1)}", r"\[1, 1\] is no permutation"),
    ("{devices=[2,1,4]<=[8] last_tile_dims={what}}", "column 39 .*expected 'replicated' or"),
    ("{devices=[2,1,4]<=[8]}", r"3 dimensions are tiled, the shape \(8, 16\) has 2"),
]


@pytest.mark.parametrize(("text", "message"), HLO_SHARDINGS, ids=[t for t, _ in HLO_SHARDINGS])
def test_hlo_shardings_that_cannot_be_read(text, message):
    with pytest.raises(NotationError, match=f"(?s){message}") as caught:
        sa.Sharding.from_hlo(text, (8, 16), MESH)
    assert text in str(caught.value)


HLO = """HloModule m
ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %a = f32[8]{0} all-reduce(%p), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
}
"""
GROUPS = "{{0,1,2,3},{4,5,6,7}}"


def test_the_hlo_program_as_it_should_be():
    assert [(c.kind, c.axes) for c in collectives(HLO, MESH)] == [("all_reduce", ("Y",))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "HLO text of 0 characters without an ENTRY"),
        ("no program", "begins with 'no program'. Pass the whole"),
        (HLO.replace("(%p),", "(%p,"), r"line 4 of the HLO text.*bracket stays open.*%a = f32"),
        (HLO.replace(GROUPS, "[2,4]<=[9]"), r"replica groups '\[2,4\]<=\[9\]' cannot be read"),
        (HLO.replace(GROUPS, "some"), "replica groups 'some' cannot be read: the form is unknown"),
        (HLO.replace(GROUPS, "[2,4]<=x"), r"'x' is no list of devices"),
    ],
)
def test_hlo_programs_that_cannot_be_read(text, message):
    with pytest.raises(NotationError, match=f"(?s){message}"):
        collectives(text, MESH)


def test_uneven_sizes_are_no_mistake():
    """Any size may be annotated on any axis."""
    plan = sa.plan(jnp.sin, jax.ShapeDtypeStruct((7, 1), "float32"), mesh=MESH,
                   in_shardings=(P("Y", "X"),))  # fmt: skip
    np.testing.assert_allclose(plan.lower()(np.ones((7, 1), "f")), np.sin(np.ones((7, 1), "f")))
