"""Operations of a matrix unit on a product whose sizes are no multiples of the unit's block sizes.

A unit multiplies blocks of fixed sizes. A TPU keeps 128 by 128 elements of one operand in place and
streams rows of the other operand, eight at a time. Tensor cores multiply small blocks. Sizes are
rounded up to blocks, and either operand may be streamed. Only padding that no choice of layouts
avoids is counted, so that the resulting time is a lower bound.

    multiplications = ceil(m / r) r * ceil(n / c) c * ceil(k / d) d

r, c and d are the unit's rows, columns and contracting elements. m is the product of the loops that
only the first operand has (batch and image of a convolution), and n of those that only the second
operand has. k is the product of the contracting loops (channels and taps). The number is multiplied
by the batch loops (heads). A convolution streams its image; its kernel stays in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from shardalg.costs.compute import (
    Executed,
    Shapes,
    contracts,
    operand_type,
    rule_executions,
    shaped_flops,
)
from shardalg.costs.kernels.expert_load import busiest_flops
from shardalg.costs.kernels.kernel_price import price_of
from shardalg.errors import HardwareError
from shardalg.graph.ir import Graph, Node, Params, Signature, once_per_graph
from shardalg.graph.ops.rule import SUM, Rule
from shardalg.sizes.amounts import quotient, tile
from shardalg.sizes.maximum import grouped, smaller

if TYPE_CHECKING:
    from shardalg.costs.hardware import Hardware


@dataclass(frozen=True)
class MatrixUnit:
    """Block sizes, in elements, of the unit of a chip that multiplies matrices.

    Attributes:
      rows: rows of the streamed operand that enter together.
      columns: columns of the operand that stays in place.
      contracting: pairs (item type, number of products that are summed at once). The first pair
        also holds for types that are not listed.
      source: the document that gives these sizes.
    """

    rows: int = 1
    columns: int = 1
    contracting: tuple[tuple[str, int], ...] = (("any", 1),)
    source: str = ""

    def summed(self, dtype: str) -> int:
        """Return the block size along the contracting dimension for an item type."""
        return dict(self.contracting).get(dtype, self.contracting[0][1])

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `read_unit` reads; {} if the block sizes are unknown."""
        if self == ANY_SIZE:
            return {}
        sizes = {"rows": self.rows, "columns": self.columns}
        return {**sizes, "contracting": dict(self.contracting), "source": self.source}


ANY_SIZE = MatrixUnit()
"""The unit of a chip whose block sizes are unknown: nothing is padded."""


def read_unit(data: Any, where: str) -> MatrixUnit:
    """Return a `MatrixUnit` from parsed JSON; for None, the unit that pads nothing (`ANY_SIZE`).

    Args:
      data: the entry "matrix_unit" of a hardware file, or None if the file has none.
      where: name of the file, for error messages.

    Raises:
      HardwareError: a size is no positive integer, or the source is missing.

    >>> read_unit({"rows": 8, "columns": 128, "contracting": 128, "source": "guide"}, "toy").rows
    8
    """
    if data is None:
        return ANY_SIZE
    entry = '{"rows": 8, "columns": 128, "contracting": 128, "source": "..."}'
    entries: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    contracting = entries.get("contracting")
    # One size for all item types, or a size per type.
    size_by_type: Mapping[str, Any] = (
        contracting if isinstance(contracting, Mapping) else {"any": contracting}
    )
    sizes = (entries.get("rows"), entries.get("columns"), *size_by_type.values())
    is_valid = bool(size_by_type) and all(type(size) is int and size > 0 for size in sizes)
    if not is_valid or not isinstance(entries.get("source"), str):
        raise HardwareError(
            f"{where}: 'matrix_unit' is {data!r}; write {entry}, where contracting may also be "
            '{"bfloat16": 16, "float32": 8}.'
        )
    return MatrixUnit(
        entries["rows"], entries["columns"], tuple(size_by_type.items()), entries["source"]
    )


WIDER = {
    **dict.fromkeys(("float64", "complex128"), ("float64",)),
    **dict.fromkeys(("float32", "complex64"), ("float32", "float64")),
    **{name: (name, "float32", "float64") for name in ("bfloat16", "float16")},
}
"""For each item type, the types that represent its numbers exactly, narrowest first.

On a chip that does not multiply a type, the compiler converts the operands to the first type that
the chip multiplies.
"""


