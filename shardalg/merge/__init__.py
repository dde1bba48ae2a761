"""The relations compatible, merge, equal and refines between shardings, decided by integers.

`compatible.py` decides by digits, in microseconds. `merged.py` counts in tables of positions where
digits do not decide: for device orders that no digits relate, and for digits of three meshes.
`decide="z3"` searches the merged sharding by its definition alone (`by_definition.py`). On meshes
of named sizes a verdict holds at the hints; its `condition` states the sizes at which it holds, as
`gcd(X, Y) = 1` (`condition.py`, `places.py`). A refusal has a witness that is evaluated from the
operands (`verdict.py`).

A proof is for all sizes, or for given sizes. For given sizes there are three encodings that share
only the claim: one unknown device in coordinates, one unknown device as one number
(`proofs/encode.py`, `proofs/merging.py`), or each device by itself (`proofs/certificate.py`).
"""
