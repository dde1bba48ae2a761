"""Rows of operators with shifted, cumulative or windowed loops: slice, pad, cumsum, pooling.

Docstrings show a row as `operand indices -> result indices`, one index per dimension.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardalg.algebra.affine import Index
from shardalg.errors import RuleError
from shardalg.graph.ir import Signature
from shardalg.graph.ops.families.building import (
    Builder,
    access,
    indices,
    is_number,
    moved_row,
    names,
)
from shardalg.graph.ops.rule import LOGSUMEXP, MAX, MIN, PICK, PRODUCT, SUM, USER, Access, Rule

CUMULATIVE = {
    "cumsum": SUM,
    "cumprod": PRODUCT,
    "cummax": MAX,
    "cummin": MIN,
    "cumlogsumexp": LOGSUMEXP,
}
NEVER = {"ge": MAX, "gt": MAX, "le": MIN, "lt": MIN}
"""By the comparison of a pooling, the operation whose identity the comparison never selects.

Padding is filled with this identity.
"""
POOLING = {"reduce_window_sum": SUM, "reduce_window_max": MAX, "reduce_window_min": MIN}


def slice_(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a slice, such as `[2*d0+1] -> [d0]` for start 1 and stride 2."""
    shape = signature.results[0].shape
    starts = signature.param("start_indices")
    strides = signature.param("strides") or (1,) * len(shape)
    loops = names("d", len(shape))
    dims = [Index.of(d) * s + a for d, s, a in zip(loops, strides, starts, strict=True)]
    return (moved_row(signature, loops, dims=dims, family="window"),)


