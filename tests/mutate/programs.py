"""Programs that are tampered with: one of each family, small, together every kind of instruction.

Drawn numbers are whole and small, so that sums are exact in any order, except where a model asks
for others.
"""

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.plan.explain.switches import FLIPPED

MESH = sa.Mesh({"X": 2, "Y": 4})
SQUARE = sa.Mesh({"X": 2, "Y": 2})
LINE = sa.Mesh({"Y": 4})
ROWS = P("Y")
WEIGHTS = (2, 3, 8, 4, 2), (2, 8, 8), (2, 8, 8)
WEIGHT_SPECS = P(None, None, "X", "Y"), P(None, "X", "Y"), P(None, "Y", "X")


@dataclass(frozen=True, eq=False)
class Case:
    """A function with its arguments and shardings.

    Attributes:
      types: (shape, dtype, bound) per flattened argument: whole numbers from -bound to bound, from
        0 where the bound is negative.
      specs, results: layouts of arguments and results.
    """

    fn: object
    types: tuple = ()
    specs: tuple = ()
    results: object = None
    mesh: sa.Mesh = MESH
    options: sa.Options = sa.Options()  # noqa: RUF009 (frozen)

    def drawn(self, seed):
        """Arguments of a seed."""
        rng = np.random.default_rng(seed)
        return [_numbers(rng, *one) for one in self.types]

    @cached_property
    def plan(self):
        return sa.plan(
            self.fn,
            *self.drawn(0),
            mesh=self.mesh,
            in_shardings=self.specs,
            out_shardings=self.results,
            options=self.options,
        )


def _numbers(rng, shape, dtype="float32", bound=4):
    if isinstance(bound, float):
        return (rng.normal(size=shape) * bound).astype(dtype)
    low = 0 if bound < 0 else -bound
    return np.asarray(rng.integers(low, abs(bound) + 1, shape)).astype(dtype)


def trained(layers, x, y):
    """Loss and updated weights of two layers, attention and a ReLU each, in a scan."""

    def layer(x, weights):
        qkv, up, down = weights
        q, k, v = jnp.einsum("bsm,cmnd->cbsnd", x, qkv)
        scores = jax.nn.softmax(jnp.einsum("bsnd,btnd->bnst", q, k))
        x = x + jnp.einsum("bnst,btnd->bsnd", scores, v).reshape(x.shape)
        return x + jax.nn.relu(x @ up) @ down, None

    def loss(layers):
        return ((lax.scan(layer, x, layers)[0] - y) ** 2).mean()

    value, gradients = jax.value_and_grad(loss)(layers)
    return value, jax.tree.map(lambda w, g: w - 0.5 * g, layers, gradients)


def experts(x, gate, w, v):
    """Top-1 routing of tokens to experts through one-hot dispatch, and its gradient."""

    def loss(w, v):
        scores = x @ gate
        chosen = jax.nn.one_hot(jnp.argmax(scores, -1), gate.shape[1])
        place = jnp.cumsum(chosen, 0) * chosen - 1
        mask = jax.nn.one_hot(place.astype(int), 4)
        inside = jnp.einsum("tec,tm->ecm", mask, x)
        out = jnp.einsum("ech,ehm->ecm", jax.nn.relu(jnp.einsum("ecm,emh->ech", inside, w)), v)
        return jnp.einsum("tec,ecm->tm", mask, out).sum()

    return jax.value_and_grad(loss, (0, 1))(w, v)


NUMBERS = ("HNC", "HIO", "HNC")


def convolved(x, kernel):
    """Halos on both sides of uneven blocks, strides, dilation, and a pooling with its gradient."""
    same = lax.conv_general_dilated(x, kernel, (1,), "SAME", dimension_numbers=NUMBERS)
    apart = lax.conv_general_dilated(
        x, kernel, (2,), ((2, 1),), lhs_dilation=(3,), dimension_numbers=NUMBERS
    )
    out, back = jax.vjp(
        lambda x: lax.reduce_window(x, -np.inf, lax.max, (4, 1, 1), (2, 1, 1), "SAME"), x
    )
    return same, apart, back(out + 1)[0]


def reshaped(x, y):
    """Rows regrouped over block borders, dimensions merged and split, layouts that change hands."""
    z = y.reshape(2, 8, 8).sum(0)
    return x.reshape(5, 6), jnp.flip(y, 1).reshape(8, 2, 8).transpose(1, 0, 2), z * z.T


def cuts_moved(x):
    """Two cuts that move between dimensions of their own in one exchange, there and back."""
    there = NamedSharding(SQUARE.to_jax(), P(None, "X", None, "Y"))
    y = lax.with_sharding_constraint(2 * x, there)
    return y + 1, y * y


def gathered_at_once(x, rows, columns):
    """Return both dimensions of a value gathered, and sums scattered along two dimensions."""
    return 2 * x, rows @ columns


