"""Dimensions that an operator reads through a window: strided, shifted, dilated or reversed.

If the loops of such a dimension are partitioned, a device needs an interval of the dimension. The
local operator is the global one on this interval, with other padding or other limits of a slice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardalg.algebra.affine import Index
from shardalg.graph.ir import Params, Signature
from shardalg.graph.ops.families.building import record
from shardalg.graph.ops.loops import OperandDim, dim_loops
from shardalg.graph.ops.rule import Rule


@dataclass(frozen=True)
class WindowBlock:
    """One device's interval of a dimension that is read through a window.

    The global operator reads element `n / base_dilation` of the dimension, where the numerator n is
    linear in the loops. The device counts numerators from the first one that it needs. Its operator
    reads element `(n - phase) / base` of the interval.

    Attributes:
      length: number of elements of the interval.
      phase: an offset in `[0, base)`.
      base: the base dilation of the local operator.
    """

    length: int
    phase: int = 0
    base: int = 1


def is_windowed(rule: Rule, tensor: int, dim: int) -> bool:
    """Return whether an operand's dimension is read through a window whose loops may be sharded.

    >>> from shardalg.graph.ops.rows import rules
    >>> from shardalg.graph.ir import ValueType
    >>> f = lambda n: ValueType((n,), "float32")
    >>> row, = rules(Signature("rev", (("dimensions", (0,)),), (f(6),), (f(6),)))
    >>> str(row), is_windowed(row, 0, 0)
    ('rev: [-d0+5] -> [d0]', True)
    """
    index = rule.indices(tensor)[dim]
    # A run-time number in the index is no loop. A tensor without elements has nothing to read.
    has_only_loops = all(name in rule.extents for name in index.variables)
    is_readable = has_only_loops and 0 not in (rule.shape(tensor) or ())
    # The elements of a remainder or of a rounded quotient repeat, so they are no window.
    repeats = index.mod or (index.div > 1 and not index.exact)
    # Only operands (numbers from 0 on) are read, and an index without terms is a constant.
    is_read_by_loops = tensor >= 0 and bool(index.terms) and is_readable and not repeats
    # Plain and nested loops are no windows: their blocks are blocks of the dimension.
    return is_read_by_loops and not dim_loops(rule, tensor, dim)


def reach(index: Index, blocks: Mapping[str, int]) -> int:
    """Return the number of elements of an operand's dimension that a device's blocks need.

    Elements are counted before base dilation is divided out: they are values of the numerator of
    `index`, from the first one to the last one.

    Args:
      blocks: the device's extent of each loop.

    >>> reach(Index((("d0", 3),)), {"d0": 4}), reach(Index((("d0", 3),)), {"d0": 0})
    (10, 0)
    """
    if not all(blocks[name] for name, _ in index.terms):
        return 0
    return sum(abs(c) * (blocks[name] - 1) for name, c in index.terms) + 1


def local_params(
    signature: Signature,
    rule: Rule,
    blocks: Mapping[str, int],
    spans: Mapping[OperandDim, WindowBlock],
) -> Params:
    """Return the padding, dilation or slice limits of the operator that runs on a device's blocks.

    Dimensions in `spans` get the parameters of their block; others keep theirs. The result is empty
    for an operator without such parameters.

    Args:
      signature, rule: the global operator and its row.
      blocks: the device's extent of each loop.
      spans: the device's interval of each operand dimension that is read through a window.
    """
    param = signature.param

    def padding_around(dim: int, span: WindowBlock) -> tuple[int, int]:
        """Return the padding (low, high) with which the operator has exactly the device's windows.

        Negative numbers cut elements off.

        Args:
          dim: the dimension of operand 0.
          span: the interval of this dimension that the device reads.
        """
        # The windows cover `needed` places. Element k of the interval is at place `phase + base*k`;
        # the places before the first element and behind the last one are padding.
        needed = reach(rule.operands[0][dim], blocks)
        return span.phase, needed - span.phase - max((span.length - 1) * span.base + 1, 0)

    def window_params(dims: Sequence[int], dilation: str) -> Params:
        """Return the parameters `padding` and `dilation` for the blocks of one device.

        Args:
          dims: the operand's dimensions with a window, in the order of the parameters' entries.
          dilation: the name of the parameter for base dilation, such as "lhs_dilation".
        """
        padding, base = list(param("padding")), list(param(dilation))
        for k, dim in enumerate(dims):
            span = spans.get((0, dim))
            if span is not None:
                padding[k], base[k] = padding_around(dim, span), span.base
        return (("padding", tuple(padding)), (dilation, tuple(base)))

    # Parameters tell the operators apart. Only a convolution has `rhs_dilation`. Of the others,
    # only a pooling (`reduce_window`, `select_and_gather_add`) has `base_dilation`, only a pad has
    # `padding_config`, and only a slice has `limit_indices`. `padding` is tested last, because a
    # `select_and_scatter` has it, but a convolution and a pooling have it too.
    if param("rhs_dilation") is not None:
        layout, *_ = record(param("dimension_numbers"), "lhs rhs out").values()
        return window_params(layout[2:], "lhs_dilation")

    if param("base_dilation") is not None:
        return window_params(range(len(signature.operands[0].shape)), "base_dilation")

    if param("padding_config") is not None:
        config = list(param("padding_config"))
        for (_, dim), span in spans.items():
            config[dim] = (*padding_around(dim, span), span.base - 1)
        return (("padding_config", tuple(config)),)

    if param("limit_indices") is not None:
        starts, limits = list(param("start_indices")), list(param("limit_indices"))
        for dim, index in enumerate(rule.results[0]):
            loop = index.variables[0]
            if (0, dim) in spans:
                # The exchange brings the interval of this device, so its slice starts at element 0.
                starts[dim], limits[dim] = 0, reach(rule.operands[0][dim], blocks)
            elif blocks[loop] != rule.extents[loop]:
                limits[dim] = blocks[loop]
        return (("start_indices", tuple(starts)), ("limit_indices", tuple(limits)))

    if param("padding") is not None:
        # The interval of this device begins at its first window, so that no padding remains.
        padding = list(param("padding"))
        for _, dim in spans:
            padding[dim] = (0, 0)
        return (("padding", tuple(padding)),)
    return ()
