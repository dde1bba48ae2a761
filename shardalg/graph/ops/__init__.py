"""One row (`Rule`) per operator: its loops, its index maps, and all properties derived from them.

A row consists of loops and one index expression per tensor dimension. An iteration that reads
outside a tensor does not exist. Completion, partitioning, masks, flops and claims are derived from
the row (`graph/ops/families/`). `graph/ops/local_parameters.py` has one function per family that
writes block sizes into the parameters of the local operator. No other file names an operator. A new
operator is a row in a family, and a new function there if no family fits.
"""
