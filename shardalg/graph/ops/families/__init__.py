"""Rows by family: each module's `ROWS` maps a primitive to the function that builds its rows."""
