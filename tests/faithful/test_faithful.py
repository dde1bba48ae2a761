"""GSPMD's and Shardy's layouts in loops, caches and attention, against XLA's recorded ones."""

import json
from functools import cache
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import MEMO
from shardalg.planner.propagate import CompletionOptions, Options, propagate
from shardalg.planner.propagate.gspmd import elements, step, tuple_steps
from shardalg.planner.propagate.gspmd import step as hlo_class
from shardalg.planner.propagate.gspmd import tuple_steps as computations
from shardalg.planner.propagate.shardy import edges, lowered, worklist
from shardalg.verify.verify import verify
from shardalg.xla import dump
from tests.faithful.agreement import TEMPLATES, Fresh, programs
from tests.faithful.record import CHOSEN
from tests.propagate.harder import described, module_of


@cache
def told():
    """(program, per partitioner XLA's module and results), as this jax traces the programs."""
    data = json.loads((Path(__file__).parent / "told.json").read_text())
    known = {(row["case"], row["seed"], row["traced"]): row for row in data["programs"]}
    chosen = [Fresh(*of) for of in CHOSEN]
    found = [
        (program, known.get((program.case, program.seed, program.traced))) for program in chosen
    ]
    lacking = [f"{program.case} {program.seed}" for program, row in found if row is None]
    assert not lacking, f"jax {jax.__version__}: python -m tests.faithful.record adds {lacking}"
    return found


def differences(policy, partitioner):
    """Return the differences from XLA, and the number of compared values."""
    found = []
    for program, row in told():
        graph, answer = program.problem[0], row[partitioner]
        shapes = [graph.values[v].type.shape for v in graph.results]
        results = [
            None if text is None else Sharding.from_hlo(text, shape, program.mesh)
            for text, shape in zip(answer["results"], shapes, strict=True)
        ]
        found += program.matches(policy, module_of(answer["rows"]), tuple(results))
    return [described(match) for match in found if not match.agrees], len(found)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("policy", ["gspmd", "shardy"])
def test_loops_have_the_layouts_of_xla(policy):
    wrong, count = differences(policy, policy)
    assert wrong == []
    assert count > 70


def test_they_are_not_those_of_the_paper():
    assert len(differences("paper", "gspmd")[0]) > 10


GSPMD = {
    "a tuple's elements refined one by one": (computations, "_together", lambda made: {}),
    "elements unrelated": (elements.Element, "related", lambda self: ()),
    "a tuple heard where most is cut": (step, "_finest", lambda found: found[:1]),
    "boxes as they are written": (hlo_class, "BOXES", {}),
    "the largest and where they are in one tuple": (tuple_steps, "ARGUMENTS", ()),
    "heard in order": (computations, "_order_readers", lambda *args: None),
}
SHARDY = {
    "slices with what passes": (lowered, "LATER", frozenset()),
    "products as they are read": (worklist, "made_as_operands", lambda *args: ()),
    "annotations hold for what is carried": (edges, "is_carried", lambda *args: False),
}
RULES = [("gspmd", name, row) for name, row in GSPMD.items()]
RULES += [("shardy", name, row) for name, row in SHARDY.items()]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("policy", "name", "row"), RULES)
def test_each_rule_decides_some_program(policy, name, row):
    with mock.patch.object(*row):
        forget()
        wrong, _ = differences(policy, policy)
    forget()
    assert wrong, name


def boxes(draw):
    """Return a shift as `at` writes it, and rows that are selected by one number."""
    draw.mesh = {"x": 2, "y": 2}
    draw.arguments = {"x": ((4, 8), jnp.float32, P("x", "y")), "w": ((8, 8), jnp.float32, None)}

    def run(x, w):
        shifted = jnp.zeros_like(x).at[1:].set(x[:-1])
        return shifted, jnp.tanh(shifted @ w).at[jnp.array([1])].get(mode="clip")

    return run


@pytest.mark.parametrize("policy", dump.partitioners())
def test_boxes_of_scatters_and_gathers_lie_as_xla_has_them(policy):
    with mock.patch.dict(TEMPLATES, boxes=boxes):
        found = Fresh("boxes", 0).compared(policy, policy)
    assert [described(match) for match in found if not match.agrees] == []
    assert len(found) >= 3


def forget():
    """Clear the graphs that completion keeps."""
    for program, _ in told():
        vars(program.problem[0]).pop(MEMO, None)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("policy", ["gspmd", "shardy"])
def test_plans_of_loops_are_proved_and_their_reasons_told(policy):
    for program, _ in told()[:4]:
        done, made = program.planned(policy)
        assert verify(done, made).ok
        assert all(done.why(value) for value in range(len(done.graph.values)))


def test_fresh_programs_are_drawn_anew_and_completed():
    """Every template once, under every policy."""
    drawn = programs(len(TEMPLATES), 77)
    assert {program.case for program in drawn} == set(TEMPLATES)
    for program in drawn[::3]:
        for policy in ("gspmd", "shardy"):
            assert propagate(
                *program.problem, CompletionOptions.of(Options(policy=policy))
            ).shardings
