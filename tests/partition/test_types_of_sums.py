"""The types of sums on a device and between devices."""

from dataclasses import replace
from functools import reduce
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.host.simulate import simulate
from shardalg.spmd.instructions import AllReduce
from shardalg.xla.dump import ask
from tests.partition.planned import instructions

MESH = sa.Mesh({"X": 8})
TALL = 4096
BF16, F16, F32, S8, S32 = jnp.bfloat16, jnp.float16, jnp.float32, jnp.int8, jnp.int32
BOTH = (P(None, "X"), P("X"))


def added(x, w):
    return lax.reduce_sum_p.bind(x, axes=(1,), out_sharding=None)


def convolved(x, w):
    return lax.conv_general_dilated(x[:, :, None], w.T[:, :, None], (1,), "VALID")


def product(x, w):
    return x @ w


def told(x, w):
    return jnp.dot(x, w, preferred_element_type=jnp.int32)


# name -> function, type of its operands, type in which parts are sent
CASES = {
    "product, bf16": (product, BF16, BF16),
    "product, f16": (product, F16, F16),
    "product, f32": (product, F32, F32),
    "product, int8 to int32": (told, S8, S32),
    "product, int8": (product, S8, S8),
    "sum, bf16": (added, BF16, BF16),
    "sum of jnp, f16": (lambda x, w: x.sum(1), F16, F32),
    "convolution, bf16": (convolved, BF16, BF16),
}

NARROW = ["product, bf16", "product, f16", "sum, bf16", "convolution, bf16"]


def planned(fn, dtype, **options):
    """Return the plan of a sum over 8 devices of 512 products each, and its arguments."""
    rng = np.random.default_rng(1)
    whole = jnp.issubdtype(dtype, jnp.integer)
    draw = rng.integers(-100, 100, (2, 4, TALL)) if whole else rng.standard_normal((2, 4, TALL))
    x, w = jnp.asarray(draw[0], dtype), jnp.asarray(draw[1].T, dtype)
    made = {"mesh": MESH, "in_shardings": BOTH, "out_shardings": P()}
    return sa.plan(fn, x, w, **made, options=sa.Options.of(options)), (x, w)


def sent(plan):
    """Return type and bytes of an all-reduce's operand."""
    for step in instructions(plan.program.block):
        if type(step.attributes) is AllReduce:
            local = plan.program.locals[step.operands[0]]
            yield local.dtype, prod(local.shape) * jnp.dtype(local.dtype).itemsize


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CASES)
def test_parts_are_sent_in_the_type_in_which_xlas_partitioner_sends_them(name):
    fn, dtype, wanted = CASES[name]
    plan, _ = planned(fn, dtype)
    ours = list(sent(plan))
    assert [dtype for dtype, _ in ours] == [jnp.dtype(wanted).name]
    theirs = [c.operand_bytes for c in ask(plan.graph, plan.annotations).collectives]
    assert [size for _, size in ours] == theirs


def terms(name, arguments):
    """Return the addends, in float64 or int64: 4 by 4,096, or 4 by 4,096 by 4 products."""
    wide = np.float64 if jnp.issubdtype(arguments[0].dtype, jnp.floating) else np.int64
    x, w = (np.asarray(a).astype(wide) for a in arguments)
    return x if name.startswith("sum") else x[:, :, None] * w


def errors(name, **options):
    """Return the errors of the simulated and the lowered program, in any type."""
    fn, dtype, _ = CASES[name]
    plan, arguments = planned(fn, dtype, **options)
    want = terms(name, arguments).sum(1)
    made = (simulate(plan.program, plan.graph, *map(np.asarray, arguments))[0],
            plan.lower()(*arguments))  # fmt: skip
    return [np.abs(np.asarray(m).astype(want.dtype).reshape(want.shape) - want) for m in made]


def in_own_type(blocks):
    """Blocks added up one term after the other, rounded every time, and then joined."""
    steps = np.moveaxis(blocks, 2, 0)
    return reduce(np.add, steps).astype(np.float64).sum(1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NARROW)
def test_a_device_adds_up_in_float32(name, show):
    """The error comes from rounding eight parts and their sum, not from 4,096 additions."""
    fn, dtype, _ = CASES[name]
    added = terms(name, planned(fn, dtype)[1])
    blocks = added.reshape(4, 8, TALL // 8, *added.shape[2:])
    rounded = np.abs(blocks.sum(2)).sum(1) + np.abs(added.sum(1))
    bound = float(jnp.finfo(dtype).eps) * rounded
    bound += TALL // 8 * float(jnp.finfo(F32).eps) / 2 * np.abs(added).sum(1)
    simulated, lowered = ((error / bound).max() for error in errors(name))
    narrow = np.abs(in_own_type(blocks.astype(jnp.dtype(dtype))) - added.sum(1))
    show(f"{name}: {simulated:.2g} of the bound, lowered {lowered:.2g}; {narrow.max():.2g}")
    assert max(simulated, lowered) <= 1
    assert (narrow > bound).any()


@pytest.mark.parametrize("name", [n for n in CASES if "int8" in n])
def test_whole_numbers_are_added_up_in_the_type_that_is_asked_for(name):
    fn, dtype, wanted = CASES[name]
    plan, arguments = planned(fn, dtype)
    want = terms(name, arguments).sum(1).astype(jnp.dtype(wanted))
    assert (np.abs(want.astype(int)).max() > 127) == (wanted == S32)
    for got in (simulate(plan.program, plan.graph, *arguments)[0], plan.lower()(*arguments)):
        np.testing.assert_array_equal(got, want)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NARROW)
