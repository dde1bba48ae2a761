"""Shifted, cumulated and windowed loops: slice, pad, reverse, cumsum, pooling."""

from __future__ import annotations

from dataclasses import dataclass

from shardalg.algebra.affine import Index
from shardalg.graph.ir import Signature
from shardalg.ops.families.build import Builder, access, indices, is_number, names
from shardalg.ops.rule import LOGSUMEXP, MAX, MIN, PICK, PRODUCT, SUM, USER, Access, Rule

CUMULATIVE = {
    "cumsum": SUM,
    "cumprod": PRODUCT,
    "cummax": MAX,
    "cummin": MIN,
    "cumlogsumexp": LOGSUMEXP,
}
POOLING = {"reduce_window_sum": SUM, "reduce_window_max": MAX, "reduce_window_min": MIN}


def slice_(signature: Signature) -> tuple[Rule, ...]:
    """`[2*d0+1] -> [d0]`."""
    shape = signature.results[0].shape
    starts = signature.param("start_indices")
    strides = signature.param("strides") or (1,) * len(shape)
    loops = names("d", len(shape))
    dims = [Index.of(d) * s + a for d, s, a in zip(loops, strides, starts, strict=True)]
    return (_shifted(signature, dims),)


def rev(signature: Signature) -> tuple[Rule, ...]:
    """`[n-1-d0] -> [d0]`."""
    shape, reversed_ = signature.operands[0].shape, signature.param("dimensions")
    loops = names("d", len(shape))
    dims = [
        Index.of(n - 1) - name if d in reversed_ else Index.of(name)
        for d, (name, n) in enumerate(zip(loops, shape, strict=True))
    ]
    return (_shifted(signature, dims),)


def _shifted(signature: Signature, dims: list[Index]) -> Rule:
    shape = signature.results[0].shape
    loops = names("d", len(shape))
    return Rule(
        signature.primitive,
        tuple(zip(loops, shape, strict=True)),
        ((access(0, dims),),),
        (indices(loops),),
        linear=frozenset({0}),
        family="window",
    )


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
    """`[d0, d1] -> [d0, d1] prefix sum d0`."""
    shape = signature.operands[0].shape
    loops = names("d", len(shape))
    combine = CUMULATIVE[signature.primitive]
    return (
        Rule(
            signature.primitive,
            tuple(zip(loops, shape, strict=True)),
            ((access(0, loops),),),
            (indices(loops),),
            combine,
            prefix=(loops[signature.param("axis")], bool(signature.param("reverse"))),
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
    """

    count: int
    stride: int
    dilation: int
    low: int
    base: int


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


def _pooled(signature: Signature, combine: str, init: Access | None) -> Rule:
    shape, window = signature.results[0].shape, signature.param("window_dimensions")
    param = dict(signature.params)
    low = tuple(pair[0] for pair in param["padding"])
    spaced = (param["window_strides"], param["window_dilation"], low, param["base_dilation"])
    taps = [Taps(*row) for row in zip(window, *spaced, strict=True)]
    dims = [window_index(d, t) for d, t in enumerate(taps)]
    loops = names("o", len(shape))
    tap_loops = {f"r{d}": t.count for d, t in enumerate(taps) if t.count > 1}
    results = len(signature.results)
    return Rule(
        signature.primitive,
        (*zip(loops, shape, strict=True), *tap_loops.items()),
        (tuple(access(k, dims) for k in range(results)),),
        (indices(loops),) * results,
        combine,
        init,
        local=frozenset(tap_loops),
        linear=frozenset({0} if combine == SUM else ()),
        flops=1,
        family="window",
    )


ROWS: dict[str, Builder] = {
    "slice": slice_,
    "rev": rev,
    "pad": pad,
    **dict.fromkeys(CUMULATIVE, cumulative),
    **dict.fromkeys(POOLING, reduce_window),
    "reduce_window": reduce_window_by,
}
