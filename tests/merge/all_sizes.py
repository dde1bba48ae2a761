"""Statements for all sizes against brute force at other meshes: `make fuzz-proofs`.

A case is written in atoms: axes, or sub-axes, of unknown size. The same words make shardings at
every size. The judge reads partition ids from coordinates, and shares no code with the library.
"""

import itertools
import math
import random
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from shardalg.algebra.digits import Digit
from shardalg.algebra.halos.halo import halo
from shardalg.algebra.halos.window import Window
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.merge.compatible import equal, merge, refines
from shardalg.merge.lemmas import LEMMAS
from shardalg.merge.proofs.claims import EqualClaim, MergeClaim, RefineClaim
from shardalg.merge.proofs.prove import prove

MESHES = 50
MAX_DEVICES = 720
ATOMS = "XYZW"
EXTENTS = (1, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 30, 48, 50, 720)


@dataclass(frozen=True)
class Words:
    """A sharding in atoms: axes as groups of atoms (major first), entries as lists of atoms."""

    axes: tuple[tuple[str, ...], ...]
    entries: tuple[tuple[str, ...], ...]
    opened: tuple[int, ...] = ()
    classes: tuple[tuple[str, ...], ...] = ((), (), ())  # unreduced, manual, replicated

    def mesh(self, sizes, symbolic=False):
        """Return the mesh at the sizes of the atoms."""
        named = {"".join(a): int(np.prod([sizes[x] for x in a])) for a in self.axes}
        return Mesh(named, symbolic=symbolic)

    def digits(self, atoms, sizes):
        """Return the atoms as digits, one each."""
        order, strides, below = [x for a in self.axes for x in a], {}, 1
        for atom in reversed(order):
            strides[atom], below = below, below * sizes[atom]
        return tuple(Digit(strides[atom], sizes[atom]) for atom in atoms)

    def sharding(self, shape, sizes, symbolic=False):
        """Return the library's sharding."""
        dims = tuple(self.digits(entry, sizes) for entry in self.entries)
        unreduced, manual, replicated = (self.digits(held, sizes) for held in self.classes)
        return Sharding(
            self.mesh(sizes, symbolic), shape, dims, self.opened,
            unreduced=unreduced, manual=manual, replicated=replicated,
        )  # fmt: skip

    def ids(self, atoms, sizes):
        """Partition id of each device and the number of parts, from coordinates."""
        order = [x for a in self.axes for x in a]
        grid = np.indices([sizes[x] for x in order]).reshape(len(order), -1)
        total, count = np.zeros(grid.shape[1], dtype=np.int64), 1
        for atom in atoms:
            total = total * sizes[atom] + grid[order.index(atom)]
            count *= sizes[atom]
        return total, count


@dataclass(frozen=True)
class Case:
    """A question about shardings, in names, and the sizes to ask it at."""

    relation: str
    policy: str
    shape: tuple[int, ...]
    operands: tuple[Words, ...]
    sizes: dict = field(hash=False)
    symbolic: bool = False

    def verdict(self, sizes):
        """Return the library's answer at these sizes."""
        rows = [w.sharding(self.shape, sizes, self.symbolic) for w in self.operands]
        more = {"policy": self.policy} if self.relation == "merge" else {}
        return {"merge": merge, "equal": equal, "refines": refines}[self.relation](*rows, **more)

    def truth(self, sizes):
        """Return the answer by definition."""
        judge = {"merge": merges, "equal": equals, "refines": inside}[self.relation]
        return judge(self, sizes)

    def points(self, rng, count=MESHES):
        """Other sizes of the atoms, up to some hundred devices."""
        found = 0
        while found < count:
            top = rng.choice((3, 4, 5, 7, 9, 13))
            sizes = {atom: rng.randint(2, top) for atom in self.sizes}
            if np.prod(list(sizes.values())) <= MAX_DEVICES:
                found += 1
                yield sizes

    def named(self, sizes):
        """Return the sizes by every name of a condition: axes, and sub-axes at the hints."""
        named = {}
        for words in self.operands:
            mesh = words.mesh(self.sizes)
            for axis in words.axes:
                named["".join(axis)] = int(np.prod([sizes[x] for x in axis]))
            order = [x for a in words.axes for x in a]
            for i, j in itertools.combinations(range(len(order) + 1), 2):
                digits = words.digits(order[i:j], self.sizes)
                whole = Digit(digits[-1].stride, int(np.prod([d.size for d in digits])))
                try:
                    name = repr(mesh.axis_ref(whole))
                except Exception:  # no part of one axis has no name
                    continue
                named[name] = int(np.prod([sizes[x] for x in order[i:j]]))
        return named


