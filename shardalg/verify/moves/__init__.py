"""The claims of each kind of instruction that moves data, derived from its definition."""
