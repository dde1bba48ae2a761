"""The program that every device runs, as plain data: locals, instructions, blocks.

`instruction.py` defines the interface of a kind of instruction, and `instructions/` has the kinds,
one file per family. `local.py` is one value as a device holds it. `program.py` is the whole program
and prints it. `rewrite.py` applies the rules of passes. `check.py` checks the structure and
`fields.py` the type of every field. `host/` runs a program for all devices in numpy.
"""
