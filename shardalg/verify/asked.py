"""What was asked for: the border of a program against the user's annotations."""

from __future__ import annotations

from collections.abc import Iterator

from shardalg.algebra.digits import Digits, canonical, overlap
from shardalg.algebra.sharding import Sharding
from shardalg.propagate.sharded import ShardedGraph
from shardalg.spmd.program import SpmdProgram
from shardalg.verify.contents import as_set
from shardalg.verify.report import Decided


def asked(sharded: ShardedGraph, program: SpmdProgram) -> Iterator[tuple[str, Decided]]:
    """Per annotated argument and result its name, and whether it lies as was asked for.

    An annotation inside is a wish for the layout of a value, whose elements every claim is about.
    """
    given, values = sharded.annotations, sharded.graph.values
    border = (
        ("arguments", sharded.graph.arguments, program.argument_shardings),
        ("results", sharded.graph.results, program.result_shardings),
    )
    orders = {(side, number): mesh for side, number, mesh in given.orders}
    for side, ends, layouts in border:
        rows = enumerate(zip(ends, getattr(given, side), layouts, strict=True))
        for number, (value, annotation, layout) in rows:
            if annotation is not None:
                words = f"it lies as it is annotated: {annotation.text()}"
                order = orders.get((side, number), sharded.mesh)
                there = layout.mesh == order or layout.is_replicated
                yield values[value].name, Decided(words, there and follows(layout, annotation))
            stated = () if annotation is None else annotation.priorities
            if any(layout.priorities) and layout.priorities != stated:
                words = "it takes part in completion from the rounds on that its annotation says"
                yield values[value].name, Decided(words, holds=False)
            if layout.manual or layout.unreduced:
                words = "nothing at the border belongs to a manual region, or is a partial sum"
                yield values[value].name, Decided(words, holds=False)


def follows(layout: Sharding, annotation: Sharding) -> bool:
    """Whether a layout is the annotated one, its open dimensions perhaps partitioned further.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh = Mesh({"x": 2, "y": 4})
    >>> layout = Sharding.from_axes([("x", "y"), None], mesh, (8, 8))
    >>> [follows(layout, Sharding.from_axes(e, mesh, (8, 8))) for e in (["x"], ["?"], [None, "x"])]
    [False, True, False]
    """
    if layout.shape != annotation.shape or as_set(layout.unreduced) != as_set(annotation.unreduced):
        return False
    pairs = enumerate(zip(layout.dims, annotation.dims, strict=True))
    kept = any(
        overlap(a, b) for digits in layout.dims for a in digits for b in annotation.replicated
    )
    return not kept and all(
        _refines(own, asked) if dim in annotation.unspecified_dims else _same(own, asked)
        for dim, (own, asked) in pairs
    )


def _same(own: Digits, asked: Digits) -> bool:
    return canonical(own) == canonical(asked)


def _refines(own: Digits, asked: Digits) -> bool:
    """`asked` are the major digits of `own`, of whose last one it may be the major part."""
    fine, coarse = canonical(own), canonical(asked)
    if not coarse or fine[: len(coarse)] == coarse:
        return True
    *before, last = coarse
    if len(fine) < len(coarse) or list(fine[: len(before)]) != before:
        return False
    other = fine[len(before)]
    top = last.stride * last.size == other.stride * other.size
    return top and last.stride % other.stride == 0
