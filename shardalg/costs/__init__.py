"""Cost model: seconds, bytes and flops of an instruction or of a whole SPMD program on a chip.

Prices in formulas: a plan with named sizes is planned at its hints, one example number per size.
Then `costs/symbolic.py` walks the program once. It replaces the size of every local value, loop and
collective by a formula. A block has `ceil(D/n)` elements, where D is the global size of a dimension
and n the product of the axes that shard it. If n divides D at the hints, the block has `D/n`
elements, and "n divides D" is recorded as a condition of the price. The code that prices programs
in numbers also prices programs in formulas. The longer of two times is `max(a, b)` in a formula.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardalg.costs.cost import Cost
    from shardalg.costs.step_time import estimate

__all__ = ["Cost", "estimate"]


def __getattr__(name: str) -> object:
    """Return `Cost` or `estimate`, imported on first use; other names raise `AttributeError`."""
    # A plan without a price needs neither module, so that importing the package stays fast.
    if name == "Cost":
        from shardalg.costs.cost import Cost

        return Cost
    if name == "estimate":
        from shardalg.costs.step_time import estimate

        return estimate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
