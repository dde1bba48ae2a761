"""Benchmarks of `make bench`: ratios of both sides in one run, never a test with a time limit."""
