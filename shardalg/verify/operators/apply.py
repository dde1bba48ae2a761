"""The claims of one `Apply`: its row, the row of what it runs, and what its operands hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import islice

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ops.local_parameters import (
    Emission,
    boxes,
    emit,
    local_shape,
    unsupported_loops,
)
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import (
    AND,
    ARGMAX,
    ARGMIN,
    MAX,
    MIN,
    OR,
    PICK,
    SUM,
    TOP,
    USER,
    Access,
    Rule,
)
from shardalg.graph.ops.windows import windowed
from shardalg.merge.compatible import merge
from shardalg.merge.proofs.integers import Number, implies, within
from shardalg.merge.proofs.prove import MergeClaim
from shardalg.spmd import instructions as p
from shardalg.spmd.instruction import Attributes
from shardalg.spmd.instructions import Apply, Choose, Extract, Insert
from shardalg.verify.contents import Contents, DeclaredLocal, PendingSelection, as_set, laid_out
from shardalg.verify.move import CheckedInstruction, Result, Stated
from shardalg.verify.moves.masks import chosen
from shardalg.verify.operators.applied import (
    APPLIED,
    Applied,
    Filling,
    Outcome,
    applies,
    as_said,
    by_everyone,
    is_alone,
    is_refuted,
    on_blocks,
    ready,
    semantics,
)
from shardalg.verify.operators.local_rows import (
    LocalOperator,
    by_blocks,
    emitted,
    padding,
    passed,
    pending,
    reads,
    row_major,
    writes,
)
from shardalg.verify.operators.selections import selected
from shardalg.verify.report import Decided

IDEMPOTENT = (MAX, MIN, AND, OR)
"""Ways to combine in which it does not matter how often one number enters."""


# Pure, and the same instruction stands in many programs.
@lru_cache(maxsize=1 << 12)
def applied(what: Applied) -> Outcome:
    """What the results of an operator hold, and the claims on which that rests."""
    return APPLIED[type(what.apply)](what)


@applies(Apply)
def _apply(what: Applied[Apply]) -> Outcome:
    """Its row against the row of the operator that a device runs."""
    stated = [*ready(what), *_iterations(what)]
    rows = rules(what.signature)
    if rows is None:
        return by_everyone(what, stated)
    results: list[Contents] = []
    for number, rule in enumerate(rows):
        run, claims = _run(what, rule, number)
        if is_refuted([*stated, *claims]):
            # the maps of another operator cannot be compared with the row's
            return as_said(what), [*stated, *claims]
        alone = len(rows) == 1
        emission = _emission(what, rule, run) if alone else Emission()
        stated += [*claims, semantics(what, emission), *_operator(what, run, emission)]
        for nth, made in enumerate(what.made if alone else what.made[number : number + 1]):
            held, claims = _result(what, run, emission, nth, made)
            results.append(held)
            stated += claims
    return tuple(results), stated


@applies(Choose)
def _chosen(what: Applied[Choose]) -> Outcome:
    """Each place is that of the one alternative which exists: as if the others were masked."""
    rule = _row(what)
    run = LocalOperator(what.mesh, rule, rule, _loops(what, rule))
    made = rule.results[0]
    pieces = tuple(tuple(replace(a, dims=made) for a in term) for term in rule.terms)
    run = replace(run, local=replace(by_blocks(rule, run.blocks), terms=pieces))
    bare = not any(held.tasks or held.viewed for held in what.operands)
    stated: list[Stated] = [*_iterations(what), ("emitted", Decided("pieces are as read", bare))]
    kept = []
    for number, held in enumerate(what.operands):
        alone, claims = chosen(
            CheckedInstruction(what.mesh, what.apply, (held,), what.made[0]), number
        )
        kept.append(alone)
        stated += claims
    stated += _operator(replace(what, operands=tuple(kept)), run, Emission())
    contents, claims = _result(what, run, Emission(), 0, what.made[0])
    return (contents,), [*stated, *claims]


@applies(Extract)
def _extract(what: Applied[Extract]) -> Outcome:
    return _boxed(what)


@applies(Insert)
def _insert(what: Applied[Insert]) -> Outcome:
    return _boxed(what)


def _boxed(what: Applied[Extract | Insert]) -> Outcome:
    """A box at run-time starts: in which blocks, up to where, and how large, is the row's."""
    rule = _row(what)
    run = LocalOperator(what.mesh, rule, rule, _loops(what, rule))
    run = replace(run, local=by_blocks(rule, run.blocks))
    cut = {name for name, digits in run.digits.items() if digits}
    places = tuple((dim, run.digits[loop], high) for dim, loop, high in boxes(rule, cut))
    reads_box = rule.init is None
    wanted = Extract(local_shape(rule, 0, run.blocks), places) if reads_box else Insert(places)
    right = replace(what.apply, loops=()) == wanted
    blocks = all(
        dim.length == run.blocks[index.loop]
        for operand, indices in rule.operands.items()
        for dim, index in zip(what.operands[operand].dims, indices, strict=True)
        if index.loop is not None
    )
    ready = not any(held.awaits or held.viewed for held in what.operands)
    uncut = not cut & unsupported_loops(rule)
    words = f"a box in the blocks {places}, itself whole"
    stated: list[Stated] = [
        *_iterations(what),
        ("emitted", Decided(words, right and blocks and ready and uncut)),
        *_operator(what, run, Emission()),
    ]
    contents, claims = _result(what, run, Emission(), 0, what.made[0])
    return (contents,), [*stated, *claims]


