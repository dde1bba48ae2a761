"""Readers of the HLO text that XLA dumps: computations, collectives, replica groups."""
