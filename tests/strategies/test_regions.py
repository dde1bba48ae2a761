"""`comparison.regions`: the map equals plans made at its points; boundaries are crossings."""

import doctest
import random
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.sizes.boundary import branch, inequality
from shardalg.sizes.formula import ceiling, symbols
from shardalg.sizes.maximum import larger

SEED = 37
EVERY = ("X", "Y")
MESH = sa.Mesh({"X": 4}, symbolic=True)
BY_MODEL = {"up": P("X", "Y"), "down": P("Y", "X")}


@pytest.fixture(scope="module")
def comparison():
    B, D, F = sa.dims("B D F", hint=(65536, 8192, 32768))
    mesh = sa.Mesh({"X": 16, "Y": 4}, symbolic=True)

    def step(weights, x):
        def loss(weights):
            return jnp.mean((jax.nn.gelu(x @ weights["up"]) @ weights["down"]) ** 2)

        return jax.grad(loss)(weights)

    x, up, down = (jax.ShapeDtypeStruct(s, "bfloat16") for s in ((B, D), (D, F), (F, D)))
    return sa.compare(
        step,
        {"up": up, "down": down},
        x,
        hardware="v5p",
        roles=("parameters", "data"),
        strategies={
            "data": sa.Strategy(mesh, (P(), P(EVERY)), P()),
            "fsdp": sa.Strategy(mesh, (P(EVERY), P(EVERY)), P(EVERY)),
            "tensor": sa.Strategy(mesh, (BY_MODEL, P("X")), BY_MODEL),
        },
    )


def test_the_map_is_the_ranking_of_plans_made_at_its_points(comparison):
    batches, axes = [2**k for k in range(14, 21)], [1, 2, 4, 8]
    found = comparison.regions(B=batches, Y=axes)
    draw = random.Random(SEED)
    points = draw.sample([(b, y) for b in batches for y in axes], 12)
    for batch, size in points:
        there = [row.plan.at(B=batch, Y=size).cost("v5p") for row in found.strategies]
        steps = [float(c.step_time_s) if c.fits else np.inf for c in there]
        place = (batches.index(batch), axes.index(size))
        assert found.step_s[(slice(None), *place)] == pytest.approx(
            [float(c.step_time_s) for c in there], rel=1e-9
        ), f"seed {SEED}: B={batch}, Y={size}"
        assert found.at(B=batch, Y=size) == found.names[int(np.argmin(steps))]
    assert len({*found.winner.flat}) >= 2
    assert f"of {len(batches) * len(axes)}" in found.sentence


def test_a_boundary_is_where_the_prices_cross(comparison):
    found = comparison.regions(B=[2**k for k in range(14, 22)])
    rows = [row for row in found if row["because"] == "time" and row["where"].startswith("B ")]
    assert rows
    for row in rows:
        first, second = (comparison[row[name]].cost for name in ("faster", "slower"))
        sign, text = re.fullmatch(r"B ([<>]) (.*)", row["where"]).groups()
        hints = {"X": 16, "Y": 4, "D": 8192, "F": 32768}
        bound = eval(text, {"__builtins__": {}}, hints)
        turns = first.crossover(second, "B")
        assert any(abs(turn / bound - 1) < 0.05 for turn in turns), (bound, turns)
        # On the named side the first strategy is the faster one.
        inside = int(bound * (2 if sign == ">" else 0.5))
        there = [comparison[row[name]].plan.at(B=inside) for name in ("faster", "slower")]
        fast, slow = (float(plan.cost("v5p").step_time_s) for plan in there)
        assert fast < slow


def test_a_boundary_of_memory(comparison):
    small = sa.compare(
        {row.name: row.plan for row in comparison.rows}, hardware="v5p", reserve=0.96
    )
    found = small.regions(B=[2**k for k in range(12, 22)])
    rows = [row for row in found if row["because"] == "memory"]
    assert rows
    for row in rows:
        fits = found.fits[found.names.index(row["faster"])]
        assert fits.any()
        assert not fits.all()
        assert row["where"].startswith("B < ")


def test_the_figure_has_a_cell_per_point(comparison):
    found = comparison.regions(B=[4096, 65536], X=[8, 16, 32])
    figure = found.draw()
    image = figure.axes[0].images[0].get_array()
    assert image.T.tolist() == (found.winner + 1).tolist()
    assert figure._repr_png_()[:4] == b"\x89PNG"


