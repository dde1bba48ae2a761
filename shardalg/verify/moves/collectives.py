"""Collectives of whole blocks: which member's block arrives at which place.

A collective is claimed from its definition. The claim compares, at every place, the element that
arrives with the one that the result's layout puts there.

Blocks that go from one device to another: each receives once, and what it should hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations, product

import numpy as np

from shardalg.algebra.digits import Digits, canonical, overlap, partition_ids, parts
from shardalg.algebra.mesh import Mesh
from shardalg.graph.ops.families.building import has_zero
from shardalg.graph.ops.rule import ARGMAX, ARGMIN, PICK, SUM, TOP, USER
from shardalg.merge.proofs.integers import Number, PartitionId, equal, implies, within
from shardalg.spmd.identity import is_kept
from shardalg.spmd.instruction import Collective
from shardalg.spmd.instructions import (
    AllGather,
    AllReduce,
    AllToAll,
    AllToAlls,
    CollectivePermute,
    HaloExchange,
    Reading,
    ReduceScatter,
)
from shardalg.verify.contents import (
    Contents,
    DimensionContents,
    Fill,
    at_member,
    fill_number,
    partition_number,
    start_number,
    without,
)
from shardalg.verify.move import (
    MEMBER,
    CheckedInstruction,
    Result,
    Results,
    Stated,
    X,
    bare,
    begins,
    members_agree,
    moves,
    moves_each,
    nothing_beyond,
    numbers_at,
    positions,
    said_along,
    undisturbed,
    with_dim,
)
from shardalg.verify.moves.slices import cut
from shardalg.verify.report import Decided


def _arrives(
    step: CheckedInstruction[Collective],
    arriving: Number,
    said: DimensionContents,
    length: int,
    place: Number,
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


@moves(CollectivePermute)
def _permute(step: CheckedInstruction[CollectivePermute]) -> Result:
    """Each device receives once, from a device that held what it should hold."""
    said, devices = step.said, np.arange(step.mesh.size)
    sources, targets = positions(step.attributes.pairs)
    before, after = (_places(step.mesh, contents) for contents in (step.given, said))
    once = all(np.array_equal(np.sort(side), devices) for side in (sources, targets))
    lies = once and all(
        np.array_equal(
            numbers_at(have.start, before[sources]), numbers_at(want.start, after[targets])
        )
        for have, want in zip(step.given.dims, said.dims, strict=True)
    )
    whole = [claim for held in step.given.dims for claim in nothing_beyond(step, held)]
    words = "every device receives the block of its new place, once"
    stated = [
        ("delivers", Decided(words, bool(lies))),
        ("combine", Decided("partial sums stay where they are", not step.given.unreduced)),
        undisturbed(step),
        *whole,
    ]
    dims = tuple(said_along(step, dim) for dim in range(len(said.dims)))
    return replace(step.given, dims=dims, order=said.order), stated


def _places(mesh: Mesh, contents: Contents) -> np.ndarray:
    """Where each device, by position, stands in the order in which contents are said."""
    if contents.order == mesh.device_ids:
        return np.arange(mesh.size)
    return mesh.places(Mesh(mesh.axes, contents.order))


def _read(step: CheckedInstruction[HaloExchange], reading: Reading) -> Result:
    """The permutes bring every device what a reading wants of the block that it names."""
    a, held = step.attributes, step.given.dims[step.attributes.dim]
    source, wanted = start_number(reading.source), start_number(reading.wanted)
    own = PartitionId(canonical(a.digits))
    arriving = held.start.replaced(lambda atom: source if atom == own else None)
    if not own.digits:  # one block, number 0: what is before or behind it does not exist
        arriving = held.start + source * held.size
    here = np.arange(step.mesh.size)
    # who is no target keeps its own block where that is the one which is named, and else has none
    kept = numbers_at(source, here) == partition_ids(a.digits, here)
    served, edges = np.where(kept, here, -1), [positions(pairs) for pairs in reading.permutes]
    inside = all(bool(((0 <= side) & (side < len(here))).all()) for side in edges)
    for sources, targets in edges if inside else ():
        served[targets] = sources
    lies = inside and _serves(step, (served, here), reading, (arriving, wanted))
    there = served >= 0
    others = all(
        np.array_equal(numbers_at(begin, served[there]), numbers_at(begin, here[there]))
        for dim, other in enumerate(step.given.dims)
        if dim != a.dim
        for begin in begins(other)
    )
    words = "every device receives what it wants of the block that it names"
    lower, upper = reading.places
    asked = ((wanted, reading.length), (arriving + lower, upper - lower))
    made = replace(held, start=arriving, wanted=asked, fill=None).part(Number(), held.length)
    stated = [("delivers", Decided(words, bool(lies and others))), undisturbed(step)]
    return with_dim(step.given, a.dim, made), [*stated, *nothing_beyond(step, held)]


def _serves(
    step: CheckedInstruction[HaloExchange],
    pair: tuple[np.ndarray, np.ndarray],
    reading: Reading,
    forms: tuple[Number, Number],
) -> bool:
    """Whether every source's block begins where it should, if any of it is wanted.

    Args:
      pair: the device that serves each one, -1 for nobody, and each one.
    """
    sources, here = pair
    held = step.given.dims[step.attributes.dim]
    start, wanted = (numbers_at(form, here) for form in forms)
    lower, upper = reading.places
    low = np.maximum(np.maximum(start + lower, wanted), 0)
    high = np.minimum(np.minimum(start + upper, wanted + reading.length), held.size)
    right = (sources >= 0) & (numbers_at(held.start, sources) == start)
    return bool(((low >= high) | right).all())


def _sent_once(step: CheckedInstruction[HaloExchange]) -> Stated:
    """For all readings together a permute takes one block of a device, and brings it one."""
    readings = step.attributes.readings
    operands = [reading.operand for reading in readings]
    permutes = zip(*(reading.permutes for reading in readings), strict=True)
    once = all(_once(permute, operands, step.mesh.size) for permute in permutes)
    return "delivers", Decided("in a permute every device sends and receives once at most", once)


def _once(
    permute: Sequence[Iterable[tuple[int, int]]], operands: Sequence[int], devices: int
) -> bool:
    """Whether the edges of all readings, each counted once, share no source and no target."""
    codes = []
    for pairs, operand in zip(map(positions, permute), operands, strict=True):
        sources, targets = pairs
        if not ((pairs >= 0) & (pairs < devices)).all():
            return False
        codes.append((operand * devices + sources) * devices + targets)
    found = np.sort(np.concatenate(codes))
    found = found[np.append(True, found[1:] != found[:-1])[: len(found)]]
    sides = found // devices % devices, found % devices
    return all(np.bincount(side, minlength=1).max() <= 1 for side in sides)


@moves_each(HaloExchange)
def _halo_exchange(step: CheckedInstruction[HaloExchange]) -> Results:
    given, readings = step.operands, step.attributes.readings
    found = [_read(replace(step, operands=(given[r.operand],)), r) for r in readings]
    return found, [_sent_once(step)]
