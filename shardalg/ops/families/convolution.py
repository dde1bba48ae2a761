"""Convolution: `[n, i, (stride*o + dilation*r - low)/base], [f, i, r] -> [n, f, o]`, and groups."""

from __future__ import annotations

from dataclasses import dataclass

from shardalg.algebra.affine import Index
from shardalg.graph.ir import Signature
from shardalg.ops.families.building import Builder, access, record, scaling
from shardalg.ops.families.window import Taps, window_index
from shardalg.ops.rule import Rule


@dataclass(frozen=True)
class DimensionNumbers:
    """Dimensions of image, kernel and result: batch (or f), features, then the spatial ones."""

    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    out: tuple[int, ...]


@dataclass(frozen=True)
class Groups:
    """Features and batch in groups: a dimension `G*E` is the index `E*g + e`.

    Attributes:
      count: groups; by_batch: whether the batch is grouped (`batch_group_count`) or the features.
    """

    count: int
    by_batch: bool

    def index(self, loop: str, extent: int) -> Index:
        """Index of a dimension of `count * extent` elements."""
        if self.count == 1:
            return Index.of(loop)
        return Index.of("g") * max(extent, 1) + (loop if extent != 1 else 0)

    def alone(self, loop: str, extent: int) -> Index:
        """Index of a dimension of `extent` elements that another tensor has in groups."""
        return Index.of(loop) if self.count == 1 or extent != 1 else Index.of(0)


def conv_general_dilated(signature: Signature) -> tuple[Rule, ...]:
    """`[n, i, o+r-1], [f, i, r] -> [n, f, o] sum [i, r]`; its gradients are of this form too."""
    layout = numbers_of(signature)
    kernel = signature.operands[1].shape
    result = signature.results[0].shape
    by_feature = signature.param("feature_group_count")
    by_batch = signature.param("batch_group_count")
    groups = Groups(max(by_feature, by_batch), by_batch > 1)
    n, f, i = result[layout.out[0]], kernel[layout.rhs[0]] // groups.count, kernel[layout.rhs[1]]
    batch = groups.index("n", n) if groups.by_batch else Index.of("n")
    features = Index.of("i") if groups.by_batch else groups.index("i", i)
    inner = Index.of("i") if groups.by_batch else groups.alone("i", i)
    outer = groups.index("f", f)
    result_batch = groups.alone("n", n) if groups.by_batch else Index.of("n")
    windows, taps, extents = _spatial(signature, layout)
    maps = (
        _place(layout.lhs, (batch, features, *windows)),
        _place(layout.rhs, (outer, inner, *taps)),
        _place(layout.out, (result_batch, outer, *map(Index.of, extents["o"]))),
    )
    used = {v for dims in maps for index in dims for v in index.variables}
    sizes = {"n": n, "g": groups.count, "f": f, **extents["o"], "i": i, **extents["r"]}
    return (
        Rule(
            signature.primitive,
            tuple((name, size) for name, size in sizes.items() if name in used),
            ((access(0, maps[0]), access(1, maps[1])),),
            (maps[2],),
            **scaling(signature, 0, 1),
            flops=2,
            family="window",
        ),
    )


def _place(spec: tuple[int, ...], indices: tuple[Index, ...]) -> tuple[Index, ...]:
    """Indices in the order of the tensor's own dimensions."""
    found = dict(zip(spec, indices, strict=True))
    return tuple(found[d] for d in range(len(spec)))


def _spatial(
    signature: Signature, layout: DimensionNumbers
) -> tuple[list[Index], list[Index], dict[str, dict[str, int]]]:
    """Image indices, kernel indices, and extents of the output and tap loops."""
    result = signature.results[0].shape
    windows, taps = [], []
    extents: dict[str, dict[str, int]] = {"o": {}, "r": {}}
    for k, at_result in enumerate(layout.out[2:]):
        window = window_of(signature, layout, k)
        windows.append(window_index(k, window))
        taps.append(Index.of(f"r{k}" if window.count > 1 else 0))
        extents["o"][f"o{k}"] = result[at_result]
        if window.count > 1:
            extents["r"][f"r{k}"] = window.count
    return windows, taps, extents


def numbers_of(signature: Signature) -> DimensionNumbers:
    """Where a convolution has its dimensions."""
    return DimensionNumbers(*record(signature.param("dimension_numbers"), "lhs rhs out").values())


def window_of(signature: Signature, layout: DimensionNumbers, k: int) -> Taps:
    """The window along spatial dimension `k`."""
    param = signature.param
    return Taps(
        signature.operands[1].shape[layout.rhs[2 + k]],
        stride=param("window_strides")[k],
        dilation=param("rhs_dilation")[k],
        low=param("padding")[k][0],
        base=param("lhs_dilation")[k],
    )


ROWS: dict[str, Builder] = {"conv_general_dilated": conv_general_dilated}
