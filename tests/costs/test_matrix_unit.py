"""Products whose sizes are no multiples of the matrix unit's: flops rounded up, never below."""

import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardalg as sa
from shardalg.costs.compute import shaped_flops
from shardalg.costs.hardware import FILES, from_json, load, names
from shardalg.costs.matrix_unit import ANY_SIZE, MatrixUnit, padded_flops, product_peak
from shardalg.errors import HardwareError
from shardalg.graph.tracing.trace import trace
from shardalg.sizes.formula import symbols

TPU = MatrixUnit(8, 128, (("any", 128),))

# (m, k, n) of bfloat16 products and the cycles at 940 MHz that the compiler of TPU v3 (libtpu
# 0.0.42) estimates for them, from `estimated_cycles` of its optimised text.
CYCLES = {
    (4096, 4096, 4096): 2201438,
    (4096, 4096, 64): 90845,
    (4096, 64, 4096): 234733,
    (4096, 4096, 32): 88031,
    (4096, 4096, 192): 111946,
    (4096, 192, 4096): 244115,
    (4096, 4096, 8): 85793,
    (64, 4096, 4096): 90915,
    (16, 8192, 8192): 330138,
    (4, 8192, 8192): 328174,
    (4096, 32, 32): 3758,
    (4096, 64, 64): 6591,
}
CLOCK = 940e6
# Images of 16^3 voxels, 8 of them, 3^3 taps: channels in, channels out.
CONVOLUTIONS = {
    (128, 128): 534191,
    (64, 128): 303847,
    (32, 128): 277383,
    (8, 128): 329729,
    (1, 128): 262514,
    (128, 32): 532739,
    (128, 8): 514958,
    (256, 256): 1966506,
}


def node(function, *shapes, dtype="bfloat16"):
    graph = trace(function, *(jax.ShapeDtypeStruct(s, dtype) for s in shapes))
    return next(n for n in graph.nodes if n.primitive in ("dot_general", "conv_general_dilated"))


def shapes_of(signature):
    return tuple(t.shape for t in (*signature.operands, *signature.results))


def kept(signature, unit=TPU):
    return padded_flops(signature, shapes_of(signature), unit)


def convolution(images, side, channels, features):
    def conv(x, w):
        names = ("NDHWC", "DHWIO", "NDHWC")
        return jax.lax.conv_general_dilated(x, w, (1, 1, 1), "SAME", dimension_numbers=names)

    return node(conv, (images, side, side, side, channels), (3, 3, 3, channels, features)).signature


@pytest.mark.parametrize("sizes", CYCLES)
def test_it_is_a_lower_bound_of_the_compiler_s_cycles(sizes):
    m, k, n = sizes
    signature = node(jnp.matmul, (m, k), (k, n)).signature
    peak = load("tpu_v3").peak("bfloat16")
    assert kept(signature, load("tpu_v3").matrix_unit) / peak <= CYCLES[sizes] / CLOCK


@pytest.mark.parametrize("channels", CONVOLUTIONS)
def test_so_it_is_of_convolutions(channels):
    signature = convolution(8, 16, *channels)
    peak = load("tpu_v3").peak("bfloat16")
    assert kept(signature, load("tpu_v3").matrix_unit) / peak <= CONVOLUTIONS[channels] / CLOCK


def test_what_the_compiler_pads_is_counted():
    """64 summed elements take as long as 128; 8 and 32 features as long as 128 of them."""
    narrow, full = ((4096, 64, 4096), (4096, 128, 4096))
    made = [kept(node(jnp.matmul, (m, k), (k, n)).signature) for m, k, n in (narrow, full)]
    assert made[0] == made[1]
    few, many = (kept(convolution(8, 16, 128, features)) for features in (8, 128))
    assert few == many
    assert CONVOLUTIONS[128, 8] == pytest.approx(CONVOLUTIONS[128, 128], rel=0.05)


@pytest.mark.parametrize("m", [1, 3, 8, 40])
@pytest.mark.parametrize("n", [2, 100, 128, 300])
@pytest.mark.parametrize("k", [1, 100, 256])
def test_the_cheaper_of_both_ways_round(m, n, k):
    """Blocks are counted one by one, for both choices of the streamed operand."""
    signature = node(jnp.matmul, (m, k), (k, n)).signature
    flops = shaped_flops(signature, shapes_of(signature))
    blocks = min(
        sum(2 * 8 * 128 * 128 for _ in itertools.product(range(0, rows, 8), range(0, columns, 128)))
        for rows, columns in ((m, n), (n, m))
    ) * math.ceil(k / 128)
    vector = m == 1
    assert kept(signature) == (flops if vector else blocks)
    assert kept(signature) >= flops
    assert kept(signature, ANY_SIZE) == flops


