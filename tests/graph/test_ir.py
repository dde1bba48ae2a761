"""The structure of a graph: refusals of `check`, and printing."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from shardalg.errors import TraceError
from shardalg.graph.ir import Signature, ValueType
from shardalg.graph.tracing.trace import trace
from shardalg.graph.well_formed import check


def program(w, x):
    def step(carry, y):
        return jnp.sin(carry @ w) + y, carry.sum()

    return jax.lax.scan(step, x, jnp.stack([x, x]))


GRAPH = trace(program, jnp.zeros((3, 3)), jnp.zeros((2, 3)))


def edit(items, index, **changes):
    return tuple(replace(x, **changes) if i == index else x for i, x in enumerate(items))


def node(primitive):
    return next(n for n in GRAPH.nodes if n.primitive == primitive)


def changed_node(primitive, **changes):
    return replace(GRAPH, nodes=edit(GRAPH.nodes, node(primitive).index, **changes))


def changed_region(index, **changes):
    return replace(GRAPH, regions=edit(GRAPH.regions, index, **changes))


SCAN, DOT, SIN, ADD = (node(name) for name in ("scan", "dot_general", "sin", "add"))
OTHER = Signature("sin", (), (ValueType((2, 3), "float32"),), (ValueType((3, 2), "float32"),))

BROKEN = {
    "a number": (replace(GRAPH, values=GRAPH.values[::-1]), "value 0 says"),
    "a missing value": (changed_node("sin", operands=(999,)), "does not exist"),
    "one name twice": (
        replace(GRAPH, values=edit(GRAPH.values, 1, name=GRAPH.values[0].name)),
        "two values have one name",
    ),
    "a result of another type": (changed_node("sin", signature=OTHER), r"sin .* expects .*3,2"),
    "an operand of another type": (changed_node("sin", operands=(0,)), r"sin .* has \[f32\[3,3\]"),
    "a read before it is made": (changed_node("sin", operands=SIN.results), "before it is made"),
    "an outer value read in a body": (
        changed_node("sin", operands=(GRAPH.arguments[1],)),
        r"reads \['x'\] before",
    ),
    "a second making": (changed_node("add", results=SIN.results), r"makes .* again"),
    "a result from inside": (
        replace(
            GRAPH,
            results=(SIN.results[0], GRAPH.results[1]),
            regions=edit(GRAPH.regions, 0, results=(SIN.results[0], GRAPH.results[1])),
        ),
        "region 0 hands on .*sin.* does not have",
    ),
    "results in two versions": (replace(GRAPH, results=()), "other arguments or results"),
    "a foreign region": (changed_node("sin", region=0), "before it is made|not in its region"),
    "a trip count": (changed_region(1, trip_count=5), "runs 5 times"),
    "a loose border": (
        replace(GRAPH, region_arguments=GRAPH.region_arguments[1:]),
        "without a tie",
    ),
    "a crooked tie": (
        replace(GRAPH, region_arguments=edit(GRAPH.region_arguments, 0, source=GRAPH.arguments[1])),
        "the tie const joins",
    ),
}


def test_a_traced_graph_is_well_formed():
    check(GRAPH)


@pytest.mark.parametrize("fault", BROKEN)
def test_check_names_the_fault(fault):
    graph, message = BROKEN[fault]
    with pytest.raises(TraceError, match=f"the graph is broken: .*({message})"):
        check(graph)


def test_nodes_stand_in_order_of_execution():
    assert [n.index for n in GRAPH.walk()] == list(range(len(GRAPH.nodes)))
    body = GRAPH.regions[SCAN.bodies[0]]
    assert (body.kind, body.parent, body.node, body.trip_count) == ("scan", 0, SCAN.index, 2)
    assert set(body.nodes) == {n.index for n in GRAPH.nodes if n.region == body.index}


def test_users_and_producers():
    (made,) = DOT.results
    assert GRAPH.producer[made] == DOT.index
    assert GRAPH.users[made] == (SIN.index,)
    assert GRAPH.producer[GRAPH.arguments[0]] is None


def test_printing_shows_bodies_parameters_and_lines():
    text = str(trace(lambda x: jax.lax.scan(lambda c, y: (c * 2, -y), x[0], x), jnp.zeros((4, 3))))
    lines = [line.split("  #")[0] for line in text.splitlines()]
    assert lines[0] == "graph(%0 x: f32[4,3]):"
    (head,) = [i for i, line in enumerate(lines) if "region 1 (scan, 4 times)(" in line]
    assert [line.split(" = ")[-1] for line in lines[head + 1 : head + 5]] == [
        "mul(%3, 2.0:f32) {out_dtype=None}",
        "neg(%4)",
        "    yield %6, %7",
        "scan(%2, %0) {length=4, num_carry=1, num_consts=0, reverse=False}",
    ]
    assert "  # forward test_ir.py:" in text
    assert repr(GRAPH) == f"Graph(2 arguments, {len(GRAPH.nodes)} nodes, 2 regions, 2 results)"
