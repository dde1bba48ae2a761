"""Merging: the closed form equals an enumeration of the definition; refusals have reasons."""

import itertools
import random
import timeit

import pytest

from shardalg.algebra.digits import Digit
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding, replicated
from shardalg.errors import ShardingError
from shardalg.merge.compatible import compatible, equal, merge

from . import brute

MESH = Mesh({"x": 2, "y": 2, "z": 3})


def axes(*entries, mesh=MESH, shape=None, **more):
    return Sharding.from_axes(entries, mesh, shape or (12,) * len(entries), **more)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [2, 4])
def test_all_shardings_of_all_device_orders(size):
    """Every pair of balanced tables, against a search through all of them."""
    shape = (8, 8)
    tables = brute.tables(size)
    shardings = [brute.sharding_of(table, shape) for table in tables]
    given = [brute.offsets(s) for s in shardings]
    fits = [[brute.agrees(t, g, shape) for t in tables] for g in given]
    answers = {True: 0, False: 0}
    for i, j in itertools.product(range(len(tables)), repeat=2):
        verdict = merge(shardings[i], shardings[j])
        truth = any(a and b for a, b in zip(fits[i], fits[j], strict=True))
        assert bool(verdict) == truth, (shardings[i], shardings[j])
        answers[truth] += 1
        if truth and (i + j) % 7 == 0:
            assert brute.is_merge(verdict.sharding, shardings[i], shardings[j])
        elif not truth and (i + j) % 7 == 0:
            brute.check_witness(verdict)
    assert min(answers.values()) > 0


def enumerated(shape, pairs):
    """Random pairs of all valid shardings of 6 devices, against a search through all of them."""
    tables = brute.tables(6)
    alike = {}
    for number, (counts, held) in enumerate(tables):
        for dim, n in enumerate(counts):
            offsets = tuple(tile[dim] * -(-shape[dim] // n) for tile in held)
            alike.setdefault((dim, offsets), set()).add(number)
    by_counts = [[t for t in tables if t[0] == n] for n in sorted({n for n, _ in tables})]
    rng, counts = random.Random(6), {True: 0, False: 0}
    for _ in range(pairs):
        chosen = (rng.choice(rng.choice(by_counts)) for _ in range(2))
        pair = [brute.sharding_of(table, shape) for table in chosen]
        wanted = [(d, tuple(o)) for s in pair for d, o in brute.offsets(s).items()]
        truth = bool(set.intersection(*(alike[key] for key in wanted), set(range(len(tables)))))
        verdict = merge(*pair)
        assert bool(verdict) == truth, pair
        if not truth:
            brute.check_witness(verdict)
        counts[truth] += 1
    return counts


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", [(12, 12), (7, 5), (3, 2)])
def test_shardings_of_six_devices(shape, record_property):
    counts = enumerated(shape, 600)
    record_property("shown", f"pairs of 6 devices that merge, and that do not: {counts}")
    assert min(counts.values()) >= 100


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(12, 12), (7, 5), (3, 2)])
def test_many_shardings_of_six_devices(shape):
    assert min(enumerated(shape, 10_000).values()) > 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a": 2, "b": 3}, {"c": 3, "d": 2}),
        ({"a": 2, "b": 2, "c": 3}, {"d": 3, "e": 4}),
        ({"a": 4, "b": 3}, {"c": 6, "d": 2}),
        ({"a": 2, "b": 4}, {"c": 4, "d": 2}),
    ],
    ids=repr,
)
def test_two_meshes_over_the_same_devices(first, second):
    """Digits of two factorizations: balance counted, not taken from the theorem."""
    shape = (24, 24)
    rows = [brute.digit_shardings(Mesh(m), shape) for m in (first, second)]
    surprising = 0
    for a, b in itertools.product(*rows):
        verdict = merge(a, b)
        union = brute.offsets(a) | brute.offsets(b)
        clash = any(
            brute.offsets(a)[d] != brute.offsets(b)[d]
            for d in brute.offsets(a).keys() & union
            if d in brute.offsets(b)
        )
        joined = [tuple(s.partition_id(p, d) for d, s in _owners(a, b)) for p in range(a.mesh.size)]
        counts = {joined.count(t) for t in joined}
        total = 1
        for d, s in _owners(a, b):
            total *= s.parts[d]
        truth = not clash and counts == {a.mesh.size // total}
        assert bool(verdict) == truth, (a, b)
        if truth:
            assert brute.is_merge(verdict.sharding, a, b)
            surprising += verdict.condition is not None
        else:
            brute.check_witness(verdict)
    if first == {"a": 2, "b": 3}:
        assert surprising > 0


def _owners(a, b):
    return [(d, a if a.parts[d] > 1 else b) for d in range(2) if max(a.parts[d], b.parts[d]) > 1]


def test_merging_is_idempotent_commutative_and_associative():
    mesh = Mesh({"x": 2, "y": 2})
    rows = brute.digit_shardings(mesh, (8, 8))
    for a, b in itertools.product(rows, repeat=2):
        assert merge(a, a).sharding is a
        both, swapped = merge(a, b), merge(b, a)
        assert bool(both) == bool(swapped)
        assert not both or both.sharding.key == swapped.sharding.key
        for c in rows:
            left = merge(both.sharding, c) if both else None
            bc = merge(b, c)
            right = merge(a, bc.sharding) if bc else None
            if left and right:
                assert left.sharding.key == right.sharding.key
            assert bool(left) == bool(right)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (axes("x", None), axes(None, "y"), "[x, y]"),
        (axes("x", None), axes("x", None), "[x, None]"),
        (axes(("x", "y"), None), axes(None, "z"), "[(x, y), z]"),
        (axes(None, None), axes("y", "x"), "[y, x]"),
        (axes("x", "?"), axes(None, "y"), "[x, (y, ?)]"),
        (axes("x", None, unreduced=["z"]), axes(None, "y", unreduced=["z"]), "[x, y]{U:z}"),
    ],
)
def test_merges(first, second, expected):
    verdict = merge(first, second)
    assert verdict.sharding.text() == expected
    assert "agree on the dimensions that both split" in verdict.reason
    assert verdict.witness is verdict.condition is None


