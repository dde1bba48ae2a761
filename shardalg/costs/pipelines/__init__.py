"""Pipelines: schedules in closed form, and bubbles of a planned program.

`schedules.py` has formulas in (L, M, R), such as the bubble ratio. `loops.py` finds the
loops of a function that are pipelines. `overheads.py` prices their bubbles as a share of the step.
`models.pipeline` marks such a loop with a named site on the buffer that shifts. `events.py` gives
the time of every instruction on every stage. `joined.py` schedules stages that were planned on
meshes of their own.
"""