def rev(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a reversal, such as `[n-1-d0] -> [d0]`."""
    shape, reversed_ = signature.operands[0].shape, signature.param("dimensions")
    loops = names("d", len(shape))
    dims = [
        Index.of(n - 1) - name if d in reversed_ else Index.of(name)
        for d, (name, n) in enumerate(zip(loops, shape, strict=True))
    ]
    return (moved_row(signature, loops, dims=dims, family="window"),)


def pad(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a pad: `[(d0-low)/(interior+1)] -> [d0] pick init []`.

    Result elements without an operand element have the start value, the scalar operand 1.
    """
    shape, config = signature.results[0].shape, signature.param("padding_config")
    loops = names("d", len(shape))
    pairs = zip(loops, config, strict=True)
    # Element j of the result is element (j - low)/(gap + 1) of the operand, if that is an integer.
    dims = [(Index.of(d) - low).over(gap + 1) for d, (low, _, gap) in pairs]
    both = frozenset({0, 1} if is_number(signature.results[0].dtype) else ())
    return (
        Rule(
            signature.primitive,
            tuple(zip(loops, shape, strict=True)),
            ((access(0, dims),),),
            (indices(loops),),
            PICK,
            access(1, ()),
            linear=both,
            addends=both,
            family="window",
        ),
    )


def cumulative(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a cumulative operator, such as `[d0, d1] -> [d0, d1] prefix sum d0`.

    An empty dimension has no prefix loop.
    """
    shape = signature.operands[0].shape
    loops = names("d", len(shape))
    # The loop along `axis` is also in the result: element i combines the operand's elements 0 to i,
    # or from i to the last one if `reverse` is set.
    combine, axis = CUMULATIVE[signature.primitive], signature.param("axis")
    carried = () if shape[axis] == 0 else (loops[axis], bool(signature.param("reverse")))
    return (
        Rule(
            signature.primitive,
            tuple(zip(loops, shape, strict=True)),
            ((access(0, loops),),),
            (indices(loops),),
            combine,
            prefix=carried or None,
            linear=frozenset({0} if combine == SUM else ()),
            flops=1,
            family="prefix",
        ),
    )


@dataclass(frozen=True)
class Taps:
    """The window of a pooling or a convolution along one dimension.

    The window has `count` taps at a distance of `dilation`, and moves by `stride` from one result
    element to the next. The operand is padded by `low` in front and dilated by `base`.

    Raises:
      RuleError: a stride or a dilation is below 1. JAX traces no such window.
    """

    count: int
    stride: int
    dilation: int
    low: int
    base: int

    def __post_init__(self) -> None:
        if min(self.stride, self.dilation, self.base) < 1:
            raise RuleError(f"{self}: strides and dilations of a window are 1 or more.")


def window_index(dim: int, taps: Taps) -> Index:
    """Return the operand's index in a windowed dimension: `(stride*o + dilation*r - low) / base`.

    o is the position of the window and r the tap. A window of one tap has no loop r.

    Args:
      dim: the number of the dimension, which the loops have in their names.

    >>> print(window_index(0, Taps(3, stride=2, dilation=1, low=1, base=1)))
    2*o0+r0-1
    """
    index = Index.of(f"o{dim}") * taps.stride - taps.low
    tap = Index.of(f"r{dim}") * taps.dilation if taps.count > 1 else 0
    return (index + tap).over(taps.base)


def reduce_window(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a pooling, such as `[o0, 2*o1+r1] -> [o0, o1] max [r1] local [r1]`."""
    combine = POOLING[signature.primitive]
    return (_pooling_row(signature, combine, None),)


def reduce_window_by(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a `reduce_window` by a user's function, with one or more operands.

    For each operand there is a start value, which is an operand too.
    """
    return (_pooling_row(signature, USER, access(len(signature.results), ())),)


def select_and_gather_add(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a `select_and_gather_add`: `[2*o+r], [2*o+r] -> [o] user [r] local [r]`.

    The result is the element of the first operand at the position where the second is best. It
    starts from 0 and from the infinity that loses each comparison. A window of such infinities
    therefore gives 0.

    A NaN of the second operand is replaced by the next element, because no number compares with it.
    If a NaN is at the end of the tensor, a partitioned window replaces it by padding (0), and one
    device keeps the NaN's element.
    """
    never = _never_selected(signature)
    vacant = ((0, SUM), (1, never)) if never else ()
    return (replace(_pooling_row(signature, USER, None), vacant=vacant),)


def _never_selected(signature: Signature) -> str | None:
    """Return the operation whose identity the node's comparison never selects.

    For example, `ge` selects the largest element, so it never selects the identity of a maximum,
    except from elements that are all equal to it. None for a user's comparison.
    """
    select = signature.param("select_prim")
    return NEVER.get(select[1].removeprefix("primitive:")) if select else None


def _pooling_row(signature: Signature, combine: str, init: Access | None) -> Rule:
    """Return the row of a pooling.

    Args:
      combine: the operation that combines the elements of a window.
      init: the read of the first start value; None if there are none. Start values are the last
        operands.
    """
    shape = signature.results[0].shape
    taps = _taps(signature)
    dims = [window_index(d, t) for d, t in enumerate(taps)]
    loops = names("o", len(shape))
    # Tap loops are local: the elements of a window are combined on one device.
    tap_loops = {f"r{d}": t.count for d, t in enumerate(taps) if t.count > 1}
    starts = 0 if init is None else len(signature.results)
    # All operands except start values are read at the same elements. All results have an element
    # per window.
    return Rule(
        signature.primitive,
        loops=(*zip(loops, shape, strict=True), *tap_loops.items()),
        terms=(tuple(access(k, dims) for k in range(len(signature.operands) - starts)),),
        results=(indices(loops),) * len(signature.results),
        combine=combine,
        init=init,
        local=frozenset(tap_loops),
        linear=frozenset({0} if combine == SUM else ()),
        flops=1,
        family="window",
    )


def _taps(signature: Signature) -> list[Taps]:
    """Return the window of a pooling along each dimension.

    A window has the size, stride, dilations and low padding that a tap's index needs.
    """
    param = dict(signature.params)
    window, ones = param["window_dimensions"], (1,) * len(param["window_dimensions"])
    dilations = [param.get(name, ones) for name in ("window_dilation", "base_dilation")]
    low = tuple(pair[0] for pair in param["padding"])
    # A `select_and_scatter` has no dilations. The order is the one of the fields of `Taps`.
    fields = (param["window_strides"], dilations[0], low, dilations[1])
    return [Taps(*row) for row in zip(window, *fields, strict=True)]


def select_and_scatter_add(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of the gradient of a pooling, a `select_and_scatter_add`.

    For stride 2 it is `[(i-r)/2], [i+q-r] -> [i] sum [r] local [r] whole [q]`. Element i is tap r
    of the window at `i - r`. It receives the window's source element (operand 0) if it is the best
    of the window's taps q. All taps are compared at once, so q is whole.
    """
    return (_selection_row(signature, (0, 1), SUM, None),)


def select_and_scatter(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a `select_and_scatter` by a user's functions and with a start value.

    Its operands are the windowed operand, the source and the start value.
    """
    return (_selection_row(signature, (1, 0), USER, access(2, ())),)


def _selection_row(
    signature: Signature, operands: tuple[int, int], combine: str, init: Access | None
) -> Rule:
    """Return the row of a `select_and_scatter_add` or `select_and_scatter`.

    It adds each element of the source to the best element of a window of the windowed operand.

    Args:
      operands: positions of the source and of the windowed operand.
      combine: the operation that combines source elements at one position.
      init: the read of the start value; None for the identity of `combine`.
    """
    shape = signature.results[0].shape
    loops = [(f"d{d}", n) for d, n in enumerate(shape)]
    source, block = [], []
    inner: dict[str, int] = {}
    never = _never_selected(signature)
    for d, taps in enumerate(_taps(signature)):
        # A window of one tap, with stride 1 and without padding, contains only element d itself:
        # no other tap can be selected, so no loop compares taps.
        moves = (taps.count, taps.stride, taps.low) != (1, 1, 0)
        inner |= {f"r{d}": taps.count, f"q{d}": taps.count} if moves else {}
        # Element d is tap r of the window that starts at d - r. Window o starts at
        # `stride*o - low`, so the source is read at o = (d - r + low)/stride, if that is whole.
        first = Index.of(f"d{d}") - (f"r{d}" if moves else 0)
        source.append((first + taps.low).over(taps.stride))
        block.append(first + (f"q{d}" if moves else 0))
    reads = sorted(zip(operands, (source, block), strict=True))
    return Rule(
        signature.primitive,
        loops=(*loops, *inner.items()),
        terms=(tuple(access(operand, dims) for operand, dims in reads),),
        results=(indices(name for name, _ in loops),),
        combine=combine,
        init=init,
        whole=frozenset(name for name in inner if name[0] == "q"),
        local=frozenset(name for name in inner if name[0] == "r"),
        linear=frozenset({operands[0]} if combine == SUM else ()),
        flops=1,
        vacant=((operands[1], never),) if never else (),
        family="selection",
    )


ROWS: dict[str, Builder] = {
    "slice": slice_,
    "rev": rev,
    "pad": pad,
    **dict.fromkeys(CUMULATIVE, cumulative),
    **dict.fromkeys(POOLING, reduce_window),
    "reduce_window": reduce_window_by,
    "select_and_gather_add": select_and_gather_add,
    "select_and_scatter": select_and_scatter,
    "select_and_scatter_add": select_and_scatter_add,
}
