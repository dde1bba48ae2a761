"""Paths from one sharding of a tensor to another: closed forms first, then search.

A reshard is a shortest path over all-gather, slice, all-to-all, permute, reduce-scatter and
all-reduce on sub-axes of prime size. The function that prices programs prices its steps.

Even sizes: slices come first and gathers last, so blocks of `U` elements are exchanged in between,
and the path sends `G - U*(1-x)` for a goal of `G` elements (`closed_forms.py`). No exchange, one
all-to-all, or one permute follow from the digits. Paths that send more than `G` are a small problem
of stacks (`shuffle.py`: A* over digits, in which digits that never part count as one). Partial sums
are reduced before, where A* over `even.bound` finds it best: a device sends at least the elements
of the goal that it lacks. Most prices need no path at all, and a choice prices candidates in the
order of their bounds until the rest cost more.

Gathers of several dimensions in a row are one collective over the axes of all, and so are
reduce-scatters (`paths.py`; `Switches.join_gathers`).

Unequal links: if mesh axes have links of different speeds (`links.py`), there is no normal form. A*
then searches single moves by seconds.

Uneven sizes: if a size does not divide, blocks are padded until it does (`padded.py`), the even
path runs on them, and a retile (`exchanges.py`: one margin of a neighbour's block) brings them to
`ceil(D/n)`. With up to three digits of prime size A* finds the cheapest path over all paddings
(`grids.py`), so that a detour by any sharding costs no less. A dimension that is too short for a
margin from one neighbour is gathered whole. This is the one case in which a block is larger than
those of both ends, padded to multiples of the devices. Plans with named sizes use no padding
(`Switches.pad_blocks`), because only blocks of `ceil(D/n)` have formulas.

Other meshes: digits of another mesh over the same devices are reached by a permute from as many
parts on the axes of this mesh. `sa.reshard` shows a path (`plan/resharding.py`): priced, proved
step by step, simulated, lowered.
"""
