"""`comparison.regions`: the map equals plans made at its points; boundaries are crossings."""

import random
import re

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


@pytest.mark.parametrize(
    ("names", "sizes", "text"),
    [
        ((), {}, "give one or two of the named sizes"),
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
    with pytest.raises(sa.TableError, match="is no point of the grid"):
        comparison_of_one().regions(B=[64]).at(B=3)


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
