"""Claims as formulas: what z3 must find true for a claim to be proved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import z3

from shardalg.algebra.digits import Digits, partition_id, parts
from shardalg.algebra.sharding import CLASSES, Sharding
from shardalg.merge.claims import MaskClaim, MergeClaim, RefineClaim
from shardalg.merge.compatible import merge
from shardalg.merge.encode import Atom, Number, Space, place_value, space
from shardalg.merge.formula import Condition, conditions
from shardalg.merge.integer_formulas import goal_of
from shardalg.merge.integers import IntegerClaim
from shardalg.merge.lemmas import lemma
from shardalg.merge.lemmas.lemma import Lemma
from shardalg.merge.places import Place, block_of, digits_at, offset_at
from shardalg.merge.verdict import Verdict
from shardalg.merge.witness import Witness, owner

Values = tuple[tuple[str, int], ...]

# Tiles of digits of different meshes are counted device by device, up to this many devices.
MAX_COUNTED = 4096


@dataclass(frozen=True)
class Obligation:
    """`hypotheses` imply `goal`; `witness` reads a counterexample.

    Obligations of one `group` are alternatives: one of them is enough.
    """

    hypotheses: tuple[z3.BoolRef, ...]
    goal: z3.BoolRef
    witness: Callable[[Values], object] = lambda values: values
    group: str = ""


class Unprovable(Exception):
    """A claim that has no formula here, with the reason; it becomes the status "unknown"."""


def obligations(claim: object, *, symbolic: bool) -> list[Obligation]:
    """The formulas of a claim, for the sizes at hand or for all sizes."""
    return _FORMULAS[type(claim)](claim, symbolic)


@dataclass(frozen=True)
class _Devices:
    """Unknown devices and how digits read on them: by coordinates, or by one position."""

    mesh_size: int
    space: Space | None

    def value(self, digits: Digits, tag: str = "d") -> Number:
        """Partition id of the device `tag`."""
        if self.space is None:
            return place_value(digits, z3.Int(tag))
        return self.space.partition_id(self.space.atoms_of(digits), self.space.device(tag))

    def bounds(self, *tags: str) -> list[z3.BoolRef]:
        if self.space is None:
            return [z3.And(z3.Int(tag) >= 0, z3.Int(tag) < self.mesh_size) for tag in tags]
        return self.space.bounds(*(self.space.device(tag) for tag in tags))

    def fixed(self, tag: str, position: int) -> list[z3.BoolRef]:
        """The device `tag` is the one at `position`."""
        if self.space is None:
            return [z3.Int(tag) == position]
        device, values = self.space.device(tag), self.space.at(position)
        return [device[atom] == values[atom] for atom in self.space.atoms]

    def position(self, values: Values, tag: str = "d") -> int:
        named = dict(values)
        return named.get(tag, 0) if self.space is None else self.space.position(named, tag)


def _devices(shardings: Iterable[Sharding], symbolic: bool) -> _Devices:
    held = list(shardings)
    mesh = held[0].mesh
    digits = [d for s in held for _, row in s.split_places for d in row]
    found = space(mesh, digits, symbolic=symbolic)
    if found is None and symbolic:
        raise Unprovable(
            "the digits belong to different meshes, so the answer depends on the sizes "
            "(Verdict.condition says how): it is proved for the sizes at hand only"
        )
    return _Devices(mesh.size, found)


def _check_order(shardings: Iterable[Sharding]) -> None:
    if len({s.mesh.device_ids for s in shardings}) > 1:
        raise Unprovable("the operands order their devices differently, which no digits say")


def _merge(claim: MergeClaim, symbolic: bool) -> list[Obligation]:
    _check_order(s for s in (*claim.operands, claim.result) if s is not None)
    if claim.result is not None:
        operands = claim.operands
        devices = _devices((*operands, claim.result), symbolic)
        return [_agreement(claim, devices), _balance(claim.result, devices)]
    verdict = claim.verdict or merge(*claim.operands, policy=claim.policy)
    if verdict:
        found = verdict.sharding
        return [Obligation((), z3.BoolVal(False), lambda values: found)]
    return _refusal(verdict, symbolic)


def _agreement(claim: MergeClaim, devices: _Devices) -> Obligation:
    """The result has the offsets of each operand where the operand splits, and splits no more."""
    assert claim.result is not None
    pairs: list[tuple[Sharding, Place]] = []
    for place in (*range(len(claim.result.shape)), *CLASSES[:2]):
        operands = [s for s in claim.operands if digits_at(s, place)]
        if not operands or not isinstance(place, int):
            operands = list(claim.operands)
        pairs += [(operand, place) for operand in operands]
    goal = z3.And([_agrees(claim, operand, place, devices) for operand, place in pairs])
    return Obligation(tuple(devices.bounds("d")), goal, _differs(claim, pairs, devices))


def _agrees(claim: MergeClaim, operand: Sharding, place: Place, devices: _Devices) -> z3.BoolRef:
    """Equal offsets; under the shardy policy the operand's partition id is the major part."""
    assert claim.result is not None
    mine, theirs = digits_at(operand, place), digits_at(claim.result, place)
    a, b = devices.value(mine), devices.value(theirs)
    if claim.policy == "shardy" and isinstance(place, int) and mine != theirs:
        return _major_part(mine, theirs, devices)
    symbolic = devices.space is not None and devices.space.symbolic
    if not isinstance(place, int) or symbolic:
        return a == b  # the same function has the same number of parts, hence the same block
    return a * block_of(operand, place) == b * block_of(claim.result, place)


