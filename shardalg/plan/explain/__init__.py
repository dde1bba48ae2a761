"""Answers that are checked by planning again: what removes a collective, what a layout costs.

Explanations: Completion keeps every change with its reason; `plan/explain/explained.py` follows
each axis
of a value back through them to an annotation, and `plan/explain/explained.py` tells what was asked
for
in vain on the way (the conflicts of completion). `plan/explain/disagreements.py` reads the two
layouts
that meet at a collective off the program (first and last of its chain of moves) and follows the
collective's axes back on either side: through the value, or through the tensors that put them on
the operator's loops. `explain/` then tries those annotations otherwise, one at a time, by planning
again; a change counts as a removal only if nothing of the kind runs elsewhere instead, and state
that a step takes and gives back changes at both ends. Where none does without sending more, what a
first change leaves is explained anew, and a second annotation is changed with it
(`plan/explain/removals.py`; a bounded number of plans); where two are not enough, the axes are
dropped
from all annotations that they come from, until nothing moves the value, and then all but what that
takes is put back.

Plan files: `plan/explain/plan_summary.py` makes the summary that a file keeps of a plan, and
compares it
with the plan that loading makes.

Idle axes: A product that is executed with an axis on none of its loops repeats work
(`costs/analyses/mesh_axes.py`): `plan.warnings()` says how many flops, and the annotation that uses
the axis, found by planning again (`plan/explain/warnings/idle.py`). Attempt 1 of the paper's Table
1 has
such products: its scores have no M, on which X lies.
"""
