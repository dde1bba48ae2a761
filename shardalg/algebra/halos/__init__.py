"""Windows, halos and exchanges: what a partition reads of other blocks, and how it gets there."""
