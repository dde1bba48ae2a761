"""Builders of rows by family: each module's `ROWS` maps primitives to functions."""
