"""Repeated and shared movement: deferred sums, gathers, loops, remat, device orders."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd import instructions as p
from tests.partition.planned import (
    MESH,
    check_equal,
    checked,
    instructions,
    kinds,
    moves,
    numbers,
    planned,
)

AG, AR, RS = "all_gather", "all_reduce", "reduce_scatter"


def test_sums_of_partial_sums_are_reduced_once():
    """One example is the gradient of x under q, k and v."""

    def three(x, q, k, v):
        return x @ q + x @ k + x @ v

    arguments = numbers(4, 8), *(numbers(8, 4, seed=i) for i in range(3))
    plan = checked(three, arguments, (P("X", "Y"), P("Y"), P("Y"), P("Y")))
    assert moves(plan) == [(AR, "Y")]
    plan = checked(
        three, arguments, (P("X", "Y"), P("Y"), P("Y"), P("Y")), out_shardings=P(None, "Y")
    )
    assert sorted(moves(plan)) == [(AG, "X"), (RS, "Y")]


def test_sums_over_both_axes_are_one_however_they_are_written():
    """The loops are in another order, but the pending axes are the same set."""

    def two(a, b):
        return jnp.einsum("ij->", a) + jnp.einsum("ji->", b)

    plan = checked(two, (numbers(4, 8), numbers(8, 4)), (P("X", "Y"), P("Y", "X")))
    assert [kind for kind, _ in moves(plan)] == [AR]


@pytest.mark.parametrize(
    ("fn", "count"),
    [
        (lambda x, w: (x @ w) * 2 - jnp.sum(x @ w), 2),  # two users: reduced for both at once
        (lambda x, w: jnp.tanh(x @ w), 1),  # not linear: reduced before
        (lambda x, w: (x @ w).T * 3.0, 1),  # linear all the way: reduced at the end
        (lambda x, w: (x @ w) * (x @ w), 2),  # a product of sums is no sum of products
    ],
)
def test_only_linear_operators_pass_partial_sums_on(fn, count):
    plan = checked(fn, (numbers(4, 8), numbers(8, 4)), (P(None, "Y"), P("Y")))
    assert len(moves(plan)) <= count
    assert {kind for kind, _ in moves(plan)} == {AR}


def test_what_is_added_to_a_partial_sum_is_added_once():
    """x @ w is pending along Y, b is not: it must not be added four times."""
    arguments = numbers(4, 8), numbers(8, 4), numbers(4)
    checked(lambda x, w, b: x @ w + b, arguments, (P(None, "Y"), P("Y"), P()))


def ffn(w, x):
    """Use the weight twice forward, and both times again in the backward pass."""
    return jnp.tanh(jnp.tanh(x @ w) @ w)


def gradient(w, x):
    return jax.grad(lambda w: ffn(w, x).sum())(w)


WEIGHT_GATHERED = (P("X", None), P("X", None))


def gathers(plan):
    rows = [r for r in plan.collectives_table if r["kind"] == AG]
    return [(r["phase"], r["role"]) for r in rows]


def test_a_gather_is_shared_within_a_phase_and_not_across():
    arguments = numbers(8, 8) / 8, numbers(16, 8)
    more = {"roles": ("parameters", "data"), "out_shardings": P("X", None)}
    plan = checked(gradient, arguments, WEIGHT_GATHERED, **more)
    assert gathers(plan) == [("forward", "weight"), ("backward", "weight")]
    kept = checked(
        gradient, arguments, WEIGHT_GATHERED, options=sa.Options(keep_gathers=True), **more
    )
    assert gathers(kept) == [("forward", "weight")]


def test_what_nobody_calls_a_weight_is_gathered_once():
    """XLA keeps it as well; with roles, a weight is freed after the forward pass."""
    arguments = numbers(8, 8) / 8, numbers(16, 8)
    made, kept, freed = (
        checked(gradient, arguments, WEIGHT_GATHERED, options=o, out_shardings=P("X", None))
        for o in (sa.Options(), sa.Options(keep_gathers=True), sa.Options(keep_gathers=False))
    )
    assert gathers(made) == [("forward", "unknown")]
    assert made.program == kept.program
    assert [phase for phase, _ in gathers(freed)] == ["forward", "backward"]


def scanned(w, x, xs):
    """Return a scan with a constant, a carry, xs and ys."""

    def body(carry, x):
        carry = jnp.tanh(carry @ w) + x
        return carry, carry.sum(1)

    return lax.scan(body, x, xs)


def test_a_constant_lies_in_the_loop_as_its_body_reads_it():
    """Brought into its home it would be sent on in every trip; either way a device has a block."""

    def fn(w, v, x):
        def step(carry, _):
            return carry + jnp.tanh(carry @ w) @ v, None

        return lax.scan(step, x, None, length=3)[0]

    arguments = numbers(8, 16) / 8, numbers(16, 8) / 8, numbers(4, 8)
    plan = checked(fn, arguments, (P(None, "Y"), P(), P(None, "Y")))
    assert sorted(moves(plan)) == [(AG, "Y"), (RS, "Y")]


def test_what_repeats_a_smaller_value_is_repeated_rather_than_sent():
    """A bias in another sharding than its sum moves its own bytes, not the sum's."""
    arguments = numbers(8, 4), numbers(4, 16), numbers(16)
    plan = checked(lambda x, w, b: x @ w + b, arguments, (P("X"), P(), P(("X", "Y"))))
    assert moves(plan) == [(AG, "X,Y")]
    (row,) = plan.collectives_table
    assert row["wire_bytes"] == 16 * 4 * 7 // 8


