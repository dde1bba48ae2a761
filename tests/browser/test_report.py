"""The living report: its numbers equal Python's, its controls work, and its guards are right."""

import random
from fractions import Fraction

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.costs.topology import machine
from shardalg.plan.named_sizes import asked_facts
from shardalg.plan.page.report_page import OVERLAPS, report_document
from shardalg.sizes.formula import Formula
from tests.browser.in_page import said_by
from tests.browser.test_names import HOSTILE
from tests.browser.test_program_view import browser

CHIPS = ("tpu_v3", "h100")
NAME = f"other {HOSTILE['markup']}"


def loss(w, x):
    return jnp.tanh(jnp.tanh(x @ w) @ w.T).sum()


@pytest.fixture(scope="module")
def plans():
    B, M, F = sa.dims("B M F", hint=(64, 16, 32))
    w, x = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((M, F), (B, M)))
    mesh = sa.Mesh({"X": 4, "Y": 2}, symbolic=True)
    specs = (P("Y", "X"), P("X"))
    plan = sa.plan(jax.grad(loss), w, x, mesh=mesh, in_shardings=specs, out_shardings=specs[0])
    other = sa.Strategy(mesh, in_shardings=(P(), P("X")), out_shardings=P())
    return {"this plan": plan, NAME: plan.replan(other)}


@pytest.fixture(scope="module")
def page(plans):
    return report_document(plans, CHIPS)


def drawn(number, seed):
    """Return random points, some of them at sizes that divide and some anywhere."""
    rng = random.Random(seed)
    print(f"{seed=}")
    found = []
    for _ in range(number):
        sizes = {"B": 64, "M": 16, "F": 32, "X": 4, "Y": 2}
        if rng.random() < 0.5:
            sizes = {n: rng.randint(1, 100 * size) for n, size in sizes.items()}
        else:
            sizes = {n: size * 2 ** max(0, rng.randint(-6, 5)) for n, size in sizes.items()}
        found.append((sizes, rng.randrange(2), rng.choice([*OVERLAPS])))
    return found


def expected(plan, point, chip, overlap):
    """Return the quantities by Python's exact formulas."""
    cost = plan.cost(chip, overlap=overlap)
    totals = cost.totals
    facts = asked_facts(plan, machine(chip))[0]
    return {
        "time": float(Formula.of(cost._time(totals)).at(point)),
        "peak": max(Fraction(Formula.of(peak).at(point)) for peak in totals.peaks()),
        "wire": Fraction(Formula.of(totals.sum("wire_bytes")).at(point)),
        "differs": not all(fact.holds(point) for fact in facts),
    }


ASK = """
said.found = ASKED.map(asked => one(".sa-page").evaluate(...asked));
"""


@browser
@pytest.mark.parametrize("number", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_numbers_equal_those_of_python(plans, page, number, tmp_path):
    asked = drawn(number, 41)
    script = ASK.replace("ASKED", sa_json([(p, c, o) for p, c, o in asked]))
    said = said_by(page, script, tmp_path, budget=20_000)
    certain = 0
    for (point, chip, overlap), answers in zip(asked, said["found"], strict=True):
        for plan, found in zip(plans.values(), answers, strict=True):
            wanted = expected(plan, point, CHIPS[chip], overlap)
            assert found["time"] == pytest.approx(wanted["time"], rel=1e-12, abs=0)
            for name in ("peak", "wire"):
                assert Fraction(*map(int, found[name])) == wanted[name]
            assert found["differs"] == wanted["differs"]
            # What the page claims is certain, and equals a plan that is made there.
            if found["holds"] and certain < number // 4:
                certain += 1
                assert plan.holds(**point)
                here = plan.at(**point).cost(CHIPS[chip], overlap=overlap)
                assert here.step_time_s == pytest.approx(found["time"], rel=1e-9)
                assert int(found["wire"][0]) == here.wire_bytes * int(found["wire"][1])
    assert certain >= number // 10


def sa_json(data):
    from shardalg.show.pages.document import script_json

    return script_json(data)


CLICKS = """
const view = one(".sa-page"), text = name => one(`[data-part="${name}"]`).textContent;
said.hint = text("valid");
said.overlaps = all('[data-choice="overlap"] option').map(o => o.value);
const before = text("figures");
change(one('[data-size="B"]'), 128);
said.moved = text("figures") !== before;
said.slide = one('[data-slide="B"]').getAttribute("aria-valuetext");
change(one('[data-choice="chip"]'), "1");
said.chip = text("figures").includes("h100");
change(one('[data-choice="what"]'), "peak");
said.peak = text("curve").includes("peak memory along B");
change(one('[data-choice="x"]'), "M");
said.along = text("map").includes("M and");
change(one('[data-size="M"]'), 17);
said.grey = text("valid");
const cells = all('[data-part="map"] rect[data-at]');
cells[0].dispatchEvent(new PointerEvent("pointermove", {bubbles: true}));
said.tip = one(".tip").hidden === false && one(".tip").textContent.includes("is false");
cells[0].dispatchEvent(new MouseEvent("click", {bubbles: true}));
said.picked = one('[data-size="M"]').value !== "17";
one('[data-part="map"] svg').dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
change(one('[data-size="B"]'), 0);
said.refused = text("valid");
one("[data-plan='1']").click();
said.names = text("plans");
one("[data-reset]").click();
said.back = text("valid") ;
all("details").forEach(part => { part.open = true; });
said.crossovers = view.crossovers.length;
"""


@browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, 1), (420, 0)])
def test_a_person_moves_the_sliders(page, width, scheme, tmp_path):
    said = said_by(page, CLICKS, tmp_path, width=width, scheme=scheme)
    assert "holds at these sizes" in said["hint"]
    assert said["overlaps"] == [*OVERLAPS], "assumptions that are schedules are not offered"
    for name in ("moved", "chip", "peak", "along", "tip", "picked"):
        assert said[name], name
    assert said["slide"] == "128"
    assert "plan.at(B=128" in said["grey"]
    assert "is false here" in said["grey"]
    assert "give a whole number" in said["refused"]
    assert NAME in said["names"]
    assert "holds at these sizes" in said["back"]


def test_reports_need_named_sizes(plans, tmp_path):
    numbers = next(iter(plans.values())).at(B=32)
    with pytest.raises(sa.StrategyError, match="are fixed, so its report has nothing to change"):
        numbers.report(tmp_path / "report.html")
    with pytest.raises(sa.StrategyError, match="compares with plans, got 3 as 'x'"):
        next(iter(plans.values())).report(tmp_path / "report.html", others={"x": 3})
    with pytest.raises(OSError, match=r"No such file"):
        next(iter(plans.values())).report(tmp_path / "none" / "report.html")
