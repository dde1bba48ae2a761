"""Analyses of a program's prices: repeated work, overlap, scaling, crossovers and sweeps."""
