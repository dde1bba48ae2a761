"""A lowered plan on one process or several: started, joined, stepped, saved.

`processes` starts processes on this machine and joins those that a cluster started. `steps` runs a
plan step by step and feeds its results back. `checkpoint` saves the state of a plan with a digest
per array.
"""
