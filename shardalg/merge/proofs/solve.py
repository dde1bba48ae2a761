"""The call of z3, which decides whether a statement is true for all values of its unknowns.

The module also translates claims about whole numbers to z3 formulas, with one coordinate of the
device per axis.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import z3

from shardalg.merge.proofs.encode import Obligation, Space, Unprovable, Values, place_value, space
from shardalg.merge.proofs.integers import (
    All,
    Atom,
    Compare,
    Either,
    FloorQuotient,
    Formula,
    IntegerClaim,
    Not,
    Number,
    PartitionId,
)


@dataclass(frozen=True)
class IntegerWitness:
    """A counterexample: a case in which a claim is false.

    Attributes:
      device: the id of the device on which it is false.
      unknowns: the numbers of the unknowns in the claim.
      members: the mesh positions of other devices in the claim.
    """

    device: int
    unknowns: Values
    members: Values


@dataclass(frozen=True)
class _Encoder:
    """The translation of one claim to z3.

    A device is given by its coordinates along the axes of one mesh (`space`). If the digits of the
    claim belong to different meshes, `space` is None, and a device is given by its position.
    """

    claim: IntegerClaim
    space: Space | None

    def partition_id(self, atom: PartitionId) -> z3.ArithRef:
        """Return the term of a partition id, of the claim's device or of a member."""
        if self.space is None:
            return place_value(atom.digits, z3.Int("d"))
        return self.space.polynomial(self.space.atoms_of(atom.digits), self.device(atom.member))

    def device(self, member: str) -> dict:
        """Return the coordinates of a device along the axes of the mesh, as z3 terms.

        Args:
          member: the name of a device of the group that the claim's device belongs to, which
            differs from it in the group's digits only; "" is the claim's device itself.
        """
        assert self.space is not None  # a position has no coordinates
        found = self.space.device("d")
        own = dict(self.claim.members).get(member, ())
        free = set(self.space.atoms_of(own)) if own else set()
        return {a: z3.Int(f"{member}[{a.name}]") if a in free else c for a, c in found.items()}

    def bounds(self) -> list[z3.BoolRef]:
        """Return the ranges of all unknowns and coordinates."""
        ranges = [z3.And(z3.Int(n) >= 0, z3.Int(n) < end) for n, end in self.claim.unknowns]
        # Without coordinates, a device is one number `d`. Otherwise the coordinates of the claim's
        # device (named "") and of its members are bounded.
        if self.space is None:
            return [*ranges, z3.Int("d") >= 0, z3.Int("d") < self.claim.mesh.size]
        devices = [self.device(name) for name in ("", *(n for n, _ in self.claim.members))]
        return ranges + self.space.bounds(*devices)

    def number(self, number: Number) -> z3.ArithRef:
        """Return the term of a number."""
        terms = [self.atom(atom) * coefficient for atom, coefficient in number.terms]
        return z3.Sum([*terms, z3.IntVal(number.constant)])

    def atom(self, atom: Atom) -> z3.ArithRef:
        """Return the term of an unknown, a partition id, a quotient or a remainder."""
        if isinstance(atom, str):
            return z3.Int(atom)
        if isinstance(atom, PartitionId):
            return self.partition_id(atom)
        # Divisors are positive, so that z3 rounds the quotient down, as `FloorQuotient` does.
        inner = self.number(atom.number)
        return inner / atom.by if isinstance(atom, FloorQuotient) else inner % atom.by

    def formula(self, formula: Formula) -> z3.BoolRef:
        """Return a `Formula` of a claim as a z3 formula."""
        return _FORMULA[type(formula)](self, formula)

    def witness(self, values: Values) -> IntegerWitness:
        """Return a case in which the claim is false, from the numbers of a counterexample of z3.

        Args:
          values: the number of each unknown in the counterexample.
        """
        number_of = dict(values)
        unknowns = tuple((n, number_of.get(n, 0)) for n, _ in self.claim.unknowns)
        mesh = self.claim.mesh
        if self.space is None:
            return IntegerWitness(mesh.order[number_of.get("d", 0)], unknowns, ())
        # A coordinate is named by its z3 term. A model lacks a coordinate that may have any value,
        # so 0 is taken.
        members = []
        for member, _ in self.claim.members:
            coordinates = ((a.digit.stride, str(c)) for a, c in self.device(member).items())
            position = sum(number_of.get(name, 0) * stride for stride, name in coordinates)
            members.append((member, position))
        device = mesh.order[self.space.position(number_of, "d")]
        return IntegerWitness(device, unknowns, tuple(members))


def _compare(encoder: _Encoder, formula: Compare) -> z3.BoolRef:
    """Return the z3 formula of a comparison."""
    value = encoder.number(formula.number)
    return value == 0 if formula.relation == "==" else value >= 0


