"""Values that depend on no argument, computed exactly: constants, iotas, masks, device offsets.

A dimension along which the numbers are equal has length 1, so that a mask of a large tensor costs
the dimensions that it depends on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from shardalg.lower.xla_dump.hlo_text import HloInstruction
from shardalg.xla.audit.hlo_attributes import (
    INTEGERS,
    integers,
    is_float,
    padding_of,
    slices_of,
    wrapped,
)
from shardalg.xla.audit.values.element_views import Known
from shardalg.xla.audit.values.per_device import ArrayPool, UnknownError

LARGEST = 1 << 26
"""Known values with more cells than this are not computed."""


def literal(pool: ArrayPool, instruction: HloInstruction) -> Known:
    """Return the value of a constant.

    Raises:
      UnknownError: the dump left the numbers out.
    """
    (dtype, shape), text = instruction.leaves[0], instruction.literal
    if "..." in text:
        raise UnknownError(
            "a constant whose numbers the dump left out (set xla_dump_large_constants)"
        )
    words = re.findall(r"[^\s{},()]+", text)
    if dtype == "pred":
        numbers = np.array([word in ("true", "1") for word in words])
    elif is_float(dtype):
        numbers = np.array([float(word) for word in words])
    elif dtype in INTEGERS:
        numbers = np.array([int(word) for word in words], np.int64)
    else:
        raise UnknownError(f"a constant of the type {dtype}")
    return known(pool, numbers.reshape(1, *shape), shape)


def known(
    pool: ArrayPool, cells: np.ndarray, shape: Sequence[int], classes: np.ndarray | None = None
) -> Known:
    """Return a known value, with length 1 along dimensions of equal numbers.

    Args:
      cells: numbers, [classes, ...].
    """
    return Known(pool.made(_narrow(cells), classes), tuple(shape))


def _narrow(cells: np.ndarray) -> np.ndarray:
    """Return numbers with length 1 along each dimension in which all of them are equal."""
    for dim in range(1, cells.ndim):
        first = cells[(slice(None),) * dim + (slice(0, 1),)]
        if cells.shape[dim] > 1 and (cells == first).all():
            cells = first
    return cells


def iota(pool: ArrayPool, dtype: str, shape: Sequence[int], dim: int) -> Known:
    """Return the value of an iota along a dimension."""
    line = np.arange(shape[dim]).astype(float if is_float(dtype) else np.int64)
    cells = line.reshape(1, *(-1 if k == dim else 1 for k in range(len(shape))))
    return Known(pool.made(cells), tuple(shape))


def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the quotient, rounded to zero for integers, as in XLA."""
    if a.dtype.kind == "f":
        return a / b
    quotient = np.abs(a) // np.maximum(np.abs(b), 1)
    return np.where(b == 0, -1, quotient * np.sign(a) * np.sign(b))


_COMPARE = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater,
    "GE": np.greater_equal,
}  # fmt: skip
_POINTWISE: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": divide,
    "maximum": np.maximum, "minimum": np.minimum, "negate": np.negative, "abs": np.abs,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "sign": np.sign, "remainder": np.fmod, "select": np.where, "power": np.power,
    "exponential": np.exp, "log": np.log, "sqrt": np.sqrt, "cosine": np.cos, "sine": np.sin,
    "rsqrt": lambda a: 1 / np.sqrt(a), "tanh": np.tanh, "floor": np.floor, "ceil": np.ceil,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "shift-left": lambda a, b: np.where(b < 32, a << np.minimum(b, 32), 0),
    "shift-right-arithmetic": lambda a, b: a >> np.minimum(b, 31),
    "shift-right-logical": lambda a, b: np.where(b < 32, (a & 0xFFFFFFFF) >> np.minimum(b, 32), 0),
}  # fmt: skip
_COMBINE: dict[str, Callable[..., np.ndarray]] = {
    "add": np.sum, "maximum": np.max, "minimum": np.min, "multiply": np.prod, "and": np.all,
    "or": np.any,
}  # fmt: skip


