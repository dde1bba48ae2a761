"""Completion against XLA's own, by either policy: recorded programs, and harder annotations."""

import json
from functools import cache
from pathlib import Path
from unittest import mock

import jax
import pytest
from jax.sharding import PartitionSpec

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import MEMO
from shardalg.graph.ops.canonicalize.normalise import normalise
from shardalg.graph.tracing.trace import trace
from shardalg.planner.propagate import CompletionOptions, Options, Strategy, propagate, resolve
from shardalg.planner.propagate.gspmd import image, step, tuple_steps
from shardalg.planner.propagate.layouts import Layouts
from shardalg.planner.propagate.shardy import factors, lowered, shardy_module, worklist
from shardalg.planner.propagate.shardy import factors as schedule
from shardalg.verify.verify import verify
from shardalg.xla import align, dump
from tests.oracle import corpus
from tests.propagate.harder import Harder, described, module_of, programs
from tests.propagate.siblings import Sibling

POLICIES = ("gspmd", "shardy")
# What a region that is manual along some axes hands out, JAX lays out for GSPMD along these alone,
# whatever its body has: that is no completion. Shardy's goes on with the body's layout, as ours.
PINNED = {("gspmd", "shard_map_subgraph")}


@cache
def recorded(name):
    """(graph, annotations) of a recorded program."""
    case = corpus.program(name)
    function, arguments, wanted = case.make(**case.SMALL)
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in arguments.values()]
    graph = normalise(trace(function, *types, mesh_shape=case.MESH))
    given = tuple(spec for _, _, spec in arguments.values())
    return graph, resolve(graph, Strategy(Mesh(case.MESH), given, wanted))


def compared(name, policy):
    """Free values that count of a recorded program, with both layouts."""
    facts = corpus.facts(name)[f"cpu_{policy}"]
    if "completed" not in facts:  # one device's worth: XLA partitioned nothing
        return []
    done = propagate(*recorded(name), CompletionOptions.of(Options(policy=policy)))
    told = [eval(text, {"P": PartitionSpec, "PartitionSpec": PartitionSpec})
            for text in facts.get("output_shardings", ())]  # fmt: skip
    results = [
        Sharding.from_spec(spec, done.mesh, ours.shape)
        for spec, ours in zip(told, done.results, strict=False)
    ]
    found = align.matches(done, corpus.module(name, f"cpu_{policy}"), tuple(results))
    return [match for match in found if match.kind in align.TARGETS]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("policy", POLICIES)
def test_recorded_programs_are_completed_as_by_xla(policy, show):
    names = [name for name in corpus.names() if (policy, name) not in PINNED]
    found = {name: compared(name, policy) for name in names}
    total = sum(map(len, found.values()))
    wrong = [(n, match) for n, matches in found.items() for match in matches if not match.agrees]
    show(f"{policy}: {total - len(wrong)} of {total} free values of {len(found)} recorded programs")
    assert [f"{name}: {described(match)}" for name, match in wrong] == []
    assert total > 200


@cache
def harder():
    """Return (program, XLA's module and results per policy) of the recorded ones."""
    data = json.loads((Path(__file__).parent / "harder.json").read_text())
    found = []
    for record in data["programs"]:
        program = Harder(record["case"], record["seed"])
        shapes = [program.problem[0].values[v].type.shape for v in program.problem[0].results]
        told = {p: _told(record[p], shapes, program.mesh) for p in POLICIES}
        found.append((program, told))
    return found


def _told(record, shapes, mesh):
    pairs = zip(record["results"], shapes, strict=True)
    results = [None if t is None else Sharding.from_hlo(t, s, mesh) for t, s in pairs]
    return module_of(record["rows"]), tuple(results)


def differences(policy):
    """Return the differences in the recorded harder programs, and the number of values."""
    found = [
        match for program, told in harder() for match in program.matches(policy, *told[policy])
    ]
    return [match for match in found if not match.agrees], len(found)


@pytest.mark.parametrize("policy", POLICIES)
def test_harder_annotations_are_completed_as_by_xla(policy, show):
    wrong, count = differences(policy)
    show(
        f"{policy}: {count - len(wrong)} of {count} free values of {len(harder())} harder programs"
    )
    assert [described(match) for match in wrong] == []
    assert count > 70


# Name of a sibling to its seed: one each for scatters, loops, split windows, groups of features,
# and parts of axes at the border.
ASKED = {
    "embedding_update": 0,
    "scan_stack": 0,
    "rnn_grad": 0,
    "conv_two_grad": 0,
    "conv_depthwise_grad": 2,
    "attention_grouped_grad": 0,
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("policy", POLICIES)
def test_harder_programs_asked_live(policy):
    """New programs, and siblings of recorded ones; `make xla-completion` checks 500."""
    if policy not in dump.partitioners():
        pytest.skip(f"jax {jax.__version__} has no partitioner {policy}")
    wrong = []
    for program in [*programs(24, 7_000_000)[::8], *map(Sibling, ASKED, ASKED.values())]:
        told = program.ask(policy)
        found = program.matches(policy, told.module, told.results)
        wrong += [f"{program}: {described(match)}" for match in found if not match.agrees]
    assert wrong == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("policy", POLICIES)
def test_plans_of_harder_programs_are_proved(policy):
    """Also of one in which a dimension that x splits is split by y too, which is no merge."""
    for program in [*(program for program, _ in harder()), Harder("completion_broadcast", 4324)]:
        report = verify(*program.planned(policy))
        assert report.ok, (program, report)


def one_stage(kind, _):
    return dict.fromkeys(kind.sizes, factors.BOTH)


def reductions_early(kind, loop, stage, known=schedule._direction):
    return known(kind, loop, 3 if stage == 2 else stage)


LEVELS, LAST = image.LEVELS, schedule.LAST_STAGE
MUTATIONS = {
    "gspmd": {
        "broadcast like a reduction": (image, "LEVELS", LEVELS | {image.BROADCAST: (1, 1)}),
        "one level": (image, "LEVELS", dict.fromkeys(LEVELS, (1, 1))),
        "operand from the result alone": (step, "_offers_from_operands", lambda *_: ()),
        "no merging": (Layouts, "_merged", lambda *args: None),
        "left operand first": (step, "_larger_first", lambda kind, found: found),
        "program order": (tuple_steps.Computations, "_before", lambda self, key: []),
        "sorts stop it": (step, "_is_movable", lambda *args: False),
    },
    "shardy": {
        "one stage": (worklist, "directions", one_stage),
        "smaller operands first": (factors, "_rank", lambda kind, source, axes: (0, 0, source[1])),
        "broadcasts forward with the rest": (schedule, "LAST_STAGE", 2),
        "reductions with the rest": (schedule, "_direction", reductions_early),
        "operands surpass results": (factors, "_is_sideways", lambda *args: False),
        "numbers pass layouts on": (lowered, "keeps_numbers", lambda *args: False),
        "program order": (shardy_module.ShardyModuleBuilder, "_before", lambda self, key: []),
        "changes are not followed": (worklist.Worklist, "_push", lambda *args: None),
    },
}  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("policy", "name"), [(p, n) for p, names in MUTATIONS.items() for n in names]
)
def test_each_rule_decides_some_harder_program(policy, name):
    with mock.patch.object(*MUTATIONS[policy][name]):
        for program, _ in harder():
            forget(program.problem[0])
        wrong, _ = differences(policy)
    for program, _ in harder():
        forget(program.problem[0])
    assert wrong


def forget(graph):
    """Clear the graph that completion keeps."""
    vars(graph).pop(MEMO, None)
