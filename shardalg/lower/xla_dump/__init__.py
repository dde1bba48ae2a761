"""HLO text that XLA dumps, read: computations, collectives, replica groups."""
