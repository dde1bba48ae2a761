"""XLA's partitioned program, audited against the program before partitioning."""