def test_wide_sums_are_sent_in_float32_and_rounded_once(name, show):
    fn, dtype, _ = CASES[name]
    plan, _ = planned(fn, dtype, wide_sums=True)
    narrow, _ = planned(fn, dtype)
    assert [kind for kind, _ in sent(plan)] == ["float32"]
    assert sum(n for _, n in sent(plan)) == 2 * sum(n for _, n in sent(narrow))
    assert plan.verify().ok
    (result,) = plan.graph.results
    assert plan.graph.values[result].type.dtype == jnp.dtype(dtype).name
    once, parts = errors(name, wide_sums=True)[0].mean(), errors(name)[0].mean()
    show(f"{name}: error {once:.2g}, in its own type {parts:.2g}")
    assert once < parts
    back = narrow.replan(strategy(), options=sa.Options(switches=sa.Switches(wide_sums=True)))
    assert back.text() == plan.text()
    assert back.replan(strategy(), options=sa.Options()).text() == narrow.text()


def strategy():
    return sa.Strategy(MESH, in_shardings=BOTH, out_shardings=P())


TABLE_ROWS = 4


def rows_added(x, w):
    """4,096 rows added to a table of four: 1,024 to each."""
    ids = np.arange(TALL) % TABLE_ROWS
    return jnp.zeros((TABLE_ROWS, 4), x.dtype).at[ids].add(w)


def looked_up(x, w):
    """Return the gradient of a lookup: rows at indices of the table."""
    ids = np.arange(TALL) % TABLE_ROWS
    given = jnp.zeros((TABLE_ROWS, 4), x.dtype)
    return jax.grad(lambda table: (table[ids] * w).astype(F32).sum())(given)


# Name to function, and its sums in float64.
SENT_IN_PARTS = {
    "prefixes": (lambda x, w: jnp.cumsum(w, 0), lambda x, w: np.cumsum(w, 0)),
    "rows": (rows_added, lambda x, w: w.reshape(-1, TABLE_ROWS, 4).sum(0)),
    "gradient": (looked_up, lambda x, w: w.reshape(-1, TABLE_ROWS, 4).sum(0)),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", SENT_IN_PARTS)
def test_other_sums_are_wide_too(name, show):
    """Rounded once: within half a unit in the last place, except float32's own additions."""
    fn, exact = SENT_IN_PARTS[name]
    wide, arguments = planned(fn, BF16, wide_sums=True)
    narrow, _ = planned(fn, BF16)
    assert wide.verify().ok
    parts, narrow_parts = (plan.collectives()["wire_bytes"][0] for plan in (wide, narrow))
    assert parts == 2 * narrow_parts
    given = tuple(np.asarray(a).astype(np.float64) for a in arguments)
    want, added = exact(*given), exact(*map(np.abs, given))
    bound = np.abs(want) * float(jnp.finfo(BF16).eps) / 2 * (1 + 1e-3)
    bound += TALL * float(jnp.finfo(F32).eps) / 2 * added
    apart = [
        np.abs(np.asarray(made).astype(np.float64) - want)
        for plan in (wide, narrow)
        for made in (simulate(plan.program, plan.graph, *map(np.asarray, arguments))[0],
                     plan.lower()(*arguments))
    ]  # fmt: skip
    show(f"{name}: errors {[float(f'{a.max():.2g}') for a in apart]}, simulated and lowered")
    assert all((a <= bound).all() for a in apart[:2])
    assert all(a.mean() < b.mean() for a, b in zip(apart[:2], apart[2:], strict=True))


def test_a_saved_plan_keeps_its_wide_sums(tmp_path):
    plan, arguments = planned(product, BF16, wide_sums=True)
    plan.save(tmp_path / "plan.json")
    loaded = sa.load_plan(tmp_path / "plan.json")
    assert loaded.text() == plan.text()
    got = loaded.lower(fn=product)(*arguments)
    np.testing.assert_array_equal(got, plan.lower()(*arguments))


def test_the_table_of_switches_has_their_price():
    plan, _ = planned(product, BF16)
    table = plan.switches().set_index("options")["wire_bytes"]
    assert table["wide_sums=True"] == 2 * table["as planned"]


def test_named_sizes_go_without():
    plan, _ = planned(product, BF16)
    named = replace(plan.traced, symbols=object())
    with pytest.raises(sa.StrategyError, match="sizes of this plan have names"):
        named.with_sums(wide=True)


def halves(*shape):
    """Odd multiples of one half: cut off, parts of their sums are not the sum."""
    return np.random.default_rng(4).integers(-3, 3, shape) + 0.5


ROUNDED = {
    "product": told,
    "product of what is added up": lambda x, w: told(added(x, w), w[:4]),
    "by groups": lambda x, w: lax.ragged_dot(
        x, w[None], jnp.int32([4]), preferred_element_type=S32
    ),
    "truths, of sums that are 0": lambda x, w: jnp.dot(
        x - x[:, ::-1], jnp.ones_like(w), preferred_element_type=bool
    ),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("finite", [False, True])
@pytest.mark.parametrize("name", ROUNDED)
def test_sums_of_floats_given_as_whole_numbers_are_cut_off_once(name, finite):
    """Found by seed 2149: on one device what the whole sum has behind the point is cut off."""
    fn, arguments = ROUNDED[name], (np.float32(halves(4, 8)), np.float32(halves(8, 3)))
    made = {"mesh": MESH, "in_shardings": BOTH, "out_shardings": P()}
    plan = sa.plan(
        fn, *arguments, **made, options=sa.Options(switches=sa.Switches(finite_sums=finite))
    )
    assert plan.verify().ok
    want = fn(*map(jnp.asarray, arguments))
    for got in (simulate(plan.program, plan.graph, *arguments)[0], plan.lower()(*arguments)):
        np.testing.assert_array_equal(got, want)
