"""The place of a fault: the first refuted instruction is the edited one, or reads its value."""

import random
from collections import Counter

import pytest

from shardalg.lower.xla_dump.hlo_text import parse
from shardalg.xla.audit.audit_texts import decided_by_field
from shardalg.xla.audit.program_pair import ProgramPair, read_pair, walk_pair
from shardalg.xla.audit.referee.field_verdict import field_verdict
from tests.audit.seeded_faults import faults
from tests.audit.test_recorded_pairs import RIGHT_NAMES, pairs

SMALL = [
    "concat_rotate.shardy", "reshard_device_order.shardy", "softmax_sharded_dim.shardy",
    "ffn_attempt2_grad.shardy",
]  # fmt: skip


def steps_between(module, start, goals):
    """Return the number of operand steps from an instruction back to one of some, at most 99."""
    body = module.computations[start.computation]
    level, seen = {start.name}, {start.name}
    for steps in range(99):
        if level & goals or not level:
            return steps if level else 99
        level = {o for name in level for o in body[name].operands} - seen
        seen |= level
    return 99


def steps_to_fault(name, fault):
    """Return the steps from the first refuted instruction to the fault; None if none is refuted.

    Raises:
      ValueError: the fault changes no result.
    """
    whole = read_pair(**pairs()[name])
    pair = ProgramPair(whole.before, parse(fault.text), whole.devices)
    run = field_verdict(pair)
    if run.is_equal or run.reason:
        raise ValueError("the results are equal")
    _, walked = walk_pair(pair)
    if all(row.status != "refuted" for row in walked.rows.values()):
        decided_by_field(pair, walked)
    bodies = pair.after.computations.values()
    order = {id(one): at for at, one in enumerate(x for body in bodies for x in body.values())}
    named = [row.instruction for row in walked.rows.values() if row.status == "refuted"]
    if not named:
        return None
    # An accumulation type is three edited instructions.
    goals = {fault.name, *(x for body in bodies for x in body if x.endswith((".narrow", ".wide")))}
    return steps_between(pair.after, min(named, key=lambda one: order[id(one)]), goals)


def check(names, seed, each, show):
    counts = Counter()
    for name in names:
        devices = read_pair(**pairs()[name]).devices
        for fault in faults(pairs()[name]["after"], devices, seed, each):
            try:
                counts[steps_to_fault(name, fault)] += 1
            except ValueError:
                continue
    show(f"seed {seed}, steps from the first refuted instruction back to the fault: {counts}")
    assert not counts[None]
    assert counts[0] + counts[1] >= 0.8 * counts.total()
    return counts


def test_faults_of_small_programs_are_named(show):
    counts = check(SMALL, 7, 1, show)
    assert max(counts) <= 3


@pytest.mark.slow
def test_faults_of_all_programs_are_named(show):
    counts = check(RIGHT_NAMES, random.randrange(10**6), 2, show)
    near = sum(n for steps, n in counts.items() if steps <= 3)
    assert near >= 0.85 * counts.total()
