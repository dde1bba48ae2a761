"""Kernels that are priced as wholes: attention in one kernel, Pallas calls, FFI targets, callbacks.

`fused_attention.py` finds the values that an attention function in one kernel never writes.
`kernel_price.py` has the prices of calls that the graph does not look into. The guide
`docs/kernels.md` says in a table what counts.
"""
