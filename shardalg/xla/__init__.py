"""A plan compared with XLA: completed shardings and collectives, and figures of chip compilers.

**XLA's partitioner.** `xla/dump.py` lowers the same graph with the same annotations for no devices,
so that partition ids are positions. XLA compiles it for CPU devices of this process, or of another
process if there are too few (`apart.py`, `xla_process.py`). Shardings are aligned by signature
(`align.py`). Every node is lowered under its number, so that each of XLA's collectives names a
node, and thus a source line and a phase (`plan/compare_xla.py`). A collective of ours that adds up
partial sums belongs to the node that computed them. XLA's log names the tensors that it replicates;
it is read from another process (`plan/compare_xla.py`).

**A chip's compiler** (`aot.py`). The lowered program and XLA's twin are lowered for no devices, and
compiled in another process (`aot_process.py`) for a topology that this machine need not have.
"""
