"""Kernels with one price for all their operators: fused attention, Pallas, FFI calls, callbacks.

`fused_attention.py` finds the values that an attention kernel never writes to memory.
`softmax_attention.py` finds attention that a function writes out in single operators.
`expert_load.py` has the rows of the busiest device, where groups are divided among devices.
`kernel_price.py` has the prices of opaque calls, whose operators are not in the graph. A table in
the guide `docs/kernels.md` lists which flops and bytes count.
"""
