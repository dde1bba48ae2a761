"""Formulas at numbers against the planner on the same function traced at those numbers."""

import math
import random
from collections import Counter
from dataclasses import replace
from itertools import islice

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.costs import estimate
from shardalg.costs.collectives import axis_names, group_size, wire_bytes
from shardalg.costs.compute import shaped_flops, signature_local_flops
from shardalg.costs.hardware import Hardware, load
from shardalg.costs.symbolic import Sizes, symbolise
from shardalg.costs.walk import local_bytes, walk
from shardalg.lab import table1_strategies as table1
from shardalg.models.training import part
from shardalg.models.transformer import Config
from shardalg.plan.explain import decisions
from shardalg.plan.plan import Plan
from shardalg.planner.stages import planned_at
from shardalg.sizes.formula import Formula, symbols
from shardalg.spmd.instruction import Collective
from shardalg.spmd.instructions import Apply, Resize

EVEN = {"B": 12, "S": 20, "M": 32, "H": 224, "N": 8, "D": 6, "V": 80, "L": 5}
UNEVEN = {"B": 7, "S": 39, "M": 26, "H": 213, "N": 5, "D": 6, "V": 53, "L": 5}
MESH = sa.Mesh({"X": 2, "Y": 4}, symbolic=True)
STRATEGIES = {"1": table1.attempt_1, "2": table1.attempt_2, "finalized": table1.finalized}
ASKED = 2
"""Points per case at which a condition fails, and `at` is asked what changed."""
# function, strategy, layers in a scan, points: those of `make test-slow`, and of every run
CASES = [
    *(("layer_gradient", strategy, False, (16, 4)) for strategy in STRATEGIES),
    ("train_step", "finalized", True, (4, 1)),
    ("train_step", "finalized", False, (2, 1)),
]
SLOW, SAMPLE = (
    [(name, strategy, scan, wanted[share]) for name, strategy, scan, wanted in CASES]
    for share in (0, 1)
)


def planned(name, strategy, hints, scan):
    config = Config(**({**hints, "L": 2} if not scan else hints), scan=scan)
    chosen = part(name)
    return sa.plan(
        chosen.function(config),
        *chosen.named_arguments(config),
        strategy=STRATEGIES[strategy](MESH, config, name),
        roles=chosen.roles(),
        donate_argnums=chosen.donate_argnums(),
    )


def symbolised(plan):
    return symbolise(plan.program, plan.graph, Sizes.of(plan.symbols.lifted, plan.mesh.sizes))


def cost(plan, program):
    traced = plan.traced
    return estimate(
        program, plan.graph, Hardware("any"), roles=traced.roles, donated=traced.donated
    )


def moved(program):
    """Return each collective's kind and exact sizes."""
    for step in walk(program):
        instruction, attributes = step.instruction, step.instruction.attributes
        if isinstance(attributes, Collective):
            size = local_bytes(program, instruction.operands)
            kind = type(attributes), axis_names(program.mesh, attributes.digits)
            sizes = (
                step.count,
                group_size(attributes),
                size,
                local_bytes(program, instruction.results),
                wire_bytes(attributes, size),
            )
            yield (*kind, instruction.role, instruction.node), sizes


def at(values, point):
    return tuple(Formula.of(value).at(point) for value in values)


