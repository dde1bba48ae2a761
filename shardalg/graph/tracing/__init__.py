"""Translation of a JAX function to a `Graph`: calls are inlined, control flow becomes regions.

Primitives of other packages are expanded while tracing (`graph/tracing/opened.py`). The expansion
is the function of their lowering rule or their `impl`, if JAX traces it to the same types, outside
of every `shard_map`. Any other primitive has no row, so that its operands are gathered.

Effects without results are omitted and listed (`Graph.left_out`). Effects with results are refused.
`jax.pure_callback` is an operator without a row, which every device runs on whole operands.

Random bits of the default keys are expanded too (`graph/tracing/written.py`): they are a hash of
the positions of the elements. The primitive `positions` of shardalg computes these, so that a
device draws only its own block.
"""
