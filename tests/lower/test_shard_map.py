"""Lowered hand-made programs equal their expected results, on any backend's emission."""

import os
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardalg.algebra.mesh import Mesh
from shardalg.errors import DeviceError, LoweringError
from shardalg.lower import lower
from shardalg.lower.emit import Emitter, body
from tests.spmd.handmade import CASES, Builder, array, dot, matmul_all_reduce, matmul_uneven


def close(result, want):
    assert result.dtype == np.asarray(want).dtype
    a, b = np.asarray(result).astype(np.float64), np.asarray(want).astype(np.float64)
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("case", CASES)
def test_lowered_equals_expected(case):
    program, graph, arguments, expected = CASES[case]()
    results = lower(program, graph)(*arguments)
    assert len(results) == len(expected)
    for result, want in zip(results, expected, strict=True):
        close(result, want)


@pytest.mark.parametrize("case", ["gather_then_scatter", "swaps_max", "swaps_sum", "sub_axis"])
def test_tiled_emission_of_other_backends(case):
    program, graph, arguments, expected = CASES[case]()
    lowered = lower(program, graph)
    function = jax.shard_map(
        body(Emitter(program, graph, lowered.run, tiled=True)),
        mesh=lowered.run.mesh,
        in_specs=tuple(b.inner.spec for b in lowered.arguments)
        if lowered.run is lowered.user
        else tuple(lowered.run.spec(b.sharding) for b in lowered.arguments),
        out_specs=tuple(lowered.run.spec(b.sharding) for b in lowered.results),
        check_vma=False,
    )
    for result, want in zip(jax.jit(function)(*arguments), expected, strict=True):
        close(result, want)


def test_emission_on_cpu_gathers_on_a_leading_dimension():
    program, graph, _, _ = CASES["gather_then_scatter"]()
    text = lower(program, graph).stage.as_text()
    dims = {
        line.split("all_gather_dim = ")[1][0]
        for line in text.splitlines()
        if "all_gather_dim" in line
    }
    assert dims == {"0"}


def test_permuted_devices_hold_the_blocks_of_their_positions():
    ids = [3, 1, 2, 0, 7, 6, 5, 4]
    b = Builder(Mesh({"x": 2, "y": 4}, device_ids=ids))
    x, w = b.argument((8, 16), ("x", "y")), b.argument((16, 6), ("y", ""))
    partial = b.apply(dot, [x, w], b.sharding((8, 6), ("x", ""), "y"))
    from shardalg.spmd import instructions as p

    y = b.add(p.ReduceScatter(0, b.digits("y")), [partial], b.sharding((8, 6), ("xy", "")))
    program, graph = b.program(y)
    args = array(8, 16), array(16, 6, seed=1)
    (result,) = lower(program, graph)(*args)
    close(result, args[0] @ args[1])
    order = {shard.device.id: shard.index[0].start or 0 for shard in result.addressable_shards}
    assert [order[i] for i in ids] == list(range(8))


def test_uneven_results_leave_on_their_longest_even_prefix():
    program, graph, arguments, (expected,) = matmul_uneven()
    lowered = lower(program, graph)
    (result,) = lowered(*arguments)
    assert result.shape == (7, 6)
    assert result.sharding.is_fully_replicated
    (padded,) = lowered.padded(*arguments)
    assert padded.shape == (8, 6)
    assert padded.sharding.spec[0] == "x"
    close(lowered.strip([padded])[0], expected)


def test_padded_results_are_arguments_again():
    b = Builder({"x": 4})
    x = b.argument((10,), ("x",))
    program, graph = b.program(b.apply(jnp.exp, [x], b.sharding((10,), ("x",))))
    lowered = lower(program, graph)
    (state,) = lowered.padded(array(10))
    assert lowered.place(state)[0] is state
    close(lowered(state)[0], np.exp(np.exp(array(10))))
    close(lowered(jnp.asarray(array(10)))[0], np.exp(array(10)))


def test_placed_arguments_are_taken_as_they_are():
    program, graph, arguments, _ = matmul_all_reduce()
    lowered = lower(program, graph)
    placed = lowered.place(*arguments)
    assert all(a is b for a, b in zip(lowered.place(*placed), placed, strict=True))
    with jax.set_mesh(lowered.user.mesh):
        close(lowered(*arguments)[0], lowered(*placed)[0])


