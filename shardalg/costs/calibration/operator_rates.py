"""Measured rates of operators on a machine: flops per second, and seconds per execution.

If a `Hardware` has measured rates, the time of a local operator is its flops divided by the rate of
its class. A contraction takes a constant time in addition, which makes small contractions slower.
All other operators take the time of their memory traffic in addition. A collective takes a constant
time, and the time of its bytes at the rate of its kind. The times add up, because a core does one
thing after the other.

The name of a figure may have details: `operator_flops_per_s.matmul.float32.large` is for one size
class, `collective_s.all_reduce.X` for one mesh axis. If only other sizes or axes were measured,
the slowest of their figures is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from shardalg.costs.compute import contracts
from shardalg.graph.ir import Signature

# The keys are prefixes: details follow in the name of a figure, such as a class and an item type.
# Only `operator_s` has none, because each contraction takes it.
OPERATOR_UNITS = {
    "operator_flops_per_s": "flop/s",
    "operator_s": "s",
    "collective_s": "s",
    "collective_bytes_per_s": "B/s",
}
MATMUL, POINTWISE = "matmul", "pointwise"
# A contraction belongs to the first class whose bound is above the flops of one execution on
# a device. Small ones do not reach the rate of large ones.
SIZE_CLASSES = {"small": 1 << 20, "medium": 1 << 26, "large": math.inf}


@dataclass(frozen=True)
class OperatorRates:
    """Measured rates of operators and collectives; empty if only the data sheet is known.

    Attributes:
      figures: pairs (name in a hardware file, value), such as
        ("operator_flops_per_s.matmul.float32", 2e9).

    >>> rates = OperatorRates((("operator_flops_per_s.matmul.float32", 2e9),))
    >>> rates.flops_per_s("matmul", "bfloat16"), rates.flops_per_s("pointwise", "float32")
    (2000000000.0, None)
    """

    figures: tuple[tuple[str, float], ...] = ()

    @cached_property
    def _by_name(self) -> dict[str, float]:
        """The value of each figure."""
        return dict(self.figures)

    def flops_per_s(self, operator: str, dtype: str, size: str = "") -> float | None:
        """Return the flops per second of a class of operators; None if not measured.

        If the item type was not measured, it is the rate for float32.

        Args:
          operator: a result of `operator_class`, such as "matmul".
          size: a result of `size_class`; "" for the slowest of all sizes.
        """
        details = (
            detail
            for kind in (f"{operator}.{dtype}", f"{operator}.float32")
            for detail in (f"{kind}.{size}", kind)
        )
        return self._nearest("operator_flops_per_s", details, min)

    def _nearest(
        self, figure: str, details: Iterable[str], slowest: Callable[[list[float]], float]
    ) -> float | None:
        """Return the value of the first figure that was measured; None if none was.

        If only figures with more details were measured, it is the slowest of these.

        Args:
          figure: a key of `OPERATOR_UNITS`.
          details: the rest of the name, the most specific first.
          slowest: `min` for rates and `max` for times.
        """
        for detail in details:
            name = f"{figure}.{detail}"
            if name in self._by_name:
                return self._by_name[name]
            # The slowest of the finer figures never promises too much.
            finer_values = [value for other, value in self.figures if other.startswith(f"{name}.")]
            if finer_values:
                return slowest(finer_values)
        return None

    @property
    def operator_s(self) -> float:
        """Seconds that each execution of a contraction takes in addition to its flops."""
        return self._by_name.get("operator_s", 0.0)

    def collective(self, kind: str, axes: Sequence[str] = ()) -> tuple[float, float] | None:
        """Return (seconds per execution, ring bytes per second) of a kind of collective.

        The result is None if neither was measured.
        """
        details = f"{kind}.{','.join(axes)}", kind
        seconds = self._nearest("collective_s", details, max)
        rate = self._nearest("collective_bytes_per_s", details, min)
        if seconds is rate is None:
            return None
        return seconds or 0.0, math.inf if rate is None else rate

    def slower(self, turns: float) -> OperatorRates:
        """Return the rates of a device that shares its core with others, `turns` devices in all."""
        found = []
        for name, value in self.figures:
            is_time = OPERATOR_UNITS[name.partition(".")[0]] == "s"
            found.append((name, value * turns if is_time else value / turns))
        return OperatorRates(tuple(found))


DATA_SHEET = OperatorRates()
"""Without measured rates, prices use the peak rates and bandwidths of the data sheet."""


def size_class(flops: float) -> str:
    """Return the size class of one execution of a contraction on one device.

    >>> size_class(1000), size_class(2 * 512**3)
    ('small', 'large')
    """
    return next(name for name, bound in SIZE_CLASSES.items() if flops < bound)


@lru_cache(maxsize=65536)
def operator_class(signature: Signature) -> str:
    """Return the class of an operator, which its measured rate is for: "matmul" or another name.

    Operators that are no contractions are "pointwise".

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
