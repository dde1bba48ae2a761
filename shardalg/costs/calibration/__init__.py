"""Seconds of real steps: the datasheet's seconds by cause, times a few fitted constants.

`by_cause.py` splits a program's seconds at the rates of the datasheet by cause. `constants.py` has
what they are multiplied with: at most four named constants per family of chips, the same for all
programs; `fit.py` finds them by least squares from measured steps, and says how well each step is
foretold by the others. What ships stands in `families/`, with what it was fitted on.

Which chip it is enters by its datasheet alone. So a constant must be one that physics lets chips of
a family share: the share of its peak that a matrix unit reaches, bytes that products read again per
operation, how often as many bytes move as a compiler that fuses everything would move, and the
share of communication that computation does not hide.
"""
