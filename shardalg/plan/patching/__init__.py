"""`plan.patch()`: the fewest sharding constraints that make XLA partition as the plan does.

`user_code.py` finds the user's functions that a trace runs, and runs edited ones in their place.
`probes.py` marks every expression of these functions, so that a constraint can be tried without an
edit. `constraint_trials.py` asks XLA about sets of constraints, and `minimal.py` searches the best set.
`edits.py` writes the set as a unified diff. `patch.py` is the answer. `explicit_edits.py` does the
same for meshes with explicit axes.
"""
