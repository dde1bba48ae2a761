"""What an instruction, or a whole SPMD program, costs on a `Hardware`."""

from shardalg.costs.step_time import Cost, estimate

__all__ = ["Cost", "estimate"]
