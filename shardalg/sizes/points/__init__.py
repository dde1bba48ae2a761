"""Formulas at many points: quickly in double precision, or without rounding."""
