"""The Plan: the face of everything else; and reshards asked for one tensor at a time.

`plan.py` makes plans and compares them. What a plan answers stands by question: `ask_shardings`,
`ask_collectives`, `ask_cost`, `ask_why`, `ask_sizes` (with `plan_conditions`), `ask_verify`,
`ask_run`; each reads what `planned.py` holds. Tables are methods, values are properties, internals
begin with an underscore.
"""
