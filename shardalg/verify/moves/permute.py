"""Blocks that go from one device to another: each receives once, and what it should hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from shardalg.algebra.digits import canonical, partition_ids
from shardalg.algebra.mesh import Mesh
from shardalg.merge.proofs.integers import Number, PartitionId
from shardalg.spmd.instructions import CollectivePermute, HaloExchange, Reading
from shardalg.verify.contents import Contents, start_number
from shardalg.verify.move import (
    CheckedInstruction,
    Result,
    Results,
    Stated,
    begins,
    moves,
    moves_each,
    nothing_beyond,
    numbers_at,
    positions,
    said_along,
    undisturbed,
    with_dim,
)
from shardalg.verify.report import Decided


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
