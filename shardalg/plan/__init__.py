"""The Plan: the face of everything else; and reshards asked for one tensor at a time.

`plan.py` has a method for each question. Tables are methods, values are properties, internals begin
with an underscore. The bodies are in the other files: `planning.py` makes plans from calls and from
other plans, `named_sizes.py` answers for other sizes, `pricing.py` prices, `running.py` lowers and
runs, `overview.py` prints and draws, `explain` gives reasons, `plan_file.py` reads and writes
files, `own_jit.py` and `compare_xla.py` compare with XLA. `commands` is the command line.
"""
