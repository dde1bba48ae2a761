"""Completion against XLA's: recorded programs, and the same with harder annotations."""

import json
from functools import cache
from pathlib import Path

import pytest
from jax.sharding import PartitionSpec

from shardalg.propagate import priority, step
from shardalg.propagate.layouts import Layouts
from tests.oracle import corpus
from tests.propagate.xla import compare, complete

NAMES = corpus.names(
    "einsum", "ffn", "attention", "completion", "embedding", "norm", "moe", "pipeline"
)
# XLA writes no layouts where a region is manual along all axes that anything has.
NAMES.remove("shard_map_subgraph")


def compared(name):
    facts = corpus.facts(name)["cpu_gspmd"]
    done = complete(corpus.program(name))
    return compare(done, corpus.completed(name), facts.get("output_shardings") or [])


@pytest.mark.parametrize("name", NAMES)
def test_recorded_programs_are_completed_as_by_xla(name):
    assert [row for row in compared(name) if row[1] != row[2]] == []


@cache
def harder():
    data = json.loads((Path(__file__).parent / "harder.json").read_text())
    rows = lambda record: [dict(zip(data["columns"], r, strict=True)) for r in record["rows"]]  # noqa: E731
    return [record | {"rows": rows(record)} for record in data["programs"]]


def kept_constraints(module, flags, monkeypatch):
    """Drops the inner constraints that the recorded program did not have."""
    if flags:
        real, turn = module.wsc, iter(flags)
        monkeypatch.setattr(module, "wsc", lambda x, spec: real(x, spec) if next(turn) else x)


def differences(record):
    """(values compared, those that differ) of a harder program."""
    module = corpus.program(record["case"])
    entry = lambda e: tuple(e) if isinstance(e, list) else e  # noqa: E731
    given = tuple(
        None if spec is None else PartitionSpec(*map(entry, spec))
        for spec in record["arguments"].values()
    )
    with pytest.MonkeyPatch.context() as patch:
        kept_constraints(module, record["constraints"], patch)
        found = compare(complete(module, given), record["rows"], record["output_shardings"])
    return len(found), [row for row in found if row[1] != row[2]]


@pytest.mark.parametrize("number", range(18))
def test_harder_annotations_are_completed_as_by_xla(number):
    assert differences(harder()[number])[1] == []


def test_enough_is_compared(show):
    plain = sum(len(compared(name)) for name in NAMES)
    hard = sum(differences(record)[0] for record in harder())
    show(f"completion: {plain} free values of {len(NAMES)} recorded programs as XLA has them")
    show(f"completion: {hard} free values of {len(harder())} harder programs as XLA has them")
    assert plain >= 80
    assert hard >= 60


MUTATIONS = {
    "broadcast like a reduction": (priority.LEVELS, priority.BROADCAST, (1, 1)),
    "one level": (priority, "LEVELS", dict.fromkeys(priority.LEVELS, (1, 1))),
    "operand from the result alone": (step, "_with_other", lambda *args: args[3][1]),
    "no merging": (Layouts, "merged", lambda *args: None),
    "left operand first": (step, "_larger_first", lambda kind, found: found),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_rule_decides_some_harder_program(name, monkeypatch):
    target, key, value = MUTATIONS[name]
    change = monkeypatch.setitem if isinstance(target, dict) else monkeypatch.setattr
    change(target, key, value)
    assert any(differences(record)[1] for record in harder())
