"""Gathers, and reduce-scatters, of several dimensions are one collective over all their axes."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.costs.hardware import load
from shardalg.costs.topology import Topology
from shardalg.errors import ProgramError, ShardalgError
from shardalg.lower.emit.collectives import _reduce_scatters as _emit_scatters
from shardalg.planner.reshard.links import links_on
from shardalg.planner.reshard.paths import reshard_path
from shardalg.spmd import instructions as p
from shardalg.spmd.host.collectives import _reduce_scatters, combine_blocks
from shardalg.spmd.host.simulate import simulate
from shardalg.spmd.instruction import Instruction, infer_types
from shardalg.verify.report import Report
from shardalg.verify.verify import Verifier

MESHES = ({"x": 2, "y": 2}, {"x": 2, "y": 4}, {"x": 2, "y": 2, "z": 2})
GATHERED = (
    (P("x", "y"), P()),
    (P("y", None, "x"), P()),
    (P("x", "y", "z"), P()),
    (P(("x", "z"), "y"), P("x")),
    (P("x", ("y", "z")), P(None, "y")),
)


def sharded(spec, mesh, shape, unreduced=""):
    whole = sa.Sharding.from_spec(spec, mesh, shape)
    return replace(whole, unreduced=mesh.digits(unreduced))


@pytest.mark.sampled(13)
@pytest.mark.parametrize("pair", GATHERED, ids=str)
@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_one_gather_of_several_dimensions_is_right(sizes, pair):
    mesh, shape = sa.Mesh(sizes), (8, 8, 8)
    if "z" not in sizes and "z" in str(pair):
        pytest.skip("the mesh has no axis z")
    path = sa.reshard(*(sharded(spec, mesh, shape) for spec in pair))
    (step,) = path.steps
    assert type(step.attributes) is p.AllGathers
    assert path.wire_bytes == path.least_wire_bytes
    assert path.verify().ok
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(path.simulate(x), x)
    (ran,) = path.lower()(x)
    np.testing.assert_array_equal(ran, x)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sizes", MESHES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_one_reduce_scatter_of_two_dimensions_is_right(sizes, dtype):
    """A product whose contracting dimension has both axes, and its result, too."""
    mesh = sa.Mesh(sizes)
    shapes = (8, 1024), (1024, 8)
    a, b = (
        jax.random.randint(jax.random.key(k), shape, -1, 2).astype(dtype)
        for k, shape in enumerate(shapes)
    )
    specs = P(None, ("x", "y")), P(("x", "y"))
    plan = sa.plan(
        lambda a, b: a @ b, a, b, mesh=mesh, in_shardings=specs, out_shardings=P("x", "y")
    )
    if "z" not in sizes:
        assert plan.collectives()["mesh_axes"].tolist() == ["x,y"]
    kinds = [type(step.attributes) for step in plan.program.block.instructions]
    assert kinds.count(p.ReduceScatters) == ("z" not in sizes)
    assert plan.verify().ok
    expected = np.asarray(a @ b, np.float32)
    np.testing.assert_array_equal(np.asarray(plan.lower()(a, b), np.float32), expected)
    simulated = simulate(plan.program, plan.graph, np.asarray(a), np.asarray(b))[0]
    np.testing.assert_array_equal(np.asarray(simulated, np.float32), expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("combine", "dtype"),
    [("sum", "float32"), ("max", "float32"), ("pick", "float32"), ("sum", "bool"), ("or", "uint8"),
     ("sum", "complex64"), ("logsumexp", "float32"), ("sum", "bfloat16")],
)  # fmt: skip
def test_every_combination_runs_as_it_is_simulated(combine, dtype):
    """Two dimensions scattered, in both orders of the pairs."""
    mesh = sa.Mesh({"x": 2, "y": 4})
    x, y = mesh.digits("x"), mesh.digits("y")
    values = np.random.default_rng(0).integers(0, 5, size=(8, 8)).astype(jnp.dtype(dtype))
    # Of a value with one owner, all other devices have zero bits.
    stack = [np.roll(values, k) * (combine != "pick" or k == 3) for k in range(8)]
    stack = [block.astype(values.dtype) for block in stack]
    whole = combine_blocks(stack, combine)
    # The order of the members changes the last bits of this combination alone.
    rtol = 1e-6 if combine == "logsumexp" else 0
    for along in (((0, x), (1, y)), ((1, y), (0, x))):
        attributes = p.ReduceScatters(along, combine)
        for k, found in enumerate(_reduce_scatters(attributes, stack)):
            row, column = 4 * (k // 4), 2 * (k % 4)
            block = whole[row : row + 4, column : column + 2]
            np.testing.assert_allclose(
                found.astype(complex), block.astype(complex), rtol=rtol, atol=0
            )
        ran = np.asarray(lowered(attributes, stack))
        np.testing.assert_allclose(ran.astype(complex), whole.astype(complex), rtol=rtol, atol=0)


def lowered(attributes, stack):
    """Return the global array that the lowered instruction gives for a block per device."""
    mesh = sa.Mesh({"x": 2, "y": 4}).to_jax(jax.devices()[:8])
    emitter = SimpleNamespace(axes=Axes(), tiled=False)
    instruction = Instruction(attributes, (0,), (1,), None)

    def local(x):
        return _emit_scatters(emitter, instruction, x[0])[0]

    spec = P(("x", "y"))
    return jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=P("x", "y"), check_vma=False)(
        jnp.stack([jnp.asarray(block) for block in stack])
    )


class Axes:
    """The names of the axes of a 2 x 4 mesh, as an emitter has them."""

    def names(self, digits):
        return tuple({4: "x", 1: "y"}[digit.stride] for digit in digits)


def test_bytes_equal_those_of_single_gathers_and_seconds_are_those_of_all_links():
    """Scaling book (jax-ml/scaling-book), sharding.md, question "AllGather latency", part 2."""
    mesh = sa.Mesh({"X": 4, "Y": 4, "Z": 4})
    chip = replace(load("v4").on("datasheet"), link_bytes_per_s=4.5e10, latency_s=1e-6)
    x = jax.ShapeDtypeStruct((1024, 4096), "bfloat16")
    ends = {"in_shardings": (P("X", "Y"),), "out_shardings": P()}

    def cost(**options):
        plan = sa.plan(lambda x: x, x, mesh=mesh, options=sa.Options(**options), **ends)
        found = plan.cost(Topology(chip, (4, 4, 4)))
        return found.communication_s, found.wire_bytes, len(plan.collectives())

    joined, single = cost(), cost(switches=sa.Switches(join_gathers=False))
    total = 2 * 1024 * 4096
    assert joined == (pytest.approx(total * 15 / 16 / (2 * 9e10) + 4e-6), total * 15 // 16, 1)
    assert single[1:] == (total * 15 // 16, 2)
    assert single[0] == pytest.approx(total * (3 / 16 + 3 / 4) / 9e10 + 4e-6)


@pytest.mark.parametrize("policy", ["gspmd", "shardy", "jit"])
def test_policies_that_follow_xla_gather_dimension_by_dimension(policy):
    mesh, x = sa.Mesh({"x": 2, "y": 2}), jax.ShapeDtypeStruct((8, 8), "float32")
    ends = {"in_shardings": (P("x", "y"),), "out_shardings": P()}
    plan = sa.plan(lambda x: x * 2, x, mesh=mesh, options=sa.Options(policy=policy), **ends)
    assert plan.collectives()["mesh_axes"].tolist() == ["x", "y"]
    compared = plan.compare_xla()
    assert compared.wire_bytes == compared.xla_wire_bytes
    ours = sa.plan(lambda x: x * 2, x, mesh=mesh, **ends).compare_xla()
    assert ours.wire_bytes == ours.xla_wire_bytes


def test_a_ring_of_a_product_needs_a_gather_of_its_own():
    mesh, x = sa.Mesh({"x": 2, "y": 2}), jax.ShapeDtypeStruct((8, 8), "float32")
    options = sa.Options(switches=sa.Switches(collective_matmul=True))
    ends = {"in_shardings": (P("x", "y"),), "out_shardings": P()}
    plan = sa.plan(lambda x: x, x, mesh=mesh, options=options, **ends)
    assert plan.collectives()["mesh_axes"].tolist() == ["x", "y"]


def test_parts_of_one_axis_are_gathered_one_after_the_other():
    """Two lines of two take one hop each, a line of four takes three."""
    mesh = sa.Mesh({"x": 4, "y": 2})
    source, target = (sharded(spec, mesh, (8, 8)) for spec in (P("y", "x"), P(None, "y")))
    path = reshard_path(source, target)
    gathers = [step for step in path.steps if step.attributes.sent_as == "all_gather"]
    assert [type(step.attributes) for step in gathers] == [p.AllGather, p.AllGather]


def test_uneven_dimensions_are_gathered_one_after_the_other():
    """The padding of one dimension is cut before the next is sent."""
    mesh = sa.Mesh({"x": 2, "y": 2})
    path = sa.reshard(*(sharded(spec, mesh, (7, 8)) for spec in (P("x", "y"), P())))
    assert sum(step.attributes.__class__ is p.AllGather for step in path.steps) == 2
    assert path.verify().ok


@pytest.mark.parametrize("chips", ["h100:16", "v5e:4x4*2", "v3:4x4"])
def test_on_unequal_links_one_collective_takes_no_longer(chips):
    topology = Topology.parse(chips)
    mesh = sa.Mesh({"x": topology.devices // 8, "y": 8})
    links, shape = links_on(mesh, topology), (1 << 12, 1 << 12)
    assert links is not None
    ends = tuple(sharded(spec, mesh, shape) for spec in (P("x", "y"), P()))
    together, apart = (reshard_path(*ends, links, True, joined) for joined in (True, False))
    assert together.seconds(ends[0], links) <= apart.seconds(ends[0], links)
    assert together.wire_elements == apart.wire_elements


def test_named_sizes_have_the_bytes_and_seconds_of_the_joint_gather():
    (rows,), mesh = sa.dims("R", hint=(64,)), sa.Mesh({"x": 2, "y": 4})
    x = jax.ShapeDtypeStruct((rows, 32), "float32")
    ends = {"in_shardings": (P("x", "y"),), "out_shardings": P()}
    plan = sa.plan(lambda x: x + 1, x, mesh=mesh, **ends)
    named = plan.cost("v5e:2x4")
    for count in (64, 128):
        there = plan.at(R=count).cost("v5e:2x4")
        numbers = sa.plan(lambda x: x + 1, jax.ShapeDtypeStruct((count, 32), "float32"),
                          mesh=mesh, **ends).cost("v5e:2x4")  # fmt: skip
        assert there.communication_s == pytest.approx(numbers.communication_s)
        assert there.wire_bytes == numbers.wire_bytes
    assert named.wire_bytes is not None


def test_all_to_alls_of_named_sizes_have_formulas():
    (size,), mesh = sa.dims("R", hint=(8,)), sa.Mesh({"x": 2, "y": 2})
    x = jax.ShapeDtypeStruct((size, 8, 8, 8), "float32")
    ends = {"in_shardings": (P("x", None, "y"),), "out_shardings": P(None, "x", None, "y")}
    plan = sa.plan(lambda x: x + 1, x, mesh=mesh, **ends)
    assert plan.at(R=16).cost("v5e:2x2").wire_bytes == 2 * plan.at(R=8).cost("v5e:2x2").wire_bytes


def test_a_gather_in_a_program_keeps_its_gradient():
    """Weights sharded in both dimensions, gathered for a product, and their gradient scattered."""
    mesh = sa.Mesh({"x": 2, "y": 2})

    def loss(w, a):
        return jnp.sum(jnp.tanh(a @ w) ** 2)

    w, a = (
        np.random.default_rng(rows).normal(size=(rows, 8)).astype(np.float32) for rows in (8, 1024)
    )
    plan = sa.plan(
        jax.value_and_grad(loss), w, a, mesh=mesh, in_shardings=(P("x", "y"), P(("x", "y"))),
        out_shardings=(P(), P("x", "y")),
    )  # fmt: skip
    kinds = {type(step.attributes) for step in plan.program.block.instructions}
    assert p.AllGathers in kinds
    assert p.ReduceScatters in kinds
    assert plan.verify().ok
    value, gradient = plan.lower()(w, a)
    expected = jax.value_and_grad(loss)(w, a)
    np.testing.assert_allclose(value, expected[0], rtol=1e-5)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-4, atol=1e-5)


def test_pairs_that_share_a_dimension_or_digits_are_refused():
    mesh = sa.Mesh({"x": 2, "y": 2})
    x, y = mesh.digits("x"), mesh.digits("y")
    for kind in (p.AllGathers, p.ReduceScatters):
        for along in (((0, x), (0, y)), ((0, x), (1, x))):
            with pytest.raises(ProgramError, match="share a dimension or digits"):
                infer_types(kind(along), [((4, 4), "float32")])
    with pytest.raises(ProgramError, match="cuts dimension 1 of size 3 into 2 blocks"):
        infer_types(p.ReduceScatters(((0, x), (1, y))), [((4, 3), "float32")])


def judged(path, attributes):
    """Return True if `verify` accepts the path with another instruction in place of its own."""
    program, graph = path._made
    (step,) = program.block.instructions
    block = replace(program.block, instructions=(replace(step, attributes=attributes),))
    try:
        verifier = Verifier(graph, replace(program, block=block))
        return Report(tuple(verifier.judge(path.source.mesh))).ok
    except ShardalgError:
        return False


@pytest.mark.parametrize("unreduced", ["", "xy"])
def test_verify_refuses_other_digits_or_dimensions(unreduced):
    mesh, shape = sa.Mesh({"x": 2, "y": 2}), (4, 4)
    specs = (P(), P("x", "y")) if unreduced else (P("x", "y"), P())
    path = sa.reshard(*(sharded(spec, mesh, shape, u)
                        for spec, u in zip(specs, (unreduced, ""), strict=True)))  # fmt: skip
    (step,) = path.steps
    own = step.attributes
    (a, b), (x, y) = own.along, (mesh.digits(name) for name in "xy")
    for along in ((a,), (b,), ((a[0], b[1]), (b[0], a[1])), (a, (b[0], a[1])), (a, (a[0], b[1])),
                  ((a[0], x + y),), (a, (b[0], b[1] + a[1]))):  # fmt: skip
        assert not judged(path, replace(own, along=along)), along
    for order in itertools.permutations((a, b)):
        assert judged(path, replace(own, along=order))
    if unreduced:
        assert not judged(path, replace(own, combine="max"))
