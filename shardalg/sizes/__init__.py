"""Named sizes: exact formulas of them, and the conditions under which a plan is valid.

A formula can be evaluated at many values of the sizes, quickly in double precision or exactly.
Planning runs on recorded sizes: numbers that store each comparison as a condition (`recorded.py`).
"""
