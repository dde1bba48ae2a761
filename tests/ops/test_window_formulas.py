"""Formulas of window reads with named kernel and image sizes equal a brute-force count."""

import random

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.algebra.affine import Index
from shardalg.costs.flops import inside
from shardalg.sizes.formula import symbol

SLOPES = [(1, 1), (2, 1), (1, 3), (3, 1), (-1, 1), (1, -1), (2, -1), (-3, 1), (-1, -1)]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("outer", "inner"), SLOPES)
def test_reads_of_two_named_loops_are_counted(outer, inner):
    rng = random.Random(outer * 10 + inner)
    O, K, E = symbol("O"), symbol("K"), symbol("E")
    for _ in range(40):
        start = rng.randint(-6, 6)
        index = Index.of("o") * outer + Index.of("r") * inner + start
        formula = inside(index, {"o": O, "r": K}, E)
        for _ in range(5):
            sizes = {"O": rng.randint(1, 9), "K": rng.randint(1, 9), "E": rng.randint(1, 12)}
            points = (
                outer * o + inner * r + start for o in range(sizes["O"]) for r in range(sizes["K"])
            )
            assert formula.at(sizes) == sum(0 <= at < sizes["E"] for at in points)


def convolution(padding, stride=1):
    def convolved(x, w):
        dims = ("NWC", "WIO", "NWC")
        return lax.conv_general_dilated(x, w, (stride,), padding, dimension_numbers=dims)

    return convolved


def loss(x, w):
    return jnp.sum(convolution("SAME")(x, w) ** 2)


PROGRAMS = {
    "same": (convolution("SAME"), P("X")),
    "same, image split": (convolution("SAME"), P(None, "X")),
    "same, stride 2": (convolution("SAME", 2), P("X")),
    "padded by 2": (convolution([(2, 2)]), P("X")),
    "gradient": (jax.grad(loss, (0, 1)), P("X")),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_plan_with_a_named_kernel_and_image_has_formulas(name):
    """The formula's flops equal the flops of a plan made at the point, where the plan holds."""
    function, layout = PROGRAMS[name]
    N, H, K = sa.dims("N H K", hint=(10, 20, 5))
    given = jax.ShapeDtypeStruct((N, H, 4), "f4"), jax.ShapeDtypeStruct((K, 4, 4), "f4")
    mesh = sa.Mesh({"X": 2})
    plan = sa.plan(function, *given, mesh=mesh, in_shardings=(layout, P()))
    cost, held = plan.cost("tpu_v3"), 0
    for point in ({"N": 12}, {"H": 24}, {"K": 7}, {"N": 20, "H": 40, "K": 7}):
        there = plan.at(**point).cost("tpu_v3")
        sizes = {"N": 10, "H": 20, "K": 5, **point}
        if plan.holds(**point):
            held += 1
            for quantity in ("flops", "useful_flops"):
                formula = getattr(cost, quantity)
                values = {name: sizes[name.name] for name in formula.free_symbols}
                assert int(formula.subs(values)) == getattr(there.at_hints, quantity)
    assert held >= 1
