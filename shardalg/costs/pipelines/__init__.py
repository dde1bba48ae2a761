"""Pipelines: schedules in closed form, and bubbles of a planned program.

`schedules.py` has formulas in L stages, M microbatches and R rounds, such as the bubble ratio.
`loops.py` finds the loops of a function that are pipelines. `overheads.py` prices their bubbles as
a share of the step. `models.pipeline` marks such a loop by a named annotation on the buffer that
shifts by one stage per trip. `events.py` gives the time of every instruction on every stage.
`joined.py` schedules stages that were planned separately, each on a mesh of its own.
"""
