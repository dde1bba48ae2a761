"""Claims device by device, as SMT-LIB text: the certificate of a closed form for a concrete mesh.

Each device's partition ids are terms in its position, and the text has one fact without unknowns
per device, which the solver evaluates. It uses no theorem about digits, can express any order of
devices, and grows linearly (2048 devices: some hundred kilobytes, tens of milliseconds).

Balance is shown by listing the devices of each tile: the ids in a tile ascend, and each listed
device has the tile's partition ids. The list is as long as the number of devices, so every device
is in exactly one tile. This module does the counting, not the solver.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from shardalg.algebra.digits import Digits, partition_id, parts
from shardalg.algebra.sharding import CLASSES, Sharding
from shardalg.errors import ProofError
from shardalg.merge.compatible import equal, merge
from shardalg.merge.places import DimOrClass, block_of, digits_at, offset_at
from shardalg.merge.proofs.claims import EqualClaim, MergeClaim, RefineClaim
from shardalg.merge.verdict import Verdict, Witness, owners

MAX_DEVICES = 65_536


@dataclass
class _Script:
    """SMT-LIB text under construction: functions of the position, and the facts to show."""

    functions: dict[Digits, str] = field(default_factory=dict)
    facts: dict[str, None] = field(default_factory=dict)

    def offset(self, sharding: Sharding, place: DimOrClass, device: int) -> str:
        """Return an offset as SMT-LIB text: the block size times the partition id."""
        block = block_of(sharding, place)
        term = self.partition_id(sharding, place, device)
        return term if block == 1 else f"(* {block} {term})"

    def partition_id(self, sharding: Sharding, place: DimOrClass, device: int) -> str:
        """Return a partition id as SMT-LIB text: a function of the device's position."""
        digits = digits_at(sharding, place)
        if not digits:
            return "0"
        # Equal digits of several shardings or places are one function.
        name = self.functions.setdefault(digits, f"id{len(self.functions)}")
        return f"({name} {sharding.mesh.position(device)})"

    def show(self, fact: str) -> None:
        """Add a fact; the goal is that all facts are true."""
        if fact != "true":
            self.facts[fact] = None

    def text(self) -> str:
        """Return the script; the answer `unsat` means that all facts are true.

        `functions` has a name for the partition id of each tuple of digits. The script asserts that
        some fact is false, so that a solver finds a model only then.
        """
        definitions = []
        for digits, name in self.functions.items():
            # A partition id is the mixed-radix number of floor(position / stride) mod size.
            # `d` is the position. Each more minor digit multiplies the number so far by its size
            # (Horner).
            term = "0"
            for digit in digits:
                value = f"(mod (div d {digit.stride}) {digit.size})"
                term = value if term == "0" else f"(+ (* {digit.size} {term}) {value})"
            definitions.append(f"(define-fun {name} ((d Int)) Int {term})\n")
        goal = "\n ".join(self.facts) or "true"
        return "".join(definitions) + f"(assert (not (and true\n {goal})))\n(check-sat)\n"


def certificate(claim: MergeClaim | RefineClaim | EqualClaim) -> str:
    """Return a claim about shardings as SMT-LIB text; the answer `unsat` proves the claim.

    Raises:
      ProofError: the claim is not about shardings, or has more than `MAX_DEVICES` devices.
    """
    if type(claim) not in _CERTIFY:
        raise ProofError(f"{type(claim).__name__} is about no devices: prove it without encoding.")
    # The text lists the devices of each tile, so its length grows with the mesh.
    mesh = claim.shardings[0].mesh
    if mesh.size > MAX_DEVICES:
        raise ProofError(
            f"a certificate lists every device, up to {MAX_DEVICES}; {mesh!r} has "
            f"{mesh.size}. Prove it in coordinates or for all sizes."
        )
    script = _Script()
    _CERTIFY[type(claim)](script, claim)
    return script.text()


def _merge(script: _Script, claim: MergeClaim) -> None:
    """Add the facts that prove a claimed merge, or the claim that there is no merge.

    A merge is proved by two groups of facts: its offsets agree with the operands (`_agreement`),
    and its tiles are on equally many devices (`_balance`).
    """
    if claim.result is None:
        verdict = claim.verdict or merge(*claim.operands, policy=claim.policy)
        # The claim denies a merge that exists, so it must not be proved.
        if verdict:
            script.show("false")
        else:
            _refusal(script, verdict)
        return
    _agreement(script, claim, claim.result)
    _balance(script, claim.result)


