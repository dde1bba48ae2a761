"""The theorems that the library rests on: one table, each with its claim and its wrong variants.

Lemmas: The theorems behind those formulas (mixed radix, blocks and padding, canonical quotients,
halos, exchanges) stand in one table, `merge/lemmas/`: each in words, as a claim with every
parameter unknown, and with wrong variants that must be refuted. `sa.prove(lemma(name))` proves
one; the other proofs take from the table what holds for all sizes. A claim is text in a small
language of whole numbers (`merge/proofs/integers.py`), so tests evaluate the same text in
Python.
"""

from __future__ import annotations

from shardalg.errors import ProofError
from shardalg.merge.lemmas.digits import BLOCKS, DIGITS, QUOTIENTS
from shardalg.merge.lemmas.halos import EXCHANGES, HALOS
from shardalg.merge.lemmas.lemma import Lemma

LEMMAS: tuple[Lemma, ...] = (*DIGITS, *BLOCKS, *QUOTIENTS, *HALOS, *EXCHANGES)


def lemma(name: str) -> Lemma:
    """The lemma of this name.

    Raises:
      ProofError: there is none; the message lists them.

    >>> lemma("radix_injective").text()
    'q*m + r with 0 <= r < m determines q and r'
    """
    found = {known.name: known for known in LEMMAS}
    if name not in found:
        raise ProofError(f"no lemma {name!r}; the lemmas are {', '.join(found)}.")
    return found[name]