@pytest.mark.parametrize(
    ("first", "second", "kind", "message"),
    [
        (axes("x", None), axes("y", None), "offset", r"differently on dimension 0 .*\n.*shard_off"),
        (axes(("x", "y")), axes(("y", "x")), "offset", "differently on dimension 0"),
        (axes(("x", "y")), axes("x"), "offset", "differently on dimension 0"),
        (
            axes("x", None),
            axes(None, "x"),
            "overlap",
            r"tile \(0, 1\) should be on 3 devices, but no device",
        ),
        (axes(("z", "x"), None), axes(None, "x"), "overlap", "dimension 0 and dimension 1 by the"),
        (axes("x", "?"), axes("x", "y", shape=(12, 12)), None, ""),
        (axes(None, "?"), axes("x", None), "closed", "is closed in one of them, on dimension 0"),
        (axes("x", unreduced=["y"]), axes("x"), "class", "differ on the unreduced digits"),
        (axes(None, unreduced=["x"]), axes("x"), "class", r"partition_id\(6, unreduced\) = 1"),
    ],
)
def test_refusals(first, second, kind, message):
    verdict = merge(first, second)
    assert (verdict.failure.kind if verdict.failure else None) == kind
    assert verdict.sharding is None or kind is None
    if kind is not None:
        with pytest.raises(AssertionError, match="(?s)" + message):
            raise AssertionError(verdict.reason)
        assert first.text() in verdict.reason
        assert second.text() in verdict.reason


def test_explicitly_replicated_digits_stay_free():
    kept = Sharding(MESH, (12, 12), ((), ()), replicated=MESH.digits(["x"]))
    assert merge(kept, axes("y", None)).sharding.text() == "[y, None]{R:x}"
    verdict = merge(axes("x", None), kept)
    assert verdict.failure.dims == (0, "replicated")
    assert "the replicated digits" in verdict.reason


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (axes("x"), axes(("x", "y")), "[(x, y)]"),
        (axes(("x", "y")), axes("x"), "[(x, y)]"),
        (axes("y"), axes(("x", "y")), None),
        (axes("x", "y"), axes(("x", "y"), None), None),
        (axes(("x", "z"), None), axes("x", "y"), "[(x, z), y]"),
    ],
)
def test_prefixes_nest_under_shardy(first, second, expected):
    verdict = merge(first, second, policy="shardy")
    assert (verdict.sharding.text() if verdict else None) == expected
    if expected and first.parts[0] != second.parts[0]:
        assert not merge(first, second)


