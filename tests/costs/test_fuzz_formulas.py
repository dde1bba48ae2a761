"""A sample of `make fuzz-formulas`, and flops of windows compared with JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.sizes.formula import Formula, symbol
from shardalg.sizes.maximum import larger
from tests.costs import fuzz_formulas

WINDOWS = {
    "same": ((1,), "SAME", {}),
    "stride": ((2,), [(1, 1)], {}),
    "long padding": ((1,), [(4, 3)], {}),
    "cut padding": ((2,), [(-1, 2)], {}),
    "dilated": ((1,), "SAME", {"rhs_dilation": (2,)}),
    "transposed": ((1,), [(1, 2)], {"lhs_dilation": (2,)}),
    "transposed, stride": ((3,), [(2, 2)], {"lhs_dilation": (2,), "rhs_dilation": (2,)}),
}


def convolution(strides, padding, how):
    def fn(x, w):
        return lax.conv_general_dilated(
            x, w, strides, padding, dimension_numbers=("NWC", "WIO", "NWC"), **how
        )

    return fn


def test_formulas_of_random_functions_equal_plans_made_there(show):
    found = fuzz_formulas.run(6, 7, 4)
    assert not found.wrong, found.wrong
    show(f"{found.asked} points, {found.unchanged} without a change, holds at {found.held}")
    assert found.unchanged > 5


def test_a_wrong_formula_is_seen():
    case = fuzz_formulas.Case("product", lambda x, w: x @ w, (8, 4, 6), {"X": 2}, (P("X"), P()))
    point = {"B": 16, "M": 4, "N": 6, "X": 2}
    assert not list(fuzz_formulas.differences(case.named(), case.at(point), point))
    other = fuzz_formulas.differences(case.named(), case.at(point | {"N": 8}), point)
    assert {line.split()[0] for line in other} >= {"flops", "peak_memory_bytes"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", WINDOWS)
def test_flops_of_a_convolution_are_the_reads_that_exist(name):
    """Ones everywhere make each result the number of its reads, as JAX counts them."""
    fn = convolution(*WINDOWS[name])
    H, X = sa.dims("H", hint=12)[0], {"X": 2}

    def made(h, symbolic):
        x, w = (jax.ShapeDtypeStruct(s, "float32") for s in ((4, h, 2), (3, 2, 2)))
        mesh = sa.Mesh(X, symbolic=symbolic)
        return sa.plan(fn, x, w, mesh=mesh, in_shardings=(P("X"), P())).cost("tpu_v3")

    named = made(H, True).totals
    for h in (3, 4, 12, 13, 20):
        reads = int(fn(jnp.ones((4, h, 2)), jnp.ones((3, 2, 2))).sum())
        assert made(h, False).useful_flops == 2 * reads
        assert made(h, False).flops == reads
        assert Formula.of(named.useful_flops).at({"H": h, "X": 2}) == 2 * reads
        assert Formula.of(named.sum("flops")).at({"H": h, "X": 2}) == reads


@pytest.mark.parametrize("name", WINDOWS)
def test_flops_of_a_block_are_those_of_its_own_operator(name):
    """The image is split: a device convolves its block with the fetched borders."""
    fn = convolution(*WINDOWS[name])
    x, w = (jax.ShapeDtypeStruct(s, "float32") for s in ((4, 24, 2), (3, 2, 2)))
    plan = sa.plan(fn, x, w, mesh=sa.Mesh({"X": 2}), in_shardings=(P(None, "X"), P()))
    (ran,) = [
        i
        for i in plan.program.block.instructions
        if i.attributes.text(plan.mesh).startswith("conv")
    ]
    image, kernel = (jnp.ones(plan.program.locals[v].shape) for v in ran.operands)
    params = dict(plan.graph.nodes[ran.node].signature.params) | dict(ran.attributes.params)
    here = convolution(
        params["window_strides"],
        params["padding"],
        {key: params[key] for key in ("lhs_dilation", "rhs_dilation")},
    )
    assert plan.cost("tpu_v3").flops == 2 * int(here(image, kernel).sum())


def test_the_larger_of_ceilings_is_known_where_one_is_never_smaller():
    H = symbol("H")
    up, down = (H + 1) // 2, H // 2
    assert larger(up, down) == up
    assert larger(up - 1, down) == down
    assert larger(0, H - 1) == H - 1
    for h in range(1, 9):
        assert larger(H - 3, down).at({"H": h}) == max(h - 3, h // 2)
        assert larger((H - 5) // 2, 0).at({"H": h}) == max((h - 5) // 2, 0)
    assert np.all(larger(H - 3, 0).lambdify()(H=np.arange(1, 5)) == [0, 0, 0, 1])


MOVED = {
    "roll": lambda x: jnp.roll(x, 2, 0),
    "cumulated": lambda x: jnp.cumsum(x, 0),
    "cumulated backwards": lambda x: lax.cummax(x, 0, reverse=True),
    "shifted": lambda x: x[2:] - x[:-2],
    "padded": lambda x: jnp.pad(x, ((1, 1), (0, 0))),
    "pooled": lambda x: lax.reduce_window(x, 0.0, lax.add, (3, 1), (1, 1), "SAME"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MOVED)
def test_what_moves_along_a_sharded_dimension_has_formulas(name):
    """An exchange cuts margins out of blocks: at multiples the formulas are the plan's."""

    def made(size, symbolic):
        x = jax.ShapeDtypeStruct((size, 8), "float32")
        mesh = sa.Mesh({"X": 4}, symbolic=symbolic)
        return sa.plan(MOVED[name], x, mesh=mesh, in_shardings=(P("X"),))

    plan = made(sa.dims("B", hint=64)[0], True)
    held = 0
    for size in (64, 96, 128, 256):
        point = {"B": size, "X": 4}
        if plan.holds(B=size):
            held += 1
            assert not list(fuzz_formulas.differences(plan, made(size, False), point))
    assert held == 4 or name in ("shifted", "padded")  # cut unevenly: other blocks are moved there


def test_of_two_halves_of_a_block_the_one_that_is_sent_is_the_margin():
    # At the hints a block has two rows: one is sent, and one is kept.
    case = fuzz_formulas.Case(
        "difference",
        lambda x, w: (x[1:] - x[:-1]) @ w,
        (12, 12, 18),
        {"X": 2, "Y": 3},
        (P(("X", "Y")), P()),
    )
    plan = case.named()
    point = {"B": 36, "M": 6, "N": 24, "X": 2, "Y": 3}
    assert plan.holds(**point)
    for chip in fuzz_formulas.CHIPS:
        assert not [*fuzz_formulas.differences(plan, case.at(point), point, chip)]
