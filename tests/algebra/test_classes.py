"""Classes of devices: the closed forms of an exchange equal an enumeration of all devices."""

from collections import Counter
from itertools import chain

import numpy as np
import pytest

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digit, partition_id, parts
from shardalg.algebra.halos import classes
from shardalg.algebra.halos.exchange import Exchange
from shardalg.algebra.halos.intervals import Interval, extremes, residues
from shardalg.algebra.halos.transfers import BlockReader, pieces, transfers

SEED = 210504663
X, Y, Z = Digit(96, 3), Digit(2, 48), Digit(1, 2)  # a mesh of 3 * 48 * 2
LAYOUTS = [
    ((X, Y, Z), (("o", (X, Y, Z)),)),
    ((Y,), (("o", (Y,)),)),
    ((Y, X), (("o", (Y, X)), ("r", (Z,)))),
    ((Z, Y), (("o", (X,)), ("r", (Z, Y)))),
    ((X,), (("o", (Y,)),)),
    ((Y, Z), (("o", (Y,)), ("r", (X,)))),
]


@pytest.fixture(autouse=True)
def _every_mesh_is_large(monkeypatch):
    monkeypatch.setattr(classes, "FEW", 1)
    classes.classes_of.cache_clear()
    yield
    classes.classes_of.cache_clear()


def drawn(rng, layout, kind):
    """Draw an exchange as windows need it: near the own block, drifting, or reversed."""
    held, ids = layout
    count, divisor = parts(held), int(rng.integers(1, 4))
    block = int(rng.integers(1, 6))
    size = int(rng.integers(max(1, block * (count - 2)), block * count + 1))
    slope = {"near": block, "drift": int(rng.integers(1, 9)), "back": -block}[kind]
    begin = block * (count - 1) if kind == "back" else 0
    start = Index.of(ids[0][0]) * (slope * divisor) + begin + int(rng.integers(-9, 9))
    start = start + Index.of(ids[-1][0]) * int(rng.integers(-3, 4)) if len(ids) > 1 else start
    return Exchange(Interval(start // divisor, int(rng.integers(1, 9))), size, block, *layout, 288)


def pairs_of(rounds, lifted):
    return [{pair for p in r.permutes for pair in lifted(r.number, p.pairs)} for r in rounds]


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["near", "drift", "back"])
def test_rounds_and_transfers_of_classes_are_those_of_devices(kind, show):
    rng, total = np.random.default_rng((SEED, len(kind))), Counter()
    for layout in LAYOUTS * 20:
        one = drawn(rng, layout, kind)
        found = classes.classes_of((one,))
        rounds = found.rounds(one)
        check_rounds(rounds, found, one)
        by_class, by_device = (
            transfers([BlockReader(rs, one.block)]) for rs in (rounds, one.rounds)
        )
        check_sent(by_class, found, one)
        sent = [sum(t.elements for t in ts) for ts in (by_class, by_device)]
        total["by class"] += sent[0]
        total["by device"] += sent[1]
        total["alike"] += sent[0] == sent[1]
        total["periodic"] += found.period < found.count
        nearby = kind == "near" and layout[0] == layout[1][0][1]
        assert not nearby or sent[0] == sent[1]
    show(f"elements sent, {kind}: {dict(total)}")
    # pieces are joined greedily; classes tell sources of one rank apart, which devices do not
    assert total["by class"] <= total["by device"]


def check_rounds(rounds, found, exchange):
    """Check senders and receivers of every round, and all starts."""
    brief = [[(r.number, r.lower, r.upper, r.own) for r in rs] for rs in (rounds, exchange.rounds)]
    assert brief[0] == brief[1]
    for ours, every in zip(rounds, exchange.rounds, strict=True):
        labels = [label for permute in ours.permutes for label in permute.pairs]
        pairs = list(found.device_runs(exchange, ours.number, labels))
        assert sorted(pairs) == sorted(pair for p in every.permutes for pair in p.pairs)
        assert found.stays(exchange, ours.number) == exchange.stays(ours.number)
    starts = exchange.starts(np.arange(288))
    ends = starts + exchange.want.length
    assert exchange.exists == bool(starts.min() >= 0 and ends.max() <= exchange.size)
    assert exchange.rests == set((starts % exchange.block).tolist())


def check_sent(sent, found, exchange):
    """No device sends or receives twice in a permute, and all that is wanted arrives."""
    wanted = {p.number: [] for r in found.rounds(exchange) for p in pieces(r)}
    for transfer in sent:
        arrived = [[] for _ in transfer.permutes]
        for number, slot in enumerate(transfer.slots):
            for piece in slot.pieces:
                brought = [
                    list(found.device_runs(exchange, piece.number, labels))
                    for labels in transfer.bringing(number, piece)
                ]
                wanted[piece.number] += chain(*brought)
                for edges, more in zip(arrived, brought, strict=True):
                    edges += [(*pair, number) for pair in more]
        for edges in arrived:
            edges = set(edges)
            assert len({s for s, *_ in edges}) == len({t for _, t, _ in edges}) == len(edges)
    rounds = {r.number: r for r in exchange.rounds}
    for number, pairs in wanted.items():
        rows = [p.pairs for p in rounds[number].permutes]
        assert set(pairs) == set(chain(*rows))


def test_runs_read_as_pairs():
    exchange = Exchange(Interval(Index.of("o") * 4 - 1, 6), 1152, 4, *LAYOUTS[0], 288)
    found = classes.classes_of((exchange,))
    assert (found.period, found.step) == (1, 1)
    (permute,) = found.rounds(exchange)[0].permutes
    runs = found.device_runs(exchange, 0, permute.pairs)
    assert list(runs) == list(exchange.rounds[0].permutes[0].pairs)
    assert (len(runs), bool(runs)) == (287, True)
    assert runs == found.device_runs(exchange, 0, permute.pairs)
    assert hash(runs) == hash(found.device_runs(exchange, 0, permute.pairs))


@pytest.mark.parametrize("ids", [
    (("p", (X, Y, Z)), ("q", (X, Y, Z))), (("p", (Y,)), ("q", (Z, X))),
    (("p", (X, Y)), ("q", (Y,))),
])  # fmt: skip
def test_spans_are_those_of_all_devices(ids):
    rng = np.random.default_rng(SEED)
    for _ in range(60):
        low, high = (-9, -9, -9, 1, 0, 1), (9, 9, 9, 5, 7, 9)
        a, b, c, m, mod, by = (int(v) for v in rng.integers(low, high))
        index = Index((("p", a), ("q", b)), c, m)
        values = [index.at({n: partition_id(d, p) for n, d in ids}) for p in range(288)]
        assert extremes(index, ids, 288) == (min(values), max(values))
        assert residues(index, by, ids, 288) == {v % by for v in values}
        rest = index % mod if mod else index
        values = [v % mod if mod else v for v in values]
        assert residues(rest, by, ids, 288) == {v % by for v in values}
