"""StableHLO read back is the program that was exported: results, bytes, layouts, places."""

from collections import Counter
from contextlib import nullcontext
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import shardalg as sa
from benchmarks import oracle_bytes
from shardalg.graph.evaluate import evaluate
from tests.every_plan import of_oracle
from tests.oracle import corpus

# What does not come back as it went out, and why.
MORE_BYTES = {
    "maxpool_stride2_grad": "XLA pads before it scatters: the padded tensor's blocks are others",
}

OTHERWISE = {
    ("embedding_feature_sharded", "cost"): "fewer bytes, by another choice of as many seconds",
    ("reshard_uneven", "cost"): "another path of as many seconds",
    ("scan_layers", "gspmd"): "fewer bytes: the stacks of a loop read back are carries of its body",
    ("scan_layers_remat", "gspmd"): "the same",
    ("scan_layers", "cost"): "the same",
    ("scan_layers_remat", "cost"): "the same",
}
OTHERS = [pytest.param(p, marks=pytest.mark.slow) for p in ("gspmd", "shardy", "jit", "cost")]


@cache
def text(name, dtype="bfloat16"):
    """Return a recorded program as JAX exports it, with its shardings."""
    case = oracle_bytes.case(name, dtype)
    _, _, results = corpus.program(name).make(**corpus.program(name).SMALL)
    names = case.mesh.axis_names
    automatic = (AxisType.Auto,) * len(names)
    mesh = AbstractMesh(tuple(case.mesh.shape.values()), names, axis_types=automatic)

    def named(spec):
        return None if spec is None else NamedSharding(mesh, spec)

    types = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=named(spec))
        for shape, dtype, spec in case.arguments.values()
    ]
    out = jax.tree.map(named, results, is_leaf=lambda spec: spec is None)
    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.jit(case.function, out_shardings=out, keep_unused=True).trace(*types)
    return traced.lower(lowering_platforms=("cpu",)).as_text(debug_info=True)


def sent(plan):
    table = plan.collectives()
    found = Counter()
    for row in table.to_dict("records"):
        found[row["kind"], row["mesh_axes"]] += row["wire_bytes"]
    return found


def border(plan):
    sharded = plan._stages.sharded
    count = len(plan.graph.arguments)
    return [s.text() for s in (*sharded.shardings[:count], *sharded.results)]


@pytest.mark.sampled(20)
@pytest.mark.parametrize("policy", ["paper", *OTHERS])
@pytest.mark.parametrize("name", corpus.names())
def test_a_recorded_program_read_back_is_planned_as_the_function(name, policy):
    options = sa.Options(policy=policy)
    back, own = sa.plan(sa.read_stablehlo(text(name)), options=options), of_oracle(name, policy)
    assert back.mesh == own.mesh
    assert border(back) == border(own)
    is_alike = name not in MORE_BYTES and (name, policy) not in OTHERWISE
    assert (sent(back) == sent(own)) == is_alike
    assert name not in MORE_BYTES or sum(sent(back).values()) >= sum(sent(own).values())


def one_device(read, arguments):
    """Return the results of a parsed program, run by JAX."""
    return jax.tree.leaves(jax.extend.core.jaxpr_as_fun(read.jaxpr)(*arguments))