def _agreement(script: _Script, claim: MergeClaim, result: Sharding) -> None:
    """Add the facts that the result has the offsets of each operand that splits a dimension.

    Also add that a dimension that no operand splits is not split, and that unreduced and manual
    axes are equal.
    """
    for place in (*range(len(result.shape)), *CLASSES[:2]):
        # If no operand splits the dimension, the result must not split it either. Classes must be
        # equal everywhere. In both cases the result is compared with every operand.
        operands = [s for s in claim.operands if digits_at(s, place)]
        if not operands or not isinstance(place, int):
            operands = list(claim.operands)
        for operand in operands:
            for device in result.mesh.order:
                if claim.policy != "shardy" or not isinstance(place, int):
                    offsets = (script.offset(s, place, device) for s in (operand, result))
                    script.show(_equals(*offsets))
                    continue
                # A merge under Shardy's policy may split a dimension further than an operand does,
                # so its offsets can differ. The operand's id is then the major part of the
                # result's.
                ratio, remainder = divmod(result.parts[place], operand.parts[place])
                a, b = (script.partition_id(s, place, device) for s in (operand, result))
                major = b if ratio == 1 else f"(div {b} {ratio})"
                script.show("false" if remainder else _equals(a, major))


def _equals(a: str, b: str) -> str:
    """Return the fact that two terms are equal; "true" if they are the same text."""
    return "true" if a == b else f"(= {a} {b})"


def _balance(script: _Script, result: Sharding) -> None:
    """Add the facts that prove that all tiles are on equally many devices.

    Per tile they are the number of its devices, that the listed devices differ, and the partition
    ids that put each device on the tile.
    """
    places = [place for place, _ in result.split_places]
    # A tile is a tuple of partition ids, one per split dimension or class.
    devices_of_tile: dict[tuple[int, ...], list[int]] = {}
    for device in sorted(result.mesh.order):
        devices_of_tile.setdefault(tuple(_id(result, p, device) for p in places), []).append(device)
    num_parts = [math.prod(d.size for d in digits) for _, digits in result.split_places]
    devices_per_tile = result.mesh.size // math.prod(num_parts)
    # Every tile occurs: the fact compares two numbers that were counted here.
    script.show(f"(= {len(devices_of_tile)} {math.prod(num_parts)})")
    for tile, devices in devices_of_tile.items():
        script.show(f"(= {len(devices)} {devices_per_tile})")
        # Ascending ids are different devices, so none is counted twice.
        if len(devices) > 1:
            script.show(f"(< {' '.join(map(str, devices))})")
        for device in devices:
            for place, number in zip(places, tile, strict=True):
                script.show(f"(= {script.partition_id(result, place, device)} {number})")


def _id(sharding: Sharding, place: DimOrClass, device: int) -> int:
    """Return the partition id of a device along a dimension or a class."""
    return partition_id(digits_at(sharding, place), sharding.mesh.position(device))


def _refusal(script: _Script, verdict: Verdict) -> None:
    """Add the facts of a refusal: a device with two offsets, or a tile on too few devices.

    The verdict says that the operands have no merge; its witness names the device or the tile.
    """
    assert verdict.failure is not None and verdict.witness is not None
    # More than two operands are merged one after another. If one clashes with the merge of the
    # operands before it, all operands have no merge only if that merge was the only possible one.
    if verdict.clash:
        _forced(script, verdict)
    if verdict.witness.tile:
        _counted(script, verdict, verdict.witness)
    elif verdict.policy == "shardy" and verdict.failure.kind == "offset":
        # Different offsets alone are no refusal: one operand could be a major part of the other.
        for pair in (verdict.pair, verdict.pair[::-1]):
            script.show(_no_prefix(script, pair, verdict.failure.dims[0]))
    else:
        witness = verdict.witness
        assert witness.device is not None and witness.dim is not None
        a, b = (script.offset(s, witness.dim, witness.device) for s in verdict.pair)
        script.show(f"(not (= {a} {b}))")


def _forced(script: _Script, verdict: Verdict) -> None:
    """Add the facts that the merge of the first operands is forced, if this merge is refused.

    Several operands are merged one after another. If the merge of the first ones cannot be merged
    with the next one, `verdict.pair` contains this intermediate merge. On each dimension its
    offsets equal those of one of the operands, as the facts state. A refusal of it is therefore a
    refusal of the operands.
    """
    for merged in (s for s in verdict.pair if s not in verdict.operands):
        for place in (p for p, _ in merged.split_places if p != "replicated"):
            # Compare by device: operands may order their devices differently.
            offsets = [offset_at(merged, place, d) for d in merged.mesh.order]
            for operand in verdict.operands:
                if [offset_at(operand, place, d) for d in merged.mesh.order] == offsets:
                    break
            else:
                # Nothing forces these offsets: with a false fact, the certificate proves nothing.
                script.show("false")
                continue
            for device in merged.mesh.order:
                terms = (script.offset(s, place, device) for s in (operand, merged))
                script.show(_equals(*terms))


