"""Host arrays and functions of blocks: which blocks are read, and refusals."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import LoweringError

SHAPE = (5, 6)


@pytest.fixture(scope="module")
def lowered():
    plan = sa.plan(
        lambda t: {"y": t["w"] * 2.0}, {"w": jax.ShapeDtypeStruct(SHAPE, "float32")},
        mesh=sa.Mesh({"X": 2, "Y": 4}), in_shardings=({"w": P("X", "Y")},),
    )  # fmt: skip
    return plan.lower()


WHOLE = np.arange(30, dtype="float32").reshape(SHAPE)


def test_host_arrays_and_blocks_make_the_same(lowered):
    asked = []

    def read(index):
        asked.append(index)
        return WHOLE[index]

    ((blocks,), (whole,)) = (lowered.place({"w": x}) for x in (read, WHOLE.astype("float64")))
    assert blocks["w"].sharding == whole["w"].sharding == lowered.arguments[0].inner
    padded = np.pad(WHOLE, [(0, 1), (0, 2)])
    for x in (blocks["w"], whole["w"]):
        assert x.dtype == np.float32
        for shard in x.addressable_shards:
            np.testing.assert_array_equal(shard.data, padded[shard.index])
    # true elements alone, each once: the last of four columns of blocks is padding
    assert {tuple((i.start, i.stop) for i in index) for index in asked} == {
        (rows, columns) for rows in ((0, 3), (3, 5)) for columns in ((0, 2), (2, 4), (4, 6))
    }
    np.testing.assert_array_equal(lowered({"w": read})["y"], 2 * WHOLE)
    np.testing.assert_array_equal(lowered(*lowered.place({"w": read}))["y"], 2 * WHOLE)
    np.testing.assert_array_equal(lowered.jit()({"w": read})["y"], 2 * WHOLE)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (WHOLE.astype("int32"), r"\['w'\]: got int32\[5,6\], planned for float32\[5, 6\]"),
        (WHOLE.T, r"\['w'\]: got float32\[6,5\]"),
        (np.ma.array(WHOLE), r"\['w'\] is a masked array of numpy.* Pass its data"),
        ("text", r"\['w'\]: got 'text', a str"),
        (lambda index: WHOLE, r"gives float32\[5, 6\] for the block \[0:3, 0:2\], which is"),
        (lambda index: WHOLE[index].astype("int16"), r"gives int16\[3, 2\] for the block"),
    ],
    ids=["type", "shape", "masked", "no array", "block's shape", "block's type"],
)
def test_what_does_not_fit_is_named(lowered, value, words):
    with pytest.raises(LoweringError, match=words):
        lowered.place({"w": value})
    if not callable(value):  # of which the twin asks other blocks
        with pytest.raises(LoweringError, match=words):
            lowered.jit()({"w": value})