def equal(got, want):
    for a, b in zip(got, jax.tree.leaves(want), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        wide = np.complex128 if jnp.iscomplexobj(b) else np.float64
        np.testing.assert_allclose(np.asarray(a, wide), np.asarray(b, wide), rtol=1e-6, atol=1e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["ffn_attempt2_grad", "attn_final_fwd"])
def test_a_recorded_program_gives_what_it_gave(name):
    given = oracle_bytes.arguments(name)
    graph = sa.plan(sa.read_stablehlo(text(name, "float32"))).graph
    want = oracle_bytes.one_device(name, given)
    for a, b in zip(evaluate(graph, *given), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_collectives_of_blocks_go_along_the_axes_that_they_went():
    name = "shard_map_subgraph"
    case, given = oracle_bytes.case(name, "float32"), oracle_bytes.arguments(name)
    mesh = case.mesh.to_jax(jax.devices()[: case.mesh.size])
    with jax.set_mesh(mesh):
        want = jax.jit(case.function)(*given)
    got = sa.plan(sa.read_stablehlo(text(name, "float32"))).lower()(*given)
    np.testing.assert_allclose(jax.tree.leaves(got)[0], want, rtol=1e-4, atol=1e-5)


X = jnp.asarray(np.random.default_rng(1).random((4, 6)), "float32")
I = jnp.asarray([3, 0, 2, 9, -1])
PROGRAMS = {
    "pointwise": lambda x: (
        jnp.tanh(x) + jnp.cbrt(x) / jnp.log1p(x) - jnp.arctan2(x, 2 * x) + lax.logistic(x),
        jnp.floor(9 * x) % 3,
        jax.scipy.special.erf(x),
        jnp.sign(-x) * jnp.expm1(x) ** 2.5,
        jnp.round(7 * x),
        jnp.clip(x, 0.2, 0.7),
        jnp.isfinite(x) & ~(x > 0.5) ^ (x < 0.1),
    ),
    "integers": lambda x: (lax.population_count(jnp.int32(9 * x)) << 2, lax.clz(jnp.int32(9 * x))),
    "complex": lambda x: jnp.abs(jnp.fft.rfft(x)) + jnp.real(lax.complex(x, x)).sum(),
    "shapes": lambda x: jnp.pad(
        jnp.concatenate([x[::2, 1:4], x.T[:2, :3]])[::-1], ((1, 2), (0, 1))
    ),
    "constants": lambda x: x + np.arange(24, dtype="float32").reshape(4, 6) + jnp.ones((4, 6)),
    "bfloat16": lambda x: x.astype("bfloat16") * np.asarray([1, -2.5, 3, np.inf, 0, 7], "bfloat16"),
    "reductions": lambda x: (x.sum(0), x.max(), x.prod(1), (x > 0.5).any(0), x.min(1), x.mean()),
    "arg": lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0)),
    "running": lambda x: (jnp.cumsum(x, 1), lax.cummax(x, 0, reverse=True), jnp.cumprod(x, 0)),
    "sorts": lambda x: (
        lax.top_k(x, 2),
        jnp.sort(x, 0),
        jnp.argsort(x, 1),
        jnp.lexsort((x[0], x[1])),
    ),
    "indices": lambda x: (
        x[I],
        x.at[I].add(1.0),
        x.at[:, I].max(2.0),
        x.at[I].set(5.0),
        jnp.take(x, I, 1),
    ),
    "slices": lambda x: lax.dynamic_update_slice(
        x, lax.dynamic_slice(x, (1, 2), (2, 2)), (3, I[0])
    ),
    "products": lambda x: (
        x @ x.T,
        jnp.einsum("ab,ab->a", x, x),
        jnp.dot(x, x.T, precision="highest"),
    ),
    "window": lambda x: jax.grad(
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 3), (1, 2), "SAME").sum()
    )(x),
    "convolution": lambda x: jax.grad(
        lambda x: lax.conv(x[None, None], x[None, None, :2, :3], (1, 2), "SAME").sum()
    )(x),
    "counted loop": lambda x: lax.fori_loop(0, 5, lambda i, c: c * 0.5 + i, x),
    "scan": lambda x: lax.scan(lambda c, row: (c + row, c * row), x[0], x, reverse=True),
    "open loop": lambda x: lax.while_loop(lambda c: c.sum() < 99, lambda c: 2 * c, x),
    "branches": lambda x: (
        lax.cond(x.sum() > 3, jnp.sin, jnp.cos, x),
        lax.switch(jnp.int32(x[0, 0] + 7), [jnp.sin, jnp.cos, jnp.tan], x),
    ),
    "random": lambda x: x + jax.random.normal(jax.random.key(0), x.shape),
    "rematerialised": lambda x: jax.grad(lambda x: jax.checkpoint(jnp.tanh)(jnp.sin(x)).sum())(x),
    "complex constants": lambda x: (
        x * (1 + 2j) * np.arange(6, dtype="complex64"),
        x * np.asarray([[complex(np.inf, 1), 2j, 0, 0, -1j, 3]], "complex64"),
    ),
    "triangles": lambda x: tuple(
        lax.linalg.triangular_solve(
            jnp.tril(x @ x.T + jnp.eye(4)), x, left_side=True, lower=True, transpose_a=transposed
        )
        for transposed in (False, True)
    ),
    "solved": lambda x: jnp.linalg.cholesky(x @ x.T + jnp.eye(4)),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_read_back_gives_what_it_gave(name):
    function = PROGRAMS[name]
    exported = jax.export.export(jax.jit(function), platforms=["tpu"])(X)
    read = sa.read_stablehlo(exported.mlir_module())
    equal(one_device(read, [X]), jax.jit(function)(X))


