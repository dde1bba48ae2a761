"""The definition of a merge, solved by z3 without the closed form.

A sharding is a number of partitions `n` per place and a partition id per place and device, such
that all `prod(n)` tiles are on equally many devices (GSPMD, arXiv:2105.04663, section 3.5). It
merges two others if its offsets equal theirs, on every device and dimension that they split:

    exists n, id:   id[i, d] * ceil(D_i / n_i) = offset(S_k, d, i)   wherever S_k splits i
                    for all tiles t:   #{d : id[., d] = t} = N / prod(n)

The second line is added lazily. The solver finds a model of the first line, and the devices of each
tile are counted. For a tile with too many or too few devices, the second line is added. The search
ends if there is no such tile (the model is the merged sharding) or no model (there is no merge). It
uses neither digits nor theorems about them.
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
from shardalg.merge.merged import Rows, from_table, merged_sharding, on_mesh, rows_of
from shardalg.merge.places import DimOrClass, block_of, digits_at, offset_at
from shardalg.merge.verdict import Failure, Verdict

TIMEOUT_S = 60.0
"""Time limit of a call of the solver. Each tile with a wrong number of devices adds a call."""
Unknown = tuple[DimOrClass, int | None]
"""A place of the unknown sharding: a dimension, a class, or the replicated class of one operand."""


@dataclass(frozen=True)
class _Question:
    """The question whether two shardings merge, in the form that is given to the solver.

    Attributes:
      pair: the two shardings.
      policy: the rule for merges, "gspmd" or "shardy".
      places: the dimensions, and the classes of axes such as "unreduced", that at least one of the
        two splits.
      devices: ids of the devices.
    """

    pair: tuple[Sharding, Sharding]
    policy: str
    places: tuple[Unknown, ...]
    devices: tuple[int, ...]

    @property
    def divisors(self) -> tuple[int, ...]:
        """The divisors of the number of devices: a dimension has one of them as its parts."""
        size = len(self.devices)
        return tuple(n for n in range(1, size + 1) if size % n == 0)

    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Return the groups of places that are balanced together.

        In a group, each combination of partition ids must be on equally many devices. A place is a
        dimension, or a class of axes such as "unreduced"; a group has its number in `places`. There
        is one group for each operand with explicitly replicated axes, or one group in all.
        """
        # `owner` is the operand whose replicated axes a place stands for, None for any other place.
        # Replicated axes of the two operands may overlap, so they are not balanced with each other.
        shared = tuple(k for k, (_, owner) in enumerate(self.places) if owner is None)
        replicated_places = [k for k, (_, owner) in enumerate(self.places) if owner is not None]
        return tuple((*shared, k) for k in replicated_places) or (shared,)

    def share(self, group: tuple[int, ...]) -> str:
        """Return the name of an unknown of the solver: the number of devices that hold a tile.

        Args:
          group: the numbers of the places (dimensions and classes) that form the tile.
        """
        return f"rep{self.groups().index(group)}"


def search(first: Sharding, second: Sharding, policy: str) -> Verdict:
    """Return the verdict on a merge: the coarsest sharding that agrees with both, by search.

    Raises:
      ProofError: the solver gave up.
    """
    pair = (first, second)
    # One place per dimension, for "unreduced" and for "manual". The replicated axes of each operand
    # are a place of their own, because those of the two operands may overlap.
    places: list[Unknown] = [
        (place, None)
        for place in (*range(len(first.shape)), *CLASSES[:2])
        if any(digits_at(s, place) for s in pair)
    ]
    places += [("replicated", k) for k, s in enumerate(pair) if digits_at(s, "replicated")]
    question = _Question(pair, policy, tuple(places), tuple(sorted(first.mesh.order)))

    solver = z3.Solver()
    solver.set("timeout", int(TIMEOUT_S * 1000))
    solver.from_string("\n".join(_script(question)))
    # The literals are assumptions, so that `_failure` can test the places one by one.
    literals = [z3.Bool(f"agree{k}") for k in range(len(question.places))]
    while (answer := solver.check(*literals)) == z3.sat:
        table = _read(question, solver.model())
        bad_tile = next(filter(None, (_miscounted(table, g) for g in question.groups())), None)
        if bad_tile is None:
            merged = _sharding(question, table)
            return Verdict("merge", question.pair, policy, merged)
        # Conditions on all tiles would be too many, so each round adds one that the last model
        # violates. The loop ends, because there are finitely many tiles.
        solver.add(_tile_count(question, *bad_tile))
    if answer == z3.unknown:
        raise ProofError(
            f"z3 gave up on the merge of {first!r} and {second!r}: {solver.reason_unknown()}. "
            "Decide it by the closed form: decide='closed_form'."
        )
    return Verdict("merge", question.pair, policy, None, _failure(question, solver, literals))


