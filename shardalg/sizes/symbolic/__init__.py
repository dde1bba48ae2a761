"""Named sizes of a traced function: formulas of all its sizes, and the function at other sizes.

Planning itself uses integers only. `symbols.py` traces the function at the hints, and again at
unrelated sizes (`retrace.py`). `lift.py` names every dimension along the rows. Another program, or
two names on one loop, is an error with its line. `plan.at` gives the plan at numbers. The plan is
valid at other sizes if the facts that planning noted hold there (`planner/guards.py`): `at` and
`holds` check them, `plan.conditions` shows them.
"""