S = jnp.asarray(np.random.default_rng(2).normal(size=(2, 5, 3)), "float32")
OF_LAPACK = {
    "cholesky": lambda x: jnp.linalg.cholesky(x @ x.swapaxes(1, 2) + jnp.eye(5)),
    "no cholesky": lambda x: jnp.linalg.cholesky(-x @ x.swapaxes(1, 2)),
    "triangles": lambda x: jax.scipy.linalg.solve_triangular(
        x[0, :3], x[1, :3], trans=1, unit_diagonal=True
    ),
    "solved": lambda x: jnp.linalg.solve(x[:, :3], x[:, :3, :2]),
    "determinants": lambda x: jnp.linalg.slogdet(x[:, :3]),
    "eigenvalues": lambda x: jnp.linalg.eigh(x[:, :3] + x[:, :3].swapaxes(1, 2)),
    "complex eigenvalues": lambda x: jnp.linalg.eigvalsh(x @ x.swapaxes(1, 2) * (1 + 0j)),
    "singular values": lambda x: jnp.linalg.svd(x, compute_uv=False),
    "thin": lambda x: jnp.linalg.svd(x, full_matrices=False),
    "full": lambda x: jnp.linalg.svd(x),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OF_LAPACK)
def test_text_for_cpus_calls_lapack(name):
    jitted = jax.jit(OF_LAPACK[name])
    text = jitted.lower(S).as_text()
    assert "lapack_" in text
    plan = sa.plan(
        sa.read_stablehlo(text), mesh=sa.Mesh({"X": 2}), in_shardings=(PartitionSpec("X"),)
    )
    assert plan.verify().ok
    equal(jax.tree.leaves(plan.lower()(S)), jitted(S))


def test_a_call_of_lapack_that_does_not_say_how_is_refused():
    text = jax.jit(jnp.linalg.cholesky).lower(jnp.eye(4)).as_text().replace("uplo = ", "lo = ")
    with pytest.raises(sa.TraceError, match=r"text.mlir:\d+: stablehlo.custom_call of LAPACK with"):
        sa.read_stablehlo(text)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("meshes", [0, 1])
def test_random_keys_as_arguments(kind, meshes):
    """JAX's text declares a mesh without axes if none is set."""
    key, mesh = jax.random.key(0, impl=kind), sa.Mesh({"X": 2})
    given = (
        {"in_shardings": (None, NamedSharding(mesh.to_jax(), PartitionSpec("X")))} if meshes else {}
    )

    def drawn(key, x):
        return jax.random.categorical(jax.random.split(key)[0], x)

    jitted = jax.jit(drawn, **given)
    with jax.set_mesh(mesh.to_jax()) if meshes else nullcontext():
        text = jitted.lower(key, X).as_text()
    plan = sa.plan(sa.read_stablehlo(text), mesh=mesh)
    assert plan.verify().ok
    equal([plan.lower()(jax.random.key_data(key), X)], drawn(key, X))


def test_arguments_of_extremes_are_read_as_such():
    """Not as a reduction that no row knows; ties and NaNs are JAX's."""
    read = sa.read_stablehlo(jax.jit(PROGRAMS["arg"]).lower(X).as_text())
    found = {equation.primitive.name for equation in read.jaxpr.eqns}
    assert {"argmax", "argmin"} <= found
    assert "reduce" not in found


def test_loops_that_count_are_known_to_run_so_often():
    read = sa.read_stablehlo(jax.jit(PROGRAMS["counted loop"]).lower(X).as_text())
    loops = [e.params["length"] for e in read.jaxpr.eqns if e.primitive.name == "scan"]
    assert loops == [5]


MAIN = """module {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = BODY : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}"""


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (MAIN.replace("BODY", "stablehlo.unheard %x"), "(?s)text.mlir.*3:10.*stablehlo.unheard"),
        (MAIN.replace("BODY", "math.exp %x"), "text.mlir:3: math.exp cannot be read"),
        (MAIN.replace("@main", "@other").replace("BODY", "stablehlo.abs %x"), "has other, and no"),
        (MAIN.replace("BODY", "stablehlo.abs %x").replace("4x", "?x"), "no tensor of known sizes"),
        (MAIN.replace("BODY", "stablehlo.abs %x").replace("f32", "f64"), "jax_enable_x64"),
        ("HloModule jit_f\nENTRY main {}", "no StableHLO that jaxlib reads"),
        ("nowhere.mlir", "nowhere.mlir is no file"),
        (3, "3 is no text"),
    ],
)
def test_what_is_not_read_is_refused_with_its_place(wrong, message):
    with pytest.raises(sa.TraceError, match=message):
        sa.read_stablehlo(wrong)