def _script(question: _Question) -> Iterator[str]:
    """Yield the SMT-LIB text of a merge question, except the conditions on devices per tile.

    The text declares the partition ids of the merged sharding as unknowns. It says how many
    partitions are possible, and that the ids agree with those of both operands.
    """
    # For place k: its number of partitions is n{k}, and its partition id on device d is id{k}_{d}.
    # agree{k}, which demands that it agrees with the operands, is an assumption of its own, so that
    # places can be tested one by one if there is no merge (`_failure`).
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
    """Yield SMT-LIB text for each way to choose numbers of partitions along some dimensions.

    The product of the numbers must divide the number of devices. Each text also states the
    quotient: the number of devices that have the same tile.

    Args:
      group: the numbers of the dimensions, or of classes of axes such as "unreduced".
    """
    # Tiles are on equally many devices only if their number divides the number of devices.
    divisors = question.divisors
    rows: list[tuple[tuple[int, ...], int]] = [((), len(question.devices))]
    for _ in group:
        rows = [((*ns, n), rest // n) for ns, rest in rows for n in divisors if rest % n == 0]
    for ns, rest in rows:
        chosen = " ".join(f"(= n{k} {n})" for k, n in zip(group, ns, strict=True))
        yield f"(and true {chosen} (= {question.share(group)} {rest}))"


def _agreement(question: _Question, k: int, n: int) -> Iterator[str]:
    """Yield the conditions under which a merge with `n` partitions agrees with both operands.

    In each operand that splits the dimension or class, a device's block must start at the same
    element (its offset) as in the merge. Other operands have no condition on offsets.

    Args:
      k: the number of the dimension or class in `question.places`.
    """
    place, owner = question.places[k]
    for number, operand in enumerate(question.pair):
        if owner is not None and owner != number:
            continue
        count = parts(digits_at(operand, place))
        # A dimension is closed in an operand that leaves only others open, so that no merge may
        # split it further.
        if isinstance(place, int) and operand.unspecified_dims:
            if place not in operand.unspecified_dims and n != count:
                yield "false"
        # An operand fixes no offsets on a dimension that it does not split. A class is different: a
        # partial sum in one operand only is another value, so the ids must be equal.
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
    """Yield the conditions that the operand's partition id is the major part: policy "shardy".

    For example, if the result has n = 8 partitions and the operand 2, then `id // 4` must be the
    operand's partition id on every device.

    Args:
      sizes: the number of the dimension in `question.places`, its number of partitions in the
        result, and the one in the operand.
    """
    k, n, count = sizes
    place, _ = question.places[k]
    # The coarsest sharding has no more partitions than the operand with the longer axes.
    longest = max(parts(digits_at(s, place)) for s in question.pair)
    if n % count or n > longest:
        yield "false"
        return
    for d, device in enumerate(question.devices):
        number = offset_at(operand, place, device) // block_of(operand, place)
        yield f"(= (div id{k}_{d} {n // count}) {number})"


def _read(question: _Question, model: z3.ModelRef) -> Rows:
    """Return the partition ids in a model of the solver as a table.

    The table has a dimension or class by its number in `question.places`.
    """
    values = {d.name(): model[d] for d in model.decls()}

    # A model leaves out an unknown that may have any value.
    def number(name: str) -> int:
        """Return the value of an unknown, 0 if the model leaves it out."""
        return values[name].as_long() if name in values else 0

    numbers: list[DimOrClass] = list(range(len(question.places)))
    size = len(question.devices)
    ids = {k: np.array([number(f"id{k}_{d}") for d in range(size)]) for k in numbers}
    return Rows(size, {k: number(f"n{k}") for k in numbers}, ids)


def _miscounted(found: Rows, group: tuple[int, ...]) -> tuple[tuple[int, ...], list[int]] | None:
    """Return (group, tile) if a tile is on a wrong number of devices, else None.

    A tile is a combination of partition ids, one for each place of the group.

    Args:
      found: the partition id of each device, per place.
      group: numbers of the places that have to be balanced together.
    """
    counts = found.counts(group)
    wrong = np.flatnonzero(counts != found.size // len(counts))
    if not len(wrong):
        return None
    # Tiles are numbered in row-major order, so each remainder is the id of the last place left.
    number, tile = int(wrong[0]), []
    for k in reversed(group):
        number, part = divmod(number, found.parts[k])
        tile.append(part)
    return group, tile[::-1]


def _tile_count(question: _Question, group: tuple[int, ...], tile: Sequence[int]) -> z3.BoolRef:
    """Return the condition that one tile, if it exists, is on the right number of devices.

    Args:
      group: numbers of the places (dimensions and classes) that form the tile.
      tile: the partition id along each of these places.
    """
    # The unknowns of the solver: the parts of each place (n), the partition id of each device along
    # it (id), and the right number of devices per tile (`share`).
    exists = z3.And([z3.Int(f"n{k}") > part for k, part in zip(group, tile, strict=True)])
    holds = [
        z3.And([z3.Int(f"id{k}_{d}") == part for k, part in zip(group, tile, strict=True)])
        for d in range(len(question.devices))
    ]
    count = z3.Sum([z3.If(h, 1, 0) for h in holds])
    return z3.Implies(exists, count == z3.Int(question.share(group)))


def _failure(question: _Question, solver: z3.Solver, literals: Sequence[z3.BoolRef]) -> Failure:
    """Return the reason why two shardings have no merge.

    Args:
      literals: for each dimension or class, the assumption that the result has the operands'
        partition ids along it.
    """
    # The fewer places a failure names, the more it helps. First, a place on which alone no sharding
    # agrees with both operands.
    for (place, _), literal in zip(question.places, literals, strict=True):
        if solver.check(literal) == z3.unsat:
            # A place that is no dimension is a class, such as "unreduced". If one operand alone
            # splits the dimension, the other one is closed there: completion may not refine it.
            if not isinstance(place, int):
                return Failure("class", (place,))
            split = [s for s in question.pair if digits_at(s, place)]
            return Failure("closed" if len(split) == 1 else "offset", (place,))
    # A pair of places, one of each operand, explains the failure better than all places together,
    # so pairs are tried first.
    first, second = (rows_of(s) for s in question.pair)
    for here, there in itertools.product(first.parts, second.parts):
        counts = {here: first.parts[here], there: second.parts[there]}
        ids = {here: first.ids[here], there: second.ids[there]}
        if here != there and not Rows(first.size, counts, ids).is_balanced((here, there)):
            return Failure("overlap", (here, there))
    return Failure("joint", tuple(dict.fromkeys(place for place, _ in question.places)))


def _sharding(question: _Question, found: Rows) -> Sharding:
    """Return the sharding whose partition ids a table gives.

    Where an operand has equal digits, its axes are used, so that the result has the user's axis
    names.
    """
    first, second = question.pair
    names: Mapping[int, DimOrClass] = {
        k: place for k, (place, _) in enumerate(question.places) if found.parts[k] > 1
    }
    # `found` has the number of a place as its key, and `table` the place itself.
    table = Rows(
        found.size,
        {place: found.parts[k] for k, place in names.items()},
        {place: found.ids[k] for k, place in names.items()},
    )
    if first.mesh.device_ids != second.mesh.device_ids:
        return from_table(table, first, second)
    # `merged_sharding` takes the replicated axes from the operands, which name them.
    other_places = (place for place in table.parts if place != "replicated")
    dims = on_mesh(table.only(other_places), first, first.mesh)
    if dims is None:  # the digits belong to several meshes, and no order sorts them
        return from_table(table, first, second)
    digits_of_dims = zip(first.dims, second.dims, dims.canonical_dims, strict=True)
    digits = (
        next((d for d in (a, b) if canonical(d) == common), common)
        for a, b, common in digits_of_dims
    )
    return merged_sharding(first, second, tuple(digits))