def _no_prefix(script: _Script, pair: tuple[Sharding, Sharding], place: DimOrClass) -> str:
    """Return the fact that the first partition id is no major part of the second on some device.

    It would be the major part if `second // ratio` were the first one on all devices, with `ratio`
    fine parts in each coarse part. Return "false" if no such device exists.

    Args:
      pair: the sharding that is coarse, and the one that is fine.
      place: the dimension.
    """
    coarse, fine = pair
    assert isinstance(place, int)
    ratio, remainder = divmod(fine.parts[place], coarse.parts[place])
    # A major part has a number of partitions that divides the other one.
    if remainder:
        return f"(not (= (mod {fine.parts[place]} {coarse.parts[place]}) 0))"
    # One device with another quotient refutes it.
    for device in coarse.mesh.order:
        if _id(coarse, place, device) != _id(fine, place, device) // ratio:
            a, b = (script.partition_id(s, place, device) for s in pair)
            return f"(not (= {a} (div {b} {ratio})))"
    return "false"


def _counted(script: _Script, verdict: Verdict, witness: Witness) -> None:
    """Add the fact that a tile is on a wrong number of devices, counted over all devices.

    Args:
      witness: the tile that shows the refusal.
    """
    assert verdict.failure is not None
    # SMT-LIB cannot count, so the number of devices is a sum with one term, 0 or 1, per device.
    rows = list(zip(owners(verdict.pair, verdict.failure), witness.dims, witness.tile, strict=True))
    terms = []
    for device in verdict.pair[0].mesh.order:
        met = (f"(= {script.partition_id(s, place, device)} {t})" for s, place, t in rows)
        terms.append(f"(ite (and {' '.join(met)}) 1 0)")
    # A balanced tile is on devices/total devices. As a product the fact needs no division.
    total = math.prod(parts(digits_at(s, place)) for s, place, _ in rows)
    script.show(f"(not (= (* {total} (+ 0 {' '.join(terms)})) {len(terms)}))")


def _equal(script: _Script, claim: EqualClaim) -> None:
    """Add the facts that all offsets are equal, or, for the opposite claim, that one is not.

    Two shardings are equal if each device has equal offsets in each dimension, and the same
    unreduced and manual parts (`CLASSES[:2]`).
    """
    if claim.holds:
        for place in (*range(len(claim.first.shape)), *CLASSES[:2]):
            for device in claim.first.mesh.order:
                offsets = (script.offset(s, place, device) for s in claim.shardings)
                script.show(_equals(*offsets))
        return
    # For the opposite claim the verdict's witness is one device or tile with another block. If the
    # shardings are equal after all, the claim is false.
    verdict = equal(*claim.shardings)
    script.show("false") if verdict else _refusal(script, verdict)


def _refine(script: _Script, claim: RefineClaim) -> None:
    """Add the facts that every fine block is inside the coarse block of the same device.

    For the opposite claim, add the fact that the block of the claim's device is not inside.
    """
    if claim.holds:
        for device in claim.fine.mesh.order:
            script.show(_inside(script, claim, device))
    elif claim.device is None:  # without an example there is nothing to evaluate
        script.show("false")
    else:
        script.show(f"(not {_inside(script, claim, claim.device)})")


def _inside(script: _Script, claim: RefineClaim, device: int) -> str:
    """Return the fact that a device's fine block is empty, or inside its coarse block."""
    begins_in_tensor, is_inside = [], []
    for dim, size in enumerate(claim.fine.shape):
        fine_start, coarse_start = (
            script.offset(s, dim, device) for s in (claim.fine, claim.coarse)
        )
        fine_size, coarse_size = (s.shard_shape[dim] for s in (claim.fine, claim.coarse))
        begins_in_tensor.append(f"(< {fine_start} {size})")
        # A block that is cut off by the end of the dimension is inside if the coarse block reaches
        # the end, because elements past the end do not exist.
        fine_end = f"(+ {fine_start} {fine_size})"
        coarse_end = f"(+ {coarse_start} {coarse_size})"
        ends_inside = f"(or (<= {fine_end} {coarse_end}) (<= {size} {coarse_end}))"
        is_inside.append(f"(<= {coarse_start} {fine_start}) {ends_inside}")
    return f"(=> (and true {' '.join(begins_in_tensor)}) (and true {' '.join(is_inside)}))"


_CERTIFY: dict[type, Callable[..., None]] = {
    MergeClaim: _merge,
    RefineClaim: _refine,
    EqualClaim: _equal,
}
