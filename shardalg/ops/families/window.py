"""Shifted and windowed loops: slice, pad, reverse, concatenate, cumulative operators, convolution, pooling."""

from __future__ import annotations

from itertools import accumulate

from shardalg.algebra.affine import Index
from shardalg.graph.ir import Signature
from shardalg.ops.families.build import Builder, access, indices, is_number, names
from shardalg.ops.rule import LOGSUMEXP, MAX, MIN, PICK, PRODUCT, SUM, Rule

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
    dims = [(Index.of(d) - low).over(gap + 1) for d, (low, _, gap) in zip(loops, config, strict=True)]
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


def concatenate(signature: Signature) -> tuple[Rule, ...]:
    """`[d0] | [d0-10] -> [d0]`: the operands are alternatives, one of which exists."""
    shape, axis = signature.results[0].shape, signature.param("dimension")
    loops = names("d", len(shape))
    sizes = [value.shape[axis] for value in signature.operands]
    starts = accumulate([0, *sizes[:-1]])
    terms = tuple(
        (access(k, (Index.of(name) - start if d == axis else name for d, name in enumerate(loops))),)
        for k, start in enumerate(starts)
    )
    every = frozenset(range(len(sizes)) if is_number(signature.results[0].dtype) else ())
    return (
        Rule(
            signature.primitive,
            tuple(zip(loops, shape, strict=True)),
            terms,
            (indices(loops),),
            PICK,
            linear=every,
            addends=every,
            family="terms",
        ),
    )


def split(signature: Signature) -> tuple[Rule, ...]:
    """A row per result: `[s0] -> [s0]`, `[s1+10] -> [s1]`."""
    axis, sizes = signature.param("axis"), signature.param("sizes")
    starts = accumulate([0, *sizes[:-1]])
    return tuple(_piece(signature, k, axis=axis, start=start) for k, start in enumerate(starts))


def _piece(signature: Signature, k: int, *, axis: int, start: int) -> Rule:
    shape = signature.results[k].shape
    loops = [f"s{k}" if d == axis else f"d{d}" for d in range(len(shape))]
    dims = [Index.of(n) + start if d == axis else Index.of(n) for d, n in enumerate(loops)]
    return Rule(
        signature.primitive,
        tuple(zip(loops, shape, strict=True)),
        ((access(0, dims),),),
        (indices(loops),),
        linear=frozenset({0}),
        family="terms",
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


def window_index(o: str, r: str | None, *, stride: int, dilation: int, low: int, base: int) -> Index:
    """`(stride*o + dilation*r - low) / base`; no tap loop where the window has one tap."""
    index = Index.of(o) * stride - low
    return (index + Index.of(r) * dilation if r else index).over(base)


def reduce_window(signature: Signature) -> tuple[Rule, ...]:
    """`[o0, 2*o1+r1] -> [o0, o1] max [r1] local [r1]`."""
    shape, window = signature.results[0].shape, signature.param("window_dimensions")
    param = dict(signature.params)
    taps = [f"r{d}" if n > 1 else None for d, n in enumerate(window)]
    dims = [
        window_index(
            f"o{d}",
            taps[d],
            stride=param["window_strides"][d],
            dilation=param["window_dilation"][d],
            low=param["padding"][d][0],
            base=param["base_dilation"][d],
        )
        for d in range(len(shape))
    ]
    combine = POOLING[signature.primitive]
    loops = names("o", len(shape))
    extents = dict(zip(loops, shape, strict=True)) | {f"r{d}": n for d, n in enumerate(window) if n > 1}
    return (
        Rule(
            signature.primitive,
            tuple(extents.items()),
            ((access(0, dims),),),
            (indices(loops),),
            combine,
            local=frozenset(filter(None, taps)),
            linear=frozenset({0} if combine == SUM else ()),
            flops=1,
            family="window",
        ),
    )


ROWS: dict[str, Builder] = {
    "slice": slice_,
    "rev": rev,
    "pad": pad,
    "concatenate": concatenate,
    "split": split,
    **dict.fromkeys(CUMULATIVE, cumulative),
    **dict.fromkeys(POOLING, reduce_window),
}
