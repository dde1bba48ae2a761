"""Measured rates of operators on a machine: rates per class, and seconds per execution.

If a `Hardware` has measured rates, a local operator takes its flops at the rate of its class.
A contraction also takes a time per execution, which makes small contractions slower. All other
operators also take the time of their bytes to and from memory. A collective takes a time per
execution, and its ring bytes at the rate of its kind. The times add up, because a core does one
thing after the other.

A figure may be finer: `operator_flops_per_s.matmul.float32.large` is for one size class,
`collective_s.all_reduce.X` for one mesh axis. If only other sizes or axes were measured,
the slowest of their figures is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from shardalg.costs.compute import contracts
from shardalg.graph.ir import Signature

# Units of the figures. Each except `operator_s` has a detail: class and item type, or a kind.
OPERATOR_UNITS = {
    "operator_flops_per_s": "flop/s",
    "operator_s": "s",
    "collective_s": "s",
    "collective_bytes_per_s": "B/s",
}
MATMUL, POINTWISE = "matmul", "pointwise"
# Size classes of contractions: the flops of one execution on a device are below these bounds.
SIZE_CLASSES = {"small": 1 << 20, "medium": 1 << 26, "large": math.inf}


@dataclass(frozen=True)
class OperatorRates:
    """Measured figures by their names in a hardware file; none for a datasheet's chip.

    >>> rates = OperatorRates((("operator_flops_per_s.matmul.float32", 2e9),))
    >>> rates.flops_per_s("matmul", "bfloat16"), rates.flops_per_s("pointwise", "float32")
    (2000000000.0, None)
    """

    figures: tuple[tuple[str, float], ...] = ()

    @cached_property
    def _by_name(self) -> dict[str, float]:
        return dict(self.figures)

    def flops_per_s(self, operator: str, dtype: str, size: str = "") -> float | None:
        """Return the rate of a class of operators on a type, else on float32; None if unknown."""
        details = (
            detail
            for kind in (f"{operator}.{dtype}", f"{operator}.float32")
            for detail in (f"{kind}.{size}", kind)
        )
        return self._nearest("operator_flops_per_s", details, min)

    def _nearest(
        self, figure: str, details: Iterable[str], slowest: Callable[[list[float]], float]
    ) -> float | None:
        """Return the first known figure; the slowest if only finer figures are known."""
        for detail in details:
            name = f"{figure}.{detail}"
            if name in self._by_name:
                return self._by_name[name]
            finer = [value for other, value in self.figures if other.startswith(f"{name}.")]
            if finer:
                return slowest(finer)
        return None

    @property
    def operator_s(self) -> float:
        """Seconds of every contraction, even of a small one."""
        return self._by_name.get("operator_s", 0.0)

    def collective(self, kind: str, axes: Sequence[str] = ()) -> tuple[float, float] | None:
        """Return seconds per execution and ring bytes per second; None if not measured."""
        details = f"{kind}.{','.join(axes)}", kind
        seconds = self._nearest("collective_s", details, max)
        rate = self._nearest("collective_bytes_per_s", details, min)
        if seconds is rate is None:
            return None
        return seconds or 0.0, math.inf if rate is None else rate

    def slower(self, turns: float) -> OperatorRates:
        """Return the rates of a device that has a core only in one of `turns` turns."""
        found = []
        for name, value in self.figures:
            is_time = OPERATOR_UNITS[name.partition(".")[0]] == "s"
            found.append((name, value * turns if is_time else value / turns))
        return OperatorRates(tuple(found))


# No measured rates.
DATA_SHEET = OperatorRates()


def size_class(flops: float) -> str:
    """Return the size class of one execution of a contraction on one device.

    >>> size_class(1000), size_class(2 * 512**3)
    ('small', 'large')
    """
    return next(name for name, bound in SIZE_CLASSES.items() if flops < bound)


@lru_cache(maxsize=65536)
def operator_class(signature: Signature) -> str:
    """Return the class of an operator, by which its rate is found.

    Convolutions are classed by their number of spatial dimensions, because XLA has other kernels
    for each. A dilated operand (the gradient of strides) is a class of its own, because its kernel
    also multiplies by zeros, which do not count as flops.
    """
    if not contracts(signature):
        return POINTWISE
    params = dict(signature.params)
    if signature.primitive != "conv_general_dilated":
        return MATMUL
    dilated = any(n > 1 for n in params.get("lhs_dilation") or ())
    return f"convolution_{len(signature.operands[0].shape) - 2}d{'_dilated' if dilated else ''}"
