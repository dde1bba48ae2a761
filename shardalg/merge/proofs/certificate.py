"""Claims device by device, as SMT-LIB text: the certificate of a closed form for a concrete mesh.

Every device's partition ids are written as terms in its position, one ground fact per device, which
the solver evaluates: no digit theorem is used, any order of devices can be said, and the text grows
linearly (2048 devices: some hundred kilobytes, tens of milliseconds).

That every tile is held by equally many devices is shown by listing the devices of each tile: ids
ascend in a tile, and each listed device has the tile's ids. As many devices are listed as there
are, so every device stands in exactly one tile: this counting is done here, not by the solver.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from shardalg.algebra.digits import Digits
from shardalg.algebra.sharding import CLASSES, Sharding
from shardalg.errors import ProofError
from shardalg.merge.compatible import equal, merge
from shardalg.merge.places import DimOrClass, block_of, digits_at, offset_at
from shardalg.merge.proofs.claims import EqualClaim, MergeClaim, RefineClaim
from shardalg.merge.verdict import Verdict, Witness, owners

MAX_DEVICES = 65_536


@dataclass
class _Script:
    """SMT-LIB text as it grows: functions of the position, and the facts to show."""

    functions: dict[Digits, str] = field(default_factory=dict)
    facts: dict[str, None] = field(default_factory=dict)

    def offset(self, sharding: Sharding, place: DimOrClass, device: int) -> str:
        """The term for an offset: a block times a partition id."""
        block = block_of(sharding, place)
        term = self.partition_id(sharding, place, device)
        return term if block == 1 else f"(* {block} {term})"

    def partition_id(self, sharding: Sharding, place: DimOrClass, device: int) -> str:
        """The term for a partition id: a function of the device's position."""
        digits = digits_at(sharding, place)
        if not digits:
            return "0"
        name = self.functions.setdefault(digits, f"id{len(self.functions)}")
        return f"({name} {sharding.mesh.position(device)})"

    def show(self, fact: str) -> None:
        """One more fact; all of them together are the goal."""
        if fact != "true":
            self.facts[fact] = None

    def text(self) -> str:
        """The script: `unsat` means that all facts hold."""
        defined = (_function(name, digits) for digits, name in self.functions.items())
        goal = "\n ".join(self.facts) or "true"
        return "".join(defined) + f"(assert (not (and true\n {goal})))\n(check-sat)\n"


def _function(name: str, digits: Digits) -> str:
    """A partition id as mixed-radix number of `floor(position / stride) mod size`."""
    body = "0"
    for digit in digits:
        value = f"(mod (div d {digit.stride}) {digit.size})"
        body = value if body == "0" else f"(+ (* {digit.size} {body}) {value})"
    return f"(define-fun {name} ((d Int)) Int {body})\n"


def certificate(claim: MergeClaim | RefineClaim | EqualClaim) -> str:
    """The claim about shardings as SMT-LIB text, of which `unsat` is the proof.

    Raises:
      ProofError: more than `MAX_DEVICES` devices, or a claim that is not about shardings.
    """
    if type(claim) not in _CERTIFY:
        raise ProofError(f"{type(claim).__name__} is about no devices: prove it without encoding.")
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
    if claim.result is None:
        verdict = claim.verdict or merge(*claim.operands, policy=claim.policy)
        if verdict:
            script.show("false")
        else:
            _refusal(script, verdict)
        return
    _agreement(script, claim, claim.result)
    _balance(script, claim.result)


def _agreement(script: _Script, claim: MergeClaim, result: Sharding) -> None:
    """The result has every operand's offsets where the operand splits, and splits no more."""
    for place in (*range(len(result.shape)), *CLASSES[:2]):
        held = [s for s in claim.operands if digits_at(s, place)]
        if not held or not isinstance(place, int):
            held = list(claim.operands)
        for operand in held:
            for device in result.mesh.order:
                prefixes = claim.policy == "shardy" and isinstance(place, int)
                agrees = _is_prefix if prefixes else _agrees
                script.show(agrees(script, (operand, result), place, device))


def _is_prefix(script: _Script, pair: tuple[Sharding, Sharding], dim: int, device: int) -> str:
    """The first one's partition id is the major part of the second one's: policy "shardy"."""
    ratio, rest = divmod(pair[1].parts[dim], pair[0].parts[dim])
    a, b = (script.partition_id(s, dim, device) for s in pair)
    return "false" if rest else _equals(a, b if ratio == 1 else f"(div {b} {ratio})")


def _agrees(
    script: _Script, pair: tuple[Sharding, Sharding], place: DimOrClass, device: int
) -> str:
    """Equal offsets."""
    return _equals(*(script.offset(s, place, device) for s in pair))


def _equals(a: str, b: str) -> str:
    return "true" if a == b else f"(= {a} {b})"


def _balance(script: _Script, result: Sharding) -> None:
    """Every tile with its devices; all tiles have equally many."""
    places = [place for place, _ in result.split_places]
    tiles: dict[tuple[int, ...], list[int]] = {}
    for device in sorted(result.mesh.order):
        tiles.setdefault(tuple(_id(result, p, device) for p in places), []).append(device)
    counts = [math.prod(d.size for d in digits) for _, digits in result.split_places]
    expected = result.mesh.size // math.prod(counts)
    script.show(f"(= {len(tiles)} {math.prod(counts)})")
    for tile, devices in tiles.items():
        script.show(f"(= {len(devices)} {expected})")
        if len(devices) > 1:
            script.show(f"(< {' '.join(map(str, devices))})")
        for device in devices:
            for place, number in zip(places, tile, strict=True):
                script.show(f"(= {script.partition_id(result, place, device)} {number})")


