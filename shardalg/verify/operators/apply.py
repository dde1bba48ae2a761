"""The claims of an operator, from its operands' contents, the node's row and the local row."""

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
from shardalg.graph.ops.windows import is_windowed
from shardalg.merge.compatible import merge
from shardalg.merge.proofs.integers import Number, implies, within
from shardalg.merge.proofs.prove import MergeClaim
from shardalg.spmd import instructions as p
from shardalg.spmd.instruction import Attributes
from shardalg.spmd.instructions import Apply, Choose, Extract, Insert
from shardalg.verify.contents import (
    Contents,
    DeclaredLocal,
    PendingSelection,
    layout_contents,
    unordered_digits,
)
from shardalg.verify.move import CheckedInstruction, Goal, Result
from shardalg.verify.moves.masks import chosen_part
from shardalg.verify.operators.applied import (
    APPLIED,
    CheckedOperator,
    Filling,
    Outcome,
    applies,
    declared_results,
    emission_claim,
    has_one_contribution,
    is_refuted,
    local_operator_signature,
    operands_ready,
    replicated_operator,
)
from shardalg.verify.operators.local_rows import (
    LocalOperator,
    extent_claims,
    finite_claims,
    padding_claims,
    pending_digits,
    read_claims,
    row_major_claim,
    rule_of_blocks,
    write_claims,
)
from shardalg.verify.operators.selections import selection_claims
from shardalg.verify.report import Decided

IDEMPOTENT = (MAX, MIN, AND, OR)
"""Ways to combine whose result does not depend on how often a number enters."""


# Pure, and many programs contain the same instruction.
@lru_cache(maxsize=1 << 12)
def check_operator(op: CheckedOperator) -> Outcome:
    """Return the contents of an operator's results, and the claims that show that they are right.

    Contents are the elements that each device holds.
    """
    return APPLIED[type(op.apply)](op)


@applies(Apply)
def _apply(op: CheckedOperator[Apply]) -> Outcome:
    """Return the contents of the results of an ordinary operator, and the claims to prove.

    The row of RULES for the global shapes is compared with the row for the shapes on a device.
    """
    claims = [*operands_ready(op), *_iteration_claims(op)]
    rows = rules(op.signature)
    if rows is None:
        return replicated_operator(op, claims)
    results: list[Contents] = []
    for number, rule in enumerate(rows):
        run, more = _local_operator(op, rule, number)
        claims += more
        if is_refuted(claims):
            # The index maps of another operator cannot be compared with this row's.
            return declared_results(op), claims
        # The emission says how run-time indices must be shifted and masked on a device. Operators
        # of several rows (several results with loops of their own) have no run-time indices.
        alone = len(rows) == 1
        emission = Emission()
        if alone:
            # For the sharded loops of a window, `emit` would compute a padding. The claims about
            # reads check the padding that the program has, so these loops are passed as uncut.
            window_loops = _window_loops(rule)
            blocks = {
                name: rule.extents[name] if name in window_loops else block
                for name, block in run.blocks.items()
            }
            emission = emit(op.signature, rule, blocks)
        claims += [emission_claim(op, emission), *_row_claims(op, run, emission)]
        for nth, result in enumerate(op.declared if alone else op.declared[number : number + 1]):
            contents, more = _result(op, run, emission, nth, result)
            results.append(contents)
            claims += more
    return tuple(results), claims


def _window_loops(rule: Rule) -> set[str]:
    """Return the loops in the indices of operand dimensions that are read through a window.

    For example, a convolution reads index `2*o + r`; its window loops are o and r.
    """
    loops: set[str] = set()
    for operand, indices in rule.operands.items():
        for dim, index in enumerate(indices):
            if is_windowed(rule, operand, dim):
                loops.update(index.variables)
    return loops


