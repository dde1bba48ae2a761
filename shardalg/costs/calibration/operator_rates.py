"""What was measured of operators on a machine: rates per class, and a time per execution.

Where a `Hardware` has them, a local operator takes its flops at the rate of its class, and what is
not a contraction also its bytes to and from memory; a contraction takes a time per execution, which
makes small ones slower; a collective takes a time per execution and its ring bytes at the rate of
its kind. All of it adds up, as on cores that do one thing after the other.

A figure may be finer: `operator_flops_per_s.matmul.float32.large` of one size class,
`collective_s.all_reduce.X` of one mesh axis. What was measured of other sizes or axes alone is
taken to be as slow as the slowest of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from shardalg.costs.compute import contracts
from shardalg.graph.ir import Signature

OPERATOR_UNITS = {
    "operator_flops_per_s": "flop/s",
    "operator_s": "s",
    "collective_s": "s",
    "collective_bytes_per_s": "B/s",
}
"""Units of the figures; but for `operator_s` each has a detail: class and item type, or kind."""
MATMUL, POINTWISE = "matmul", "pointwise"
SIZE_CLASSES = {"small": 1 << 20, "medium": 1 << 26, "large": math.inf}
"""Of contractions, by the flops that one execution on a device is below."""


@dataclass(frozen=True)
class OperatorRates:
    """Figures by their names in a hardware file; none of a data sheet's chip.

    >>> rates = OperatorRates((("operator_flops_per_s.matmul.float32", 2e9),))
    >>> rates.flops_per_s("matmul", "bfloat16"), rates.flops_per_s("pointwise", "float32")
    (2000000000.0, None)
    """

    figures: tuple[tuple[str, float], ...] = ()

    @cached_property
    def _by_name(self) -> dict[str, float]:
        return dict(self.figures)

    def flops_per_s(self, operator: str, dtype: str, size: str = "") -> float | None:
        """Of a class of operators on items of `dtype`, else on float32; `size` of `size_class`."""
        details = (
            detail
            for kind in (f"{operator}.{dtype}", f"{operator}.float32")
            for detail in (f"{kind}.{size}", kind)
        )
        return self._nearest("operator_flops_per_s", details, min)

    def _nearest(
        self, figure: str, details: Iterable[str], slowest: Callable[[list[float]], float]
    ) -> float | None:
        """The first that there is; of one that only finer figures have, their slowest."""
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
        """Seconds of every contraction, however small."""
        return self._by_name.get("operator_s", 0.0)

    def collective(self, kind: str, axes: Sequence[str] = ()) -> tuple[float, float] | None:
        """Seconds of every execution along axes, and ring bytes per second; None: not measured."""
        details = f"{kind}.{','.join(axes)}", kind
        seconds = self._nearest("collective_s", details, max)
        rate = self._nearest("collective_bytes_per_s", details, min)
        if seconds is rate is None:
            return None
        return seconds or 0.0, math.inf if rate is None else rate

    def slower(self, turns: float) -> OperatorRates:
        """Those of a device that has a core for one of so many turns."""
        return OperatorRates(
            tuple(
                (name, value * turns if _unit(name) == "s" else value / turns)
                for name, value in self.figures
            )
        )


DATA_SHEET = OperatorRates()
"""Nothing was measured."""


def size_class(flops: float) -> str:
    """Of one execution of a contraction on one device.

    >>> size_class(1000), size_class(2 * 512**3)
    ('small', 'large')
    """
    return next(name for name, bound in SIZE_CLASSES.items() if flops < bound)


def _unit(figure: str) -> str:
    return OPERATOR_UNITS[figure.partition(".")[0]]


@lru_cache(maxsize=65536)
def operator_class(signature: Signature) -> str:
    """The class whose rate an operator has.

    A convolution is one of its number of spatial dimensions, as XLA's kernels differ by it; one
    whose operand is dilated (the gradient of strides) multiplies by zeros, which do not count.
    """
    if not contracts(signature):
        return POINTWISE
    params = dict(signature.params)
    if signature.primitive != "conv_general_dilated":
        return MATMUL
    dilated = any(n > 1 for n in params.get("lhs_dilation") or ())
    return f"convolution_{len(signature.operands[0].shape) - 2}d{'_dilated' if dilated else ''}"
