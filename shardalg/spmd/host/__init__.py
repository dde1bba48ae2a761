"""Simulation of a program for all devices in numpy, on one host."""