def blocks(words, shape, sizes, dim):
    """Start and end of each device's elements, and whether there are some."""
    ids, n = words.ids(words.entries[dim], sizes)
    block = -(-shape[dim] // n)
    return np.minimum(ids * block, shape[dim]), np.minimum((ids + 1) * block, shape[dim])


def same_classes(case, sizes):
    for k in (0, 1):
        rows = [w.ids(case_major(w, k), sizes)[0] for w in case.operands]
        if any(not np.array_equal(rows[0], row) for row in rows):
            return False
    return True


def case_major(words, k):
    order = [x for a in words.axes for x in a]
    return sorted(words.classes[k], key=order.index)


def inside(case, sizes):
    fine, coarse = case.operands
    rows = [
        [blocks(w, case.shape, sizes, d) for d in range(len(case.shape))] for w in (fine, coarse)
    ]
    there = np.all([start < stop for start, stop in rows[0]], axis=0)
    within = [(a >= c) & (b <= d) for (a, b), (c, d) in zip(*rows, strict=True)]
    return same_classes(case, sizes) and bool(np.all(~there | np.all(within, axis=0)))


def offsets(words, shape, sizes, dim):
    ids, n = words.ids(words.entries[dim], sizes)
    return ids * max(1, -(-shape[dim] // n))


def equals(case, sizes):
    rows = [
        [offsets(w, case.shape, sizes, d) for d in range(len(case.shape))] for w in case.operands
    ]
    return same_classes(case, sizes) and all(
        np.array_equal(a, b) for a, b in zip(*rows, strict=True)
    )


def merges(case, sizes):
    """Return True if all offsets are kept, closed dimensions are unchanged, and tiles balanced."""
    if not same_classes(case, sizes):
        return False
    dims = []
    for dim in range(len(case.shape)):
        rows = [w.ids(w.entries[dim], sizes) for w in case.operands]
        ids, n = max((row for row in rows), key=lambda row: row[1])
        for other, m in rows:
            if m == 1:
                continue
            if case.policy == "shardy":
                if n % m or not np.array_equal(ids // (n // m), other):
                    return False
            else:
                block, theirs = (max(1, -(-case.shape[dim] // k)) for k in (n, m))
                if not np.array_equal(ids * block, other * theirs):
                    return False
        if any(
            w.opened and dim not in w.opened and m != n
            for w, (_, m) in zip(case.operands, rows, strict=True)
        ):
            return False
        dims.append((ids, n))
    first = case.operands[0]
    shared = [*dims, *(first.ids(case_major(first, k), sizes) for k in (0, 1))]
    kept = [w.ids(case_major(w, 2), sizes) for w in case.operands if w.classes[2]]
    return all(balanced([*shared, row]) for row in kept or [(0 * dims[0][0], 1)])


def balanced(places):
    total, count = 0, 1
    for ids, n in places:
        total, count = total * n + ids, count * n
    held = np.bincount(total, minlength=count)
    return bool((held == held[0]).all())


def draw(rng):
    """Draw a random case: one mesh, the same axes in another order, or fused axes."""
    atoms = list(ATOMS[: rng.choice((1, 2, 2, 3, 3, 4))])
    axes = grouped(rng, atoms)
    meshes = [axes] * 3
    how = rng.random()
    if how < 0.15:
        meshes[1] = tuple(rng.sample(axes, len(axes)))
    elif how < 0.25:
        meshes[1] = grouped(rng, atoms)
    relation = rng.choice(("merge", "merge", "equal", "refines", "refines", "refines"))
    count = 3 if relation == "merge" and rng.random() < 0.2 else 2
    rank = rng.choice((1, 1, 2, 3))
    shape = tuple(rng.choice(EXTENTS) for _ in range(rank))
    classes = rng.random() < 0.15
    first = drawn(rng, meshes[0], rank, classes)
    operands = [first]
    for nth in range(1, count):
        near = rng.random() < 0.6 and meshes[nth] == axes
        operands.append(edited(rng, first) if near else drawn(rng, meshes[nth], rank, classes))
    rng.shuffle(operands)
    sizes = {a: rng.randint(2, 5 if len(atoms) < 4 else 3) for a in atoms}
    policy = rng.choice(("gspmd", "gspmd", "shardy"))
    return Case(relation, policy, shape, tuple(operands), sizes, rng.random() < 0.3)


def grouped(rng, atoms):
    axes, left = [], list(atoms)
    while left:
        take = 2 if rng.random() < 0.2 else 1
        axes.append(tuple(left[:take]))
        left = left[take:]
    return tuple(axes)


def drawn(rng, axes, rank, classes):
    entries, held = [[] for _ in range(rank)], ([], [], [])
    for atom in rng.sample([x for a in axes for x in a], sum(map(len, axes))):
        place = rng.choice((-1, *range(rank), *range(rank)))
        if place >= 0:
            entries[place].append(atom)
        elif classes and rng.random() < 0.5:
            rng.choice(held).append(atom)
    opened = tuple(d for d in range(rank) if classes and rng.random() < 0.4)
    order = [x for a in axes for x in a]
    return Words(
        axes,
        tuple(map(tuple, entries)),
        opened,
        tuple(tuple(sorted(h, key=order.index)) for h in held),
    )


def edited(rng, words):
    """Return the sharding without some of its last atoms, or with some in another order."""
    entries = []
    for entry in words.entries:
        kept = list(entry)
        if rng.random() < 0.6 and kept:
            kept = kept[: rng.randrange(len(kept) + 1)]
        if rng.random() < 0.2:
            rng.shuffle(kept)
        entries.append(tuple(kept))
    if rng.random() < 0.2:
        rng.shuffle(entries)
    return Words(words.axes, tuple(entries), words.opened, words.classes)


def said(answer, condition, sizes):
    """Return the answer at other sizes: the hints' answer, or the condition's."""
    return answer if condition is None else condition.holds(**sizes)


def faults(case, rng, seen):
    """Return statements of a case for all sizes that are false at other sizes."""
    verdict = case.verdict(case.sizes)
    if bool(verdict) != case.truth(case.sizes):
        yield f"{verdict!r} is wrong at its own sizes"
        return
    proof = prove(verdict, "all")
    seen[f"{case.relation} {'holds' if verdict else 'refused'}: {proof.status}"] += 1
    known = verdict.condition
    exact = known is None or not known.counted
    one_mesh = len({w.axes for w in case.operands}) == 1
    seen["with a condition"] += known is not None
    for sizes in case.points(rng):
        truth = case.truth(sizes)
        names = case.named(sizes)
        if proof.status == "proved" and not exact:
            yield f"{proof!r} has a condition that says nothing: {known}"
            return
        if proof.status == "proved" and said(bool(verdict), known, names) != truth:
            yield f"{proof!r} is false at {sizes}: condition {known}"
            return
        if exact and one_mesh and said(bool(verdict), known, names) != truth:
            yield f"the condition {known} of {verdict!r} is wrong at {sizes}"
            return
    yield from false_claims(case, verdict, rng, seen)


def false_claims(case, verdict, rng, seen):
    """Claims that are made without a verdict: proved only where they are true, or say so."""
    if len(case.operands) != 2 or len({w.axes for w in case.operands}) > 1:
        return
    pair = [w.sharding(case.shape, case.sizes, case.symbolic) for w in case.operands]
    made = {"refines": RefineClaim, "equal": EqualClaim}.get(case.relation)
    if made is None:
        claims = [(MergeClaim(*pair, None, case.policy), False)]
        if verdict.sharding is not None:
            claims.append((MergeClaim(*pair, verdict.sharding, case.policy), True))
    else:
        claims = [(made(*pair, holds), holds) for holds in (True, False)]
    for claim, holds in claims:
        proof = prove(claim, "all")
        seen["claims " + proof.status] += 1
        if proof.status != "proved":
            continue
        for sizes in case.points(rng):
            if said(holds, proof.condition, case.named(sizes)) != case.truth(sizes):
                yield f"{proof!r} is false at {sizes}"
                return


def halo_faults(rng, seen):
    """Return the faults of a random window's closed forms, on every partition."""
    window = Window(
        rng.randint(1, 5), rng.randint(1, 4), rng.randint(-3, 6), rng.randint(-3, 6),
        base_dilation=rng.choice((1, 1, 2, 3)), window_dilation=rng.randint(1, 3),
    )  # fmt: skip
    for _ in range(MESHES):
        size, parts = rng.randint(1, 80), rng.randint(1, 24)
        if window.out_size(size) < 1:
            continue
        found = halo(window, size=size, parts=parts)
        s, t = -(-size // parts), -(-window.out_size(size) // parts)
        seen["halos"] += 1
        for p in range(parts):
            reads = [
                (window.stride * (t * p + x) + window.window_dilation * tap - window.padding_low)
                for x in range(t) for tap in range(window.size)
            ]  # fmt: skip
            low = -(-min(reads) // window.base_dilation)
            high = max(reads) // window.base_dilation + 1
            if (found.left.at(p), found.right.at(p)) != (p * s - low, high - (p + 1) * s):
                yield f"{found!r} of {window!r}, {size} elements in {parts} parts: wrong at {p}"
                return


PYTHON = {
    "__builtins__": {}, "ceil": lambda x, m: -(-x // m), "min": min, "max": max,
    "clip": lambda x, low, high: max(low, min(x, high)), "implies": lambda a, b: not a or b,
}  # fmt: skip


def lemma_faults(known, rng, seen, tries=4000):
    """Return the faults of a lemma at numbers that meet its assumptions, in Python."""
    names = sorted(
        set(re.findall(r"[A-Za-z]\w*", f"{known.given} {known.shows}")) - set(PYTHON) - set(WORDS)
    )
    definitions, conditions = split(known.given, names)
    given = compile(f"({','.join(conditions) or 'True'},)", "given", "eval")
    shows = compile(f"({known.shows},)", "shows", "eval")
    found = 0
    for _ in range(tries):
        values = {
            name: rng.randint(*rng.choice(((0, 2), (0, 5), (1, 9), (-4, 30)))) for name in names
        }
        try:
            for name, code in definitions:
                values[name] = eval(code, PYTHON, values)
            if not all(eval(given, PYTHON, values)):
                continue
            if not all(eval(shows, PYTHON, values)):
                yield f"lemma {known.name} is false at {values}"
                return
        except ZeroDivisionError:
            continue
        found += 1
        if found == MESHES:
            break
    seen["lemmas at a point"] += found
    seen["lemmas without a point"] += not found


WORDS = ("if", "else", "or", "and", "not")


def split(text, names):
    """Split conditions `name == ...` into definitions in a usable order, and all conditions."""
    parts, depth, current = [], 0, ""
    for char in text:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    parts.append(current.strip())
    definitions, known = [], set()
    for part in parts:
        match = re.fullmatch(r"([A-Za-z]\w*) == ([^=<>]+)", part)
        if match and match[1] not in known and match[1] in names:
            known.add(match[1])
            definitions.append((match[1], compile(match[2], "definition", "eval")))
    return definitions, [part for part in parts if part]


def run(seed, *, seconds=math.inf, cases=math.inf, show=print):
    """Run cases until the time or their number is over; return the faults and the counts."""
    start, seen, wrong = time.process_time(), Counter(), []
    rng = random.Random(seed)
    for known in LEMMAS:
        wrong += lemma_faults(known, rng, seen)
    nth = 0
    while nth < cases and time.process_time() - start < seconds:
        drawn_from = random.Random(f"{seed}/{nth}")
        case = draw(drawn_from)
        for fault in faults(case, drawn_from, seen):
            wrong.append(f"{seed}/{nth}: {fault}")
            show(wrong[-1])
        if nth % 10 == 0:
            wrong += halo_faults(drawn_from, seen)
        nth += 1
    seen["cases"] = nth
    return wrong, seen


if __name__ == "__main__":
    budget, first = (float(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 2 else (60.0, "0")
    print(f"seed {first}, {budget:g} s")
    found, counted = run(first, seconds=budget)
    print(dict(sorted(counted.items())))
    print(f"{len(found)} false statements")
    sys.exit(bool(found))
