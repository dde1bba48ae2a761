"""Named sizes: exact formulas, facts about them, and records of the questions of planning.

A formula can be evaluated at many points, quickly in double precision or without rounding.
"""
