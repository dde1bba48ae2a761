"""Operators of a plan run alone."""
