"""Claims that an operator on local operands reads, writes and combines as its row says.

The row of the global operator is compared with the row of the operator that a device runs. The same
table gives both, the latter for local shapes and parameters. If a loop has blocks of `B` over the
partition ids `p` of its digits, local iteration `x` is global iteration `p*B + x`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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
    fill_number,
    partition_number,
    unordered_digits,
)
from shardalg.verify.report import Decided

TRUE = All(())
Goal = tuple[str, Decided | IntegerClaim]


@dataclass(frozen=True)
class LocalOperator:
    """An operator as a device runs it, by one row of RULES.

    Attributes:
      rule, local: the row for the global shapes, and the row for the shapes on a device.
      loops: (name, digits) of every sharded loop.
      wider: (loop, first iteration) where a device runs more than the block that it keeps.
      dtypes: item types of the operands.
      firsts: per operand, the first operand that is the same value.
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
        """Mesh digits along which each loop is sharded; () for a loop that is not sharded."""
        split = dict(self.loops)
        return {name: split.get(name, ()) for name, _ in self.rule.loops}

    @cached_property
    def blocks(self) -> dict[str, int]:
        """Number of iterations per loop that one device keeps: `ceil(extent / parts)`."""
        return {n: -(-extent // parts(self.digits[n])) for n, extent in self.rule.loops}

    @cached_property
    def places(self) -> dict[str, Number]:
        """For each loop, the number of the device's local iteration, as a term of the claims.

        The term is an unknown with the name of the loop. It is 0 if the device runs one iteration.
        """
        known = {n: Number.of(n) if run != 1 else Number() for n, run in self.runs.items()}
        return dict.fromkeys(self.local.extents, Number()) | known

    @cached_property
    def runs(self) -> dict[str, int]:
        """Number of iterations per loop that one device runs."""
        return self.blocks | {n: self.local.extents[n] for n, _ in self.wider}

    @cached_property
    def starts(self) -> dict[str, Number]:
        """First global iteration that a device runs, per loop.

        It is `p*B` for blocks of `B` iterations, or an earlier one for a loop with a margin.
        """
        block_starts = {n: partition_number(self.digits[n]) * self.blocks[n] for n in self.blocks}
        return block_starts | dict(self.wider)

    @cached_property
    def iterations(self) -> dict[str, Number]:
        """Global iteration per loop: the device's first one plus the local iteration."""
        return {n: self.starts[n] + self.places[n] for n in self.blocks}

    def exists(self, names: tuple[str, ...]) -> Formula:
        """Return the formula that the iteration of the named loops exists, and the device keeps it.

        It does not exist if it is padding of an uneven block. It is not kept if it is in a margin.
        """
        wider = [n for n, _ in self.wider if n in names]
        uneven = [n for n in names if self.blocks[n] * parts(self.digits[n]) > self.rule.extents[n]]
        below = [less(self.iterations[n], self.rule.extents[n]) for n in uneven]
        return All((*below, *(within(self.iterations[n], *self.kept(n)) for n in wider)))

    def kept(self, loop: str) -> tuple[Number, Number]:
        """Return (first, end) of a loop's iterations that belong to the device's block."""
        first = partition_number(self.digits[loop]) * self.blocks[loop]
        return first, first + self.blocks[loop]

    def unknowns(self, names: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
        """Return (loop, number of iterations) of the named loops: the unknowns of a claim."""
        return tuple((n, self.runs[n]) for n in names if self.runs[n] != 1)

    def claim(self, words: str, goal: Formula, names: tuple[str, ...]) -> IntegerClaim:
        """Return the claim that `goal` is true for all local iterations of the loops `names`."""
        return IntegerClaim(words, self.mesh, goal, self.unknowns(names))


def local_signature(
    signature: Signature, params: Mapping[str, Plain], shapes: tuple[tuple[int, ...], ...]
) -> Signature:
    """Return the signature of the operator that a device runs.

    Args:
      signature: the global operator.
      params: the parameters with other values on a device.
      shapes: the local shapes of the operands, then of the results.
    """
    types = (*signature.operands, *signature.results)
    local = tuple(ValueType(shape, t.dtype) for shape, t in zip(shapes, types, strict=True))
    count = len(signature.operands)
    merged = tuple((dict(signature.params) | dict(params)).items())
    return Signature(signature.primitive, merged, local[:count], local[count:])


def extent_claims(run: LocalOperator) -> Iterator[Goal]:
    """Yield the claim that a device's operator has the global operator's loops, cut to blocks.

    The way to combine iterations must be the same: the same combination, as many addends (`terms`),
    and the same loop of a cumulative operator (`prefix`).
    """
    extents = run.local.extents
    # A loop of one iteration may be missing in either row, for example a group of size one.
    loops = dict.fromkeys(extents, 1) | run.runs
    wrong = [n for n, block in loops.items() if extents.get(n, 1) != block]
    words = ", ".join(f"{n} in blocks of {block}" for n, block in run.runs.items())
    same_combination = run.rule.prefix == run.local.prefix and run.rule.combine == run.local.combine
    same_combination = same_combination and len(run.rule.terms) == len(run.local.terms)
    # A loop that only one of the rows combines changes the result, unless it is one iteration.
    other = {n for n in {*run.rule.reduced} ^ {*run.local.reduced} if loops[n] != 1}
    right = not wrong and same_combination and not other
    yield "emitted", Decided(f"the local operator runs over {words}", right)


def read_claims(run: LocalOperator, contents: Mapping[int, Contents]) -> Iterator[Goal]:
    """Yield the claims that a device reads the elements that the global operator reads.

    Where the global operator reads outside of its operand, the device must find nothing, too.

    Args:
      contents: per operand, the elements that the device holds.
    """
    for mine, theirs in _all_accesses(run.rule, run.local):
        # Per dimension: the global index, the device's index, and the elements that it holds.
        rows = zip(mine.dims, theirs.dims, contents[mine.operand].dims, strict=True)
        for dim, (index, local, found) in enumerate(rows):
            # A dimension that devices read exactly as the global operator does needs no proof.
            if not _is_device_independent(run, index, local, found):
                claim = _read_claim(run, (mine.operand, dim), (index, local), found)
                yield "reads", _restrict_to_existing(run, index, claim)


def _restrict_to_existing(run: LocalOperator, index: Index, claim: IntegerClaim) -> IntegerClaim:
    """Restrict a claim about a read to the iterations that exist.

    An iteration does not exist if another read of it is outside of its operand. This is only needed
    for reads with a loop that must be whole; other claims are returned unchanged.

    Args:
      index: the index of the read that the claim is about.
    """
    rule, names = run.rule, set(index.variables)
    if not rule.whole & names:
        return claim
    # A read with fewer loops than this one, none of them whole, decides whether the iteration
    # exists. A read with the same loops would be compared with itself.
    exists: list[Formula] = []
    for access in (access for term in rule.terms for access in term):
        for dim, other in enumerate(access.dims):
            loops = {*other.variables}
            if other.terms and loops < names and not rule.whole & loops:
                size = rule.operand_shapes[access.operand][dim]
                inside, _ = _element(other, run.iterations, size)
                exists.append(inside)
    return replace(claim, goal=implies(All(tuple(exists)), claim.goal))


def _all_accesses(rule: Rule, local: Rule) -> Iterator[tuple[Access | Symbol, Access | Symbol]]:
    """Yield pairs of reads: of the global row, and the same read of the device's row.

    The reads are of data, of a start value, and of run-time indices.
    """
    for mine, theirs in zip(rule.terms, local.terms, strict=True):
        yield from zip(mine, theirs, strict=True)
    if isinstance(rule.init, Access) and isinstance(local.init, Access):
        yield rule.init, local.init
    # A local row of one place reads it without an index, so the symbol is missing there.
    known = {symbol.name: symbol for symbol in local.symbols}
    yield from ((symbol, known.get(symbol.name, symbol)) for symbol in rule.symbols)


def _is_device_independent(
    run: LocalOperator, index: Index, local: Index, span: DimensionContents
) -> bool:
    """Return whether a device reads, along one dimension, exactly as the global operator does.

    Its loops are then not sharded, both indices are equal, and the operand's dimension is whole.
    """
    # Most dimensions are of this kind. The comparison saves a proof by z3 for each.
    split = any(run.digits.get(n) for n in index.variables)
    whole = (span.start, span.length, span.base) == (Number(), span.size, 1) and not span.wanted
    return not split and index == local and whole


def _read_claim(
    run: LocalOperator, place: tuple[int, int], maps: tuple[Index, Index], span: DimensionContents
) -> IntegerClaim:
    """Return the claim that a local read gets the same element as the global read.

    If the global read is outside of the operand, the local read must be outside as well, or get a
    neutral element.

    Args:
      place: (operand number, dimension) that is read.
      maps: the index expressions of this dimension in the global row and in the local row.
      span: the elements of the operand's dimension that the device holds.
    """
    index, local = maps
    operand, dim = place
    is_inside, element = _element(index, run.iterations, span.size)
    is_local, position = _element(local, run.places, span.length)
    # Element e of the dimension is at place e * base, where base is its dilation.
    same_element = equal(position + span.start, element * span.base)
    here = All((is_local, same_element, span.exists(element)))
    empty = _is_empty(run, operand, span, is_local, position)
    # Padding iterations may read anything here: `padding_claims` are about them.
    goal = implies(
        run.exists(index.variables), All((implies(is_inside, here), implies(Not(is_inside), empty)))
    )
    words = f"operand {operand}, dimension {dim}: {local} of the block is {index}"
    return run.claim(words, goal, index.variables)


def _element(index: Index, values: Mapping[str, Number], size: int) -> tuple[Formula, Number]:
    """Return the formula that an index is inside a dimension, and the element that it reads.

    Args:
      values: the iteration of each loop in the index; size: the elements of the dimension.
    """
    element = number(index, values)
    exact = equal(numerator(index, values) % index.div, 0) if index.exact else TRUE
    return All((exact, within(element, 0, size))), element


def _is_empty(
    run: LocalOperator, operand: int, span: DimensionContents, inside: Formula, position: Number
) -> Formula:
    """Return the formula that a device's read finds nothing.

    The read is outside of the buffer, or finds a number that is neutral for the operator, in
    padding or in a gap between dilated elements.

    Args:
      inside: the formula that the read is inside the buffer; position: the place that it reads.
    """
    at = position + span.start
    # Element e is at the places with at = e * base. Other places are gaps with the number
    # `span.gap`, and places of elements that do not exist have the number `span.fill`.
    found: list[Formula] = [Not(inside)]
    if _is_neutral(run, operand, span.gap):
        found.append(Not(equal(at % span.base, 0)))
    if _is_neutral(run, operand, span.fill):
        found.append(All((equal(at % span.base, 0), Not(span.exists(at // span.base)))))
    return Either(tuple(found))


def _is_neutral(run: LocalOperator, operand: int, fill: Fill) -> bool:
    """Return whether a number in an operand's padding has the same effect as no element there.

    For example, 0 is neutral for a sum, and -inf for a maximum.

    Args:
      run: the operator on one device.
      operand: the operand's number.
      fill: the number in its padding, as a value or by name; None if it is unknown.
    """
    # A pad, for example, fills missing elements with an operand's number. Then only this number is
    # neutral. It is named by the first operand that is the same value (`firsts`).
    fill_operand, identity = run.rule.filler(operand), run.rule.nothing(operand)
    if fill_operand is not None or fill is None or fill == identity:
        return fill == (identity if fill_operand is None else f"operand {run.firsts[fill_operand]}")
    # The fill and the identity may be named differently, so compare the numbers in this type.
    dtype = run.dtypes[operand] if run.dtypes else ""
    number = fill_number(fill, dtype) if dtype else None
    return number is not None and number == fill_number(identity, dtype)


def padding_claims(run: LocalOperator, contents: Mapping[int, Contents]) -> Iterator[Goal]:
    """Yield the claims that padding iterations of combined (for example, summed) loops add nothing.

    A loop whose blocks are uneven has iterations beyond its extent on the last devices. They may
    read only elements and known padding, and at least one factor must be neutral padding.
    """
    rule = run.rule
    for name in _combined_loops(rule):
        # The blocks of an even loop end with the loop, so no device runs a padding iteration.
        if run.blocks[name] * parts(run.digits[name]) > rule.extents[name]:
            for mine, theirs in zip(rule.terms, run.local.terms, strict=True):
                yield (
                    "padding",
                    _padding_claim(run, name, list(zip(mine, theirs, strict=True)), contents),
                )


def _combined_loops(rule: Rule) -> tuple[str, ...]:
    """Return the loops whose padding iterations would change results that are kept.

    They are the reduced loops. In a prefix (a cumulative sum), padding is behind the last element,
    so it changes elements only if the prefix runs in reverse.
    """
    if rule.prefix is not None:
        return (rule.prefix[0],) if rule.prefix[1] else ()
    return rule.reduced if rule.combine != PICK else ()


def _padding_claim(
    run: LocalOperator,
    name: str,
    factors: list[tuple[Access, Access]],
    contents: Mapping[int, Contents],
) -> IntegerClaim:
    """Return the claim that one product of reads adds nothing in the padding iterations of a loop.

    Args:
      name: the loop; factors: per factor, its read in the global row and in the local row.
    """
    # `known`: every read finds an element or a neutral number, and no garbage. `absorbed`: the
    # reads that find a neutral number. One of these makes the product neutral, as 0 does.
    names: dict[str, None] = {}
    known, absorbed = [], []
    for mine, theirs in factors:
        for dim, (index, local) in enumerate(zip(mine.dims, theirs.dims, strict=True)):
            if name in index.variables:
                held = contents[mine.operand].dims[dim]
                inside, place = _element(local, run.places, held.length)
                is_neutral = _is_empty(run, mine.operand, held, inside, place)
                global_place = place + held.start
                is_element = All(
                    (equal(global_place % held.base, 0), held.exists(global_place // held.base))
                )
                known.append(Either((is_neutral, is_element)))
                absorbed.append(is_neutral)
                names |= dict.fromkeys(index.variables)
    extent = run.rule.extents[name]
    beyond = Not(less(run.iterations[name], extent))
    words = f"iterations of {name} beyond {extent} read no garbage, and a filled place"
    # A place of the result without an element may hold anything. The claim is therefore restricted
    # to existing iterations of the result's loops, except a prefix, which carries numbers on.
    result_loops = {index.loop for dims in run.rule.results for index in dims} & names.keys()
    result_loops -= set(_combined_loops(run.rule))
    in_range = [less(run.iterations[n], run.rule.extents[n]) for n in names if n in result_loops]
    goal = implies(All((beyond, *in_range)), All((*known, Either(tuple(absorbed)))))
    return run.claim(words, goal, tuple(names))


def write_claims(run: LocalOperator, nth: int, result: Contents) -> Iterator[Goal]:
    """Yield the claims that a device writes its block of result `nth` completely and correctly.

    Each iteration must write the element that the global row names, and each element must be
    written by some iteration.

    Args:
      result: the elements that the device holds of the result.
    """
    pairs = zip(run.rule.results[nth], run.local.results[nth], result.dims, strict=True)
    for dim, (index, local, span) in enumerate(pairs):
        if _is_device_independent(run, index, local, span):
            continue
        # Both claims are needed: an iteration could write a wrong place, and an element could be
        # written by no iteration (`_coverage_claim`).
        element, place = number(index, run.iterations), number(local, run.places)
        is_right = All((equal(place + span.start, element), within(place, 0, span.length)))
        words = f"dimension {dim}: {index} is written at {local}"
        yield (
            "writes",
            run.claim(words, implies(run.exists(index.variables), is_right), index.variables),
        )
        yield "writes", _coverage_claim(run, dim, (index, local), span)


def _coverage_claim(
    run: LocalOperator, dim: int, maps: tuple[Index, Index], span: DimensionContents
) -> IntegerClaim:
    """Return the claim that every place `y` of a block of a result's dimension is written.

    A formula gives the iteration that writes it, so that the claim needs no "there is".

    The place is a mixed-radix number whose digits are the iterations of the dimension's loops: for
    the index `4*i + j`, place `y` is written by `i = y // 4` and `j = y % 4`.

    Args:
      maps: the index expressions of this dimension in the global row and in the local row.
    """
    index, local = maps
    y = Number.of("y")
    # The coefficient `c` of a loop is the product of the extents of all later loops, so this is the
    # loop's digit of `y`.
    values = {name: (y // c) % run.local.extents[name] for name, c in local.terms}
    iterations = {n: run.starts[n] + values.get(n, Number()) for n in index.variables}
    valid = [less(iterations[n], run.rule.extents[n]) for n in index.variables]
    wanted = All(
        (equal(number(local, values), y), equal(number(index, iterations), span.start + y), *valid)
    )
    goal = implies(span.exists(span.start + y), wanted)
    words = f"dimension {dim}: every element of the block is written"
    return IntegerClaim(words, run.mesh, goal, (("y", span.length),))


def pending_digits(run: LocalOperator, contents: Mapping[int, Contents]) -> tuple[Digits, Decided]:
    """Return the digits along which results are partial sums, and the claim that this is right.

    Results are partial along the digits of sharded reduced loops, and where operands are partial.
    An operator may read partial operands if it is linear, and if all its addends are partial along
    the same digits, or one factor alone is partial.
    """
    #   sum_p(x_p) + sum_p(y_p) = sum_p(x_p + y_p)       addends: all pending along the same digits
    #   sum_p(x_p) * y = sum_p(x_p * y)                  factors: one pending, the others complete
    rule = run.rule
    reduced_digits = tuple(d for name in rule.reduced for d in run.digits[name])
    partial = {k: c.unreduced for k, c in contents.items() if c.unreduced}
    words = "partial sums of the operands pass through a linear operator"
    if not partial:
        return unordered_digits(reduced_digits), Decided("no operand is partial", holds=True)
    # A sum of addends is linear in all of them together, a product in one factor at a time.
    added, factor = (
        set(partial) == rule.addends,
        len(partial) == 1 and not set(partial) & rule.addends,
    )
    may = rule.combine == SUM and set(partial) <= rule.linear and (added or factor)
    same_combination = len(set(partial.values())) == 1 and all(
        c.combine in (SUM, PICK) for c in contents.values() if c.unreduced
    )
    digits = next(iter(partial.values()))
    return unordered_digits((*reduced_digits, *digits)), Decided(words, may and same_combination)


def finite_claims(
    run: LocalOperator, contents: Mapping[int, Contents], *, finite: bool
) -> Iterator[Goal]:
    """Yield the assumption that numbers are finite, if partial sums are multiplied or divided.

    `s * (a + b)` equals `s*a + s*b` for finite numbers. An infinity or an overflow of one term
    would show the difference.

    Args:
      finite: whether the user allows the assumption; otherwise the claim fails.
    """
    partial = {k for k, operand in contents.items() if operand.unreduced}
    scaled = sorted(partial & run.rule.scaled)
    if scaled:
        words = f"operands {scaled} are finite, and their partial sums do not overflow when scaled"
        yield "finite", Decided(words, holds=finite, trusted=finite)


def row_major_claim(run: LocalOperator, signature: Signature, local: Signature) -> Goal:
    """Return the claim that a device's reshape moves its elements as the global reshape does.

    In each iteration, the operand's element and the result's element must have the same row-major
    number within the device's blocks.

    Args:
      run: the reshape on blocks; signature: the global one; local: the device's.
    """

    def row_major_number(indices: Sequence[Index], shape: Sequence[int]) -> Number:
        """Return the row-major number of the element with these indices in an array of `shape`."""
        total = Number()
        for dim, index in enumerate(indices):
            total = total + number(index, run.places) * math.prod(shape[dim + 1 :])
        return total

    # `lax.reshape` with `dimensions` transposes its operand first.
    order = signature.param("dimensions") or range(len(signature.operands[0].shape))
    read = row_major_number(
        [run.local.indices(0)[d] for d in order], [local.operands[0].shape[d] for d in order]
    )
    written = row_major_number(run.local.results[0], local.results[0].shape)
    words = "the local reshape keeps the row-major order"
    return "emitted", run.claim(words, equal(read, written), tuple(run.blocks))


def rule_of_blocks(rule: Rule, blocks: Mapping[str, int]) -> Rule:
    """Return a row of RULES in which each loop has the number of iterations of one device.

    In a nested index such as `4*i + j`, the coefficient 4 is the extent of j. If a device has 2
    iterations of j, the index becomes `2*i + j`.

    Args:
      blocks: the number of iterations per loop.
    """

    def shrunk(index: Index) -> Index:
        """Return the index expression of a device's block, such as `2*i + j` for `4*i + j`.

        A coefficient that is the product of the extents of all minor loops becomes the product of
        their block sizes. In the example j has 4 iterations, in blocks of 2.
        """
        ordered = sorted(index.terms, key=lambda term: -term[1])
        terms = []
        for k, (name, coefficient) in enumerate(ordered):
            # The loops behind this one are minor: their terms have smaller coefficients.
            global_product = math.prod(rule.extents[n] for n, _ in ordered[k + 1 :])
            local_product = math.prod(blocks[n] for n, _ in ordered[k + 1 :])
            terms.append((name, local_product if coefficient == global_product else coefficient))
        return replace(index, terms=tuple(sorted(terms)))

    return replace(
        rule,
        loops=tuple((n, blocks[n]) for n, _ in rule.loops),
        terms=tuple(
            tuple(replace(a, dims=tuple(map(shrunk, a.dims))) for a in term) for term in rule.terms
        ),
        results=tuple(tuple(map(shrunk, dims)) for dims in rule.results),
    )
