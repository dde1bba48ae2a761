"""Cost model: seconds, bytes and flops of an instruction or of a whole SPMD program on a chip.

Prices in formulas: a plan with named sizes is made at its hints. Then `costs/symbolic.py` walks
the program once and gives every local value, loop and collective a formula. A block has `ceil(D/n)`
elements, where D is the size of the graph value and n the product of the axes that shard it. If n
divides D at the hints, the block has `D/n` elements, under a recorded condition. The code that
prices programs in numbers also prices these programs, once for all equal instructions. The longer
of two times is a maximum. The hints decide which values are alive at the peak.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardalg.costs.cost import Cost
    from shardalg.costs.step_time import estimate

__all__ = ["Cost", "estimate"]


def __getattr__(name: str) -> object:
    """Return a public name, imported on first use, because a plan without a price needs neither."""
    if name == "Cost":
        from shardalg.costs.cost import Cost

        return Cost
    if name == "estimate":
        from shardalg.costs.step_time import estimate

        return estimate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
