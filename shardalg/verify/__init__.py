"""Translation validation: every instruction of a program against the graph it came from.

Two checks: `check()` is structure and runs between stages (`spmd/instruction.py` derives local
shapes and item types from each instruction). A malformed program is refuted, too: `spmd/fields.py`
reads what a field may hold off its class. `plan.verify()` (`verify/`) is proof, and reads nothing
of the planner: it follows every local value from the arguments on (which elements of which graph
value stand at which place, `contents.py`), claims each move from the definition of its instruction
(`moves/`) and each operator by comparing the row of the global operator with the row that the
same table gives for the local one (`operators/`). A claim is a formula over whole
numbers (`merge/proofs/integers.py`), one unknown per mesh axis and per loop, so its proof does not
grow with the mesh; merges are proved for all mesh sizes. `.ok` is True exactly when nothing is
left open, and `lower()` verifies first and refuses a refuted program. What is taken on trust, and
the tests that stand in, is listed in the report. `make mutate` asks of both what they miss
(`tests/mutate`): programs of every family are tampered with by walking their dataclasses, `verify`
alone judges each, and what it accepts is simulated and lowered beside one device.
"""
