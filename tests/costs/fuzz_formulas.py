"""Formulas of random functions in random layouts, compared with plans made at other sizes.

A formula is right if it equals the plan made at the point: bytes, flops and memory exactly, seconds
to 1e-9. That is asked wherever `holds` is True or `at` reports no change.

    python -m tests.costs.fuzz_formulas [functions [seed [points]]]
"""

import random
import sys
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import sympy
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.costs.hardware import load

EXACT = ("wire_bytes", "flops", "useful_flops", "peak_memory_bytes")
SECONDS = ("step_time_s", "compute_s", "communication_s")
# Formulas in named axes have links of their own for each axis, whatever its size.
CHIPS = tuple(load(name).with_own_links() for name in ("tpu_v3", "h100", "a100_40gb"))
TAPS = 3


def _ends(rng, kernel):
    """Random padding of a window: it may be longer than the image needs."""
    return [(rng.randint(0, 2), rng.randint(0, 2))], {
        "window_strides": (rng.choice((1, 1, 2, 3)),),
        "lhs_dilation": (rng.choice((1, 1, 1, 2)),),
        "rhs_dilation": (rng.choice((1, 1, 2)),),
    }


def matmul(rng):
    return lambda x, w: jnp.tanh(x @ w)


def softmax(rng):
    return lambda x, w: jax.nn.log_softmax(x @ w)


def norm(rng):
    def fn(x, w):
        y = x - x.mean(-1, keepdims=True)
        return (y * lax.rsqrt((y**2).mean(-1, keepdims=True) + 1e-6)) @ w

    return fn


def mlp(rng):
    return lambda x, w: jax.nn.gelu(x @ w) @ w.T + x


def outer(rng):
    return lambda x, w: jnp.exp(x[:, :, None] * w[None]).sum(1)


def reductions(rng):
    return lambda x, w: (x @ w).sum(0) + w.max(0) - (x.sum(0) @ w)


def where(rng):
    return lambda x, w: jnp.where(x @ w > 0, jnp.arange(w.shape[1]), 0).sum(1)


def roll(rng):
    shift, axis = rng.choice((1, -1, 2)), rng.choice((0, 1))
    return lambda x, w: jnp.roll(x, shift, axis) @ w


def cumsum(rng):
    axis = rng.choice((0, 1))
    return lambda x, w: jnp.cumsum(x @ w, axis)


def difference(rng):
    return lambda x, w: (x[1:] - x[:-1]) @ w


def joined(rng):
    axis = rng.choice((0, 1))
    return lambda x, w: jnp.concatenate([x, jnp.sin(x)], axis).sum(1)


def stacked(rng):
    return lambda x, w: jnp.stack([x @ w, x @ jnp.cos(w)]).sum(rng.choice((1, 2)) and 1)


def looped(rng):
    return lambda x, w: lax.scan(lambda c, _: (jnp.tanh(c @ w @ w.T), c.sum()), x, None, length=3)


def convolution(rng):
    padding, how = _ends(rng, TAPS)

    def fn(x, w):
        kernel = jnp.broadcast_to(w[:TAPS, None, None], (TAPS, 1, 1, w.shape[1]))[:, :, 0]
        return lax.conv_general_dilated(
            x[..., None], kernel, padding=padding, dimension_numbers=("NWC", "WIO", "NWC"), **how
        )

    return fn


def pooling(rng):
    stride, padding = rng.choice((1, 2, 3)), rng.choice(("SAME", "VALID"))

    def fn(x, w):
        return lax.reduce_window(x @ w, -jnp.inf, lax.max, (1, TAPS), (1, stride), padding)

    return fn


def attention(rng):
    def fn(x, w):
        scores = (x @ w) @ (x @ w).T
        return jax.nn.softmax(scores) @ x

    return fn


FUNCTIONS = (
    matmul, softmax, norm, mlp, outer, reductions, where, roll, cumsum, difference, joined, stacked,
    looped, convolution, pooling, attention,
)  # fmt: skip
SPECS = (None, "X", "Y", ("X", "Y"))


@dataclass
class Case:
    """A random function with sizes that have names, and its layouts."""

    name: str
    fn: object
    hints: tuple[int, int, int]
    axes: dict[str, int]
    specs: tuple[P, P]
    out: object = None

    def plan(self, sizes, axes, *, symbolic):
        B, M, N = sizes
        x, w = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((B, M), (M, N)))
        mesh = sa.Mesh(axes, symbolic=symbolic)
        return sa.plan(self.fn, x, w, mesh=mesh, in_shardings=self.specs)

    def named(self):
        return self.plan(sa.dims("B M N", hint=self.hints), self.axes, symbolic=True)

    def at(self, point):
        axes = {name: point[name] for name in self.axes}
        return self.plan([point[name] for name in "BMN"], axes, symbolic=False)


def _gradient(fn):
    def step(x, w):
        def loss(w):
            found = fn(x, w)
            return sum((leaf**2).mean() for leaf in jax.tree.leaves(found))

        return w - 0.1 * jax.grad(loss)(w)

    return step


