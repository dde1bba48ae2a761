"""Shardings: offsets against JAX's own, expressions against numbers, and bad input."""

import itertools
from dataclasses import replace

import jax
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardalg.algebra.derived_layouts import mesh_split
from shardalg.algebra.digits import Digit
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.offset import partition_expr
from shardalg.algebra.sharding import Sharding, replicated
from shardalg.errors import MeshError, NotationError, ShardingError

MESHES = [
    Mesh({"x": 2, "y": 4}),
    Mesh({"x": 2, "y": 2, "z": 2}),
    Mesh({"x": 1, "y": 8}),
    Mesh({"x": 2, "y": 4}, device_ids=[0, 3, 1, 2, 7, 6, 5, 4]),
]


def specs(mesh):
    """Every PartitionSpec of two dimensions."""
    names = mesh.axis_names
    entries = [(), *(p for n in (1, 2, 3) for p in itertools.permutations(names, n))]
    for first, second in itertools.product(entries, repeat=2):
        if not set(first) & set(second):
            yield P(first or None, second or None)


@pytest.mark.parametrize("mesh", MESHES, ids=repr)
def test_offsets_are_those_of_jax(mesh):
    theirs = mesh.to_jax()
    for spec in specs(mesh):
        ours = Sharding.from_spec(spec, mesh, (16, 24))
        indices = NamedSharding(theirs, spec).devices_indices_map((16, 24))
        for device, index in indices.items():
            full = tuple(slice(*s.indices(n)[:2]) for s, n in zip(index, (16, 24), strict=True))
            assert ours.shard_slices(device.id) == full, (spec, device)
            for dim in range(2):
                assert ours.shard_offset(device.id, dim) == full[dim].start


axis_names = st.sampled_from(["x", "y", "z"])


@st.composite
def shardings(draw):
    """Draw a sharding of at most three dimensions, often uneven, on a mesh of three axes."""
    mesh = Mesh({name: draw(st.integers(1, 4)) for name in "xyz"})
    shape = tuple(draw(st.lists(st.integers(0, 13), min_size=1, max_size=3)))
    names = draw(st.permutations("xyz"))
    dims = [[] for _ in shape]
    for name in names[: draw(st.integers(0, 3))]:
        dims[draw(st.integers(0, len(shape) - 1))].append(name)
    return Sharding.from_axes([tuple(d) for d in dims], mesh, shape)


@given(shardings())
def test_blocks_cover_the_tensor(sharding):
    """Each element of a dimension is in the block of exactly one partition id."""
    for dim, (size, n) in enumerate(zip(sharding.shape, sharding.parts, strict=True)):
        held = {}
        for device in sharding.mesh.order:
            start = sharding.shard_offset(device, dim)
            block = range(start, start + sharding.valid_size(device, dim))
            assert held.setdefault(sharding.partition_id(device, dim), block) == block
        assert sorted(i for block in held.values() for i in block) == list(range(size))
        assert sharding.shard_shape[dim] * n >= size
    assert sharding.is_even == all(
        s * n == d
        for s, n, d in zip(sharding.shard_shape, sharding.parts, sharding.shape, strict=True)
    )


@given(shardings(), st.data())
def test_expressions_are_the_numbers(sharding, data):
    """Expressions equal numbers for partition ids, axis coordinates and positions."""
    dim = data.draw(st.integers(0, len(sharding.shape) - 1))
    device = data.draw(st.integers(0, sharding.mesh.size - 1))
    mesh = sharding.mesh
    values = {f"c_{name}": mesh.digit(name).at(device) for name in mesh.axis_names}
    values |= {"p": sharding.partition_id(device, dim), "d": device}
    block = sharding.shard_shape[dim]
    valid = sharding.valid_size(device, dim)
    numbers = {"shard_offset": values["p"] * block, "valid_size": valid, "padding": block - valid}
    for by in ("partition_id", "coordinates", "position"):
        for name, number in numbers.items():
            expr = getattr(sharding, f"{name}_expr")(dim, by=by)
            point = {symbol: values[symbol.name] for symbol in expr.free_symbols}
            assert expr.subs(point) == number, (name, by, expr)


