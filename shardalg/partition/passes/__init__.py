"""Passes over a program: formatting joined, sums scattered, masks moved or left out."""
