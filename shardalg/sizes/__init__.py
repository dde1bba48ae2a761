"""Numbers with names: exact formulas, records of what was asked of them, and facts about them.

Formulas at many points: quickly in double precision, or without rounding.
"""
