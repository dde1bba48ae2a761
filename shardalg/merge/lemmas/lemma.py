"""Lemmas: theorems about whole numbers that the library relies on, as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardalg.errors import ProofError


@dataclass(frozen=True)
class Lemma:
    """A theorem: `given` implies `shows`, for all values of the whole numbers in them.

    Attributes:
      name: lower_snake_case.
      statement: the theorem in words.
      used: the module and the function that rely on it.
      given, shows: conditions in the language of `merge/proofs/integers.py`, separated by
        commas.
      mutants: pairs (text, other text). With the text replaced, the statement is wrong, and the
        solver must refute it. This detects hypotheses that nothing satisfies.

    Raises:
      ProofError: there is no mutant, or a mutant replaces nothing.
    """

    name: str
    statement: str
    used: str
    given: str
    shows: str
    mutants: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        """Raise ProofError without mutants, or if a mutant replaces text that does not occur."""
        absent = [old for old, _ in self.mutants if old not in self.given + "\n" + self.shows]
        if absent or not self.mutants:
            raise ProofError(
                f"the lemma {self.name} needs mutants that change it; {absent} do not occur in "
                f"{self.given!r} or {self.shows!r}."
            )

    def text(self) -> str:
        """Return the statement in words."""
        return self.statement

    def mutated(self) -> Iterator[Lemma]:
        """Yield the wrong variants of this lemma."""
        for k, (old, new) in enumerate(self.mutants, 1):
            # A lemma must have a mutant, so the changed lemma gets the reverse replacement.
            given, shows = (text.replace(old, new) for text in (self.given, self.shows))
            yield replace(
                self,
                name=f"{self.name}/mutant{k}",
                statement=f"{new or 'nothing'} in place of {old}",
                given=given,
                shows=shows,
                mutants=((new, old),),
            )
