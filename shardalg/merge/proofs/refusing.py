"""Refusals of a merge as formulas: a device with two offsets, a tile that too few devices hold."""

from __future__ import annotations

import math
from collections.abc import Iterable

import z3

from shardalg.algebra.digits import Digits, partition_id, parts
from shardalg.algebra.sharding import Sharding
from shardalg.merge.places import block_of, digits_at
from shardalg.merge.proofs.devices import Devices, Obligation
from shardalg.merge.proofs.encode import Atom, Number, Space
from shardalg.merge.proofs.merging import held
from shardalg.merge.verdict import Verdict
from shardalg.merge.witness import owners


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
