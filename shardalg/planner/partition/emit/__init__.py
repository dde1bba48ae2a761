"""Choices as instructions: the only part of the partitioner that writes a program.

Windows: A dimension that sharded loops read through a window (`graph/ops/windows.py`: strided,
shifted,
dilated, reversed) is held in the blocks of its widest loop, and every device fetches the interval
that its iterations read (`planner/partition/choose/windows.py`, `planner/reshard/exchanges.py`):
rounds whose
devices send at different times share a permute (`algebra/halos/transfers.py`), also those of
several windows and tensors, so that a rotation is one permute and a device sends of each operand
of a concatenation when it is its turn; a `HaloExchange` has a result per round, the pieces side by
side, a slice at a start in closed form, a mask where places hold no element, and a dilation
written out where its phase depends on the device. The local operator is the same one with its own
padding. Of a selection (the gradient of a max pooling) a device runs all windows that touch its
block, and cuts the block out of what they write. What is fetched of a neighbour's block serves
every operator that reads the same window, in the backward pass too. Holding the dimension whole is
another candidate, taken where it sends less.

Boxes: A box at run-time starts (`spmd/instructions/slices.py`: `dynamic_slice`,
`dynamic_update_slice`) is read and written where it lies: starts are clamped for all devices
alike, then counted from the own block. What is read is 0 where the block lacks it, and joined
as bits (`planner/partition/passes/unread.py`), so that a zero keeps its sign.
Gathers and scatters of many starts (`graph/ops/local_parameters.py`) run as they are: their
indices are
counted from the block, and where a window may straddle its border a margin stands around it, as
wide as the window; indices of windows that miss the block are masked or drop their update. One
element of a dimension (`x[0]`, `x[:, -1]`) is picked where it lies
(`planner/partition/choose/owner_select.py`, `OwnerSelect`): a partial sum of its holder, 0 on the
others,
so that it is added up or scattered as whoever reads it wants it.

Joins: Partial results that no all-reduce joins are sent whole and joined on every member
(`spmd/instructions/joins.py`): a best value and its place (`ArgReduce`), the best k (`Top`), what
a function of the user made (`Fold`). A dimension that an operator needs as one block, or whose
partial results are sent whole, may also hand its split to another loop (`assign._places`): a sort
is an all-to-all there and back.

Reshapes: Dimensions that nest keep their digits (loops). Where the borders of blocks move (uneven,
or not nested), the dimensions that hold the same elements become one (`Regroup`), an exchange
brings every device the flat interval of its block of the result, and the new dimensions follow
(`planner/partition/choose/regroup.py`); `verify/moves/pads.py` proves it.

Numbers are made, not sent: A value made from numbers alone (zeros, an iota) is made again in the
layout in which it is wanted. What repeats a smaller value is repeated again from it where that
sends less (`Partitioner._repeat`).
"""
