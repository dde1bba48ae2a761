"""StableHLO text, from `jax.jit(f).lower(...)` or `jax.export`, as a traced JAX function.

`read_stablehlo` (`read_text.py`) parses the text with jaxlib, and interprets it under
`jax.jit(...).trace` (`interpret.py`). Each operator is looked up in a table and calls the function
of `lax` that it came from (`called.py`, `contracted.py`, `reduced.py`, `block_region.py`). The
rules for operators of JAX therefore also apply to text. Shardings of arguments and results become
those of the jitted function, and shardings inside become constraints (`text_layouts.py`). Locations
become frames of the traceback (`text_places.py`). An operator that no table has is refused by name.
"""
