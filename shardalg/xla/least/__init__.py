"""A lower bound of the bytes that XLA's program sends, from the layouts of its values.

The bound rests on three premises on XLA's partitioner:

1. Every value has the layout that completion gives it. Each operator is computed in blocks, and
   its result is then moved to the layout of the result.
2. Later passes share equal values and copies of one value. They convert values to narrower types
   before they send them, combine an all-reduce with the slices that read it, and move
   loop-invariant values out of loops. They do not change the values that the program computes.
3. If all operands have the same digits along a summed loop, each device sums its own part. XLA does
   not gather the operands instead, except if a device may have the whole of one operand.

**Why XLA cannot send less.** A division of an operator assigns digits of the device's position to
the operator's loops. For each division, a device has to receive three kinds of bytes:

- The elements of its block of each operand that it does not hold. All devices run one program and
  send the same number of bytes, so that the device that lacks most decides.
- The other parts of a sum, if the `n` devices along digits `S` hold only parts. Let `m` of these
  devices need an element. The parts take `n - 1` messages to add up, and the sum takes `m - 1`
  messages to reach the others. Each device thus receives `(n + m - 2) / n` times the block. Readers
  that slice along `S` make `m` smaller: `m = 1` is a reduce-scatter, `m = n` an all-reduce. Readers
  that slice along other digits make the block smaller.
- The elements that it lacks of its block of the result, if another layout is computed.

The cheapest division bounds the operator from below. Several operators may share one received copy
of a value. Bytes of the copy that every division of one operator needs are counted once per value.
If `k` operators may need further bytes, each of them is charged `1/k` of its further bytes. The
shares add up to at most the largest need, and thus to at most the received bytes. The bound is the
sum over all operators.

**These count as 0**, because the argument does not hold for them: operators with selected elements,
prefixes, whole loops or several results; windows with divided taps; reshapes that merge dimensions;
calls and loop borders; branches of a condition; broadcasts; constants; and copies of arguments
without an annotation.

In a program with a `shard_map`, only the collectives inside of it count. At its border, completion
may choose any layout along the axes that are not manual. The bytes of these collectives are divided
by the number of devices along the same axes.

Source: `n - 1 + m - 1` messages: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms
(2009), for `m = n`.
"""
