"""Dimensions that an operator reads through a window: strided, shifted, dilated or reversed.

With its loops cut to blocks, a device needs an interval of such a dimension. The local operator is
the same one on that interval: only its padding (and the limits of a slice) are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardalg.algebra.affine import Index
from shardalg.graph.ir import Params, Signature
from shardalg.graph.ops.families.building import record
from shardalg.graph.ops.loops import dim_loops
from shardalg.graph.ops.rule import Rule

OperandDim = tuple[int, int]
"""Operand and dimension."""


@dataclass(frozen=True)
class WindowBlock:
    """What a device has of a dimension that is read through a window.

    The local operator reads place `(numerator - phase) / base` where the global one reads an
    element, with the numerator counted from the device's first one.

    Attributes:
      length: places.
      base: the dilation that is left to the operator; phase: in `[0, base)`.
    """

    length: int
    phase: int = 0
    base: int = 1


def windowed(rule: Rule, tensor: int, dim: int) -> bool:
    """Whether an operand's dimension is read through a window whose loops may be sharded.

    >>> from shardalg.graph.ops.rows import rules
    >>> from shardalg.graph.ir import ValueType
    >>> f = lambda n: ValueType((n,), "float32")
    >>> row, = rules(Signature("rev", (("dimensions", (0,)),), (f(6),), (f(6),)))
    >>> str(row), windowed(row, 0, 0)
    ('rev: [-d0+5] -> [d0]', True)
    """
    index = rule.indices(tensor)[dim]
    plain = all(name in rule.extents for name in index.variables) and 0 not in (
        rule.shape(tensor) or ()
    )
    divided = index.mod or (index.div > 1 and not index.exact)
    moving = tensor >= 0 and index.terms and not divided
    return bool(moving and plain) and not dim_loops(rule, tensor, dim)


def reach(index: Index, blocks: Mapping[str, int]) -> int:
    """Numerators between the first and the last that blocks of the loops need, both included.

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
    """Parameters of the local operator that differ: those of the dimensions in `spans`."""
    for name, place in _PLACED.items():
        if signature.param(name) is not None:
            return place(_Windowed(signature, rule, blocks, spans))
    return ()


@dataclass(frozen=True)
class _Windowed:
    """An operator that reads through windows, with its loops cut to the blocks of a device."""

    signature: Signature
    rule: Rule
    blocks: Mapping[str, int]
    spans: Mapping[OperandDim, WindowBlock]

    def reach(self, dim: int) -> int:
        """Numerators that the blocks need of a dimension of the first operand."""
        return reach(self.rule.operands[0][dim], self.blocks)


def _padding(needed: int, span: WindowBlock) -> tuple[int, int]:
    """Padding around a span so that the windows of the block fit exactly; it may be negative."""
    return span.phase, needed - span.phase - max((span.length - 1) * span.base + 1, 0)


def _convolution(on: _Windowed) -> Params:
    layout, *_ = record(on.signature.param("dimension_numbers"), "lhs rhs out").values()
    return _of_dims(on, layout[2:], "lhs_dilation")


def _reduction(on: _Windowed) -> Params:
    return _of_dims(on, range(len(on.signature.operands[0].shape)), "base_dilation")


def _of_dims(on: _Windowed, dims: Sequence[int], dilation: str) -> Params:
    """`dims`: the operand's dimension of each window dimension; `dilation`: what it is called."""
    padding, base = list(on.signature.param("padding")), list(on.signature.param(dilation))
    for k, dim in enumerate(dims):
        span = on.spans.get((0, dim))
        if span is not None:
            padding[k] = _padding(on.reach(dim), span)
            base[k] = span.base
    return (("padding", tuple(padding)), (dilation, tuple(base)))


def _pad(on: _Windowed) -> Params:
    config = list(on.signature.param("padding_config"))
    for (_, dim), span in on.spans.items():
        low, high = _padding(on.reach(dim), span)
        config[dim] = (low, high, span.base - 1)
    return (("padding_config", tuple(config)),)


def _selection(on: _Windowed) -> Params:
    """The first window starts with the operand's first place: nothing is padded."""
    padding = list(on.signature.param("padding"))
    for _, dim in on.spans:
        padding[dim] = (0, 0)
    return (("padding", tuple(padding)),)


def _slice(on: _Windowed) -> Params:
    """A dimension that is cut starts at its first element; a whole one keeps its limits."""
    starts, limits = (
        list(on.signature.param("start_indices")),
        list(on.signature.param("limit_indices")),
    )
    for dim, index in enumerate(on.rule.results[0]):
        loop = index.variables[0]
        if (0, dim) in on.spans:
            starts[dim], limits[dim] = 0, on.reach(dim)
        elif on.blocks[loop] != on.rule.extents[loop]:
            limits[dim] = on.blocks[loop]
    return (("start_indices", tuple(starts)), ("limit_indices", tuple(limits)))


_PLACED: dict[str, Callable[[_Windowed], Params]] = {
    "rhs_dilation": _convolution,
    "base_dilation": _reduction,
    "padding_config": _pad,
    "limit_indices": _slice,
    "padding": _selection,
}