def _row(what: Applied) -> Rule:
    """The one row of an operator that an instruction of its own runs."""
    (rule,) = rules(what.signature) or ()
    return rule


def _emission(what: Applied, rule: Rule, run: LocalOperator) -> Emission:
    """Which run-time numbers the row shifts (its parameters are compared through the rows)."""
    moving = {v for k, dims in rule.operands.items() for d, index in enumerate(dims)
              if windowed(rule, k, d) for v in index.variables}  # fmt: skip
    blocks = {n: rule.extents[n] if n in moving else block for n, block in run.blocks.items()}
    return emit(what.signature, rule, blocks)


def _iterations(what: Applied) -> Iterator[Stated]:
    """Loops of one row that are split together are split independently: each iteration once.

    What has to be whole is no part of one either: the others would run padding for it.
    """
    rows = rules(what.signature) or ()
    split = {n for n, digits in what.apply.loops if parts(digits) > 1}
    unknown = {n for n, _ in what.apply.loops} - {n for rule in rows for n in rule.extents}
    whole = {n for rule in rows for n in unsupported_loops(rule) if rule.extents[n] == 1} & split
    words = "what is split are loops of the operator, and none that are whole"
    yield "iterations", Decided(words, not unknown and not whole)
    for rule in rows:
        claim = iteration_claim(what.mesh, _loops(what, rule))
        if claim is not None:
            yield "iterations", claim


def _loops(what: Applied, rule: Rule) -> tuple[tuple[str, Digits], ...]:
    return tuple((n, d) for n, d in what.apply.loops if n in rule.extents)


def iteration_claim(mesh: Mesh, loops: tuple[tuple[str, Digits], ...]) -> MergeClaim | None:
    """The loops of a node as dimensions of a tensor, split one by one, merge into a joint split.

    None where fewer than two loops are split: then there is nothing to clash.
    """
    if len(loops) < 2:
        return None
    shape = tuple(parts(digits) for _, digits in loops)
    single = [
        Sharding(mesh, shape, tuple(d if i == k else () for i, (_, d) in enumerate(loops)))
        for k in range(len(loops))
    ]
    joint = Sharding(mesh, shape, tuple(d for _, d in loops))
    first = single[0]
    for other in single[1:-1]:
        merged = merge(first, other).sharding
        assert merged is not None, "loops are different dimensions, whose splits do not clash"
        first = merged
    return MergeClaim(first, single[-1], joint)