def product_peak(chip: Hardware, dtype: str) -> float:
    """Return the operations per second of matrix products whose items have a type.

    The rate is that of the narrowest type that represents the items exactly (`WIDER`) and that the
    chip multiplies. If there is none, it is the chip's slowest rate: `check_products` raises then,
    and `assumed_products` names products of integers.

    >>> from shardalg.costs.hardware import load
    >>> tpu = load("tpu_v3")
    >>> product_peak(tpu, "float16") == tpu.peak("float32")
    True
    """
    return chip.peak(_multiplied_in(chip, dtype) or dtype)


def _multiplied_in(chip: Hardware, dtype: str) -> str | None:
    """Return the item type to which a chip converts items of type `dtype` to multiply them.

    It is the narrowest exact type that the chip has a peak rate for; None if there is none.
    """
    peaks = dict(chip.peak_flops_per_s)
    return next((exact for exact in _exact(dtype) if exact in peaks), None)


def _exact(dtype: str) -> tuple[str, ...]:
    """Return the item types that represent numbers of a type exactly, narrowest first."""
    narrow = (dtype, "bfloat16", "float16", "float32") if "float8" in dtype else (dtype,)
    return WIDER.get(dtype, narrow)


def check_products(graph: Graph, chip: Hardware) -> None:
    """Raise an error if the chip has no peak rate for the floating-point type of some product.

    Products of integers never raise: `assumed_products` names them. A chip without any peak rate,
    or with measured rates of operators, is not checked.

    Raises:
      HardwareError: names the item type, the first such operator, its line, and the remedy.

    >>> import jax
    >>> from shardalg.costs.hardware import Hardware
    >>> from shardalg.graph.tracing.trace import trace
    >>> graph = trace(lambda x: x @ x, jax.ShapeDtypeStruct((8, 8), "float32"))
    >>> check_products(graph, Hardware("toy", (("int8", 1e12),)))
    Traceback (most recent call last):
    shardalg.errors.HardwareError: toy has no peak for products of float32 (dot_general at ...
    """
    for dtype, node in _products_without_peak(graph, chip):
        if not _is_integer(dtype):
            peaks = ", ".join(sorted(dict(chip.peak_flops_per_s)))
            raise HardwareError(
                f"{chip.name} has no peak for products of {dtype} ({node.primitive} at "
                f"{node.source or 'an unknown line'}): cast the operands to one of {peaks}, or "
                f"give 'peak_flops_per_s.{_exact(dtype)[0]}' in a hardware file of your own."
            )


def assumed_products(graph: Graph, chip: Hardware) -> tuple[str, ...]:
    """Return a text per item type of integer products for which the chip has no peak rate.

    They are priced at the chip's slowest rate. Matrix units multiply no wide integers, and indices
    and counts have few products, so that a plan is not refused because of them.

    >>> import jax
    >>> from shardalg.costs.hardware import load
    >>> from shardalg.graph.tracing.trace import trace
    >>> graph = trace(lambda x: x @ x, jax.ShapeDtypeStruct((8, 8), "int32"))
    >>> assumed_products(graph, load("tpu_v3"))
    ('int32 (dot_general at ...)',)
    """
    found: dict[str, str] = {}
    for dtype, node in _products_without_peak(graph, chip):
        if _is_integer(dtype):
            found[dtype] = f"{node.primitive} at {node.source or 'an unknown line'}"
    return tuple(f"{dtype} ({where})" for dtype, where in found.items())


def _products_without_peak(graph: Graph, chip: Hardware) -> Iterator[tuple[str, Node]]:
    """Yield (item type, first product of this type) if the chip has no peak rate for the type."""
    # Arithmetic on a chip without peaks takes no time, and measured rates replace the peaks.
    if not chip.peak_flops_per_s or chip.operators.figures:
        return
    for dtype, node in _first_products(graph).items():
        if _multiplied_in(chip, dtype) is None:
            yield dtype, node


@once_per_graph
def _first_products(graph: Graph) -> dict[str, Node]:
    """Return the first product of each item type."""
    found: dict[str, Node] = {}
    for node in graph.walk():
        if contracts(node.signature):
            found.setdefault(operand_type(node.signature), node)
    return found


def _is_integer(dtype: str) -> bool:
    """Return whether an item type has integers or truth values."""
    return dtype.startswith(("int", "uint", "bool"))


