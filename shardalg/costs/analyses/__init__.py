"""Analyses of a program's cost: repeated work, overlap, memory at other sizes, crossovers, sweeps.

A crossover is the size at which one plan begins to cost more than another. A sweep prices a plan at
many sizes or on several chips.
"""
