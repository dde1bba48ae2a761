"""Names, source lines and paths: unique, and the same on every trace."""

from functools import partial, wraps
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from shardalg.errors import RoleError, StrategyError, TraceError
from shardalg.graph.annotate import annotate
from shardalg.graph.tracing.trace import flatten_prefix, parameter_names, trace


class State(NamedTuple):
    mu: dict
    count: jax.Array


HERE = Path(__file__).name
FIRST = jnp.zeros((2, 3))


def line_of(text):
    """Return the number of the only line of this file that ends with a comment."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"# {text}")]
    return f"{HERE}:{number}"


def train(params, state, x):
    hidden = annotate(jax.nn.relu(x @ params["w"]), "hidden")  # first product
    out = jnp.where(hidden > 0, hidden @ hidden.T @ hidden, 0)  # two products
    return out, State({"w": state.mu["w"] + out.sum()}, state.count + 1)


ARGS = ({"w": jnp.zeros((3, 3))}, State({"w": jnp.zeros(())}, jnp.int32(0)), FIRST)


def test_values_are_called_by_path_site_and_line():
    graph = trace(train, *ARGS)
    assert graph.argument_paths == ("params['w']", "state.mu['w']", "state.count", "x")
    assert graph.result_paths == ("result[0]", "result[1].mu['w']", "result[1].count")
    names = {v.name for v in graph.values}
    two = line_of("two products")
    expected = {"hidden", f"dot_general:1@{two}", f"dot_general:2@{two}", "0.0:f32"}
    assert expected | {f"dot_general:1@{line_of('first product')}", "state.mu['w']"} <= names
    assert len(names) == len(graph.values)
    assert trace(train, *ARGS) == graph


def test_lines_inside_jax_are_those_of_the_caller():
    """A jitted function of jax is traced once; its line is where it is called from this time."""

    def other(x):
        return jnp.where(x > 0, x, 1)  # another where

    first, second = trace(train, *ARGS), trace(other, FIRST)
    lines = [{n.source for n in g.nodes if n.primitive == "select_n"} for g in (first, second)]
    assert lines == [{line_of("two products")}, {line_of("another where")}]


def test_the_backward_pass_keeps_the_line_of_the_forward_pass():
    def loss(w, x):
        return jnp.sin(x @ w).sum()  # the only product

    graph = trace(jax.grad(loss), jnp.zeros((3, 3)), FIRST)
    dots = [n for n in graph.nodes if n.primitive == "dot_general"]
    assert {(n.phase, n.source) for n in dots} == {
        (phase, line_of("the only product")) for phase in ("forward", "backward")
    }


def test_scan_values_are_called_by_their_border():
    graph = trace(lambda x: jax.lax.scan(lambda c, y: (c + y, c), x[0], x), FIRST)
    names = [graph.values[i].name.split("/")[1] for i in graph.regions[1].arguments]
    assert names == ["carry0", "xs0"]
    (node,) = [n for n in graph.nodes if n.bodies]
    names = [graph.values[i].name.split("@")[0] for i in node.results]
    assert names == ["scan:1.0", "scan:1.1"]


def test_a_name_that_is_taken_gets_a_number():
    graph = trace(lambda x: annotate(annotate(x, "x"), "x"), FIRST)
    assert [v.name for v in graph.values] == ["x", "x#2", "x#3"]


def wrapped(fn):
    return wraps(fn)(lambda *args: fn(*args))


@pytest.mark.parametrize(
    ("fn", "count", "names"),
    [
        (train, 3, ["params", "state", "x"]),
        (jax.jit(train), 3, ["params", "state", "x"]),
        (wrapped(train), 3, ["params", "state", "x"]),
        (partial(train, 1), 2, ["state", "x"]),
        (lambda *rest: rest, 2, ["rest[0]", "rest[1]"]),
        (lambda x, y=1, *, z=2: x, 1, ["x"]),
        (max, 2, ["arg0", "arg1"]),
    ],
)
def test_parameters_have_the_names_of_the_function(fn, count, names):
    assert parameter_names(fn, count) == names


def decides(x):
    if x.sum() > 0:  # a Python decision
        return x
    return -x


def to_numpy(x):
    return np.asarray(x)  # a conversion


def reads(x):
    return io_callback(lambda x: x, x, x)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (decides, rf"cannot trace decides \({line_of('a Python decision')}\): Attempted boolean"),
        (to_numpy, rf"cannot trace to_numpy \({line_of('a conversion')}\)"),
        (lambda x: x[x > 0], r"cannot trace <lambda>"),
        (reads, r"io_callback at .* has results and an effect"),
        (lambda x: "text", r"<lambda> cannot be planned.*str"),
        (lambda x: jax.lax.with_sharding_constraint(x, jax.P("x")), r"needs a mesh"),
    ],
)
def test_what_cannot_be_traced_is_refused_with_its_line(fn, message):
    with pytest.raises(TraceError, match=f"(?s){message}"):
        trace(fn, FIRST)


def test_an_argument_that_is_no_array_is_named():
    with pytest.raises(TraceError, match=r"config\['name'\] is a str \('deep'\), no array"):
        trace(lambda config: config, {"name": "deep"})
    with pytest.raises(TraceError, match=r"fn is a function"):
        trace(lambda fn: fn, lambda x: x)


def test_the_users_own_errors_pass():
    with pytest.raises(TypeError, match="dot_general"):
        trace(lambda x: x @ x, FIRST)
    with pytest.raises(KeyError, match="missing"):
        trace(lambda x: x["missing"], {})


TREE = ({"w": 1, "b": (2, 3)}, [4, None])


@pytest.mark.parametrize(
    ("prefix", "flat"),
    [
        (None, [None] * 4),
        (jax.P("x"), [jax.P("x")] * 4),
        ((jax.P("x"), None), [jax.P("x")] * 3 + [None]),
        (({"w": "a", "b": "c"}, ["d", None]), ["c", "c", "a", "d"]),
        ([{"w": "a", "b": ("c", None)}, "e"], ["c", None, "a", "e"]),
    ],
)
def test_a_prefix_holds_for_all_leaves_below(prefix, flat):
    assert flatten_prefix(prefix, TREE, "in_shardings") == flat


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        (("a", "b", "c"), r"in_shardings fits no prefix .* has an entry for \[2\], which does"),
        (("a",), r"in_shardings fits no prefix .* has no entry for \[1\]"),
        (({"w": "a"}, "b"), r"in_shardings\[0\] .* has no entry for \['b'\]"),
        (({"w": {"x": 1}, "b": "c"}, None), r"in_shardings\[0\]\['w'\] .* a single array there"),
        (({"w": "a", "v": "b"}, None), r"no entry for \['b'\] and has an entry for \['v'\]"),
    ],
)
def test_a_prefix_that_does_not_fit_names_the_place(prefix, message):
    with pytest.raises(StrategyError, match=message):
        flatten_prefix(prefix, TREE, "in_shardings")
    with pytest.raises(RoleError, match=message.replace("in_shardings", "roles")):
        flatten_prefix(prefix, TREE, "roles")
