"""Instructions that combine the devices' results along a sharded loop: prefixes and best places."""

from __future__ import annotations

from dataclasses import replace

from shardalg.algebra.digits import parts
from shardalg.merge.proofs.integers import Number
from shardalg.spmd.instructions import ArgReduce, ExclusiveScan, Fold, Join, Top, ValueAt
from shardalg.verify.contents import fill_number, partition_number, remove_digits
from shardalg.verify.move import (
    CheckedInstruction,
    Goal,
    Result,
    Results,
    is_finished,
    keep_equal_fills,
    members_agree,
    movement_keeps_meaning,
    moves,
    moves_each,
    with_dim,
)
from shardalg.verify.report import Decided


@moves(ExclusiveScan)
def _exclusive_scan(step: CheckedInstruction[ExclusiveScan]) -> Result:
    """Return the contents of an exclusive scan's result, and the claims that it is right.

    Each device has the prefix of its own block, for example its cumulative sum. The last element of
    this prefix is the total of the block, and the scan combines the totals of all earlier blocks:

        blocks      [1 2] [3 4] [5 6]
        prefixes    [1 3] [3 7] [5 11]     each block alone
        totals         3     7     11      the operand of this instruction
        result         0     3     10      `Join` adds it to the prefix of each block

    The claims are that the operand has this prefix pending and no other change, and that all
    members of a group hold the same elements along the other dimensions.
    """
    a, operand = step.attributes, step.operand
    # Without its pending prefix and its partial sums, the operand must be a finished value.
    words = f"the carried values are ends of blocks on which only {a} is pending"
    alone = Decided(
        words, operand.awaits == (a,) and is_finished(replace(operand, awaits=(), unreduced=()))
    )
    # The scan itself may move these values, so it is not counted as a pending change.
    ends = replace(step, operands=(replace(operand, awaits=()),))
    claims: list[Goal] = [
        ("combine", alone),
        movement_keeps_meaning(ends),
        *members_agree(step, a.digits, (a.dim,)),
    ]
    # The result is recorded as a change of the operand: only `Join` accepts a value with this
    # change.
    return replace(operand, changes=(*operand.changes, a)), claims


