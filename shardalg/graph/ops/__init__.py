"""One row per operator: its loops and index maps, and everything that follows from them.

Rows: An operator is its loops and one index expression per tensor dimension; a read outside its
tensor voids the iteration. Completion, partitioning, masks, flops and claims are read off the row
(`graph/ops/families/`). How a primitive spells its local configuration is a function per family in
`graph/ops/local_parameters.py`, which only places numbers. No other file names an operator: a new
one is
a row in a family, and an emission if no family's fits.
"""
