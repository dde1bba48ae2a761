"""The members of a plan: grouped by question in files, no internals, tables as methods."""

import ast
from pathlib import Path

import jax
import pandas as pd
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.dataframe import Frame
from shardalg.plan.plan import OLD_NAMES, Plan

MEMBERS = {
    "overview": ("overview", "page", "report", "draw"),
    "shardings": ("shardings", "text", "listing", "stages"),
    "collectives": ("collectives", "gathers", "formatting"),
    "cost": ("cost", "timeline", "memory"),
    "why": (
        "explain",
        "why_not",
        "warnings",
        "beside_jit",
        "switches",
        "compare_xla",
        "cost_of_xla",
    ),
    "sizes": ("is_symbolic", "sizes", "constants", "conditions", "unguarded"),
    "sweep": ("sweep",),
    "verify": ("verify",),
    "run": (
        "lower",
        "compare_runs",
        "one_shard",
        "aot",
        "named_shardings",
        "jit_kwargs",
        "shardy",
        "save",
    ),
}
MADE = ("options", "changes", "program", "mesh", "graph")
OTHERS = ("replan", "at", "holds", "diff", "require", "to_dict", "model_explorer", "patch")
ROOM = Path(sa.__file__).parent / "plan"


@pytest.fixture(scope="module")
def plan():
    x = jax.ShapeDtypeStruct(sa.dims("B M", hint=(8, 16)), "float32")
    return sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"X": 4}), in_shardings=(P("X"),))


def test_members_are_the_public_ones(plan):
    asked = [name for names in MEMBERS.values() for name in names]
    assert dir(plan) == sorted((*asked, *MADE, *OTHERS))


def test_tables_are_methods_and_values_are_properties(plan):
    for file in [ROOM / "plan.py"]:
        for made in ast.walk(ast.parse(file.read_text())):
            if isinstance(made, ast.FunctionDef) and made.returns and not made.name[0] == "_":
                decorators = [ast.unparse(d) for d in made.decorator_list]
                table = ast.unparse(made.returns) in ("DataFrame", "Frame")
                assert not table or "property" not in decorators
    for name in ("constants", "conditions"):
        called, bare = getattr(plan, name)(), getattr(plan, name)
        assert type(called) is Frame
        assert isinstance(bare, pd.DataFrame)
        assert bare.equals(called)
        assert isinstance(bare[bare.columns[:1]], pd.DataFrame)


@pytest.mark.parametrize("name", sorted(OLD_NAMES))
def test_internals_are_found_under_their_old_names(plan, name):
    assert getattr(plan, name) == getattr(plan, f"_{name}")


def test_what_no_plan_has_is_said_with_what_is_near(plan):
    with pytest.raises(AttributeError, match=r"'colectives'\. Did you mean collectives"):
        _ = plan.colectives


def test_an_error_inside_a_property_is_not_hidden(plan, monkeypatch):
    def broken(self):
        raise AttributeError("inside")

    monkeypatch.setattr(Plan, "mesh", property(broken))
    with pytest.raises(AttributeError, match="inside"):
        _ = plan.mesh
