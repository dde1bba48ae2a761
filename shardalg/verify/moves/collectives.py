"""Collectives of whole blocks: which member's block arrives at which place.

A collective is claimed from its definition. The claim compares, at every place, the element that
arrives with the one that the result's layout puts there.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

from shardalg.algebra.digits import Digits, overlap, parts
from shardalg.merge.proofs.integers import Number, equal, implies, within
from shardalg.ops.families.building import has_zero
from shardalg.ops.rule import ARGMAX, ARGMIN, PICK, SUM, TOP, USER
from shardalg.spmd.identity import is_kept
from shardalg.spmd.instruction import Collective
from shardalg.spmd.instructions import AllGather, AllReduce, AllToAll, AllToAlls, ReduceScatter
from shardalg.verify.contents import (
    Fill,
    Held,
    at_member,
    fill_number,
    partition_number,
    without,
)
from shardalg.verify.move import (
    MEMBER,
    CheckedInstruction,
    Result,
    Stated,
    X,
    bare,
    members_agree,
    moves,
    said_along,
    undisturbed,
    with_dim,
)
from shardalg.verify.moves.slices import cut
from shardalg.verify.report import Decided


def _arrives(
    step: CheckedInstruction[Collective], arriving: Number, said: Held, length: int, place: Number
) -> Stated:
    """The element at place `x` of what a member sends stands at `place` of the result."""
    digits = step.attributes.digits
    here = within(said.start + place, 0, said.size)
    goal = implies(here, equal(arriving + X, said.start + place))
    words = f"place {place} receives element {arriving}+x"
    members = ((MEMBER, digits),)
    return "delivers", step.claim(words, goal, unknowns=(("x", length),), members=members)


def _member_id(digits: Digits) -> Number:
    own = partition_number(digits)
    return at_member(own, digits, MEMBER)


@moves(AllGather)
def _all_gather(step: CheckedInstruction[AllGather]) -> Result:
    a = step.attributes
    held, said = step.given.dims[a.dim], said_along(step, a.dim)
    count = parts(a.digits)
    arriving = at_member(held.start, a.digits, MEMBER)
    place = _member_id(a.digits) * held.length + X
    stated = [
        _arrives(step, arriving, said, held.length, place),
        ("delivers", Decided("blocks of all members", said.length == held.length * count)),
        *members_agree(step, a.digits, (a.dim,)),
        undisturbed(step),
    ]
    return with_dim(step.given, a.dim, said), stated


_BY_OTHERS = (ARGMAX, ARGMIN, TOP, USER)
"""Ways to combine of which instructions of their own make one result."""


def _summed(step: CheckedInstruction[AllReduce | ReduceScatter]) -> Result:
    """The digits of the collective are pending, and joined as they should be; they are then not."""
    a, given = step.attributes, step.given
    rest = without(given.unreduced, a.digits)
    words = f"{a.combine} joins what is pending: {given.combine}"
    joins = a.combine == given.combine and a.combine not in _BY_OTHERS
    joins = joins or (a.combine, given.combine) == (SUM, PICK)
    # members without an element add zero bits, of which a type may make another number
    joins = joins and (has_zero(step.made.dtype) or a.combine not in (SUM, PICK))
    stated = [
        ("combine", Decided(words, rest is not None and joins)),
        bare(given),
        *members_agree(step, a.digits, ()),
    ]
    dims = tuple(replace(held, fill=_kept(step, held.fill)) for held in given.dims)
    return replace(given, dims=dims, unreduced=given.unreduced if rest is None else rest), stated


def _kept(step: CheckedInstruction[AllReduce | ReduceScatter], fill: Fill) -> Fill:
    """What fills the padding of every member, where it stays that when these are combined."""
    way, dtype = step.attributes.combine, step.made.dtype
    number = fill_number(fill, dtype)
    if number is None or way in _BY_OTHERS:
        return None
    return fill if is_kept(SUM if way == PICK else way, number, dtype) else None


@moves(AllReduce)
def _all_reduce(step: CheckedInstruction[AllReduce]) -> Result:
    return _summed(step)


@moves(ReduceScatter)
def _reduce_scatter(step: CheckedInstruction[ReduceScatter]) -> Result:
    """Summed as by an all-reduce, of which each member has its own block."""
    a = step.attributes
    whole, stated = _summed(step)
    size = whole.dims[a.dim].length // parts(a.digits)
    summed = replace(step, operands=(whole,))
    made, more = cut(summed, partition_number(a.digits) * size, size)
    return made, [*stated, *more]


@moves(AllToAll)
def _all_to_all(step: CheckedInstruction[AllToAll]) -> Result:
    return _exchanged(step)


def _exchanged(step: CheckedInstruction[AllToAll]) -> Result:
    """Each member sends a piece of one dimension, which arrive along another."""
    a = step.attributes
    said = {dim: said_along(step, dim) for dim in (a.split_dim, a.concat_dim)}
    split, joined = step.given.dims[a.split_dim], step.given.dims[a.concat_dim]
    piece = split.length // parts(a.digits)
    piece_number = partition_number(a.arriving or a.digits)
    sent = at_member(split.start, a.digits, MEMBER) + piece_number * piece
    place = _member_id(a.digits) * joined.length + X
    arriving = at_member(joined.start, a.digits, MEMBER)
    stated = [
        _arrives(step, sent, said[a.split_dim], piece, X),
        _arrives(step, arriving, said[a.concat_dim], joined.length, place),
        *members_agree(step, a.digits, (a.split_dim, a.concat_dim)),
        undisturbed(step),
    ]
    fill = split.fill if split.start == Number() and said[a.split_dim].start == sent else None
    made = with_dim(step.given, a.split_dim, replace(said[a.split_dim], fill=fill))
    return with_dim(made, a.concat_dim, said[a.concat_dim]), stated


@moves(AllToAlls)
def _all_to_alls(step: CheckedInstruction[AllToAlls]) -> Result:
    """Each exchange after the one before: no dimension and no digit is of two of them."""
    a = step.attributes
    apart = len({*a.dims}) == len(a.dims)
    words = "the exchanges have dimensions and digits of their own"
    found: list[Stated] = [("delivers", Decided(words, apart and not _share(a)))]
    given = step.given
    for one in a.exchanges:
        alone = CheckedInstruction(step.mesh, one, (given,), step.made)
        given, more = _exchanged(alone)
        found += more
    return given, found


def _share(a: AllToAlls) -> bool:
    """Whether digits of two exchanges overlap."""
    pairs = combinations([one.digits for one in a.exchanges], 2)
    return any(overlap(x, y) for first, second in pairs for x, y in product(first, second))
