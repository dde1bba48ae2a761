"""Windows over sharded dimensions: right on every device, proved, and fetched by permutes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.host.simulate import simulate
from tests.partition import windowed
from tests.partition.planned import check_equal, kinds, moves, numbers, planned

MESHES = {
    "4": sa.Mesh({"X": 4, "Y": 1}),
    "2x2 permuted": sa.Mesh({"X": 2, "Y": 2}, device_ids=(2, 0, 3, 1)),
    "4x2": sa.Mesh({"X": 4, "Y": 2}),
    "8": sa.Mesh({"X": 8, "Y": 1}),
}
ROWS, BOTH, TWICE = P(None, "X"), P(None, "X", "Y"), P(None, ("X", "Y"))


def conv(**options):
    """Return a convolution of (N, H, W, C) with (H, W, I, O)."""
    chosen = {"window_strides": (1, 1), "padding": "SAME"} | options
    return lambda x, k: lax.conv_general_dilated(
        x, k, dimension_numbers=("NHWC", "HWIO", "NHWC"), **chosen
    )


def gradients(fn):
    """Both gradients of a function of two arrays, for a cotangent that differs everywhere."""

    def both(x, k):
        out, back = jax.vjp(fn, x, k)
        return back(jnp.arange(out.size, dtype=out.dtype).reshape(out.shape) % 7)

    return both


def pool(reduce, start, pads="VALID", strides=2, size=3):
    shape, steps = (1, size, size, 1), (1, strides, strides, 1)
    return lambda x: lax.reduce_window(x, start, reduce, shape, steps, pads)


def gradient(fn):
    def one(x):
        out, back = jax.vjp(fn, x)
        return back(jnp.arange(out.size, dtype=out.dtype).reshape(out.shape) % 5)[0]

    return one


def flipped(x):
    return lax.rev(x, (1, 2))


def padded(*config):
    return lambda x: lax.pad(x, np.float32(9), ((0, 0, 0), *config, (0, 0, 0)))


IMAGE, KERNEL = (2, 12, 8, 4), (3, 3, 4, 2)
# name: (function, shapes, layout of the image, layout of the result, mesh, fits: gathers nothing)
CASES = {
    "same": (conv(), (IMAGE, KERNEL), ROWS, ROWS, "4"),
    "same on two axes": (conv(), (IMAGE, KERNEL), BOTH, BOTH, "4x2"),
    "same over a permuted mesh": (conv(), (IMAGE, KERNEL), BOTH, BOTH, "2x2 permuted"),
    "both axes on one dimension": (conv(), (IMAGE, KERNEL), TWICE, TWICE, "4x2"),
    "valid": (conv(padding="VALID"), (IMAGE, KERNEL), ROWS, ROWS, "4"),
    "stride": (conv(window_strides=(2, 2)), (IMAGE, KERNEL), BOTH, BOTH, "2x2 permuted"),
    "stride, uneven": (
        conv(window_strides=(3, 2)), ((2, 17, 7, 2), (2, 3, 2, 3)), ROWS, ROWS, "4",
    ),
    "taller than a block": (conv(), ((1, 16, 4, 1), (13, 1, 1, 2)), ROWS, ROWS, "8"),
    "empty shards": (conv(), ((2, 5, 4, 2), (3, 3, 2, 2)), ROWS, ROWS, "8"),
    "dilated kernel": (conv(rhs_dilation=(2, 3)), (IMAGE, KERNEL), ROWS, ROWS, "4"),
    "base dilation": (
        conv(lhs_dilation=(2, 2), padding=((1, 2), (1, 1))), (IMAGE, KERNEL), ROWS, ROWS, "4",
    ),
    "base dilation, phases differ": (
        conv(lhs_dilation=(3, 1), window_strides=(2, 1), padding=((2, 1), (1, 1))),
        ((1, 10, 4, 2), (4, 3, 2, 2)), ROWS, ROWS, "4",
    ),
    "transposed": (
        lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME"), (IMAGE, KERNEL), ROWS, ROWS, "4",
    ),
    "grouped": (conv(feature_group_count=2), (IMAGE, (3, 3, 2, 6)), ROWS, ROWS, "4"),
    "depthwise": (
        conv(feature_group_count=4), (IMAGE, (3, 3, 1, 4)), P(None, "X", None, "Y"),
        P(None, "X", None, "Y"), "4x2",
    ),
    "groups of the batch": (conv(batch_group_count=2), (IMAGE, KERNEL), ROWS, ROWS, "4"),
    "rows and features": (
        conv(), (IMAGE, KERNEL), P(None, "X", None, "Y"), P(None, "X", None, None), "4x2",
    ),
    "negative padding": (conv(padding=((-1, -2), (1, 0))), (IMAGE, KERNEL), ROWS, ROWS, "4"),
    "gradients": (gradients(conv()), (IMAGE, KERNEL), ROWS, (ROWS, P()), "4"),
    "gradients of a stride": (
        gradients(conv(window_strides=(2, 1))), ((2, 11, 6, 2), (3, 2, 2, 3)), ROWS, (ROWS, P()),
        "4",
    ),
    "gradients on two axes": (
        gradients(conv(padding=((2, 1), (0, 2)))), ((2, 9, 7, 2), (3, 2, 2, 3)), BOTH, (BOTH, P()),
        "2x2 permuted",
    ),
    "largest": (pool(lax.max, -np.inf), ((2, 13, 9, 3),), ROWS, ROWS, "4"),
    "largest, padded": (pool(lax.max, -np.inf, "SAME"), ((2, 13, 9, 3),), BOTH, BOTH, "4x2"),
    "mean": (
        lambda x: pool(lax.add, 0.0, "SAME")(x) / 9, ((2, 12, 8, 3),), ROWS, ROWS, "4",
    ),
    "gradient of a mean": (
        gradient(lambda x: pool(lax.add, 0.0, "SAME")(x) ** 2), ((2, 11, 8, 3),), ROWS, ROWS, "4",
    ),
    "gradient of the largest": (
        gradient(pool(lax.max, -np.inf)), ((2, 15, 8, 3),), ROWS, ROWS, "4",
    ),
    "gradient of the smallest, padded": (
        gradient(pool(lax.min, np.inf, "SAME", 3, 4)), ((2, 13, 18, 2),), BOTH, BOTH, "4x2",
    ),
    "gradient of the largest, gaps": (
        gradient(pool(lax.max, -np.inf, strides=3, size=2)), ((2, 26, 4, 2),), ROWS, ROWS, "8",
    ),
    "derivative of the largest": (
        lambda x: jax.jvp(pool(lax.max, -np.inf, "SAME"), (x,), (x + 1,)), ((2, 13, 9, 3),), BOTH,
        (BOTH, BOTH), "4x2",
    ),
    "pad": (padded((2, 1, 0), (0, 3, 0)), ((2, 9, 7, 3),), BOTH, BOTH, "4x2"),
    "pad between": (padded((3, 6, 2), (0, 0, 1)), ((2, 9, 7, 3),), BOTH, BOTH, "2x2 permuted"),
    "pad to less": (padded((-2, -1, 0), (-1, 0, 1)), ((2, 9, 7, 3),), ROWS, ROWS, "4"),
    "strided slice": (lambda x: x[:, 1:17:3], ((2, 18, 8, 4),), ROWS, ROWS, "4"),
    "shift": (lambda x: x[:, 3:], (IMAGE,), ROWS, ROWS, "8"),
    "reverse": (flipped, ((2, 11, 7, 1),), BOTH, BOTH, "4x2"),
}  # fmt: skip
LOWERED = ("same on two axes", "base dilation, phases differ", "gradients on two axes", "reverse")
LOWERED += ("gradient of the smallest, padded",)


def plan_of(case):
    fn, shapes, spec, out, mesh = case
    arguments = [numbers(*shape, seed=i) for i, shape in enumerate(shapes)]
    specs = (spec, P())[: len(shapes)]
    plan = planned(fn, arguments, specs, mesh=MESHES[mesh], out_shardings=out)
    return plan, fn, arguments


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_windows_are_right_proved_and_fetched(name):
    plan, fn, arguments = plan_of(CASES[name])
    check_equal(plan, fn, arguments)
    report = plan.verify()
    assert report.ok, report.refuted
    assert plan.warnings().query("op not in ('jax.jit', 'uneven', 'unread')").empty
    assert "HaloExchange" in kinds(plan)
    assert {kind for kind, _ in moves(plan)} <= {"collective_permute", "all_reduce"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", LOWERED)
def test_lowered_windows_equal_one_device(name):
    plan, fn, arguments = plan_of(CASES[name])
    results = jax.tree.leaves(plan.lower()(*arguments))
    for result, want in zip(results, jax.tree.leaves(fn(*arguments)), strict=True):
        np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-5)


def test_a_window_over_a_whole_dimension_fetches_nothing():
    """The taps are split, the image is not: every device has what it reads.

    The taps are gathered: adding up the result would send more.
    """
    x, k = numbers(2, 9, 5, 1), numbers(4, 2, 1, 3, seed=1)
    plan = planned(conv(), (x, k), (P(), P("X")), out_shardings=P())
    check_equal(plan, conv(), (x, k))
    assert plan.verify().ok
    assert moves(plan) == [("all_gather", "X")]


def test_windows_that_do_not_meet_are_selected_from_in_place():
    fn = gradient(pool(lax.max, -np.inf, strides=2, size=2))
    plan, fn, arguments = plan_of((fn, ((2, 16, 8, 3),), ROWS, ROWS, "4"))
    check_equal(plan, fn, arguments)
    assert plan.verify().ok
    assert not moves(plan)
    assert not kinds(plan) & {"HaloExchange", "MaskAt", "SliceAt"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "count", [8, pytest.param(200, marks=pytest.mark.slow)], ids=["sample", "all"]
)
def test_case_3_is_fetched_by_permutes_alone(count, show):
    """Dilated image, halos whose dilation phase differs: appendix A.2 of arXiv:2105.04663."""
    found = windowed.factors(count)
    mean, half = np.mean(found), np.median(found)
    show(f"case 3: {mean:.0f} times (median {half:.0f}) fewer elements received than by gathering")
    assert mean >= 10


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("image", [P(), P(None, "X")], ids=str)
def test_a_tap_that_is_none_meets_no_infinity(devices, image):
    """Seven taps on some devices: a padded one, 0, times infinity would be NaN."""
    rng = np.random.default_rng(7)
    x, taps = (rng.normal(size=n).astype("f4") for n in ((1, 12, 2), (7, 2, 3)))
    x[0, 9, 0] = np.inf

    def conv(x, taps):
        return lax.conv_general_dilated(
            x, taps, (1,), ((1, 1),), dimension_numbers=("NHC", "HIO", "NHC")
        )

    plan = sa.plan(conv, x, taps, mesh=sa.Mesh({"X": devices}), in_shardings=(image, P("X")))
    wanted = np.asarray(conv(x, taps))
    assert np.isinf(wanted).any()
    assert not np.isnan(wanted).any()
    np.testing.assert_allclose(simulate(plan.program, plan.graph, x, taps)[0], wanted, rtol=1e-4)
