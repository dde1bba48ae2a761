"""Saved graphs: complete, of one text in every process, and refused when damaged."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardalg.errors import PlanFileError, TraceError
from shardalg.graph.annotate import annotate
from shardalg.graph.evaluate import evaluate
from shardalg.graph.serial import from_json, graph_hash, to_json
from shardalg.graph.tracing.trace import trace


def step(params, key, x):
    def body(c, w):
        return annotate(jnp.tanh(c @ w), "hidden"), jnp.max(c, initial=-jnp.inf)

    noise = jax.random.normal(jax.random.wrap_key_data(key), x.shape)
    x = jax.lax.cond(x.sum() > 0, lambda x: x + noise, lambda x: x * 2, x)
    y, m = jax.lax.scan(body, x, params["w"])
    return (y[jnp.array([0, 1])] + CLOSED).sum() + m.sum()


CLOSED = np.arange(8, dtype=np.float32).reshape(2, 4)
ARGS = ({"w": jnp.ones((3, 4, 4))}, jnp.zeros(2, jnp.uint32), jnp.ones((2, 4)))
GRAPH = trace(jax.grad(step), *ARGS)


def saved(graph=GRAPH, **options):
    return json.loads(json.dumps(to_json(graph, **options), allow_nan=False))


def test_a_saved_graph_is_the_graph():
    loaded = from_json(saved())
    assert loaded == GRAPH
    assert str(loaded) == str(GRAPH)
    assert graph_hash(loaded) == graph_hash(GRAPH)
    for (i, a), (j, b) in zip(GRAPH.constants, loaded.constants, strict=True):
        assert i == j
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "int8", "float8_e4m3fn", "complex64"])
def test_constants_of_every_type(dtype):
    graph = trace(lambda: jnp.asarray([[0, 1, 2]], dtype) if dtype else None)
    (found,) = evaluate(from_json(saved(graph)))
    assert (found.dtype.name, found.shape) == (dtype, (1, 3))
    assert found.tolist() == jnp.asarray([[0, 1, 2]], dtype).tolist()


def test_a_large_constant_is_kept_as_its_hash():
    table = np.ones((64, 64), np.float32)
    graph = trace(lambda x: x @ table, jnp.ones((1, 64)))
    loaded = from_json(saved(graph, limit_bytes=100))
    assert graph_hash(loaded) == graph_hash(graph)
    with pytest.raises(TraceError, match=r"constant:0 of type f32\[64,64\] was too large"):
        evaluate(loaded, jnp.ones((1, 64)))


def test_code_in_a_loaded_graph_is_refused():
    graph = trace(lambda x: jax.lax.reduce(x, 1.0, lambda a, b: a * b + a, (0,)), jnp.ones(3))
    with pytest.raises(TraceError, match=r"of reduce is code.*Trace the function again"):
        evaluate(from_json(saved(graph)), jnp.ones(3))


PROBE = """
import sys
sys.path.insert(0, {folder!r})
import test_serial as t
print(t.graph_hash(t.GRAPH))
"""


@pytest.mark.slow
def test_the_hash_is_the_same_in_every_process():
    code = PROBE.format(folder=str(Path(__file__).parent))
    found = []
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(run.stdout.strip())
    assert found == [graph_hash(GRAPH)] * 2


def test_the_hash_does_not_see_lines_but_sees_everything_else():
    base = trace(lambda x: x * 2 + CLOSED, CLOSED)
    moved = trace(
        lambda x: x * 2 + CLOSED,
        CLOSED,
    )
    assert graph_hash(base) == graph_hash(moved)
    assert base != moved
    others = [
        trace(lambda x: x * 3 + CLOSED, CLOSED),
        trace(lambda y: y * 2 + CLOSED, CLOSED),
        trace(lambda x: x * 2 - CLOSED, CLOSED),
        trace(lambda x: x * 2 + (CLOSED + 1), CLOSED),
        trace(lambda x: annotate(x * 2, "a") + CLOSED, CLOSED),
        trace(lambda x: annotate(x * 2, "b") + CLOSED, CLOSED),
    ]
    assert len({graph_hash(g) for g in (base, *others)}) == 7


def damaged(path, value):
    data = copy.deepcopy(saved())
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "schema None"),
        ([], "schema None"),
        (damaged(["schema"], "shardalg.graph/0"), "schema 'shardalg.graph/0'.*reads"),
        (
            {k: v for k, v in saved().items() if k != "nodes"},
            "is {.*not an object with schema, .*nodes",
        ),
        (damaged(["nodes"], saved()["nodes"][:-1]), "damaged"),
        (damaged(["nodes", 0, 0], 10_000), "damaged: .10000. of"),
        (damaged(["nodes", 1, 1], [0, 0, 0]), "damaged: .*expects"),
        (damaged(["values", 0], "text"), r"graph\['values'\]\[0\] is 'text', not a list"),
        (damaged(["sites", 0, 0], 10_000), "damaged"),
        (damaged(["types", 0, 0], [7, 7]), "damaged"),
        (damaged(["constants", 0, 1], "python"), r"\['constants'\]\[0\].*python"),
        (damaged(["constants", 0, 4], "!!!"), "damaged"),
        (damaged(["arguments"], None), r"graph\['arguments'\] is None, not a list"),
    ],
)
def test_a_damaged_graph_is_refused(data, message):
    with pytest.raises(PlanFileError, match=message):
        from_json(data)