def test_measured_points_are_dots_and_crosses_on_the_map(comparison):
    found = comparison.regions(B=[4096, 65536], X=[8, 16, 32])
    right = found.at(B=65536, X=16)
    wrong = next(name for name in found.names if name != found.at(B=4096, X=8))
    other = next(name for name in found.names if name != wrong)
    figure = found.draw(
        measured={(65536, 16): {right: 0.01}, (4096, 8): {wrong: 0.01, other: 0.02}}
    )
    dots, crosses = (points.get_offsets().tolist() for points in figure.axes[0].collections)
    assert (dots, crosses) == ([[1, 1]], [[0, 0]])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[-2:] == ["measured", "measured, not as drawn"]
    # A point between two values of the grid is between their cells, on a logarithmic scale.
    figure = found.draw(measured={(16384, 16): {right: 0.01}})
    assert figure.axes[0].collections[0].get_offsets().tolist() == [[0.5, 1]]


def test_cells_are_hatched_where_the_fastest_strategy_is_communication_bound(comparison):
    found = comparison.regions(B=[2**k for k in range(12, 21)])
    figure = found.draw()
    (places,) = np.nonzero(figure_waits(found))
    hatched = [patch.get_x() + 0.5 for patch in figure.axes[0].patches]
    assert hatched == places.tolist()
    assert 0 < len(hatched) < 9


def figure_waits(found):
    return [not found.computes[number, i] for i, number in enumerate(found.winner)]


def test_limits_are_where_computation_takes_as_long_as_communication(comparison):
    found = comparison.regions(B=[2**k for k in range(12, 22)])
    for number, row in enumerate(found.limits):
        for batch, computes in zip(found.sizes["B"], found.computes[number], strict=True):
            cost = comparison[row["strategy"]].plan.at(B=int(batch)).cost("v5p")
            assert computes == (cost.compute_s >= cost.communication_s)
            if row["where"].startswith("B"):
                sign, text = re.fullmatch(r"B ([<>]) (.*)", row["where"]).groups()
                hints = {"X": 16, "Y": 4, "D": 8192, "F": 32768}
                edge = eval(text, {"__builtins__": {}}, hints)
                # The inequality leaves out small terms, so that it decides away from the edge.
                if not 0.95 < batch / edge < 1.05:
                    assert computes == (batch > edge if sign == ">" else batch < edge)


def test_compute_bound_of_a_cost(comparison):
    cost = comparison["fsdp"].cost
    assert cost.compute_bound("B").startswith("B > ")
    assert cost.compute_bound("B", axes=["X"]) == cost.compute_bound("B")
    assert comparison["tensor"].cost.compute_bound("B", axes=["Y"]) == "always"
    with pytest.raises(sa.FormulaError, match="'Z' is no size of the plan"):
        cost.compute_bound("Z")
    with pytest.raises(sa.TableError, match="no collective runs along 'Z'; there are X, Y"):
        cost.compute_bound("B", axes=["Z"])
    with pytest.raises(sa.FormulaError, match="plans in numbers have no boundary"):
        cost.at_hints.compute_bound("B")


def test_points_without_a_plan_have_a_reason():
    x = jax.ShapeDtypeStruct((64, 64), "float32")
    mesh = sa.Mesh({"X": 8}, symbolic=True)
    rows = {"rows": sa.Strategy(mesh, (P("X"),))}
    found = sa.compare(jnp.sin, x, strategies=rows, hardware="h100:8").regions(X=[4, 8, 12, 16])
    assert [found.at(X=size) for size in (4, 8, 12, 16)] == ["rows", "rows", None, "rows"]
    assert found.refused["rows"].startswith(
        "no plan at 1 points; at X=12: chips=12: no slice of h100 has so many"
    )
    assert "no slice of h100" in repr(found)


