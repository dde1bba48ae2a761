"""A completed graph as the program that every device runs: choices, then instructions.

Lifetime of gathers: A gathered copy is shared by its users within one phase (forward, backward,
update) and not kept from one to the other: weights are gathered on demand and freed (paper,
section 5.1) where roles of arguments are told. Without roles copies are kept, as XLA keeps them
(`Options.keeping`). Copies no larger than the value where it lies are kept: freeing them would
free nothing. `plan.gathers()` lists what is gathered again with its price in bytes and memory
(`planner/partition/choose/node_classes.py`); `Options(keep_gathers=True)` keeps all of it, a
number what fits
in so many bytes, `hoist_gathers=True` gathers the constants of a loop before it; what a loop
brings home anyway lies in it as its body reads it. `plan.switches()` says what every switch is
worth in a plan.

By cost: `Options(policy="cost")` starts from completion and lets any axis serve any loop
(`planner/partition/by_cost.py`): every node has all its candidates
(`planner/partition/choose/choices.py`), every value pays
from where it is made to its home and from there to each distinct layout that is asked of it, in
seconds of a chip, and coordinate descent (`descent.py`) with random starts and changes of
neighbours together finds the least; scipy's HiGHS judges it in the tests. Seconds are those of
`Plan.cost`: each choice is emitted as a program of its own and priced (`prices.py`). What is tied
across the border of a loop or of branches (a carry wherever it appears, a constant, a stacked
value) is one unit of the descent, whose options are layouts
(`planner/partition/choose/regions.py`). What is chosen
are homes,
loops and borders; programs come of them as always. Arguments, results and annotations stay as
completed, and completion itself stands where its program is no slower. Memory is not limited.

Unreached: A value that completion leaves replicated because nothing reaches it lies as it is made
(`unreached.py`), by the paper's policy; by "gspmd" and "shardy" it lies as these have it.

Deferred sums wait behind what keeps them right for every number of their type, which a row says
(`Rule.passes`): additions, subtractions, negation, copies, layout, and products of whole numbers of
one type (a ring). Products and quotients of floats do not (an infinity times a part that is 0;
parts that overflow when scaled; a sum that overflows, whose scaled parts do not), nor do
conversions, behind which a sum would also be sent in the wider type. A loop whose sums are deferred
(`Switches(defer_in_loops=True)`) takes its numbers as finite and defers its sums behind all of
these. Of two partial factors one passes: the other one is reduced. One element of a dimension is
a partial sum like any other. `Switches(finite_sums=True)` lets them wait behind products too, and
behind conversions to wider floats; `verify` then lists "finite" as trusted, and refutes such a
program without it. A device adds bfloat16 and float16 up in float32, as XLA does, and sends its
part in the sum's own type, as XLA's partitioner does; `Switches(wide_sums=True)` sends it in
float32 and rounds once, by another graph (`graph/ops/canonicalize/transforms.py`): the sum gives
float32, and a
conversion follows. They count as dividing the work of an addition, not of a product: a product of
partial sums is the whole product on every member.
"""
