"""Choices as instructions: the only part of the partitioner that writes a program."""
