"""The recorded answers are whole, and agree with themselves and with their programs."""

import json
from collections import Counter

import pytest

from tests.oracle import corpus

NAMES = corpus.names()


def test_the_index_lists_every_file():
    files = {path.stem for path in (corpus.HERE / "cases").iterdir() if path.is_file()}
    assert files == set(NAMES)
    assert len(NAMES) == len(set(NAMES)) == 52


@pytest.mark.parametrize("name", NAMES)
def test_facts_belong_to_the_program(name):
    facts, program = corpus.facts(name), corpus.program(name)
    assert facts["mesh"] == program.MESH
    _, arguments, _ = program.make(**program.SMALL)
    small, big = (json.loads(json.dumps(s)) for s in (program.SMALL, program.BIG))  # no tuples
    sizes = {"cpu": small, "tpu": big, "gpu": big}
    for compiler in corpus.COMPILERS:
        answer = facts[compiler]
        assert answer.get("error") or answer["sizes"] == sizes[compiler[:3]]
    parameters = [row for row in corpus.completed(name) if row["op_name"] in arguments]
    assert parameters, "no argument of the program is in the completed HLO"


def summed(collectives):
    """`kind[axes]` to operand, result and wire bytes of a step."""
    total = Counter()
    for c in collectives:
        for column in ("operand_bytes", "result_bytes", "wire_bytes"):
            total[c["kind"], column] += c[column] * (c["mult"] or 1)
    return total


@pytest.mark.parametrize("name", NAMES)
def test_summaries_are_the_sums_of_their_collectives(name):
    for compiler in corpus.COMPILERS:
        for stage in ("spmd", "final"):
            part = corpus.facts(name)[compiler].get(stage, {})
            if "collectives" not in part:
                continue
            total = Counter()
            for key, (_, operand, result, wire) in part["summary"].items():
                kind = key.split("[")[0]
                total[kind, "operand_bytes"] += operand
                total[kind, "result_bytes"] += result
                total[kind, "wire_bytes"] += wire
            assert summed(part["collectives"]) == pytest.approx(total), (compiler, stage)


def test_slices_of_an_all_reduce_count_as_reduce_scatter():
    sliced = [
        c
        for name in NAMES
        for c in corpus.facts(name)["cpu_gspmd"].get("spmd", {}).get("collectives", ())
        if c.get("sliced_by") == c["group_size"]
    ]
    assert sliced
    assert all(corpus.ring_bytes(c) == c["wire_bytes"] / 2 for c in sliced)


def test_xla_failures_have_what_a_test_needs():
    programs = corpus.xla_failures()
    assert {"aborts the process", "wrong"} == {p["xla"] for p in programs}
    assert all({"kind", "mesh", "x", "x_spec", "out_spec"} <= set(p) for p in programs)