def test_formulas_are_the_numbers():
    """Formulas of named sizes, uneven ones too, equal the numbers at the same sizes."""
    M, N, K, X, Y = symbols("M N K X Y")
    signature = node(jnp.matmul, (48, 96), (96, 80)).signature
    shapes = ((M / X, K / Y), (K / Y, N), (M / X, N))
    formula = padded_flops(signature, shapes, TPU)
    rng = np.random.default_rng(0)
    for m, n, k, x, y in rng.integers(1, 9, (200, 5)):
        sizes = {"M": 40 * m * x, "N": 75 * n, "K": 50 * k * y, "X": x, "Y": y}
        sizes = {name: int(size) for name, size in sizes.items()}
        local = [sizes["M"] // x, sizes["K"] // y, sizes["N"]]
        numbers = tuple(tuple(map(int, s)) for s in (local[:2], local[1:], (local[0], local[2])))
        assert formula.at(sizes) == padded_flops(signature, numbers, TPU)


def test_a_shard_narrower_than_the_unit_takes_as_long():
    """A contracting dimension of 256 on 2 devices is half the work, on 4 no less than that."""
    x, w = (jax.ShapeDtypeStruct(s, "bfloat16") for s in ((1024, 256), (256, 1024)))

    def matrix_s(size):
        specs = (jax.P(None, "Y"), jax.P("Y"))
        plan = sa.plan(jnp.matmul, x, w, mesh=sa.Mesh({"Y": size}), in_shardings=specs)
        on = from_json({**load("tpu_v3").to_json(), "figures": PEAK})
        return plan.cost(on).compute_s

    assert matrix_s(2) == matrix_s(1) / 2
    assert matrix_s(4) == matrix_s(2)


PEAK = {"peak_flops_per_s.bfloat16": [{"value": 1e12, "source": "toy"}]}


@pytest.mark.parametrize("chip", names())
def test_every_chip_says_its_sizes_and_where_they_are_from(chip):
    unit = load(chip).matrix_unit
    assert unit != ANY_SIZE
    assert len(unit.source) > 30
    assert from_json(load(chip).to_json()) == load(chip)
    assert json.loads((FILES / f"{chip}.json").read_text())["matrix_unit"]["rows"] == unit.rows


def test_the_item_type_decides_on_gpus():
    unit = load("h100").matrix_unit
    summed = [unit.summed(t) for t in ("float8_e4m3fn", "bfloat16", "float32")]
    assert summed == [32, 16, 8]


@pytest.mark.parametrize(
    "unit",
    [
        {"rows": 0, "columns": 128, "contracting": 128, "source": "x"},
        {"rows": 8, "columns": 128, "contracting": {}, "source": "x"},
        {"rows": 8, "columns": 128, "contracting": 128},
        {"rows": 8, "columns": 12.5, "contracting": 128, "source": "x"},
        "128 by 128",
    ],
)
def test_bad_sizes(unit):
    data = {**load("tpu_v3").to_json(), "matrix_unit": unit}
    with pytest.raises(HardwareError, match=r"'matrix_unit' is .*; write \{\"rows\": 8"):
        from_json(data)


def test_products_of_integers_run_at_the_slowest_peak_and_say_so():
    """Products alone are named; narrow floats are multiplied in wider ones."""
    x = jax.ShapeDtypeStruct((8, 8), "int32")
    plan = sa.plan(lambda x: x @ x, x, mesh=sa.Mesh({"X": 1}))
    cost = plan.cost("tpu_v3")
    (where,) = cost.assumed
    assert where.startswith("int32 (dot_general at test_matrix_unit.py:")
    assert f"not calibrated: products of {where} at the slowest peak" in repr(cost)
    slowest = min(dict(load("tpu_v3").peak_flops_per_s).values())
    assert cost.useful_flops / cost.totals.useful_s == pytest.approx(slowest)
    assert plan.memory.peak_bytes == 2 * 8 * 8 * 4
    plain = sa.plan(lambda x: x + x, x, mesh=sa.Mesh({"X": 1})).cost("tpu_v3")
    assert (plain.assumed, "calibrated" in repr(plain).splitlines()[2]) == ((), False)
    assert plan.cost("h100", overlap="none").assumed == cost.assumed
    narrow = sa.plan(lambda x: x @ x, jax.ShapeDtypeStruct((8, 8), "int8"), mesh=plan.mesh)
    assert narrow.cost("h100").assumed == ()
    assert len(narrow.cost("tpu_v3").assumed) == 1


def test_floats_without_a_peak_are_refused():
    x = jax.ShapeDtypeStruct((8, 8), "bfloat16")
    plan = sa.plan(lambda x: x @ x, x, mesh=sa.Mesh({"X": 1}))
    chip = sa.Hardware("integers", (("int8", 1e12),))
    message = r"integers has no peak for products of bfloat16 \(dot_general at .*\): cast the"
    with pytest.raises(HardwareError, match=message):
        plan.cost(chip)
    assert "1 node" in str(plan)
    assert "Step " in plan.overview().sentence
    assert "dot_general" in plan._repr_html_()
    assert sa.plan(lambda x: x + x, x, mesh=sa.Mesh({"X": 1})).cost(chip).step_time_s > 0
    chip = load("a100_80gb")
    assert product_peak(chip, "float8_e5m2") == chip.peak("bfloat16")
    assert product_peak(chip, "complex64") == chip.peak("float32")
