"""Prices of which the table of a search is made.

`layout_moves` prices moves between layouts, `message_chains` decides which all-reduces pay latency,
and `kernel_values` finds the values that kernels never write.
"""
