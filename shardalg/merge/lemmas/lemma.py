"""A lemma: a theorem about whole numbers that the library rests on, as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardalg.errors import ProofError


@dataclass(frozen=True)
class Lemma:
    """`given` implies `shows`, for all whole numbers that stand in them.

    Attributes:
      name: lower_snake_case.
      statement: the theorem in words.
      used: the module that relies on it, and what for.
      given, shows: conditions in the language of `merge/proofs/integers.py`, separated by
        commas.
      mutants: pairs (text, other text): with the text replaced the statement is wrong, and the
        solver must say so. They guard against hypotheses that nothing satisfies.

    Raises:
      ProofError: no mutant, or one that replaces nothing.
    """

    name: str
    statement: str
    used: str
    given: str
    shows: str
    mutants: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        idle = [old for old, _ in self.mutants if old not in self.given + "\n" + self.shows]
        if idle or not self.mutants:
            raise ProofError(
                f"the lemma {self.name} needs mutants that change it; {idle} stand nowhere in "
                f"{self.given!r} or {self.shows!r}."
            )

    def text(self) -> str:
        """The statement in words."""
        return self.statement

    def mutated(self) -> Iterator[Lemma]:
        """The wrong statements next to this one."""
        for k, (old, new) in enumerate(self.mutants, 1):
            given, shows = (text.replace(old, new) for text in (self.given, self.shows))
            yield replace(
                self,
                name=f"{self.name}/mutant{k}",
                statement=f"{new or 'nothing'} in place of {old}",
                given=given,
                shows=shows,
                mutants=((new, old),),
            )
