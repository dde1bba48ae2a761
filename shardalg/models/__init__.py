"""Plain JAX functions with their strategies."""