def _id(sharding: Sharding, place: DimOrClass, device: int) -> int:
    position, number = sharding.mesh.position(device), 0
    for digit in digits_at(sharding, place):
        number = number * digit.size + digit.at(position)
    return number


def _refusal(script: _Script, verdict: Verdict) -> None:
    """A device with two offsets, or a tile that too few devices hold."""
    assert verdict.failure is not None and verdict.witness is not None
    if verdict.clash:
        _forced(script, verdict)
    if verdict.witness.tile:
        _counted(script, verdict, verdict.witness)
    elif verdict.policy == "shardy" and verdict.failure.kind == "offset":
        for pair in (verdict.pair, verdict.pair[::-1]):
            script.show(_no_prefix(script, pair, verdict.failure.dims[0]))
    else:
        witness = verdict.witness
        assert witness.device is not None and witness.dim is not None
        a, b = (script.offset(s, witness.dim, witness.device) for s in verdict.pair)
        script.show(f"(not (= {a} {b}))")


def _forced(script: _Script, verdict: Verdict) -> None:
    """On each dimension, a merge that clashes has the offsets of an operand."""
    for merged in (s for s in verdict.pair if s not in verdict.operands):
        for place in (p for p, _ in merged.split_places if p != "replicated"):
            held = next((s for s in verdict.operands if _alike(s, merged, place)), None)
            if held is None:
                script.show("false")
                continue
            for device in merged.mesh.order:
                script.show(_equals(*(script.offset(s, place, device) for s in (held, merged))))


def _alike(first: Sharding, second: Sharding, place: DimOrClass) -> bool:
    return all(offset_at(first, place, d) == offset_at(second, place, d) for d in first.mesh.order)


def _no_prefix(script: _Script, pair: tuple[Sharding, Sharding], place: DimOrClass) -> str:
    """The first one's partition id is not the major part of the second one's on some device."""
    coarse, fine = pair
    assert isinstance(place, int)
    ratio, rest = divmod(fine.parts[place], coarse.parts[place])
    if rest:
        return f"(not (= (mod {fine.parts[place]} {coarse.parts[place]}) 0))"
    for device in coarse.mesh.order:
        if _id(coarse, place, device) != _id(fine, place, device) // ratio:
            a, b = (script.partition_id(s, place, device) for s in pair)
            return f"(not (= {a} (div {b} {ratio})))"
    return "false"


def _counted(script: _Script, verdict: Verdict, witness: Witness) -> None:
    """The devices of one tile, counted over all devices, are not as many as there should be."""
    assert verdict.failure is not None
    held_by = owners(verdict.pair, verdict.failure)
    terms = [_holds(script, held_by, witness, device) for device in verdict.pair[0].mesh.order]
    total = math.prod(
        math.prod(d.size for d in digits_at(s, place))
        for s, place in zip(held_by, witness.dims, strict=True)
    )
    script.show(f"(not (= (* {total} (+ 0 {' '.join(terms)})) {len(terms)}))")


def _holds(script: _Script, held_by: Iterable[Sharding], witness: Witness, device: int) -> str:
    rows = zip(held_by, witness.dims, witness.tile, strict=True)
    met = (f"(= {script.partition_id(s, place, device)} {t})" for s, place, t in rows)
    return f"(ite (and {' '.join(met)}) 1 0)"


def _equal(script: _Script, claim: EqualClaim) -> None:
    if claim.holds:
        for place in (*range(len(claim.first.shape)), *CLASSES[:2]):
            for device in claim.first.mesh.order:
                offsets = (script.offset(s, place, device) for s in claim.shardings)
                script.show(_equals(*offsets))
        return
    verdict = equal(*claim.shardings)
    script.show("false") if verdict else _refusal(script, verdict)


def _refine(script: _Script, claim: RefineClaim) -> None:
    if claim.holds:
        for device in claim.fine.mesh.order:
            script.show(_inside(script, claim, device))
    elif claim.device is None:
        script.show("false")
    else:
        script.show(f"(not {_inside(script, claim, claim.device)})")


def _inside(script: _Script, claim: RefineClaim, device: int) -> str:
    """A fine block that is not empty lies in the coarse block, on every dimension."""
    there, inside = [], []
    for dim, size in enumerate(claim.fine.shape):
        a, b = (script.offset(s, dim, device) for s in (claim.fine, claim.coarse))
        fine, coarse = (s.shard_shape[dim] for s in (claim.fine, claim.coarse))
        there.append(f"(< {a} {size})")
        end = f"(or (<= (+ {a} {fine}) (+ {b} {coarse})) (<= {size} (+ {b} {coarse})))"
        inside.append(f"(<= {b} {a}) {end}")
    return f"(=> (and true {' '.join(there)}) (and true {' '.join(inside)}))"


_CERTIFY: dict[type, Callable[..., None]] = {
    MergeClaim: _merge,
    RefineClaim: _refine,
    EqualClaim: _equal,
}
