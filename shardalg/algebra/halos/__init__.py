"""Windows, halos and exchanges: the elements that a partition reads from other blocks.

- `window.py`: how an operator reads one dimension.
- `halo.py`: the elements that a partition lacks, as widths `slope*p + floor((rest*p + c)/m)`. The
  number type is in `algebra/affine.py`, and the drawings are in `algebra/draw_halos.py`.
- `intervals.py`: an `Interval` has a start that is linear in partition ids, and a static length.
  `touched` derives it from an index map. Slices, pads, reversals, concatenations and reshapes read
  intervals, too.
- `exchange.py`: an `Exchange` delivers any interval. Round j brings the block
  `floor(start/block) + j`.
- `transfers.py`: the collective permutes of the rounds, with few elements sent.
- `classes.py`: on more than 256 devices, rounds and permutes are computed for classes of devices,
  because intervals repeat every `T` partition ids, `S` blocks further on. Planning a halo on a
  million devices takes the time of planning it on 32 (`benchmarks/halos.py`).

Some operators become simpler intervals before they arrive here. Tracing writes split, stack and
unstack as slices and concatenations (`graph/tracing/written.py`). `graph/ops/canonicalize/cuts.py`
merges slices and pads of slices and pads, also through pointwise operators;
`graph/ops/canonicalize/boxes.py` recognises them in boxes at constant starts, and rotations in
concatenations of a value's two ends. `graph/ops/canonicalize/indices.py` turns indices that count
along a dimension of their own into a batch dimension.

`sa.prove(halo)` sends the claims of a halo (`merge/proofs/claims.py`) to z3. XLA's own halos are
recorded in `tests/oracle/halos.json`.
"""
