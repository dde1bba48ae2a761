"""PartitionSpecs and NamedShardings, both ways."""

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from shardalg.algebra.digits import Digit
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import NotationError, ShardingError

MESH = Mesh({"x": 2, "y": 2, "z": 2})


@pytest.mark.parametrize(
    "spec",
    [
        P(None, None, None),
        P("x", None, "y"),
        P(("z", "x"), "y", None),
        P(None, P.UNCONSTRAINED, "x"),
        P(None, "z", None, unreduced={"x"}),
    ],
)
def test_specs_both_ways(spec):
    assert Sharding.from_spec(spec, MESH, (8, 8, 8)).to_spec() == spec


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        (P("x"), P("x", None)),
        (None, P(None, None)),
        (P(("x",)), P("x", None)),
        (["x"], P("x", None)),
    ],
)
def test_other_spellings(spec, same):
    assert Sharding.from_spec(spec, MESH, (8, 8)).to_spec() == same


def test_reduced_axes_are_kept_replicated():
    sharding = Sharding.from_spec(P("x", reduced={"y"}), MESH, (8,))
    assert sharding.replicated == MESH.digits(["y"])
    assert sharding.text() == "[x]{R:y}"


@pytest.mark.parametrize("spec", [P("c", ("a", "b")), P("b", "a"), P(("b", "c"), None)])
def test_axes_of_size_one_keep_their_names(spec):
    mesh = Mesh({"a": 1, "b": 1, "c": 4})
    sharding = Sharding.from_spec(spec, mesh, (8, 8))
    assert sharding.to_spec() == spec
    assert NamedSharding(mesh.to_jax(), spec).shard_shape((8, 8)) == sharding.shard_shape


@pytest.mark.parametrize(
    ("sharding", "message"),
    [
        (Sharding(MESH, (8,), ((Digit(1, 3),),)), r"Digit\(stride=1, size=3\) is not made of axes"),
        (Sharding(Mesh({"x": 8}), (8,), ((Digit(4, 2),),)), r"the sub-axes \[x:\(1\)2\]"),
    ],
)
def test_layouts_without_a_spec(sharding, message):
    with pytest.raises(ShardingError, match=message):
        sharding.to_spec()


def test_named_shardings_both_ways():
    order = [0, 3, 1, 2, 7, 6, 5, 4]
    plain = Mesh({"x": 2, "y": 4})
    mesh = Mesh({"x": 2, "y": 4}, order)
    named = NamedSharding(mesh.to_jax(), P("y", "x"))
    ours = Sharding.from_named(named, (8, 8))
    assert ours == Sharding.from_axes(["y", "x"], mesh, (8, 8))
    assert NamedSharding(mesh.to_jax(), ours.to_spec()) == named
    abstract = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    theirs = NamedSharding(abstract, named.spec)
    assert Sharding.from_named(theirs, (8, 8)) == Sharding.from_axes(["y", "x"], plain, (8, 8))
    assert Sharding.from_named(named, (8, 8), plain).mesh == plain
    with pytest.raises(ShardingError, match="expected a NamedSharding, got SingleDeviceSharding"):
        Sharding.from_named(SingleDeviceSharding(jax.devices()[0]), (8, 8))


def test_partial_maxima_are_refused():
    """jax 0.11 says how partial values are joined; older versions know sums alone."""
    kinds = getattr(jax.sharding, "UnreducedKind", None)
    mesh = Mesh({"x": 2})
    if kinds is None:
        text = "P(unreduced={'x'}, unreduced_kind=max)"
        with pytest.raises(NotationError, match="expected 'sum', found 'm'"):
            Sharding.parse(text, (4,), mesh)
        return
    with pytest.raises(NotationError, match="combined by max: a sharding here holds sums only"):
        Sharding.from_spec(P(unreduced={"x"}, unreduced_kind=kinds.max), mesh, (4,))
