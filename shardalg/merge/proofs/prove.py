"""Proofs: z3 decides whether a verdict or a claim is true, for given or for all mesh sizes."""

from __future__ import annotations

from collections.abc import Callable
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
_CLAIM_OF: dict[type, Callable[..., Claim]] = {Verdict: of_verdict, Halo: HaloClaim}
"""For values that are no claims themselves, the function that returns their claim."""
Ask = Callable[..., "Outcome"]
SIZES = ("concrete", "all")
# Without a reset, a solver would join the formulas of one proof, which are independent.
RESET = "\n(reset)\n"
ENCODINGS = ("coordinates", "position", "devices")


@dataclass(frozen=True)
class Proof:
    """The result of z3 on a claim; in a condition it is true only if the claim is proved.

    Attributes:
      status: "proved", "refuted" or "unknown".
      ms: processor time of the solver, milliseconds.
      smt2: the negated formulas as one SMT-LIB script. The claim is proved if the answer to each of
        them is `unsat`.
      witness: for a refuted claim, a concrete case; None otherwise.
      sizes: "concrete" (the sizes of the mesh) or "all" (every size of at least 2 of every axis, or
        sub-axis, that is used).
      reason: the reason of the status "unknown".
      z3_version: the version of the solver.
      condition: for all sizes, the sizes at which the statement is true; None if it is true at all
        of them.
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
        solver = f"z3 {self.z3_version} took {self.ms:.3g} ms."
        return card(repr(self), solver, ok={"proved": True, "refuted": False}.get(self.status))

    def __repr__(self) -> str:
        """Return the status, the scope, the claim, and a witness and a reason if there are any."""
        scope = "for all sizes" if self.sizes == "all" else "for these sizes"
        scope += "" if self.condition is None else f" where {self.condition!r}"
        tail = f": {self.reason}" if self.reason else ""
        witness_text = "" if self.witness is None else f", witness {self.witness!r}"
        return f"Proof({self.status} {scope}: {self.claim.text()}{witness_text}{tail})"


def prove(
    claim: Verdict | Halo | Claim,
    sizes: str = "concrete",
    *,
    encoding: str = "coordinates",
    timeout_s: float = 30.0,
    seed: int = 0,
) -> Proof:
    """Prove or refute a verdict, a halo, a claim of `shardalg.merge.proofs.claims`, or a lemma.

    Args:
      sizes: "concrete" or "all"; see `Proof`. A lemma is always about all sizes. A halo with
        "concrete" is proved on every partition; with "all" its closed forms are proved for every
        window, size and number of parts.
      encoding: the form of devices in a claim about shardings, for concrete sizes. "coordinates":
        one unknown device, one number per axis. "position": one unknown device, as one number and
        its quotients. "devices": each device by itself (`certificate`), for any order of devices;
        it also replaces "coordinates" if the shardings order their devices differently. The three
        share only the claim, so each is a second opinion on the others.
      timeout_s: solver time per formula; a formula that takes longer has the status "unknown".
      seed: the seed of the solver's random choices.

    Raises:
      ProofError: `claim` is no claim; `sizes` or `encoding` is unknown; too many devices to list.

    One step is not proved by the solver: a map between equally many devices and tuples of ids is
    onto if it is one to one, so all tiles are on equally many devices. The formula says that the
    map is one to one. The product of the sizes shows that the numbers are equal.

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
    # z3 is imported here, because most programs prove nothing.
    from shardalg.merge.proofs.solve import decide

    ask = partial(decide, timeout_s=timeout_s, seed=seed)
    # The unknowns of a lemma are all its parameters, so it has no concrete form.
    if isinstance(stated, Lemma):
        return _decide(stated, "all", ask)
    proof = _decide(stated, sizes, ask, encoding)
    if sizes == "all" and proof.status == "refuted":
        return _confirmed(stated, proof, ask)
    return proof


def _decide(claim: Claim, sizes: str, ask: Ask, encoding: str = "coordinates") -> Proof:
    """Return the proof of a claim, or its refutation, from the solver's answers to its formulas.

    The claim is proved if each of its formulas is proved; of alternative formulas one is enough. It
    is refuted if one formula is refuted. Otherwise it is unknown.

    Args:
      sizes: "all" for a proof at all sizes of the mesh, "concrete" for the sizes that it has.
      ask: the function that gives one formula to the solver.
      encoding: the way in which formulas represent a device, for concrete sizes.
    """
    from shardalg.merge.proofs.obligations import Unprovable, encoded
    from shardalg.merge.proofs.solve import version

    # A claim without a formula in this encoding is unknown; other encodings may have one.
    try:
        todo = encoded(claim, "all" if sizes == "all" else encoding)
    except Unprovable as fault:
        return Proof(claim, "unknown", 0.0, "", None, sizes, str(fault), version())
    groups: dict[object, list[Obligation]] = {}
    for nth, obligation in enumerate(todo):
        groups.setdefault(obligation.group or nth, []).append(obligation)
    outcomes: list[tuple[Outcome, Obligation]] = []
    for group in groups.values():
        # Formulas of one group are alternatives: take the first one that is proved, or the last.
        for obligation in group:
            outcome = ask(obligation.hypotheses, obligation.goal, text=obligation.text)
            if outcome.status == "proved":
                break
        outcomes.append((outcome, obligation))
    # A refutation counts more than a formula that the solver could not decide.
    failed = next((o for o in outcomes if o[0].status == "refuted"), None)
    failed = failed or next((o for o in outcomes if o[0].status == "unknown"), None)
    ms = sum(outcome.ms for outcome, _ in outcomes)
    smt2 = RESET.join(outcome.smt2 for outcome, _ in outcomes)
    if failed is None:
        condition = None
        # A proof of "fine refines coarse" holds at all sizes at which every border of a coarse
        # block is also a border of fine blocks: uneven blocks can end elsewhere. These sizes are
        # the condition of the proof. A proof of any other claim needs no condition.
        if sizes == "all" and isinstance(claim, RefineClaim) and claim.holds:
            condition = condition_of((claim.fine, claim.coarse), "refines", "gspmd")
        return Proof(claim, "proved", ms, smt2, None, sizes, "", version(), condition)
    outcome, obligation = failed
    if outcome.status == "unknown":
        reason = getattr(outcome, "reason", "")
        return Proof(claim, "unknown", ms, smt2, None, sizes, reason, version())
    witness = obligation.witness(getattr(outcome, "values", ()))
    return Proof(claim, "refuted", ms, smt2, witness, sizes, "", version())


def _confirmed(claim: Claim, proof: Proof, ask: Ask) -> Proof:
    """Return the final proof of a claim that was refuted for all sizes of the mesh.

    In the formula for all sizes, partition ids are an unknown function `radix` of the coordinates.
    The solver may find a counterexample that no real mesh has. The claim is therefore decided again
    at the sizes of its mesh. It is refuted if it is also refuted there, and unknown otherwise.
    """
    concrete = _decide(claim, "concrete", ask)
    ms, smt2 = proof.ms + concrete.ms, proof.smt2
    if concrete.status == "refuted":
        return Proof(claim, "refuted", ms, smt2, concrete.witness, "all", "", proof.z3_version)
    reason = "the formula has a model that is none at the sizes of the mesh"
    return Proof(claim, "unknown", ms, smt2, None, "all", reason, proof.z3_version)