@applies(Choose)
def _choose(op: CheckedOperator[Choose]) -> Outcome:
    """Return the contents of the result of a `Choose`, and the claims to prove.

    A `Choose` makes a device's block of a concatenation. Each operand gives a piece with the shape
    of the block, and each place of the block is taken from one of the pieces. It is checked like an
    operator with a row, on pieces that are masked at all places where another piece is chosen.
    """
    rule, declared_result = _row(op), op.declared[0]
    loops = _split_loops(op, rule)
    # The row of the operator on one device, in two steps. First, each loop has the iterations of
    # one block.
    block_sizes = LocalOperator(op.mesh, rule, rule, loops).blocks
    block_rule = rule_of_blocks(rule, block_sizes)
    # Then, every piece is read at the places of the result. The global row shifts them by the sizes
    # of earlier operands, but the pieces have their elements at the right places already.
    result_dims = rule.results[0]
    unshifted_terms = tuple(
        tuple(replace(access, dims=result_dims) for access in term) for term in rule.terms
    )
    run = LocalOperator(op.mesh, rule, replace(block_rule, terms=unshifted_terms), loops)
    # A piece must have the elements of its graph value. The choice mixes the pieces, so a change of
    # one piece (`tasks`), or a reshape of it (`viewed`), could not be completed afterwards.
    is_complete = not any(contents.tasks or contents.viewed for contents in op.operands)
    words = "no change is pending on any piece"
    claims: list[Goal] = [*_iteration_claims(op), ("emitted", Decided(words, is_complete))]
    # Mask the other pieces, so that the row's claims see each piece only where it is chosen.
    chosen_pieces = []
    for number, contents in enumerate(op.operands):
        step = CheckedInstruction(op.mesh, op.apply, (contents,), declared_result)
        piece, piece_claims = chosen_part(step, number)
        chosen_pieces.append(piece)
        claims += piece_claims
    # A choice runs no operator with changed parameters, so its `Emission` is empty.
    claims += _row_claims(replace(op, operands=tuple(chosen_pieces)), run, Emission())
    result, result_claims = _result(op, run, Emission(), 0, declared_result)
    return (result,), [*claims, *result_claims]


@applies(Extract)
def _extract(op: CheckedOperator[Extract]) -> Outcome:
    return _box_at_start(op)


@applies(Insert)
def _insert(op: CheckedOperator[Insert]) -> Outcome:
    return _box_at_start(op)


def _box_at_start(op: CheckedOperator[Extract | Insert]) -> Outcome:
    """Return the contents after a box at run-time starts is read or written, and claims to prove.

    A box is a contiguous part of the operand (`dynamic_slice`, `dynamic_update_slice`). Its sizes,
    the blocks and the largest starts of the instruction must be the row's.
    """
    rule = _row(op)
    run = LocalOperator(op.mesh, rule, rule, _split_loops(op, rule))
    run = replace(run, local=rule_of_blocks(rule, run.blocks))
    # The instruction compares the box's start with each block along the sharded dimensions, so it
    # must name their digits and the largest starts, to which JAX clamps.
    split_loops = {name for name, digits in run.digits.items() if digits}
    box_places = tuple(
        (dim, run.digits[loop], high) for dim, loop, high in boxes(rule, split_loops)
    )
    # A row with a start value writes its box into that value; other rows read the box.
    reads_box = rule.init is None
    required_op = (
        Extract(local_shape(rule, 0, run.blocks), box_places) if reads_box else Insert(box_places)
    )
    is_required_op = replace(op.apply, loops=()) == required_op
    has_blocks = all(
        dim.length == run.blocks[index.loop]
        for operand, indices in rule.operands.items()
        for dim, index in zip(op.operands[operand].dims, indices, strict=True)
        if index.loop is not None
    )
    # No change of an operand is still required, and no operand is a reshaped view.
    is_complete = not any(held.awaits or held.viewed for held in op.operands)
    has_whole_loops = not split_loops & unsupported_loops(rule)
    words = f"the box is in the blocks {box_places}, and is whole itself"
    claims: list[Goal] = [
        *_iteration_claims(op),
        (
            "emitted",
            Decided(words, is_required_op and has_blocks and is_complete and has_whole_loops),
        ),
        *_row_claims(op, run, Emission()),
    ]
    contents, more = _result(op, run, Emission(), 0, op.declared[0])
    return (contents,), [*claims, *more]


def _row(op: CheckedOperator) -> Rule:
    """Return the row of RULES for an operator that has an instruction of its own (`Choose`).

    Each operator of this kind has exactly one row.
    """
    (rule,) = rules(op.signature) or ()
    return rule


def _iteration_claims(op: CheckedOperator) -> Iterator[Goal]:
    """Yield the claims that the devices run every iteration of the operator exactly once.

    No two loops may be split along the same mesh digits. A loop that must be whole may not be
    split, even if it has one iteration: the other devices would run padding for it.
    """
    rows = rules(op.signature) or ()
    split_loops = {n for n, digits in op.apply.loops if parts(digits) > 1}
    # A loop that no row knows would be split without effect, and devices would repeat iterations.
    unknown_loops = {n for n, _ in op.apply.loops} - {n for rule in rows for n in rule.extents}
    wrongly_split = {
        n for rule in rows for n in unsupported_loops(rule) if rule.extents[n] == 1
    } & split_loops
    words = "only loops of the operator are split, and none that must be whole"
    yield "iterations", Decided(words, not unknown_loops and not wrongly_split)
    # Per row: loops that are split along one digit would leave out some of their combinations.
    for rule in rows:
        claim = iteration_claim(op.mesh, _split_loops(op, rule))
        if claim is not None:
            yield "iterations", claim


