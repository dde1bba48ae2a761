"""A JAX function as a graph of values, nodes and regions: traced, annotated, evaluated, saved."""
