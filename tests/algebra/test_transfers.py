"""Transfers: every piece arrives where its round sends it, in no more elements than by rounds."""

from collections import Counter

import numpy as np
import pytest

from shardalg.algebra.affine import Index
from shardalg.algebra.exchange import exchange
from shardalg.algebra.interval import Interval
from shardalg.algebra.transfers import Piece, Transfer, in_permutes, pieces, transfers

SEED = 210504663
P = Index.of("p")


def random_exchange(rng, *, block, count):
    slope, constant = int(rng.integers(-2 * block, 2 * block)), int(rng.integers(-9, 30))
    want = Interval((P * slope + constant) // int(rng.integers(1, 4)), int(rng.integers(1, 12)))
    size = int(rng.integers(block * (count - 1) + 1, block * count + 1))
    return exchange(want, size=size, count=count, block=block)


def check(found, readers):
    """All pieces once; the pairs of each, in permutes without a position twice on one side."""
    wanted = [p for nth, rounds in enumerate(readers) for r in rounds for p in pieces(r, nth)]
    assert Counter(p for t in found for p in t.pieces) == Counter(wanted)
    for transfer in found:
        for piece in transfer.pieces:
            bringing = [pair for pairs in transfer.bringing(piece) for pair in pairs]
            assert sorted(bringing) == sorted(piece.pairs)
            assert transfer.lower <= piece.lower <= piece.upper <= transfer.upper
        for pairs in transfer.permutes:
            assert all(len(set(side)) == len(side) for side in zip(*pairs, strict=True))


def test_pieces_arrive_in_no_more_elements_than_by_rounds(show):
    rng, total = np.random.default_rng(SEED), Counter()
    for _ in range(300):
        block, count = int(rng.integers(1, 7)), int(rng.integers(2, 9))
        made = [random_exchange(rng, block=block, count=count) for _ in range(rng.integers(1, 4))]
        readers = [step.rounds for step in made]
        found = transfers(readers)
        check(found, readers)
        sent = sum(transfer.elements for transfer in found)
        by_rounds = sum(p.elements for rounds in readers for r in rounds for p in r.permutes)
        assert sent <= by_rounds
        total.update(rounds=by_rounds, transfers=sent)
    show(f"elements sent per device: {dict(total)}")
    assert total["transfers"] < total["rounds"]


def test_pairs_are_coloured_with_as_few_permutes_as_the_busiest_position_needs():
    rng = np.random.default_rng(SEED)
    for _ in range(300):
        n = int(rng.integers(2, 9))
        chosen = np.argwhere(rng.random((n, n)) < rng.random())
        pairs = tuple((int(s), int(t)) for s, t in chosen[rng.permutation(len(chosen))])
        found = in_permutes(pairs)
        assert sorted(pair for permute in found for pair in permute) == sorted(pairs)
        sides = [Counter(s for s, _ in pairs), Counter(t for _, t in pairs)]
        assert len(found) == max((n for side in sides for n in side.values()), default=0)
        for permute in found:
            assert all(len(set(side)) == len(side) for side in zip(*permute, strict=True))


def one(reader, lower, upper, *pairs):
    return Piece(reader, 0, lower, upper, pairs)


@pytest.mark.parametrize(
    ("group", "elements"),
    [
        ((one(0, 0, 3, (1, 0), (2, 1)), one(1, 0, 3, (0, 2))), 3),
        ((one(0, 0, 3, (1, 0)), one(1, 0, 3, (1, 0))), 3),  # both read what is sent once
        ((one(0, 0, 3, (1, 0)), one(1, 0, 3, (1, 2))), 6),  # one source, two targets
        ((one(0, 0, 3, (1, 0)), one(1, 2, 5, (0, 1))), 5),
    ],
)
def test_what_is_sent_together(group, elements):
    together = Transfer(
        min(p.lower for p in group), max(p.upper for p in group), group,
        in_permutes(tuple(dict.fromkeys(pair for p in group for pair in p.pairs))),
    )  # fmt: skip
    assert together.elements == elements


def test_a_rotation_is_one_permute():
    forth, back = (exchange(Interval(P * 4 + k, 4), size=16, count=4) for k in (3, -13))
    (only,) = [t for t in transfers([forth.rounds, back.rounds]) if t.elements]
    assert only.permutes == (((0, 3), (1, 0), (2, 1), (3, 2)),)
    assert only.elements == 3
