"""Our plan beside XLA's: its completed shardings and collectives, aligned with our values.

Beside XLA: `xla/dump.py` lowers the same graph with the same annotations for no devices, so that
partition ids are positions, and XLA compiles it for CPU devices of this process, or (`apart.py`,
`xla_process.py`) of one of its own where there are too few. Layouts are aligned by signature
(`align.py`). Every node is lowered under its number, so each of XLA's collectives names the node
it serves, and with it line and phase (`plan/compare_xla.py`); one of ours that adds up parts
belongs to
what made the parts. What XLA says in its log of tensors that it replicates whole is read in a
process of its own (`plan/compare_xla.py`).

Beside the compiler of a chip (`aot.py`): the lowered program and XLA's twin, lowered for no devices
and compiled in another process (`aot_process.py`) for a topology that need not be here.
"""