_FORMULA: dict[type, Callable[..., z3.BoolRef]] = {
    Compare: _compare,
    All: lambda encoder, f: z3.And([encoder.formula(part) for part in f.parts]),
    Either: lambda encoder, f: z3.Or([encoder.formula(part) for part in f.parts]),
    Not: lambda encoder, f: z3.Not(encoder.formula(f.formula)),
}


def integer_obligations(claim: IntegerClaim, symbolic: bool) -> list[Obligation]:
    """Return the one formula of a claim, whose sizes are always concrete."""
    # A single device can be one unknown position, but a member cannot vary some of its digits.
    coordinates = space(claim.mesh, claim.digits, symbolic=False)
    if coordinates is None and claim.members:
        raise Unprovable("digits of different meshes have no common coordinates to vary")
    encoder = _Encoder(claim, coordinates)
    goal = encoder.formula(claim.goal)
    return [Obligation(tuple(encoder.bounds()), goal, encoder.witness)]


@dataclass(frozen=True)
class Proved:
    """The negation has no solution.

    Attributes:
      ms: processor time of the solver, milliseconds; other programs on the machine do not count.
    """

    ms: float
    smt2: str
    status: str = "proved"


@dataclass(frozen=True)
class Refuted:
    """The negation has a solution: `values` of the unknowns."""

    ms: float
    smt2: str
    values: tuple[tuple[str, int], ...]
    status: str = "refuted"


@dataclass(frozen=True)
class Unknown:
    """The solver gave up, or ran out of time."""

    ms: float
    smt2: str
    reason: str
    status: str = "unknown"


Outcome = Proved | Refuted | Unknown

PLAIN_EFFORT = 100_000
"""In units of the solver's own work (about 20 ms).

The plain core decides nearly every claim in less time than the portfolio of tactics takes to
start. The portfolio decides the other claims.
"""


def decide(
    hypotheses: Sequence[z3.BoolRef],
    goal: z3.BoolRef,
    *,
    timeout_s: float = 30.0,
    seed: int = 0,
    text: str = "",
) -> Outcome:
    """Return whether the hypotheses imply the goal; `Unknown` if time runs out.

    Args:
      timeout_s: time limit of each attempt in seconds.
      seed: the seed of the solver's random choices; other seeds reveal proofs that need luck.
      text: the negation as SMT-LIB text, in place of hypotheses and goal.

    >>> x = z3.Int("x")
    >>> decide([x > 2], x > 1).status, decide([x > 2], x > 3).values
    ('proved', (('x', 3),))
    >>> "(> x 2)" in decide([x > 2], x > 1).smt2  # as asked, not as simplified
    True
    """
    negated = [] if text else [*hypotheses, z3.Not(goal)]
    start = time.thread_time()  # the solver works in this thread; waiting for a core is no work
    for make, effort in ((z3.SimpleSolver, PLAIN_EFFORT), (z3.Solver, 0)):
        solver = make()
        solver.set("timeout", max(1, int(timeout_s * 1000)))
        solver.set("random_seed", seed)
        # The plain core gives up early, so that the portfolio gets the hard claims. For z3, the
        # limit 0 of the portfolio means no limit.
        solver.set("rlimit", effort)
        answer, fault = _check(solver, negated, text)
        if answer != z3.unknown:
            break
    ms = (time.thread_time() - start) * 1e3
    smt2 = text or _script(negated)
    if answer == z3.unsat:
        return Proved(ms, smt2)
    if answer == z3.unknown:
        return Unknown(ms, smt2, fault or solver.reason_unknown())
    # Only whole numbers are read. Claims may use an uninterpreted function (`radix`), which has
    # arguments (its arity is not 0) and therefore no number as its value.
    model = solver.model()
    pairs = ((str(d), model[d]) for d in model.decls() if d.arity() == 0)
    values = sorted((name, v.as_long()) for name, v in pairs if z3.is_int_value(v))
    return Refuted(ms, smt2, tuple(values))


def _check(
    solver: z3.Solver, negated: Sequence[z3.BoolRef], text: str
) -> tuple[z3.CheckSatResult, str]:
    """Return the solver's answer, and the text of an exception that it raised."""
    try:
        solver.from_string(text) if text else solver.add(*negated)
        return solver.check(), ""
    except z3.Z3Exception as error:
        return z3.unknown, str(error)


def _script(formulas: Sequence[z3.BoolRef]) -> str:
    """Return the formulas as SMT-LIB text."""
    # A solver's own text has only the formulas that its simplifier left.
    *others, last = formulas
    asts = (z3.Ast * len(others))(*(formula.as_ast() for formula in others))
    head = ("shardalg", "", "unknown", "", len(others), asts, last.as_ast())
    return z3.Z3_benchmark_to_smtlib_string(last.ctx.ref(), *head)


def version() -> str:
    """Return the version of the solver."""
    return z3.get_version_string()
