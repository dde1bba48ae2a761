"""The programs that XLA partitions wrongly, or aborts on: ours are right, and proved.

In double precision: XLA's convolution of f32 on a CPU reads memory that is not its own where the
padding is negative in front and positive behind (jaxlib 0.10.2), on one device too.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.simulate import simulate
from tests.oracle import corpus

PROGRAMS = corpus.xla_failures()
# A gradient takes a second each: four of them here, all with `-m slow`.
GRADIENTS = [n for n, p in enumerate(PROGRAMS) if p["kind"] == "convgrad"]
OTHERS = [n for n, p in enumerate(PROGRAMS) if p["kind"] != "convgrad"]
SAMPLE = (0, 13, 18, 40)
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
    """The plan, with XLA's annotations: of the arguments, and of what is made of them."""
    function = functools.partial(FUNCTIONS[program["kind"]], program)
    out = spec(program["out_spec"])
    if program["kind"] == "convgrad":
        function = functools.partial(function, keep=lambda y: lax.with_sharding_constraint(y, out))
        out = None
    specs = (spec(program["x_spec"]), spec(program.get("w_spec", ())))[: len(arguments)]
    mesh = sa.Mesh(program["mesh"])
    return sa.plan(function, *arguments, mesh=mesh, in_shardings=specs, out_shardings=out)


def drawn(program):
    shapes = [program[name] for name in ("x", "w") if name in program]
    return [np.random.default_rng(n).normal(size=shape) for n, shape in enumerate(shapes)]


@pytest.mark.parametrize("number", NUMBERS)
def test_ours_is_right_and_proved(number):
    program = PROGRAMS[number]
    arguments = drawn(program)
    with jax.enable_x64(True):
        want = jax.tree.leaves(FUNCTIONS[program["kind"]](program, *arguments))
        plan = planned(program, arguments)
        simulated = simulate(plan.program, plan.graph, *arguments)
        lowered = jax.tree.leaves(plan.lower()(*arguments)) if number % 10 == 0 else want
    report = plan.verify()
    assert report.ok, report.refuted
    for ours, run, theirs in zip(simulated, lowered, want, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(run, theirs, rtol=1e-9, atol=1e-9)
