"""Calls that the README and the guides name in their prose exist, and run where they can."""

import ast
import inspect
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import HardwareError
from shardalg.plan.plan import Plan

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", "CONTRIBUTING.md", "docs/glossary.md", "docs/architecture.md"]
PAGES += ["docs/index.md", "docs/adding_an_operator.md", "docs/kernels.md", "docs/concepts.md"]
PAGES += sorted(f"docs/howto/{page.name}" for page in (ROOT / "docs" / "howto").glob("*.md"))
BLOCKS = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
FILES = ("plan.json", "plan.html")
ROOTS = ("plan", "sa", "cost", "Options", "Mesh", "Topology", "Switches")


def named():
    """Yield each expression of the prose that starts with an object of ours, with its page."""
    for page in PAGES:
        prose = BLOCKS.sub("", (ROOT / page).read_text())
        for text in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose):
            try:
                tree = ast.parse(text, mode="eval").body
            except SyntaxError:
                continue
            first = re.match(r"\w+", text)
            has_part = isinstance(tree, ast.Call | ast.Attribute)
            if has_part and first and first[0] in ROOTS and text not in FILES:
                yield pytest.param(text, tree, id=f"{page}: {text}")


@pytest.fixture(scope="module")
def here():
    def step(w, y):
        return jnp.sum(jnp.tanh(y @ w))

    B = sa.dims("B", hint=(64,))[0]
    given = jax.ShapeDtypeStruct((8, 8), "float32"), jax.ShapeDtypeStruct((B, 8), "float32")
    mesh = sa.Mesh({"X": 2, "Y": 4}, symbolic=True)
    plan = sa.plan(step, *given, mesh=mesh, in_shardings=(P("X"), P("Y", "X")))
    ours = {name: getattr(sa, name) for name in ("Options", "Mesh", "Topology", "Switches")}
    return {"plan": plan, "sa": sa, "cost": plan.cost("tpu_v3"), **ours}


def literal(tree):
    """Return whether a call has all of its arguments: no names, no ellipsis."""
    parts = [*tree.args, *(word.value for word in tree.keywords)]
    return not any(
        isinstance(part, ast.Name | ast.Starred)
        or (isinstance(part, ast.Constant) and part.value is ...)
        for given in parts
        for part in ast.walk(given)
    )


def value(tree, here):
    """Return the value of an expression; None where an argument is left open.

    For a call with open arguments, only the names of its keywords are checked.
    """
    if isinstance(tree, ast.Name):
        return here[tree.id]
    if isinstance(tree, ast.Attribute):
        holder = value(tree.value, here)
        return None if holder is None else getattr(holder, tree.attr)
    if isinstance(tree, ast.Call):
        called = value(tree.func, here)
        if called is None:
            return None
        words = {word.arg for word in tree.keywords}
        assert not words or words <= set(inspect.signature(called).parameters)
        if not literal(tree):
            return None
        given = list(map(ast.literal_eval, tree.args))
        named_ = {word.arg: ast.literal_eval(word.value) for word in tree.keywords}
        return called(*given, **named_)
    return None


@pytest.mark.parametrize(("text", "tree"), list(named()))
def test_a_call_of_the_prose_exists_and_runs(text, tree, here):
    try:
        found = value(tree, here)
    except HardwareError as error:  # a topology of another number of devices
        devices = int(re.search(r"it has (\d+) devices", str(error))[1])
        mesh = sa.Mesh({"X": 8, "Y": devices // 8})
        found = value(tree, {**here, "plan": here["plan"].replan(mesh=mesh)})
    if isinstance(tree, ast.Call) and found is not None:
        assert repr(found)


def test_a_call_of_the_prose_that_does_not_exist_is_found(here):
    for text in ("plan.no_such()", "sa.no_such(8)", "plan.verify().no_such()"):
        with pytest.raises(AttributeError):
            value(ast.parse(text, mode="eval").body, here)
    assert isinstance(here["plan"], Plan)
