"""Emission: choices become instructions. No other part of the partitioner adds instructions.

Windows: a dimension that sharded loops read through a window (`graph/ops/windows.py`: strided,
shifted, dilated, reversed) has the blocks of its widest loop. Every device fetches the interval
that its iterations read (`planner/partition/choose/windows.py`, `planner/reshard/exchanges.py`).
Rounds in which different devices send share a permute (`algebra/halos/transfers.py`), also rounds
of several windows and tensors. A rotation is therefore one permute, and a device sends of each
operand of a concatenation in its turn. A `HaloExchange` has one result per round. The pieces are
concatenated, then sliced at a start in closed form. They are masked if elements may not exist, and
dilated explicitly if the phase of the dilation depends on the device. The local operator is the
node's own one with other padding. For a selection (the gradient of a max pooling) a device runs all
windows that overlap its block. It then cuts the block out of the result. Every operator that reads
an equal window uses a fetched halo, in the backward pass too. To gather the dimension is another
candidate, taken if it sends less.

Boxes: a box at run-time starts (`spmd/instructions/slices.py`: dynamic slice, dynamic update slice)
is read and written in the blocks that contain it. All devices clamp starts to the same numbers, and
count them from their own block. Elements outside the block are read as 0 and combined as bits
(`planner/partition/passes/unread.py`), so that a zero keeps its sign. Gathers and scatters of many
starts (`graph/ops/local_parameters.py`) run on the blocks: indices are counted from the block. If a
window may straddle the border of the block, the block gets a margin as wide as the window. Indices
of windows outside the block are masked, or their updates are dropped. One element of a dimension
(`x[0]`, `x[:, -1]`) is an owner select (`planner/partition/choose/owner_select.py`, `OwnerSelect`):
a partial sum, 0 on all devices except the owner, which is reduced or scattered as its reader
requires.

Combines: partial results that no all-reduce combines are gathered and combined on every device
(`spmd/instructions/joins.py`): a best value with its index (`ArgReduce`), the best k (`Top`), a
function of the user (`Fold`). A dimension that an operator needs whole, or whose partial results
are gathered, may also move its digits to another loop (`choose.assign.available_digits`): a sort is
then an all-to-all there and back.

Reshapes: dimensions that nest keep their digits (loops). The borders of blocks can move, if blocks
are uneven or dimensions do not nest. The dimensions with the same elements then become one
(`Regroup`), an exchange fetches the flat interval of the device's result block, and the new
dimensions follow (`planner/partition/choose/regroup.py`). `verify/moves/pads.py` proves it.

Numbers are computed, not sent: a value of numbers alone (zeros, an iota) is computed again in each
required sharding. A value that repeats a smaller one is repeated again, if that sends less
(`Partitioner._repeat`).
"""
