"""Crossovers of plans, the largest batch that fits, overlap, and combined all-reduces."""

import math
import random
from itertools import pairwise, product

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.costs.analyses.crossing import largest, largest_near, less, sign_changes
from shardalg.costs.analyses.overlap import combined_all_reduces
from shardalg.costs.hardware import Hardware, load
from shardalg.costs.network.collective_seconds import LATENCY
from shardalg.errors import HardwareError
from shardalg.planner.stages import planned_at, priced
from shardalg.sizes.formula import Formula, FormulaError, ceiling, symbols
from shardalg.sizes.maximum import larger
from shardalg.spmd.instructions import AllReduce
from tests.costs.handmade import ffn_graph, ffn_program

# The rates of the data sheet, each axis on links of its own: both have closed forms.
V3 = load("tpu_v3").on("datasheet").with_own_links()
SYMBOLIC = sa.Mesh({"X": 2, "Y": 4}, symbolic=True)


def layer(w1, w2, x):
    return jnp.maximum(x @ w1, 0) @ w2


def sized(b, m, h):
    """Return the layer's arguments in named sizes."""
    B, M, H = sa.dims("B M H", hint=(b, m, h))
    return [jax.ShapeDtypeStruct(shape, "bfloat16") for shape in ((M, H), (H, M), (B, M))]


def planned(specs, hints=(64, 32, 128), out=None, fn=layer, mesh=SYMBOLIC):
    return sa.plan(fn, *sized(*hints), mesh=mesh, in_shardings=specs, out_shardings=out)


