"""Operators on blocks, matched with the operators of the program before partitioning."""
