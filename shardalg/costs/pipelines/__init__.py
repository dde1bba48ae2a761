"""Pipelines: schedules in closed form, and what a planned program spends in bubbles, per device.

`schedules.py` has formulas of (L, M, R), the bubble ratio among them. `overheads.py` finds the
loops of a program that are pipelines, by the name of the site that `models.pipeline` leaves on what
shifts, and prices their bubbles as a share of the whole step. `events.py` lays every instruction on
the time axis of every stage; `joined.py` joins stages that were planned on meshes of their own.
"""
