"""Prices of the choices at one node, by the planner and by `cost()`."""

import json

import shardalg as sa
from shardalg.costs.hardware import load
from shardalg.costs.step_time import estimate
from shardalg.costs.topology import machine
from shardalg.graph.ops.rows import rules
from shardalg.planner.partition.by_cost import CostProblem
from shardalg.planner.partition.prices import _graph_of, _with_shardings
from shardalg.planner.pipeline import partition
from tests.partition.fuzz import some_spec

MESHES = ({"X": 4}, {"X": 2, "Y": 2}, {"X": 2, "Y": 4})


def machines(mesh, folder):
    """Names of chips and topologies: links alike, one axis slower, links of a torus."""
    slow = folder / "slow.json"
    slow.write_text(json.dumps(load("tpu_v3").with_links({"X": 1e9}).to_json()))
    return ("tpu_v3", str(slow), "h100", {4: "v4:2x2x1", 8: "v4:2x2x2"}[mesh.size])


def signatures(plan):
    """Return the operators with a row of a plan's graph, each as a signature."""
    found = (node for node in plan.graph.nodes if not node.bodies)
    return [node.signature for node in found if rules(node.signature)]


def priced(signature, rng, folder):
    """Return (the planner's seconds, the seconds of `cost()`, the loops) of every choice."""
    mesh = sa.Mesh(MESHES[rng.integers(len(MESHES))])
    name = machines(mesh, folder)[rng.integers(4)]
    # The planner decides at the rates of the data sheet.
    chip = machine(name).on("datasheet")
    types = (*signature.operands, *signature.results)
    layouts = tuple(
        sa.Sharding.from_spec(some_spec(rng, mesh, len(t.shape)), mesh, t.shape) for t in types
    )
    graph = _graph_of(signature)
    problem = CostProblem(_with_shardings(graph, layouts), chip)
    roles, options = ("unknown",) * len(types), sa.Options(policy="cost", hardware=name)
    if len(problem.places) > 1:
        return
    for number, candidate in enumerate(problem.found[0]):
        if any(layout.unreduced for _, layout in candidate.required_shardings):
            continue
        made = problem.applied([number])
        program = partition(made, roles, options)
        seconds = estimate(program, graph, chip.on("datasheet")).step_time_s
        yield problem.problem.total([number]), seconds, candidate.loops, program


def disagreements(rows, apart):
    """Pairs of choices that the planner orders otherwise than `cost()`, by more than a share."""
    for ours, theirs, *one in rows:
        for other_ours, other_theirs, *other in rows:
            if ours < other_ours and theirs > other_theirs * (1 + apart):
                yield (ours, theirs, *one), (other_ours, other_theirs, *other)
