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
from shardalg.algebra.sharding import Sharding, maximal, replicated
from shardalg.errors import MeshError, NotationError, ShardingError
from shardalg.merge.compatible import merge

MESHES = [{"x": 2, "y": 4}, {"x": 2, "y": 2, "z": 2}, {"x": 8}, {"x": 1, "y": 8}, {"x": 4, "y": 1}]


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
    """Return an axis of 4 as two sub-axes."""
    if digit.size != 4:
        return [digit]
    return [Digit(digit.stride * 2, 2), Digit(digit.stride, 2)]


@given(shardings())
def test_round_trip(sharding):
    """Text in device ids says where every block is, on any device order."""
    text = sharding.to_hlo()
    for version in (1, 2):
        back = Sharding.from_hlo(sharding.to_hlo(version), sharding.shape, sharding.mesh)
        assert back.key == sharding.key
    if text in ("{manual}", "{unreduced}", "{replicated}"):
        return
    alone = Sharding.from_hlo(text, sharding.shape)
    for device in sharding.mesh.order:
        assert alone.shard_slices(device) == sharding.shard_slices(device)
    again = alone.to_hlo()
    assert Sharding.from_hlo(again, sharding.shape) == alone
    assert again == text or "replicate" in text  # the order of equal copies is not kept


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


MALFORMED = [
    ("{devices=[2,2]0,1,2}", 15, "4 tiles on 3 devices"),
    ("{devices=[2,2]0,1,2,2}", 15, r"the devices \[2\] occur more than once"),
    ("{devices=[2,2]<=[8]}", 15, "4 tiles on 8 devices"),
    ("{devices=[2,2]<=[2,2]T(1,1)}", 24, r"\[1, 1\] is no permutation of 2"),
    ("{devices=[2,x]<=[4]}", 13, "expected an extent of the tile array, found 'x'"),
    ("{devices=[2,0]<=[4]}", 11, r"\[2, 0\] must be at least 1"),
    ("{devices=[2097152]<=[2097152]}", 11, "make at most 1048576 tiles"),
    ("{devices=[12345678901]<=[2]}", 11, "has 11 digits, more than 10"),
    ("{devices=[4]<=[9999999999,9999999999]}", 15, "number at most 1048576 devices"),
    ("{devices=2}", 10, r"expected '\[', found '2'"),
    ("{devices=[2,2]<=[4]", 20, "expected '}', found the end"),
    ("{devices=[2,2]<=[4]} x", 22, "the sharding ends here, found 'x'"),
    ("{devices=[2,2,1]<=[4] last_tile_dims={odd}}", 39, "expected 'replicated' or .*found 'o'"),
    ("{devices=[2]<=[2] last_tile_dims={manual, manual}}", 50, "2 subgroup dimensions of 1"),
    ("{devices=[2]<=[2]}", 10, r"1 dimensions are tiled, the shape \(4, 4\) has 2"),
    ("{maximal}", 9, "expected 'device', found '}'"),
    ("{maximal device=-1}", 17, "expected a device id, found '-'"),
    ("{{replicated}, {replicated}}", 2, "tuple sharding"),
    ("{unknown}", 2, "an unknown sharding says nothing"),
    ("{replicated shard_as 3}", 13, "a shard group is a constraint between values"),
    ("{sharded}", 2, "expected 'devices=', 'maximal' or one of .*, found 'sharded'"),
    ("{manual}", 8, "does not say how many devices there are; give the mesh"),
    ('{replicated metadata={op_name="a}}', 31, "the metadata do not end"),
    ("replicated", 1, "expected '{', found 'r'"),
    ("", 1, "found the end"),
    ("{mesh['x'=2]}", 13, r"expected '\[', found '}'"),
    ("{mesh[x=2], [{}, {}]}", 7, "expected an axis name in ', found 'x'"),
    ("{mesh['x'=2], [{'z'}, {}]}", 17, r"axis 'z' is not on Mesh\(x=2\); its axes are \['x'\]"),
    ("{mesh['x'=2], [{'x'}]}", 15, "1 dimensions, and the shape has 2"),
    ("{mesh['x'=2], [{}, {}, {}]}", 24, "more dimensions than the 2 of the shape"),
    ("{mesh['x'=2,'x'=2], [{}, {}]}", 6, "names each axis once"),
    ("{mesh['x'=0], [{}, {}]}", 11, "axis 'x' has size 0"),
    ("{mesh['x'=4], [{'x':(2)4}, {}]}", 17, r"x:\(2\)4 is no proper part of 'x', whose size is 4"),
    ("{mesh['x'=4], [{'x':(1)4}, {}]}", 17, "no proper part"),
    ("{mesh['x'=4], [{'x':(1)2,'x':(2)2}, {}]}", 16, "neighbouring sub-axes that are x"),
    ("{mesh['x'=2,'y'=2], [{}, {}], manual={'y','x'}}", 39, "in the order of Mesh"),
    ("{mesh['x'=2,'y'=2], [{}, {}], manual={'y'}, manual={'x'}}", 45, "expected 'metadata'"),
    ("{mesh['x'=2], [{'x'}p1, {}]}", 21, "expected ',' or ']', found 'p'"),
    ("{mesh['x'=2], [{?, 'x'}, {}]}", 18, "expected '}', found ','"),
    ("{mesh['x'=2], device_ids=(0,0), [{}, {}]}", 6, "occur more than once"),
    ("{mesh['x'=2], device_ids=[2], [{}, {}]}", 26, r"expected '\(', found '\['"),
    ("{maximal_mesh[device_id=x]}", 25, "expected a device id, found 'x'"),
]


