"""From a JAX function to a `Graph`: calls inlined, control flow as regions, bits written out.

Primitives of other packages are opened while tracing (`graph/tracing/opened.py`): the function
that their lowering was made of, or their `impl`, where JAX traces it to the types that the
primitive says, outside every `shard_map`; any other is gathered by its name. Effects without
results are left out and listed (`Graph.left_out`), effects with results are refused; a
`pure_callback` is an operator without a row, which every device runs whole.

Random bits of the default keys are written out while tracing (`graph/tracing/written.py`): a hash
of the positions of the elements, where a primitive of our own says the positions, so that a device
draws its own block.
"""
