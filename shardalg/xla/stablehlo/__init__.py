"""StableHLO text, from `jax.jit(f).lower(...)` or `jax.export`, as a traced JAX function.

`read_stablehlo` (read_text.py) has jaxlib parse the text, and interprets it (`interpret.py`): each
operator is looked up in a table and calls the function of `lax` that it came from (`called.py`,
`contracted.py`, `reduced.py`, `block_region.py`, `block_region.py`, `block_region.py`), while
`jax.jit(...).trace` listens.
So the rows of `ops` serve text as they serve functions. Shardings of arguments and results become
those of the jitted function, those inside become constraints (`text_layouts.py`); locations become
frames of the traceback (`text_places.py`). An operator that no table has is refused by name.
"""
