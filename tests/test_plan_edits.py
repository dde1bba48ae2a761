"""Edited plan files: refused with `PlanFileError`, or a plan whose parts agree."""

import json
from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import LoweringError, PlanFileError
from tests import plan_edits
from tests.plan_edits import BASES, base, edited, tried


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("edits")


def run(folder, seed, count):
    """Return the outcomes of `count` edits, and the parts of the file with accepted ones."""
    found = Counter()
    for i in range(count):
        name = list(BASES)[i % len(BASES)]
        content = edited(base(name, folder), np.random.default_rng([seed, i]))
        try:
            found[tried(content, folder / "edited.json", name)] += 1
        except BaseException as error:
            error.add_note(f"edit {i} of seed {seed}, of {name}")
            raise
    return found


@pytest.mark.parametrize("name", BASES)
def test_a_plan_without_edits_is_taken(name, folder):
    assert tried(base(name, folder), folder / "same.json", name) == "taken"


def test_a_sample_of_edits(folder):
    found = run(folder, 0, 60)
    assert found["refused"] > found["taken"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_thousand_edits(folder, seed):
    print(run(folder, seed, 1000))


def written(folder, name, change):
    """Write the file with a change and a new digest."""
    content = json.loads(json.dumps(base(name, folder)))
    change(content)
    plan_edits.write(folder / "changed.json", content)
    return folder / "changed.json"


def precision(content):
    (dot,) = (s for s in content["graph"]["signatures"] if s[0] == "dot_general")
    assert dot[1][1] == ["precision", ["HIGHEST", "HIGHEST"]]
    dot[1][1][1] = ["DEFAULT", "DEFAULT"]


DIFFERENCES = {
    "options": lambda c: c["options"].update(share_gathers=False),
    "strict": lambda c: c["options"].update(strict=True),
    "donation": lambda c: c.update(donated=[]),
    "roles": lambda c: c.update(argument_roles=["parameters", "data"]),
    "result layout": lambda c: c["annotations"]["results"][0].update(dims=[[], []]),
    "precision": precision,
    "a name": lambda c: c["graph"]["values"][0].__setitem__(2, "y"),
    "a source line": lambda c: c["graph"]["nodes"][0].__setitem__(3, "other.py:1"),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_everything_that_was_asked_for_is_compared(name, folder):
    """Each of these is a plan by itself, and is not the one that was saved."""
    path = written(folder, "matmul", DIFFERENCES[name])
    with pytest.raises(PlanFileError, match="was edited, or saved by other code of this version"):
        sa.load_plan(path)
    assert isinstance(plan_edits.restored(path), sa.Plan)


def test_a_plan_of_another_precision_does_not_run_the_function(folder):
    other = plan_edits.restored(written(folder, "matmul", precision))
    with pytest.raises(LoweringError, match="graph is"):
        other.lower(fn=plan_edits.matmul)


def test_named_sizes_with_other_formulas_do_not_run_the_function(folder):
    def swap(content):
        """M of the weight, of hint 6, as a size of its own of the same hint."""
        text = json.dumps(content["symbols"]).replace('"M"', '"K"')
        content["symbols"] = json.loads(text)

    other = plan_edits.restored(written(folder, "named", swap))
    B, M = sa.dims("B M", hint=(8, 6))
    types = [sa_type((B, M)), sa_type((M, M))]
    with pytest.raises(LoweringError, match="other formulas"):
        other.lower(fn=plan_edits.named, args=types)


def sa_type(shape):
    return jax.ShapeDtypeStruct(shape, "float32")


TEXTS = {
    "deep": '{"schema": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "101 levels": '{"schema": ' + "[" * 101 + "]" * 101 + "}",
    "digits": '{"schema": ' + "9" * 10_000 + "}",
    "NaN": '{"schema": NaN}',
    "Infinity": '{"schema": "shardalg.plan/5", "plan": -Infinity}',
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_that_no_plan_is(name, tmp_path):
    (tmp_path / "plan.json").write_text(TEXTS[name])
    with pytest.raises(PlanFileError):
        sa.load_plan(tmp_path / "plan.json")


VALUES = {
    "an item type": (lambda c: c["graph"]["types"][0].__setitem__(1, "object"), "no type"),
    "a size": (lambda c: c["graph"]["types"][0].__setitem__(0, [7, -16]), "no type"),
    "half a character": (lambda c: c["graph"].update(argument_paths=["x", "\ud800"]), "half a"),
    "true for a number": (lambda c: c.update(donated=[True]), "is True, not a whole"),
    "a large number": (
        lambda c: c.update(donated=[1 << 64]),
        r"donated\[0\] is \d+, a number that",
    ),
    "donated twice": (lambda c: c.update(donated=[0, 0]), "each donated once"),
    "roles": (lambda c: c.update(argument_roles=["data", "boss"]), r"is 'boss', not one"),
    "a part more": (lambda c: c.update(more=1), "its content is not a plan: it needs graph"),
    "no JAX": (lambda c: c["graph"]["signatures"][0][1][1].__setitem__(1, "HI"), "rejected by JAX"),
    "a digit": (
        lambda c: c["annotations"]["arguments"][0].update(dims=[[[0, 2]], []]),
        "is not an axis of",
    ),
    "a number for a switch": (
        lambda c: c["options"].update(defer_sums=1),
        r"options\['defer_sums'\] is 1, neither true nor false",
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_its_type_does_not_allow_is_named(name, folder):
    change, message = VALUES[name]
    with pytest.raises(PlanFileError, match=message):
        sa.load_plan(written(folder, "matmul", change))


SPECS = {
    "none": ([], "has 1 specs of"),
    "another axis": ([[["Z"]]], "has 2 specs of"),
    "another cut": ([[["Y"]]], r"cuts \(8, 4\) by"),
    "another rank": ([[["X"], [], []]], "cuts"),
}


@pytest.mark.parametrize("name", SPECS)
def test_blocks_of_a_region_are_what_its_specs_cut(name, folder):
    specs, message = SPECS[name]

    def change(content):
        (call,) = (s for s in content["graph"]["signatures"] if s[0] == "shard_map")
        assert call[1][1] == ["in_axes", [[["X"]]]]
        call[1][1][1] = specs

    with pytest.raises(PlanFileError, match=message):
        sa.load_plan(written(folder, "manual", change))


COLLECTIVES = {
    "groups": ("psum_invariant", "axis_index_groups", [[0], [1]], "over groups of an axis"),
    "an axis twice": ("psum_invariant", "axes", ["X", "X"], "but its region has"),
    "another axis": ("psum_invariant", "axes", ["Z"], "but its region has .*X.*Y"),
    "a sender twice": ("ppermute", "perm", [[0, 1], [0, 0]], "has pairs"),
    "no such device": ("ppermute", "perm", [[0, 2], [1, 0]], "has pairs .* which 2 devices"),
    "no pairs": ("ppermute", "perm", 3, "perm is 3, not a list"),
    "no names": ("psum_invariant", "axes", [0], r"axes of a collective\[0\] is 0"),
    "no axes": ("psum_invariant", "axes", None, "axes of a collective is None"),
    "axes of the call": ("shard_map", "axes", [["X", 2], ["Y", 4], ["Y", 4]], "has 2 specs of"),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_are_ones_of_their_region(name, folder):
    primitive, param, value, message = COLLECTIVES[name]

    def change(content):
        (found,) = (s for s in content["graph"]["signatures"] if s[0] == primitive)
        params = dict(found[1])
        found[1] = sorted([*({**params, param: value}.items())])

    with pytest.raises(PlanFileError, match=message):
        sa.load_plan(written(folder, "manual", change))


def test_trips_of_a_while_are_not_in_a_file(folder):
    def change(content):
        (one, *_) = (r for r in content["graph"]["regions"] if r[0] == "while")
        one[6] = 7

    with pytest.raises(PlanFileError, match="has trips of its own"):
        sa.load_plan(written(folder, "control", change))


def pooled(x):
    """Reduce by a user's function, which a file lacks: JAX cannot derive its type."""
    either = lambda a, b: jnp.maximum(a, b)  # noqa: E731
    return lax.reduce_window(x, -jnp.inf, either, (2, 1), (1, 1), "VALID")


def selected(x):
    pooling = partial(lax.reduce_window, init_value=-jnp.inf, computation=lax.max,
                      window_dimensions=(2, 2), window_strides=(2, 1), padding="VALID")  # fmt: skip
    return jax.grad(lambda x: (pooling(x) ** 2).sum())(x)


def convolved(x):
    kernel, line = jnp.ones((4, 2, 3), x.dtype), x.reshape(2, 2, 8)
    return lax.conv_general_dilated(line, kernel, (1,), "SAME")


def told(name, first, value):
    """Change the first parameter or all of it."""

    def change(params):
        if first is None:
            params[name] = value
        else:
            params[name][0] = value

    return change


ROWS = {
    "a dimension from the end": (
        convolved, "conv_general_dilated",
        lambda p: p["dimension_numbers"][0][1].__setitem__(2, -1), "has no row: KeyError: 2",
    ),
    "fewer dilations": (
        convolved, "conv_general_dilated", told("rhs_dilation", None, []), "has no row: IndexError",
    ),
    "no such dimension": (
        jnp.sort, "sort", told("dimension", None, 2), "has no row: IndexError",
    ),
    "numbers that are left out": (
        lambda x: x[jnp.array([1, 0])], "gather",
        lambda p: p["dimension_numbers"].pop(), "has no row: KeyError: 'start_indices_batching",
    ),
    "of code, no axes": (
        lambda x: lax.reduce(x, 0.0, lambda a, b: a + 2 * b, (0,)), "reduce",
        told("dimensions", None, None), "has no row: TypeError",
    ),
    "of code, fewer strides": (
        pooled, "reduce_window", told("window_strides", None, [1]), "is rejected by JAX",
    ),
    "of code, padded at the end": (
        pooled, "reduce_window", told("padding", 0, [0, 1]), "does not compute",
    ),
    "of code, dilated backwards": (
        pooled, "reduce_window", told("window_dilation", 0, -1), "window_dilation=-1 in Window",
    ),
    "windows without a source": (
        selected, "select_and_scatter_add", told("window_strides", 0, 1), "does not compute",
    ),
    "windows that stand still": (
        selected, "select_and_scatter_add", told("window_strides", 0, 0), "stride=0 in Window",
    ),
    "no mode": (
        lambda x: x.at[0].set(1.0), "scatter", told("mode", None, None), "mode is None, not a text",
    ),
    "a default": (
        lambda x: x.at[0].add(1.0), "scatter-add", lambda p: p.pop("unique_indices"),
        "rejected by JAX: KeyError: 'unique_indices'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_parameters_that_no_trace_leaves_are_refused(name, tmp_path):
    function, primitive, change, message = ROWS[name]
    specs = {"mesh": sa.Mesh({"X": 2}), "in_shardings": (P("X"),)}
    path = tmp_path / "plan.json"
    sa.plan(function, sa_type((8, 4)), **specs).save(path)
    content = plan_edits.content_of(path)
    (signature,) = (s for s in content["graph"]["signatures"] if s[0] == primitive)
    params = dict(signature[1])
    change(params)
    signature[1] = [[name, params[name]] for name in sorted(params)]
    plan_edits.write(path, content)
    with pytest.raises(PlanFileError, match=message):
        plan_edits.restored(path)


def test_priorities_are_kept(tmp_path):
    x = sa_type((8, 16))
    layout = sa.Sharding.parse('#sdy.sharding<@mesh, [{"X"}p1, {?}]>', (8, 16), plan_edits.MESH)
    plan = sa.plan(lambda x: x + 1, x, mesh=plan_edits.MESH, in_shardings=(layout,))
    plan.save(tmp_path / "plan.json")
    assert sa.load_plan(tmp_path / "plan.json").annotations == plan.annotations
