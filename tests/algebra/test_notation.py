"""HLO sharding text against JAX's own printer, round trips, and malformed text."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding
from jax.sharding import Mesh as JaxMesh
from jax.sharding import PartitionSpec as P

from shardalg.algebra.digits import Digit
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.notation import parse
from shardalg.algebra.sharding import Sharding, replicated
from shardalg.errors import NotationError, ShardingError

MESHES = [{"x": 2, "y": 4}, {"x": 2, "y": 2, "z": 2}, {"x": 8}, {"x": 1, "y": 8}, {"x": 4, "y": 1}]
ORDER = [0, 3, 1, 2, 7, 6, 5, 4]


def entries(names):
    return [(), *(p for n in (1, 2, 3) for p in itertools.permutations(names, n))]


def theirs(spec, mesh, rank):
    return str(NamedSharding(mesh, spec)._to_xla_hlo_sharding(rank))


@pytest.mark.parametrize("axes", MESHES, ids=repr)
def test_text_is_that_of_jax(axes):
    """JAX prints positions in the mesh, so its text is ours wherever ids are positions."""
    mesh = Mesh(axes)
    for first, second in itertools.product(entries(mesh.axis_names), repeat=2):
        if set(first) & set(second):
            continue
        spec = P(first or None, second or None)
        ours = Sharding.from_spec(spec, mesh, (16, 16))
        assert ours.to_hlo() == theirs(spec, mesh.to_jax(), 2)
        assert Sharding.from_hlo(ours.to_hlo(), (16, 16), mesh).key == ours.key


@pytest.mark.parametrize("spec", [P("x"), P(), P(("z", "x")), P(unreduced={"x", "y", "z"})])
def test_unreduced_text_is_that_of_jax(spec):
    mesh = Mesh({"x": 2, "y": 2, "z": 2})
    grid = mesh.to_jax()
    explicit = JaxMesh(grid.devices, grid.axis_names, axis_types=(AxisType.Explicit,) * 3)
    spec = P(*spec.partitions, unreduced=spec.unreduced or {"y"})
    ours = Sharding.from_spec(spec, mesh, (16, 16))
    assert ours.to_hlo() == theirs(spec, explicit, 2)
    assert Sharding.from_hlo(ours.to_hlo(), (16, 16), mesh).key == ours.key
    assert ours.to_spec() == P(*[*spec.partitions, None, None][:2], unreduced=spec.unreduced)


@st.composite
def shardings(draw):
    """Sub-axes, several axes on a dimension, manual and unreduced digits, permuted devices."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    count = math.prod(sizes)
    order = draw(st.none() | st.permutations(range(count)))
    mesh = Mesh(dict(zip("xyz", sizes, strict=False)), order)
    pieces = [piece for name in mesh.axis_names for piece in split(mesh.digit(name))]
    places = draw(st.lists(st.integers(0, 4), min_size=len(pieces), max_size=len(pieces)))
    pieces = list(zip(draw(st.permutations(pieces)), places, strict=True))
    rows = [tuple(d for d, at in pieces if at == place) for place in range(4)]
    return Sharding(mesh, (7, 16), tuple(rows[:2]), unreduced=rows[2], manual=rows[3])


def split(digit):
    """An axis of 4 as two sub-axes."""
    if digit.size != 4:
        return [digit]
    return [Digit(digit.stride * 2, 2), Digit(digit.stride, 2)]


@given(shardings())
def test_round_trip(sharding):
    """Text in device ids says where every block is, on any device order."""
    text = sharding.to_hlo()
    back = Sharding.from_hlo(text, sharding.shape, sharding.mesh)
    assert back.key == sharding.key
    if text in ("{manual}", "{unreduced}", "{replicated}"):
        return
    alone = Sharding.from_hlo(text, sharding.shape)
    for device in sharding.mesh.order:
        assert alone.shard_slices(device) == sharding.shard_slices(device)
    assert alone.to_hlo() == text


@given(shardings())
def test_v1_lists_read_as_v2(sharding):
    text = sharding.to_hlo()
    if "devices" not in text:
        return
    read = parse(text)
    ids = [0] * sharding.mesh.size
    for number, device in enumerate(_order(read)):
        ids[number] = device
    listed = f"{{devices=[{','.join(map(str, read.tiles))}]{','.join(map(str, ids))}"
    listed += f" last_tile_dims={{{', '.join(read.subgroups)}}}}}" if read.subgroups else "}"
    assert Sharding.from_hlo(listed, sharding.shape, sharding.mesh).key == sharding.key


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.data())
def test_iota_is_reshape_and_transpose(sizes, data):
    """Any permutation, canonical or not, against numpy's."""
    import numpy as np

    order = data.draw(st.permutations(range(len(sizes))))
    count = math.prod(sizes)
    text = f"{{devices=[{count}]<=[{','.join(map(str, sizes))}]T({','.join(map(str, order))})}}"
    ids = np.arange(count).reshape(sizes).transpose(order).flatten()
    sharding = Sharding.from_hlo(text, (count,))
    assert [sharding.shard_offset(int(device), 0) for device in ids] == list(range(count))


