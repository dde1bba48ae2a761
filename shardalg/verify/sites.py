"""Annotations inside the function: whether the program holds the value just so, somewhere.

That is no part of "the program equals the function": an annotation inside is a wish, and a program
may go from what is before it to what is behind it without a stop (partial sums that are scattered
at once into what the next operator reads). So it is said of every one, and refutes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.propagate.sharded import ShardedGraph
from shardalg.spmd.program import SpmdProgram
from shardalg.verify.asked import follows
from shardalg.verify.contents import Contents, at_border, laid_out
from shardalg.verify.report import NOT_HELD, Claim

Layouts = dict[int, dict[Sharding, None]]
"""Graph value to the layouts in which a program holds it, in the order of the program."""


class Asked(NamedTuple):
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


def asked_sites(sharded: ShardedGraph) -> Iterator[Asked]:
    """Those of the function that have a layout, of their own or of a strategy."""
    given, graph = sharded.annotations, sharded.graph
    orders = {number: mesh for side, number, mesh in given.orders if side == "sites"}
    for number, (site, layout) in enumerate(zip(graph.sites, given.sites, strict=True)):
        if layout is not None:
            node = graph.nodes[site.node]
            values = node.results[0], node.operands[0]
            name = site.name or graph.values[values[0]].name
            yield Asked(name, values, layout, orders.get(number, sharded.mesh))


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
