"""Named sizes of a traced function: formulas of all its sizes, and the function at other sizes.

Names for sizes: Planning sees integers only. `symbolic/symbols.py` traces the function at the
hints and once more at unrelated sizes (`symbolic/retrace.py`), and `symbolic/lift.py` names every
dimension along the rows; a program that differs, or two names on one loop, is an error with its
line. `plan.at` gives the plan at numbers. `partition/alternatives.py` prices what each operator
could have done instead, in formulas: the conditions of `plan.conditions`, for reading: sorted by
how near they are, each with the earlier choices that it rests on (`rests_on`), whose copies are at
hand. They price along the hints' paths, so they are neither all nor exact; what `at` and `holds`
rely on are the guards.
"""
