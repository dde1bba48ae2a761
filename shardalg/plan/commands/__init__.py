"""The commands about plans and proofs, each with its help line, its options and its run."""