def _major_part(coarse: Digits, fine: Digits, devices: _Devices) -> z3.BoolRef:
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
    claim: MergeClaim, pairs: list[tuple[Sharding, Place]], devices: _Devices
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


def _balance(result: Sharding, devices: _Devices) -> Obligation:
    """Every tile on equally many devices.

    By coordinates: partition ids and the unused coordinates together determine the device. There
    are as many such tuples as devices (each atom stands in exactly one of them), so the map is a
    bijection, and every tile has the devices of its unused coordinates.
    """
    rows = [digits for _, digits in result.split_places]
    found = devices.space
    if found is None:
        return _counted(result, rows)
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


def _counted(result: Sharding, rows: list[Digits]) -> Obligation:
    """The same for digits of different meshes: an unknown tile, and the devices that hold it."""
    size, counts = result.mesh.size, [parts(digits) for digits in rows]
    tile = [z3.Int(f"tile{i}") for i in range(len(rows))]
    hypotheses = tuple(z3.And(t >= 0, t < n) for t, n in zip(tile, counts, strict=True))
    expected = size
    for n in counts:
        expected //= n
    return Obligation(hypotheses, _held(rows, tile, size) == expected)


def _held(rows: list[Digits], tile: list[Number], size: int) -> Number:
    """The number of devices that hold a tile, one term per device."""
    if size > MAX_COUNTED:
        raise Unprovable(
            f"digits of different meshes over {size} devices; tiles are counted up to {MAX_COUNTED}"
        )
    inside = [
        z3.And([t == partition_id(d, position) for t, d in zip(tile, rows, strict=True)])
        for position in range(size)
    ]
    return z3.Sum([z3.If(held, 1, 0) for held in inside])


def _refusal(verdict: Verdict, symbolic: bool) -> list[Obligation]:
    """A certificate: a device with two offsets, or a tile that too few devices hold."""
    assert verdict.failure is not None
    kind = verdict.failure.kind
    _check_order(verdict.pair)
    if kind == "offset" and verdict.policy == "shardy":
        raise Unprovable("a refusal under the shardy policy is that policy's rule, not a theorem")
    devices = _devices(verdict.pair, symbolic)
    if kind in ("overlap", "joint"):
        return [_unheld(verdict, devices)]
    return _two_offsets(verdict, devices)


def _two_offsets(verdict: Verdict, devices: _Devices) -> list[Obligation]:
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


def _unheld(verdict: Verdict, devices: _Devices) -> Obligation:
    """No device holds the tile; of digits of one mesh, the tile (0, 1) along a shared axis."""
    assert verdict.failure is not None and verdict.witness is not None
    places = verdict.failure.dims
    owners = [owner(verdict.pair, nth, place) for nth, place in enumerate(places)]
    rows = [digits_at(s, place) for s, place in zip(owners, places, strict=True)]
    if devices.space is not None:
        return _unheld_on_axis(devices.space, rows)
    tile, count = verdict.witness.tile, verdict.witness.count
    if count:
        size = verdict.pair[0].mesh.size
        held = _held(rows, [z3.IntVal(t) for t in tile], size)
        return Obligation((), held * math.prod(parts(row) for row in rows) != size)
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