@moves(Join)
def _join(step: CheckedInstruction[Join]) -> Result:
    """Return the contents after a `Join` completes a prefix, such as a cumulative sum, and claims.

    A `Join` has two operands: the prefix inside each block, and the total of all blocks before it.
    The claim is that the second one is the `ExclusiveScan` of the totals of these prefixes.
    """
    a, (operand, carried) = step.attributes, step.operands
    span = operand.dims[a.dim]
    required_scan = next(iter(operand.awaits), None)
    carry = ExclusiveScan(
        a.dim,
        getattr(required_scan, "digits", ()),
        a.combine,
        getattr(required_scan, "reverse", False),
    )
    # The total of a block is the last place of its prefix, or the first place if the prefix runs
    # backwards. Only totals of this very prefix make the combination right.
    end = span.start + (0 if carry.reverse else span.length - 1)
    block_totals = with_dim(operand, a.dim, replace(span, start=end, length=1, fill=None))
    # Contents are compared as whole values, so that no other start, fill or pending change of the
    # totals can pass unseen.
    has_right_totals = carried == replace(block_totals, changes=(carry,)) and operand.awaits == (
        carry,
    )
    block = -(-span.size // parts(carry.digits))
    has_right_totals = has_right_totals and (span.start, span.length) == (
        partition_number(carry.digits) * block,
        block,
    )
    words = f"the carry is made of the last places of the earlier blocks: {required_scan}"
    claims: list[Goal] = [("combine", Decided(words, carry == required_scan and has_right_totals))]
    return replace(keep_equal_fills(step, None), awaits=()), claims


@moves(ValueAt)
def _value_at(step: CheckedInstruction[ValueAt]) -> Result:
    """Return the contents after `ValueAt`, and the claims that it reads the right values.

    An argmax over a sharded dimension finds the best place in each block. `ValueAt` reads the value
    at this place, to compare it with the best values of other blocks. The values must be the
    blocks in which the places were searched: with equal layouts along all other dimensions, of the
    same size, and with padding that cannot win.
    """
    a, (place, block) = step.attributes, step.operands
    selection = next(iter(place.awaits), None)
    # A place belongs to the value at the same position, so both must have the same layout except
    # along the searched dimension.
    other_dims = [replace(d, fill=None) for d in block.dims]
    searched_dim = other_dims.pop(a.dim)
    same_dims = other_dims == [replace(d, fill=None) for d in place.dims]
    same_dims = same_dims and searched_dim.base == 1 and not searched_dim.wanted
    is_searched_block = False
    if isinstance(selection, ArgReduce) and selection.dim == a.dim:
        # Padding may win only if it is masked with the identity of the maximum or minimum.
        count = parts(selection.digits) * selection.block
        start = partition_number(selection.digits) * selection.block
        fill, lowest = (
            fill_number(way, step.declared.dtype)
            for way in (block.dims[a.dim].fill, selection.combine)
        )
        masked = count == searched_dim.size or (fill is not None and fill == lowest)
        is_searched_block = masked and (searched_dim.start, searched_dim.length) == (
            start,
            selection.block,
        )
    complete = is_finished(block) and not place.changes
    words = f"the values are of the masked blocks from which {selection} chooses"
    claims: list[Goal] = [
        ("combine", Decided(words, bool(same_dims and is_searched_block and complete)))
    ]
    return replace(place, changes=(*place.changes, a)), claims


@moves(ArgReduce)
def _arg_reduce(step: CheckedInstruction[ArgReduce]) -> Result:
    """Return the contents of an argmax or argmin over all blocks, and the claims that it is right.

    The operands are the value at the best place of each block, and this place.
    """
    a, (value, place) = step.attributes, step.operands
    # The local operator left both operands with one required change (`awaits`): this reduction. The
    # best block is found by the values, so `value` must be the `ValueAt` of exactly `place`.
    other_digits = remove_digits(place.unreduced, a.digits)
    is_right = other_digits is not None and place.awaits == (a,) and not place.changes
    is_right = is_right and value == replace(place, changes=(ValueAt(a.dim),))
    words = f"{a.combine} chooses by the values at the blocks' best places"
    claims: list[Goal] = [
        ("combine", Decided(words, is_right)),
        *members_agree(step, a.digits, ()),
    ]
    # A place in the padding is an ordinary number, so the padding of the result has no known fill.
    result = keep_equal_fills(replace(step, operands=(place,)), None)
    result = replace(result, unreduced=place.unreduced if other_digits is None else other_digits)
    return replace(result, awaits=place.awaits[1:]), claims


def _top_or_fold(step: CheckedInstruction[Top | Fold]) -> Result:
    """Return the contents of result number `step.number` of a `Top` or `Fold`, and claims to prove.

    A `Top` or `Fold` combines the partial results of all devices, several operands at once. All of
    these must therefore have one sharding. Further operands of a `Fold` are its start values.

    The contents of a partial result list the changes that are still required (`awaits`). This
    instruction must be the only one. The result has it removed.
    """
    a, operand = step.attributes, step.operand
    other_digits = remove_digits(operand.unreduced, a.digits)
    partial, starts = step.operands[: step.count], step.operands[step.count :]
    is_ready = [span.awaits == (a,) and not span.changes for span in partial]
    is_ready += [is_finished(span) for span in starts]
    same_dims = {(span.dims, span.unreduced, span.awaits) for span in partial}
    is_right = other_digits is not None and all(is_ready) and len(same_dims) == 1
    words = "all partial results of the operator are combined, as its row requires"
    claims: list[Goal] = [
        ("combine", Decided(words, is_right)),
        *members_agree(step, a.digits, ()),
    ]
    # Padding is combined as well, so no fill stays known.
    result = replace(
        keep_equal_fills(step, None),
        unreduced=operand.unreduced if other_digits is None else other_digits,
    )
    return replace(result, awaits=operand.awaits[1:]), claims


@moves_each(Top)
def _top(step: CheckedInstruction[Top]) -> Results:
    """Return the contents of the best elements of all blocks (`lax.top_k`), and claims to prove.

    The best elements of a block are sorted to its first places, so each operand must begin at
    place 0.
    """
    span = step.operand.dims[step.attributes.dim]
    first = span.start == Number() and span.length <= span.size and not span.wanted
    words = "the combined values are the best of every block from the first on, and no others"
    results, claims = _each(step)
    return results, [*claims, ("combine", Decided(words, first))]


@moves_each(Fold)
def _fold(step: CheckedInstruction[Fold]) -> Results:
    return _each(step)


def _each(step: CheckedInstruction[Top | Fold]) -> Results:
    return [_top_or_fold(replace(step, number=number)) for number in range(step.count)], []
