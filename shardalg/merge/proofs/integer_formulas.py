"""Claims about whole numbers as z3 formulas: a device is one coordinate per axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import z3

from shardalg.merge.proofs.devices import Obligation, Unprovable, Values
from shardalg.merge.proofs.encode import Space, place_value, space
from shardalg.merge.proofs.integers import (
    All,
    Atom,
    Compare,
    Either,
    Formula,
    IntegerClaim,
    Not,
    Number,
    PartitionId,
    Quotient,
)


@dataclass(frozen=True)
class IntegerWitness:
    """A case in which a claim fails: a device, and the values of the unknowns."""

    device: int
    unknowns: Values
    members: Values


@dataclass(frozen=True)
class _Encoder:
    """Devices as coordinates; as positions where the digits belong to different meshes."""

    claim: IntegerClaim
    space: Space | None

    def partition_id(self, atom: PartitionId) -> z3.ArithRef:
        """A partition id, of the device at hand or of a member."""
        if self.space is None:
            return place_value(atom.digits, z3.Int("d"))
        return self.space.polynomial(self.space.atoms_of(atom.digits), self.device(atom.member))

    def device(self, member: str) -> dict:
        """Coordinates of a device; a member shares those that are not its own."""
        assert self.space is not None  # a position has no coordinates
        found = self.space.device("d")
        own = dict(self.claim.members).get(member, ())
        free = set(self.space.atoms_of(own)) if own else set()
        return {a: z3.Int(f"{member}[{a.name}]") if a in free else c for a, c in found.items()}

    def bounds(self) -> list[z3.BoolRef]:
        """The ranges of all unknowns and coordinates."""
        rows = [z3.And(z3.Int(n) >= 0, z3.Int(n) < end) for n, end in self.claim.unknowns]
        if self.space is None:
            return [*rows, z3.Int("d") >= 0, z3.Int("d") < self.claim.mesh.size]
        devices = [self.device(name) for name in ("", *(n for n, _ in self.claim.members))]
        return rows + self.space.bounds(*devices)

    def number(self, number: Number) -> z3.ArithRef:
        """A linear expression."""
        terms = [self.atom(atom) * coefficient for atom, coefficient in number.terms]
        return z3.Sum([*terms, z3.IntVal(number.constant)])

    def atom(self, atom: Atom) -> z3.ArithRef:
        """An unknown, a partition id, a quotient or a remainder."""
        if isinstance(atom, str):
            return z3.Int(atom)
        if isinstance(atom, PartitionId):
            return self.partition_id(atom)
        inner = self.number(atom.number)
        return inner / atom.by if isinstance(atom, Quotient) else inner % atom.by

    def formula(self, formula: Formula) -> z3.BoolRef:
        """A comparison, or formulas joined by and, or, not."""
        return _FORMULA[type(formula)](self, formula)

    def witness(self, values: Values) -> IntegerWitness:
        """The case that a model of the solver describes."""
        named = dict(values)
        unknowns = tuple((n, named.get(n, 0)) for n, _ in self.claim.unknowns)
        mesh = self.claim.mesh
        if self.space is None:
            return IntegerWitness(mesh.order[named.get("d", 0)], unknowns, ())
        members = tuple((n, self._position(named, n)) for n, _ in self.claim.members)
        return IntegerWitness(mesh.order[self.space.position(named, "d")], unknowns, members)

    def _position(self, named: dict[str, int], member: str) -> int:
        found = ((a, str(c)) for a, c in self.device(member).items())
        return sum(named.get(name, 0) * atom.digit.stride for atom, name in found)


def _compare(encoder: _Encoder, formula: Compare) -> z3.BoolRef:
    value = encoder.number(formula.number)
    return value == 0 if formula.relation == "==" else value >= 0


_FORMULA: dict[type, Callable[..., z3.BoolRef]] = {
    Compare: _compare,
    All: lambda encoder, f: z3.And([encoder.formula(part) for part in f.parts]),
    Either: lambda encoder, f: z3.Or([encoder.formula(part) for part in f.parts]),
    Not: lambda encoder, f: z3.Not(encoder.formula(f.formula)),
}


def integer_obligations(claim: IntegerClaim, symbolic: bool) -> list[Obligation]:
    """The one formula of a claim; its sizes are the numbers that stand in it."""
    found = space(claim.mesh, claim.digits, symbolic=False)
    if found is None and claim.members:
        raise Unprovable("digits of different meshes have no common coordinates to vary")
    encoder = _Encoder(claim, found)
    goal = encoder.formula(claim.goal)
    return [Obligation(tuple(encoder.bounds()), goal, encoder.witness)]