def looked_up(table, w, ids, new, start, shift):
    """Return a gather, a scatter, a box written and read at run-time starts, one element."""
    ids = ids + shift.sum(0)
    rows = jnp.asarray(table).at[ids].get(mode="fill", fill_value=7)
    added = jnp.asarray(table).at[ids].add(rows * 2, mode="drop")
    clipped = jnp.asarray(table).at[ids].get(mode="clip") @ w
    box = lax.dynamic_slice(table, (start, 0), (3, table.shape[1]))
    return (
        rows,
        added,
        (clipped * clipped).sum(0),
        lax.dynamic_update_slice(table, new, (start, 0)),
        (box.sum(1) + table[5, :3]),
    )


def ordered(x, y):
    """Prefixes both ways, places and values of the best, a sort, a median."""
    return (
        jnp.cumsum(x, 0),
        lax.cummax(x, 0, reverse=True),
        jnp.argmax(x, 0),
        lax.top_k(y, 2, axis=0),
        jnp.sort(x, 0),
    )


def folded(x, y, start, other):
    """Return a reduction by a user's function, from numbers that are arguments, and others."""

    def product(a, b):
        return a[0] * b[1] + a[1] * b[0], a[1] * b[1]

    both = lax.reduce((x, y), (np.float32(0), np.float32(1)), product, (0,))
    prod = lax.reduce(y, start, lax.add, (0,))
    return (*both, prod, jnp.max(x, 0) + jnp.min(y, 0), jnp.prod(other, 0), jnp.all(other > 1, 0))


def controlled(x, w, flag):
    """Return a while whose condition sums, a branch with a maximum, a scan around both."""

    def body(carry):
        count, y = carry
        return count + 1, jnp.where(y @ w > 9, 1.0, y - 1)

    _, y = lax.while_loop(
        lambda c: (c[0] < 4) & (jnp.abs(c[1]).sum() + w.sum() > -90), body, (0, x)
    )
    ways = (
        lambda y: y.max(0) + w.max(0),
        lambda y: y.sum(0),
        lambda y: (y @ w)[3],
    )
    z = lax.switch(flag, ways, y)
    z += lax.cond(flag > 1, lambda y: jnp.max(y, 0), lambda y: jnp.max(y * 2, 0), y)

    def step(carry, row):
        carry = jnp.maximum(carry, row * z)
        return carry, (carry * row).sum()

    return lax.scan(step, jnp.zeros_like(z), x, reverse=True), y


def by_hand(x, w):
    """Return a manual region with collectives of its own between automatic operators."""

    def region(x, w):
        rows = lax.all_gather(x @ w, "X", tiled=True)
        y = lax.psum(lax.psum_scatter(rows, "X", tiled=True), "Y") + lax.axis_index("X")
        x += lax.all_to_all(x, "X", 0, 0, tiled=True)
        return y, lax.ppermute(x, "Y", [(0, 1), (1, 0)]) + lax.pmax(x, "X")

    border = {"in_specs": (P("X", "Y"), P("Y")), "out_specs": (P("X"), P("X", "Y"))}
    made = jax.shard_map(region, mesh=SQUARE.to_jax(), check_vma=False, **border)
    y, z = made(x * 2, w)
    return y.sum(0), z + x


def dropped(x, words):
    """Random bits of sharded positions."""
    key = jax.random.wrap_key_data(words)
    kept = jnp.where(jax.random.bernoulli(key, 0.5, x.shape), 2 * x, 0)
    return kept, kept.sum(0)


def padded(x, y, fill):
    """Return pads of all kinds, a rotation, a concatenation, a reversal, a strided slice."""
    other = y.sum()
    return (
        jnp.concatenate([x[3:], x[:3]], 0),
        jnp.concatenate([x, y], 0),
        lax.pad(x, fill, ((1, 2, 0), (0, 0, 0))),
        lax.pad(y, other, ((0, 1, 1), (0, 0, 0)))[::2],
        jnp.flip(x, 0),
    )


def updated(w, m, x, y):
    """Return a step of momentum on a weight with the optimizer's sharding."""
    g = jax.grad(lambda w: ((x @ w - y) ** 2).sum())(w)
    m = 2 * m + g
    return w - m, m, jnp.einsum("bm,bn->mn", x, y) + jnp.ones((6, 1)) * jnp.arange(6.0)[:, None]


def in_rings(x, up, down, y, z):
    """Products of a gathered operand, kept and summed, and one whose sums are scattered."""
    return jnp.maximum(x @ up, 0) @ down, jnp.einsum("km,kn->mn", y, z)


