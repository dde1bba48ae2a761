"""Witnesses of refuted instructions: a simulation of the devices has the same contents."""

import json
import random
from collections import Counter

import pytest

import shardalg as sa
from shardalg.lower.xla_dump.hlo_text import parse
from shardalg.xla.audit.audit_texts import audit_hlo
from shardalg.xla.audit.program_pair import ProgramPair, parameters_of, read_pair, walk_pair
from shardalg.xla.audit.referee.field_interpreter import FieldRun
from shardalg.xla.audit.referee.field_verdict import block_of, random_arguments
from shardalg.xla.audit.values.per_device import UnknownError
from tests.audit.seeded_faults import faults
from tests.audit.test_recorded_pairs import RIGHT_NAMES, WRONG_NAMES, pairs
from tests.audit.test_seeded_faults import SMALL


def simulated(pair):
    """Return the values of both programs, and the value of each base before partitioning."""
    given = random_arguments(pair.before, 0)
    first, second = FieldRun(pair.before, 1), FieldRun(pair.after, pair.devices)
    first.run(pair.before.entry, given)
    both = zip(parameters_of(pair.before), parameters_of(pair.after), strict=True)
    texts = [b.attributes.get("sharding") or a.attributes.get("sharding", "") for a, b in both]
    blocks = [block_of(x, t, pair.devices)[0] for x, t in zip(given, texts, strict=True)]
    second.run(pair.after.entry, blocks)
    return given, first.values, second.values


def check(name, text):
    """Return how many witnesses of results a simulation has, and how many it cannot show."""
    whole = read_pair(**pairs()[name])
    pair = ProgramPair(whole.before, parse(text), whole.devices)
    _, second = walk_pair(pair)
    rows = [
        (where, row) for where, row in second.rows.items()
        if row.status == "refuted" and where[0] == "result"
    ]  # fmt: skip
    if not rows:
        return Counter()
    for row in second.rows.values():
        if row.status == "refuted":
            assert row.finding.shown.expected, row.finding.why
            assert row.finding.shown.found, row.finding.why
    try:
        given, before, after = simulated(pair)
    except UnknownError:
        return Counter()
    bases = dict(enumerate(given))
    for entry in (e for group in second.table.entries.values() for e in group):
        one = entry.instruction
        bases[entry.base] = before.get((one.computation, one.name))
    counts = Counter()
    for _, row in rows:
        finding = row.finding
        mine = after.get((pair.after.entry, row.instruction.name))
        for content, is_there in ((finding.shown.expected, False), (finding.shown.found, True)):
            if isinstance(content, str) or bases.get(content[0]) is None:
                counts["in words"] += 1
                continue
            value = bases[content[0]].reshape(-1)[content[1]]
            found = mine[(finding.device, *finding.place)]
            assert (value == found) == is_there, (name, str(finding), content)
            counts["simulated"] += 1
    return counts


def check_all(names, seed, each, show):
    total = Counter()
    for name in names:
        devices = read_pair(**pairs()[name]).devices
        for fault in faults(pairs()[name]["after"], devices, seed, each):
            total += check(name, fault.text)
    show(f"seed {seed}: {dict(total)}")
    assert total["simulated"]


def test_a_simulation_has_the_contents_of_witnesses(show):
    check_all(SMALL[2:5], 3, 1, show)


@pytest.mark.slow
def test_a_simulation_has_the_contents_of_all_witnesses(show):
    check_all(RIGHT_NAMES, random.randrange(10**6), 2, show)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG_NAMES)
def test_wrong_programs_have_witnesses(name):
    assert all(row.expected and row.found for row in audit_hlo(**pairs()[name]).refuted)


def test_the_report_and_the_json_have_the_witness():
    given = pairs()["attn_final_fwd.shardy"]
    (fault,) = (f for f in faults(given["after"], 8, 3, 1) if f.kind == "missing reduction")
    found = sa.audit_hlo(given["before"], fault.text)
    first = found.refuted[0]
    assert first.witness.startswith("expected the sum over ")
    assert first.witness in repr(found)
    row = next(r for r in json.loads(found.to_json())["instructions"] if r["status"] == "refuted")
    assert (row["expected"], row["found"]) == (first.expected, first.found)
    assert first.found in found.table()["found"]
