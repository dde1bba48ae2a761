"""The Plan: the face of everything else; and reshards asked for one tensor at a time.

`plan.py` makes plans, compares them, and has a method for each question. Tables are methods, values
are properties, internals begin with an underscore. `explain` gives reasons, `plan_file.py` saves
and loads, `compare_xla.py` compares with XLA's program, `commands` is the command line.
"""
