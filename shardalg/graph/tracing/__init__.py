"""From a JAX function to a `Graph`: calls inlined, control flow as regions, bits written out."""
