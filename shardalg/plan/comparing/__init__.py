"""Comparisons of strategies for one function: ranking, regions of sizes, the largest batch."""
