"""The definition of a merge, solved by z3 without the closed form.

A sharding is a number of partitions `n` per place and a partition id per place and device, such
that all `prod(n)` tiles are held by equally many devices (GSPMD, arXiv:2105.04663, section 3.5). It
merges two others if its offsets equal theirs, on every device and dimension that they split:

    exists n, id:   id[i, d] * ceil(D_i / n_i) = offset(S_k, d, i)   wherever S_k splits i
                    for all tiles t:   #{d : id[., d] = t} = N / prod(n)

"For all tiles" is asked lazily: what the solver finds for the first line is counted, and of a tile
that is held by too many or too few devices the second line is added; until none is left (the model
is the merged sharding) or no model is (there is none). No digit and no theorem about them is used.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import z3

from shardalg.algebra.digits import canonical, parts
from shardalg.algebra.sharding import CLASSES, Sharding
from shardalg.errors import ProofError
from shardalg.merge.merged import Rows, from_table, on_mesh, rows_of, united
from shardalg.merge.places import DimOrClass, block_of, digits_at, offset_at
from shardalg.merge.verdict import Failure, Verdict

TIMEOUT_S = 60.0
# A place of the unknown sharding: a dimension, a class, or the replicated class of one operand.
Unknown = tuple[DimOrClass, int | None]


@dataclass(frozen=True)
class _Question:
    """Two shardings, and the places that one of them splits."""

    pair: tuple[Sharding, Sharding]
    policy: str
    places: tuple[Unknown, ...]
    devices: tuple[int, ...]

    @property
    def divisors(self) -> tuple[int, ...]:
        """Numbers of partitions that a place can have."""
        size = len(self.devices)
        return tuple(n for n in range(1, size + 1) if size % n == 0)

    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the places that are balanced together: with each operand's replicated axes."""
        shared = tuple(k for k, (_, owner) in enumerate(self.places) if owner is None)
        kept = [k for k, (_, owner) in enumerate(self.places) if owner is not None]
        return tuple((*shared, k) for k in kept) or (shared,)

    def share(self, group: tuple[int, ...]) -> str:
        """Name of the number of devices that hold a tile of a group."""
        return f"rep{self.groups().index(group)}"


def search(first: Sharding, second: Sharding, policy: str) -> Verdict:
    """The coarsest sharding that agrees with both, or that there is none, by search.

    Raises:
      ProofError: the solver gave up.
    """
    question = _question(first, second, policy)
    solver = z3.Solver()
    solver.set("timeout", int(TIMEOUT_S * 1000))
    solver.from_string("\n".join(_script(question)))
    literals = [z3.Bool(f"agree{k}") for k in range(len(question.places))]
    while (answer := solver.check(*literals)) == z3.sat:
        found = _read(question, solver.model())
        wrong = next(filter(None, (_miscounted(found, g) for g in question.groups())), None)
        if wrong is None:
            merged = _sharding(question, found)
            return Verdict("merge", question.pair, policy, merged)
        solver.add(_tile_is_held(question, *wrong))
    if answer == z3.unknown:
        raise ProofError(
            f"z3 gave up on the merge of {first!r} and {second!r}: {solver.reason_unknown()}. "
            "Decide it by the closed form."
        )
    return Verdict("merge", question.pair, policy, None, _failure(question, solver, literals))


def _question(first: Sharding, second: Sharding, policy: str) -> _Question:
    pair = (first, second)
    places: list[Unknown] = [
        (place, None)
        for place in (*range(len(first.shape)), *CLASSES[:2])
        if any(digits_at(s, place) for s in pair)
    ]
    places += [("replicated", k) for k, s in enumerate(pair) if digits_at(s, "replicated")]
    return _Question(pair, policy, tuple(places), tuple(sorted(first.mesh.order)))


def _script(question: _Question) -> Iterator[str]:
    """Declarations, and all but the tiles."""
    size, places = len(question.devices), range(len(question.places))
    for k in places:
        yield f"(declare-const agree{k} Bool)\n(declare-const n{k} Int)"
        for d in range(size):
            yield f"(declare-const id{k}_{d} Int)"
            yield f"(assert (and (<= 0 id{k}_{d}) (< id{k}_{d} n{k})))"
    for group in question.groups():
        yield f"(declare-const {question.share(group)} Int)"
        yield f"(assert (or {' '.join(_shapes(question, group))}))"
    for k in places:
        for n in question.divisors:
            facts = " ".join(_agreement(question, k, n))
            yield f"(assert (=> (and agree{k} (= n{k} {n})) (and true {facts})))"


