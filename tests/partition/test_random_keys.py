"""Random keys as arguments, results and in between: moved as words where JAX moves no keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.host.simulate import simulate

SEVEN, EIGHT = (jax.random.split(jax.random.key(1), n) for n in (7, 8))
SQUARE = EIGHT.reshape(4, 2)
WIDE = jax.random.split(jax.random.key(1, impl="rbg"), 7)
ROWS = np.ones((7, 4), np.float32)
PLACES = np.array([0, 6, 2], np.int32)
X = P("X")


def uniform(keys, rows=0):
    return jax.vmap(lambda key: jax.random.uniform(key, (4,)))(keys) + rows


CASES = {
    "uneven": (uniform, (SEVEN,), (X,)),
    "of another kind": (uniform, (WIDE,), (X,)),
    "split inside": (lambda k, x: uniform(jax.random.split(k, 7), x), (EIGHT[0], ROWS), (P(), X)),
    "chosen": (lambda k, x: jnp.where(x[:, 0] > 0, k[::-1], k), (SEVEN, ROWS), (P(), X)),
    "gathered": (lambda k, i: k[i], (EIGHT, PLACES), (X, P())),
    "gathered, uneven": (lambda k: k[jnp.array(PLACES)], (SEVEN,), (X,)),
    "sliced": (lambda k, i: jax.lax.dynamic_slice(k, i[1:2], (2,)), (EIGHT, PLACES), (X, P())),
    "updated": (lambda k, i: k.at[i[1]].set(k[0]), (EIGHT, PLACES), (X, P())),
    "joined": (lambda k: jnp.concatenate([k[:1], k]), (EIGHT,), (X,)),
    "by the second dimension": (lambda k: jnp.concatenate([k, k]), (SQUARE,), (P(None, "X"),)),
    "transposed": (lambda k: k.T, (SQUARE,), (X,)),
    "in a loop": (
        lambda k: jax.lax.scan(lambda c, q: (q, uniform(c[None])), k[0], k), (SEVEN,), (X,)
    ),
    "closed over": (lambda x: x + jax.random.normal(EIGHT[0], x.shape), (ROWS,), (X,)),
    "closed over, many": (lambda x: (SEVEN[::-1], uniform(SEVEN, x)), (ROWS,), (X,)),
    "closed over in a loop": (
        lambda x: jax.lax.scan(lambda c, r: (c + uniform(WIDE).sum(), r * c), 0.0, x), (ROWS,), (X,)
    ),
}  # fmt: skip


def split(keys):
    return jax.vmap(lambda key: jax.random.split(key, (2, 3)))(keys)


def words(keys):
    return jax.random.wrap_key_data(jax.random.key_data(keys)[:, ::-1])


def folded(keys, rows):
    return jax.vmap(jax.random.fold_in)(jax.random.clone(keys), rows[:, 0].astype(int))


UNSAFE = jax.random.split(jax.random.key(1, impl="unsafe_rbg"), 8)
EACH = {
    "split": (split, (EIGHT,)),
    "split, uneven": (split, (SEVEN,)),
    "split, of another kind": (split, (WIDE,)),
    "words": (words, (EIGHT,)),
    "words, uneven": (words, (SEVEN,)),
    "folded, uneven": (folded, (SEVEN, ROWS)),
    "by the second dimension": (jax.vmap(split), (SQUARE,)),
}
CASES |= {name: (fn, given, (X,) * len(given)) for name, (fn, given) in EACH.items()}
CASES["split, of an unsafe kind"] = split, (UNSAFE,), (X,)


@pytest.mark.parametrize("name", EACH)
def test_each_key_is_on_its_own(name):
    """Keys stay in place, and nothing is sent."""
    fn, given = EACH[name]
    cut = P(None, "X") if name == "by the second dimension" else X
    specs = {"in_shardings": (cut,) * len(given), "out_shardings": cut}
    plan = sa.plan(fn, *given, mesh=sa.Mesh({"X": 2}), **specs)
    assert set(plan.collectives()["kind"]) <= {"border"}, plan.text()


def numbers(tree):
    leaves = jax.tree.leaves(tree)
    keys = [jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) for x in leaves]
    pairs = zip(leaves, keys, strict=True)
    return [np.asarray(jax.random.key_data(x) if is_key else x) for x, is_key in pairs]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("result", [None, X], ids=["", "cut"])
@pytest.mark.parametrize("name", CASES)
def test_keys_are_one_devices(name, result):
    fn, given, layouts = CASES[name]
    one = jax.jit(fn)(*given)
    cut = jax.tree.map(lambda x: result if x.ndim else None, one)
    plan = sa.plan(fn, *given, mesh=sa.Mesh({"X": 2}), in_shardings=layouts, out_shardings=cut)
    assert plan.verify().ok
    lowered = plan.lower()
    ways = [simulate(plan.program, plan.graph, *given), lowered(*given)]
    if result is None:
        ways.append(lowered.jit()(*given))
    for way in ways:
        for got, want in zip(numbers(way), numbers(one), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("policy", ["paper", "gspmd", "shardy", "jit", "cost"])
def test_closed_over_keys_are_words_in_every_policy_and_in_a_file(policy, tmp_path):
    fn, given, layouts = CASES["closed over, many"]
    options = sa.Options(policy=policy)
    plan = sa.plan(fn, *given, mesh=sa.Mesh({"X": 2}), in_shardings=layouts, options=options)
    plan.save(tmp_path / "plan.json")
    loaded = sa.load_plan(tmp_path / "plan.json")
    assert loaded.program == plan.program
    assert loaded.verify().ok