def test_sub_axes_are_prefixes():
    mesh = Mesh({"x": 8})
    half = Sharding(mesh, (16,), ((Digit(4, 2),),))
    assert merge(half, axes("x", mesh=mesh, shape=(16,)), policy="shardy").sharding.text() == "[x]"


def test_device_orders_meet():
    """Two orders of one mesh are compared device by device if no digits express them."""
    natural, other = Mesh({"x": 2, "y": 4}), Mesh({"x": 2, "y": 4}, [0, 3, 1, 2, 4, 7, 6, 5])
    x, y = (axes(name, None, mesh=other) for name in "xy")
    verdict = merge(x, axes(None, "y", mesh=natural))
    assert brute.is_merge(verdict.sharding, x, axes(None, "y", mesh=natural))
    refused = merge(y, axes("y", None, mesh=natural))
    assert not refused
    brute.check_witness(refused)
    kept = [Sharding(m, (12, 12), ((), ()), replicated=m.digits(["y"])) for m in (natural, other)]
    with pytest.raises(ShardingError, match="both keep axes explicitly replicated"):
        merge(*kept)


def test_open_dimensions_and_prefixes_of_two_device_orders():
    natural, other = Mesh({"x": 2, "y": 4}), Mesh({"x": 2, "y": 4}, [0, 3, 1, 2, 4, 7, 6, 5])
    x = axes("x", "?", mesh=other)
    both = merge(x, axes(None, "y", mesh=natural)).sharding
    assert both.unspecified_dims == (1,)
    assert brute.is_merge(both, x, axes(None, "y", mesh=natural))
    assert (
        merge(axes("?", None, mesh=other), axes(None, "y", mesh=natural)).failure.kind == "closed"
    )
    longer = axes(("x", "y"), None, mesh=natural)
    assert merge(x, longer, policy="shardy").failure.kind == "closed"
    x = axes("x", None, mesh=other)
    assert merge(x, longer, policy="shardy").sharding.parts == (8, 1)
    assert not merge(x, longer)
    partial = [axes("x", None, mesh=m, unreduced=["y"]) for m in (natural, other)]
    assert merge(*partial).failure.kind == "class"


def test_three_meshes_are_counted():
    """Pairs of digits coexist on 30 devices, all three do not: 6 * 15 tiles on 30 devices."""
    mesh = Mesh({"d": 30})
    pair = Sharding(mesh, (30, 30, 30), ((Digit(2, 3),), (Digit(3, 5),), ()))
    third = Sharding(mesh, (30, 30, 30), ((), (), (Digit(5, 2),)))
    verdict = merge(pair, third)
    ids = list(zip(*(range(30),), strict=True))
    tiles = {
        tuple(s.partition_id(p, d) for s, d in ((pair, 0), (pair, 1), (third, 2))) for (p,) in ids
    }
    assert bool(verdict) == (len(tiles) == 30)
    assert verdict or verdict.failure.kind == "joint"


def test_what_cannot_be_compared():
    with pytest.raises(ShardingError, match=r"shapes \(12,\) and \(12, 12\)"):
        merge(axes("x"), axes("x", None))
    with pytest.raises(ShardingError, match="different devices"):
        merge(axes("x"), axes("x", mesh=Mesh({"x": 2})))
    with pytest.raises(ShardingError, match=r"policy 'xla' is not one of \['gspmd', 'shardy'\]"):
        merge(axes("x"), axes("x"), policy="xla")


def test_pairs_that_merge_and_all_three_that_do_not():
    """Bits 0 and 1 of a device and their sum modulo 2, on three dimensions: no Helly for tables."""
    orders = ([0, 1, 2, 3], [0, 2, 1, 3], [0, 3, 1, 2])
    bits = [
        Sharding(
            Mesh({"x": 2, "y": 2}, o),
            (4, 4, 4),
            tuple(((Digit(2, 2),) * (i == k)) for i in range(3)),
        )
        for k, o in enumerate(orders)
    ]
    for pair in itertools.combinations(bits, 2):
        assert brute.is_merge(merge(*pair).sharding, *pair)
    for several in itertools.permutations(bits):
        verdict = merge(*several)
        assert not verdict
        assert verdict.operands == several
        assert verdict.failure.kind == "joint"
        assert verdict.witness.count < 1 <= verdict.witness.expected
        assert not compatible(*several)


