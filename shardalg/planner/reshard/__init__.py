"""Paths from one layout of a tensor to another: closed forms, then search.

Reshard is a shortest path over all-gather, slice, all-to-all, permute, reduce-scatter and
all-reduce on sub-axes of prime size, priced by the function that prices the program. Slices come
first and gathers last, so blocks of `U` elements are exchanged in between, and the path sends `G -
U*(1-x)` for a goal of `G` (`planner/reshard/closed_forms.py`): no exchange, one all-to-all, or one
permute
are read off the digits; what sends more than `G` is a small puzzle of stacks
(`planner/reshard/shuffle.py`:
A* over digits, those that need never part as one). Partial sums are added before, where A* over
`planner/reshard/even.bound` says: a device sends at least what it lacks of the goal. Most prices
need no
path at all, and the choice prices candidates in the order of their bounds until the rest cost
more. Where links of axes differ (`planner/reshard/links.py`) no normal form holds: A* over single
moves
in seconds. Where a size does not divide, blocks are padded so that it does
(`planner/reshard/padded.py`), the even path runs on them, and a retile
(`planner/reshard/exchanges.py`: one margin of
a neighbour's block) brings them to `ceil(D/n)`; with up to three digits of prime size A* finds
what is cheapest of all grids (`planner/reshard/grids.py`), so that a detour by any layout costs no
less.
Dimensions too short for a margin from one neighbour are gathered
whole, the one case in which a block is larger than those of both ends padded to multiples of the
devices. Plans of named sizes go without padding (`Switches.pad_blocks`): blocks of `ceil(D/n)`
have formulas. Digits of another mesh over the same devices are reached by a permute from as many
parts on the axes of this one. `sa.reshard` shows a path (`plan/resharding.py`): priced, proved
step by step, simulated, lowered.
"""