FSDP = (P("X"), P("X"), P("X"))
TENSOR = (P(None, "X"), P("X"), P())
BOTH = (P("X", "Y"), P("Y", "X"), P("X", "Y"))
UNEVEN = ((P(("X", "Y")), P("X", "Y"), P("X")), (P(("X", "Y")), P(None, ("X", "Y")), P(None, "X")))


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("specs", "hints"),
    [(FSDP, (64, 32, 128)), (TENSOR, (64, 32, 128)), (BOTH, (64, 32, 128)), (BOTH, (61, 33, 127)),
     (FSDP, (37, 30, 61))],
    ids=["fsdp", "tensor", "both", "both, uneven", "fsdp, uneven"],
)  # fmt: skip
def test_formulas_of_seconds_are_what_is_priced_at_numbers(specs, hints, show):
    """The step, and each cause of it, at points where all that planning asked holds."""
    chip = Hardware(
        "toy", (("bfloat16", 1e12),), hbm_bytes_per_s=3e10, link_bytes_per_s=1e9, latency_s=1e-6
    )
    plan, rng, seen, sides = planned(specs, hints), random.Random(3), 0, set()
    costs = {o: plan.cost(chip, overlap=o) for o in ("none", "full")}
    formulas = {o: cost._time(cost.totals) for o, cost in costs.items()}
    sent = Formula.of(costs["none"].totals.sum("time_s", communication=True))
    for _ in range(4000):
        point = {
            name: max(2, round(n * rng.uniform(0.1, 4)))
            for name, n in zip("BMH", hints, strict=True)
        }
        point |= {"X": rng.choice([2, 3, 4]), "Y": rng.choice([2, 4, 5])}
        if hints[0] % 2 == 0:
            point |= {n: -(-point[n] // 60) * 60 for n in "BMH"}
        if seen == 16 or not plan.holds(**point):
            continue
        stages, _ = planned_at(plan._stages, point, plan.options)
        for overlap, formula in formulas.items():
            there = priced(stages.traced, stages.program, chip, overlap=overlap)
            assert float(formula.at(point)) == pytest.approx(there.step_time_s, rel=1e-12), point
        exact = there.totals.seconds()
        moved = there.totals.sum("time_s", communication=True)
        assert float(sent.at(point)) == pytest.approx(moved, rel=1e-12), point
        sides.add(exact.get("matrix", 0) > 0)
        seen += 1
    show(f"{seen} points; bound by arithmetic and by memory: {sides}")
    assert seen == 16


@pytest.mark.sampled(3)
@pytest.mark.parametrize("text", ["v3:4x8", "h100:64"])
@pytest.mark.parametrize(
    ("specs", "out", "kind"),
    [(BOTH, P("X", "Y"), "reduce_scatter"), ((P(), P(), P(("X", "Y"))), P(("Y", "X")), "permute")],
    ids=["sums", "permute"],
)
def test_formulas_on_a_topology_are_what_is_priced_there(text, specs, out, kind):
    """Axes have the topology's sizes; other sizes are free."""
    mesh, args = sa.Mesh({"X": 8, "Y": 8}, symbolic=True), sized(64, 64, 128)
    plan = sa.plan(layer, *args, mesh=mesh, in_shardings=specs, out_shardings=out)
    assert any(kind in found for found in plan.collectives()["kind"])
    made = plan.cost(text)
    formula, seen = made._time(made.totals), 0
    for b, m, h in product((64, 128, 192), (64, 72), (128, 144)):
        point = {"B": b, "M": m, "H": h, "X": 8, "Y": 8}
        if plan.holds(**point):
            there = plan.at(**point).cost(text).step_time_s
            assert float(formula.at(point)) == pytest.approx(there, rel=1e-12)
            seen += 1
    assert seen >= 3


def test_the_longer_of_arithmetic_and_traffic_is_a_max():
    """At a small batch memory bounds the products, at a large one arithmetic: one formula."""
    cost = planned(TENSOR).cost(V3)
    assert "Max" in str(cost.compute_s)
    small, large = ({**cost.sizes.hints, "B": b, "M": 4096, "H": 16384} for b in (8, 1 << 14))
    formula = cost.totals.sum("time_s", communication=False)
    flops = cost.totals.sum("flops")
    share = [float(flops.at(p)) / 6.15e13 / float(formula.at(p)) for p in (small, large)]
    assert share[0] < 0.2 < 0.8 < share[1] <= 1


@pytest.mark.parametrize("quantity", ["step_time_s", "communication_s", "wire_bytes"])
def test_crossovers_are_where_the_numbers_turn(quantity):
    weights, activations = (planned(s).cost(V3) for s in (FSDP, TENSOR))
    found = weights.crossover(activations, "B", quantity=quantity)
    assert found
    for at in found:
        signs = []
        for size in (at - 1, at):
            values = [
                dict(c.totals.named(), step_time_s=c._time(c.totals))[quantity].at(
                    {**c.sizes.hints, "B": size}
                )
                for c in (weights, activations)
            ]
            signs.append((values[0] > values[1]) - (values[0] < values[1]))
        assert signs[0] != signs[1]


def test_turns_by_brute_force():
    """Also several between two powers of two: ceilings, and the longer of two times."""
    B, M, X = symbols("B M X")
    hints = {"B": 3, "M": 50, "X": 4}
    for difference in (
        B * X - M,
        (X - 7) * (X - 7) * X - B,
        larger(B * X, M) - 2 * X - 1,
        ceiling(X / 64) * 640 - 11 * X,
        larger(X * X, 3000 * X - 2000000) - 900 * X,
        larger(M * X, 20000) - X * X + 60 * X,
        larger(X * X, B * M) - larger(X, 4 * B) * X,
    ):
        signs = [
            (v > 0) - (v < 0) for v in (difference.at({**hints, "X": x}) for x in range(1, 3000))
        ]
        exact = [x + 2 for x, (a, b) in enumerate(pairwise(signs)) if a != b]
        assert [t for t in sign_changes(difference, "X", hints) if t < 3000] == exact


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("quantity", "name"),
    [("step_time_s", "B"), ("communication_s", "B"), ("wire_bytes", "B"),
     ("peak_memory_bytes", "M")],
)  # fmt: skip
def test_crossovers_of_uneven_plans_by_brute_force(quantity, name):
    """Blocks are rounded up, so that one plan overtakes another again and again."""
    mesh = sa.Mesh({"X": 3, "Y": 2}, symbolic=True)
    plans = (planned(specs, (8, 1024, 4096), mesh=mesh) for specs in UNEVEN)
    ours, theirs = (plan.cost("h100") for plan in plans)
    difference, hints = ours._less_than(theirs, quantity)
    at = [difference.at({**hints, name: size}) for size in range(1, 600)]
    exact = [size + 1 for size in range(1, 599) if _sign(at[size]) != _sign(at[size - 1])]
    crossed = ours.crossover(theirs, name, quantity=quantity)
    assert [size for size in crossed if size < 600] == exact
    assert len(exact) > 1


def _sign(value):
    return (value > 0) - (value < 0)


def test_inequalities_in_words_hold_where_they_say():
    B, M, X = symbols("B M X")
    assert less(2 * B * M / X, B * M) == "2 < X"
    fsdp, tensor = (planned(s).cost(V3) for s in (FSDP, TENSOR))
    text = fsdp.beats(tensor, quantity="wire_bytes")
    ours, theirs = (dict(c.totals.named())["wire_bytes"] for c in (fsdp, tensor))
    for b in (2, 8, 32, 128, 512):
        point = {**fsdp.sizes.hints, "B": b}
        assert eval(text, {}, point) == (ours.at(point) < theirs.at(point)), text


def test_the_largest_batch_fits_and_one_more_does_not():
    cost = planned(TENSOR, (64, 4096, 16384)).cost(V3)
    found = cost.largest_batch_that_fits("B")
    peak = cost.memory.peak_bytes
    sizes = cost.sizes.hints
    assert peak.at({**sizes, "B": found}) <= V3.hbm_bytes < peak.at({**sizes, "B": found + 1})
    assert largest(lambda n: n <= 12345) == 12345
    assert largest(lambda n: False) == 0


def squares(w1, w2, x):
    return jax.grad(lambda w: (layer(*w, x) ** 2).sum())((w1, w2))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("fn", "hints"), [(layer, (1024, 500, 520)), (squares, (512, 256, 1024))])