SCANS = {
    "as inside": (P(None, "Y"), P("X", None), P(None, "X", None)),
    "constant": (P("Y", "X"), P("X", None), P(None, "X", None)),
    "carry": (P(None, "Y"), P("Y", "X"), P(None, "X", None)),
    "xs": (P(None, "Y"), P("X", None), P(None, "Y", "X")),
    "length": (P(None, "Y"), P("X", None), P("X", None, "Y")),
    "nothing": (None, None, None),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("out", [None, (P(None, "Y"), P("Y", "X"))], ids=["completed", "given"])
@pytest.mark.parametrize("name", SCANS)
def test_scans_whose_layouts_differ_inside_and_outside(name, out):
    arguments = numbers(8, 8) / 8, numbers(4, 8), numbers(3, 4, 8)
    plan = checked(scanned, arguments, SCANS[name], out_shardings=out)
    loops = [s for s in plan.program.block.instructions if isinstance(s.attributes, p.Loop)]
    assert [s.attributes.length for s in loops] == [3]


@pytest.mark.parametrize("sizes", [(5, 7, 3), (4, 8, 0), (4, 8, 1)], ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_scans_uneven_empty_and_reversed(sizes, reverse):
    b, m, length = sizes

    def fn(w, x, xs):
        return lax.scan(lambda c, x: (c @ w + x, c.sum()), x, xs, reverse=reverse)

    arguments = numbers(m, m) / 8, numbers(b, m), numbers(length, b, m)
    checked(fn, arguments, (P("X", "Y"), P("X", "Y"), P(None, "X", "Y")))


def test_counts_of_a_scan_body_include_its_trips():
    arguments = numbers(8, 8), numbers(4, 8), numbers(3, 4, 8)
    plan = planned(scanned, arguments, SCANS["as inside"])
    inside = [r["executions"] for r in plan.collectives_table if r["region"] == "scan"]
    assert inside
    assert set(inside) == {3}


def test_a_rematerialised_layer_stays_behind_its_barrier():
    def loss(w, x):
        return jax.checkpoint(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w))(w, x).sum()

    arguments = numbers(8, 8) / 8, numbers(16, 8)
    plan = checked(jax.grad(loss), arguments, WEIGHT_GATHERED, out_shardings=P("X"))
    steps = list(instructions(plan.program.block))
    barriers = [
        s for s in steps if "optimization_barrier" in getattr(s.attributes, "primitive", "")
    ]
    assert barriers
    text = plan.lower().stage.as_text()
    assert "optimization_barrier" in text


def margins(fn, arguments, **options):
    """Return phase and bytes of fetched margins; the plan is right and proved."""
    rows = P(None, "X")
    plan = checked(
        fn,
        arguments,
        (rows, P())[: len(arguments)],
        out_shardings=rows if len(arguments) == 1 else (rows, P()),
        mesh=sa.Mesh({"X": 4}),
        options=sa.Options.of(options),
    )
    table = plan.collectives_table
    return [(r["phase"], r["wire_bytes"]) for r in table if r["kind"] == "collective_permute"]


def convolved(x, k):
    return lax.conv_general_dilated(
        x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def test_a_margin_fetched_forward_serves_the_gradient():
    """The image is fetched once for the product and the kernel's gradient, the cotangent once."""
    gradients = jax.grad(lambda x, k: (convolved(x, k) ** 2).sum(), (0, 1))
    arguments = numbers(2, 16, 8, 4), numbers(3, 3, 4, 2)
    image, cotangent = [("forward", 256)] * 2, [("backward", 128)] * 2
    again = [("backward", 256)] * 2
    assert margins(gradients, arguments) == image + cotangent
    assert margins(gradients, arguments, share_gathers=False) == image + again + cotangent


def test_a_margin_as_large_as_the_block_is_a_copy():
    """A reversal sends whole blocks: they are kept for the backward pass only if copies are."""

    def fn(x):
        y, back = jax.vjp(lambda x: lax.rev(x, (1,)) * x, x)
        return back(y)[0] + lax.rev(x, (1,))

    arguments = (numbers(2, 16),)
    freed, kept = (margins(fn, arguments, keep_gathers=keep) for keep in (False, True))
    assert len(freed) > len(kept)


def test_a_permuted_mesh_gives_the_same_program():
    mesh = sa.Mesh({"X": 2, "Y": 4}, device_ids=(3, 1, 2, 0, 7, 6, 5, 4))
    arguments = numbers(7, 9), numbers(9, 8)
    specs = (P("X", "Y"), P("Y", None))
    fn = lambda x, w: jnp.tanh(x @ w)  # noqa: E731
    straight, permuted = planned(fn, arguments, specs), planned(fn, arguments, specs, mesh=mesh)
    assert permuted.text().splitlines()[1:] == straight.text().splitlines()[1:]
    check_equal(permuted, fn, arguments)
    result = permuted.lower()(*arguments)
    np.testing.assert_allclose(result, fn(*arguments), rtol=1e-5)
    assert MESH.device_ids is None
    assert "Mask" in kinds(permuted)
