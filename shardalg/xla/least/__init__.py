"""A lower bound of the bytes that XLA's program sends, from the layouts of its values.

The bound rests on three premises on XLA's partitioner:

1. Every value has the layout that completion gives it. Each operator is computed in blocks, and
   its result is brought to the result's layout.
2. Later passes share equal values and copies of one value, narrow what they move, combine an
   all-reduce with the slices that read it, and move loop-invariant values out of loops. They do
   not change what is computed.
3. A loop that is summed, and along which all operands have the same digits, is summed in parts:
   XLA does not gather the operands instead, unless a device may have the whole of one.

**Why XLA cannot send less.** An operator divides its loops by digits of the device's position. For
each such division a device has to receive

- the elements of its block of each operand that it does not hold; all devices run one program, and
  send alike, so that the neediest device counts,
- where the devices along digits `S` (`n` of them) hold only parts of a sum, messages: an element
  that `m` of them need takes `n - 1` messages to add the parts and `m - 1` to pass the sum on, so
  that each device receives `(n + m - 2) / n` times the block. Readers that slice along `S` make `m`
  smaller: `m = 1` is a reduce-scatter, `m = n` an all-reduce. Readers that slice along other digits
  make the block smaller.
- where the result is computed in another layout, the elements of its own block that it lacks.

The cheapest division bounds the operator from below. A copy that several operators read may be
received once. What every division of one of them needs is therefore counted once per value, and of
what goes beyond it each of `k` operators is charged a `k`-th. These shares add up to no more than
the largest need, and so to no more than what is received. The sum over operators is the bound.

**What counts as 0**, because no such argument holds: operators with selected elements, prefixes,
whole loops or several results, windows whose taps are divided, reshapes that merge dimensions,
calls and loop borders, branches of a condition, broadcasts, constants, and copies of arguments
without an annotation. So do all other values of programs with a `shard_map`,
because its border is open along the axes that it leaves. The collectives that a `shard_map` itself
asks for are sent as they are, divided by the axes that it leaves.

Source: `n - 1 + m - 1` messages: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms
(2009), for `m = n`.
"""
