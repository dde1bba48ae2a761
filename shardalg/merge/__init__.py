"""Compatible, merge, equal and refines: decided by integers; proofs and lemmas in rooms beside.

Merges: Digits decide in microseconds (`merge/compatible.py`); orders of devices that no digits
join, and digits of three meshes, are counted in tables of positions (`merged.py`);
`decide="z3"` searches the merged sharding by its definition alone (`by_definition.py`). On meshes
of named sizes a verdict holds at the hints, and `condition` says for which sizes it holds
(`condition.py`, `places.py`): `gcd(X, Y) = 1`. A refusal has a witness that is evaluated from the
operands (`verdict.py`). A proof is asked for all sizes, or for the sizes at hand in one of three
encodings that share nothing but the claim: an unknown device in coordinates, in one number
(`merge/proofs/encode.py`, `merge/proofs/merging.py`, `merge/proofs/merging.py`), or every device
by itself
(`merge/proofs/certificate.py`).
"""