def _order(read):
    """The iota written out by its definition: reshape, transpose, flatten."""
    import numpy as np

    if read.order is not None:
        return read.order
    places = sorted(read.digits, reverse=True)
    grid = np.arange(math.prod(read.tiles)).reshape([d.size for d in places])
    return grid.transpose([places.index(d) for d in read.digits]).flatten().tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{devices=[2,2]0,1,2,3}", ((Digit(2, 2),), (Digit(1, 2),))),
        ("{devices=[2,2]0,2,1,3}", ((Digit(1, 2),), (Digit(2, 2),))),
        ("{devices=[2,2]<=[2,2]T(1,0)}", ((Digit(1, 2),), (Digit(2, 2),))),
        ("{devices=[2,1,2]<=[4] last_tile_dim_replicate}", ((Digit(2, 2),), ())),
        ("{devices=[1,1,4]<=[4] last_tile_dims={manual}}", ((), ())),
        ('{devices=[2,2]<=[4] metadata={op_name="a{b}"}}', ((Digit(2, 2),), (Digit(1, 2),))),
        ("{replicated}", ((), ())),
    ],
)
def test_reading(text, expected):
    assert Sharding.from_hlo(text, (4, 4)).canonical_dims == expected


def test_an_order_that_is_no_digits_becomes_the_mesh():
    text = "{devices=[2,2]0,1,3,2}"
    sharding = Sharding.from_hlo(text, (4, 4))
    assert sharding.mesh.device_ids == (0, 1, 3, 2)
    assert sharding.shard_offset(3, 1) == 0
    assert sharding.to_hlo() == text
    with pytest.raises(NotationError, match=r"no digits of Mesh\(x=4\).*device_ids=\[0, 1, 3, 2\]"):
        Sharding.from_hlo(text, (4, 4), Mesh({"x": 4}))
    named = Mesh({"x": 2, "y": 2}, [0, 1, 3, 2])
    assert Sharding.from_hlo(text, (4, 4), named).to_spec() == P("x", "y")


def test_devices_that_do_not_start_at_zero():
    assert Sharding.from_hlo("{devices=[2]6,7}", (4,)).shard_offset(7, 0) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{devices=[2,2]0,1,2}", "column 15 .*: 4 tiles on 3 devices"),
        ("{devices=[2,2]0,1,2,2}", r"column 15 .* \[0, 1, 2, 2\] are not all different"),
        ("{devices=[2,2]<=[8]}", "column 15 .* 4 tiles on 8 devices"),
        ("{devices=[2,2]<=[2,2]T(1,1)}", r"column 24 .*\[1, 1\] is no permutation of 2"),
        ("{devices=[2,x]<=[4]}", "column 13 .*expected an extent of the tile array, found 'x'"),
        ("{devices=[2,0]<=[4]}", r"column 15 .*\[2, 0\] must be at least 1"),
        ("{devices=2}", r"column 9 .*expected '=\[', found '='"),
        ("{devices=[2]<=[2]", "column 18 .*expected '}', found 'the end'"),
        ("{devices=[2]<=[2]} x", "column 19 .*the sharding ends here"),
        ("{devices=[2,1]<=[2] last_tile_dims={odd}}", "column 40 .*found 'odd'"),
        ("{maximal device=0}", "column 2 .*maximal sharding puts the whole value on one device"),
        ("{{replicated}, {replicated}}", "column 2 .*tuple sharding"),
        ("{unknown}", "column 2 .*unknown sharding"),
        ("{mesh['x'=2]}", "column 2 .*named sharding carries its own mesh"),
        ("{sharded}", "expected 'devices=', 'replicated' or 'manual', found 'sharded'"),
        ("replicated", "column 1 .*expected '{', found 'r'"),
        ("", "column 1 .*found 'the end'"),
    ],
)
def test_malformed_text(text, message):
    with pytest.raises(NotationError, match=message) as caught:
        Sharding.from_hlo(text, (4, 4))
    column = int(str(caught.value).split()[1])
    assert str(caught.value).splitlines()[2].index("^") == column + 1


def test_text_that_does_not_fit():
    mesh = Mesh({"x": 4})
    with pytest.raises(NotationError, match=r"tiles 2 dimensions, and the shape \(8,\) has 1"):
        Sharding.from_hlo("{devices=[2,2]<=[4]}", (8,), mesh)
    with pytest.raises(NotationError, match=r"is over 8 devices, .* not those of Mesh\(x=4\)"):
        Sharding.from_hlo("{devices=[8]<=[8]}", (8,), mesh)
    with pytest.raises(NotationError, match="does not say how many devices"):
        Sharding.from_hlo("{manual}", (8,))
    with pytest.raises(ShardingError, match="have no names for a PartitionSpec"):
        Sharding.from_hlo("{devices=[8]<=[8]}", (8,)).to_spec()


def test_digits_of_two_meshes_have_no_text():
    crossing = Sharding(Mesh({"x": 6}), (6, 6), ((Digit(1, 2),), (Digit(1, 3),)))
    with pytest.raises(ShardingError, match="different meshes"):
        crossing.to_hlo()


def test_one_device():
    assert replicated((2,), Mesh({})).to_hlo() == "{replicated}"