def draw(rng, made, hints):
    """Draw a point near the hints; all divisibility conditions may hold there."""
    point = dict(made.sizes.hints)
    for axis in MESH.axis_names:
        point[axis] = rng.choice([point[axis], rng.randint(2, 6)])
    if rng.random() < 0.7:
        for name in sorted(hints.keys() & point.keys()):
            point[name] = max(2, round(hints[name] * rng.uniform(0.8, 1.3)))
    for name in sorted(hints.keys() & point.keys()):
        wanted = [c.parts for c in made.conditions if c.divides and str(c.size) == name]
        unit = math.lcm(1, *(n.at(point) for n in wanted))
        point[name] = -(-point[name] // unit) * unit
    new = point != made.sizes.hints and all(c.holds(point) for c in made.conditions)
    return point if new else None


def points(made, hints, seed):
    rng = random.Random(seed)
    while True:
        point = draw(rng, made, hints)
        if point is not None:
            yield point


def held(memory):
    return sorted((value.local, value.of, value.memory_class) for value in memory.alive)


def check_memory(formulas, cost, point):
    """Check the peak wherever it is; at the hints' instruction also each class."""
    here = cost.memory
    assert at([formulas.peak_bytes, formulas.argument_bytes, formulas.result_bytes], point) == (
        here.peak_bytes, here.argument_bytes, here.result_bytes
    )  # fmt: skip
    if here.place == formulas.place:
        assert held(here) == held(formulas), point
        classes = formulas.by_class
        assert dict(zip(classes, at(classes.values(), point), strict=True)) == here.by_class


class Formulas:
    """Every collective, flop and byte of a plan, held against the planner's at numbers."""

    def __init__(self, plan):
        made = symbolised(plan)
        self.moved, prices = list(moved(made.program)), cost(plan, made)
        self.flops = prices.totals.sum("flops"), prices.totals.useful_flops
        self.memory = prices.memory

    def check(self, there, point):
        numbers = list(moved(there.program))
        assert [what for what, _ in self.moved] == [what for what, _ in numbers], point
        for (what, sizes), (_, exact) in zip(self.moved, numbers, strict=True):
            assert at(sizes, point) == exact, (what, sizes, point)
        price = cost(there, there.program)
        assert at(self.flops, point) == (price.flops, price.useful_flops), point
        check_memory(self.memory, price, point)


def compared(plan, point):
    """Trace and plan again at a point; return the comparison with the changes."""
    stages, constant = planned_at(plan._stages, point, plan.options)
    there = Plan(plan.options, lambda: stages)
    both = plan._stages, stages
    return there, decisions.changes(*both, plan._named, point=point, constant=constant)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("hints", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize(
    ("name", "strategy", "scan", "wanted"),
    [*SAMPLE, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_formulas_are_what_the_planner_says_at_numbers(name, strategy, scan, wanted, hints, show):
    """The plan is exactly the same where its guards hold; elsewhere `at` lists the changes."""
    plan, seen = planned(name, strategy, hints, scan), Counter()
    formulas = Formulas(plan)
    for point in islice(points(symbolised(plan), hints, f"{name} {strategy} {scan}"), 40 * wanted):
        if seen["equal"] == wanted:
            break
        if plan.holds(**point):
            there, changed = compared(plan, point)
            if len(there.graph.values) != len(plan.graph.values):
                # Literals of Python code, such as the M of a mean, that are equal there: one value.
                assert {row["kind"] for row in changed} <= {"peak"}, (point, changed)
                seen["literals coincide"] += 1
                continue
            assert not len(changed), (point, changed)
            formulas.check(there, point)
            seen["equal"] += 1
        elif seen["asked"] < ASKED:
            changed = plan.at(**point).changes
            seen["asked"] += 1
            seen[f"changed: {changed['kind'][0]}" if len(changed) else "not changed"] += 1
        else:
            seen["fails"] += 1
    show(f"{name} {strategy}: {len(formulas.moved)} collectives; points {dict(seen)}")
    assert seen["equal"] == wanted


@pytest.fixture(scope="module")
def ffn():
    return planned("ffn_gradient", "finalized", EVEN, False)


def test_the_feed_forward_layer_in_the_papers_letters(ffn):
    B, S, M, H, X, Y = symbols("B S M H X Y")
    weight, activation = 2 * M * H / (X * Y), 2 * B * S * M / (X * Y)
    found = Counter(
        (kind.__name__, role, sizes[-1])
        for (kind, _, role, _), sizes in moved(symbolised(ffn).program)
    )
    assert found == {
        ("AllGather", "weight", weight * (X - 1)): 4,
        ("AllGather", "activation", activation * (Y - 1)): 3,
        ("ReduceScatter", "activation", activation * (Y - 1)): 2,
        ("ReduceScatter", "gradient", weight * (X - 1)): 2,
    }


def test_swapped_axes_are_refused(ffn):
    """Sizes by other axes do not give the shapes that the program has at the hints."""
    X, Y = symbols("X Y")
    sizes = Sizes.of(ffn.symbols.lifted, ffn.mesh.sizes)
    with pytest.raises(sa.FormulaError, match="has no formula in named sizes"):
        symbolise(ffn.program, ffn.graph, replace(sizes, axes={"X": Y, "Y": X}))


def test_what_divides_is_listed_once(ffn):
    facts = symbolised(ffn).conditions
    assert sorted(map(str, facts)) == ["X divides B", "X divides M", "Y divides H", "Y divides M"]
    assert all(fact.holds(EVEN | {"X": 2, "Y": 4}) for fact in facts)
    assert not all(fact.holds(EVEN | {"X": 5, "Y": 4}) for fact in facts)


def test_costs_are_sympy_and_the_numbers_at_the_hints(ffn):
    chip = load("tpu_v3").on("datasheet")
    found = estimate(symbolised(ffn), ffn.graph, chip, roles=ffn.traced.roles)
    hints = {symbol: symbol.hint for symbol in found.sizes.symbols.values()}
    numbers = estimate(ffn.program, ffn.graph, chip, roles=ffn.traced.roles)
    for name in (
        "step_time_s", "compute_s", "communication_s", "wire_bytes", "flops", "useful_flops",
        "peak_memory_bytes", "devices", "flops_utilization",
    ):  # fmt: skip
        formula = getattr(found, name)
        assert formula.free_symbols <= hints.keys()
        assert float(formula.subs(hints)) == pytest.approx(float(getattr(numbers, name)))
    assert dict(zip(found.formulas()["quantity"], found.formulas()["at_hints"], strict=True)) == (
        {name: pytest.approx(float(value)) for name, value in numbers.totals.named()}
    )
    assert found.memory_by_class.keys() == numbers.memory.by_class.keys()
    assert len(found.table()) == len(numbers.table())
    assert "at the hints" in repr(found)
    assert "<math" in found._repr_html_()


def test_paddings_of_uneven_moves_are_exact(show):
    """Blocks that do not nest are padded before a move and stripped after it."""
    R, K = sa.dims("R K", hint=(13, 9))
    x = jax.ShapeDtypeStruct((R, K), "float32")

    def moves(x):
        x = sa.mesh_split(x * 2, MESH, [0, -1])
        x = sa.mesh_split(x + 1, MESH, [-1, 1])
        x = sa.mesh_split(x * 3, MESH, [1, -1])
        return sa.mesh_split(x - 1, MESH, [-1, 0])

    plan = sa.plan(moves, x, mesh=MESH)
    made, seen = symbolised(plan), 0
    resized = sum(type(i.attributes) is Resize for i in plan.program.block.instructions)
    rng = random.Random(3)
    for _ in range(60):
        # blocks of other such sizes nest, and then less is gathered
        R, K = (4 * rng.randint(1, 10) + 1 for _ in range(2))
        point = {"R": R, "K": K, "X": 2, "Y": rng.choice([3, 4])}
        there = plan.at(**point)
        same = [type(i.attributes) for i in there.program.block.instructions] == [
            type(i.attributes) for i in plan.program.block.instructions
        ]
        if same and all(fact.holds(point) for fact in made.conditions):
            shapes = [tuple(at(v.shape, point)) for v in made.program.locals]
            assert shapes == [v.shape for v in there.program.locals]
            seen += 1
    show(f"{resized} paddings, {seen} points")
    assert resized >= 3
    assert seen >= 5


STEPS = {
    "a scatter into padding": (
        lambda x: x.at[1:5, 2:4].add(jnp.ones((4, 2))).at[-2:].set(0), ("B", 6), P(None, "Y"),
    ),
    "a mask that fills": (
        jax.grad(lambda x: (_pooled(x) ** 2).sum()), (2, 3, 6, "B"), P(None, None, None, "X"),
    ),
    "a branch that does nothing": (
        lambda x: jax.lax.cond(x.sum() > 0, lambda x: x, lambda x: x * 2, x), ("B", 6), P("X"),
    ),
}  # fmt: skip


def _pooled(x):
    return jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


@pytest.mark.parametrize("name", STEPS)
def test_every_step_of_a_program_has_a_shape_in_formulas(name):
    """Prices at other sizes equal the prices of the plan there."""
    function, shape, spec = STEPS[name]
    (b,) = sa.dims("B", hint=(8,))
    mesh = sa.Mesh({"X": 2, "Y": 2})

    def planned(size, **options):
        given = jax.ShapeDtypeStruct(tuple(size if n == "B" else n for n in shape), "float32")
        return sa.plan(function, given, mesh=mesh, in_shardings=(spec,), **options)

    plan = planned(b)
    assert plan.holds()
    for n in (n for n in (8, 12, 16, 24, 64) if plan.holds(B=n)):
        own = planned(n, options=plan.at(B=n).options).cost("h100")
        formula = plan.cost("h100").step_time_s
        made = formula.subs(dict.fromkeys(formula.free_symbols, n))
        assert math.isclose(made, own.step_time_s, rel_tol=1e-12)
        assert plan.at(B=n).cost("h100").peak_memory_bytes == own.peak_memory_bytes


def test_loops_in_loops_and_lengths_that_are_sums():
    N, K, W = sa.dims("N K W", hint=(6, 4, 8))
    xs = jax.ShapeDtypeStruct((N, K, W), "float32")

    def inner(carry, x):
        carry = carry + sa.mesh_split(x.sum(), MESH, [])
        return carry, None

    def outer(carry, rows):
        return jax.lax.scan(inner, carry, rows)

    def fn(xs):
        return jax.lax.scan(outer, jnp.float32(0), xs[1:])[0]

    plan = sa.plan(fn, xs, mesh=MESH, in_shardings=(P(None, None, "X"),))
    counts = {step.count for step in walk(symbolised(plan).program)}
    n, k = symbols("N K")
    assert {n - 1, (n - 1) * k} <= counts


def test_flops_follow_from_local_shapes_as_from_digits():
    plan = planned("train_step", "finalized", UNEVEN, True)
    held = plan.program.locals
    for step in walk(plan.program):
        instruction = step.instruction
        if type(instruction.attributes) is Apply and instruction.node is not None:
            signature = plan.graph.nodes[instruction.node].signature
            values = (*instruction.operands, *instruction.results)
            shapes = tuple(held[v].shape for v in values)
            digits = instruction.attributes.loops
            assert shaped_flops(signature, shapes) == signature_local_flops(signature, digits)