def test_strategies_share_the_trace_of_a_point():
    """Plans of several strategies and meshes need one trace of the function for each batch."""
    traced = []

    def step(x, w):
        traced.append(x.shape[0])
        return x @ w

    B = sa.dims("B M", hint=(96, 1))[0]
    arrays = [jax.ShapeDtypeStruct(s, "float32") for s in ((B, 64), (64, 64))]
    mesh = sa.Mesh({"X": 8}, symbolic=True)
    rows = {
        name: sa.Strategy(mesh, specs)
        for name, specs in (("rows", (P("X"), P())), ("both", (P("X"), P("X"))))
    }
    found = sa.compare(step, *arrays, strategies=rows, hardware="h100:8")
    before = len(traced)
    # These batches do not divide, so that the function is planned at each of them.
    regions = found.regions(B=[97, 101], X=[4, 8, 16])
    assert not regions.formula_holds.any()
    # The third trace is at the unrelated sizes that the guards compare with.
    assert len(traced) - before == 3
    assert {97, 101} < {*traced[before:]}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("measured", "text"),
    [
        ({(64, 16): {"fsdp": 1}}, r"point \(64, 16\): give values of B from 4096 to 65536"),
        ({4096: {"fsdp": 1}}, "measured has the point 4096"),
        ({(4096, 8): 0.1}, "give seconds, as in"),
        ({(4096, 8): {"zero": 0.1}}, "names 'zero', which is none of the strategies"),
        ({(4096, 8): {"fsdp": -1}}, "is -1: give seconds"),
    ],
)
def test_measured_points_that_are_not_valid(comparison, measured, text):
    found = comparison.regions(B=[4096, 65536], X=[8, 16, 32])
    with pytest.raises(sa.TableError, match=text):
        found.draw(measured=measured)


@pytest.mark.parametrize(
    ("names", "sizes", "text"),
    [
        ((), {}, "give one or two of the named sizes"),
        ((3,), {}, "regions over 3: give one or two of the named sizes"),
        (("Z",), {}, "regions over Z: give one or two"),
        (("B", "D", "F"), {}, "give one or two"),
        ((), {"B": [0, 1]}, "give whole numbers from 1 on"),
        ((), {"B": [1.5]}, "give whole numbers from 1 on"),
    ],
)
def test_bad_input(comparison, names, sizes, text):
    with pytest.raises(sa.TableError, match=text):
        comparison.regions(*names, **sizes)


def test_plans_in_numbers_have_no_regions():
    x = jax.ShapeDtypeStruct((64, 64), "float32")
    rows = {"rows": sa.Strategy(sa.Mesh({"X": 4}), (P("X"),))}
    found = sa.compare(jnp.sin, x, strategies=rows, hardware="v5p")
    with pytest.raises(sa.TableError, match=r"none: use sa\.dims"):
        found.regions("B")
    # A strategy that was refused explains why there are no named sizes.
    refused = sa.compare(
        jnp.sin, x, strategies={"two": sa.Strategy(MESH, (P("X"), P()))}, hardware="v5p"
    )
    with pytest.raises(sa.TableError, match=r"No strategy has a plan: two: "):
        refused.regions("X")
    found = comparison_of_one().regions(B=[64])
    with pytest.raises(sa.TableError, match="is no point of the grid"):
        found.at(B=3)
    for sizes, text in (({}, "nothing"), ({"C": 3}, "C=3"), ({"B": 64, "C": 3}, "B=64, C=3")):
        with pytest.raises(sa.TableError, match=rf"has the sizes B; at\(\) got {text}\."):
            found.at(**sizes)


def comparison_of_one():
    B, _ = sa.dims("B M", hint=(64, 64))
    x = jax.ShapeDtypeStruct((B, 64), "float32")
    mesh = sa.Mesh({"X": 4}, symbolic=True)
    rows = {"rows": sa.Strategy(mesh, (P("X"),))}
    return sa.compare(jnp.sin, x, strategies=rows, hardware="v5p")


def test_branches_and_inequalities():
    B, D, X = symbols("B D X")
    point = {"B": 640, "D": 7, "X": 4}
    both = larger(B * D, 100 * X * D) + ceiling(B / X)
    assert branch(both, point) == B * D + B / X
    assert branch(both, {**point, "B": 4}) == 100 * X * D + B / X
    assert inequality(B * D - B - 6 * X, ("B",), point) == "B > 6*X/(D - 1)"
    assert inequality(B * B - X, ("B",), point) == "X < B**2"
    assert inequality(B - 2550 * X + 2550, ("B", "X"), point) == "B/X > 2550 - 2550/X"
    assert inequality(D - 2550 * X, ("X",), point) == "X < D/2550"
    assert inequality(B + X, ("B",), point) == "always"
    assert inequality(-B - X, ("B",), point) == "never"
    assert inequality((X - 640) * B, ("X",), point) == "X > 640"
    # The bound is negative, and sizes are positive.
    assert inequality((X - 640) * B - D, ("B",), {"B": 640, "D": 9000, "X": 600}) == "never"


def test_the_guide_about_regions_runs():
    page = (Path(__file__).parents[2] / "docs" / "regions.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    example = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "regions", None, 0)
    told = []
    result = doctest.DocTestRunner().run(example, out=told.append)
    assert result.attempted > 12
    assert not result.failed, "".join(told)
