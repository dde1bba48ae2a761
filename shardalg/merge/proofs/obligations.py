"""Formulas of claims: a claim is proved if z3 finds all its formulas valid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import z3

from shardalg.algebra.digits import split_prefix
from shardalg.algebra.sharding import CLASSES, Sharding
from shardalg.merge.compatible import equal, merge, refines
from shardalg.merge.lemmas import lemma
from shardalg.merge.lemmas.lemma import Lemma
from shardalg.merge.places import digits_at
from shardalg.merge.proofs.certificate import certificate
from shardalg.merge.proofs.claims import (
    ALL_SIZES,
    EqualClaim,
    HaloClaim,
    HaloWitness,
    MergeClaim,
    RefineClaim,
    Statement,
)
from shardalg.merge.proofs.claims import LEMMAS as HALO_LEMMAS
from shardalg.merge.proofs.encode import Devices, Number, Obligation, Unprovable, Values, devices_of
from shardalg.merge.proofs.integers import IntegerClaim, IntegerFormula, conditions
from shardalg.merge.proofs.merging import major_part, merging, refusing
from shardalg.merge.proofs.solve import integer_obligations
from shardalg.merge.refinement import apart_along
from shardalg.merge.verdict import Witness


def encoded(claim: Any, encoding: str) -> list[Obligation]:
    """Return the formulas of a claim.

    Args:
      encoding: "all" for all sizes, or an encoding of `prove`.

    Raises:
      Unprovable: the encoding has no formula for the claim.
    """
    if type(claim) not in _OF_SHARDINGS:
        return _FORMULAS[type(claim)](claim, encoding == "all")
    # Coordinates of a device are those of one device order. A certificate has a fact per device, so
    # its shardings may have two orders.
    mixed = len({s.mesh.device_ids for s in claim.shardings}) > 1
    if encoding == "devices" or (mixed and encoding == "coordinates"):
        return [Obligation((), z3.BoolVal(False), text=certificate(claim))]
    devices = devices_of(
        claim.shardings, symbolic=encoding == "all", by_position=encoding == "position"
    )
    return _OF_SHARDINGS[type(claim)](claim, devices)


def _merge(claim: MergeClaim, devices: Devices) -> list[Obligation]:
    """Return the formulas that prove a claimed merge, or the claim that there is no merge.

    If the operands do have a merge, the claim that there is none becomes a false formula, with the
    merge as its witness.
    """
    if claim.result is not None:
        return merging(claim, devices)
    verdict = claim.verdict or merge(*claim.operands, policy=claim.policy)
    if verdict:  # the claim denies a merge that exists
        merged = verdict.sharding
        return [Obligation((), z3.BoolVal(False), lambda values: merged)]
    return refusing(verdict, devices)


def _refine(claim: RefineClaim, devices: Devices) -> list[Obligation]:
    """Return the formulas of a refinement; for given sizes there is one formula.

    For a claim that holds: on each device, a block of `fine` that has elements is inside the block
    of `coarse`. For the opposite claim: on the claim's device it is not.
    """
    if devices.space is not None and devices.space.symbolic:
        return _refine_for_all(claim, devices)
    blocks = [_bounds_of(s, devices) for s in (claim.fine, claim.coarse)]
    # A block without elements is inside any other one, wherever it starts.
    not_empty = z3.And([start < stop for start, stop in blocks[0]])
    is_inside = z3.And([z3.And(a >= c, b <= d) for (a, b), (c, d) in zip(*blocks, strict=True)])
    if claim.holds:

        def read(values: Values) -> Witness:
            """Return the device of a counterexample that the solver found."""
            return Witness(device=claim.fine.mesh.order[devices.position(values)])

        return [Obligation(tuple(devices.bounds("d")), z3.Implies(not_empty, is_inside), read)]
    if claim.device is None:
        raise Unprovable("no device is named on which a block leaves the other one")
    device_is_fixed = tuple(devices.fixed("d", claim.fine.mesh.position(claim.device)))
    return [Obligation(device_is_fixed, z3.And(not_empty, z3.Not(is_inside)))]


def _bounds_of(sharding: Sharding, devices: Devices) -> list[tuple[Number, Number]]:
    """Return the start and the end of the unknown device's elements on each dimension."""
    pairs = []
    rows = zip(sharding.shape, sharding.shard_shape, sharding.canonical_dims, strict=True)
    for size, block, digits in rows:
        # An empty block starts at or after its end, because only the end is clipped.
        start = devices.value(digits) * block
        stop = z3.If(start + block < size, start + block, z3.IntVal(size))
        pairs.append((start, stop))
    return pairs


def _refine_for_all(claim: RefineClaim, devices: Devices) -> list[Obligation]:
    """Return the formulas that prove for all sizes of the mesh whether `fine` refines `coarse`.

    They follow the theorem in `merge/refinement.py`. If the axes of `coarse` are a major part of
    those of `fine`, every block of `fine` is inside a block of `coarse` at all sizes at which
    borders of `coarse` are borders of `fine`. For the opposite claim, some device has disjoint
    blocks at all sizes.
    """
    if not claim.holds:
        return _outside_for_all(claim, devices)
    if claim.fine.classes[:2] != claim.coarse.classes[:2]:
        return [Obligation((), z3.BoolVal(False))]
    formulas = []
    for fine, coarse in zip(claim.fine.canonical_dims, claim.coarse.canonical_dims, strict=True):
        # Equal digits are equal blocks at all sizes.
        if fine == coarse:
            continue
        if split_prefix(fine, coarse) is None:
            raise Unprovable("the blocks are inside at these sizes only, where some are empty")
        goal = major_part(coarse, fine, devices)
        formulas.append(Obligation(tuple(devices.bounds("d")), goal))
    return [*formulas, *_lemma(lemma("refine_if"))]