def test_many_are_merged_jointly():
    """Every triple of shardings of one mesh: the merge of all is any order of merging in pairs."""
    rows = brute.digit_shardings(Mesh({"x": 2, "y": 2}), (8, 8))
    for several in itertools.product(rows, repeat=3):
        verdict = merge(*several)
        pairs = all(merge(a, b) for a, b in itertools.combinations(several, 2))
        assert bool(verdict) == pairs  # digits of one mesh: pairs decide
        if verdict:
            given = (
                brute.offsets(several[0]) | brute.offsets(several[1]) | brute.offsets(several[2])
            )
            assert brute.offsets(verdict.sharding) == given


def test_every_operand_of_many_keeps_its_closed_dimensions():
    first, second, third = axes("?", None, "?"), axes(None, "?", "?"), axes("x", None, None)
    assert merge(first, third)
    assert merge(first, second, axes(None, None, "z"))
    verdict = merge(first, second, third)
    assert verdict.failure.kind == "closed"
    assert "is closed in one of them, on dimension 0" in verdict.reason


def test_equal():
    """Over all shardings of all device orders: equal exactly if all offsets are."""
    shardings = [brute.sharding_of(table, (8, 8)) for table in brute.tables(4)]
    equals = 0
    for a, b in itertools.product(shardings[::3], shardings):
        verdict = equal(a, b)
        assert bool(verdict) == (brute.offsets(a) == brute.offsets(b))
        equals += a is not b and bool(verdict)
        if not verdict:
            brute.check_witness(verdict)
    assert not equal(axes("x", unreduced=["y"]), axes("x"))
    assert equal(axes("x"), axes(("x", "?")))


def test_compatible_is_merge_by_another_name():
    for a, b in itertools.product(brute.digit_shardings(Mesh({"x": 2, "y": 2}), (8, 8)), repeat=2):
        verdict = compatible(a, b)
        assert bool(verdict) == bool(merge(a, b))
        assert verdict.relation == "compatible"


def test_replicated_merges_with_everything():
    for sharding in brute.digit_shardings(MESH, (12, 12)):
        assert merge(replicated((12, 12), MESH), sharding).sharding.key == sharding.key


def test_speed_does_not_depend_on_the_devices():
    """Microseconds at 8 and at 2048 devices; a loop over devices would be 256 times slower."""
    seconds = {}
    for n in (2, 512):
        mesh = Mesh({"x": n, "y": 4})
        a, b = (axes(*row, mesh=mesh, shape=(4096, 4096)) for row in (("x", None), (None, "y")))
        seconds[n] = min(timeit.repeat(lambda a=a, b=b: merge(a, b), number=300, repeat=5)) / 300
    print({n: f"{s * 1e6:.1f} us" for n, s in seconds.items()})
    assert seconds[512] < 5 * seconds[2]


def test_a_mutated_rule_would_be_seen():
    """The enumeration differs without the balance check, so the test is not vacuous."""
    rng = random.Random(1)
    shardings = brute.digit_shardings(Mesh({"x": 2, "y": 2}), (8, 8))
    pairs = rng.sample(list(itertools.product(shardings, repeat=2)), 60)
    naive = [
        all(x == y or not (x and y) for x, y in zip(a.dims, b.dims, strict=True)) for a, b in pairs
    ]
    truth = [brute.compatible(a, b) for a, b in pairs]
    assert naive != truth == [bool(merge(a, b)) for a, b in pairs]


def test_orders_of_devices_that_digits_join_keep_names_and_priorities():
    swapped = Mesh({"x": 2, "y": 2}, [0, 2, 1, 3])
    second = Sharding.parse("[None, (y)p1]", (8, 8), swapped)
    found = merge(Sharding.parse("[None, None]", (8, 8), Mesh({"x": 2, "y": 2})), second).sharding
    assert found.text() == "[None, (x)p1]"
