"""Merges as formulas: the result agrees with every operand, and its tiles are balanced.

Refusals of a merge as formulas: a device with two offsets, a tile that too few devices hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import z3

from shardalg.algebra.digits import Digits, complement, partition_id, parts
from shardalg.algebra.sharding import CLASSES, Sharding
from shardalg.merge.places import DimOrClass, block_of, digits_at, offset_at
from shardalg.merge.proofs.claims import MergeClaim
from shardalg.merge.proofs.encode import (
    Atom,
    Devices,
    Number,
    Obligation,
    Space,
    Unprovable,
    Values,
)
from shardalg.merge.verdict import Verdict, Witness, owners

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


def refusing(verdict: Verdict, devices: Devices) -> list[Obligation]:
    """The formulas of a refusal."""
    assert verdict.failure is not None
    made = _forced(verdict) if verdict.clash else []
    if verdict.failure.kind in ("overlap", "joint"):
        return [*made, _unheld(verdict, devices)]
    if verdict.failure.kind == "offset" and verdict.policy == "shardy":
        return [*made, *_no_prefixes(verdict, devices)]
    return [*made, *_two_offsets(verdict, devices)]


def _forced(verdict: Verdict) -> list[Obligation]:
    """On each dimension, a merge of the first operands lies as one of them does.

    Canonical digits are unique, so this is equality of digits and needs no solver.
    """
    for merged in verdict.pair:
        for place, digits in merged.split_places:
            if all(digits_at(s, place) != digits for s in verdict.operands):
                if place != "replicated":  # the digits of several operands, together
                    return [Obligation((), z3.BoolVal(False))]
    return []


def _no_prefixes(verdict: Verdict, devices: Devices) -> list[Obligation]:
    """Under the shardy policy: neither partition id is the major part of the other one's.

    For all sizes: with `n` and `m` parts, `p` is the major part of `q` only if
    `p*m <= q*n < (p + 1)*m`, which fails on a device at 1 on one axis or on two.
    """
    assert verdict.failure is not None
    place = verdict.failure.dims[0]
    rows = [digits_at(s, place) for s in verdict.pair]
    return [
        obligation
        for nth, (coarse, fine) in enumerate((rows, rows[::-1]))
        for obligation in _no_prefix(verdict, devices, coarse, fine, group=f"prefix{nth}")
    ]


def _no_prefix(
    verdict: Verdict, devices: Devices, coarse: Digits, fine: Digits, *, group: str
) -> list[Obligation]:
    found = devices.space
    if found is not None and found.symbolic:
        first, second = (found.atoms_of(digits) for digits in (coarse, fine))
        n, m = (found.count(atoms) for atoms in (first, second))
        units = [found.unit(atom) for atom in dict.fromkeys((*first, *second))]
        pairs = [(found.polynomial(first, u), found.polynomial(second, u)) for u in units]
        bounds = tuple(found.bounds())
        return [Obligation(bounds, _is_not_major(p, n, q, m), group=group) for p, q in pairs]
    n, m = parts(coarse), parts(fine)
    for position in range(verdict.pair[0].mesh.size):
        p, q = (partition_id(digits, position) for digits in (coarse, fine))
        if not p * m <= q * n < (p + 1) * m:
            fixed = tuple(devices.fixed("d", position))
            values = (devices.value(digits) for digits in (coarse, fine))
            return [Obligation(fixed, _is_not_major(next(values), n, next(values), m))]
    return [Obligation((), z3.BoolVal(False))]


def _is_not_major(p: Number, n: Number, q: Number, m: Number) -> z3.BoolRef:
    return z3.Not(z3.And(p * m <= q * n, q * n < (p + 1) * m))


def _two_offsets(verdict: Verdict, devices: Devices) -> list[Obligation]:
    """A device on which the operands differ.

    For all sizes: the device at 1 on one axis. An axis that only one operand has gives offset 0
    and a positive one; where both have the same axes in another order, their weights differ.
    """
    assert verdict.failure is not None and verdict.witness is not None
    place = verdict.failure.dims[0]
    rows = [digits_at(s, place) for s in verdict.pair]
    found = devices.space
    if found is None or not found.symbolic:
        device = verdict.witness.device
        assert device is not None
        position = verdict.pair[0].mesh.position(device)
        a, b = (devices.value(digits) * block_of(s, place) for s, digits in _zip(verdict, rows))
        return [Obligation(tuple(devices.fixed("d", position)), a != b)]
    first, second = (found.atoms_of(digits) for digits in rows)
    alone = [atom for atom in (*first, *second) if (atom in first) != (atom in second)]
    return [
        Obligation(
            tuple(found.bounds()),
            found.polynomial(first, found.unit(atom)) != found.polynomial(second, found.unit(atom)),
            group="unit",
        )
        for atom in alone or _moved(first, second)
    ]


def _moved(first: tuple[Atom, ...], second: tuple[Atom, ...]) -> list[Atom]:
    """Atoms with other atoms below them in the second order, the most minor first."""
    below = {atom: set(second[k + 1 :]) for k, atom in enumerate(second)}
    held = [atom for k, atom in enumerate(first) if set(first[k + 1 :]) != below[atom]]
    return held[::-1]


def _zip(verdict: Verdict, rows: list[Digits]) -> Iterable[tuple[Sharding, Digits]]:
    return zip(verdict.pair, rows, strict=True)


def _unheld(verdict: Verdict, devices: Devices) -> Obligation:
    """No device holds the tile; of digits of one mesh, the tile (0, 1) along a shared axis."""
    assert verdict.failure is not None and verdict.witness is not None
    places = verdict.failure.dims
    held_by = owners(verdict.pair, verdict.failure)
    rows = [digits_at(s, place) for s, place in zip(held_by, places, strict=True)]
    if devices.space is not None:
        return _unheld_on_axis(devices.space, rows)
    tile, count = verdict.witness.tile, verdict.witness.count
    if count:
        size = verdict.pair[0].mesh.size
        total = held(rows, [z3.IntVal(t) for t in tile], size)
        return Obligation((), total * math.prod(parts(row) for row in rows) != size)
    met = [devices.value(d) == t for d, t in zip(rows, tile, strict=True)]
    return Obligation(tuple(devices.bounds("d")), z3.Not(z3.And(met)))


def _unheld_on_axis(found: Space, rows: list[Digits]) -> Obligation:
    first, second = (found.atoms_of(digits) for digits in rows)
    shared: Atom = next(atom for atom in first if atom in second)
    device, zero, one = found.device("d"), found.unit(None), found.unit(shared)
    lemmas = [*found.lemmas(first, device, zero), *found.lemmas(second, device, one)]
    met = z3.And(
        found.radix(first, device) == found.radix(first, zero),
        found.radix(second, device) == found.radix(second, one),
    )
    return Obligation((*found.bounds(device), *lemmas), z3.Not(met))
