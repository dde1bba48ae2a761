"""Windows, halos and exchanges: what a partition reads of other blocks, and how it gets there.

Windows and exchanges: `algebra/halos/window.py` says how an operator reads one dimension, `halo.py`
what a partition lacks of it: widths `slope*p + floor((rest*p + c)/m)` (`algebra/affine.py`, one
form per map). Everything that is read of a split dimension is an `Interval` (`intervals.py`: a
start
linear in partition ids, a static length; `touched` reads it off an index map), and an `Exchange`
(`exchange.py`) delivers any interval: round j brings the block `floor(start/block) + j`. On more
than 256 devices rounds and permutes are found for classes of devices (`classes.py`): intervals
repeat themselves every `T` partition ids, `S` blocks further on, and what is sent is runs of pairs,
so that planning a halo on a million devices takes the time of planning it on 32
(`benchmarks/halos.py`); `verify` looks at every device, in arrays. Data formatting that moves block
borders (`intervals.py`) is intervals too. Tensors side by side (concatenate) are an interval of
each operand, and one `Choose` by position; split, stack and unstack are written out as slices and
concatenations while tracing (`graph/tracing/written.py`), and the two ends of a value side by side
are one node (`graph/ops/canonicalize/boxes.py`), so that a rotation sends what rotates; slices and
pads of
slices and pads are one (`graph/ops/canonicalize/cuts.py`), also where pointwise operators stand
between
them (`graph/ops/canonicalize/cuts.py`) or they are written as boxes at constant starts
(`graph/ops/canonicalize/boxes.py`). Indices that count along a dimension of their own
(`graph/ops/canonicalize/indices.py`) make it a batch dimension of their gather or scatter.
`algebra/draw_halos.py` draws them, a row per partition. `sa.prove(halo)` sends what a halo
claims (`merge/proofs/claims.py`) to z3; XLA's own halos are recorded in
`tests/oracle/halos.json`.
"""