def padded_flops(
    signature: Signature,
    shapes: Shapes,
    unit: MatrixUnit,
    params: Params = (),
    row: Rule | None = None,
) -> Any:
    """Return the flops of an operator, with sizes of products rounded up to the unit's blocks.

    Sizes are not rounded for an operator that is no product of two matrices, such as a product of
    a matrix and a vector.

    Args:
      shapes: shapes of the operands, then of the results, on one device; numbers or formulas.
      params: parameters that the operator has on these shapes instead of the signature's.
      row: the operator's rule for these shapes. It is needed for convolutions and other sliding
        windows on shapes that are formulas.

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
    if price_of(signature) is not None:
        return shaped_flops(signature, shapes)
    dtype = signature.operands[0].dtype if signature.operands else ""
    return sum(
        _padded_rule_flops(one, unit, dtype)
        for one in rule_executions(signature, shapes, params, row)
    )


class _Roles(NamedTuple):
    """Names of the loops of a product of two matrices, by role.

    Attributes:
      rows: loops that only the first operand has.
      columns: loops that only the second operand has.
      summed: contracting loops.
      many: batch loops, in both operands and the result.
      slides: whether an operand is read through a sliding window, as in a convolution.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    summed: tuple[str, ...]
    many: tuple[str, ...]
    slides: bool


@lru_cache(maxsize=65536)
def _roles(rule: Rule) -> _Roles | None:
    """Return the loops of a product of two matrices by role; None for any other operator."""
    (term, *others) = rule.terms
    # Only a sum of products of two operands runs on the matrix unit.
    if others or len(term) != 2 or rule.combine != SUM or not rule.reduced:
        return None
    first, second = ({loop for index in read.dims for loop in index.variables} for read in term)
    # In a grouped product (mixture of experts) each row is multiplied by the matrix of one group
    # only. The loop over groups, which a guard selects, adds neither rows nor columns.
    loop_names = [name for name, _ in rule.loops if name not in rule.guarded]
    result_loops = [name for name in loop_names if name not in rule.reduced]
    # A loop of the result in one operand only is a row or a column; in both, it is a batch loop.
    rows = tuple(name for name in result_loops if name in first and name not in second)
    columns = tuple(name for name in result_loops if name in second and name not in first)
    batch_loops = tuple(name for name in result_loops if name in first and name in second)
    summed_loops = tuple(name for name in loop_names if name in rule.reduced)
    # A product with a vector does not run on the matrix unit, so nothing is rounded up.
    extents = (math.prod(rule.extents[name] for name in side) for side in (rows, columns))
    if min(extents) == 1:
        return None
    # An index of several loops, such as position plus tap, is a window that slides.
    slides = any(len(index.variables) > 1 for read in term for index in read.dims)
    return _Roles(rows, columns, summed_loops, batch_loops, slides)


def _padded_rule_flops(one: Executed, unit: MatrixUnit, dtype: str) -> Any:
    """Return the flops of one rule of an operator, in whole blocks if it is a matrix product.

    Args:
      one: the rule with the sizes of its loops and its flops.
      unit: the block sizes of the chip.
      dtype: the item type of the product.
    """
    rule, sizes = one.rule, one.sizes
    roles = _roles(rule)
    if roles is None or unit == ANY_SIZE:
        return one.flops

    def extent(names: Iterable[str]) -> Any:
        """Return the product of the sizes of some loops."""
        return math.prod(sizes.get(name, rule.extents[name]) for name in names)

    m, n = extent(roles.rows), extent(roles.columns)
    area = _up(m, unit.rows) * _up(n, unit.columns)
    # A product may stream either operand, so the cheaper way counts. A convolution streams images.
    if not roles.slides:
        area = smaller(area, _up(n, unit.rows) * _up(m, unit.columns))
    k = extent(roles.summed)
    blocks = area * _up(k, unit.summed(dtype))
    # `one.flops` leaves out the products with padding at the borders of an image. Its ratio to
    # m * n * k is kept, so that rounding up to blocks does not bring them back.
    if roles.slides:
        return quotient(one.flops * blocks, grouped(m * n * k))
    return busiest_flops(rule, sizes, rule.flops * extent(roles.many) * blocks)


def _up(size: Any, block: int) -> Any:
    """Return a size rounded up to a multiple of the block size."""
    return size if block == 1 else block * tile(size, block)