def test_inside_and_outside_another_mesh():
    program, graph, arguments, (expected, _) = CASES["sub_axis"]()
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(mesh):
        inside = lower(program, graph, mesh=mesh)
        results = inside(*arguments)
    close(results[0], expected)
    assert inside.run.all_names == ("x_1_2", "x_2_4")
    assert inside.arguments[0].inner.mesh == mesh
    assert results[0].sharding.mesh == inside.run.mesh  # x:(1)2 has no name on the user's mesh
    assert lower(program, graph)(*arguments)[1].shape == expected.shape


def test_results_are_named_on_the_users_mesh():
    program, graph, arguments, _ = matmul_all_reduce()
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    (result,) = lower(program, graph, mesh=mesh)(*arguments)
    assert result.sharding.mesh == mesh
    assert result.sharding.is_equivalent_to(NamedSharding(mesh, P("x")), 2)


def test_donated_arguments_are_consumed_where_a_result_fits():
    b = Builder({"x": 4})
    x, y = b.argument((8,), ("x",)), b.argument((4, 4), ("x", ""))
    z = b.apply(jax.lax.add, [x, x], b.sharding((8,), ("x",)))
    w = b.apply(lambda a: jax.lax.reduce_sum(a, (1,)), [y], b.sharding((4,), ("x",)))
    program, graph = b.program(z, w)
    lowered = lower(program, graph, donate=(0, 1))
    assert lowered.donated == (0,)
    placed = lowered.place(array(8), array(4, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lowered(*placed)
    assert placed[0].is_deleted()
    assert not placed[1].is_deleted()
    assert lowered.compiled.memory_analysis().alias_size_in_bytes == 8


def test_axes_of_size_one_and_empty_dimensions():
    b = Builder({"x": 1, "y": 2})
    from shardalg.spmd import instructions as p

    x = b.argument((0, 4), ("x", "y"))
    g = b.add(p.AllGather(1, b.digits("xy")), [x], b.sharding((0, 4), ("", "")))
    r = b.add(p.AllReduce(b.digits("x")), [g], b.sharding((0, 4), ("", "")))
    program, graph = b.program(r)
    assert lower(program, graph)(np.zeros((0, 4), np.float32))[0].shape == (0, 4)


def test_bad_arguments():
    program, graph, (x, w), _ = matmul_all_reduce()
    lowered = lower(program, graph)
    with pytest.raises(LoweringError, match="takes 2 arrays, got 1"):
        lowered(x)
    with pytest.raises(LoweringError, match=r"argument0: got int32.*planned for float32\[8, 16\]"):
        lowered(x.astype(np.int32), w)
    with pytest.raises(LoweringError, match=r"argument1: got float32\[6,16\], planned for"):
        lowered(x, w.T)


def test_bad_meshes():
    program, graph, _, _ = matmul_all_reduce()
    other = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    with pytest.raises(LoweringError, match=r"planned on Mesh\(x=2, y=4\), the JAX mesh has"):
        lower(program, graph, mesh=other)
    with pytest.raises(DeviceError):
        lower(program, graph, jax.devices()[:3])
    with pytest.raises(LoweringError, match="loaded from a file"):
        lower(program, replace(graph, bindings=()))


def test_digits_that_do_not_nest():
    from shardalg.algebra.digits import Digit
    from shardalg.algebra.sharding import Sharding

    b = Builder({"x": 6})
    b.argument((6,), ("",))
    two, three = Digit(3, 2), Digit(2, 3)
    first = b.local(Sharding(b.mesh, (6,), ((two,),)))
    second = b.local(Sharding(b.mesh, (6,), ((three,),)))
    b.arguments = [first, second]
    program, graph = b.program(first, second)
    with pytest.raises(LoweringError, match="both at 2 and at 3"):
        lower(program, graph)


def test_the_host_has_the_devices():
    assert "host_platform_device_count" in os.environ["XLA_FLAGS"]
    assert len(jax.devices()) >= 8