def test_the_plan_fits_at_the_largest_batch(fn, hints):
    """Memory peaks elsewhere than at the hints, and sizes that do not divide are gathered."""
    plan = planned(BOTH, hints, fn=fn)
    found = plan.cost(V3).largest_batch_that_fits("B")
    fits = [plan.at(B=found + more).cost(V3).fits for more in (0, plan.mesh.size * hints[0])]
    assert fits == [True, False], found


@pytest.mark.parametrize("guess", [0, 1, 7, 500, 10_000])
@pytest.mark.parametrize("most", [0, 1, 23, 24, 119, 4096])
def test_the_largest_size_is_found_from_any_guess(guess, most):
    assert largest_near(lambda n: n <= most, guess, 24) == most
    even = largest_near(lambda n: n <= most and n % 8 == 0, guess, 24)
    assert even == most // 8 * 8
    assert largest_near(lambda n: n <= most, guess, 7) == most


@pytest.mark.parametrize("guess", [80, 88, 100])
def test_the_largest_size_is_found_past_some_that_do_not_fit(guess):
    """Larger sizes may be planned otherwise, and need less."""
    assert largest_near(lambda n: n <= 77 or 96 <= n <= 144, guess, 8) == 144


def test_what_has_no_crossover_says_so():
    named, numbers = planned(FSDP), sa.plan(jnp.tanh, jax.ShapeDtypeStruct((8,), "float32"),
                                            mesh=sa.Mesh({"X": 2}))  # fmt: skip
    with pytest.raises(FormulaError, match="plans in numbers"):
        named.cost(V3).crossover(numbers.cost(V3), "B")
    with pytest.raises(FormulaError, match="is none of"):
        named.cost(V3).crossover(named.cost(V3), "B", quantity="speed")
    with pytest.raises(FormulaError, match=r"costs are compared.*got Plan"):
        named.cost(V3).crossover(named, "B")
    with pytest.raises(FormulaError, match=r"'Z' is no size of the plans, which have"):
        named.cost(V3).crossover(named.cost(V3), "Z")
    with pytest.raises(FormulaError, match="nothing turns"):
        named.cost(V3).crossover(named.cost(V3), "B")
    with pytest.raises(FormulaError, match="named size"):
        named.cost(V3).largest_batch_that_fits("batch")
    with pytest.raises(FormulaError, match=r"plan with sa\.dims"):
        numbers.cost(V3).largest_batch_that_fits()
    with pytest.raises(FormulaError, match="no plan made this program"):
        priced(named._traced, named._symbolised, V3).largest_batch_that_fits()
    with pytest.raises(HardwareError, match="write 'measured'"):
        named.cost(V3, overlap="some")
    with pytest.raises(FormulaError, match="no formula in named sizes"):
        _ = named.cost(V3, overlap="dependences").step_time_s