def random_case(rng):
    """Draw a function, or a training step with it, in a random sharding."""
    make = rng.choice(FUNCTIONS)
    fn, name = make(rng), make.__name__
    if rng.random() < 0.4:
        fn, name = _gradient(fn), f"gradient of {name}"
    axes = {"X": rng.choice((2, 4)), "Y": rng.choice((2, 3))}
    unit = axes["X"] * axes["Y"]
    hints = tuple(unit * rng.choice((1, 2, 3, 5, 8)) for _ in range(3))

    def spec():
        first, second = rng.choice(SPECS), rng.choice(SPECS)
        used = {first} if isinstance(first, str) else set(first or ())
        clash = used & ({second} if isinstance(second, str) else set(second or ()))
        return P(first, None if clash else second)

    return Case(name, fn, hints, axes, (spec(), spec()))


def random_point(rng, case):
    """Multiples of the axes, sizes nearby, or other axes."""
    kind = rng.choice(("multiples", "near", "axes"))
    axes = dict(case.axes)
    if kind == "axes":
        axes = {name: rng.choice((2, 3, 4, 6)) for name in axes}
    unit = axes["X"] * axes["Y"]
    if kind == "near":
        sizes = [max(2, round(n * rng.uniform(0.75, 1.25))) for n in case.hints]
    else:
        sizes = [unit * rng.choice((1, 2, 3, 4, 6, 10)) for _ in case.hints]
    return dict(zip("BMN", sizes, strict=True)) | axes


@dataclass
class Found:
    """The results of comparing some functions."""

    asked: int = 0
    held: int = 0
    unchanged: int = 0
    unpriced: list = field(default_factory=list)
    without: list = field(default_factory=list)
    wrong: list = field(default_factory=list)


def number(expression, point):
    """Return a formula's exact value at a point."""
    expression = sympy.sympify(expression)
    return expression.subs({symbol: point[symbol.name] for symbol in expression.free_symbols})


def _quantities(plan, chip, point=None):
    cost = plan.cost(chip)
    values = {name: getattr(cost, name) for name in (*EXACT, *SECONDS)}
    return values if point is None else {n: number(v, point) for n, v in values.items()}


def differences(plan, there, point, chip=CHIPS[0]):
    """Return the quantities whose formulas differ from the plan made at the point."""
    formulas, found = _quantities(plan, chip, point), _quantities(there, chip)
    for name in EXACT:
        if formulas[name] != sympy.Rational(str(found[name])):
            yield f"{name} on {chip.name}: {formulas[name]} by the formula, {found[name]} there"
    for name in SECONDS:
        ours, theirs = float(formulas[name]), float(found[name])
        if abs(ours - theirs) > 1e-9 * abs(theirs):
            yield f"{name} on {chip.name}: {ours} by the formula, {theirs} there"


def compare(case, points, rng, found):
    """Ask one function at random points."""
    try:
        plan = case.named()
        plan.cost(CHIPS[0])
    except sa.FormulaError as error:
        found.without.append((case.name, str(error)[:160]))
        return
    except sa.SymbolError as error:  # the function cannot be traced at other sizes
        found.without.append((case.name, str(error)[:160]))
        return
    at_hints = dict(zip("BMN", case.hints, strict=True)) | case.axes
    for number_ in range(points):
        point = random_point(rng, case) if number_ else at_hints
        found.asked += 1
        try:
            holds = plan.holds(**point)
            there = case.at(point) if holds else plan.at(**point)
        except (sa.ShardalgError, TypeError, ValueError):
            continue  # the function cannot be traced, or is another one, there
        if not holds and len(there.changes):
            kinds = {row["kind"] for row in there.changes}
            if kinds <= {"peak", "formula"}:
                found.unpriced.append((case, point, there.changes.rows))
            continue
        if len(there.graph.values) != len(plan.graph.values):
            continue  # two numbers that Python makes of sizes are equal there: one value
        found.held, found.unchanged = found.held + holds, found.unchanged + 1
        for line in differences(plan, there, point, rng.choice(CHIPS)):
            found.wrong.append((case, point, holds, line))


def run(functions, seed, points):
    """Compare so many random functions; the seed decides which."""
    found = Found()
    for number_ in range(functions):
        rng = random.Random(f"{seed}/{number_}")
        compare(random_case(rng), points, rng, found)
    return found


def main(functions=200, seed=0, points=20):
    """Print what differs; 1 if something does."""
    found = run(functions, seed, points)
    for case, point, rows in found.unpriced[:10]:
        print(f"reported by at(): {case.name} {case.specs} {case.hints} {point}: {rows}")
    for name, text in found.without:
        print(f"no formulas: {name}: {text}")
    for case, point, holds, line in found.wrong[:20]:
        print(f"WRONG: {case.name} {case.specs} {case.hints} {case.axes} {point} {holds}: {line}")
    print(
        f"seed {seed}: {functions} functions x {points} points: {found.asked} asked, holds at "
        f"{found.held} of {found.unchanged} without a change, {len(found.wrong)} differences; "
        f"{len(found.unpriced)} points where only a formula changes, "
        f"{len(found.without)} functions without formulas"
    )
    return bool(found.wrong)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
