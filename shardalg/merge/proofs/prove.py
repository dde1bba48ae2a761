"""Proofs: z3 judges a verdict or a claim, for the devices at hand or for all mesh sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from shardalg.algebra.halos.halo import Halo
from shardalg.errors import ProofError
from shardalg.merge.condition import Condition, condition_of
from shardalg.merge.lemmas.lemma import Lemma
from shardalg.merge.proofs.claims import EqualClaim, HaloClaim, MergeClaim, RefineClaim, of_verdict
from shardalg.merge.proofs.integers import IntegerClaim
from shardalg.merge.verdict import Verdict
from shardalg.tables import card

if TYPE_CHECKING:
    from shardalg.merge.proofs.obligations import Obligation
    from shardalg.merge.proofs.solve import Outcome

Claim = MergeClaim | RefineClaim | EqualClaim | HaloClaim | Lemma | IntegerClaim
# What is no claim itself, but makes one.
_CLAIM_OF: dict[type, Callable[..., Claim]] = {Verdict: of_verdict, Halo: HaloClaim}
Ask = Callable[..., "Outcome"]
SIZES = ("concrete", "all")
# Between the formulas of one proof: each stands by itself.
RESET = "\n(reset)\n"
ENCODINGS = ("coordinates", "position", "devices")


@dataclass(frozen=True)
class Proof:
    """What z3 said of a claim. True as itself only if it is proved.

    Attributes:
      status: "proved", "refuted" or "unknown".
      ms: processor time of the solver, milliseconds.
      smt2: the formulas as one SMT-LIB script, each the negation of what is to be shown: `unsat`,
        every time, is the proof.
      witness: of a refuted claim, a concrete case; None otherwise.
      sizes: "concrete" (the mesh at hand) or "all" (every size of at least 2 of every axis, or
        sub-axis, that is used).
      condition: for all sizes, the sizes at which the statement is true; None if it is true at all.
      reason: why the status is unknown.
      z3_version: the solver that was asked.
    """

    claim: Claim
    status: str
    ms: float
    smt2: str
    witness: object = None
    sizes: str = "concrete"
    reason: str = ""
    z3_version: str = ""
    condition: Condition | None = None

    def __bool__(self) -> bool:
        return self.status == "proved"

    def _repr_html_(self) -> str:
        asked = f"z3 {self.z3_version} took {self.ms:.3g} ms."
        return card(repr(self), asked, ok={"proved": True, "refuted": False}.get(self.status))

    def __repr__(self) -> str:
        scope = "for all sizes" if self.sizes == "all" else "for these sizes"
        scope += "" if self.condition is None else f" where {self.condition!r}"
        tail = f": {self.reason}" if self.reason else ""
        shown = "" if self.witness is None else f", witness {self.witness!r}"
        return f"Proof({self.status} {scope}: {self.claim.text()}{shown}{tail})"


def prove(
    claim: Verdict | Halo | Claim,
    sizes: str = "concrete",
    *,
    encoding: str = "coordinates",
    timeout_s: float = 30.0,
    seed: int = 0,
) -> Proof:
    """Let z3 judge a verdict, a halo, any claim of `shardalg.merge.proofs.claims`, or a lemma.

    Args:
      sizes: "concrete" or "all"; see `Proof`. A lemma is always about all sizes. A halo is proved
        on every partition of its sizes, or, its closed forms, for every window, size and number of
        parts.
      encoding: of the devices of a claim about shardings, for the sizes at hand. "coordinates": one
        unknown device, a number per axis. "position": one unknown device, one number, and its
        quotients. "devices": every device by itself (`certificate`), whatever the order of devices;
        it is taken by itself where the shardings order their devices differently. The three share
        nothing but the claim, so that each is a second opinion on the others.
      timeout_s: solver time per formula; running out of it gives the status "unknown".
      seed: of the solver's random choices.

    Raises:
      ProofError: no claim, other `sizes` or `encoding`, or too many devices to list them.

    What the solver is not asked: that a map between equally many devices and tuples of ids is onto
    if it is one to one, which makes every tile as large as every other one. That the map is one to
    one is the formula; that there are equally many is the product of the sizes.

    >>> from shardalg.algebra.mesh import Mesh
    >>> from shardalg.algebra.sharding import Sharding
    >>> from shardalg.merge.lemmas import lemma
    >>> from shardalg.merge.compatible import merge
    >>> mesh = Mesh({"x": 2, "y": 4})
    >>> x, y = (Sharding.from_axes(e, mesh, (8, 8)) for e in (["x"], [None, "y"]))
    >>> prove(merge(x, y), "all")
    Proof(proved for all sizes: [x, y] is the merge of [x, None] and [None, y])
    >>> wrong = Sharding.from_axes(["y", "x"], mesh, (8, 8))
    >>> prove(MergeClaim(x, y, wrong)).status
    'refuted'
    >>> prove(lemma("radix_injective"))
    Proof(proved for all sizes: q*m + r with 0 <= r < m determines q and r)
    """
    if sizes not in SIZES:
        raise ProofError(f"sizes={sizes!r} is not one of {list(SIZES)}.")
    if encoding not in ENCODINGS or (sizes == "all" and encoding != "coordinates"):
        raise ProofError(
            f"encoding={encoding!r} with sizes={sizes!r}: the encodings are {list(ENCODINGS)}, and "
            "all sizes are proved in coordinates."
        )
    stated = _CLAIM_OF[type(claim)](claim) if type(claim) in _CLAIM_OF else claim
    if not isinstance(stated, Claim):
        raise ProofError(f"{type(claim).__name__} is no claim: give a Verdict, a Halo or a claim.")
    from shardalg.merge.proofs.solve import decide

    ask = partial(decide, timeout_s=timeout_s, seed=seed)
    if isinstance(stated, Lemma):
        return _judged(stated, "all", ask)
    proof = _judged(stated, sizes, ask, encoding)
    if sizes == "all" and proof.status == "refuted":
        return _confirmed(stated, proof, ask)
    return proof


def _judged(claim: Claim, sizes: str, ask: Ask, encoding: str = "coordinates") -> Proof:
    from shardalg.merge.proofs.obligations import Unprovable, encoded
    from shardalg.merge.proofs.solve import version

    try:
        todo = encoded(claim, "all" if sizes == "all" else encoding)
    except Unprovable as fault:
        return Proof(claim, "unknown", 0.0, "", None, sizes, str(fault), version())
    groups: dict[object, list[Obligation]] = {}
    for nth, obligation in enumerate(todo):
        groups.setdefault(obligation.group or nth, []).append(obligation)
    outcomes = [_any(group, ask) for group in groups.values()]
    failed = next((o for o in outcomes if o[0].status == "refuted"), None)
    failed = failed or next((o for o in outcomes if o[0].status == "unknown"), None)
    ms = sum(outcome.ms for outcome, _ in outcomes)
    smt2 = RESET.join(outcome.smt2 for outcome, _ in outcomes)
    if failed is None:
        condition = _condition(claim) if sizes == "all" else None
        return Proof(claim, "proved", ms, smt2, None, sizes, "", version(), condition)
    outcome, obligation = failed
    if outcome.status == "unknown":
        reason = getattr(outcome, "reason", "")
        return Proof(claim, "unknown", ms, smt2, None, sizes, reason, version())
    witness = obligation.witness(getattr(outcome, "values", ()))
    return Proof(claim, "refuted", ms, smt2, witness, sizes, "", version())


def _condition(claim: Claim) -> Condition | None:
    """The sizes at which a claim of refinement is true; the other claims are true at all sizes."""
    if not isinstance(claim, RefineClaim) or not claim.holds:
        return None
    return condition_of((claim.fine, claim.coarse), "refines", "gspmd")


def _any(group: Sequence[Obligation], ask: Ask) -> tuple[Outcome, Obligation]:
    """The first alternative that is proved; else the last one."""
    for obligation in group:
        outcome = ask(obligation.hypotheses, obligation.goal, text=obligation.text)
        if outcome.status == "proved":
            break
    return outcome, obligation


def _confirmed(claim: Claim, proof: Proof, ask: Ask) -> Proof:
    """A refutation for all sizes must be one at the sizes of the mesh.

    The solver may choose `radix` freely, so its model is no counterexample by itself.
    """
    concrete = _judged(claim, "concrete", ask)
    ms, smt2 = proof.ms + concrete.ms, proof.smt2
    if concrete.status == "refuted":
        return Proof(claim, "refuted", ms, smt2, concrete.witness, "all", "", proof.z3_version)
    reason = "the formula has a model that is none at the sizes of the mesh"
    return Proof(claim, "unknown", ms, smt2, None, "all", reason, proof.z3_version)
