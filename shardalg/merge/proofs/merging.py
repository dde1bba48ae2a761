"""Merges as formulas: the result agrees with every operand, and its tiles are balanced."""

from __future__ import annotations

import math
from collections.abc import Callable

import z3

from shardalg.algebra.digits import Digits, complement, partition_id, parts
from shardalg.algebra.sharding import CLASSES, Sharding
from shardalg.merge.places import DimOrClass, block_of, digits_at, offset_at
from shardalg.merge.proofs.claims import MergeClaim
from shardalg.merge.proofs.devices import Devices, Obligation, Unprovable, Values
from shardalg.merge.proofs.encode import Number
from shardalg.merge.witness import Witness

# Tiles of digits of different meshes are counted device by device, up to this many devices.
MAX_COUNTED = 4096


def merging(claim: MergeClaim, devices: Devices) -> list[Obligation]:
    """The formulas of a merge that exists."""
    assert claim.result is not None
    return [_agreement(claim, devices), _balance(claim.result, devices)]


def _agreement(claim: MergeClaim, devices: Devices) -> Obligation:
    """The result has the offsets of each operand where the operand splits, and splits no more."""
    assert claim.result is not None
    pairs: list[tuple[Sharding, DimOrClass]] = []
    for place in (*range(len(claim.result.shape)), *CLASSES[:2]):
        operands = [s for s in claim.operands if digits_at(s, place)]
        if not operands or not isinstance(place, int):
            operands = list(claim.operands)
        pairs += [(operand, place) for operand in operands]
    goal = z3.And([_agrees(claim, operand, place, devices) for operand, place in pairs])
    bounds = tuple(devices.bounds("d"))
    if devices.space is not None and devices.space.symbolic:
        return Obligation(bounds, goal)  # a model has sizes of its own, which no device of ours has
    return Obligation(bounds, goal, _differs(claim, pairs, devices))


def _agrees(
    claim: MergeClaim, operand: Sharding, place: DimOrClass, devices: Devices
) -> z3.BoolRef:
    """Equal offsets; under the shardy policy the operand's partition id is the major part."""
    assert claim.result is not None
    mine, theirs = digits_at(operand, place), digits_at(claim.result, place)
    a, b = devices.value(mine), devices.value(theirs)
    if claim.policy == "shardy" and isinstance(place, int) and mine != theirs:
        return major_part(mine, theirs, devices)
    symbolic = devices.space is not None and devices.space.symbolic
    if not isinstance(place, int) or symbolic:
        return a == b  # the same function has the same number of parts, hence the same block
    return a * block_of(operand, place) == b * block_of(claim.result, place)


def major_part(coarse: Digits, fine: Digits, devices: Devices) -> z3.BoolRef:
    """`fine = coarse * m + r` with `0 <= r < m`."""
    found = devices.space
    if found is not None and found.symbolic:
        above, all_atoms = found.atoms_of(coarse), found.atoms_of(fine)
        d = found.device("d")
        chained = (*above, *all_atoms[len(above) :])
        return found.partition_id(all_atoms, d) == found.partition_id(chained, d)
    a, b, m = devices.value(coarse), devices.value(fine), parts(fine) // parts(coarse)
    return z3.And(a * m <= b, b < (a + 1) * m)


def _differs(
    claim: MergeClaim, pairs: list[tuple[Sharding, DimOrClass]], devices: Devices
) -> Callable[[Values], object]:
    """The device of a model, with the offsets of an operand and of the result there."""
    result = claim.result
    assert result is not None

    def read(values: Values) -> Witness:
        device = result.mesh.order[devices.position(values)]
        rows = [(place, offset_at(s, place, device)) for s, place in pairs]
        faults = [(p, a) for p, a in rows if a != offset_at(result, p, device)]
        place, offset = (faults or rows)[0]
        return Witness(device, place, (offset, offset_at(result, place, device)))

    return read


def _balance(result: Sharding, devices: Devices) -> Obligation:
    """Every tile on equally many devices.

    By coordinates: partition ids and the unused coordinates together determine the device. There
    are as many such tuples as devices (each atom stands in exactly one of them), so the map is a
    bijection, and every tile has the devices of its unused coordinates.
    """
    rows = [digits for _, digits in result.split_places]
    found = devices.space
    if found is None:
        return _balance_by_position(result, rows, devices)
    split = [found.atoms_of(digits) for digits in rows]
    used = [atom for atoms in split for atom in atoms]
    assert len(set(used)) == len(used), f"{result!r} uses an axis twice"
    groups = [*split, *((atom,) for atom in found.atoms if atom not in used)]
    first, second = found.device("d"), found.device("e")
    hypotheses = found.bounds(first, second)
    for atoms in groups:
        hypotheses += found.lemmas(atoms, first, second)
        hypotheses.append(found.radix(atoms, first) == found.radix(atoms, second))
    goal = z3.And([first[atom] == second[atom] for atom in found.atoms])
    return Obligation(tuple(hypotheses), goal)


def _balance_by_position(result: Sharding, rows: list[Digits], devices: Devices) -> Obligation:
    """The same in quotients of one position: with the digits that are left they determine it."""
    used = tuple(d for digits in rows for d in digits)
    rest = complement(used, result.mesh.size)
    if rest is None:
        return _counted(rows)
    alike = [devices.value(digits, "d") == devices.value(digits, "e") for digits in (*rows, rest)]
    goal = z3.Int("d") == z3.Int("e")
    return Obligation((*devices.bounds("d", "e"), *alike), goal)


def _counted(rows: list[Digits]) -> Obligation:
    """The same for digits of different meshes: an unknown tile, and who holds it in one period."""
    period = math.lcm(*(d.stride * d.size for digits in rows for d in digits))
    tile = [z3.Int(f"tile{i}") for i in range(len(rows))]
    counts = [parts(digits) for digits in rows]
    hypotheses = tuple(z3.And(t >= 0, t < n) for t, n in zip(tile, counts, strict=True))
    return Obligation(hypotheses, held(rows, tile, period) * math.prod(counts) == period)


def held(rows: list[Digits], tile: list[Number], size: int) -> Number:
    """The number of devices that hold a tile, one term per device."""
    if size > MAX_COUNTED:
        raise Unprovable(
            f"digits of different meshes over {size} devices; tiles are counted up to {MAX_COUNTED}"
        )
    inside = (
        z3.And([t == partition_id(d, position) for t, d in zip(tile, rows, strict=True)])
        for position in range(size)
    )
    return z3.Sum([z3.If(each, 1, 0) for each in inside])
