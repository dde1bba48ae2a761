"""`plan.patch()`: the fewest sharding constraints that make XLA partition as the plan does.

`user_code.py` finds the user's functions that a trace runs, and runs edited ones in their place.
`probes.py` marks every expression of these functions, so that a constraint can be tried without an
edit. `candidates.py` lists the constraints to try, `constraint_trials.py` asks XLA about sets of
them, and `minimal.py` searches the best set. `edits.py` writes a set into the source. `patch.py` is
the answer (its diff is in `source_patch.py`), and `patch_check.py` compiles the patched source.
`explicit_edits.py` does the same for meshes with explicit axes.
"""
