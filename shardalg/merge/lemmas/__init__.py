"""The theorems that the library relies on: one table, each with its claim and its wrong variants.

The theorems are about mixed-radix numbers, blocks and padding, canonical quotients, halos and
exchanges. Each has a statement in words, a claim in which every parameter is unknown, and wrong
variants that must be refuted. `sa.prove(lemma(name))` proves one. Other proofs use the table for
claims about all sizes. A claim is text in a small language of whole numbers
(`merge/proofs/integers.py`), so tests evaluate the same text in Python.
"""

from __future__ import annotations

from shardalg.errors import ProofError
from shardalg.merge.lemmas.digits import BLOCKS, DIGITS, QUOTIENTS
from shardalg.merge.lemmas.halos import EXCHANGES, HALOS
from shardalg.merge.lemmas.lemma import Lemma

LEMMAS: tuple[Lemma, ...] = (*DIGITS, *BLOCKS, *QUOTIENTS, *HALOS, *EXCHANGES)


def lemma(name: str) -> Lemma:
    """Return the lemma of this name.

    Raises:
      ProofError: no lemma has this name; the message lists all names.

    >>> lemma("radix_injective").text()
    'q*m + r with 0 <= r < m determines q and r'
    """
    lemma_of = {each.name: each for each in LEMMAS}
    if name not in lemma_of:
        raise ProofError(f"no lemma {name!r}; the lemmas are {', '.join(lemma_of)}.")
    return lemma_of[name]
