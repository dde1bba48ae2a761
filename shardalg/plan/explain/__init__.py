"""Explanations of a plan's shardings and collectives, with remedies that are planned again.

Explanations: completion keeps every change with its reason. `explained.py` follows each axis of a
value back through these changes to an annotation, and lists the conflicts on the way.
`disagreements.py` reads the two shardings at a collective from the program (the first and the last
one of its chain of moves). On either side, it follows the collective's axes back: through the
value, or through the tensors that brought them to the operator's loops. `collective.py` and
`removals.py` then change these annotations, one at a time, and plan again. A change removes a
collective only if nothing of its kind runs elsewhere instead. State that a step takes and returns
is changed at both ends. If no single change suffices without more bytes, the plan under a first
change is explained, and a second annotation is changed with it. If two are not enough, the axes are
dropped from all annotations that they come from, until nothing moves the value; then each drop that
is not necessary is undone. The number of plans is bounded.

Plan files: `plan_summary.py` makes the summary that a file keeps of a plan, and compares it with
the plan that loading makes.

Idle axes: a product that runs with a mesh axis on none of its loops repeats work
(`costs/analyses/mesh_axes.py`). `plan.warnings()` shows the repeated flops and an annotation that
uses the axis, found by planning again (`warnings/idle.py`). Attempt 1 of the paper's Table 1 has
such products: its scores have no dimension M, which is sharded along X.
"""