SORT = """module {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "stablehlo.sort"(%x) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %1 = stablehlo.compare LT, %LEFT, %RIGHT, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}"""


def test_a_sort_is_read_by_what_its_comparison_does():
    x = jnp.asarray([3.0, 1.0, 2.0, 0.0])
    up = sa.read_stablehlo(SORT.replace("LEFT", "a").replace("RIGHT", "b"))
    equal(one_device(up, [x]), jnp.sort(x))
    with pytest.raises(sa.TraceError, match=r"text.mlir:3: stablehlo.sort downwards"):
        sa.read_stablehlo(SORT.replace("LEFT", "b").replace("RIGHT", "a"))


def test_a_kernel_of_another_library_is_refused_by_its_name():
    lowered = jax.jit(jnp.linalg.qr).lower(jnp.eye(4)).as_text()
    with pytest.raises(sa.TraceError, match=r"text.mlir:\d+: stablehlo.custom_call @lapack_sgeqrf"):
        sa.read_stablehlo(lowered)


def test_a_mesh_that_only_sites_name_is_the_one():
    """A site in a loop may name the only mesh, if no argument and no result has a sharding."""
    mesh = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)

    def looped(x):
        site = NamedSharding(mesh, PartitionSpec("x", "y"))
        return lax.fori_loop(0, 3, lambda i, c: lax.with_sharding_constraint(c @ c, site), x)

    traced = jax.jit(looped).trace(jax.ShapeDtypeStruct((8, 8), "float32"))
    exported = traced.lower(lowering_platforms=("tpu",)).as_text()
    plans = [sa.plan(traced), sa.plan(sa.read_stablehlo(exported))]
    assert {plan.mesh for plan in plans} == {sa.Mesh({"x": 2, "y": 4})}
    assert sent(plans[0]) == sent(plans[1])
    assert sum(sent(plans[1]).values())


SHARDY = """module {
  sdy.mesh @mesh = <["x"=2, "y"=4]IDS>
  func.func public @main(%x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, LAYOUT>})
      -> tensor<8x8xf32> {
    %0 = stablehlo.abs %x : tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}"""


@pytest.mark.parametrize(
    ("ids", "layout", "message"),
    [
        ("", '[{"y":(1)2}, {"y":(3)1}]', r"sub-axis|sub-axes"),
        ("", '[{"z"}, {}]', "unknown axis name"),
    ],
)
def test_shardings_that_no_layout_says_are_refused(ids, layout, message):
    with pytest.raises(sa.ShardalgError, match=message):
        sa.read_stablehlo(SHARDY.replace("IDS", ids).replace("LAYOUT", layout))


def test_shardings_of_hlo_give_the_mesh_that_they_share(tmp_path):
    """Their axes have no names; the border has the text's shardings."""
    layouts = (
        "{devices=[2,1,4]<=[8] last_tile_dim_replicate}",
        "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}",
    )
    arguments = ", ".join(
        f'%a{i}: tensor<8x8xf32> {{mhlo.sharding = "{said}"}}' for i, said in enumerate(layouts)
    )
    path = tmp_path / "product.mlir"
    path.write_text(
        f"""module {{
  func.func public @main({arguments}) -> (tensor<8x8xf32> {{mhlo.sharding = "{{replicated}}"}}) {{
    %0 = stablehlo.dot_general %a0, %a1, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }}
}}"""  # noqa: E501
    )
    plan = sa.plan(sa.read_stablehlo(path))
    assert plan.mesh == sa.Mesh({"d0": 2, "d1": 4})
    assert border(plan) == ["[d0, None]", "[None, d1]", "[None, None]"]
    assert [node.source for node in plan.graph.nodes] == ["product.mlir:3"]


def test_lines_and_scopes_are_those_of_the_function():
    name = "ffn_attempt2_grad"
    back, own = sa.plan(sa.read_stablehlo(text(name))), of_oracle(name, "paper")
    lines = [{(n.primitive, n.source) for n in p.graph.nodes} for p in (back, own)]
    assert {line for _, line in lines[0]} == {line for _, line in lines[1]}
