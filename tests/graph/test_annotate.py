"""Annotations survive every transformation of JAX, and change no number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from shardalg.algebra.mesh import Mesh
from shardalg.errors import NotationError, ShardingError, TraceError
from shardalg.graph.annotate import annotate, mesh_split, mesh_split_value
from shardalg.graph.evaluate import evaluate
from shardalg.graph.ir import Site
from shardalg.graph.tracing.trace import trace

MESH = Mesh({"X": 2, "Y": 4})


def sites(fn, *args, **options):
    graph = trace(fn, *args, **options)
    for site in graph.sites:
        assert graph.nodes[site.node].primitive == "annotate"
    return [(s.name, s.spec, s.unspecified_dims) for s in graph.sites]


def test_mesh_split_keeps_axis_names_and_its_mesh():
    split = [("mesh_split", (8, 4), [-1, 1]), ("two axes", (8,), [(0, 1)])]
    specs = [((), ("Y",)), (("X", "Y"),)]
    for (_, shape, mapping), spec in zip(split, specs, strict=True):
        found = sites(lambda x, m=mapping: mesh_split(x, MESH, m), jnp.zeros(shape))
        assert found == [(None, spec, ())]
    other = Mesh({"X": 16, "Y": 1})
    turned = Mesh({"X": 2, "Y": 1}, device_ids=(1, 0))
    for mesh in (MESH, other, turned):
        graph = trace(lambda x, m=mesh: mesh_split(x, m, [0, -1]), jnp.zeros((4, 4)))
        assert graph.sites[0].mesh == (mesh.axes, mesh.device_ids)


def test_unspecified_dims_count_from_both_ends():
    found = sites(lambda x: mesh_split(x, MESH, [0, -1], unspecified_dims=(-1,)), jnp.zeros((4, 4)))
    assert found == [(None, (("X",), ()), (1,))]


def test_the_gradient_of_an_annotation_is_itself():
    def loss(x):
        return (jnp.sin(annotate(x * 2, "here")) * mesh_split(x, MESH, [0])).sum()

    graph = trace(jax.grad(loss), jnp.ones(4))
    found = {(s.name, graph.nodes[s.node].phase) for s in graph.sites}
    assert found == {(n, p) for n in ("here", None) for p in ("forward", "backward")}
    names = [graph.values[graph.nodes[s.node].results[0]].name for s in graph.sites if s.name]
    assert names == ["here", "here#2"]
    plain = jax.grad(lambda x: (jnp.sin(x * 2) * x).sum())
    np.testing.assert_allclose(jax.grad(loss)(jnp.ones(4)), plain(jnp.ones(4)), rtol=1e-6)


@pytest.mark.parametrize(
    ("dim", "spec"), [(0, ((), ("X",), ())), (1, (("X",), (), ())), (2, (("X",), (), ()))]
)
def test_vmap_inserts_an_open_dimension(dim, spec):
    fn = jax.vmap(lambda x: mesh_split(x, MESH, [0, -1]), in_axes=dim, out_axes=dim)
    assert sites(fn, jnp.zeros((4, 4, 4))) == [(None, spec, (dim,))]
    named = jax.vmap(lambda x: annotate(x, "stage"), in_axes=dim, out_axes=dim)
    assert sites(named, jnp.zeros((4, 4, 4))) == [("stage", None, (dim,))]


def test_vmap_of_vmap_and_of_open_dimensions():
    fn = jax.vmap(jax.vmap(lambda x: mesh_split(x, MESH, [0, 1], (1,))))
    assert sites(fn, jnp.zeros((2, 3, 4, 4))) == [(None, ((), (), ("X",), ("Y",)), (0, 1, 3))]


def test_annotations_work_under_jit_scan_and_remat():
    def block(x):
        return annotate(jnp.tanh(x), "block")

    def fn(x):
        x = jax.checkpoint(block)(x)
        x, _ = lax.scan(lambda c, _: (jax.jit(block)(c), None), x, length=3)
        return mesh_split(x, MESH, [1]).sum()

    graph = trace(jax.grad(fn), jnp.ones(4))
    kinds = {graph.regions[graph.nodes[s.node].region].kind for s in graph.sites}
    assert kinds == {"root", "scan", "remat"}
    plain = jax.grad(lambda x: jnp.tanh(jnp.tanh(jnp.tanh(jnp.tanh(x)))).sum())(jnp.ones(4))
    np.testing.assert_allclose(evaluate(graph, jnp.ones(4))[0], plain, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.grad(fn))(jnp.ones(4)), plain, rtol=1e-5)


@pytest.mark.parametrize(
    ("spec", "axes", "unspecified"),
    [
        (P("X"), (("X",), ()), ()),
        (P(None, ("X", "Y")), ((), ("X", "Y")), ()),
        (P(P.UNCONSTRAINED, "Y"), ((), ("Y",)), (0,)),
    ],
)
def test_of_a_constraint_only_axis_names_are_taken(spec, axes, unspecified):
    auto = jax.sharding.AxisType.Auto
    concrete = jax.make_mesh((2, 2), ("X", "Y"), axis_types=(auto, auto))
    hints = {"X": 2, "Y": 4}

    def bare(x):
        return lax.with_sharding_constraint(x * 2, spec)

    def whole(x):
        return lax.with_sharding_constraint(x * 2, jax.NamedSharding(concrete, spec))

    expected = [(None, axes, unspecified)]
    assert sites(bare, jnp.zeros((3, 5)), mesh_shape=hints) == expected
    assert sites(whole, jnp.zeros((3, 5))) == expected
    assert sites(whole, jnp.zeros((3, 5)), mesh_shape=hints) == expected
    graph = trace(bare, jnp.ones((3, 5)), mesh_shape=hints)
    assert evaluate(graph, jnp.ones((3, 5)))[0].tolist() == [[2.0] * 5] * 3


def test_a_placement_inside_the_function_is_a_constraint():
    mesh = jax.make_mesh((2,), ("X",), axis_types=(jax.sharding.AxisType.Auto,))
    there = jax.NamedSharding(mesh, P("X"))
    assert sites(lambda x: jax.device_put(x, there) + 1, jnp.zeros(4)) == [(None, (("X",),), ())]
    assert sites(lambda x: jax.device_put(x) + 1, jnp.zeros(4)) == []


def test_shardings_of_a_jitted_function_are_constraints():
    mesh = jax.make_mesh((2,), ("X",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, none = jax.NamedSharding(mesh, P("X")), jax.NamedSharding(mesh, P())
    inner = jax.jit(lambda x, y: x + y, in_shardings=(rows, None), out_shardings=none)
    rows_site, none_site = (None, (("X",), ()), ()), (None, ((), ()), ())
    expected = [rows_site, none_site]
    assert sites(lambda x: inner(x, x) * 2, jnp.zeros((4, 2))) == expected
    assert sites(inner, jnp.zeros((4, 2)), jnp.zeros((4, 2))) == expected
    assert sites(jax.jit(lambda x: x), jnp.zeros(4)) == []


@pytest.mark.parametrize(
    ("mapping", "unspecified", "error", "message"),
    [
        ([0], (), ShardingError, "1 entries for a value of 2 dimensions"),
        ([0, 0], (), ShardingError, "uses axis 'X' .* twice"),
        ([0, 2], (), NotationError, "2 in dims_mapping=.* is no axis of Mesh"),
        ([0, "Y"], (), NotationError, "'Y' in dims_mapping=.* is no axis"),
        ([0, -2], (), NotationError, "-2 in dims_mapping"),
        ([0, 1], (2,), NotationError, "names dimension 2 .* 0 to 1"),
    ],
)
def test_a_wrong_mapping_is_refused(mapping, unspecified, error, message):
    with pytest.raises(error, match=message):
        mesh_split_value(jnp.zeros((4, 4)), MESH, mapping, unspecified)


def test_annotate_takes_one_array_and_a_name():
    with pytest.raises(TraceError, match=r"needs one array, got dict"):
        annotate({"a": jnp.zeros(2)}, "name")
    with pytest.raises(TraceError, match=r"needs a name, got None"):
        annotate(jnp.zeros(2), None)
    assert annotate(jnp.arange(2), "name").tolist() == [0, 1]


def test_a_constraint_without_axes_is_refused():
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with pytest.raises(TraceError, match=r"test_annotate\.py:\d+ names devices and no axes"):
        trace(lambda x: lax.with_sharding_constraint(x, device), jnp.zeros(4))


def test_sites_are_data():
    graph = trace(lambda x: annotate(x, "here"), jnp.zeros(2))
    assert graph.sites == (Site(0, "here", None, ()),)
