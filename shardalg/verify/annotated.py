"""What was asked for: the border of a program against the user's annotations.

Annotations inside the function: whether the program holds the value just so, somewhere.

That is no part of "the program equals the function": an annotation inside is a wish, and a program
may go from what is before it to what is behind it without a stop (partial sums that are scattered
at once into what the next operator reads). So it is said of every one, and refutes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from shardalg.algebra.digits import Digits, canonical, overlap
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.planner.propagate.sharded import ShardedGraph
from shardalg.spmd.program import SpmdProgram
from shardalg.verify.contents import Contents, as_set, at_border, laid_out
from shardalg.verify.report import NOT_HELD, Claim, Decided


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


Layouts = dict[int, dict[Sharding, None]]
"""Graph value to the layouts in which a program holds it, in the order of the program."""


class AnnotatedSite(NamedTuple):
    """An annotated site.

    Attributes:
      name: the site's, or that of the value it marks.
      values: what the site marks, and what it is put on, which are the same numbers.
      layout, order: what was asked for, and in which order of the devices.
    """

    name: str
    values: tuple[int, int]
    layout: Sharding
    order: Mesh


def asked_sites(sharded: ShardedGraph) -> Iterator[AnnotatedSite]:
    """Those of the function that have a layout, of their own or of a strategy."""
    given, graph = sharded.annotations, sharded.graph
    orders = {number: mesh for side, number, mesh in given.orders if side == "sites"}
    for number, (site, layout) in enumerate(zip(graph.sites, given.sites, strict=True)):
        if layout is not None:
            node = graph.nodes[site.node]
            values = node.results[0], node.operands[0]
            name = site.name or graph.values[values[0]].name
            yield AnnotatedSite(name, values, layout, orders.get(number, sharded.mesh))


class Seen:
    """The layouts in which a program holds the values of annotated sites.

    Attributes:
      layouts: of all values that a site is about.
    """

    def __init__(self, program: SpmdProgram, sharded: ShardedGraph | None = None) -> None:
        self.program = program
        self.sites = tuple(asked_sites(sharded)) if sharded else ()
        self.layouts: Layouts = {value: {} for site in self.sites for value in site.values}

    def add(self, held: Iterable[tuple[int, Contents]]) -> None:
        """Notes the locals that hold all of such a value, finished or as partial sums."""
        for local, contents in held if self.layouts else ():
            if contents.value in self.layouts:
                made = self.program.locals[local]
                wanted = laid_out(made.sharding, made.sharding.shard_shape, contents.value)
                if at_border(contents) == wanted:
                    self.layouts[contents.value][made.sharding] = None

    def claims(self) -> Iterator[Claim]:
        """Per annotated site: proved, or not held, and how the value is held instead."""
        for name, values, layout, order in self.sites:
            found = [s for value in values for s in self.layouts[value]]
            right = any(follows(s, layout) and (s.mesh == order or s.is_replicated) for s in found)
            words = f"the program holds it as it is annotated: {layout.text()}"
            if not right:
                instead = ", ".join(dict.fromkeys(s.text() for s in found))
                words += f" (it holds it only as {instead})" if found else " (it never holds it)"
            yield Claim(name, "site", "proved" if right else NOT_HELD, words=words)
