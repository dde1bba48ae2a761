"""One row per operator: its loops and index maps, and everything that follows from them."""
