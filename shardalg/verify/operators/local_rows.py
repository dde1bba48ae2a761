"""An operator on its local operands: does it read, write and combine what its row says?

The row of the global operator is compared with the row of the operator that a device runs, which
the same table gives for the local shapes and parameters. With loop `l` in blocks of `B` over the
partition ids `p` of its digits, local iteration `x` is iteration `p*B + x`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.mesh import Mesh
from shardalg.graph.ir import Plain, Signature, ValueType
from shardalg.graph.ops.rule import PICK, SUM, Access, Rule, Symbol
from shardalg.merge.proofs.integers import (
    All,
    Either,
    Formula,
    IntegerClaim,
    Not,
    Number,
    equal,
    implies,
    less,
    number,
    numerator,
    within,
)
from shardalg.verify.contents import (
    Contents,
    DimensionContents,
    Fill,
    as_set,
    fill_number,
    partition_number,
)
from shardalg.verify.report import Decided

TRUE = All(())
Stated = tuple[str, Decided | IntegerClaim]


@dataclass(frozen=True)
class LocalOperator:
    """An operator as a device runs it, by one row.

    Attributes:
      rule, local: rows of the global operator and of the local one.
      loops: digits of every sharded loop.
      wider: (loop, first iteration) where a device runs more than the block that it keeps.
      dtypes: of the operands.
      firsts: per operand the first one that is the same value.
    """

    mesh: Mesh
    rule: Rule
    local: Rule
    loops: tuple[tuple[str, Digits], ...]
    wider: tuple[tuple[str, Number], ...] = ()
    dtypes: tuple[str, ...] = ()
    firsts: tuple[int, ...] = ()

    @cached_property
    def digits(self) -> dict[str, Digits]:
        """Digits per loop, () where it is not sharded."""
        split = dict(self.loops)
        return {name: split.get(name, ()) for name, _ in self.rule.loops}

    @cached_property
    def blocks(self) -> dict[str, int]:
        """Iterations of every loop that one device keeps: `ceil(extent / parts)`."""
        return {n: -(-extent // parts(self.digits[n])) for n, extent in self.rule.loops}

    @cached_property
    def places(self) -> dict[str, Number]:
        """Local iteration per loop: an unknown, 0 where it can be nothing else."""
        known = {n: Number.of(n) if run != 1 else Number() for n, run in self.runs.items()}
        return dict.fromkeys(self.local.extents, Number()) | known

    @cached_property
    def runs(self) -> dict[str, int]:
        """Iterations of every loop that one device runs."""
        return self.blocks | {n: self.local.extents[n] for n, _ in self.wider}

    @cached_property
    def starts(self) -> dict[str, Number]:
        """First iteration per loop: `p*B`, or before it."""
        own = {n: partition_number(self.digits[n]) * self.blocks[n] for n in self.blocks}
        return own | dict(self.wider)

    @cached_property
    def iterations(self) -> dict[str, Number]:
        """Global iteration per loop: `start + x`."""
        return {n: self.starts[n] + self.places[n] for n in self.blocks}

    def exists(self, names: tuple[str, ...]) -> Formula:
        """The iteration is one of the global operator, and of those that the device keeps."""
        wider = [n for n, _ in self.wider if n in names]
        uneven = [n for n in names if self.blocks[n] * parts(self.digits[n]) > self.rule.extents[n]]
        below = [less(self.iterations[n], self.rule.extents[n]) for n in uneven]
        return All((*below, *(within(self.iterations[n], *self.kept(n)) for n in wider)))

    def kept(self, loop: str) -> tuple[Number, Number]:
        """Iterations of a loop that end up in a device's block."""
        first = partition_number(self.digits[loop]) * self.blocks[loop]
        return first, first + self.blocks[loop]

    def unknowns(self, names: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
        """Ranges of the local iterations."""
        return tuple((n, self.runs[n]) for n in names if self.runs[n] != 1)

    def claim(self, words: str, goal: Formula, names: tuple[str, ...]) -> IntegerClaim:
        """A claim about the local iterations of some loops."""
        return IntegerClaim(words, self.mesh, goal, self.unknowns(names))


def local_signature(
    signature: Signature, params: Mapping[str, Plain], shapes: tuple[tuple[int, ...], ...]
) -> Signature:
    """The operator that a device runs: other shapes, some other parameters."""
    types = (*signature.operands, *signature.results)
    local = tuple(ValueType(shape, t.dtype) for shape, t in zip(shapes, types, strict=True))
    count = len(signature.operands)
    merged = tuple((dict(signature.params) | dict(params)).items())
    return Signature(signature.primitive, merged, local[:count], local[count:])


def emitted(run: LocalOperator) -> Iterator[Stated]:
    """The local operator runs over just the blocks of the loops."""
    extents = run.local.extents
    # A group of its own is no group: loops of one iteration come and go.
    loops = dict.fromkeys(extents, 1) | run.runs
    wrong = [n for n, block in loops.items() if extents.get(n, 1) != block]
    words = ", ".join(f"{n} in blocks of {block}" for n, block in run.runs.items())
    alike = run.rule.prefix == run.local.prefix and run.rule.combine == run.local.combine
    alike = alike and len(run.rule.terms) == len(run.local.terms)
    other = {n for n in {*run.rule.reduced} ^ {*run.local.reduced} if loops[n] != 1}
    right = not wrong and alike and not other
    yield "emitted", Decided(f"the local operator runs over {words}", right)


def reads(run: LocalOperator, held: Mapping[int, Contents]) -> Iterator[Stated]:
    """Every read of every operand is at its element, or at nothing on both sides."""
    for mine, theirs in _all_accesses(run.rule, run.local):
        rows = zip(mine.dims, theirs.dims, held[mine.operand].dims, strict=True)
        for dim, (index, local, found) in enumerate(rows):
            if not _is_whole(run, index, local, found):
                claim = _read(run, (mine.operand, dim), (index, local), found)
                yield "reads", _where_read(run, index, claim)


def _where_read(run: LocalOperator, index: Index, claim: IntegerClaim) -> IntegerClaim:
    """What a block holds matters where the iteration's other reads, one by one, are inside."""
    rule, names = run.rule, set(index.variables)
    if not rule.whole & names:
        return claim
    inside = [
        _element(other, run.iterations, rule.operand_shapes[a.operand][dim])[0]
        for term in rule.terms
        for a in term
        for dim, other in enumerate(a.dims)
        if {*other.variables} < names and not rule.whole & {*other.variables} and other.terms
    ]
    return replace(claim, goal=implies(All(tuple(inside)), claim.goal))


def _all_accesses(rule: Rule, local: Rule) -> Iterator[tuple[Access | Symbol, Access | Symbol]]:
    """Reads as data, as start value and as run-time numbers, with those of the local row."""
    yield from _accesses(rule, local)
    if isinstance(rule.init, Access) and isinstance(local.init, Access):
        yield rule.init, local.init
    # One place alone is read without an index.
    known = {symbol.name: symbol for symbol in local.symbols}
    yield from ((symbol, known.get(symbol.name, symbol)) for symbol in rule.symbols)


def _accesses(rule: Rule, local: Rule) -> Iterator[tuple[Access, Access]]:
    for mine, theirs in zip(rule.terms, local.terms, strict=True):
        yield from zip(mine, theirs, strict=True)


def _is_whole(run: LocalOperator, index: Index, local: Index, held: DimensionContents) -> bool:
    """Nothing depends on the device: the same read of the same elements."""
    split = any(run.digits.get(n) for n in index.variables)
    whole = (held.start, held.length, held.base) == (Number(), held.size, 1) and not held.wanted
    return not split and index == local and whole


def _read(
    run: LocalOperator, place: tuple[int, int], maps: tuple[Index, Index], held: DimensionContents
) -> IntegerClaim:
    index, local = maps
    operand, dim = place
    hit, element = _element(index, run.iterations, held.size)
    found, position = _element(local, run.places, held.length)
    here = All((found, _holds(held, position, element), held.exists(element)))
    empty = _is_empty(run, operand, held, found, position)
    goal = implies(run.exists(index.variables), All((implies(hit, here), implies(Not(hit), empty))))
    words = f"operand {operand}, dimension {dim}: {local} of the block is {index}"
    return run.claim(words, goal, index.variables)


def _element(index: Index, values: Mapping[str, Number], size: int) -> tuple[Formula, Number]:
    """(the read is inside a dimension of that size, where it reads)."""
    element = number(index, values)
    exact = equal(numerator(index, values) % index.div, 0) if index.exact else TRUE
    return All((exact, within(element, 0, size))), element


def _holds(held: DimensionContents, position: Number, element: Number) -> Formula:
    """The place holds the element."""
    return equal(position + held.start, element * held.base)


def _is_empty(
    run: LocalOperator, operand: int, held: DimensionContents, inside: Formula, position: Number
) -> Formula:
    """A local read that finds nothing: outside the buffer, or at a place that is filled."""
    at = position + held.start
    found: list[Formula] = [Not(inside)]
    if _absorbs(run, operand, held.gap):
        found.append(Not(equal(at % held.base, 0)))
    if _absorbs(run, operand, held.fill):
        found.append(All((equal(at % held.base, 0), Not(held.exists(at // held.base)))))
    return Either(tuple(found))


def _is_element(held: DimensionContents, position: Number) -> Formula:
    """The place holds an element that exists."""
    at = position + held.start
    return All((equal(at % held.base, 0), held.exists(at // held.base)))


def _absorbs(run: LocalOperator, operand: int, fill: Fill) -> bool:
    """Whether reading `fill` is as good as reading nothing."""
    filler, nothing = run.rule.filler(operand), run.rule.nothing(operand)
    if filler is not None or fill is None or fill == nothing:
        return fill == (nothing if filler is None else f"operand {run.firsts[filler]}")
    dtype = run.dtypes[operand] if run.dtypes else ""
    number = fill_number(fill, dtype) if dtype else None
    return number is not None and number == fill_number(nothing, dtype)


def padding(run: LocalOperator, held: Mapping[int, Contents]) -> Iterator[Stated]:
    """Iterations beyond an uneven loop that is combined add nothing.

    They read elements or filled places only, and of some factor a filled place.
    """
    rule = run.rule
    for name in _joined(rule):
        if run.blocks[name] * parts(run.digits[name]) > rule.extents[name]:
            for mine, theirs in zip(rule.terms, run.local.terms, strict=True):
                yield "padding", _beyond(run, name, list(zip(mine, theirs, strict=True)), held)


def _joined(rule: Rule) -> tuple[str, ...]:
    """Loops whose padding joins what is kept: a prefix meets its padding first from the end."""
    if rule.prefix is not None:
        return (rule.prefix[0],) if rule.prefix[1] else ()
    return rule.reduced if rule.combine != PICK else ()


def _beyond(
    run: LocalOperator, name: str, reads: list[tuple[Access, Access]], held: Mapping[int, Contents]
) -> IntegerClaim:
    names: dict[str, None] = {}
    known, absorbed = [], []
    for mine, theirs in reads:
        for dim, (index, local) in enumerate(zip(mine.dims, theirs.dims, strict=True)):
            if name in index.variables:
                found = held[mine.operand].dims[dim]
                read = _element(local, run.places, found.length)
                empty = _is_empty(run, mine.operand, found, *read)
                known.append(Either((empty, _is_element(found, read[1]))))
                absorbed.append(empty)
                names |= dict.fromkeys(index.variables)
    extent = run.rule.extents[name]
    beyond = Not(less(run.iterations[name], extent))
    words = f"iterations of {name} beyond {extent} read no garbage, and a filled place"
    # What goes into places of a result that do not exist is padding again, unless it is carried on.
    single = {index.loop for dims in run.rule.results for index in dims} & names.keys()
    single -= set(_joined(run.rule))
    kept = [less(run.iterations[n], run.rule.extents[n]) for n in names if n in single]
    goal = implies(All((beyond, *kept)), All((*known, Either(tuple(absorbed)))))
    return run.claim(words, goal, tuple(names))


def writes(run: LocalOperator, result: int, made: Contents) -> Iterator[Stated]:
    """Every iteration writes its element, and every element of the block is written."""
    pairs = zip(run.rule.results[result], run.local.results[result], made.dims, strict=True)
    for dim, (index, local, held) in enumerate(pairs):
        if _is_whole(run, index, local, held):
            continue
        element, place = number(index, run.iterations), number(local, run.places)
        right = All((equal(place + held.start, element), within(place, 0, held.length)))
        words = f"dimension {dim}: {index} is written at {local}"
        yield (
            "writes",
            run.claim(words, implies(run.exists(index.variables), right), index.variables),
        )
        yield "writes", _covered(run, dim, (index, local), held)


def _covered(
    run: LocalOperator, dim: int, maps: tuple[Index, Index], held: DimensionContents
) -> IntegerClaim:
    """The element at place `y` is written by the iteration whose loops are the digits of `y`."""
    index, local = maps
    y = Number.of("y")
    values = {name: (y // c) % run.local.extents[name] for name, c in local.terms}
    iterations = {n: run.starts[n] + values.get(n, Number()) for n in index.variables}
    valid = [less(iterations[n], run.rule.extents[n]) for n in index.variables]
    wanted = All(
        (equal(number(local, values), y), equal(number(index, iterations), held.start + y), *valid)
    )
    goal = implies(held.exists(held.start + y), wanted)
    words = f"dimension {dim}: every element of the block is written"
    return IntegerClaim(words, run.mesh, goal, (("y", held.length),))


def pending(run: LocalOperator, held: Mapping[int, Contents]) -> tuple[Digits, Decided]:
    """Digits along which results are partial, and whether the operands' partial sums may pass.

    Partial sums pass a linear operator: all its addends pending alike, or one factor alone.
    """
    rule = run.rule
    own = tuple(d for name in rule.reduced for d in run.digits[name])
    passed = {k: c.unreduced for k, c in held.items() if c.unreduced}
    words = "partial sums of the operands pass through a linear operator"
    if not passed:
        return as_set(own), Decided("no operand is partial", holds=True)
    added, factor = set(passed) == rule.addends, len(passed) == 1 and not set(passed) & rule.addends
    may = rule.combine == SUM and set(passed) <= rule.linear and (added or factor)
    alike = len(set(passed.values())) == 1 and all(
        c.combine in (SUM, PICK) for c in held.values() if c.unreduced
    )
    digits = next(iter(passed.values()))
    return as_set((*own, *digits)), Decided(words, may and alike)


def passed(run: LocalOperator, held: Mapping[int, Contents], *, finite: bool) -> Iterator[Stated]:
    """What lets partial sums pass where an infinity or an overflow would tell (`Rule.passes`)."""
    partial = {k for k, contents in held.items() if contents.unreduced}
    scaled = sorted(partial & run.rule.scaled)
    if scaled:
        words = f"operands {scaled} are finite, and no partial sum of them overflows, scaled or not"
        yield "finite", Decided(words, holds=finite, trusted=finite)


def row_major(run: LocalOperator, signature: Signature, local: Signature) -> Stated:
    """A reshape keeps the row-major order: both sides of the local one count alike."""
    order = signature.param("dimensions") or range(len(signature.operands[0].shape))
    read = [run.local.indices(0)[d] for d in order]
    sides = (
        (read, [local.operands[0].shape[d] for d in order]),
        (list(run.local.results[0]), list(local.results[0].shape)),
    )
    first, second = (_flat(maps, shape, run.places) for maps, shape in sides)
    words = "the local reshape keeps the row-major order"
    return "emitted", run.claim(words, equal(first, second), tuple(run.blocks))


def _flat(maps: list[Index], shape: list[int], places: Mapping[str, Number]) -> Number:
    total = Number()
    for k, index in enumerate(maps):
        total += number(index, places) * math.prod(shape[k + 1 :])
    return total


def by_blocks(rule: Rule, blocks: Mapping[str, int]) -> Rule:
    """The row with its loops cut to blocks: coefficients of nested loops shrink with them."""

    def shrunk(index: Index) -> Index:
        ordered = sorted(index.terms, key=lambda term: -term[1])
        terms = []
        for k, (name, coefficient) in enumerate(ordered):
            inner = math.prod(rule.extents[n] for n, _ in ordered[k + 1 :])
            local = math.prod(blocks[n] for n, _ in ordered[k + 1 :])
            terms.append((name, local if coefficient == inner else coefficient))
        return replace(index, terms=tuple(sorted(terms)))

    return replace(
        rule,
        loops=tuple((n, blocks[n]) for n, _ in rule.loops),
        terms=tuple(
            tuple(replace(a, dims=tuple(map(shrunk, a.dims))) for a in term) for term in rule.terms
        ),
        results=tuple(tuple(map(shrunk, dims)) for dims in rule.results),
    )
