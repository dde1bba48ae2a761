"""Transfers: every piece arrives where its round sends it, in no more elements than by rounds."""

from collections import Counter

import numpy as np
import pytest

from shardalg.algebra.affine import Index
from shardalg.algebra.halos.exchange import exchange
from shardalg.algebra.halos.intervals import Interval
from shardalg.algebra.halos.transfers import (
    BlockReader,
    Permute,
    Round,
    in_permutes,
    pieces,
    transfers,
)

SEED = 210504663
P = Index.of("p")


def random_exchange(rng, *, block, count):
    slope, constant = int(rng.integers(-2 * block, 2 * block)), int(rng.integers(-9, 30))
    want = Interval((P * slope + constant) // int(rng.integers(1, 4)), int(rng.integers(1, 12)))
    size = int(rng.integers(block * (count - 1) + 1, block * count + 1))
    return exchange(want, size=size, count=count, block=block)


def once(edges):
    """No position twice on one side."""
    sources, targets, _ = zip(*edges, strict=True)
    return len(set(sources)) == len(sources) and len(set(targets)) == len(targets)


def check(found, readers):
    """All pieces once, inside a slot of their tensor; their pairs, in permutes of slots."""
    wanted = [p for n, reader in enumerate(readers) for r in reader.rounds for p in pieces(r, n)]
    assert Counter(p for t in found for slot in t.slots for p in slot.pieces) == Counter(wanted)
    for transfer in found:
        assert len({slot.width for slot in transfer.slots}) == 1
        assert all(map(once, transfer.permutes))
        for number, slot in enumerate(transfer.slots):
            assert 0 <= slot.lower <= slot.upper <= slot.block
            for piece in slot.pieces:
                bringing = [p for pairs in transfer.bringing(number, piece) for p in pairs]
                assert sorted(bringing) == sorted(piece.pairs)
                assert slot.lower <= piece.lower <= piece.upper <= slot.upper
                reader = readers[piece.reader]
                assert (slot.tensor, slot.block) == (reader.tensor, reader.block)


def test_pieces_arrive_in_no_more_elements_than_by_rounds(show):
    rng, total = np.random.default_rng(SEED), Counter()
    for _ in range(300):
        count, readers = int(rng.integers(2, 9)), []
        blocks = [int(n) for n in rng.integers(1, 7, 2)]
        for _ in range(rng.integers(1, 4)):
            tensor = int(rng.integers(2))
            step = random_exchange(rng, block=blocks[tensor], count=count)
            readers.append(BlockReader(step.rounds, step.block, tensor))
        found = transfers(readers)
        check(found, readers)
        sent = sum(transfer.elements for transfer in found)
        by_rounds = sum(p.elements for e in readers for r in e.rounds for p in r.permutes)
        assert sent <= by_rounds
        total.update(rounds=by_rounds, transfers=sent)
    show(f"elements sent per device: {dict(total)}")
    assert total["transfers"] < 0.9 * total["rounds"]


def test_pairs_are_coloured_with_as_few_permutes_as_the_busiest_position_needs():
    rng = np.random.default_rng(SEED)
    for _ in range(300):
        n = int(rng.integers(2, 9))
        chosen = np.argwhere(rng.random((n, n, 2)) < rng.random() / 2)
        edges = tuple(tuple(map(int, edge)) for edge in rng.permutation(chosen))
        found = in_permutes(edges)
        assert sorted(edge for permute in found for edge in permute) == sorted(edges)
        sides = [Counter(edge[side] for edge in edges) for side in (0, 1)]
        assert len(found) == max((n for side in sides for n in side.values()), default=0)
        assert all(map(once, found))


def one(lower, upper, *pairs, tensor=0):
    """Return a reader that needs places of a block of five."""
    return BlockReader((Round(0, lower, upper, (Permute(pairs, lower, upper),), False),), 5, tensor)


@pytest.mark.parametrize(
    ("readers", "elements"),
    [
        ([one(0, 3, (1, 0), (2, 1)), one(0, 3, (0, 2))], 3),
        ([one(0, 3, (1, 0)), one(0, 3, (1, 0))], 3),  # both read what is sent once
        ([one(0, 3, (1, 0)), one(0, 3, (1, 0), tensor=1)], 6),
        ([one(0, 3, (1, 0)), one(0, 3, (1, 2))], 6),  # one source, two targets
        ([one(0, 3, (1, 0)), one(2, 5, (0, 1))], 3),  # other places, at the same time
        ([one(0, 3, (1, 0)), one(2, 5, (1, 0))], 5),  # as one run
        ([one(0, 5, (1, 0)), one(2, 3, (0, 1), tensor=1)], 5),
        ([one(0, 5, (1, 0)), one(2, 3, (1, 2), tensor=1)], 6),  # apart
    ],
)
def test_what_is_sent_together(readers, elements):
    assert sum(transfer.elements for transfer in transfers(readers)) == elements


def test_a_rotation_is_one_permute():
    forth, back = (exchange(Interval(P * 4 + k, 4), size=16, count=4) for k in (3, -13))
    (only,) = [
        t for t in transfers([BlockReader(e.rounds, 4) for e in (forth, back)]) if t.elements
    ]
    assert [edge[:2] for edge in only.permutes[0]] == [(0, 3), (1, 0), (2, 1), (3, 2)]
    assert only.elements == 3