@pytest.mark.parametrize(("text", "column", "message"), MALFORMED)
def test_malformed_text(text, column, message):
    with pytest.raises(NotationError, match=rf"^column {column} of the HLO.*{message}") as caught:
        Sharding.from_hlo(text, (4, 4))
    assert str(caught.value).splitlines()[2].index("^") == column + 1


def test_the_caret_of_a_long_text_stands_in_a_piece_of_it():
    text = "{devices=[512]" + ",".join(map(str, range(511))) + ",x}"
    with pytest.raises(NotationError, match="expected a device id, found 'x'") as caught:
        Sharding.from_hlo(text, (512,))
    piece, caret = str(caught.value).splitlines()[1:3]
    assert len(piece) < 130
    assert piece[caret.index("^")] == "x"


def test_text_that_does_not_fit():
    mesh = Mesh({"x": 4})
    with pytest.raises(NotationError, match=r"2 dimensions are tiled, the shape \(8,\) has 1"):
        Sharding.from_hlo("{devices=[2,2]<=[4]}", (8,), mesh)
    with pytest.raises(NotationError, match=r"8 devices that are not those of Mesh\(x=4\)"):
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
    """A mesh of one device is replicated; one device of a mesh is maximal."""
    assert replicated((2,), Mesh({})).to_hlo() == "{replicated}"
    for device in (0, 3):
        text = f"{{maximal device={device}}}"
        single = Sharding.from_hlo(text, (2,))
        assert single == maximal((2,), device) == Sharding.from_hlo(text, (2,), Mesh({"x": 4}))
        assert single.is_maximal
        assert single.to_hlo() == single.to_hlo(1) == text
        assert single.shard_slices(device) == (slice(0, 2),)
        with pytest.raises(MeshError, match=f"device 1 is not on .*devices are .{device}"):
            single.shard_slices(1)
    with pytest.raises(NotationError, match=r"device 4 is not on Mesh\(x=4\)"):
        Sharding.from_hlo("{maximal device=4}", (2,), Mesh({"x": 4}))
    with pytest.raises(ShardingError, match="on different devices"):
        merge(replicated((2,), Mesh({"x": 4})), single)


def test_the_order_of_equal_copies_says_nothing():
    text = "{devices=[2,2]0,1,3,2 last_tile_dim_replicate}"
    made = Sharding.from_hlo(text, (4,), Mesh({"x": 2, "y": 2}))
    assert made.text() == "[x]"
    assert made.to_hlo() == "{devices=[2,2]<=[4] last_tile_dim_replicate}"


def test_tuples():
    text = "{{replicated}, {devices=[2,1]<=[2]},{maximal device=1}}"
    shapes = [(), (4, 4), (3,)]
    found = Sharding.from_hlo_tuple(text, shapes)
    assert [made.to_hlo() for made in found] == [
        "{replicated}",
        "{devices=[2,1]<=[2]}",
        "{maximal device=1}",
    ]
    assert [made.shape for made in found] == shapes
    assert Sharding.from_hlo_tuple("{}", []) == ()
    for wrong, message in (
        ("{{replicated}}", "column 15 .*: 1 shardings for the 3 elements"),
        (text[:-1] + ", {replicated}}", "column 57 .*more shardings than the 3 elements"),
        ("{{{replicated}}}", "column 3 .*a tuple sharding holds one sharding per element"),
        ("{replicated}", "column 2 .*expected '{', found 'r'"),
        (text + "x", "column 56 .*the sharding ends here"),
    ):
        with pytest.raises(NotationError, match=message):
            Sharding.from_hlo_tuple(wrong, shapes)