def _outside_for_all(claim: RefineClaim, devices: Devices) -> list[Obligation]:
    """Return the formulas that `fine` refines `coarse` at no sizes.

    On some device, the block of `fine` is then not inside the block of `coarse`.
    """
    verdict = refines(claim.fine, claim.coarse)
    # At the sizes of the claim `fine` refines `coarse`, so the proof must fail: a false formula.
    if verdict:
        return [Obligation((), z3.BoolVal(False))]
    assert verdict.failure is not None and devices.space is not None
    if verdict.failure.kind == "class":
        return refusing(verdict, devices)
    found = apart_along(claim.fine, claim.coarse)
    if found is None:
        raise Unprovable(
            "uneven blocks nest for some sizes only, and empty blocks are inside any other: "
            f"they nest where {verdict.condition}"
        )
    # `digit` is an axis. On the device at coordinate 1 along it and 0 elsewhere, the blocks of both
    # shardings have no common element. `mine` and `theirs` are the partition ids there.
    dim, digit = found
    space = devices.space
    atom = next(atom for atom in space.atoms if atom.digit == digit)
    mine, theirs = (
        space.polynomial(space.atoms_of(s.canonical_dims[dim]), space.unit(atom))
        for s in (claim.fine, claim.coarse)
    )
    # On the device at 1 on this axis: the block of `fine` has elements (lemma `refine_minor`), and
    # the one of `coarse` starts further on (lemmas `refine_apart`, `refine_ahead`).
    outside = z3.And(mine <= 1, theirs > mine)
    names = ("refine_minor", "refine_apart", "refine_ahead")
    return [
        Obligation(tuple(space.bounds()), outside),
        *(made for name in names for made in _lemma(lemma(name))),
    ]


def _equal(claim: EqualClaim, devices: Devices) -> list[Obligation]:
    """Return the formula that two shardings have equal partition ids on every dimension and class.

    Equal ids on all devices mean equally many blocks, hence equal blocks and offsets. If the claim
    is that they differ, the formulas of a refusal are returned.
    """
    if not claim.holds:
        # For the opposite claim, prove the refusal. If the shardings are equal, it is false.
        verdict = equal(*claim.shardings)
        return [Obligation((), z3.BoolVal(False))] if verdict else refusing(verdict, devices)
    # Explicitly replicated axes are no part of a layout, so they are not compared.
    dims_and_classes = {
        place for s in claim.shardings for place, _ in s.split_places if place != CLASSES[2]
    }
    id_pairs = [
        [devices.value(digits_at(s, place)) for s in claim.shardings] for place in dims_and_classes
    ]
    return [Obligation(tuple(devices.bounds("d")), z3.And([a == b for a, b in id_pairs]))]


def _lemma(claim: Lemma, symbolic: bool = True) -> list[Obligation]:
    """Return the formulas of a lemma: its assumptions imply each condition that it states.

    Args:
      symbolic: ignored, because a lemma is always about all sizes.
    """
    premises = conditions(claim.given)
    return [_implied(premises, shown) for shown in conditions(claim.shows)]


def _halo(claim: HaloClaim, symbolic: bool) -> list[Obligation]:
    """Return the formulas of all statements of a claim about a halo.

    A halo gives the elements that a device needs of its neighbours' blocks. The statements say, for
    example, that every element that is read is in one of the received pieces.

    Args:
      symbolic: whether the statements are proved for all sizes. The lemmas that they rely on are
        then added.
    """
    # The lemmas for all sizes are about the closed forms of a window.
    if symbolic and not claim.is_derived:
        raise Unprovable(
            "its widths are not the window's closed forms: prove it with sizes='concrete'"
        )
    statements = ALL_SIZES if symbolic else claim.statements()
    lemmas = [made for name in HALO_LEMMAS for made in _lemma(lemma(name))] if symbolic else []
    return [made for statement in statements for made in _statement(statement)] + lemmas


def _statement(statement: Statement) -> list[Obligation]:
    """Return one formula per condition that a statement shows.

    A formula says that the premises of the statement imply the condition. If the solver finds a
    counterexample, its witness has the partition and the element.
    """

    def read(values: Values) -> HaloWitness:
        """Return the fault with the partition p and the element k of a counterexample."""
        value_of = dict(values)
        return HaloWitness(statement.fault, value_of.get("p", 0), value_of.get("k"))

    premises, conclusions = conditions(statement.given), conditions(statement.shows)
    return [replace(_implied(premises, condition), witness=read) for condition in conclusions]


def _implied(given: tuple[IntegerFormula, ...], shown: IntegerFormula) -> Obligation:
    """Return the formula that conditions and the definitions of quotients imply a condition."""
    # A quotient that occurs in several conditions is defined once.
    definitions = dict.fromkeys(d for c in (*given, shown) for d in c.definitions)
    return Obligation((*(c.formula for c in given), *definitions), shown.formula)


_OF_SHARDINGS: dict[type, Callable[..., list[Obligation]]] = {
    MergeClaim: _merge,
    RefineClaim: _refine,
    EqualClaim: _equal,
}
_FORMULAS: dict[type, Callable[..., list[Obligation]]] = {
    HaloClaim: _halo,
    Lemma: _lemma,
    IntegerClaim: integer_obligations,
}