def chain(w, x):
    """Layers that gather their weights on demand: each gather can run beside the layer before."""
    for k in range(w.shape[0]):
        x = jnp.tanh(x @ w[k])
    return x


def test_overlap_lies_between_the_longer_of_both_and_their_sum():
    w, x = (
        jax.ShapeDtypeStruct((4, 512, 512), "bfloat16"),
        jax.ShapeDtypeStruct((512, 512), "bfloat16"),
    )
    mesh, specs = sa.Mesh({"X": 8}), (P(None, "X"), P("X"))
    plan = sa.plan(chain, w, x, mesh=mesh, in_shardings=specs)
    none, allowed, full = (plan.cost(V3, overlap=o) for o in ("none", "dependences", "full"))
    assert none.step_time_s == none.compute_s + none.communication_s
    assert full.step_time_s == max(none.compute_s, none.communication_s)
    assert full.step_time_s <= allowed.step_time_s < none.step_time_s
    # One layer: its product waits for its gather, nothing else is there to do.
    one = sa.plan(
        lambda w, x: x @ w, w.update(shape=(512, 512)), x, mesh=mesh, in_shardings=(P("X"), P("X"))
    )
    waits = [one.cost(V3, overlap=o).step_time_s for o in ("none", "dependences")]
    assert waits[0] == pytest.approx(waits[1])


def test_all_reduces_that_do_not_wait_for_each_other_are_one():
    """The norms of many gradients: all are there at once, so that one latency is paid."""
    ws = [jax.ShapeDtypeStruct((64, 16 + k), "float32") for k in range(9)]

    def norms(*ws):
        first = [jnp.sum(w * w) for w in ws]
        return [jnp.sum(w * s) for w, s in zip(ws, first, strict=True)]

    plan = sa.plan(norms, *ws, mesh=sa.Mesh({"X": 8}), in_shardings=(P("X"),) * 9)
    groups = [g for g in combined_all_reduces(plan.program.block).values() if g]
    sums = sum(type(i.attributes) is AllReduce for i in plan.program.block.instructions)
    assert sums == 18
    assert sorted(map(len, groups)) == [9, 9]
    cost = plan.cost(V3)
    hops = 8 - 1  # in one go, as a scalar is not worth a way back
    assert cost.totals.seconds()[LATENCY] == pytest.approx(2 * hops * V3.latency_s)
    assert cost.wire_bytes == 18 * 2 * 4 * 7 / 8
    assert math.isclose(sum(cost.table()["time_s"]), cost.step_time_s)


def test_a_program_by_hand_has_nothing_to_join():
    assert combined_all_reduces(ffn_program().block) == {}
    assert ffn_graph().nodes
