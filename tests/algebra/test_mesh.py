"""Meshes: positions, axes and sub-axes, bad input, and JAX's own meshes."""

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

import shardalg.algebra.jax_meshes as jax_meshes
from shardalg.algebra.digits import Digit
from shardalg.algebra.mesh import AxisRef, Mesh
from shardalg.errors import DeviceError, MeshError


@pytest.mark.parametrize(
    ("axes", "device_ids", "message"),
    [
        ({"x": 0}, None, r"axis sizes must be integers of at least 1, got \{'x': 0\}"),
        ({"x": -2, "y": 2.0}, None, r"got \{'x': -2, 'y': 2.0\}"),
        ((("x", 2), ("x", 4)), None, r"names each axis once, got \['x', 'x'\]"),
        ({3: 2}, None, r"have text as names, got \[3\]"),
        ({"x": 2}, [0, 0], r"2 different numbers .*\[0, 0\]; \[0\] occur more than once"),
        ({"x": 2}, [0, 1, 2], r"Mesh\(x=2\) must be 2 different .* got 3: \[0, 1, 2\]"),
        ({"x": 2}, [0, -1], "of at least 0"),
        ({"x": 2}, [], "got 0"),
    ],
)
def test_bad_meshes(axes, device_ids, message):
    with pytest.raises(MeshError, match=message):
        Mesh(axes, device_ids)


def test_unknown_axis_and_device():
    mesh = Mesh({"x": 2, "y": 2}, device_ids=[3, 1, 2, 0])
    with pytest.raises(MeshError, match=r"axis 'z' .* Mesh\(x=2, y=2, .*its axes are \['x', 'y'\]"):
        mesh.digit("z")
    with pytest.raises(MeshError, match=r"device 7 is not on .* devices are \[3, 1, 2, 0\]"):
        mesh.position(7)
    assert [mesh.position(device) for device in mesh.order] == [0, 1, 2, 3]


def test_equality_and_hash():
    natural = Mesh({"x": 2, "y": 2}, device_ids=range(4))
    assert natural == Mesh({"x": 2, "y": 2})
    assert natural.device_ids is None
    assert hash(natural) == hash(Mesh((("x", 2), ("y", 2))))
    assert natural != Mesh({"y": 2, "x": 2}) != Mesh({"x": 2, "y": 2}, [1, 0, 2, 3])
    assert Mesh({}).size == 1
    assert Mesh({}).axis_names == ()


@pytest.mark.parametrize(
    ("digit", "refs"),
    [
        (Digit(6, 2), (AxisRef("x"),)),
        (Digit(1, 12), (AxisRef("x"), AxisRef("y"))),
        (Digit(3, 2), (AxisRef("y", 1, 2),)),
        (Digit(1, 3), (AxisRef("y", 2, 3),)),
        (Digit(3, 4), (AxisRef("x"), AxisRef("y", 1, 2))),
        (Digit(4, 1), ()),
    ],
)
def test_digits_as_axes(digit, refs):
    mesh = Mesh({"x": 2, "y": 6})
    assert mesh.axis_refs(digit) == refs
    if len(refs) != 1:
        with pytest.raises(MeshError, match="not an axis or a sub-axis"):
            mesh.axis_ref(digit)


@pytest.mark.parametrize("digit", [Digit(2, 2), Digit(4, 3), Digit(3, 2), Digit(1, 24)])
def test_digits_of_other_meshes_are_no_axes(digit):
    with pytest.raises(MeshError, match="not made of axes"):
        Mesh({"x": 2, "y": 3, "z": 2}).axis_refs(digit)


