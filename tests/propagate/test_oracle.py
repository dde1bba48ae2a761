"""Completion against XLA's own: recorded programs, values that no annotation fixes."""

import jax
import pytest
from jax.sharding import PartitionSpec

from shardalg.algebra.mesh import Mesh
from shardalg.graph.trace import trace
from shardalg.ops.normalise import normalise
from shardalg.propagate import Strategy, propagate, resolve
from tests.oracle import corpus
from tests.propagate.align import align, text
from tests.propagate.small import axes

NAMES = corpus.names("einsum", "ffn", "attention", "completion", "embedding", "norm", "moe", "pipeline")
# JAX's manual regions are not planned yet.
NAMES.remove("shard_map_subgraph")


def completed(name):
    """Our completion of a recorded program."""
    case = corpus.program(name)
    function, arguments, wanted = case.make(**case.SMALL)
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in arguments.values()]
    graph = normalise(trace(function, *types, mesh_shape=case.MESH))
    given = tuple(spec for _, _, spec in arguments.values())
    return propagate(graph, resolve(graph, Strategy(Mesh(case.MESH), given, wanted)))


def compare(name, done):
    """(name of the value, our axes, XLA's axes) of every value that is free and found in the HLO."""
    graph, given = done.graph, done.annotations
    rows = corpus.completed(name)
    pairs = zip(graph.sites, given.sites, strict=True)
    demanded = {site.node: text(axes(s)) for site, s in pairs if s and not s.unspecified_dims}
    found = [(value, spec) for value, _, spec in align(graph, rows, demanded)]
    by_number = {
        int(row["attributes"]["number"]): row["spec"]
        for row in rows
        if row["op"] == "parameter" and row["computation"] == rows[-1]["computation"]
    }
    for number, value in enumerate(graph.arguments):
        if by_number.get(number) is not None:
            found.append((value, tuple(map(tuple, by_number[number]))))
    for value, spec in found:
        fixed = value in done.fixed and not done.shardings[value].unspecified_dims
        if graph.values[value].type.shape and not fixed:
            yield graph.values[value].name, axes(done.shardings[value]), spec
    ends = corpus.facts(name)["cpu_gspmd"].get("output_shardings") or []
    for written, annotated, ours in zip(ends, given.results, done.results, strict=False):
        if annotated is None:
            spec = Strategy(done.mesh, eval(written, {"P": PartitionSpec}))
            yield "result", axes(ours), axes(resolve_one(spec, ours))


def resolve_one(strategy, like):
    return type(like).from_spec(strategy.in_shardings, strategy.mesh, like.shape)


@pytest.mark.parametrize("name", NAMES)
def test_free_values_are_completed_as_by_xla(name):
    compared = list(compare(name, completed(name)))
    assert [row for row in compared if row[1] != row[2]] == []


def test_enough_is_compared(show):
    count = sum(len(list(compare(name, completed(name)))) for name in NAMES)
    show(f"completion: {count} free values of {len(NAMES)} recorded programs, all as XLA has them")
    assert count >= 60


def test_the_comparison_notices_a_wrong_level(monkeypatch):
    """With broadcasts as early as reductions some program must come out differently."""
    from shardalg.propagate import priority

    monkeypatch.setitem(priority.LEVELS, priority.BROADCAST, (0, 0))
    wrong = [row for name in NAMES for row in compare(name, completed(name)) if row[1] != row[2]]
    assert wrong