def _run(what: Applied[Apply], rule: Rule, number: int) -> tuple[LocalOperator, list[Stated]]:
    loops = _loops(what, rule)
    if what.signature.param("new_sizes") is not None:
        run = LocalOperator(what.mesh, rule, rule, loops)
        run = replace(run, local=by_blocks(rule, run.blocks))
        return run, [row_major(run, what.signature, on_blocks(what))]
    local = rules(on_blocks(what))
    assert local is not None, (
        f"{on_blocks(what).primitive} has a row for one shape and not for another"
    )
    dtypes = tuple(type_.dtype for type_ in what.signature.operands)
    run = LocalOperator(what.mesh, rule, local[number], loops, dtypes=dtypes, firsts=what.firsts)
    run = replace(run, wider=tuple(_wider(what, run)))
    return run, list(emitted(run))


def _wider(what: Applied, run: LocalOperator) -> Iterator[tuple[str, Number]]:
    """Loops of the result of which more is run than the block, and where: by what is read there.

    Any number would do: the claims show that what is kept of it is right. None is of what the
    operator gets as one block, or selects from uncut: a place more is in all that it makes, or
    moves the end to which starts are clamped.
    """
    targets = {guard.loop.loop for guard in run.rule.guards}
    for name, _ in run.loops if run.rule.whole or targets else ():
        uncut = name in targets and run.blocks[name] == run.rule.extents[name]
        more = run.local.extents.get(name, 1) > run.blocks[name]
        more = more and not uncut and name not in run.rule.whole
        if more and (name in targets or name not in run.rule.reduced):
            # what is read nowhere has no first place, and is run in blocks
            yield from ((name, first) for first in islice(_first(what, run, name), 1))


def _first(what: Applied, run: LocalOperator, name: str) -> Iterator[Number]:
    """The iteration of a loop that reads the first place, where the others are at 0."""
    for operand, dims in run.rule.operands.items():
        for dim, (index, local) in enumerate(zip(dims, run.local.operands[operand], strict=True)):
            if dict(index.terms).get(name) == 1 and index.div == 1:
                start = what.operands[operand].dims[dim].start
                yield start + (local.constant - index.constant)


def _operator(what: Applied, run: LocalOperator, emission: Emission) -> Iterator[Stated]:
    held = {k: what.operands[k] for k in run.rule.operands}
    yield from reads(run, held)
    yield from padding(run, held)
    yield "combine", pending(run, held)[1]
    yield from passed(run, held, finite=what.finite)
    yield from selected(run, emission)
    yield from _zeros(run, held)
    for k, contents in held.items():
        wanted = tuple(_expected(run, emission, k))
        words = f"the numbers of operand {k} are changed as the row asks: {wanted or 'not at all'}"
        yield "emitted", Decided(words, tuple(map(_comparable, contents.changes)) == wanted)


def _zeros(run: LocalOperator, held: Mapping[int, Contents]) -> Iterator[Stated]:
    """What is read beside the block, and summed with what others have there, is 0."""
    for name, _ in run.wider:
        places = [(k, d) for k, dims in run.rule.operands.items() for d, index in enumerate(dims)
                  if name in run.rule.reduced and index.loop == name]  # fmt: skip
        for operand, dim in places:
            found = held[operand].dims[dim]
            words = f"operand {operand} is 0 beside the block of {name}"
            element = found.start + run.places[name]
            goal = implies(found.exists(element), within(element, *run.kept(name)))
            zero = found.fill == SUM and found.base == 1
            yield "reads", run.claim(words, goal, (name,)) if zero else Decided(words, holds=False)


def _comparable(attributes: Attributes | PendingSelection) -> Attributes | PendingSelection:
    """Digits whose order does not matter, in one order."""
    if isinstance(attributes, p.FirstMember):
        return replace(attributes, digits=as_set(attributes.digits))
    return attributes


def _own_digits(run: LocalOperator) -> Digits:
    """Digits of the loops whose iterations are combined."""
    return as_set(tuple(d for name in run.rule.reduced for d in run.digits[name]))


