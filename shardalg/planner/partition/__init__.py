"""Partitioning: from a completed graph to the program that every device runs.

Each node is decided first (`choose/`), then its instructions are emitted (`emit/`), then passes
rewrite the program (`passes/`).

Lifetime of gathers: the users of a gathered copy share it within one phase (forward, backward,
update). If roles of arguments are known, the copy is freed after its phase: weights are gathered on
demand (GSPMD, section 5.1). Without roles it is kept, as XLA keeps it (`Options.keeping`). A copy
that is no larger than the value itself is always kept, because freeing it would save nothing.
`plan.gathers()` lists the copies that are gathered again, with their price in bytes and memory
(`choose/node_classes.py`). `Options(keep_gathers=True)` keeps all of them, a number keeps as many
as fit in so many bytes. `hoist_gathers=True` gathers the constants of a loop before the loop. A
constant that is moved before its loop anyway gets the sharding in which the body reads it.

By cost: `Options(policy="cost")` starts from completion and allows any mesh axis on any loop
(`by_cost.py`). Every node has all its candidates (`choose/choices.py`). Every value costs the
seconds of its moves. It is moved from the sharding in which it is computed to its result sharding,
and from there to each distinct sharding that a reader requires. Coordinate descent (`descent.py`)
minimises the sum, from random starts and with joint changes of neighbours; the tests compare it
with scipy's HiGHS. Seconds are those of `Plan.cost`: each choice is emitted as a program of its own
and priced (`prices.py`). Some values must share a sharding across the border of a loop or of
branches: all copies of a carry, a constant, a stacked value. They are one unit of the descent
(`choose/regions.py`). It decides result shardings, loops and borders; the program is then emitted
as for other policies. Arguments, results and annotations keep their completed shardings. If no
program is faster, completion stays. Memory is not limited.

Unreached values: by the paper's policy a value that no annotation reaches keeps the sharding in
which it is computed (`unreached.py`). By the policies "gspmd" and "shardy" it has the sharding that
XLA's GSPMD or Shardy would give it.

Deferred sums: a partial sum is deferred behind operators that are right for every number of its
type (`Rule.passes`): additions, subtractions, negation, copies, layout, and products of integers
of one type (a ring). Products and quotients of floats are excluded: an infinity times a part that
is 0, parts that overflow when scaled, a sum that overflows although its scaled parts do not.
Conversions are excluded, too: the sum would also be sent in the wider type. A loop whose sums are
deferred (`Switches(defer_in_loops=True)`) takes its numbers as finite and defers behind all of
these. Of two partial factors one passes, and the other one is reduced first. An owner select is a
partial sum like any other. `Switches(finite_sums=True)` defers sums behind products and conversions
to wider floats everywhere. `plan.verify()` then lists "finite" as trusted, and refutes such a
program without the switch. A device adds bfloat16 and float16 in float32 and sends its part in the
sum's own type, as XLA does. `Switches(wide_sums=True)` sends float32 and rounds once, by another
graph (`graph/ops/canonicalize/transforms.py`): the sum returns float32, and a conversion follows.
Devices with different partial sums divide the work of an addition, but not of a product: a product
of partial sums is the whole product on every device.
"""