def _split_loops(op: CheckedOperator, rule: Rule) -> tuple[tuple[str, Digits], ...]:
    return tuple((n, d) for n, d in op.apply.loops if n in rule.extents)


def iteration_claim(mesh: Mesh, loops: tuple[tuple[str, Digits], ...]) -> MergeClaim | None:
    """Return the claim that the splits of an operator's loops fit together.

    The loops count as dimensions of a tensor, and their splits as shardings, which must merge. If
    fewer than two loops are split, nothing can clash, and the result is None.

    Args:
      loops: (name, digits) of each split loop.
    """
    if len(loops) < 2:
        return None
    # One element per part: the split of a loop is then the sharding of a dimension.
    shape = tuple(parts(digits) for _, digits in loops)
    single = [
        Sharding(mesh, shape, tuple(d if i == k else () for i, (_, d) in enumerate(loops)))
        for k in range(len(loops))
    ]
    joint = Sharding(mesh, shape, tuple(d for _, d in loops))
    # Merge all splits except the last, so that one claim about two shardings covers all loops.
    first = single[0]
    for other in single[1:-1]:
        merged = merge(first, other).sharding
        assert merged is not None, "loops are different dimensions, whose splits do not clash"
        first = merged
    return MergeClaim(first, single[-1], joint)


def _local_operator(
    op: CheckedOperator[Apply], rule: Rule, number: int
) -> tuple[LocalOperator, list[Goal]]:
    """Return the operator that a device runs, by row `number` of its rows, and the claims to prove.

    The claims are that its loops are blocks of the loops of the global operator's row `rule`.
    """
    loops = _split_loops(op, rule)
    # A reshape's loops have other extents on local shapes, so its local row is made of blocks and
    # compared with the local shapes by row-major order.
    if op.signature.param("new_sizes") is not None:
        run = LocalOperator(op.mesh, rule, rule, loops)
        run = replace(run, local=rule_of_blocks(rule, run.blocks))
        return run, [row_major_claim(run, op.signature, local_operator_signature(op))]
    local = rules(local_operator_signature(op))
    assert local is not None, (
        f"{local_operator_signature(op).primitive} has a row for one shape and not for another"
    )
    dtypes = tuple(type_.dtype for type_ in op.signature.operands)
    run = LocalOperator(op.mesh, rule, local[number], loops, dtypes=dtypes, firsts=op.firsts)
    run = replace(run, wider=tuple(_loops_with_margins(op, run)))
    return run, list(extent_claims(run))


def _loops_with_margins(op: CheckedOperator, run: LocalOperator) -> Iterator[tuple[str, Number]]:
    """Yield (loop, first iteration) for loops of which a device runs more than its block.

    An example is a window's output that a run-time index selects from. The first iteration follows
    from the start of an operand's block; if it is wrong, the claims about reads fail.

    Two kinds of loops are excluded, because one more iteration would change their results: loops
    that the operator needs whole, and unsharded loops from which a run-time start selects (a
    clamped start depends on the loop's end).
    """
    # A guard `loop == index` selects iterations by a run-time index, so its loop is a target.
    targets = {guard.loop.loop for guard in run.rule.guards}
    for name, _ in run.loops if run.rule.whole or targets else ():
        uncut = name in targets and run.blocks[name] == run.rule.extents[name]
        more = run.local.extents.get(name, 1) > run.blocks[name]
        more = more and not uncut and name not in run.rule.whole
        if more and (name in targets or name not in run.rule.reduced):
            # With all other loops at 0, an operand's first place is read by the iteration with
            #   start = iteration + index.constant - local.constant,
            # because `index` gives the element and `local` the place in the block.
            firsts = (
                op.operands[operand].dims[dim].start + (local.constant - index.constant)
                for operand, dims in run.rule.operands.items()
                for dim, (index, local) in enumerate(
                    zip(dims, run.local.operands[operand], strict=True)
                )
                if dict(index.terms).get(name) == 1 and index.div == 1
            )
            # A loop that no operand reads has no first place, and is run in blocks.
            yield from ((name, first) for first in islice(firsts, 1))