def pointwise(pool: ArrayPool, instruction: HloInstruction, operands: Sequence[Known]) -> Known:
    """Return the value of an elementwise operator.

    Raises:
      UnknownError: an operator that is not computed.
    """
    (dtype, shape), opcode = instruction.leaves[0], instruction.opcode
    direction = instruction.attributes.get("direction", "")
    function = _COMPARE.get(direction) if opcode == "compare" else _POINTWISE.get(opcode)

    def compute(*cells: np.ndarray) -> np.ndarray:
        """Return the operator's numbers for each class of devices, in its item type.

        Raises:
          UnknownError: the result has too many numbers.
        """
        rank = max(c.ndim for c in cells)
        # A scalar operand of select or clamp is one for all places.
        full = [c.reshape(len(c), *[1] * (rank - 1)) if c.ndim < rank else c for c in cells]
        if int(np.prod(np.broadcast_shapes(*(c.shape for c in full)))) > LARGEST:
            raise UnknownError("a known value of more than 2**26 numbers")
        with np.errstate(all="ignore"):
            return _narrow(in_type(dtype, function(*full) if function else full[0]))

    if opcode not in ("convert", "copy") and function is None:
        raise UnknownError(f"{opcode} of known numbers")
    made = pool.applied((opcode, direction, dtype), compute, *(x.cells for x in operands))
    return Known(made, shape)


def in_type(dtype: str, cells: np.ndarray) -> np.ndarray:
    """Return numbers converted to an item type of HLO."""
    if dtype == "pred":
        return cells != 0
    if is_float(dtype):
        return cells.astype(float)
    return wrapped(cells.astype(np.int64), dtype)


Change = tuple[tuple[object, ...], Callable[..., np.ndarray]]
"""The parameters of a move, and the function that applies it to cells."""


def moved(
    pool: ArrayPool, instruction: HloInstruction, operands: Sequence[Known], combine: str = ""
) -> Known:
    """Return the value of an operator that moves known numbers, or reduces them.

    Args:
      combine: the opcode of a reduction.

    Raises:
      UnknownError: an operator that is not computed.
    """
    opcode, shape = instruction.opcode, instruction.leaves[0][1]
    if opcode == "reduce" and len(operands) == 2:
        name, function = _reduction(instruction, operands[0].shape, combine)
    elif opcode in _CHANGES:
        name, function = _CHANGES[opcode](instruction, operands)
    else:
        raise UnknownError(f"{opcode} of known numbers")
    if int(np.prod(shape)) > LARGEST and opcode in ("reshape", "concatenate", "pad"):
        raise UnknownError("a known value of more than 2**26 numbers")
    made = pool.applied((opcode, *name), function, *(v.cells for v in operands))
    return Known(made, shape)


def _broadcast(instruction: HloInstruction, operands: Sequence[Known]) -> Change:
    """Return the change of a broadcast: the operand's dimensions take their places in the result.

    The new dimensions have length 1, because the numbers do not vary along them.
    """
    dims, rank = integers(instruction.attributes.get("dimensions")), len(instruction.leaves[0][1])
    order = sorted(range(len(dims)), key=lambda k: dims[k])

    def change(cells: np.ndarray) -> np.ndarray:
        """Return the numbers with one dimension per dimension of the result."""
        lengths = [1] * rank
        for k, dim in enumerate(dims):
            lengths[dim] = cells.shape[1 + k]
        # The operand's dimensions need not be in ascending order in the result.
        return cells.transpose(0, *(1 + k for k in order)).reshape(len(cells), *lengths)

    return (tuple(dims), rank), change


def _transpose(instruction: HloInstruction, operands: Sequence[Known]) -> Change:
    dims = integers(instruction.attributes["dimensions"])
    return tuple(dims), lambda cells: cells.transpose(0, *(1 + d for d in dims))


def _slice(instruction: HloInstruction, operands: Sequence[Known]) -> Change:
    """Return the change of a slice; a dimension that is stored with length 1 stays as it is."""
    ranges = slices_of(instruction)

    def change(cells: np.ndarray) -> np.ndarray:
        sizes = cells.shape[1:]
        cut = [s if n > 1 else slice(None) for s, n in zip(ranges, sizes, strict=True)]
        return cells[(slice(None), *cut)]

    return (instruction.attributes["slice"],), change


def reverse_change(instruction: HloInstruction, operands: Sequence[Known]) -> Change:
    """Return the change of a reversal."""
    dims = integers(instruction.attributes["dimensions"])
    return tuple(dims), lambda cells: np.flip(cells, tuple(1 + d for d in dims))


def _reshape(instruction: HloInstruction, operands: Sequence[Known]) -> Change:
    """Return the change of a reshape; it spreads the numbers to their full shape first."""
    old, new = operands[0].shape, instruction.leaves[0][1]

    def change(cells: np.ndarray) -> np.ndarray:
        if cells[0].size == 1:
            return cells.reshape(len(cells), *[1] * len(new))
        return _narrow(_full(cells, old).reshape(len(cells), *new))

    return (old, new), change


