"""Shifted, cumulated and windowed loops: slice, pad, reverse, cumsum, pooling."""

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
# What is never selected, by the primitive that compares.
NEVER = {"ge": MAX, "gt": MAX, "le": MIN, "lt": MIN}
POOLING = {"reduce_window_sum": SUM, "reduce_window_max": MAX, "reduce_window_min": MIN}


def slice_(signature: Signature) -> tuple[Rule, ...]:
    """`[2*d0+1] -> [d0]`."""
    shape = signature.results[0].shape
    starts = signature.param("start_indices")
    strides = signature.param("strides") or (1,) * len(shape)
    loops = names("d", len(shape))
    dims = [Index.of(d) * s + a for d, s, a in zip(loops, strides, starts, strict=True)]
    return (moved_row(signature, loops, dims=dims, family="window"),)


def rev(signature: Signature) -> tuple[Rule, ...]:
    """`[n-1-d0] -> [d0]`."""
    shape, reversed_ = signature.operands[0].shape, signature.param("dimensions")
    loops = names("d", len(shape))
    dims = [
        Index.of(n - 1) - name if d in reversed_ else Index.of(name)
        for d, (name, n) in enumerate(zip(loops, shape, strict=True))
    ]
    return (moved_row(signature, loops, dims=dims, family="window"),)


def pad(signature: Signature) -> tuple[Rule, ...]:
    """`[(d0-low)/(interior+1)] -> [d0] pick init []`."""
    shape, config = signature.results[0].shape, signature.param("padding_config")
    loops = names("d", len(shape))
    pairs = zip(loops, config, strict=True)
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
    """`[d0, d1] -> [d0, d1] prefix sum d0`; without elements nothing is carried on."""
    shape = signature.operands[0].shape
    loops = names("d", len(shape))
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
    """One dimension of a window.

    `count` taps `dilation` apart, every `stride` positions of an operand that is padded by `low`
    in front and dilated by `base`.

    Raises:
      RuleError: a stride or a dilation below one, as JAX traces none.
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
    """`(stride*o + dilation*r - low) / base`; no tap loop where the window has one tap.

    >>> print(window_index(0, Taps(3, stride=2, dilation=1, low=1, base=1)))
    2*o0+r0-1
    """
    index = Index.of(f"o{dim}") * taps.stride - taps.low
    tap = Index.of(f"r{dim}") * taps.dilation if taps.count > 1 else 0
    return (index + tap).over(taps.base)


def reduce_window(signature: Signature) -> tuple[Rule, ...]:
    """`[o0, 2*o1+r1] -> [o0, o1] max [r1] local [r1]`."""
    combine = POOLING[signature.primitive]
    return (_pooled(signature, combine, None),)


def reduce_window_by(signature: Signature) -> tuple[Rule, ...]:
    """The same with a function of the user, several operands, and a start value for each."""
    return (_pooled(signature, USER, access(len(signature.results), ())),)


def select_and_gather_add(signature: Signature) -> tuple[Rule, ...]:
    """`[2*o+r], [2*o+r] -> [o] user [r] local [r]`: the first operand where the second is best.

    It starts from 0 and the infinity that loses, which a window of such infinities alone keeps.
    Nothing is better than a NaN by `ge`, and what comes after it takes its place: behind a NaN at
    the end of the tensor the padding of a partitioned window (0), on one device that element.
    """
    never = _never(signature)
    vacant = ((0, SUM), (1, never)) if never else ()
    return (replace(_pooled(signature, USER, None), vacant=vacant),)


def _never(signature: Signature) -> str | None:
    """The way to combine whose identity loses every comparison; it may tie with itself alone."""
    select = signature.param("select_prim")
    return NEVER.get(select[1].removeprefix("primitive:")) if select else None


def _pooled(signature: Signature, combine: str, init: Access | None) -> Rule:
    shape = signature.results[0].shape
    taps = _taps(signature)
    dims = [window_index(d, t) for d, t in enumerate(taps)]
    loops = names("o", len(shape))
    tap_loops = {f"r{d}": t.count for d, t in enumerate(taps) if t.count > 1}
    starts = 0 if init is None else len(signature.results)
    return Rule(
        signature.primitive,
        (*zip(loops, shape, strict=True), *tap_loops.items()),
        (tuple(access(k, dims) for k in range(len(signature.operands) - starts)),),
        (indices(loops),) * len(signature.results),
        combine,
        init,
        local=frozenset(tap_loops),
        linear=frozenset({0} if combine == SUM else ()),
        flops=1,
        family="window",
    )


def _taps(signature: Signature) -> list[Taps]:
    """The window along each dimension."""
    param = dict(signature.params)
    window, ones = param["window_dimensions"], (1,) * len(param["window_dimensions"])
    dilations = [param.get(name, ones) for name in ("window_dilation", "base_dilation")]
    low = tuple(pair[0] for pair in param["padding"])
    spaced = (param["window_strides"], dilations[0], low, dilations[1])
    return [Taps(*row) for row in zip(window, *spaced, strict=True)]


def select_and_scatter_add(signature: Signature) -> tuple[Rule, ...]:
    """`[(i-r)/2], [i+q-r] -> [i] sum [r] local [r] whole [q]`: the gradient of a pooling.

    Element i is tap r of the window at `i - r`; it takes that window's source if it is the best
    of the window's taps q, which the point gets as one block.
    """
    return (_selected(signature, (0, 1), SUM, None),)


def select_and_scatter(signature: Signature) -> tuple[Rule, ...]:
    """The same with functions of the user, and a start value; the operand comes first."""
    return (_selected(signature, (1, 0), USER, access(2, ())),)


def _selected(
    signature: Signature, operands: tuple[int, int], combine: str, init: Access | None
) -> Rule:
    """Row of a select-and-scatter whose (source, operand) stand at these positions."""
    shape = signature.results[0].shape
    loops = [(f"d{d}", n) for d, n in enumerate(shape)]
    source, block = [], []
    inner: dict[str, int] = {}
    never = _never(signature)
    for d, taps in enumerate(_taps(signature)):
        moves = (taps.count, taps.stride, taps.low) != (1, 1, 0)
        inner |= {f"r{d}": taps.count, f"q{d}": taps.count} if moves else {}
        first = Index.of(f"d{d}") - (f"r{d}" if moves else 0)
        source.append((first + taps.low).over(taps.stride))
        block.append(first + (f"q{d}" if moves else 0))
    return Rule(
        signature.primitive,
        (*loops, *inner.items()),
        (tuple(access(k, m) for k, m in sorted(zip(operands, (source, block), strict=True))),),
        (indices(name for name, _ in loops),),
        combine,
        init,
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