def _row_claims(op: CheckedOperator, run: LocalOperator, emission: Emission) -> Iterator[Goal]:
    """Yield the claims that the operands are read and combined as the row of RULES says.

    They are about the elements that are read, padding, partial sums, run-time selections, and
    changes of the operands' numbers.
    """
    operands = {k: op.operands[k] for k in run.rule.operands}
    yield from read_claims(run, operands)
    yield from padding_claims(run, operands)
    yield "combine", pending_digits(run, operands)[1]
    yield from finite_claims(run, operands, finite=op.finite)
    yield from selection_claims(run, emission)
    yield from _margin_claims(run, operands)
    for k, contents in operands.items():
        required_changes = tuple(_required_changes(run, emission, k))
        # The order of a first member's digits does not matter, so both sides use one order.
        changes = tuple(
            replace(change, digits=unordered_digits(change.digits))
            if isinstance(change, p.FirstMember)
            else change
            for change in contents.changes
        )
        words = f"operand {k} has the changes that its row requires: {required_changes or 'none'}"
        yield "emitted", Decided(words, changes == required_changes)


def _margin_claims(run: LocalOperator, contents: Mapping[int, Contents]) -> Iterator[Goal]:
    """Yield the claims that an iteration which two devices run is counted once in a sum.

    Along some loops (`run.wider`) a device runs more iterations than its own block. If such a loop
    is summed, the operands must be 0 in the additional iterations.
    """
    for name, _ in run.wider:
        # Iterations outside the block are another device's as well: a sum would count them twice.
        if name not in run.rule.reduced:
            continue
        dims_of_loop = [
            (operand, dim)
            for operand, indices in run.rule.operands.items()
            for dim, index in enumerate(indices)
            if index.loop == name
        ]
        for operand, dim in dims_of_loop:
            held_dim = contents[operand].dims[dim]
            words = f"operand {operand} is 0 outside the block of {name}"
            element = held_dim.start + run.places[name]
            goal = implies(held_dim.exists(element), within(element, *run.kept(name)))
            # The fill SUM is the number that a sum ignores, 0. With base dilation, places and
            # elements have different units, so that such an operand is refused.
            zero = held_dim.fill == SUM and held_dim.base == 1
            yield "reads", run.claim(words, goal, (name,)) if zero else Decided(words, holds=False)


def _reduced_digits(run: LocalOperator) -> Digits:
    """Return the digits of the loops whose iterations are combined."""
    return unordered_digits(tuple(d for name in run.rule.reduced for d in run.digits[name]))


def _required_changes(
    run: LocalOperator, emission: Emission, operand: int | None
) -> Iterator[Attributes]:
    """Yield the instructions that must change an operand's numbers before the operator reads them.

    Examples are the shift of indices into the block, and a start value on the first member only.
    For operand None, yield the instructions that the operator's result still needs.
    """
    for shift in emission.shifts:
        if shift.operand == operand and run.digits[shift.loop]:
            # A number n becomes `n + p*scale + more` on partition p, with the block size as scale.
            # It is clamped first, and becomes -1 outside of the range `within`.
            where = (run.digits[shift.loop], shift.sign * run.blocks[shift.loop])
            yield p.Offset(*where, shift.component, shift.clamp, shift.more, shift.within)
    # A prefix over a split loop is correct inside each block, and needs the total of earlier
    # blocks.
    if operand is None and run.rule.prefix and run.digits[run.rule.prefix[0]]:
        loop, reverse = run.rule.prefix
        (dim,) = [d for d, index in enumerate(run.rule.results[0]) if index.loop == loop]
        yield p.ExclusiveScan(dim, run.digits[loop], run.rule.combine, reverse)
    if operand is None and _reduced_digits(run):
        yield from _combining_steps(run)
    init = run.rule.init
    # A start value must enter the combination once, so only the first member may have it. In a
    # maximum it may enter often, and the start value of a user's function is neutral.
    counts = run.rule.combine not in (*IDEMPOTENT, USER)
    if counts and isinstance(init, Access) and init.operand == operand and _reduced_digits(run):
        yield p.FirstMember(_reduced_digits(run), run.rule.combine)


