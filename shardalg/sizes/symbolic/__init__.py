"""Named sizes of a traced function: formulas of all its sizes, and the function at other sizes.

Names for sizes: Planning sees integers only. `sizes/symbolic/symbols.py` traces the function at the
hints and once more at unrelated sizes (`sizes/symbolic/retrace.py`), and `sizes/symbolic/lift.py`
names every
dimension along the rows; a program that differs, or two names on one loop, is an error with its
line. `plan.at` gives the plan at numbers. What ties a plan to its hints are the facts that planning
found of its sizes (`planner/guards.py`): `at` and `holds` check them, `plan.conditions` shows
them.
"""