def _refine(claim: RefineClaim, symbolic: bool) -> list[Obligation]:
    _check_order((claim.fine, claim.coarse))
    if symbolic:
        return _refine_for_all(claim)
    devices = _devices((claim.fine, claim.coarse), symbolic)
    blocks = [_bounds_of(s, devices) for s in (claim.fine, claim.coarse)]
    there = z3.And([start < stop for start, stop in blocks[0]])
    inside = z3.And([z3.And(a >= c, b <= d) for (a, b), (c, d) in zip(*blocks, strict=True)])
    if claim.holds:
        bounds = tuple(devices.bounds("d"))
        return [
            Obligation(bounds, z3.Implies(there, inside), lambda v: _device_of(claim, devices, v))
        ]
    if claim.device is None:
        raise Unprovable("no device is named on which a block leaves the other one")
    fixed = tuple(devices.fixed("d", claim.fine.mesh.position(claim.device)))
    return [Obligation(fixed, z3.And(there, z3.Not(inside)))]


def _device_of(claim: RefineClaim, devices: _Devices, values: Values) -> Witness:
    return Witness(device=claim.fine.mesh.order[devices.position(values)])


def _bounds_of(sharding: Sharding, devices: _Devices) -> list[tuple[Number, Number]]:
    """Start and end of the unknown device's elements on each dimension."""
    pairs = []
    rows = zip(sharding.shape, sharding.shard_shape, sharding.canonical_dims, strict=True)
    for size, block, digits in rows:
        start = devices.value(digits) * block
        stop = z3.If(start + block < size, start + block, z3.IntVal(size))
        pairs.append((start, stop))
    return pairs


def _refine_for_all(claim: RefineClaim) -> list[Obligation]:
    """Even blocks: `fine = coarse*m + r` on every device, and then the lemma puts them inside."""
    if not (claim.holds and claim.fine.is_even and claim.coarse.is_even):
        raise Unprovable("uneven blocks nest for some sizes and not for others")
    devices = _devices((claim.fine, claim.coarse), True)
    made = []
    for fine, coarse in zip(claim.fine.canonical_dims, claim.coarse.canonical_dims, strict=True):
        if fine != coarse:
            goal = _major_part(coarse, fine, devices)
            made.append(Obligation(tuple(devices.bounds("d")), goal))
    return [*made, *_lemma(lemma("refine_if"))]


def _mask(claim: MaskClaim, symbolic: bool) -> list[Obligation]:
    block = -(-claim.size // claim.parts)
    if symbolic and (claim.block, claim.limit) == (block, claim.size):
        return _lemma(lemma("mask_exact"))
    p, x = z3.Ints("p x")
    inside = (p >= 0, p < claim.parts, x >= 0, x < block)
    goal = (p * claim.block + x < claim.limit) == (x < _clip(claim.size - p * block, block))
    return [Obligation(inside, goal)]


def _clip(value: Number, high: Number) -> Number:
    return z3.If(value < 0, 0, z3.If(value > high, high, value))


def _lemma(claim: Lemma, symbolic: bool = True) -> list[Obligation]:
    """One obligation per condition that the lemma shows; its unknowns are all sizes anyway."""
    given = conditions(claim.given)
    return [_implied(given, shown) for shown in conditions(claim.shows)]


def _implied(given: tuple[Condition, ...], shown: Condition) -> Obligation:
    definitions = dict.fromkeys(d for c in (*given, shown) for d in c.definitions)
    return Obligation((*(c.formula for c in given), *definitions), shown.formula)


def _integers(claim: IntegerClaim, symbolic: bool) -> list[Obligation]:
    found = goal_of(claim)
    if found is None:
        raise Unprovable("digits of different meshes have no common coordinates to vary")
    bounds, goal, witness = found
    return [Obligation(tuple(bounds), goal, witness)]


_FORMULAS: dict[type, Callable[..., list[Obligation]]] = {
    MergeClaim: _merge,
    RefineClaim: _refine,
    MaskClaim: _mask,
    Lemma: _lemma,
    IntegerClaim: _integers,
}