def _expected(run: LocalOperator, emission: Emission, operand: int | None) -> Iterator[Attributes]:
    """Changes of an operand's numbers, or (None) of the result's, that the row asks for."""
    for shift in emission.shifts:
        if shift.operand == operand and run.digits[shift.loop]:
            where = (run.digits[shift.loop], shift.sign * run.blocks[shift.loop])
            yield p.Offset(*where, shift.component, shift.clamp, shift.more, shift.within)
    if operand is None and run.rule.prefix and run.digits[run.rule.prefix[0]]:
        loop, reverse = run.rule.prefix
        (dim,) = [d for d, index in enumerate(run.rule.results[0]) if index.loop == loop]
        yield p.ExclusiveScan(dim, run.digits[loop], run.rule.combine, reverse)
    if operand is None and _own_digits(run):
        yield from _joined(run)
    init = run.rule.init
    # what a function of the user starts from changes nothing
    counts = run.rule.combine not in (*IDEMPOTENT, USER)
    if counts and isinstance(init, Access) and init.operand == operand and _own_digits(run):
        yield p.FirstMember(_own_digits(run), run.rule.combine)


def _joined(run: LocalOperator) -> Iterator[Attributes]:
    """What makes partial results one, where no all-reduce does."""
    combine = run.rule.combine
    if combine == USER:
        yield p.Fold(tuple(d for name in run.rule.reduced for d in run.digits[name]))
    if combine in (ARGMAX, ARGMIN, TOP):
        (loop,) = run.rule.reduced
        (dim,) = [d for d, index in enumerate(run.rule.operands[0]) if index.loop == loop]
        where = (dim, run.digits[loop], run.blocks[loop])
        yield p.Top(*where) if combine == TOP else p.ArgReduce(*where, combine)


def _result(
    what: Applied, run: LocalOperator, emission: Emission, nth: int, made: DeclaredLocal
) -> Result:
    digits, _ = pending(run, {k: what.operands[k] for k in run.rule.operands})
    said = _more(run, nth, laid_out(made.sharding, made.shape, None))
    awaits: tuple[Attributes | PendingSelection, ...]
    awaits = (*_masked(run, emission), *_expected(run, emission, None))
    words = "just the digits of the combined loops are pending"
    stated: list[Stated] = [
        *writes(run, nth, said),
        ("combine", Decided(words, said.unreduced == digits)),
    ]
    if made.named:
        words = "nothing is left to be done to a result that is named for its value"
        stated.append(("emitted", Decided(words, not awaits)))
    combine = PICK if is_alone(what, run.rule) else run.rule.combine
    filling = Filling(run, what.signature, {k: what.operands[k] for k in run.rule.operands})
    return replace(filling.made(nth, said), combine=combine, awaits=awaits), stated


def _more(run: LocalOperator, nth: int, said: Contents) -> Contents:
    """With all iterations that are run, of which those of the block are right."""
    first = dict(run.wider)
    pairs = zip(run.rule.results[nth], said.dims, strict=True)
    dims = tuple(
        replace(held, start=first[i.loop], wanted=((run.kept(i.loop)[0], run.blocks[i.loop]),))
        if i.loop in first
        else held
        for i, held in pairs
    )
    return replace(said, dims=dims)


def _masked(run: LocalOperator, emission: Emission) -> Iterator[PendingSelection]:
    """What has to be left out of a gathered value: what other partitions hold."""
    highs = {symbol.name: symbol.high for symbol in run.rule.symbols}
    counts = {g.loop.loop: highs[v] + 1 for g in run.rule.guards for v in g.index.variables
              if v in highs}  # fmt: skip
    widths = {loop: width for _, loop, width in emission.margins}
    owned = [one for one in emission.owned if not one[1] or run.digits[one[1]]]
    if any(loop for _, loop, _ in owned):
        components = tuple(
            (c, run.digits[loop], run.blocks[loop], counts[loop]) if loop else (c, (), n, n)
            for c, loop, n in owned
        )
        margins = tuple(widths.get(loop, 0) for _, loop, _ in owned) if widths else ()
        mask = p.MaskIndexed(components, emission.batch_dims, emission.fill, margins)
        yield PendingSelection(mask, tuple(_expected(run, emission, 1)))