def _shapes(question: _Question, group: tuple[int, ...]) -> Iterator[str]:
    """Every way to choose numbers of partitions, and how many devices then hold a tile."""
    divisors = question.divisors
    rows: list[tuple[tuple[int, ...], int]] = [((), len(question.devices))]
    for _ in group:
        rows = [((*ns, n), rest // n) for ns, rest in rows for n in divisors if rest % n == 0]
    for ns, rest in rows:
        chosen = " ".join(f"(= n{k} {n})" for k, n in zip(group, ns, strict=True))
        yield f"(and true {chosen} (= {question.share(group)} {rest}))"


def _agreement(question: _Question, k: int, n: int) -> Iterator[str]:
    """With `n` partitions of a place, its offsets are those of each operand that splits it."""
    place, owner = question.places[k]
    for number, operand in enumerate(question.pair):
        if owner is not None and owner != number:
            continue
        count = parts(digits_at(operand, place))
        if isinstance(place, int) and operand.unspecified_dims:
            if place not in operand.unspecified_dims and n != count:
                yield "false"
        if isinstance(place, int) and count == 1:
            continue
        if question.policy == "shardy" and isinstance(place, int):
            yield from _major_part(question, operand, (k, n, count))
        else:
            block = max(1, -(-operand.shape[place] // n)) if isinstance(place, int) else 1
            for d, device in enumerate(question.devices):
                yield f"(= (* {block} id{k}_{d}) {offset_at(operand, place, device)})"


def _major_part(
    question: _Question, operand: Sharding, sizes: tuple[int, int, int]
) -> Iterator[str]:
    """Policy "shardy": the operand's partition id is the major part; no more axes than needed."""
    k, n, count = sizes
    place, _ = question.places[k]
    longest = max(parts(digits_at(s, place)) for s in question.pair)
    if n % count or n > longest:
        yield "false"
        return
    for d, device in enumerate(question.devices):
        held = offset_at(operand, place, device) // block_of(operand, place)
        yield f"(= (div id{k}_{d} {n // count}) {held})"


def _read(question: _Question, model: z3.ModelRef) -> Rows:
    """The numbers of a model, as a table."""
    values = {d.name(): model[d] for d in model.decls()}

    def number(name: str) -> int:
        return values[name].as_long() if name in values else 0

    keys: list[DimOrClass] = list(range(len(question.places)))
    size = len(question.devices)
    ids = {k: np.array([number(f"id{k}_{d}") for d in range(size)]) for k in keys}
    return Rows(size, {k: number(f"n{k}") for k in keys}, ids)


def _miscounted(found: Rows, group: tuple[int, ...]) -> tuple[tuple[int, ...], list[int]] | None:
    """The group with a tile that is not held by its share of devices; None if there is none."""
    counts = found.counts(group)
    wrong = np.flatnonzero(counts != found.size // len(counts))
    if not len(wrong):
        return None
    number, tile = int(wrong[0]), []
    for k in reversed(group):
        number, part = divmod(number, found.parts[k])
        tile.append(part)
    return group, tile[::-1]


def _tile_is_held(question: _Question, group: tuple[int, ...], tile: Sequence[int]) -> z3.BoolRef:
    """The definition at one tile: if there is such a tile, `rep` devices hold it."""
    there = z3.And([z3.Int(f"n{k}") > part for k, part in zip(group, tile, strict=True)])
    held = [
        z3.And([z3.Int(f"id{k}_{d}") == part for k, part in zip(group, tile, strict=True)])
        for d in range(len(question.devices))
    ]
    count = z3.Sum([z3.If(h, 1, 0) for h in held])
    return z3.Implies(there, count == z3.Int(question.share(group)))


def _failure(question: _Question, solver: z3.Solver, literals: Sequence[z3.BoolRef]) -> Failure:
    """The place on which no model agrees with the operands; else the places are not balanced."""
    for (place, _), literal in zip(question.places, literals, strict=True):
        if solver.check(literal) == z3.unsat:
            if not isinstance(place, int):
                return Failure("class", (place,))
            split = [s for s in question.pair if digits_at(s, place)]
            return Failure("closed" if len(split) == 1 else "offset", (place,))
    return _clash(question)


def _clash(question: _Question) -> Failure:
    """Two places that are not balanced, one of each operand, if there are; else all together."""
    first, second = (rows_of(s) for s in question.pair)
    for here, there in itertools.product(first.parts, second.parts):
        counts = {here: first.parts[here], there: second.parts[there]}
        ids = {here: first.ids[here], there: second.ids[there]}
        if here != there and not Rows(first.size, counts, ids).is_balanced((here, there)):
            return Failure("overlap", (here, there))
    return Failure("joint", tuple(dict.fromkeys(place for place, _ in question.places)))


def _sharding(question: _Question, found: Rows) -> Sharding:
    """The sharding that a table is, its digits in the operands' words where they are theirs."""
    first, second = question.pair
    table = _named(question, found)
    if first.mesh.device_ids != second.mesh.device_ids:
        return from_table(table, first, second)
    kept = (place for place in table.parts if place != "replicated")
    dims = on_mesh(table.only(kept), first, first.mesh)
    if dims is None:  # digits of several meshes whose places are in no order
        return from_table(table, first, second)
    rows = zip(first.dims, second.dims, dims.canonical_dims, strict=True)
    words = (next((d for d in (a, b) if canonical(d) == held), held) for a, b, held in rows)
    return united(first, second, tuple(words))


def _named(question: _Question, found: Rows) -> Rows:
    names: Mapping[int, DimOrClass] = {
        k: place for k, (place, _) in enumerate(question.places) if found.parts[k] > 1
    }
    return Rows(
        found.size,
        {place: found.parts[k] for k, place in names.items()},
        {place: found.ids[k] for k, place in names.items()},
    )
