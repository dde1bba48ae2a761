"""One reader for all notations, and our own text of every sharding."""

import re

import pytest
from jax.sharding import PartitionSpec as P

from shardalg.algebra.digits import Digit
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import NotationError

MESH = Mesh({"x": 2, "y": 4})


@pytest.mark.parametrize(
    "text",
    [
        "P('x', ('y',))",
        'PartitionSpec("x", "y")',
        " jax.sharding.PartitionSpec( 'x' , 'y' , ) ",
        "[x, y]",
        "[0, 1]",
        "['x', ('y')]",
        '#sdy.sharding<@mesh, [{"x"}, {"y"}]>',
        '<mesh<["a"=8]>, [{"a":(1)2}, {"a":(2)4}]>',
        "{devices=[2,4]<=[8]}",
        "{devices=[2,4]0,1,2,3,4,5,6,7}",
        "{mesh['a'=2,'b'=2,'c'=2], [{'a'}, {'b', 'c'}]}",
    ],
)
def test_every_notation_says_the_same(text):
    assert Sharding.parse(text, (8, 8), MESH) == Sharding.from_axes(["x", "y"], MESH, (8, 8))


@pytest.mark.parametrize(
    "spec",
    [
        P(),
        P("x"),
        P(None, "x"),
        P(("y", "x")),
        P(P.UNCONSTRAINED, "x"),
        P("x", unreduced={"y"}),
        P(unreduced={"x", "y"}),
        P("x", reduced={"y"}),
        P(None, unreduced={"x"}, reduced={"y"}),
    ],
)
def test_specs_as_jax_prints_them(spec):
    made = Sharding.from_spec(spec, MESH, (8, 8))
    assert Sharding.parse(repr(spec), (8, 8), MESH) == made
    rest = (None,) * (2 - len(spec.partitions))
    classes = {"unreduced": spec.unreduced, "reduced": spec.reduced}
    assert made.to_spec() == P(*spec.partitions, *rest, **classes)


@pytest.mark.parametrize(
    "made",
    [
        Sharding.from_axes([None, "?"], MESH, (8, 8)),
        Sharding.from_axes([("y", "x", "?")], MESH, (8, 8), replicated=()),
        Sharding.from_axes(["x"], MESH, (8, 8), unreduced=["y"]),
        Sharding.from_axes([], MESH, (8, 8), replicated=["y"], unreduced=["x"]),
        Sharding(MESH, (8, 8), ((Digit(1, 2),), (Digit(2, 2),)), (1,), priorities=(3, 0)),
        Sharding(MESH, (8, 8), ((), ()), (1,), (), (), MESH.digits("xy"), priorities=(0, 1)),
        Sharding(MESH, (8,), ((Digit(2, 2), Digit(4, 2), Digit(1, 2)),)),
        Sharding(Mesh.unnamed(8), (8, 8), ((Digit(4, 2),), (Digit(1, 2),))),
        Sharding(Mesh({"x": 6}), (6, 6), ((Digit(1, 2),), (Digit(2, 3),))),
        Sharding(Mesh({"x": 2, "y": 6}), (6, 6), ((Digit(1, 4),), ())),
        Sharding.from_axes(
            ["of rows", ("None", "d")], Mesh({"of rows": 2, "None": 2, "d": 2}), (8, 8)
        ),
        Sharding.from_axes([], MESH, ()),
    ],
    ids=lambda made: made.text(),
)
def test_our_own_text_says_everything(made):
    assert Sharding.parse(made.text(), made.shape, made.mesh) == made


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("[x, None", 9, r"expected ',' or '\]', found the end"),
        ("[x]", 1, r"1 entries for the 2 dimensions of \(8, 8\)"),
        ("[x, None, None]", 11, "more entries than the 2 dimensions"),
        ("[z, None]", 2, r"axis 'z' is not an axis of Mesh\(x=2, y=4\)"),
        ("[2, None]", 2, r"axis number 2 is not an axis of Mesh\(x=2, y=4\)"),
        ("[-2, None]", 2, "expected an axis in ', found '-'"),
        ("[y:(2)4, None]", 2, "no sub-axis of 'y', whose size is 4"),
        ("[d//8%2, None]", 2, "d//8%2 is no digit of 8 positions"),
        ("[d//0%2, None]", 2, "d//0%2 is no digit"),
        ("[(x, ?, y), None]", 7, r"expected '\)', found ','"),
        ("[x, None]{U:z}", 13, "axis 'z' is not an axis"),
        ("[x, None]{Q:y}", 10, "the sharding ends here, found '{'"),
        ("P('x', 'y', None)", 13, "behind 2 entries"),
        ("P('z')", 3, "axis 'z' is not an axis"),
        ("P(x)", 3, "expected an axis in ', found 'x'"),
        ("P('x'", 6, r"expected ',' or '\)', found the end"),
        ("P('x', unreduced={'y'}, unreduced={'y'})", 25, "expected '\\)' behind 1 entries"),
        ("P('x')(", 7, "the sharding ends here"),
        ("P(('x' 'y'))", 8, r"expected ',' or '\)'"),
    ],
)
def test_malformed_text(text, column, message):
    with pytest.raises(NotationError, match=rf"^column {column} of the .*{message}") as caught:
        Sharding.parse(text, (8, 8), MESH)
    assert str(caught.value).splitlines()[2].index("^") == column + 1


def test_text_of_no_notation_and_without_its_mesh():
    with pytest.raises(NotationError, match=r"(?s)'x, y' is no sharding. .*\(HLO\).*P\('x', None"):
        Sharding.parse("x, y", (8, 8), MESH)
    for text in ("[x, None]", "P('x')", "[0, -1]"):
        with pytest.raises(NotationError, match="names axes and states no mesh; give the mesh"):
            Sharding.parse(text, (8, 8))


@pytest.mark.parametrize("value", [None, 3, P("x"), b"[x]"])
def test_what_is_no_text(value):
    for read in (Sharding.parse, Sharding.from_hlo, Sharding.from_sdy):
        with pytest.raises(NotationError, match=re.escape(repr(value))):
            read(value, (8, 8), MESH)


def test_work_on_hostile_text_is_bounded():
    for text in (
        "[(" + "x, " * 300 + "x), None]",
        "P((" + "'x', " * 300 + "))",
        '<mesh<["x"=2]>, [{' + '"x", ' * 300 + '"x"}, {}]>',
    ):
        with pytest.raises(NotationError, match="a sharding of more than 256 axes"):
            Sharding.parse(text, (8, 8), MESH)
    ones = ",".join(f"'a{i}'=1" for i in range(300))
    with pytest.raises(NotationError, match="more than 256 axes"):
        Sharding.parse(f"{{mesh[{ones}], replicated}}", (8, 8))
    for text in (
        "(" * 10**5,
        "{" * 10**5,
        "[" * 10**5,
        "[(" * 10**5,
        "9" * 10**5,
        "[" + "9" * 10**5,
    ):
        with pytest.raises(NotationError):
            Sharding.parse(text, (8, 8), MESH)
