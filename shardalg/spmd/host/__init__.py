"""A program run on one host, in numpy, for every device position."""
