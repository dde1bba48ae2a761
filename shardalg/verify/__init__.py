"""Translation validation: every instruction of a program is compared with its graph.

There are two checks. `check()` tests the structure between stages: it derives local shapes and item
types from each instruction (`spmd/instruction.py`), and compares every field with its declared type
(`spmd/fields.py`). A malformed program is refuted, too.

`plan.verify()` is the proof, and uses nothing of the planner. It follows every local value from the
arguments on: the contents (`contents.py`) say which elements of which graph value it holds. A move
is claimed from the definition of its instruction (`moves/`). An operator is claimed by comparing
the row of the global operator with the row that the same table gives for the local one
(`operators/`). A claim is a formula over whole numbers (`merge/proofs/integers.py`), with one
unknown per mesh axis and per loop, so its proof does not grow with the mesh. Merges are proved for
all mesh sizes.

`Report.ok` is True exactly if each claim is proved or trusted. `lower()` verifies first, and
refuses a refuted program. The report lists the trusted statements, which tests cover instead.
`make mutate` searches for faults that verification misses (`tests/mutate`): it changes programs of
every family in one place, verifies each, and simulates the accepted ones.
"""
