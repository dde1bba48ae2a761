"""The programs that XLA partitions wrongly, or aborts on: ours are right, and proved.

They run in f32, against one device in f64. One of them XLA gets wrong in f32 on one device too.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.host.simulate import simulate
from tests.oracle import corpus

# Relative to numbers above 1; one device in f32 is up to 2.6e-5 from itself in f64.
TOLERANCE = 1e-4
PROGRAMS = corpus.xla_failures()
# A gradient takes a second each: four of them here, all with `-m slow`.
GRADIENTS = [n for n, p in enumerate(PROGRAMS) if p["kind"] == "convgrad"]
OTHERS = [n for n, p in enumerate(PROGRAMS) if p["kind"] != "convgrad"]
SAMPLE = (0, 13, 18, 40)
WRONG_ON_ONE_DEVICE = 18
NUMBERS = [
    *OTHERS, *(n if n in SAMPLE else pytest.param(n, marks=pytest.mark.slow) for n in GRADIENTS)
]  # fmt: skip


def spec(axes):
    return P(*(tuple(a) if isinstance(a, list) else a for a in axes))


def padded(program, x):
    return lax.pad(x, x.dtype.type(0), (tuple(program["padding_config"]), (0, 0, 0)))


def convolved(program, x, w):
    options = (program[k] for k in ("strides", "padding", "lhs_dilation", "rhs_dilation"))
    return lax.conv_general_dilated(x, w, *options, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def gradients(program, x, w, *, keep=lambda y: y):
    return jax.grad(lambda x, w: jnp.sin(keep(convolved(program, x, w))).sum(), (0, 1))(x, w)


FUNCTIONS = {"pad": padded, "conv": convolved, "convgrad": gradients}


def planned(program, arguments):
    """Return the plan with XLA's annotations of the arguments and of derived values."""
    function = functools.partial(FUNCTIONS[program["kind"]], program)
    out = spec(program["out_spec"])
    if program["kind"] == "convgrad":
        function = functools.partial(function, keep=lambda y: lax.with_sharding_constraint(y, out))
        out = None
    specs = (spec(program["x_spec"]), spec(program.get("w_spec", ())))[: len(arguments)]
    mesh = sa.Mesh(program["mesh"])
    return sa.plan(function, *arguments, mesh=mesh, in_shardings=specs, out_shardings=out)


def drawn(program, dtype="float32"):
    shapes = [program[name] for name in ("x", "w") if name in program]
    numbers = [np.random.default_rng(n).normal(size=shape) for n, shape in enumerate(shapes)]
    return [array.astype(dtype) for array in numbers]


def one_device(program, dtype):
    results = FUNCTIONS[program["kind"]](program, *drawn(program, dtype))
    return [np.asarray(result) for result in jax.tree.leaves(results)]


def error(found, exact):
    """Return the largest difference, relative to numbers above 1."""
    pairs = zip(found, exact, strict=True)
    return max(np.max(np.abs(a - b) / (1 + np.abs(b)), initial=0) for a, b in pairs)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("number", NUMBERS)
def test_ours_is_right_and_proved(number):
    program = PROGRAMS[number]
    with jax.enable_x64(True):
        exact = one_device(program, "float64")
    arguments = drawn(program)
    plan = planned(program, arguments)
    assert error(simulate(plan.program, plan.graph, *arguments), exact) < TOLERANCE
    assert error(jax.tree.leaves(plan.lower()(*arguments)), exact) < TOLERANCE
    report = plan.verify()
    assert report.ok, report.refuted


def by_hand(program, x, w):
    """Both gradients tap by tap in numpy, without strides and dilation."""
    (low, high), (left, right) = program["padding"]
    x = np.pad(x, ((0, 0), (low, high), (left, right), (0, 0)))
    rows, columns = (n - k + 1 for n, k in zip(x.shape[1:3], w.shape[:2], strict=True))
    taps = {(r, c): np.s_[:, r : r + rows, c : c + columns] for r, c in np.ndindex(w.shape[:2])}
    out = np.cos(sum(x[at] @ w[tap] for tap, at in taps.items()))
    made, kernel = np.zeros_like(x), np.zeros_like(w)
    for tap, at in taps.items():
        made[at] += out @ w[tap].T
        kernel[tap] = np.einsum("nhwi,nhwf->if", x[at], out)
    return made[:, low : made.shape[1] - high, left : made.shape[2] - right], kernel


def test_xla_is_wrong_on_one_device(show):
    """XLA's f32 convolution on a CPU reads beyond the image if low padding is negative."""
    program = PROGRAMS[WRONG_ON_ONE_DEVICE]
    assert {*program["strides"], *program["lhs_dilation"], *program["rhs_dilation"]} == {1}
    want = by_hand(program, *drawn(program, "float64"))
    plan, arguments = planned(program, drawn(program)), drawn(program)
    xla = error(one_device(program, "float32"), want)
    ours = error(jax.tree.leaves(plan.lower()(*arguments)), want)
    show(f"error of one device in f32: {xla:.2g}, of ours on 8: {ours:.2g}")
    assert not xla <= 0.1, "a NaN is an error too"
    assert ours < TOLERANCE
