"""Passes over an emitted program. `planner/pipeline.py` lists them in their order.

Each pass is a list of rules that `spmd/rewrite.py` applies.

- Formatting (`merge_formatting.py`): masks, resizes, slices and permutes that repeat or undo each
  other become one instruction. `plan.formatting()` (`show/formatting.py`) lists the rest.
- Reductions (`scattering.py`): a reduction other than a sum that is only cut along its axes becomes
  a reduce-scatter. Sums are scattered already by their sharding.
- Masks (`moving_masks.py`): a mask moves to the instruction that computes its value, so that there
  is one masked copy. A mask is dropped if the padding holds its number already: whole dimensions
  are padded with zeros, and pointwise operators map numbers to numbers (`padding_values.py`).
- Owners (`unread.py`): elements that one device alone has are combined as bits, because a sum of
  floats would turn -0 and the +0 of the others into +0.

`verify/operators/applied.py` derives the numbers independently.
"""
