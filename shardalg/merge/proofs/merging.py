"""Formulas of merges and of refusals.

A merge: the result agrees with every operand, and its tiles are balanced. A refusal: a device has
two offsets, or a tile is on too few devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable

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

MAX_COUNTED = 4096
"""Tiles of digits of different meshes are counted device by device, up to this many devices."""


def merging(claim: MergeClaim, devices: Devices) -> list[Obligation]:
    """Return the formulas that prove the result of a merge: it agrees and is balanced."""
    assert claim.result is not None
    return [_agreement(claim, devices), _balance(claim.result, devices)]


def _agreement(claim: MergeClaim, devices: Devices) -> Obligation:
    """Return the formula that the result of a merge agrees with the operands.

    On each dimension, the result has the same offsets as every operand that splits the dimension. A
    dimension that no operand splits is not split. The unreduced and the manual axes of the result
    are those of the operands.
    """
    assert claim.result is not None
    pairs: list[tuple[Sharding, DimOrClass]] = []
    for place in (*range(len(claim.result.shape)), *CLASSES[:2]):
        operands = [s for s in claim.operands if digits_at(s, place)]
        # If no operand splits the dimension, the result must not split it either. Classes must be
        # equal everywhere. In both cases the result is compared with every operand.
        if not operands or not isinstance(place, int):
            operands = list(claim.operands)
        pairs += [(operand, place) for operand in operands]
    goal = z3.And([_agrees(claim, operand, place, devices) for operand, place in pairs])
    bounds = tuple(devices.bounds("d"))
    # With symbolic sizes a model has other sizes, so it describes no device of the mesh.
    if devices.space is not None and devices.space.symbolic:
        return Obligation(bounds, goal)
    return Obligation(bounds, goal, _differs(claim, pairs, devices))


def _agrees(
    claim: MergeClaim, operand: Sharding, place: DimOrClass, devices: Devices
) -> z3.BoolRef:
    """Return the formula that an operand and the result have equal offsets.

    They are compared on the dimension `place`, or on a class of axes such as "unreduced".
    Under the shardy policy the operand's partition id need only be the major part.
    """
    assert claim.result is not None
    mine, theirs = digits_at(operand, place), digits_at(claim.result, place)
    a, b = devices.value(mine), devices.value(theirs)
    # Equal digits agree under both policies, and equality is the simpler formula.
    if claim.policy == "shardy" and isinstance(place, int) and mine != theirs:
        return major_part(mine, theirs, devices)
    symbolic = devices.space is not None and devices.space.symbolic
    # Equal functions have equally many values, hence equal blocks, so ids are compared.
    if not isinstance(place, int) or symbolic:
        return a == b
    return a * block_of(operand, place) == b * block_of(claim.result, place)


def major_part(coarse: Digits, fine: Digits, devices: Devices) -> z3.BoolRef:
    """Return the formula that `fine = coarse * m + r` with `0 <= r < m`, for partition ids.

    It says that the coarse partition id is the major part of the fine one: every fine block is
    inside one coarse block. `m` is the number of fine parts in a coarse part.

    Args:
      coarse, fine: the digits that give the partition ids of a device.
      devices: the symbols for a device's position, or for its coordinates (`space`).
    """
    space = devices.space
    if space is not None and space.symbolic:
        # With symbolic sizes, an atom is one axis. `fine` has `coarse` as its major part if it has
        # the same value as the atoms of `coarse`, followed by its own other atoms.
        coarse_atoms, all_atoms = space.atoms_of(coarse), space.atoms_of(fine)
        device = space.device("d")
        extended_atoms = (*coarse_atoms, *all_atoms[len(coarse_atoms) :])
        return space.partition_id(all_atoms, device) == space.partition_id(extended_atoms, device)
    a, b, m = devices.value(coarse), devices.value(fine), parts(fine) // parts(coarse)
    return z3.And(a * m <= b, b < (a + 1) * m)


def _differs(
    claim: MergeClaim, pairs: list[tuple[Sharding, DimOrClass]], devices: Devices
) -> Callable[[Values], object]:
    """Return a function that reads the witness of a model: a device with two different offsets."""
    result = claim.result
    assert result is not None

    def read(values: Values) -> Witness:
        """Return a device on which the claim is false, with the dimension or class that differs.

        Args:
          values: the solver's counterexample, which gives the coordinates of the device.
        """
        device = result.mesh.order[devices.position(values)]
        # The model names a device only: find a dimension or class along which the offset of an
        # operand there is not that of the result.
        rows = [(place, offset_at(s, place, device)) for s, place in pairs]
        faults = [(p, a) for p, a in rows if a != offset_at(result, p, device)]
        # If ids are compared (all sizes, or Shardy's policy), all offsets may be equal here.
        place, offset = (faults or rows)[0]
        return Witness(device, place, (offset, offset_at(result, place, device)))

    return read


def _balance(result: Sharding, devices: Devices) -> Obligation:
    """Return the formula that every tile is on equally many devices.

    A device is described by its partition ids and its coordinates on unused axes. There are as many
    such tuples as devices. The formula says that two devices with equal tuples are one device. So
    each tuple is one device, and each tile is on as many devices as there are unused coordinates.
    """
    split_digits = [digits for _, digits in result.split_places]
    space = devices.space
    if space is None:
        return _balance_by_position(result, split_digits, devices)
    atoms_of_dims = [space.atoms_of(digits) for digits in split_digits]
    used_atoms = [atom for atoms in atoms_of_dims for atom in atoms]
    assert len(set(used_atoms)) == len(used_atoms), f"{result!r} uses an axis twice"
    # The number of atoms in all groups is the number of axes: each is used once, or alone in a
    # group.
    groups = [*atoms_of_dims, *((atom,) for atom in space.atoms if atom not in used_atoms)]
    first, second = space.device("d"), space.device("e")
    hypotheses = space.bounds(first, second)
    for atoms in groups:
        hypotheses += space.lemmas(atoms, first, second)
        hypotheses.append(space.radix(atoms, first) == space.radix(atoms, second))
    # Equal coordinates mean that both are the same device.
    goal = z3.And([first[atom] == second[atom] for atom in space.atoms])
    return Obligation(tuple(hypotheses), goal)


def _balance_by_position(result: Sharding, rows: list[Digits], devices: Devices) -> Obligation:
    """Return the formula of `_balance` for a device that is one unknown number, its position.

    Partition ids are quotients and remainders of the position. For digits of one mesh, two
    positions with equal ids are equal, so each tile is on equally many devices. For digits of
    different meshes, the devices of an unknown tile are counted.

    Args:
      rows: the digits of each dimension or class of `result`.
    """
    used_digits = tuple(d for digits in rows for d in digits)
    unused_digits = complement(used_digits, result.mesh.size)
    if unused_digits is not None:
        # Partition ids and the unused digits together determine the position.
        id_pairs = [
            (devices.value(row, "d"), devices.value(row, "e")) for row in (*rows, unused_digits)
        ]
        equal_ids = [first == second for first, second in id_pairs]
        return Obligation((*devices.bounds("d", "e"), *equal_ids), z3.Int("d") == z3.Int("e"))
    # Digits of different meshes have no complement. They repeat with this period, so it is enough
    # to count the devices in one period.
    period = math.lcm(*(d.stride * d.size for digits in rows for d in digits))
    tile = [z3.Int(f"tile{i}") for i in range(len(rows))]
    counts = [parts(digits) for digits in rows]
    hypotheses = tuple(z3.And(t >= 0, t < n) for t, n in zip(tile, counts, strict=True))
    return Obligation(hypotheses, tile_count(rows, tile, period) * math.prod(counts) == period)


def tile_count(rows: list[Digits], tile: list[Number], size: int) -> Number:
    """Return the number of devices on which a tile is, as a sum with one term per device.

    A term is 1 if all partition ids of the device are those of the tile, else 0.

    Args:
      rows: the digits of each split dimension or class.
      tile: the partition id along each of them; these may be unknowns.
      size: the number of devices.

    Raises:
      Unprovable: more than `MAX_COUNTED` devices.
    """
    if size > MAX_COUNTED:
        raise Unprovable(
            f"digits of different meshes over {size} devices; tiles are counted up to {MAX_COUNTED}"
        )
    is_on_device = (
        z3.And([t == partition_id(d, position) for t, d in zip(tile, rows, strict=True)])
        for position in range(size)
    )
    return z3.Sum([z3.If(condition, 1, 0) for condition in is_on_device])


def refusing(verdict: Verdict, devices: Devices) -> list[Obligation]:
    """Return the formulas which together prove that two shardings have no merge.

    The reason of the refusal decides which fact is proved: a tile would be on too few devices, a
    prefix is missing, or a device has two different offsets.

    Args:
      verdict: the refusal, with its reason and the two shardings.
    """
    assert verdict.failure is not None
    # Of more than two operands, the first ones were merged before one did not merge with the result
    # (`clash`). All of them have no merge only if that first merge was the only possible one.
    forced = _forced(verdict) if verdict.clash else []
    if verdict.failure.kind in ("overlap", "joint"):
        return [*forced, _tile_on_too_few(verdict, devices)]
    if verdict.failure.kind == "offset" and verdict.policy == "shardy":
        return [*forced, *_no_prefixes(verdict, devices)]
    return [*forced, *_two_offsets(verdict, devices)]


def _forced(verdict: Verdict) -> list[Obligation]:
    """Check that the merge of the first operands has, on each place, the digits of an operand.

    A place is a dimension or a class such as "unreduced". Canonical digits are unique, so no solver
    is needed: the result is [] if the check succeeds, else a false formula, with which the proof
    fails.
    """
    for merged in verdict.pair:
        for place, digits in merged.split_places:
            if all(digits_at(s, place) != digits for s in verdict.operands):
                if place != "replicated":  # the digits of several operands, together
                    return [Obligation((), z3.BoolVal(False))]
    return []


def _no_prefixes(verdict: Verdict, devices: Devices) -> list[Obligation]:
    """Return the formulas that neither partition id is a major part of the other one.

    Both directions must be proved. `group` marks the formulas of one direction, of which one is
    enough.
    """
    assert verdict.failure is not None
    dim = verdict.failure.dims[0]
    digits_of_operand = [digits_at(s, dim) for s in verdict.pair]
    # First operand 0 as the coarse one and operand 1 as the fine one, then the reverse.
    return [
        obligation
        for nth, (coarse, fine) in enumerate((digits_of_operand, digits_of_operand[::-1]))
        for obligation in _no_prefix(verdict, devices, coarse, fine, group=f"prefix{nth}")
    ]


def _no_prefix(
    verdict: Verdict, devices: Devices, coarse: Digits, fine: Digits, *, group: str
) -> list[Obligation]:
    """Return the formulas of the claim that `coarse` is no major part of `fine`.

    It is enough to prove one of the formulas: each is about one device. With `n` and `m` parts, `p`
    is the major part of `q` only if `p*m <= q*n < (p + 1)*m`. For symbolic sizes, the devices are
    those with coordinate 1 on one axis and 0 on all others. For sizes in numbers, it is one device
    for which the inequality is false.

    Args:
      verdict: the refusal that is proved.
      group: the name that the alternative formulas share.
    """
    space = devices.space
    if space is not None and space.symbolic:
        coarse_atoms, fine_atoms = (space.atoms_of(digits) for digits in (coarse, fine))
        n, m = (space.count(atoms) for atoms in (coarse_atoms, fine_atoms))
        # `unit(atom)` is the device with coordinate 1 on this axis and 0 on all others. At it, a
        # partition id is the product of the sizes of the axes below the atom.
        unit_devices = [space.unit(atom) for atom in dict.fromkeys((*coarse_atoms, *fine_atoms))]
        pairs = [
            (space.polynomial(coarse_atoms, u), space.polynomial(fine_atoms, u))
            for u in unit_devices
        ]
        bounds = tuple(space.bounds())
        return [Obligation(bounds, _is_not_major(p, n, q, m), group=group) for p, q in pairs]
    # For sizes in numbers, the first device that violates the inequality refutes the division, so
    # one formula about it is enough.
    n, m = parts(coarse), parts(fine)
    for position in range(verdict.pair[0].mesh.size):
        p, q = (partition_id(digits, position) for digits in (coarse, fine))
        if not p * m <= q * n < (p + 1) * m:
            fixed = tuple(devices.fixed("d", position))
            values = (devices.value(digits) for digits in (coarse, fine))
            return [Obligation(fixed, _is_not_major(next(values), n, next(values), m))]
    # No device violates it, so the claim is false, and so is this formula.
    return [Obligation((), z3.BoolVal(False))]


def _is_not_major(p: Number, n: Number, q: Number, m: Number) -> z3.BoolRef:
    """Return the formula that `p` of `n` parts is not the major part of `q` of `m` parts."""
    return z3.Not(z3.And(p * m <= q * n, q * n < (p + 1) * m))


def _two_offsets(verdict: Verdict, devices: Devices) -> list[Obligation]:
    """Return formulas that say: on one device, the blocks of the two operands begin at two offsets.

    It is enough to prove one formula: each is about another device. For sizes in numbers, it is the
    device of the witness. For symbolic sizes, it is the device with coordinate 1 on one axis and 0
    on all others; this is tried for each axis (`atoms`) along which the operands differ.
    """
    assert verdict.failure is not None and verdict.witness is not None
    dim = verdict.failure.dims[0]
    digits_of_operand = [digits_at(s, dim) for s in verdict.pair]
    space = devices.space
    if space is None or not space.symbolic:
        device = verdict.witness.device
        assert device is not None
        position = verdict.pair[0].mesh.position(device)
        pairs = zip(verdict.pair, digits_of_operand, strict=True)
        # An offset is the partition id times the block size, in elements.
        a, b = (devices.value(digits) * block_of(s, dim) for s, digits in pairs)
        return [Obligation(tuple(devices.fixed("d", position)), a != b)]
    # For all sizes: the device at 1 on one axis. An axis that only one operand has gives offset 0
    # in the other one, and a positive offset in this one.
    first, second = (space.atoms_of(digits) for digits in digits_of_operand)
    atoms = [atom for atom in (*first, *second) if (atom in first) != (atom in second)]
    if not atoms:
        # The same axes in another order: an axis with other axes below it has another weight.
        axes_below = {atom: set(second[k + 1 :]) for k, atom in enumerate(second)}
        atoms = [atom for k, atom in enumerate(first) if set(first[k + 1 :]) != axes_below[atom]][
            ::-1
        ]
    return [
        Obligation(
            tuple(space.bounds()),
            space.polynomial(first, space.unit(atom)) != space.polynomial(second, space.unit(atom)),
            group="unit",
        )
        for atom in atoms
    ]


def _tile_on_too_few(verdict: Verdict, devices: Devices) -> Obligation:
    """Return the formula that a tile is on no device, or on a wrong number of devices.

    A tile is a combination of partition ids along the dimensions of the failure. A merge would need
    each tile on equally many devices, so the formula refutes a merge. If the digits belong to one
    mesh (`devices.space`), the tile is (0, 1) along a shared axis, otherwise the tile of the
    witness.
    """
    assert verdict.failure is not None and verdict.witness is not None
    places = verdict.failure.dims
    operands = owners(verdict.pair, verdict.failure)
    digit_rows = [digits_at(s, place) for s, place in zip(operands, places, strict=True)]
    if devices.space is not None:
        return _tile_on_no_device(devices.space, digit_rows)
    # One unknown device is enough if no device has the tile. Otherwise count all devices.
    tile, count = verdict.witness.tile, verdict.witness.count
    if count:
        size = verdict.pair[0].mesh.size
        total = tile_count(digit_rows, [z3.IntVal(t) for t in tile], size)
        return Obligation((), total * math.prod(parts(row) for row in digit_rows) != size)
    equal_ids = [devices.value(d) == t for d, t in zip(digit_rows, tile, strict=True)]
    return Obligation(tuple(devices.bounds("d")), z3.Not(z3.And(equal_ids)))


def _tile_on_no_device(found: Space, rows: list[Digits]) -> Obligation:
    """Return the formula to prove that two given tiles of two tensors are on no common device.

    Both tensors are sharded along a common axis. The tile of the first tensor has coordinate 0
    along this axis, the tile of the second one has coordinate 1.

    Args:
      found: the coordinates of devices along atoms (axes and sub-axes).
      rows: the digits that shard each of the two tensors.
    """
    first, second = (found.atoms_of(digits) for digits in rows)
    # The tile 0 of the first and 1 of the second: both fix the coordinate along the shared axis.
    shared: Atom = next(atom for atom in first if atom in second)
    device, zero, one = found.device("d"), found.unit(None), found.unit(shared)
    lemmas = [*found.lemmas(first, device, zero), *found.lemmas(second, device, one)]
    met = z3.And(
        found.radix(first, device) == found.radix(first, zero),
        found.radix(second, device) == found.radix(second, one),
    )
    return Obligation((*found.bounds(device), *lemmas), z3.Not(met))
