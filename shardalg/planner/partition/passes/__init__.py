"""Passes over a program: formatting joined, sums scattered, masks moved or left out.

`planner/pipeline.py` lists them in their order; each is a list of rules that `spmd/rewrite.py`
applies.

Formatting that repeats or undoes itself (masks, resizes, slices, permutes) is one instruction
(`planner/partition/passes/merge_formatting.py`); what is left, and its share of bytes and time, is
`plan.formatting()` (`show/formatting.py`) and `Cost.formatting_s`. A reduction that is only cut
along its axes becomes a reduce-scatter (`planner/partition/passes/scattering.py`): sums are one by
their
layout already, other combinations are complete when they are made. A mask (placed by
`planner/partition/choose/windows.py`) moves to where its value is made, so that there is one copy
of it
(`planner/partition/passes/moving_masks.py`), and goes where the number is there already: whole
dimensions
are padded with zeros, and pointwise operators make numbers of numbers
(`planner/partition/passes/padding_values.py`, `graph/ops/families/pointwise.py`). What one device
alone has is
joined as bits (`planner/partition/passes/unread.py`): a sum of floats would make -0 and the +0 of
the others
+0. `verify/operators/applied.py` follows the numbers by itself.
"""
