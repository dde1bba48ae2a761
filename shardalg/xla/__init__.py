"""Our plan beside XLA's: its completed shardings and collectives, aligned with our values."""
