"""Strategies for a function: comparing them, deriving them from the function, and their rules."""
