"""A completed graph as the program that every device runs: choices, then instructions."""
