"""`rules.lint` with a function: faults in its values, and repairs that XLA rewards, too."""

import importlib.util
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import shardalg as sa
from shardalg.plan.rules.repairs import Figures, helps

CASES = Path(__file__).parent / "cases"
EXPECTED = json.loads((CASES / "expected.json").read_text())


def loaded(name):
    """Return a case: its module, its arrays with those of its sites, and its function."""
    spec = importlib.util.spec_from_file_location(name, CASES / f"{name}.py")
    case = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(case)
    arrays = {
        "params": {k: (shape, "float32", names) for k, (shape, names) in case.PARAMS.items()},
        "x": (case.DATA[0], "float32", case.DATA[1]),
    }

    def constrain(x, names):
        key = "activation " + ",".join(map(str, names))
        arrays[key] = (x.shape, "float32", names)
        return sa.annotate(x, key)

    def step(params, x):
        return case.step(params, x, constrain)

    shapes = {k: jax.ShapeDtypeStruct(shape, "float32") for k, (shape, _) in case.PARAMS.items()}
    jax.eval_shape(step, shapes, jax.ShapeDtypeStruct(case.DATA[0], "float32"))
    return case, arrays, step


# The recorded case gives jax.nn.one_hot places that are floating-point numbers.
@pytest.mark.filterwarnings("ignore:jax.nn.one_hot input:DeprecationWarning")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", EXPECTED)
def test_recorded_faults_are_found_and_mended(name):
    """Public reports: each is found, its repair is the one that was merged, and XLA gains."""
    case, arrays, step = loaded(name)
    wanted = EXPECTED[name]["lint"]
    rules = sa.logical_rules(case.RULES["bad"], case.MESH)
    (one,) = rules.lint(arrays, fn=step).of_kind(wanted["kind"])
    assert (one.rule, one.name, one.axis) == (wanted["rule"], wanted["name"], wanted["axis"])
    if "dimension_of" in wanted:
        assert one.array == wanted["dimension_of"]
    if "meets" in wanted:
        met = rules.rules[one.by[0]]
        assert (met.name, ", ".join(met.axes)) == (wanted["meets"], wanted["lies_along"])
    good = sa.logical_rules(case.RULES["good"], case.MESH)
    assert one.repair.rules == good
    assert one.repair.step_s[1] < one.repair.step_s[0]
    assert one.repair.xla_step_s[1] < one.repair.xla_step_s[0]
    assert one.repair.xla_sent_bytes[1] < one.repair.xla_sent_bytes[0]
    assert not good.lint(arrays, fn=step)


def test_weights_that_are_gathered_on_demand_are_no_fault():
    """FSDP: scales and kernels are sharded where activations are whole."""
    rules = sa.logical_rules(
        [("batch", "fsdp"), ("embed", "fsdp"), ("mlp", "tensor")], {"fsdp": 4, "tensor": 2}
    )
    arrays = {
        "w": ((64, 256), "float32", ("embed", "mlp")),
        "scale": ((64,), "float32", ("embed",)),
        "x": ((32, 64), "float32", ("batch", None)),
        "hidden": ((32, 256), "float32", ("batch", "mlp")),
    }

    def layer(w, scale, x):
        return sa.annotate((x * scale) @ w, "hidden").sum()

    assert not rules.lint(arrays, fn=layer)


def test_a_repair_that_gains_nothing_is_left_out():
    """The misspelt rule would split a sum of few elements, and add an all-reduce to every step."""
    rules = sa.logical_rules([("rihgt", "x")], {"x": 4})
    (one,) = rules.lint({"a": ((8, 4), ("right", "left"))}, fn=lambda a: a.T @ a)
    assert (one.kind, one.meant, one.repair) == ("no_array", "right", None)


def test_a_misspelt_rule_is_mended():
    """The weights and the batch were whole on every device."""
    rules = sa.logical_rules([("bacth", "x")], {"x": 4})
    arrays = {"w": ((64, 64), ("embed", "mlp")), "x": ((32, 64), ("batch", "embed"))}
    (one,) = rules.lint(arrays, fn=lambda w, x: jnp.tanh(x @ w))
    assert str(one.repair) == "('batch', 'x') instead of ('bacth', 'x')"
    assert one.repair.peak_bytes[1] < one.repair.peak_bytes[0]


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ((2, 10, 7), (1, 10, 6), True),
        ((2, 10, 7), (1, 10, 7), False),  # XLA's step is as slow as before
        ((2, 10, 7), (2, 5, 7), True),  # less memory in the same time
        ((2, 10, 7), (2, 5, 8), False),
        ((2, 10, 7), (1, 20, 6), False),  # faster, and needs twice the memory
        ((2, 10, 7), (3, 5, 6), False),  # smaller, and slower
    ],
)
def test_a_change_must_help_in_both(before, after, wanted):
    (s0, p0, x0), (s1, p1, x1) = before, after
    assert helps(Figures(s0, p0, 0, x0, 0), Figures(s1, p1, 0, x1, 0)) == wanted
