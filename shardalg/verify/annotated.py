"""Claims about annotations: the border of the program, and annotated values inside the function.

Border shardings must be the annotated ones. An annotation inside the function is a wish: a program
may go from the value before it to the value after it without ever holding this sharding (for
example when partial sums are scattered directly into the next operator's sharding). Each one is
reported as satisfied or not, and none refutes the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from shardalg.algebra.digits import Digits, canonical, overlap
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.planner.propagate.sharded import ShardedGraph
from shardalg.spmd.program import SpmdProgram
from shardalg.verify.contents import Contents, border_contents, layout_contents, unordered_digits
from shardalg.verify.report import NOT_HELD, Claim, Decided


def border_claims(sharded: ShardedGraph, program: SpmdProgram) -> Iterator[tuple[str, Decided]]:
    """Yield (name, claim) for every argument and result with an annotated sharding.

    The claim is that the program's sharding satisfies the annotation. Two other claims are yielded
    only where they fail: a priority that no annotation states, and a manual or unreduced sharding
    of an argument or a result.
    """
    annotations, values = sharded.annotations, sharded.graph.values
    border = (
        ("arguments", sharded.graph.arguments, program.argument_shardings),
        ("results", sharded.graph.results, program.result_shardings),
    )
    mesh_of = {(side, number): mesh for side, number, mesh in annotations.orders}
    for side, end_values, layouts in border:
        numbered = enumerate(zip(end_values, getattr(annotations, side), layouts, strict=True))
        for number, (value, annotation, layout) in numbered:
            if annotation is not None:
                words = f"its sharding is the annotated one: {annotation.text()}"
                wanted_mesh = mesh_of.get((side, number), sharded.mesh)
                # A replicated value is the same on every device, so it fits any device order.
                has_device_order = layout.mesh == wanted_mesh or layout.is_replicated
                yield (
                    values[value].name,
                    Decided(words, has_device_order and satisfies(layout, annotation)),
                )
            wanted_priorities = () if annotation is None else annotation.priorities
            if any(layout.priorities) and layout.priorities != wanted_priorities:
                words = "its priorities are those of its annotation"
                yield values[value].name, Decided(words, holds=False)
            if layout.manual or layout.unreduced:
                words = "no border sharding is of a manual region or of a partial sum"
                yield values[value].name, Decided(words, holds=False)


def satisfies(layout: Sharding, annotation: Sharding) -> bool:
    """Return whether a sharding is the annotated one, with more splits of open dimensions only.

    In the example, `["x"]` allows no further split, `["?"]` is open, and `[None, "x"]` shards the
    other dimension.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh = Mesh({"x": 2, "y": 4})
    >>> layout = Sharding.from_axes([("x", "y"), None], mesh, (8, 8))
    >>> entries = ["x"], ["?"], [None, "x"]
    >>> [satisfies(layout, Sharding.from_axes(entry, mesh, (8, 8))) for entry in entries]
    [False, True, False]
    """
    if layout.shape != annotation.shape or unordered_digits(layout.unreduced) != unordered_digits(
        annotation.unreduced
    ):
        return False
    pairs = enumerate(zip(layout.dims, annotation.dims, strict=True))
    # An annotation may name axes along which the value must be replicated. Then no dimension may be
    # sharded along them, not even an open one.
    uses_replicated_axes = any(
        overlap(a, b) for digits in layout.dims for a in digits for b in annotation.replicated
    )
    return not uses_replicated_axes and all(
        _refines(own, requested)
        if dim in annotation.unspecified_dims
        else canonical(own) == canonical(requested)
        for dim, (own, requested) in pairs
    )


def _refines(own: Digits, requested: Digits) -> bool:
    """Return whether `own` splits a dimension as `requested` does, and perhaps further.

    Then `requested` are the major digits of `own`. The last requested digit may be the major part
    of one digit of `own`.
    """
    fine, coarse = canonical(own), canonical(requested)
    if not coarse or fine[: len(coarse)] == coarse:
        return True
    # Digits are written major first. Splits behind the requested ones refine the blocks, and any
    # other digit before the last one would give other blocks.
    *before, last = coarse
    if len(fine) < len(coarse) or list(fine[: len(before)]) != before:
        return False
    containing = fine[len(before)]
    # Digit (stride 4, size 2) is the major part of (stride 1, size 8): both end at position 8.
    same_end = last.stride * last.size == containing.stride * containing.size
    return same_end and last.stride % containing.stride == 0


SiteShardings = dict[int, dict[Sharding, None]]
"""Graph value to the shardings in which a program holds it, in the order of the program."""


class AnnotatedSite(NamedTuple):
    """A place inside the function at which the user or a strategy annotates a value.

    Attributes:
      name: name of the site, or of the value that it marks.
      values: the marked value and the site's operand, which have the same numbers.
      layout, order: the annotated sharding, and the mesh with the annotated device order.
    """

    name: str
    values: tuple[int, int]
    layout: Sharding
    order: Mesh


def annotated_sites(sharded: ShardedGraph) -> Iterator[AnnotatedSite]:
    """Yield the sites of the function that have a sharding, from the code or from a strategy.

    A site is a named place in the function at which a sharding may be asked for. Its values are
    those before and after the annotation, which are equal numbers.
    """
    annotations, graph = sharded.annotations, sharded.graph
    mesh_of = {number: mesh for side, number, mesh in annotations.orders if side == "sites"}
    for number, (site, layout) in enumerate(zip(graph.sites, annotations.sites, strict=True)):
        if layout is not None:
            node = graph.nodes[site.node]
            values = node.results[0], node.operands[0]
            name = site.name or graph.values[values[0]].name
            yield AnnotatedSite(name, values, layout, mesh_of.get(number, sharded.mesh))


class SiteLayouts:
    """A collector of the shardings in which a program holds the values of annotated sites.

    Attributes:
      layouts: per value of a site, the shardings that were found so far.
    """

    def __init__(self, program: SpmdProgram, sharded: ShardedGraph | None = None) -> None:
        self.program = program
        self.sites = tuple(annotated_sites(sharded)) if sharded else ()
        self.layouts: SiteShardings = {value: {} for site in self.sites for value in site.values}

    def add(self, held: Iterable[tuple[int, Contents]]) -> None:
        """Record the shardings of locals that hold a site's value, complete or as partial sums.

        Args:
          held: pairs of a local value's number and its contents.
        """
        for local, contents in held if self.layouts else ():
            if contents.value in self.layouts:
                local_type = self.program.locals[local]
                expected = layout_contents(
                    local_type.sharding, local_type.sharding.shard_shape, contents.value
                )
                # A local that holds other elements than its sharding says, as a halo does, is no
                # copy of the site's value.
                if border_contents(contents) == expected:
                    self.layouts[contents.value][local_type.sharding] = None

    def claims(self) -> Iterator[Claim]:
        """Yield one claim per annotated site.

        It is "proved" if the program holds the site's value in the annotated sharding at some
        point. Otherwise it is "not_held", and states the shardings that the program has.
        """
        for name, values, layout, mesh in self.sites:
            # A sharding constraint computes nothing: its operand and its result are the same
            # numbers, so the annotation is met if either has the sharding.
            held_layouts = [s for value in values for s in self.layouts[value]]
            is_held = any(
                satisfies(s, layout) and (s.mesh == mesh or s.is_replicated) for s in held_layouts
            )
            words = f"the program has it in the annotated sharding: {layout.text()}"
            if not is_held:
                others = ", ".join(dict.fromkeys(s.text() for s in held_layouts))
                words += (
                    f" (it holds it only as {others})" if held_layouts else " (it never holds it)"
                )
            yield Claim(name, "site", "proved" if is_held else NOT_HELD, words=words)
