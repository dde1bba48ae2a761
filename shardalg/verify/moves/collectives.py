"""Collectives of whole blocks: the member whose block arrives at each place.

A collective is claimed from its definition. At every place the claim compares the element that
arrives with the element that the result's layout has there. Permutes and halo exchanges are
compared device by device: each receives once, from a device that held the right block.
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
    AllGathers,
    AllReduce,
    AllToAll,
    AllToAlls,
    CollectivePermute,
    HaloExchange,
    RaggedAllToAll,
    Reading,
    ReduceScatter,
    ReduceScatters,
)
from shardalg.verify.contents import (
    DimensionContents,
    fill_number,
    on_member,
    partition_number,
    remove_digits,
    start_number,
)
from shardalg.verify.move import (
    MEMBER,
    CheckedInstruction,
    Goal,
    Result,
    Results,
    X,
    all_existing_wanted,
    declared_dim,
    members_agree,
    movement_keeps_meaning,
    moves,
    moves_each,
    no_pending_changes,
    numbers_at,
    positions,
    start_positions,
    with_dim,
)
from shardalg.verify.moves.slices import cut_places
from shardalg.verify.report import Decided


def _arrives(
    step: CheckedInstruction[Collective],
    arriving: Number,
    declared: DimensionContents,
    length: int,
    place: Number,
) -> Goal:
    """Return the claim that an element arrives at the place where the result declares it.

    Place `x` of a member's data becomes place `place` of the result. Both must be the same element,
    if an element exists there.

    Args:
      arriving: the element at the first place that the member sends.
      declared: the dimension of the result, as the program declares it.
      length: the number of places that the member sends.
    """
    digits = step.attributes.digits
    # A place of the result without an element may hold anything.
    is_element = within(declared.start + place, 0, declared.size)
    goal = implies(is_element, equal(arriving + X, declared.start + place))
    words = f"place {place} receives element {arriving}+x"
    members = ((MEMBER, digits),)
    return "delivers", step.claim(words, goal, unknowns=(("x", length),), members=members)


def _member_id(digits: Digits) -> Number:
    """Return the partition id, along `digits`, of the member of a collective that sends."""
    own_id = partition_number(digits)
    return on_member(own_id, digits, MEMBER)


@moves(AllGather)
def _all_gather(step: CheckedInstruction[AllGather]) -> Result:
    """Return the contents of an all-gather's result, and the claims that it is right.

    The result has the blocks of all members of the group next to each other.
    """
    a = step.attributes
    span, declared = step.operand.dims[a.dim], declared_dim(step, a.dim)
    # An all-gather has place x of member m's block at place m*length + x. The member is an unknown
    # of the claim, so that the size of a proof does not depend on the size of the group.
    count = parts(a.digits)
    arriving = on_member(span.start, a.digits, MEMBER)
    place = _member_id(a.digits) * span.length + X
    claims = [
        _arrives(step, arriving, declared, span.length, place),
        ("delivers", Decided("blocks of all members", declared.length == span.length * count)),
        *members_agree(step, a.digits, (a.dim,)),
        movement_keeps_meaning(step),
    ]
    return with_dim(step.operand, a.dim, declared), claims


def _own_parts(digits: Iterable[Digits], dims: Sequence[int]) -> Goal:
    """Return the claim that the parts of a collective do not disturb each other.

    A collective over several dimensions has one part per dimension. No two of them may share a
    dimension or a digit.

    Args:
      digits, dims: the digits and the dimension of each part.
    """
    # The parts are checked one after another, although one collective runs them together. This is
    # the same only if no part moves what another one moves.
    distinct = len({*dims}) == len(dims)
    pairs = combinations(digits, 2)
    shared = any(overlap(x, y) for first, second in pairs for x, y in product(first, second))
    words = "the parts have dimensions and digits of their own"
    return "delivers", Decided(words, distinct and not shared)


@moves(AllGathers)
def _all_gathers(step: CheckedInstruction[AllGathers]) -> Result:
    """Return the contents after an all-gather of several dimensions, and the claims to prove.

    It is checked as one all-gather per dimension, one after another.
    """
    a, operand = step.attributes, step.operand
    claims: list[Goal] = [_own_parts([digits for _, digits in a.along], a.dims)]
    for dim, digits in a.along:
        single = CheckedInstruction(step.mesh, AllGather(dim, digits), (operand,), step.declared)
        operand, gather_claims = _all_gather(single)
        claims += gather_claims
    return operand, claims


_BY_OTHERS = (ARGMAX, ARGMIN, TOP, USER)
"""Ways to combine that have instructions of their own instead of an all-reduce."""


def _combine(step: CheckedInstruction[AllReduce | ReduceScatter | ReduceScatters]) -> Result:
    """Return the contents after an all-reduce or reduce-scatter, and the claims for its use.

    The claims are: it combines in the way in which partial results are pending (a sum for sums),
    the members hold parts of the same elements, and no mask or other change of the numbers is
    missing. The digits of the collective are then no longer pending.
    """
    a, operand = step.attributes, step.operand
    other_digits = remove_digits(operand.unreduced, a.digits)
    words = f"{a.combine} is the pending combination: {operand.combine}"
    matches = a.combine == operand.combine and a.combine not in _BY_OTHERS
    # A pick has the number on one device and 0 on all others, so a sum returns it, too.
    matches = matches or (a.combine, operand.combine) == (SUM, PICK)
    # Members without an element contribute zero bits, which are not 0 in every item type.
    matches = matches and (has_zero(step.declared.dtype) or a.combine not in (SUM, PICK))
    claims = [
        ("combine", Decided(words, other_digits is not None and matches)),
        no_pending_changes(operand),
        *members_agree(step, a.digits, ()),
    ]
    # Padding is combined too. A fill stays known only if combining it with itself keeps it.
    combination, dtype = SUM if a.combine == PICK else a.combine, step.declared.dtype
    dims = []
    for span in operand.dims:
        number = fill_number(span.fill, dtype)
        stays_equal = (
            number is not None
            and combination not in _BY_OTHERS
            and is_kept(combination, number, dtype)
        )
        dims.append(replace(span, fill=span.fill if stays_equal else None))
    pending = operand.unreduced if other_digits is None else other_digits
    return replace(operand, dims=tuple(dims), unreduced=pending), claims


@moves(AllReduce)
def _all_reduce(step: CheckedInstruction[AllReduce]) -> Result:
    return _combine(step)


@moves(ReduceScatter)
def _reduce_scatter(step: CheckedInstruction[ReduceScatter]) -> Result:
    """Return the contents of a reduce-scatter's result, and the claims to prove.

    It is checked as an all-reduce, of which each member keeps its own block.
    """
    a = step.attributes
    whole, claims = _combine(step)
    # After the sum all members have the same numbers, so the own block is a slice without sending.
    size = whole.dims[a.dim].length // parts(a.digits)
    summed = replace(step, operands=(whole,))
    result, more = cut_places(summed, partition_number(a.digits) * size, size)
    return result, [*claims, *more]


@moves(ReduceScatters)
def _reduce_scatters(step: CheckedInstruction[ReduceScatters]) -> Result:
    """Return the contents after a reduce-scatter of several dimensions, and the claims to prove.

    It is checked as one all-reduce over all digits, of which each member keeps its own block of
    every dimension.
    """
    a = step.attributes
    result, claims = _combine(step)
    claims = [_own_parts([digits for _, digits in a.along], a.dims), *claims]
    for dim, digits in a.along:
        size = result.dims[dim].length // parts(digits)
        scatter = ReduceScatter(dim, digits, a.combine)
        single = CheckedInstruction(step.mesh, scatter, (result,), step.declared)
        result, cut_claims = cut_places(single, partition_number(digits) * size, size)
        claims += cut_claims
    return result, claims


@moves(AllToAll)
def _all_to_all(step: CheckedInstruction[AllToAll]) -> Result:
    """Return the contents of an all-to-all's result, and the claims that it is right.

    Each member cuts dimension `split_dim` into a piece per member, and sends one to each. It puts
    the pieces that it receives next to each other along dimension `concat_dim`.
    """
    a = step.attributes
    declared = {dim: declared_dim(step, dim) for dim in (a.split_dim, a.concat_dim)}
    split, joined = step.operand.dims[a.split_dim], step.operand.dims[a.concat_dim]
    # The member sends piece number p, where p is the receiver's partition id, and the receiver puts
    # the pieces next to each other in the order of the members.
    piece = split.length // parts(a.digits)
    piece_number = partition_number(a.arriving or a.digits)
    sent = on_member(split.start, a.digits, MEMBER) + piece_number * piece
    place = _member_id(a.digits) * joined.length + X
    arriving = on_member(joined.start, a.digits, MEMBER)
    claims = [
        _arrives(step, sent, declared[a.split_dim], piece, X),
        _arrives(step, arriving, declared[a.concat_dim], joined.length, place),
        *members_agree(step, a.digits, (a.split_dim, a.concat_dim)),
        movement_keeps_meaning(step),
    ]
    # The operand's padding is the padding of the received piece only if every member holds the same
    # whole dimension, and the piece starts where the result declares it.
    fill = split.fill if split.start == Number() and declared[a.split_dim].start == sent else None
    result = with_dim(step.operand, a.split_dim, replace(declared[a.split_dim], fill=fill))
    return with_dim(result, a.concat_dim, declared[a.concat_dim]), claims


@moves(AllToAlls)
def _all_to_alls(step: CheckedInstruction[AllToAlls]) -> Result:
    """Return the contents after several all-to-alls in one instruction, and the claims to prove.

    They are checked one after another. No two may share a dimension or a digit.
    """
    a = step.attributes
    claims: list[Goal] = [_own_parts([one.digits for one in a.exchanges], a.dims)]
    operand = step.operand
    for one in a.exchanges:
        single = CheckedInstruction(step.mesh, one, (operand,), step.declared)
        operand, exchange_claims = _all_to_all(single)
        claims += exchange_claims
    return operand, claims


@moves(RaggedAllToAll)
def _ragged_all_to_all(step: CheckedInstruction[RaggedAllToAll]) -> Result:
    """Return a refuted claim, because the planner never emits a ragged all-to-all.

    A program may have one only if the user's function calls it, which is checked by
    `Verifier.user_collective` instead.
    """
    words = "a ragged all-to-all is a collective that the function itself calls"
    return step.operand, [("manual", Decided(words, holds=False))]


@moves(CollectivePermute)
def _permute(step: CheckedInstruction[CollectivePermute]) -> Result:
    """Return the contents after a permute, and the claims that it is right.

    Each device must receive exactly once, from a device that held the block that the result
    declares for the receiver.
    """
    declared, devices = step.declared_contents, np.arange(step.mesh.size)
    sources, targets = positions(step.attributes.pairs)
    # The two sides may count devices in different orders: compare starts device by device.
    source_places, target_places = (
        devices
        if contents.order == step.mesh.device_ids
        else step.mesh.places(Mesh(step.mesh.axes, contents.order))
        for contents in (step.operand, declared)
    )
    once = all(np.array_equal(np.sort(side), devices) for side in (sources, targets))
    same_blocks = once and all(
        np.array_equal(
            numbers_at(held.start, source_places[sources]),
            numbers_at(wanted.start, target_places[targets]),
        )
        for held, wanted in zip(step.operand.dims, declared.dims, strict=True)
    )
    range_claims = [
        claim for span in step.operand.dims for claim in all_existing_wanted(step, span)
    ]
    words = "every device receives the block of its new place, once"
    claims = [
        ("delivers", Decided(words, bool(same_blocks))),
        ("combine", Decided("partial sums stay where they are", not step.operand.unreduced)),
        movement_keeps_meaning(step),
        *range_claims,
    ]
    # The permute may also change the device order of the mesh. Starts are formulas in positions of
    # a device order, so the result takes the declared starts together with their order.
    dims = tuple(declared_dim(step, dim) for dim in range(len(declared.dims)))
    return replace(step.operand, dims=dims, order=declared.order), claims


def _halo_result(step: CheckedInstruction[HaloExchange], reading: Reading) -> Result:
    """Return the contents of one result of a halo exchange, and the claims that it is right.

    A reading names, for each device `p`, the block that it receives (`source(p)`) and the first
    element that it wants (`wanted(p)`). The claims compare this with the permutes: the last permute
    that reaches a device must come from a device with the named block, and sender and receiver must
    have the same elements along all other dimensions.
    """
    a, span = step.attributes, step.operand.dims[step.attributes.dim]
    source, wanted = start_number(reading.source), start_number(reading.wanted)
    own_id = PartitionId(canonical(a.digits))
    # The received block is the device's own block with the sender's partition id in the formula.
    arriving = span.start.replaced(lambda atom: source if atom == own_id else None)
    if not own_id.digits:  # the only block is number 0: elements of any other block do not exist
        arriving = span.start + source * span.size
    devices = np.arange(step.mesh.size)
    # `sender_of` has the sender of each device. A device that receives nothing has its own block,
    # which counts only if the reading names this block. Otherwise it has none (-1).
    keeps_own = numbers_at(source, devices) == partition_ids(a.digits, devices)
    sender_of, edges = (
        np.where(keeps_own, devices, -1),
        [positions(pairs) for pairs in reading.permutes],
    )
    are_devices = all(bool(((0 <= side) & (side < len(devices))).all()) for side in edges)
    # A later permute of one reading overwrites the sender, as it overwrites the buffer.
    for sources, targets in edges if are_devices else ():
        sender_of[targets] = sources
    same_blocks = are_devices and _senders_match(
        step, (sender_of, devices), reading, (arriving, wanted)
    )
    has_sender = sender_of >= 0
    # The permute sends blocks as they are. If sender and receiver had other elements along another
    # dimension, the received rows would be of another part of the tensor.
    others = all(
        np.array_equal(
            numbers_at(start, sender_of[has_sender]), numbers_at(start, devices[has_sender])
        )
        for dim, other in enumerate(step.operand.dims)
        if dim != a.dim
        for start in start_positions(other)
    )
    words = "every device receives the wanted elements of the block that it names"
    lower, upper = reading.places
    requested = ((wanted, reading.length), (arriving + lower, upper - lower))
    result = replace(span, start=arriving, wanted=requested, fill=None).part(Number(), span.length)
    # The result has only the requested elements: those that the device wants and those received.
    claims = [
        ("delivers", Decided(words, bool(same_blocks and others))),
        movement_keeps_meaning(step),
    ]
    return with_dim(step.operand, a.dim, result), [*claims, *all_existing_wanted(step, span)]


def _senders_match(
    step: CheckedInstruction[HaloExchange],
    pair: tuple[np.ndarray, np.ndarray],
    reading: Reading,
    forms: tuple[Number, Number],
) -> bool:
    """Return whether every device receives the block that the reading of a halo exchange names.

    A device may receive any other block if it wants no element of the named block.

    Args:
      pair: per device, the position of its sender (-1 for none), and its own position.
      forms: the start of the named block and the first wanted element, as formulas in the partition
        ids of the receiver.
    """
    sources, here = pair
    span = step.operand.dims[step.attributes.dim]
    start, wanted = (numbers_at(form, here) for form in forms)
    lower, upper = reading.places
    # A sender matters only if its places, the wanted range and the elements that exist intersect.
    low = np.maximum(np.maximum(start + lower, wanted), 0)
    high = np.minimum(np.minimum(start + upper, wanted + reading.length), span.size)
    # A device without a sender has no elements, which is right where it wants none.
    right = (sources >= 0) & (numbers_at(span.start, sources) == start)
    return bool(((low >= high) | right).all())


def _is_permutation(
    permute: Sequence[Iterable[tuple[int, int]]], operands: Sequence[int], devices: int
) -> bool:
    """Return whether every device sends at most once and receives at most once in a permute.

    The readings of a halo exchange share their permutes. An edge from a source to a target that two
    readings need is one message, so it counts once.

    Args:
      permute: per reading, its (source, target) pairs in this permute.
      operands: per reading, the number of the operand that is sent.
      devices: the number of devices.
    """
    codes = []
    for pairs, operand in zip(map(positions, permute), operands, strict=True):
        sources, targets = pairs
        if not ((pairs >= 0) & (pairs < devices)).all():
            return False
        # Edges become integers, so that numpy finds the equal edges of two readings by sorting.
        codes.append((operand * devices + sources) * devices + targets)
    edges = np.unique(np.concatenate(codes))
    sides = edges // devices % devices, edges % devices
    return all(np.bincount(side, minlength=1).max() <= 1 for side in sides)


@moves_each(HaloExchange)
def _halo_exchange(step: CheckedInstruction[HaloExchange]) -> Results:
    """Return the contents of every result of a halo exchange, and the claims to prove.

    Each reading of the exchange makes one result. In a permute, a device must send at most once and
    receive at most once.
    """
    operands, readings = step.operands, step.attributes.readings
    results = [_halo_result(replace(step, operands=(operands[r.operand],)), r) for r in readings]
    # Readings share the permutes, so each permute is checked for all readings together.
    numbers = [reading.operand for reading in readings]
    permutes = zip(*(reading.permutes for reading in readings), strict=True)
    once = all(_is_permutation(permute, numbers, step.mesh.size) for permute in permutes)
    words = "in a permute every device sends at most once and receives at most once"
    return results, [("delivers", Decided(words, once))]