def _concatenate(instruction: HloInstruction, operands: Sequence[Known]) -> Change:
    """Return the change of a concatenation of numbers that are spread to their full shapes."""
    (dim,) = integers(instruction.attributes["dimensions"])
    shapes = [x.shape for x in operands]

    def change(*cells: np.ndarray) -> np.ndarray:
        full = [_full(c, s) for c, s in zip(cells, shapes, strict=True)]
        return _narrow(np.concatenate(full, 1 + dim))

    return (dim, *shapes), change


def _pad(instruction: HloInstruction, operands: Sequence[Known]) -> Change:
    """Return the change of a padding: its function takes the numbers and the padding value."""
    config, shape = padding_of(instruction), operands[0].shape

    def change(cells: np.ndarray, fill: np.ndarray) -> np.ndarray:
        return _narrow(_padded(_full(cells, shape), fill, config))

    return (instruction.attributes["padding"], shape), change


def _dynamic_slice(instruction: HloInstruction, operands: Sequence[Known]) -> Change:
    """Return the change of a slice whose start is a known number on each device."""
    old, new = operands[0].shape, instruction.leaves[0][1]

    def change(cells: np.ndarray, *starts: np.ndarray) -> np.ndarray:
        """Return the block of each class of devices.

        Args:
          starts: per dimension, the number of each class.
        """
        for dim, (start, n, size) in enumerate(zip(starts, new, old, strict=True)):
            if cells.shape[1 + dim] > 1:
                # XLA moves a start back if the block would reach beyond the end.
                first = np.clip(start.reshape(-1), 0, size - n)
                at = first[:, None] + np.arange(n)
                at = at.reshape(len(at), *(-1 if k == dim else 1 for k in range(len(new))))
                cells = np.take_along_axis(cells, at, 1 + dim)
        return cells

    return (old, new), change


_CHANGES: dict[str, Callable[[HloInstruction, Sequence[Known]], Change]] = {
    "broadcast": _broadcast, "transpose": _transpose, "slice": _slice, "reverse": reverse_change,
    "reshape": _reshape, "concatenate": _concatenate, "pad": _pad,
    "dynamic-slice": _dynamic_slice,
}  # fmt: skip


def _reduction(instruction: HloInstruction, shape: tuple[int, ...], combine: str) -> Change:
    """Return the change of a reduction of known numbers.

    Raises:
      UnknownError: the function of the reduction is not in the table.
    """
    dims = integers(instruction.attributes["dimensions"])
    if combine not in _COMBINE:
        raise UnknownError(f"a reduction of known numbers by {combine or 'a program'}")

    def change(cells: np.ndarray, start: np.ndarray) -> np.ndarray:
        """Return the numbers combined over the reduced dimensions, and with the start value."""
        # A reduced dimension needs all its numbers, e.g. a sum of equal numbers depends on their
        # count; the others may stay at length 1.
        sizes = [n if d in dims else cells.shape[1 + d] for d, n in enumerate(shape)]
        total = _COMBINE[combine](_full(cells, sizes), axis=tuple(1 + d for d in dims))
        start = start.reshape(len(start), *[1] * (total.ndim - 1))
        return _POINTWISE[combine](total, start)

    return (tuple(dims), shape, combine), change


def _full(cells: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    return np.broadcast_to(cells, (len(cells), *shape))


def _padded(
    cells: np.ndarray, fill: np.ndarray, config: Sequence[tuple[int, int, int]]
) -> np.ndarray:
    """Return numbers with padding at the ends of each dimension and between its numbers.

    Args:
      config: per dimension, the places before, after and between. Negative ends cut numbers off.

    E.g. [5, 6] with (1, 0, 1) and fill 0 is [0, 5, 0, 6].
    """
    for dim, (low, high, inner) in enumerate(config):
        size = cells.shape[1 + dim]
        # `at` counts the places of the result from the first number; every (inner + 1)-th has a
        # number.
        span = max(0, (size - 1) * (inner + 1) + 1)
        at = np.arange(-low, span + high)
        exists = (at >= 0) & (at < span) & (at % (inner + 1) == 0)
        taken = np.take(cells, np.clip(at // (inner + 1), 0, max(size - 1, 0)), 1 + dim)
        exists = exists.reshape(-1, *[1] * (cells.ndim - 2 - dim))
        cells = np.where(exists, taken, fill.reshape(len(fill), *[1] * (cells.ndim - 1)))
    return cells
