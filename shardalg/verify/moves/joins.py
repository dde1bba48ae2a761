"""What becomes one along a sharded loop after each device did its part: prefixes, best places."""

from __future__ import annotations

from dataclasses import replace

from shardalg.algebra.digits import parts
from shardalg.merge.proofs.integers import Number
from shardalg.spmd.instructions import ArgReduce, ExclusiveScan, Fold, Join, Top, ValueAt
from shardalg.verify.contents import fill_number, partition_number, without
from shardalg.verify.move import (
    CheckedInstruction,
    Result,
    Results,
    Stated,
    filled_with,
    finished,
    members_agree,
    moves,
    moves_each,
    undisturbed,
    with_dim,
)
from shardalg.verify.report import Decided


@moves(ExclusiveScan)
def _exclusive_scan(step: CheckedInstruction[ExclusiveScan]) -> Result:
    """What the blocks before come to is no element: it is what a prefix waits for."""
    a, given = step.attributes, step.given
    words = f"what is carried are ends of blocks that wait for {a}, and for nothing else"
    alone = Decided(
        words, given.awaits == (a,) and finished(replace(given, awaits=(), unreduced=()))
    )
    ends = replace(step, operands=(replace(given, awaits=()),))
    stated: list[Stated] = [
        ("combine", alone),
        undisturbed(ends),
        *members_agree(step, a.digits, (a.dim,)),
    ]
    return replace(given, changes=(*given.changes, a)), stated


@moves(Join)
def _join(step: CheckedInstruction[Join]) -> Result:
    """The prefix of a block is joined with the ends of all prefixes before it."""
    a, (given, carried) = step.attributes, step.operands
    held = given.dims[a.dim]
    wanted = next(iter(given.awaits), None)
    carry = ExclusiveScan(
        a.dim, getattr(wanted, "digits", ()), a.combine, getattr(wanted, "reverse", False)
    )
    end = held.start + (0 if carry.reverse else held.length - 1)
    last = with_dim(given, a.dim, replace(held, start=end, length=1, fill=None))
    same = carried == replace(last, changes=(carry,)) and given.awaits == (carry,)
    block = -(-held.size // parts(carry.digits))
    same = same and (held.start, held.length) == (partition_number(carry.digits) * block, block)
    words = f"the last place of each block before is carried into it: {wanted}"
    stated: list[Stated] = [("combine", Decided(words, carry == wanted and same))]
    return replace(filled_with(step, None), awaits=()), stated


@moves(ValueAt)
def _value_at(step: CheckedInstruction[ValueAt]) -> Result:
    """The values at the best places of the blocks that the places were looked for in."""
    a, (place, block) = step.attributes, step.operands
    best = next(iter(place.awaits), None)
    own = [replace(d, fill=None) for d in block.dims]
    found = own.pop(a.dim)
    alike = own == [replace(d, fill=None) for d in place.dims]
    alike = alike and found.base == 1 and not found.wanted
    wanted = False
    if isinstance(best, ArgReduce) and best.dim == a.dim:
        count = parts(best.digits) * best.block
        start = partition_number(best.digits) * best.block
        fill, lowest = (
            fill_number(way, step.made.dtype) for way in (block.dims[a.dim].fill, best.combine)
        )
        masked = count == found.size or (fill is not None and fill == lowest)
        wanted = masked and (found.start, found.length) == (start, best.block)
    ready = finished(block) and not place.changes
    words = f"values are those of the blocks, padding masked, that {best} chooses from"
    stated: list[Stated] = [("combine", Decided(words, bool(alike and wanted and ready)))]
    return replace(place, changes=(*place.changes, a)), stated


@moves(ArgReduce)
def _arg_reduce(step: CheckedInstruction[ArgReduce]) -> Result:
    """The places of the blocks' best become one, by their values."""
    a, (value, place) = step.attributes, step.operands
    rest = without(place.unreduced, a.digits)
    right = rest is not None and place.awaits == (a,) and not place.changes
    right = right and value == replace(place, changes=(ValueAt(a.dim),))
    words = f"the best of {a.combine} is chosen by the values of the blocks' best"
    stated: list[Stated] = [("combine", Decided(words, right)), *members_agree(step, a.digits, ())]
    # where there is no element, a place is counted from a block's first one, too
    made = filled_with(replace(step, operands=(place,)), None)
    made = replace(made, unreduced=place.unreduced if rest is None else rest)
    return replace(made, awaits=place.awaits[1:]), stated


def _together(step: CheckedInstruction[Top | Fold]) -> Result:
    """Partial results that wait for one another become one, each from all of them."""
    a, given = step.attributes, step.given
    rest = without(given.unreduced, a.digits)
    partial, starts = step.operands[: step.count], step.operands[step.count :]
    waiting = [held.awaits == (a,) and not held.changes for held in partial]
    waiting += [finished(held) for held in starts]
    alike = {(held.dims, held.unreduced, held.awaits) for held in partial}
    right = rest is not None and all(waiting) and len(alike) == 1
    words = "all partial results of the operator are joined, as it asks"
    stated: list[Stated] = [("combine", Decided(words, right)), *members_agree(step, a.digits, ())]
    # what fills is joined, too
    made = replace(filled_with(step, None), unreduced=given.unreduced if rest is None else rest)
    return replace(made, awaits=given.awaits[1:]), stated


@moves_each(Top)
def _top(step: CheckedInstruction[Top]) -> Results:
    """The best of all are among the best of every block, counted from the first on."""
    held = step.given.dims[step.attributes.dim]
    first = held.start == Number() and held.length <= held.size and not held.wanted
    words = "what is joined are the best of every block from the first on, and nothing else"
    results, stated = _each(step)
    return results, [*stated, ("combine", Decided(words, first))]


@moves_each(Fold)
def _folded(step: CheckedInstruction[Fold]) -> Results:
    return _each(step)


def _each(step: CheckedInstruction[Top | Fold]) -> Results:
    return [_together(replace(step, number=number)) for number in range(step.count)], []
