"""State saved on one mesh and loaded on others: bitwise the same, or a clear error."""

import gc
import json
import shutil
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import CheckpointError
from shardalg.lower.running.checkpoint import digest

# orbax leaves the event loop of a failed load to the garbage collector, which warns about it.
pytestmark = [pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


@pytest.fixture(autouse=True)
def collect_failed_loads():
    """Collect garbage while this file's filter applies; a later test would fail otherwise."""
    yield
    gc.collect()


OPTIMIZER = optax.adamw(0.1)
SHAPES = {"even": (24, 24), "uneven": (10, 7), "none": (0, 4)}


def step(state, x):
    params, key, slots = state

    def loss(p):
        return ((x @ p["even"]) ** 2).mean() + (p["uneven"] ** 3).mean() + p["none"].sum()

    value, grads = jax.value_and_grad(loss)(params)
    updates, slots = OPTIMIZER.update(grads, slots, params)
    return (optax.apply_updates(params, updates), key, slots), value


def initial(shapes=SHAPES):
    rng = np.random.default_rng(0)
    params = {n: jnp.asarray(rng.normal(size=s), "float32") for n, s in shapes.items()}
    return params, jax.random.key(7), OPTIMIZER.init(params)


X = np.linspace(-1, 1, 24 * 24, dtype="float32").reshape(24, 24)


@cache
def lowered(**axes):
    first, *rest = axes
    layout = P(first, *rest)
    specs = jax.tree.map(lambda x: layout if x.ndim == 2 else P(), initial())
    mesh = sa.Mesh(axes)
    return sa.plan(
        step, initial(), X, mesh=mesh, in_shardings=(specs, None), out_shardings=(specs, None)
    ).lower(jax.devices()[: mesh.size])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    made = lowered(X=2, Y=4)
    state, value = initial(), None
    for _ in range(2):
        state, value = made.padded(state, X)
    path = tmp_path_factory.mktemp("states") / "two"
    made.save_state(path, state)
    return path, made.strip((state, value))[0]


def bits(x):
    x = jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    return np.asarray(x)


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "axes", [{"X": 2, "Y": 4}, {"X": 4, "Y": 2}, {"X": 8}, {"X": 3, "Y": 2}], ids=str
)
def test_loaded_on_another_mesh(saved, axes):
    path, want = saved
    made = lowered(**axes)
    state = made.load_state(path)
    borders = made.arguments[: len(jax.tree.leaves(state))]
    for b, got, expected in zip(
        borders, jax.tree.leaves(state), jax.tree.leaves(want), strict=True
    ):
        assert got.sharding == b.run
        assert got.shape == b.padded_shape
        expected = bits(expected)
        got = bits(got)[tuple(slice(0, n) for n in expected.shape)]
        assert got.dtype == expected.dtype
        assert got.tobytes() == expected.tobytes(), b.path
    if axes == {"X": 3, "Y": 2}:  # and goes on from there
        (params, *_), value = made(state, X)
        (expected, *_), wanted = jax.jit(step)(want, X)
        np.testing.assert_allclose(value, wanted, rtol=1e-5)
        np.testing.assert_allclose(params["uneven"], expected["uneven"], rtol=1e-4, atol=1e-6)


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved[0], tmp_path / "copy")


def largest(path):
    return max(
        (f for f in (path / "state").rglob("*") if f.is_file()), key=lambda f: f.stat().st_size
    )


def test_a_cut_file(copy):
    file = largest(copy)
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(CheckpointError, match=rf"file state/\S*{file.name} has \d+ of \d+ bytes"):
        lowered(X=2, Y=4).load_state(copy)


@pytest.mark.slow
def test_a_missing_shard(copy):
    file = largest(copy)
    file.unlink()
    with pytest.raises(CheckpointError, match=rf"file state/\S*{file.name} is missing"):
        lowered(X=2, Y=4).load_state(copy)


def test_flipped_bits(tmp_path):
    """At unchanged size: refused, or nothing that is read came from there."""
    rng, refused = np.random.default_rng(0), []
    start = rng.normal(size=(64, 64)).astype("float32")  # blocks that stand in a file of their own
    made = sa.plan(
        lambda s: s + 1, start, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),)
    ).lower()  # fmt: skip
    made.save_state(tmp_path / "one", made.place(start)[0])
    for file in sorted((tmp_path / "one").rglob("d/*")):
        whole = file.read_bytes()
        for place in np.linspace(0, len(whole) - 1, 3, dtype=int):
            changed = bytearray(whole)
            changed[place] ^= 1 << int(place) % 8
            file.write_bytes(changed)
            try:
                assert np.array_equal(made.load_state(tmp_path / "one"), start)
            except CheckpointError as error:
                refused.append(str(error))
            assert file.read_bytes() == bytes(changed)  # nothing is overwritten
        file.write_bytes(whole)
    assert np.array_equal(made.load_state(tmp_path / "one"), start)
    assert any("cannot be read" in text for text in refused)
    assert any("one: state is not what was saved: bits changed" in text for text in refused)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "bfloat16", "float32", "complex64"])
def test_a_digest_tells_every_bit(dtype):
    rng = np.random.default_rng(0)
    held = jnp.asarray(rng.integers(0, 2, (3, 5)), dtype)
    seen = {digest(held, (3, 5))}
    flat = np.asarray(held).view("uint8").ravel()
    for bit in range(0, 1 if dtype == "bool" else 8, 3):
        for place in range(flat.size):
            changed = flat.copy()
            changed[place] ^= 1 << bit
            seen.add(digest(jnp.asarray(changed.view(held.dtype).reshape(3, 5)), (3, 5)))
    assert len(seen) == 1 + flat.size * len(range(0, 1 if dtype == "bool" else 8, 3))


@pytest.mark.slow
def test_what_orbax_cannot_read(copy):
    file = copy / "state" / "manifest.ocdbt"
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(CheckpointError, match="cannot be read"):
        lowered(X=2, Y=4).load_state(copy)


def test_not_complete(copy, tmp_path):
    (copy / "shardalg.json").unlink()
    for path in (copy, tmp_path / "nothing"):
        with pytest.raises(CheckpointError, match="no complete checkpoint"):
            lowered(X=2, Y=4).load_state(path)


@pytest.mark.slow
def test_nothing_is_overwritten(saved):
    path, state = saved
    before = {f: f.read_bytes() for f in path.rglob("*") if f.is_file()}
    with pytest.raises(CheckpointError, match="exists, and nothing is overwritten"):
        lowered(X=2, Y=4).save_state(path, state)
    assert {f: f.read_bytes() for f in path.rglob("*") if f.is_file()} == before


@pytest.mark.slow
def test_another_models_tree(copy):
    listed = json.loads((copy / "shardalg.json").read_text())
    listed["arrays"]["[0]['uneven']"] = ["float32", [10, 8]]
    listed["arrays"]["[0]['more']"] = ["float32", [1]]
    (copy / "shardalg.json").write_text(json.dumps(listed))
    made = lowered(X=2, Y=4)
    with pytest.raises(CheckpointError, match=r"another model") as error:
        made.load_state(copy)
    assert "[0]['uneven']: float32[10, 8], planned float32[10, 7]" in str(error.value)
    assert "[0]['more']: float32[1], planned not there" in str(error.value)
    with pytest.raises(CheckpointError, match="has the structure"):
        made.save_state(copy.parent / "new", {"w": X})
    assert not (copy.parent / "new").exists()
