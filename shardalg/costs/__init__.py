"""What an instruction, or a whole SPMD program, costs on a `Hardware`.

Prices in symbols: A plan of named sizes is planned on its hints. `costs/symbolic.py` then walks
the program once and gives every local value, loop and collective a formula: `ceil(D/n)`, D the
lifted size of the graph value, n the product of its axes; `D/n`, with a recorded condition, where
n divides D at the hints. Bytes, flops, times and memory are computed on that program by the code
that computes them on numbers, once for all instructions that are alike; the longer of two times is
a `max` of both. What is alive at the peak is decided at the hints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardalg.costs.cost import Cost
    from shardalg.costs.step_time import estimate

__all__ = ["Cost", "estimate"]


def __getattr__(name: str) -> object:
    """Return a public name, imported at its first use: a plan without a price needs neither."""
    if name == "Cost":
        from shardalg.costs.cost import Cost

        return Cost
    if name == "estimate":
        from shardalg.costs.step_time import estimate

        return estimate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
