"""One instruction with what its operands hold, and what is claimed of several kinds alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardalg.algebra.digits import Digits, overlap
from shardalg.algebra.mesh import Mesh
from shardalg.merge.integers import Formula, IntegerClaim, Number, equal, implies, within
from shardalg.spmd import program as p
from shardalg.verify.contents import Contents, Held, Made, at_member, fill_number, laid_out
from shardalg.verify.report import Decided, Statement

MEMBER = "m"
X = Number.of("x")
Stated = tuple[str, Statement]


@dataclass(frozen=True)
class Step:
    """An instruction with what its operands hold and the local that it makes.

    Attributes:
      filler: the second operand of a mask in words, where it fills with a value.
      number: of the result that is spoken of, and of the operand that it follows.
      count: of results.
    """

    mesh: Mesh
    attributes: p.Attributes
    operands: tuple[Contents, ...]
    made: Made
    filler: str = ""
    number: int = 0
    count: int = 1

    @property
    def given(self) -> Contents:
        """What the operand holds that the result follows: the first one, mostly."""
        return self.operands[self.number]

    @property
    def said(self) -> Contents:
        """What the program says that the result holds."""
        return laid_out(self.made.sharding, self.made.shape, None)

    def claim(self, words: str, goal: Formula, **more: object) -> IntegerClaim:
        """A claim about this instruction."""
        return IntegerClaim(words, self.mesh, goal, **more)


Result = tuple[Contents, list[Stated]]


def with_dim(contents: Contents, dim: int, held: Held) -> Contents:
    """The contents with another dimension in place of one."""
    return replace(contents, dims=(*contents.dims[:dim], held, *contents.dims[dim + 1 :]))


def filled_with(step: Step, number: int | float | bool | None) -> Contents:
    """What is given, of its fills those with a number: where two paddings meet, the last counts."""
    dtype = step.made.dtype
    dims = tuple(
        replace(held, fill=held.fill if fill_number(held.fill, dtype) == number else None)
        for held in step.given.dims
    )
    return replace(step.given, dims=dims)


def members_agree(step: Step, digits: Digits, dims: tuple[int, ...]) -> Iterator[Stated]:
    """Dimensions that a collective does not touch lie alike on the members of its group."""
    for dim, held in enumerate(step.given.dims):
        other = at_member(held.start, digits, MEMBER)
        if dim not in dims and other != held.start:
            words = f"members agree on dimension {dim}"
            members = ((MEMBER, digits),)
            yield "delivers", step.claim(words, equal(other, held.start), members=members)


def apart(step: Step) -> Stated:
    """Partial sums are not moved between the members that hold them."""
    mixed = any(overlap(a, b) for a in step.attributes.digits for b in step.given.unreduced)
    return "combine", Decided("what moves are not the partial sums of one value", not mixed)


def nothing_beyond(step: Step, held: Held) -> Iterator[Stated]:
    """Windows that were cut to what is wanted hold nothing else that exists."""
    if held.wanted:
        goal = implies(within(held.start + X, 0, held.size), held.exists(held.start + X))
        words = "every element that exists at these places was wanted"
        yield "delivers", step.claim(words, goal, unknowns=(("x", held.length),))
