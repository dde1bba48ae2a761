"""What an instruction, or a whole SPMD program, costs on a `Hardware`."""

from shardalg.costs.cost import Cost
from shardalg.costs.step_time import estimate

__all__ = ["Cost", "estimate"]
