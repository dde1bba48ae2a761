"""Where a plan with named sizes is the same plan: all that planning ever asked of the sizes.

The plan is made once more, on sizes that keep a record (`sizes.recorded`) in place of the hints.
What planning compares is thus complete by construction; `at` checks it at a point in a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import zip_longest
from typing import Any, NamedTuple

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.costs.memory import peak_place
from shardalg.costs.symbolic import Size, Sizes, Symbolised
from shardalg.graph.ir import Graph, Node, Params, Signature, ValueType
from shardalg.partition.emit.recipe import Recipe
from shardalg.partition.partition import Partitioner, partition
from shardalg.pause import collection_paused
from shardalg.planning.stages import Stages, completed
from shardalg.propagate.options import Options
from shardalg.propagate.sharded import Layouts
from shardalg.sizes.decided import Guards, recorder
from shardalg.sizes.facts import ZERO, Fact
from shardalg.sizes.formula import Formula, FormulaError, symbol
from shardalg.sizes.recorded import Recorder
from shardalg.spmd.instruction import Block
from shardalg.spmd.program import SpmdProgram
from shardalg.symbolic.retrace import Retrace


def guards(
    stages: Stages, options: Options, named: Callable[[], Symbolised | None]
) -> tuple[Guards | None, str]:
    """What ties a plan to its hints, and why that is not known where it is not.

    Where it holds, no decision is another one. It says nothing of what Python code decides on a
    size while it is traced; a second trace found none (`symbols.name_sizes`). Where a size was made
    in Python, all dimensions are held at their hints.

    Args:
      named: the program with a formula for each of its sizes; asked for once.
    """
    if options.policy == "cost":
        return None, "the plan was chosen by cost, which compares more than is kept"
    try:
        formulas = named()
        return (
            (None, "no size has a name") if formulas is None else _found(stages, options, formulas)
        )
    except FormulaError as error:
        return None, str(error)


def _found(stages: Stages, options: Options, named: Symbolised) -> tuple[Guards | None, str]:
    recorded = recorder(named.sizes.hints)
    sizes = _Sizes(stages, named.sizes, recorded)
    try:
        with collection_paused():
            program = _planned_again(stages, options, sizes)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # Code of planning that computes what a record cannot follow.
        return None, f"planning on recorded sizes ends with {type(error).__name__}: {error}"
    lines = (p.text(stages.graph).splitlines() for p in (program, stages.program))
    for again, first in zip_longest(*(tuple(text)[1:] for text in lines), fillvalue=""):
        if again != first:
            return None, f"planning on recorded sizes gives {again.strip()}, not {first.strip()}"
    facts = (*(one.fact for one in named.conditions), *sizes.held())
    return Guards(recorded, facts), ""


PEAK = "peak"


class Asked(NamedTuple):
    """What a question is about that the run itself asks: the part of `plan.changes` and the node.

    Attributes:
      kind: "sharding", "collectives" or `PEAK`.
      node: None at the program's border, and of what is not about one node.
    """

    kind: str
    node: int | None = None


def _planned_again(stages: Stages, options: Options, sizes: _Sizes) -> SpmdProgram:
    """All of planning that `at` compares, on recorded sizes."""
    from shardalg.symbolic.symbols import annotations_at

    recorded, axes = sizes.recorded, sizes.sizes.axes
    recorded.about = Asked("sharding")
    mesh = stages.mesh.resized({name: recorded.size(axis) for name, axis in axes.items()})
    graph = sizes.graph()
    sharded = completed(graph, annotations_at(stages.annotations, graph, mesh), options)
    program = partition(sharded, stages.traced.roles, options, partial(_Telling, recorded))
    recorded.about = Asked(PEAK)
    peak_place(program, graph, stages.traced.donated)
    return program


class _Telling(Partitioner):
    """A partitioner that tells the recorder which node it asks for."""

    def __init__(self, recorder: Recorder, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recorder = recorder

    def _tell(self, node: Node | None) -> None:
        self.recorder.about = Asked("collectives", None if node is None else node.index)

    def _entered(self, value: int, order: Mesh | None) -> int:
        self._tell(None)
        return super()._entered(value, order)

    def _left(self, value: int, layout: Sharding) -> int:
        self._tell(None)
        return super()._left(value, layout)

    def _recipe(self, node: Node) -> Recipe:
        self._tell(node)
        return super()._recipe(node)

    def _call(self, node: Node) -> None:
        self._tell(node)
        super()._call(node)

    def _body(self, node: Node, body: int, layouts: tuple[Layouts, Layouts]) -> Block:
        made = super()._body(node, body, layouts)
        self._tell(node)
        return made


@dataclass(eq=False)
class _Sizes:
    """A graph with recorded sizes, in its shapes, trip counts and parameters."""

    stages: Stages
    sizes: Sizes
    recorded: Recorder
    is_bound: bool = False

    @cached_property
    def second(self) -> Retrace | None:
        """The function at other sizes, which tells what its parameters are."""
        symbols = self.stages.symbols
        if symbols.tracer is None or symbols.constants:
            return None
        return Retrace(symbols.tracer(symbols.second), symbols.second)

    def held(self) -> Iterator[Fact]:
        """Sizes that stay at their hints: of manual axes; all where one is no formula."""
        for axis in sorted(self.stages.graph.traced_axes & self.sizes.axes.keys()):
            yield Fact(symbol(axis) - self.sizes.hints[axis], ZERO)
        if self.second is None or self.is_bound:
            for name, size in self.stages.symbols.sizes.items():
                yield Fact(symbol(name) - size.hint, ZERO)

    def graph(self) -> Graph:
        """The graph at the hints, every size of which is recorded."""
        graph = self.stages.graph
        if self.second is None:
            return graph
        values = tuple(
            replace(v, type=ValueType(tuple(map(self.recorded.size, dims)), v.type.dtype))
            for v, dims in zip(graph.values, self.sizes.dims, strict=True)
        )
        types = [value.type for value in values]
        signatures: dict[Any, Signature] = {}
        nodes = []
        for node, other in zip(graph.nodes, self.second.graph.nodes, strict=True):
            ends = tuple(tuple(types[v] for v in side) for side in (node.operands, node.results))
            key = (node.signature, ends)
            if key not in signatures:
                made = Signature(node.primitive, self.params(node, other), *ends)
                signatures[key] = made
            nodes.append(replace(node, signature=signatures[key]))
        trips = zip(graph.regions, self.sizes.trips, strict=True)
        regions = tuple(replace(r, trip_count=self.recorded.size(n)) for r, n in trips)
        return replace(graph, values=values, nodes=tuple(nodes), regions=regions)

    def params(self, node: Node, other: Node) -> Params:
        """A node's parameters; numbers that are others in the second trace become formulas."""
        values = (*node.operands, *node.results)
        near = [*(n for v in values for n in self.sizes.dims[v]), *self.sizes.trips]
        known = tuple(dict.fromkeys(n for n in near if type(n) is Formula))
        pairs = zip(node.signature.params, other.signature.params, strict=True)
        return tuple((name, self.param((here, there), known)) for (name, here), (_, there) in pairs)

    def param(self, pair: tuple[Any, Any], known: tuple[Formula, ...]) -> Any:
        """One parameter, from what it is in both traces."""
        here, there = pair
        if here == there:
            return here
        if type(here) is type(there) is tuple and len(here) == len(there):
            return tuple(self.param(both, known) for both in zip(here, there, strict=True))
        found = self.formula(here, there, known) if type(here) is type(there) is int else None
        if found is None:
            self.is_bound = True
            return here
        return self.recorded.size(found)

    def formula(self, here: int, there: int, known: tuple[Formula, ...]) -> Size | None:
        """The number as a dimension nearby, or as one less or more a number, the least of them."""
        assert self.second is not None, "parameters are formulas by a second trace"
        points = self.sizes.hints, {**self.sizes.hints, **self.second.values}
        gaps = ((size, here - size.at(points[0]), there - size.at(points[1])) for size in known)
        found: list[tuple[Any, Size]]
        found = [(abs(gap), size + gap) for size, gap, other in gaps if gap == other]
        return min(found, key=lambda pair: pair[0])[1] if found else None
