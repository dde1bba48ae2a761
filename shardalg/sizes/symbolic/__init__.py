"""Named sizes of a traced function: a formula for every dimension, and the graph at other sizes.

A hint is an example number for each named size. `symbols.py` traces the function at the hints, and
again at unrelated sizes (`retrace.py`). `lift.py` finds a formula for every dimension, from the
relations between the dimensions of each operator. If the second trace is another program, or two
names must be equal, an error names the line.

Planning itself uses integers only. `plan.at` returns the plan at other sizes. A plan is valid there
if the conditions that planning recorded are true (`planner/guards.py`). `at` and `holds` check the
conditions, and `plan.conditions` shows them.
"""