def test_expressions_print_as_in_the_paper():
    sharding = mesh_split((64, 10), Mesh({"x": 4, "y": 4}), [0, 1])
    assert str(sharding.shard_offset_expr(0)) == "16*p"
    assert str(sharding.shard_offset_expr(0, by="position")) == "16*(Mod(floor(d/4), 4))"
    assert sharding.valid_size_expr(0) == 16
    assert sharding.padding_expr(0) == 0
    p = sympy.Symbol("p", integer=True, nonnegative=True)
    assert sharding.valid_size_expr(1).subs(p, 3) == 1
    with pytest.raises(ShardingError, match="by='axes' is not one of"):
        partition_expr((Digit(1, 2),), sharding.mesh, by="axes")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda m: Sharding.from_spec(P("x", None, "z"), m, (4, 4, 4)),
            MeshError,
            r"\['x', None, 'z'\] of shape \(4, 4, 4\) .* names 'z' \(on dimension 2\)"
            r".* Its axes are \['x', 'y'\]",
        ),
        (
            lambda m: Sharding.from_axes(["x", None, ("y", "x")], m, (4, 4, 4)),
            ShardingError,
            "used twice in the spec .*'x' on dimension 0 and on dimension 2",
        ),
        (
            lambda m: Sharding.from_spec(P("x", "y", None), m, (4, 4)),
            ShardingError,
            r"\['x', 'y', None\] is longer than the shape \(4, 4\): it has 3 entries for 2",
        ),
        (lambda m: mesh_split((4, 4), m, [0]), ShardingError, "1 entries for the 2 dimensions"),
        (lambda m: mesh_split((4, 4), m, [0, 0]), ShardingError, "used twice"),
        (lambda m: mesh_split((4, 4), m, [0, 2]), MeshError, "axis number 2 is not an axis"),
        (lambda m: mesh_split((4,), m, [0], (1,)), ShardingError, r"unspecified_dims \(1,\)"),
        (lambda m: Sharding(m, (4,), ()), ShardingError, "needs 1 dimensions, got 0"),
        (lambda m: replicated((4,), m).shard_offset(0, 1), ShardingError, "dimension 1 is not"),
        (lambda m: replicated((4,), m).shard_offset(8, 0), MeshError, "device 8 is not on"),
        (lambda m: Sharding.from_spec(P(3), m, (4,)), NotationError, "entry 3 of"),
        (lambda m: Sharding.from_spec({"x"}, m, (4,)), NotationError, "expected a PartitionSpec"),
    ],
)
def test_bad_shardings(make, error, message):
    with pytest.raises(error, match=message):
        make(Mesh({"x": 2, "y": 4}))


def test_overlapping_digits_are_all_named():
    mesh = Mesh({"x": 4, "y": 2})
    dims = ((Digit(2, 4),), (Digit(2, 2),), (Digit(1, 2),))
    with pytest.raises(ShardingError) as caught:
        Sharding(mesh, (8, 8, 8), dims, unreduced=(Digit(1, 2),))
    text = str(caught.value)
    assert "x on dimension 0 meets x:(2)2 on dimension 1" in text
    assert "y on dimension 2 meets y on the unreduced digits" in text
    assert text.count("meets") == 2


def test_key_is_the_layout_and_equality_is_all():
    mesh, other = Mesh({"x": 2, "y": 4}), Mesh({"a": 8})
    joined = Sharding.from_axes([("x", "y")], mesh, (16,))
    alone = Sharding.from_axes(["a"], other, (16,))
    assert joined.key == alone.key
    assert joined != alone
    opened = Sharding.from_axes([("x", "y", "?")], mesh, (16,))
    assert opened.key == joined.key
    assert opened != joined
    assert opened.text() == "[(x, y, ?)]"
    assert Sharding.from_axes([("y", "x")], mesh, (16,)).key != joined.key
    partial = [Sharding.from_axes([None], mesh, (16,), unreduced=u) for u in ("xy", "yx")]
    assert partial[0].key == partial[1].key != joined.key


@pytest.mark.parametrize("shape", [(), (0,), (1, 5)])
def test_small_tensors_and_meshes(shape):
    """Rank 0, sizes 0 and 1, one device, axes of size 1."""
    for mesh in (Mesh({}), Mesh({"x": 1}), Mesh({"x": 2, "y": 1})):
        names = list(mesh.axis_names)[: len(shape)]
        sharding = Sharding.from_axes(names, mesh, shape)
        assert len(sharding.shard_shape) == len(shape)
        for device in range(mesh.size):
            held = sharding.shard_slices(device)
            assert all(0 <= s.start <= s.stop <= n for s, n in zip(held, shape, strict=True))


def test_a_value_that_jax_placed_lies_where_we_say():
    mesh = Mesh({"x": 2, "y": 4}, device_ids=[0, 3, 1, 2, 7, 6, 5, 4])
    sharding = Sharding.from_axes([("y", "x")], mesh, (16,))
    placed = jax.device_put(jax.numpy.arange(16), NamedSharding(mesh.to_jax(), sharding.to_spec()))
    for shard in placed.addressable_shards:
        assert int(shard.data[0]) == sharding.shard_offset(shard.device.id, 0)


@pytest.mark.parametrize(
    ("priorities", "message"),
    [
        ((1,), r"priorities \(1,\) of shape \(8, 8\) must be one integer"),
        ((1, -1), "at least 0 per dimension"),
        ((0, 1), "dimension 1 has priority 1, but it has no axes and is not open"),
    ],
)
def test_wrong_priorities(priorities, message):
    mesh = Mesh({"x": 2})
    with pytest.raises(ShardingError, match=message):
        Sharding(mesh, (8, 8), (mesh.digits("x"), ()), priorities=priorities)


def test_priorities_are_part_of_a_sharding_and_not_of_its_layout():
    plain = Sharding.from_axes(["x", "?"], Mesh({"x": 2}), (8, 8))
    first, zero = (replace(plain, priorities=n) for n in ((0, 1), (0, 0)))
    assert zero == plain
    assert hash(zero) == hash(plain)
    assert first != plain
    assert first.key == plain.key
    assert first.text() == "[x, (?)p1]"
