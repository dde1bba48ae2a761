"""Shardy's text: meaning, priorities, meshes in the text, and malformed text."""

import pytest

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding, maximal, replicated
from shardalg.errors import NotationError, ShardingError

from .judges import shardy_prints

MESH = Mesh({"x": 2, "y": 8, "z": 2, "w": 3})


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ('[{"x", "y":(2)2, ?}p1, {}], replicated={"z"}', "[(x, y:(2)2, ?)p1, None]{R:z}"),
        ('[{"x"}, {}], replicated={"z"}, unreduced={"w"}', "[x, None]{U:w}{R:z}"),
        ("[{?}, {?}p7]", "[?, (?)p7]"),
        ('[{"y":(4)2, "y":(1)2}, {"w", "x"}p2]', "[(y:(4)2, y:(1)2), (w, x)p2]"),
        ('[{}, {}], replicated={"x", "y":(1)2, "y":(4)2}', "[None, None]{R:x,y:(1)2,y:(4)2}"),
    ],
)  # fmt: skip
def test_text_is_that_of_shardy(text, ours):
    text = f"#sdy.sharding<@mesh, {text}>"
    made = Sharding.from_sdy(text, (8, 8), MESH)
    assert made.text() == ours
    assert made.to_sdy() == text == shardy_prints(text, MESH, 2)


def test_a_mesh_in_the_text():
    text = '#sdy.sharding<mesh<["a"=2, "b"=2], device_ids=[0, 2, 1, 3]>, [{"a"}, {"b"}]>'
    made = Sharding.from_sdy(text, (4, 4))
    assert made.mesh == Mesh({"a": 2, "b": 2}, [0, 2, 1, 3])
    assert made.to_sdy(None) == text == shardy_prints(text, made.mesh, 2)
    on_theirs = Sharding.from_sdy(text, (4, 4), Mesh({"x": 4}))
    assert on_theirs.text() == "[x:(2)2, x:(1)2]"
    for device in range(4):
        assert on_theirs.shard_slices(device) == made.shard_slices(device)
    with pytest.raises(NotationError, match=r"is no digits of Mesh\(x=3\)"):
        Sharding.from_sdy(text, (4, 4), Mesh({"x": 3}))


def test_one_device():
    text = "#sdy.sharding<mesh<[], device_ids=[3]>, []>"
    assert Sharding.from_sdy(text, (4, 4)) == maximal((4, 4), 3)
    assert maximal((4, 4), 3).to_sdy(None) == text
    assert maximal((4, 4), 3).to_sdy("three") == "#sdy.sharding<@three, []>"
    assert Sharding.from_sdy("<@three, []>", (4, 4), Mesh({}, [3])) == maximal((4, 4), 3)
    with pytest.raises(NotationError, match=r"device 3 is not on Mesh\(x=2\)"):
        Sharding.from_sdy(text, (4, 4), Mesh({"x": 2}))


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ('#sdy.sharding<@mesh, [{"x"}]>', 22, "1 dimensions, and the shape has 2"),
        ('#sdy.sharding<@mesh, [{"x"}, {}', 32, r"expected ',' or '\]', found the end"),
        ('#sdy.sharding<@mesh, [{x}, {}]>', 24, "expected an axis name in \", found 'x'"),
        ('#sdy.sharding<@mesh, [{"q"}, {}]>', 24, "axis 'q' is not on Mesh"),
        ('#sdy.sharding<@mesh, [{"y":(3)2}, {}]>', 24, r"y:\(3\)2 is no proper part of 'y'"),
        ('#sdy.sharding<@mesh, [{"y":(1)2, "y":(2)4}, {}]>', 23, "sub-axes that are y"),
        ('#sdy.sharding<@mesh, [{"x"}p01, {}]>', 29, "without space and leading zeros"),
        ('#sdy.sharding<@mesh, [{"x"}p, {}]>', 29, "expected a priority, found ','"),
        ('#sdy.sharding<@mesh, [{"x"}, {}], replicated={"y", "x"}>', 47, "in the order of Mesh"),
        ('#sdy.sharding<@mesh, [{"x"}, {}], manual={"y"}>', 33, "expected '>', found ','"),
        ('#sdy.sharding<@mesh, [{}, {}], unreduced={"x"}, unreduced={"y"}>', 47, "expected '>'"),
        ('#sdy.sharding<@mesh, [{"x"}, {}]> to', 35, "the sharding ends here, found 't'"),
        ('#sdy.sharding<mesh<["x"=2, "x"=2]>, [{}, {}]>', 15, "names each axis once"),
        ('#sdy.sharding<mesh<["x"=2]>, [{"x', 32, "must end with"),
        ('#sdy.sharding<mesh<["x"=2097152]>, [{}, {}]>', 20, "more than 1048576 devices"),
        ("#sdy.sharding_per_value<[<@mesh, [{}]>]>", 14, "expected '<', found '_'"),
    ],
)  # fmt: skip
def test_malformed_text(text, column, message):
    with pytest.raises(NotationError, match=rf"^column {column} of Shardy's.*{message}") as caught:
        Sharding.from_sdy(text, (8, 8), MESH)
    assert str(caught.value).splitlines()[2].index("^") == column + 1


def test_text_that_needs_more():
    with pytest.raises(NotationError, match=r"column 15 .*this symbol needs its mesh; give one"):
        Sharding.from_sdy('#sdy.sharding<@mesh, [{"x"}]>', (8,))
    with pytest.raises(ShardingError, match="an axis is used twice"):
        Sharding.from_sdy('<@mesh, [{"y"}, {"y":(2)2}]>', (8, 8), MESH)
    with pytest.raises(ShardingError, match="dimension 1 has priority 2, but it has no axes"):
        Sharding.from_sdy('<@mesh, [{"y"}, {}p2]>', (8, 8), MESH)
    with pytest.raises(ShardingError, match="has no axis names, and Shardy's text needs them"):
        replicated((8,), Mesh.unnamed(8)).to_sdy()
    with pytest.raises(ShardingError, match="the axis name 'a\"b' cannot be written between"):
        Sharding.from_axes(['a"b'], Mesh({'a"b': 2}), (8,)).to_sdy()
    with pytest.raises(ShardingError, match=r"has no text that names axes: .* is not made of axes"):
        Sharding.from_hlo("{devices=[2]<=[2]}", (8,), Mesh({"x": 2})).with_dims(
            Sharding.parse("[d//3%2]", (8,), Mesh({"x": 6})).dims
        ).to_sdy()