TABLE = ((11, 4), "float32", 9)
LOOKED_UP = Case(
    looked_up,
    (TABLE, ((4, 6),), ((7,), "int32", 11), ((3, 4),), ((), "int32", -40), ((4, 7), "int32", 1)),
    (ROWS, P(None, "X"), P("X"), P(), P(), ROWS),
    (P("X"), ROWS, P("Y"), ROWS, P()),
)
ORDERED = Case(ordered, (((9, 3),), ((17, 3),)), (ROWS, ROWS), (ROWS, ROWS, P(), (P(), P()), ROWS))
CONTROLLED = Case(
    controlled,
    (((8, 4),), ((4, 4),), ((), "int32", -2)),
    (P("Y", "X"), P("X"), P()),
    ((P(), P()), P("Y", "X")),
)
PADDED = Case(padded, (((9, 3),), ((13, 3),), ((), "float32", 4)), (ROWS, ROWS, P()), (ROWS,) * 5)
RESHAPED = Case(
    reshaped,
    (((10, 3),), ((16, 8),)),
    (ROWS, P(("X", "Y"), None)),
    (ROWS, P("X", "Y"), P("Y", "X")),
)
UPDATED = Case(
    updated,
    (((6, 6),), ((6, 6),), ((8, 6),), ((8, 6),)),
    (P("X", "Y"), P("X", "Y"), P("X", None), P("X", "Y")),
    (P("X", "Y"), P(("X", "Y")), P("Y", "X")),
    SQUARE,
)


def again(case, **options):
    """Plan the same case with other options."""
    return Case(case.fn, case.types, case.specs, case.results, case.mesh, sa.Options.of(options))


def every_option():
    """Options of every policy, and the default's with each switch the other way.

    A TPU v3, the default, gains nothing of rings: an H100 does.
    """
    default = sa.Options().settings
    yield from ({"policy": policy} for policy in ("gspmd", "shardy", "cost"))
    yield from ({name: not default[name]} for name in FLIPPED)
    yield {"collective_matmul": True, "hardware": "h100"}


CASES = {
    "trained": Case(
        lambda *leaves: trained(leaves[:3], *leaves[3:]),
        tuple((shape, "float32", 0.5) for shape in (*WEIGHTS, (4, 4, 8), (4, 4, 8))),
        (*WEIGHT_SPECS, P("X"), P("X")),
        (P(), WEIGHT_SPECS),
    ),
    "experts": Case(
        experts,
        (((8, 4),), ((4, 4),), ((4, 4, 6),), ((4, 6, 4),)),
        (P("X"), P(), P("X", None, "Y"), P("X", "Y")),
        (P(), (P("X", None, "Y"), P("X", "Y"))),
        SQUARE,
    ),
    "convolved": Case(
        convolved, (((14, 1, 2), "float32", 9), ((4, 2, 3),)), (ROWS, P()), (ROWS, ROWS, ROWS), LINE
    ),
    "reshaped": RESHAPED,
    "looked up": LOOKED_UP,
    "ordered": ORDERED,
    "folded": Case(
        folded,
        (((9, 3),), ((9, 3),), ((), "float32", 0), ((9, 3), "int32", 2)),
        (ROWS, ROWS, P(), ROWS),
        P(),
    ),
    "controlled": CONTROLLED,
    "by hand": Case(
        by_hand, (((8, 8),), ((8, 4),)), (P("X", "Y"), P("Y")), (P("X"), P("X", "Y")), SQUARE
    ),
    "dropped": Case(
        dropped, (((10, 6),), ((2,), "uint32", -9)), (P("X", "Y"), P()), (P("X", "Y"), P("Y"))
    ),
    "padded": PADDED,
    "updated": UPDATED,
    "cuts moved": Case(
        cuts_moved,
        (((4, 4, 4, 4),),),
        (P("X", None, "Y"),),
        (P(None, "X", None, "Y"), P("X", None, "Y")),
        SQUARE,
    ),
    "gathered at once": Case(
        gathered_at_once,
        (((4, 4),), ((4, 64),), ((64, 4),)),
        (P("X", "Y"), P(None, ("X", "Y")), P(("X", "Y"))),
        (P(), P("X", "Y")),
        SQUARE,
    ),
    "in rings": Case(
        in_rings,
        (((16, 4),), ((4, 16),), ((16, 12),), ((32, 16),), ((32, 16),)),
        (ROWS, P(None, "Y"), ROWS, ROWS, ROWS),
        (ROWS, ROWS),
        LINE,
        sa.Options(hardware="h100", switches=sa.Switches(collective_matmul=True)),
    ),
    "looked up, shardy": again(LOOKED_UP, policy="shardy"),
    "controlled, cost": again(CONTROLLED, policy="cost"),
    "updated, by switches": again(
        UPDATED, policy="cost", defer_sums=False, share_gathers=False, keep_gathers=True
    ),
    "reshaped, by switches": again(RESHAPED, join_formatting=False, pad_blocks=False),
    "padded, by switches": again(PADDED, join_formatting=False, hoist_gathers=True),
}
