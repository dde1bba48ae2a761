"""Priorities of annotations: a dimension takes part in completion from its round on."""

import dataclasses

import jax
import pytest

from shardalg.planner.propagate import CompletionOptions, Options, propagate
from tests.propagate.small import MESH, Builder, annotations, axes, layout

POLICIES = ("gspmd", "shardy")


def ranked(priorities, *entries, open_dims=()):
    given = layout((8, 16), *entries, open_dims=open_dims)
    return dataclasses.replace(given, priorities=priorities)


def added(first, second, policy):
    """(completion, arguments, sum) of `a + b`."""
    b = Builder()
    p, q = b.argument(8, 16), b.argument(8, 16)
    made = b.add(p, q)
    graph = b.graph(made)
    given = annotations(graph, given={0: first, 1: second})
    return propagate(graph, given, CompletionOptions.of(Options(policy=policy))), (p, q), made


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("first", "second", "expected"), [
    ((0, 0), (0, 0), (("x",), ())),  # a tie: the first operand
    ((1, 0), (0, 0), ((), ("x",))),
    ((2, 0), (0, 1), ((), ("x",))),
    ((1, 0), (0, 2), (("x",), ())),
])  # fmt: skip
def test_the_lower_priority_wins(policy, first, second, expected):
    done, _, made = added(ranked(first, "x", None), ranked(second, None, "x"), policy)
    assert axes(done.shardings[made]) == expected
    assert [axes(s) for s in done.shardings[:2]] == [(("x",), ()), ((), ("x",))]


@pytest.mark.parametrize("policy", POLICIES)
def test_what_waits_for_its_round_is_not_given_to_an_open_dimension(policy):
    first = ranked((1, 0), "x", None, open_dims=(1,))
    done, (p, _), made = added(first, ranked((0, 0), None, "x"), policy)
    assert axes(done.shardings[made]) == ((), ("x",))
    assert axes(done.shardings[p]) == (("x",), ())


@pytest.mark.parametrize("policy", POLICIES)
def test_rounds_are_told_and_annotations_stand(policy):
    done, (p, _), made = added(ranked((1, 0), "x", "y"), ranked((0, 0), None, "y"), policy)
    assert [axes(r.layout) for r in done.history if r.value == p][-1] == (("x",), ("y",))
    assert axes(done.shardings[made]) == (("x",), ("y",))
    assert {r.kind for r in done.history if r.value == p} == {"annotated"}


@pytest.mark.parametrize("priorities", [("", ""), ("p1", ""), ("p1", "p2"), ("p2", "p1")])
def test_as_shardy_itself_does_it(priorities):
    """Shardy's own pass on the same program, written in its text."""
    passes = pytest.importorskip("jaxlib.mlir.passmanager")
    ir = pytest.importorskip("jaxlib.mlir.ir")
    lowered = jax.jit(lambda x: x).trace(jax.ShapeDtypeStruct((8,), "float32")).lower()
    context = lowered.compiler_ir("stablehlo").context
    first, second = priorities
    text = f"""
    sdy.mesh @mesh = <["x"=2, "y"=4]>
    func.func @main(
      %a: tensor<8x16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}{first}, {{}}]>}},
      %b: tensor<8x16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}{second}]>}}
    ) -> tensor<8x16xf32> {{
      %0 = stablehlo.add %a, %b : tensor<8x16xf32>
      return %0 : tensor<8x16xf32>
    }}"""
    with context:
        module = ir.Module.parse(text)
        pipeline = passes.PassManager.parse("builtin.module(sdy-propagation-pipeline)")
        pipeline.run(module.operation)
        (told,) = [line for line in str(module).splitlines() if "stablehlo.add" in line]
    numbers = [int(text[1:] or 0) for text in priorities]
    done, _, made = added(
        ranked((numbers[0], 0), "x", None), ranked((0, numbers[1]), None, "x"), "shardy"
    )
    assert done.shardings[made].to_sdy().split("[", 1)[1].split("]")[0].replace(", ?", "") in told


def test_priorities_of_results_and_sites_take_part_too():
    b = Builder()
    x = b.argument(8, 16)
    made = b.annotate(b.node("tanh", (x,), (8, 16)))
    graph = b.graph(made)
    wanted = ranked((0, 1), None, "y")
    done = propagate(
        graph, annotations(graph, sites={0: ranked((1, 0), "x", None)}, wanted={0: wanted})
    )
    assert axes(done.results[0]) == ((), ("y",))
    assert axes(done.shardings[made]) == (("x",), ())
    assert done.mesh == MESH
