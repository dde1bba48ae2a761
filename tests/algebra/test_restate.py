"""One layout on two meshes: every device holds what it held."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from shardalg.algebra.layout import restate
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding

from .test_round_trips import CASES


@given(st.sampled_from(CASES), st.data())
def test_every_device_holds_what_it_held(made, data):
    size = made.mesh.size
    axes = [2, size // 2] if size % 2 == 0 and data.draw(st.booleans()) else [size]
    order = data.draw(st.sampled_from([None, range(size), range(size)[::-1], made.mesh.order]))
    mesh = Mesh(dict(zip("xy", axes, strict=False)), order)
    found = restate(made, mesh)
    if found is None:
        return
    assert found.mesh == mesh
    for device in range(size):
        assert found.shard_slices(device) == made.shard_slices(device)
    assert found.unspecified_dims == made.unspecified_dims
    assert found.priorities == made.priorities
    back = restate(found, made.mesh)
    assert back is not None
    assert back.key == made.key


def test_axes_come_back_by_name():
    """A digit over several axes is these axes, so that what is read equals what is written."""
    mesh = Mesh({"x": 2, "y": 2, "z": 2})
    for axes in itertools.permutations("xyz"):
        for text in (Sharding.from_axes([axes], mesh, (8,)).to_hlo(n) for n in (1, 2, 3)):
            assert Sharding.from_hlo(text, (8,), mesh) == Sharding.from_axes([axes], mesh, (8,))


def test_other_devices_or_orders_that_are_no_digits():
    made = Sharding.from_axes(["x"], Mesh({"x": 4}), (8,))
    assert restate(made, Mesh({"x": 8})) is None
    assert restate(made, Mesh({"x": 4}, [4, 5, 6, 7])) is None
    assert restate(made, Mesh({"x": 4}, [0, 1, 3, 2])) is None
    assert restate(made, Mesh({"y": 4})) == Sharding.from_axes(["y"], Mesh({"y": 4}), (8,))


def test_a_mesh_without_axes_is_all_devices():
    mesh = Mesh({"x": 2, "y": 4})
    read = Sharding.from_hlo("{mesh[], replicated}", (9, 11), mesh)
    assert read == Sharding.from_axes((None, None), mesh, (9, 11))
