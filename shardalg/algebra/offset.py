"""Offset, valid size and padding of a block along one tensor dimension, as numbers and in sympy.

A dimension of `size` elements in `n` parts has blocks of `s = ceil(size / n)` elements. With the
partition id `p` of a device on this dimension (GSPMD, arXiv:2105.04663, section 3.1):

    offset(p) = p * s        valid(p) = clip(size - p*s, 0, s)        padding(p) = s - valid(p)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.mesh import Mesh
from shardalg.errors import ShardingError

if TYPE_CHECKING:
    import sympy


def block_size(size: int, count: int) -> int:
    """Return the number of elements of a block, padding included: `ceil(size / count)`.

    >>> block_size(10, 4)
    3
    """
    return -(-size // count)


def valid_size(size: int, block: int, partition: int) -> int:
    """Return the number of elements in a partition's block that exist in the tensor.

    >>> [valid_size(10, 3, p) for p in range(5)]
    [3, 3, 3, 1, 0]
    """
    return min(max(size - partition * block, 0), block)


def partition_symbol() -> sympy.Symbol:
    """Return the sympy symbol `p`, which is the partition id of one tensor dimension."""
    import sympy

    return sympy.Symbol("p", integer=True, nonnegative=True)


def coordinate_symbol(name: str) -> sympy.Symbol:
    """Return the sympy symbol of a device's coordinate along an axis or a sub-axis.

    It prints as c_x for the axis x.
    """
    import sympy

    return sympy.Symbol(f"c_{name}", integer=True, nonnegative=True)


def partition_expr(digits: Digits, mesh: Mesh, *, by: str = "coordinates") -> sympy.Expr:
    """Return a dimension's partition id in sympy, for a dimension that is split by these digits.

    Args:
      by: "coordinates" (one symbol per axis, as c_x), "position" (the device's position in the
        mesh, the symbol d), or "partition_id" (the symbol p itself).

    >>> mesh = Mesh({"x": 2, "y": 4})
    >>> partition_expr(mesh.digits(["y", "x"]), mesh)
    c_x + 2*c_y
    >>> partition_expr(mesh.digits(["x"]), mesh, by="position")
    Mod(floor(d/4), 2)

    Raises:
      ShardingError: `by` is none of the three.
    """
    forms = {
        "coordinates": _by_coordinates,
        "position": _by_position,
        "partition_id": lambda digits, mesh: partition_symbol(),
    }
    if by not in forms:
        raise ShardingError(f"by={by!r} is not one of {sorted(forms)}.")
    # Every device of an unpartitioned dimension has partition id 0, in any form.
    return forms[by](digits, mesh) if parts(digits) > 1 else _number(0)


def offset_expr(size: int, count: int, partition: sympy.Expr) -> sympy.Expr:
    """Return the offset of a block: `partition * ceil(size / count)`.

    >>> offset_expr(64, 8, partition_symbol())
    8*p
    """
    return partition * block_size(size, count)


def valid_size_expr(size: int, count: int, partition: sympy.Expr) -> sympy.Expr:
    """Return the valid size of a block in sympy: `clip(size - partition*s, 0, s)`.

    `s` is the block size. If `count` divides `size`, the result is the number `s`.

    >>> valid_size_expr(64, 8, partition_symbol()), valid_size_expr(10, 4, partition_symbol())
    (8, Min(3, Max(0, 10 - 3*p)))
    """
    import sympy

    # An even split has no padding, so the formula is a number.
    block = block_size(size, count)
    if size == block * count:
        return _number(block)
    return sympy.Min(block, sympy.Max(0, size - partition * block))


def padding_expr(size: int, count: int, partition: sympy.Expr) -> sympy.Expr:
    """Return the padding of a block in sympy: `clip((partition+1)*s - size, 0, s)`.

    `s` is the block size.

    >>> padding_expr(64, 8, partition_symbol()), padding_expr(10, 4, partition_symbol())
    (0, Min(3, Max(0, 3*p - 7)))
    """
    import sympy

    block = block_size(size, count)
    if size == block * count:
        return _number(0)
    return sympy.Min(block, sympy.Max(0, (partition + 1) * block - size))


def _number(value: int) -> sympy.Integer:
    """Return an integer as a sympy number, so that it can be part of an expression."""
    import sympy

    return sympy.Integer(value)


def _by_coordinates(digits: Digits, mesh: Mesh) -> sympy.Expr:
    """Return the partition id as an expression in coordinates along axes: `c_x + 2*c_y`."""
    # A digit that joins several axes is itself a mixed-radix number of their coordinates.
    total = _number(0)
    for digit in digits:
        value = _number(0)
        for ref in mesh.axis_refs(digit) if digit.size > 1 else ():
            value = value * (ref.size or mesh.shape[ref.name]) + coordinate_symbol(repr(ref))
        total = total * digit.size + value
    return total


def _by_position(digits: Digits, mesh: Mesh) -> sympy.Expr:
    """Return the partition id as an expression in the device's position `d`."""
    import sympy

    # The assumptions let sympy simplify floors and remainders.
    position, total = sympy.Symbol("d", integer=True, nonnegative=True), _number(0)
    for digit in digits:
        place = sympy.floor(position / digit.stride)
        total = total * digit.size + sympy.Mod(place, digit.size)
    return total
