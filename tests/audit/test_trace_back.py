"""A fault in a move of data is named at the move, not only at the result that it spoils."""

import pytest

from shardalg.lower.xla_dump.hlo_text import parse
from shardalg.xla.audit.program_pair import ProgramPair, read_pair, walk_pair
from tests.audit.test_recorded_pairs import pairs

MOVED = "moves another element to a place than a later instruction needs there"


@pytest.mark.parametrize(
    ("old", "new", "at"),
    [
        ("slice={[0:3], [0:8]}", "slice={[1:4], [0:8]}", "slice.5"),
        ("slice={[3:4], [0:8]}", "slice={[2:3], [0:8]}", "slice.4"),
        ("{{0,3},{1,0},{2,1},{3,2}}", "{{0,3},{1,2},{2,1},{3,0}}", "collective-permute"),
    ],
)
def test_the_move_is_named(old, new, at):
    given = pairs()["concat_rotate.shardy"]
    assert old in given["after"]
    whole = read_pair(**given)
    after = parse(given["after"].replace(old, new, 1))
    _, walked = walk_pair(ProgramPair(whole.before, after, whole.devices))
    refuted = [row for row in walked.rows.values() if row.status == "refuted"]
    assert at in {row.instruction.name for row in refuted}
    named = next(row for row in refuted if row.instruction.name == at)
    assert named.finding.why == MOVED
