"""The program that every device runs, as plain data: locals, instructions, blocks.

`instruction.py` says what a kind of instruction is, `instructions/` has them, one file per kind or
family; `local.py` is a value as a device holds it, `program.py` the whole, `program.py` prints it.
`rewrite.py` applies the rules of passes, `check.py` looks at its structure, `fields.py` at the type
of every field, and `host/` runs it for all devices in numpy.
"""
