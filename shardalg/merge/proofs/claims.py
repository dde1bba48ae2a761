"""What can be sent to the solver: statements about shardings, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from shardalg.algebra.sharding import Sharding
from shardalg.errors import ProofError
from shardalg.merge.verdict import Verdict


@dataclass(frozen=True)
class MergeClaim:
    """`result` is the merge of two or more shardings; None: there is no merge.

    A result is right if it gives the offsets of each operand on every dimension that the operand
    splits, splits no other dimension, and is balanced. Under the shardy policy an operand's blocks
    need only be the major part of the result's.

    Attributes:
      failure: for None, the verdict that names what refuses the merge.
    """

    first: Sharding
    second: Sharding
    result: Sharding | None
    policy: str = "gspmd"
    verdict: Verdict | None = None
    others: tuple[Sharding, ...] = ()

    def __post_init__(self) -> None:
        shapes = {s.shape for s in self.shardings}
        if len(shapes) > 1:
            raise ProofError(f"the shardings of a merge are of one shape, got {sorted(shapes)}.")

    @property
    def operands(self) -> tuple[Sharding, ...]:
        """All shardings that are merged."""
        return (self.first, self.second, *self.others)

    @property
    def shardings(self) -> tuple[Sharding, ...]:
        """What the claim is about: operands and result."""
        return self.operands if self.result is None else (*self.operands, self.result)

    def text(self) -> str:
        """The statement in words."""
        verb = "there is no" if self.result is None else f"{self.result.text()} is the"
        return f"{verb} merge of {' and '.join(s.text() for s in self.operands)}"


@dataclass(frozen=True)
class EqualClaim:
    """Both shardings give every device the same offsets, and the same unreduced and manual ids.

    Attributes:
      holds: False states the opposite.
    """

    first: Sharding
    second: Sharding
    holds: bool = True

    @property
    def shardings(self) -> tuple[Sharding, ...]:
        """What the claim is about."""
        return (self.first, self.second)

    def text(self) -> str:
        """The statement in words."""
        return (
            f"{self.first.text()} {'equals' if self.holds else 'differs from'} {self.second.text()}"
        )


@dataclass(frozen=True)
class RefineClaim:
    """Every block of `fine` lies inside the device's block of `coarse`.

    Attributes:
      holds: False states the opposite, of which `device` is an example.
    """

    fine: Sharding
    coarse: Sharding
    holds: bool = True
    device: int | None = None

    @property
    def shardings(self) -> tuple[Sharding, ...]:
        """What the claim is about."""
        return (self.fine, self.coarse)

    def text(self) -> str:
        """The statement in words."""
        verb = "refines" if self.holds else "does not refine"
        return f"{self.fine.text()} {verb} {self.coarse.text()}"


def of_verdict(verdict: Verdict) -> MergeClaim | RefineClaim | EqualClaim:
    """The claim that a verdict makes."""
    first, second, *others = verdict.operands
    if verdict.relation == "equal":
        return EqualClaim(first, second, bool(verdict))
    if verdict.relation == "refines":
        device = None if verdict.witness is None else verdict.witness.device
        return RefineClaim(first, second, bool(verdict), device)
    refused = None if verdict else verdict
    return MergeClaim(first, second, verdict.sharding, verdict.policy, refused, tuple(others))