def _combining_steps(run: LocalOperator) -> Iterator[Attributes]:
    """Yield the instruction that must combine partial results, if an all-reduce cannot.

    It is a `Fold` for a user's function, `Top` for `top_k`, and `ArgReduce` for argmax and argmin.
    """
    combine = run.rule.combine
    # An all-reduce combines numbers at equal places by an operation that the hardware has. These
    # results need the user's code, or a value together with its place.
    if combine == USER:
        yield p.Fold(tuple(d for name in run.rule.reduced for d in run.digits[name]))
    if combine in (ARGMAX, ARGMIN, TOP):
        (loop,) = run.rule.reduced
        (dim,) = [d for d, index in enumerate(run.rule.operands[0]) if index.loop == loop]
        split_dim = (dim, run.digits[loop], run.blocks[loop])
        yield p.Top(*split_dim) if combine == TOP else p.ArgReduce(*split_dim, combine)


def _result(
    op: CheckedOperator, run: LocalOperator, emission: Emission, nth: int, result: DeclaredLocal
) -> Result:
    """Return the contents of result number `nth` of an operator, and the claims to prove.

    Args:
      run: the operator that a device runs; emission: its required changes of run-time indices.
      result: the type and the sharding that the program declares.
    """
    digits, _ = pending_digits(run, {k: op.operands[k] for k in run.rule.operands})
    declared = _with_margins(run, nth, layout_contents(result.sharding, result.shape, None))
    awaits: tuple[Attributes | PendingSelection, ...]
    # The program must apply these instructions in this order. The mask comes first, because it is
    # applied to the gathered values before anything combines them.
    awaits = (*_pending_masks(run, emission), *_required_changes(run, emission, None))
    words = "exactly the digits of the combined loops are pending"
    claims: list[Goal] = [
        *write_claims(run, nth, declared),
        ("combine", Decided(words, declared.unreduced == digits)),
    ]
    if result.named:
        words = "no change is pending on a result that is the graph value"
        claims.append(("emitted", Decided(words, not awaits)))
    # The partial result records how it is combined, because the check of the later collective sees
    # only the contents, and not this operator.
    combine = PICK if has_one_contribution(op, run.rule) else run.rule.combine
    filling = Filling(run, op.signature, {k: op.operands[k] for k in run.rule.operands})
    return replace(filling.with_fills(nth, declared), combine=combine, awaits=awaits), claims


def _with_margins(run: LocalOperator, nth: int, declared: Contents) -> Contents:
    """Return the contents of a result, with places of iterations outside of the device's block.

    A device may run more iterations of a loop than its block has (`run.wider`), before or behind
    it. They add places to the result, but only the places of the block are wanted.

    Args:
      nth: the number of the result.
      declared: its contents as the program declares them.
    """
    first = dict(run.wider)
    dims = []
    for index, held in zip(run.rule.results[nth], declared.dims, strict=True):
        if index.loop in first:
            block_start, _ = run.kept(index.loop)
            block = (block_start, run.blocks[index.loop])
            dims.append(replace(held, start=first[index.loop], wanted=(block,)))
        else:
            dims.append(held)
    return replace(declared, dims=tuple(dims))


def _pending_masks(run: LocalOperator, emission: Emission) -> Iterator[PendingSelection]:
    """Yield the mask that a gathered value needs, if other partitions have some of its elements.

    A device gathers a wrong element for an index outside of its block, so this place is masked.
    """
    # Indices count from 0, so an indexed dimension has one element more than its largest index.
    highs = {symbol.name: symbol.high for symbol in run.rule.symbols}
    counts = {
        guard.loop.loop: highs[name] + 1
        for guard in run.rule.guards
        for name in guard.index.variables
        if name in highs
    }
    # Only components of sharded loops can miss the block. One without a loop ("") is kept as well,
    # because an index selects an element only if it is valid in all its components.
    owned = [
        (component, loop, starts)
        for component, loop, starts in emission.owned
        if not loop or run.digits[loop]
    ]
    if not any(loop for _, loop, _ in owned):
        return
    # Each entry is (component of the index, digits, block, size), as in `MaskIndexed`. An unsharded
    # dimension is one block with all places at which the slice may start.
    components = tuple(
        (component, run.digits[loop], run.blocks[loop], counts[loop])
        if loop
        else (component, (), starts, starts)
        for component, loop, starts in owned
    )
    widths = {loop: width for _, loop, width in emission.margins}
    margins = tuple(widths.get(loop, 0) for _, loop, _ in owned) if widths else ()
    mask = p.MaskIndexed(components, emission.batch_dims, emission.fill, margins)
    yield PendingSelection(mask, tuple(_required_changes(run, emission, 1)))
