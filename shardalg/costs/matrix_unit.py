"""How many operations a matrix unit spends on a product whose sizes are no multiples of its own.

A unit multiplies blocks of fixed sizes: TPUs keep 128 by 128 elements of one operand in place and
stream rows of the other one by, eight at a time; tensor cores multiply small blocks. Sizes are
rounded up to them, and either operand may be the one that is streamed: what is counted here is the
padding that no choice of layouts avoids, so that a time made of it stays a lower bound.

    rows x columns x contracting = ceil(m / r) r * ceil(n / c) c * ceil(k / d) d

m are all loops of the first operand alone (batch and image places of a convolution), n those of the
second, k those that are summed (channels and taps); loops of both and of the result (heads) are
many products. Convolutions stream images: their kernels stay in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from shardalg.costs.compute import Executed, Shapes, contracts, executed, operand_type
from shardalg.errors import HardwareError
from shardalg.graph.ir import Graph, Params, Signature
from shardalg.graph.ops.rule import SUM, Rule
from shardalg.sizes.amounts import quotient, tile
from shardalg.sizes.maximum import grouped, smaller

if TYPE_CHECKING:
    from shardalg.costs.hardware import Hardware


@dataclass(frozen=True)
class MatrixUnit:
    """Sizes, in elements, that the unit of a chip multiplies at once.

    Attributes:
      rows: that are streamed together.
      columns: of the operand that stays.
      contracting: elements that are summed; (item type, elements) where it depends on the type,
        the first for types that are not listed.
      source: where this is from.
    """

    rows: int = 1
    columns: int = 1
    contracting: tuple[tuple[str, int], ...] = (("any", 1),)
    source: str = ""

    def summed(self, dtype: str) -> int:
        """Elements of a type that are summed at once."""
        return dict(self.contracting).get(dtype, self.contracting[0][1])

    def to_json(self) -> dict[str, Any]:
        """Plain data that `read_unit` reads; nothing where nothing is known."""
        if self == ANY_SIZE:
            return {}
        sizes = {"rows": self.rows, "columns": self.columns}
        return {**sizes, "contracting": dict(self.contracting), "source": self.source}


ANY_SIZE = MatrixUnit()
"""Of a chip of which nothing is known: nothing is padded."""


def read_unit(data: Any, where: str) -> MatrixUnit:
    """A `MatrixUnit` from plain data; None: nothing is known.

    Raises:
      HardwareError: a size that is no positive integer, or no source.

    >>> read_unit({"rows": 8, "columns": 128, "contracting": 128, "source": "guide"}, "toy").rows
    8
    """
    if data is None:
        return ANY_SIZE
    entry = '{"rows": 8, "columns": 128, "contracting": 128, "source": "..."}'
    given: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    summed = given.get("contracting")
    types: Mapping[str, Any] = summed if isinstance(summed, Mapping) else {"any": summed}
    sizes = (given.get("rows"), given.get("columns"), *types.values())
    good = bool(types) and all(type(size) is int and size > 0 for size in sizes)
    if not good or not isinstance(given.get("source"), str):
        raise HardwareError(
            f"{where}: 'matrix_unit' is {data!r}; write {entry}, where contracting may also be "
            '{"bfloat16": 16, "float32": 8}.'
        )
    return MatrixUnit(given["rows"], given["columns"], tuple(types.items()), given["source"])


WIDER = {
    **dict.fromkeys(("float64", "complex128"), ("float64",)),
    **dict.fromkeys(("float32", "complex64"), ("float32", "float64")),
    **{name: (name, "float32", "float64") for name in ("bfloat16", "float16")},
}
"""Types in which items are multiplied exactly, as a compiler does where it has no narrower unit."""


def product_peak(chip: Hardware, dtype: str) -> float:
    """Operations a second of products: in their item type, or the first that holds its numbers.

    Of a type that the chip does not multiply (`check_products` names it), those of its slowest one.

    >>> from shardalg.costs.hardware import load
    >>> tpu = load("tpu_v3")
    >>> product_peak(tpu, "float16") == tpu.peak("float32")
    True
    """
    return chip.peak(_multiplied_in(chip, dtype) or dtype)


def _multiplied_in(chip: Hardware, dtype: str) -> str | None:
    peaks = dict(chip.peak_flops_per_s)
    return next((one for one in _exact(dtype) if one in peaks), None)


def _exact(dtype: str) -> tuple[str, ...]:
    narrow = (dtype, "bfloat16", "float16", "float32") if "float8" in dtype else (dtype,)
    return WIDER.get(dtype, narrow)


def check_products(graph: Graph, chip: Hardware) -> None:
    """Raise where seconds are asked for and the chip has peaks, but none for a product's item type.

    Raises:
      HardwareError: with the type, the first such operator, its line, and what to write instead.

    >>> import jax
    >>> from shardalg.costs.hardware import load
    >>> from shardalg.graph.tracing.trace import trace
    >>> graph = trace(lambda x: x @ x, jax.ShapeDtypeStruct((8, 8), "int32"))
    >>> check_products(graph, load("tpu_v3"))
    Traceback (most recent call last):
    shardalg.errors.HardwareError: tpu_v3 has no peak for products of int32 (dot_general at ...
    """
    if not chip.peak_flops_per_s or chip.operators.figures:
        return
    for node in graph.walk():
        dtype = operand_type(node.signature)
        if _multiplied_in(chip, dtype) is None and contracts(node.signature):
            peaks = ", ".join(sorted(dict(chip.peak_flops_per_s)))
            raise HardwareError(
                f"{chip.name} has no peak for products of {dtype} ({node.primitive} at "
                f"{node.source or 'an unknown line'}): cast the operands to one of {peaks}, or "
                f"give 'peak_flops_per_s.{_exact(dtype)[0]}' in a hardware file of your own."
            )


def padded_flops(
    signature: Signature,
    shapes: Shapes,
    unit: MatrixUnit,
    params: Params = (),
    row: Rule | None = None,
) -> Any:
    """Operations of the unit in the time that an operator keeps it: its flops, rounded up.

    Of what is no product of two matrices (a vector's too) the flops themselves.

    Args:
      shapes, params, row: as in `costs.compute.shaped_flops`.

    >>> from shardalg.graph.ir import ValueType
    >>> from shardalg.sizes.formula import symbols
    >>> M, Y = symbols("M Y")
    >>> tpu = MatrixUnit(8, 128, (("any", 128),))
    >>> a, b = ValueType((64, 256), "bfloat16"), ValueType((256, 96), "bfloat16")
    >>> params = (("dimension_numbers", (((1,), (0,)), ((), ()))),)
    >>> dot = Signature("dot_general", params, (a, b), (ValueType((64, 96), "bfloat16"),))
    >>> padded_flops(dot, ((64, 256), (256, 96), (64, 96)), tpu) == 2 * 64 * 256 * 128
    True
    >>> padded_flops(dot, ((64, M / Y), (M / Y, 128), (64, 128)), tpu)
    2097152*ceil(M/(128*Y))
    """
    dtype = signature.operands[0].dtype if signature.operands else ""
    return sum(_padded(one, unit, dtype) for one in executed(signature, shapes, params, row))


class _Roles(NamedTuple):
    """Loops of a product: of the first operand alone, of the second, summed, and of both."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    summed: tuple[str, ...]
    many: tuple[str, ...]
    slides: bool


@lru_cache(maxsize=65536)
def _roles(rule: Rule) -> _Roles | None:
    """What the loops of a row are in a product of two matrices; None if it is none."""
    (term, *others) = rule.terms
    if others or len(term) != 2 or rule.combine != SUM or rule.guards or not rule.reduced:
        return None
    first, second = ({v for i in read.dims for v in i.variables} for read in term)
    names = [name for name, _ in rule.loops]
    kept = [name for name in names if name not in rule.reduced]
    rows = tuple(n for n in kept if n in first and n not in second)
    columns = tuple(n for n in kept if n in second and n not in first)
    many = tuple(n for n in kept if n in first and n in second)
    extents = (math.prod(rule.extents[n] for n in side) for side in (rows, columns))
    if min(extents) == 1:
        return None
    slides = any(len(i.variables) > 1 for read in term for i in read.dims)
    return _Roles(rows, columns, tuple(n for n in names if n in rule.reduced), many, slides)


def _padded(one: Executed, unit: MatrixUnit, dtype: str) -> Any:
    rule, sizes = one.rule, one.sizes
    roles = _roles(rule)
    if roles is None or unit == ANY_SIZE:
        return one.flops

    def extent(names: Iterable[str]) -> Any:
        return math.prod(sizes.get(name, rule.extents[name]) for name in names)

    m, n = extent(roles.rows), extent(roles.columns)
    area = _up(m, unit.rows) * _up(n, unit.columns)
    if not roles.slides:
        area = smaller(area, _up(n, unit.rows) * _up(m, unit.columns))
    k = extent(roles.summed)
    blocks = area * _up(k, unit.summed(dtype))
    if roles.slides:  # what windows read of the padding is no operation
        return quotient(one.flops * blocks, grouped(m * n * k))
    return rule.flops * extent(roles.many) * blocks


def _up(size: Any, block: int) -> Any:
    """A size in whole blocks."""
    return size if block == 1 else block * tile(size, block)
