"""The minimum of a factor graph (costs of labels and of pairs of labels), with a lower bound.

`reduction` removes labels and variables without changing the minimum, `message_passing` gives
bounds, `linear_program` closes the gap, and `minimum` runs all of them.
"""