@pytest.mark.parametrize("order", [range(8), [0, 3, 1, 2, 7, 6, 5, 4]])
def test_jax_meshes_both_ways(order):
    grid = np.array(jax.devices())[list(order)].reshape(2, 4)
    theirs = jax.sharding.Mesh(grid, ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    mesh = Mesh.from_jax(theirs)
    assert mesh == Mesh({"x": 2, "y": 4}, order)
    assert mesh.to_jax() == theirs
    assert mesh.to_jax(jax.devices()[::-1]).shape == theirs.shape


def test_abstract_meshes_both_ways():
    theirs = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    assert Mesh.from_jax(theirs) == Mesh({"x": 2, "y": 4})
    assert jax_meshes.mesh_to_abstract(Mesh({"x": 2, "y": 4})) == theirs


def test_part_of_the_devices_keeps_its_ids():
    theirs = Mesh({"x": 2}, [6, 7]).to_jax()
    assert [device.id for device in theirs.devices.flat] == [6, 7]
    assert Mesh.from_jax(theirs).device_ids == (6, 7)


def test_meshes_that_jax_cannot_have():
    with pytest.raises(DeviceError, match=r"needs 16 devices, and there are 8\. Call .*\(16\)"):
        Mesh({"x": 16}).to_jax()
    with pytest.raises(DeviceError, match=r"names the devices \[9\]"):
        Mesh({"x": 2}, [1, 9]).to_jax()
    with pytest.raises(MeshError, match="expected a JAX mesh, got dict"):
        Mesh.from_jax({"x": 2})


def test_a_symbolic_mesh_is_another_mesh_with_the_same_hints():
    mesh, numbers = Mesh({"X": 2, "Y": 4}, symbolic=True), Mesh({"X": 2, "Y": 4})
    assert mesh != numbers
    assert mesh == Mesh({"X": 2, "Y": 4}, symbolic=True)
    assert hash(mesh) == hash(Mesh({"X": 2, "Y": 4}, symbolic=True))
    assert (mesh.size, mesh.shape, mesh.digit("X")) == (8, numbers.shape, numbers.digit("X"))
    assert [(str(s), s.hint) for s in mesh.sizes.values()] == [("X", 2), ("Y", 4)]


@pytest.mark.parametrize(
    ("axes", "device_ids", "text"),
    [
        ({"X": 1, "Y": 4}, None, "hint of the symbolic axis X is 1"),
        ({"a-b": 2}, None, "no identifiers"),
        ({"X": 2}, [1, 0], r"device_ids \[1, 0\]"),
    ],
)
def test_a_symbolic_mesh_that_cannot_be(axes, device_ids, text):
    with pytest.raises(MeshError, match=text):
        Mesh(axes, device_ids, symbolic=True)


def test_sub_axes_and_their_digits():
    mesh = Mesh({"x": 8, "y": 6})
    for ref in (AxisRef("x"), AxisRef("x", 2, 2), AxisRef("y", 3, 2), AxisRef("x", 1, 4)):
        assert mesh.axis_ref(mesh.ref_digit(ref)) == ref
    assert mesh.refs((Digit(24, 2), Digit(12, 2), Digit(6, 2))) == (AxisRef("x"),)
    assert mesh.refs((Digit(12, 2), Digit(24, 2))) == (AxisRef("x", 2, 2), AxisRef("x", 1, 2))
    with pytest.raises(MeshError, match=r"x:\(3\)2 is no sub-axis of 'x', whose size is 8"):
        mesh.ref_digit(AxisRef("x", 3, 2))


def test_one_named_device_is_another_mesh_than_any_device():
    assert Mesh({}, [0]) != Mesh({})
    assert repr(Mesh({}, [0])) == "Mesh(device_ids=[0])"
    assert Mesh({}, [7]).position(7) == 0
    with pytest.raises(MeshError, match="device 0 is not on"):
        Mesh({}, [7]).position(0)


def test_a_long_order_of_devices_is_printed_in_short():
    shown = repr(Mesh({"x": 2048}, device_ids=range(2047, -1, -1)))
    assert shown.startswith("Mesh(x=2048, device_ids=[2047, 2046, ")
    assert shown.endswith(", 2032, ...])")
