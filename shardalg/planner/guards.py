"""Guards: the conditions on named sizes under which planning makes the same decisions again.

A plan with named sizes is made at hints: one number per name. To find its guards, the function is
planned once more with sizes that record every comparison (`sizes.recorded`). Where all comparisons
have the same answers, the plan is the same. `Plan.at` checks this at a point (a number for each
name) in a millisecond.

`formulas_hold` is an independent test: it compares the formulas of a plan with named sizes with a
plan that was made at a point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import combinations_with_replacement, zip_longest
from typing import Any, NamedTuple

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.costs.analyses.peaks import memory_facts, peak_at, peak_formula
from shardalg.costs.cost import Cost
from shardalg.costs.symbolic import Size, Sizes, Symbolised
from shardalg.costs.walk import walk
from shardalg.graph.ir import Graph, Node, Params, Signature, ValueType
from shardalg.graph.plain import is_code, is_same
from shardalg.pause import collection_paused
from shardalg.planner.partition.emit.node import Recipe
from shardalg.planner.partition.partition import Partitioner
from shardalg.planner.pipeline import partition
from shardalg.planner.propagate.options import CompletionOptions, Options
from shardalg.planner.propagate.sharded import Layouts
from shardalg.planner.stages import Stages, annotations_at, completed
from shardalg.sizes.decided import DecidedCall, Guards, asked_again, recorder
from shardalg.sizes.facts import ZERO, Fact
from shardalg.sizes.formula import Formula, FormulaError, Number, symbol
from shardalg.sizes.recorded import Recorded, Recorder
from shardalg.sizes.symbolic.retrace import Alignment, Retrace
from shardalg.spmd.instruction import Block
from shardalg.spmd.program import SpmdProgram

ROUNDED = 1e-9
"""Seconds are sums of floats: the order of summation changes their last digits."""


def formulas_hold(
    named: Symbolised, costs: tuple[Cost, Cost], here: SpmdProgram, point: Mapping[str, int]
) -> bool:
    """Return whether the formulas of a plan with named sizes are right at a point.

    They are compared with a plan that was made at the point: bytes, operations and block sizes
    exactly, seconds up to rounding.

    Args:
      named: the program of the plan with named sizes.
      costs: the cost of the plan with named sizes, and of the plan made at the point, on one chip.
      here: the program of the plan made at the point.
      point: the number for each name.
    """
    try:
        return _same_blocks(named.program, here, point) and _same_prices(costs, point)
    # A formula may have no value at the point, for example after a division by 0.
    except FormulaError:
        return False


def _same_blocks(named: SpmdProgram, here: SpmdProgram, point: Mapping[str, int]) -> bool:
    """Return whether both programs have the same local values, and blocks of equal sizes.

    The block sizes of `named` are formulas, which are evaluated at the point.

    Args:
      named: a program whose sizes are formulas in named sizes.
      here: the program that was planned at the point.
      point: the number for each name.
    """
    # Many blocks have the same formula, so its value is computed once.
    known: dict[Any, Any] = {}

    def evaluated(size: Any) -> Any:
        """Return the number of a size that may be a formula."""
        if type(size) is not Formula:
            return size
        if size not in known:
            known[size] = size.at(point)
        return known[size]

    if len(named.locals) != len(here.locals):
        return False
    # Only locals that some instruction makes are compared: passes leave unused ones behind, which
    # have no formula.
    pairs = [
        (named.locals[i], here.locals[i]) for i in sorted(locals_made(named) | locals_made(here))
    ]
    return all(
        (a.dtype, a.origin) == (b.dtype, b.origin) and tuple(map(evaluated, a.shape)) == b.shape
        for a, b in pairs
    )


def locals_made(program: SpmdProgram) -> set[int]:
    """Return the local values that a program computes or takes as arguments, also in bodies.

    A program can list other local values, which passes left behind.
    """
    found = set(program.block.arguments)
    for step in walk(program):
        found.update(step.instruction.results)
        found.update(v for body in step.instruction.attributes.bodies for v in body.arguments)
    return found


def _same_prices(costs: tuple[Cost, Cost], point: Mapping[str, int]) -> bool:
    """Return whether two costs are equal at a point, seconds up to rounding.

    The prices of the first one may be formulas.
    """
    first, second = (dict(_prices(cost)) for cost in costs)
    # Other keys mean other collectives or operators: the plans differ in more than their sizes.
    if first.keys() != second.keys():
        return False
    for key, price in first.items():
        # A float is a number of seconds, which has no formula. Any other price may be a formula of
        # the named sizes, and is evaluated at the point.
        number = price if type(price) is float else Formula.of(price).at(point)
        other = second[key]
        seconds = key[-1] in SECONDS
        if not (math.isclose(number, other, rel_tol=ROUNDED) if seconds else number == other):
            return False
    return True


SECONDS = ("seconds", "useful_s", "step_time_s")


def _prices(cost: Cost) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield (key, price) for each quantity of a cost: of each item, of the step, and of memory.

    A key is a tuple that ends in the name of the quantity, for example "wire_bytes".
    """
    totals = cost.totals
    # Items are compared one by one: equal totals could hide two differences that cancel.
    for item in totals.items:
        key = (item.kind, item.axes, item.role, item.phase)
        yield (*key, "count"), item.count
        yield (*key, "flops"), item.flops
        yield (*key, "wire_bytes"), item.wire_bytes
        yield (*key, "seconds"), item.time_s
    yield ("useful_flops",), totals.useful_flops
    yield ("useful_s",), totals.useful_s
    yield ("devices",), totals.devices
    yield ("peak_bytes",), totals.peak_bytes
    yield ("step_time_s",), totals.sum("time_s")


Place = tuple[int, tuple[str | int, ...]]
"""The position of a number in a graph, by which it is found again in another trace.

It is a node's index, then the parameter's name and the indices in its nested tuples.
"""


def guards(
    stages: Stages, options: Options, named: Callable[[], Symbolised | None]
) -> tuple[Guards | None, str]:
    """Return the conditions on named sizes under which a plan stays the same, and a text.

    If no conditions can be found, they are None and the text is the reason. Otherwise the text
    names the first parameter that binds the plan to its hints (the numbers at which named sizes are
    planned), or is "".

    If the conditions are true at other sizes, planning makes the same decisions at these sizes. The
    conditions do not cover an `if` on a size in the user's Python code. A second trace at other
    sizes has shown that there is none (`symbols.name_sizes`). If Python code made a size, the
    conditions fix all dimensions at their hints.

    Args:
      named: a function that returns the program with a formula for each of its sizes, or None if no
        size has a name; called once.
    """
    if options.policy == "cost":
        return None, "the plan was chosen by cost, which compares more than is kept"
    # Sizes that have no formula end in a FormulaError, whose text is the reason.
    try:
        formulas = named()
        return (
            (None, "no size has a name") if formulas is None else _found(stages, options, formulas)
        )
    except FormulaError as error:
        return None, str(error)


def recorded_shapes(
    stages: Stages, options: Options, sizes: Sizes
) -> tuple[tuple[tuple[Any, ...], tuple[Any, ...]], ...] | None:
    """Return per local value of a plan its global shape and its local shape as formulas.

    They are right where the guards hold (`guards`). None if planning on recorded sizes ends in an
    error or gives another program, and for policy "cost".

    The function is planned a second time on recorded sizes: numbers that remember the formula from
    which they were computed.

    Args:
      sizes: the formula of each size of the graph, and the hints (numbers of the names).
    """
    if options.policy == "cost":
        return None
    run = _Sizes(stages, sizes, recorder(sizes.hints))
    # Code that needs plain integers fails on recorded sizes, in any of these ways.
    try:
        with collection_paused():
            program = _planned_again(stages, options, run)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None
    # The first line of a program's text names its mesh, which has recorded sizes in the second run.
    again, first = (p.text(stages.graph).splitlines()[1:] for p in (program, stages.program))
    if again != first:
        return None

    def formulas(shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a shape with the formula of each recorded size."""
        return tuple(size.formula if type(size) is Recorded else size for size in shape)

    return tuple((formulas(v.sharding.shape), formulas(v.shape)) for v in program.locals)


def _found(stages: Stages, options: Options, named: Symbolised) -> tuple[Guards | None, str]:
    """Plan once more on sizes that record comparisons; return the guards and a text.

    Such a size is a number with a formula. It writes down each comparison that planning makes. If
    planning on such sizes fails or gives another program, the guards are None and the text is the
    reason. Otherwise the text names the first parameter that binds the plan to its hints, or is "".
    """
    recorded = recorder(named.sizes.hints)
    sizes = _Sizes(stages, named.sizes, recorded)
    try:
        with collection_paused():
            program = _planned_again(stages, options, sizes)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # A recorded size is no `int`. If some step of planning needs one, guards cannot be found.
        return None, f"planning on recorded sizes ends with {type(error).__name__}: {error}"
    lines = (p.text(stages.graph).splitlines() for p in (program, stages.program))
    # The first line names the mesh, which has recorded sizes in the second program; all other lines
    # must be equal.
    for again, first in zip_longest(*(tuple(text)[1:] for text in lines), fillvalue=""):
        if again != first:
            return None, f"planning on recorded sizes gives {again.strip()}, not {first.strip()}"
    facts = (
        *(one.fact for one in named.conditions),
        *sizes.manual(),
        *_other_blocks(program, named.program),
    )
    # A chip may compute forward values again in the backward pass (`rebuild`). The peak of memory
    # needs a formula in both cases, because the guards do not depend on the chip.
    peaks = [_peak(recorded, named, stages, rebuild) for rebuild in (False, True)]
    return Guards(recorded, facts, sizes.traced(), peaks), sizes.bound


def _other_blocks(recorded: SpmdProgram, named: SpmdProgram) -> Iterator[Fact]:
    """Yield the condition that two formulas of one block size are equal, where they differ.

    Args:
      recorded: the program planned on recorded sizes.
      named: the program with a formula for each of its sizes.
    """
    # A dictionary in place of a list: layers repeat pairs, and equal pairs would give one fact many
    # times.
    found: dict[tuple[Any, Any], None] = {}
    for index in sorted(locals_made(recorded) | locals_made(named)):
        again, local = recorded.locals[index], named.locals[index]
        found.update(dict.fromkeys(zip(again.shape, local.shape, strict=True)))
    for size, formula in found:
        # A difference of zero is an identity, and needs no condition on the sizes.
        first = size.formula if type(size) is Recorded else Formula.of(size)
        difference = first - formula
        if difference:
            yield Fact(difference, ZERO)


def _peak(recorded: Recorder, named: Symbolised, stages: Stages, rebuild: bool) -> DecidedCall:
    """Return the memory peak as a formula, with the comparisons (facts) under which it is right.

    Where the facts fail, other values may be overwritten, or kept for the backward pass. The peak
    is then computed again from the program with the sizes of that point.

    Args:
      rebuild: whether forward values may be computed again in the backward pass.
    """
    settings: Any = {"donated": stages.traced.donated, "rebuild": rebuild}
    largest = peak_formula(named, tuple(stages.traced.donated), rebuild)

    # The facts are recorded apart from those of the plan: if one fails, only the peak is computed
    # again, and the plan stays valid.
    def record_facts(recorder: Recorder) -> None:
        memory_facts(named, recorder.size, **settings)

    return asked_again(recorded, record_facts, largest, partial(peak_at, named, **settings))


class RunQuestion(NamedTuple):
    """The decision of planning in which two sizes were compared.

    Comparisons inside a search are recorded with the search instead (`sizes/decided.py`).

    Attributes:
      kind: the kind of the decision, as in `plan.changes`: "sharding" or "collectives".
      node: the index of the node that was planned; None for arguments and results of the program,
        and for comparisons of completion.
    """

    kind: str
    node: int | None = None


def _planned_again(stages: Stages, options: Options, sizes: _Sizes) -> SpmdProgram:
    """Return the program that planning gives on sizes that record comparisons.

    Completion and partitioning run as in `Plan.at`, which plans at numbers.
    """
    # Facts recorded from here on belong to the completion. During partitioning,
    # `_RecordingPartitioner` changes `about` for each node.
    recorded, axes = sizes.recorded, sizes.sizes.axes
    recorded.about = RunQuestion("sharding")
    mesh = stages.mesh.resized({name: recorded.size(axis) for name, axis in axes.items()})
    graph = sizes.graph()
    annotations = annotations_at(stages.annotations, graph, mesh)
    sharded = completed(graph, annotations, CompletionOptions.of(options))
    return partition(
        sharded, stages.traced.roles, options, partial(_RecordingPartitioner, recorded)
    )


class _RecordingPartitioner(Partitioner):
    """A partitioner that notes which node it emits, as the origin of recorded comparisons.

    The origin is `Recorder.about`, a `RunQuestion`.
    """

    def __init__(self, recorder: Recorder, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recorder = recorder

    def _set_node(self, node: Node | None) -> None:
        """Assign the comparisons that follow to a node, or to the program's border (None)."""
        self.recorder.about = RunQuestion("collectives", None if node is None else node.index)

    def _argument_local(self, value: int, order: Mesh | None) -> int:
        self._set_node(None)
        return super()._argument_local(value, order)

    def _result_local(self, value: int, layout: Sharding) -> int:
        self._set_node(None)
        return super()._result_local(value, layout)

    def _recipe(self, node: Node) -> Recipe:
        self._set_node(node)
        return super()._recipe(node)

    def _call(self, node: Node) -> None:
        self._set_node(node)
        super()._call(node)

    def _body(self, node: Node, body: int, layouts: tuple[Layouts, Layouts]) -> Block:
        made = super()._body(node, body, layouts)
        # Comparisons of sizes after the body belong to the call again.
        self._set_node(node)
        return made


@dataclass(eq=False)
class _Sizes:
    """The builder of a graph in which shapes, trip counts and parameters are recorded sizes.

    Attributes:
      stages: the plan with named sizes.
      sizes: the formulas of the sizes of its graph.
      recorded: the recorder to which comparisons are written.
      bound: a sentence on the first parameter that differs in the second trace and has no formula;
        "" if there is none.
    """

    stages: Stages
    sizes: Sizes
    recorded: Recorder
    bound: str = ""

    @cached_property
    def second(self) -> Retrace | None:
        """The function traced at a second number for each named size; None for a loaded plan.

        Parameters that differ between the two traces depend on sizes.
        """
        symbols = self.stages.symbols
        if symbols.tracer is None:
            return None
        return Retrace(symbols.traced_graph(symbols.second), symbols.second)

    def manual(self) -> Iterator[Fact]:
        """Yield, per mesh axis of a `shard_map`, the condition that its size is as planned.

        The blocks of a `shard_map` are numbers in the traced function, so that another size of the
        axis would need another trace.
        """
        for axis in sorted(self.stages.graph.traced_axes & self.sizes.axes.keys()):
            yield Fact(symbol(axis) - self.sizes.hints[axis], ZERO)

    def traced(self) -> Iterator[Fact]:
        """Yield the conditions that all named dimensions equal their hints, if they are needed.

        A hint is the number at which a named size is planned. The conditions are needed if Python
        code may have computed a size or a parameter from it. It is then a number in the graph and
        may be another number at other sizes, without a known formula. They are also needed for a
        loaded plan, which cannot be traced again.
        """
        symbols = self.stages.symbols
        if self.second is None or self.bound or not symbols.has_fixed_constants:
            for name, size in self.stages.symbols.sizes.items():
                yield Fact(symbol(name) - size.hint, ZERO)

    def graph(self) -> Graph:
        """Return the plan's graph with a recorded size in place of every number.

        A recorded size writes down each comparison that planning makes with it. `second` is the
        function traced at other sizes: parameters that differ there depend on sizes.
        """
        graph = self.stages.graph
        # A loaded plan has no function, so that nothing shows which parameters depend on sizes.
        if self.second is None:
            return graph
        values = tuple(
            replace(v, type=ValueType(tuple(map(self.recorded.size, dims)), v.type.dtype))
            for v, dims in zip(graph.values, self.sizes.dims, strict=True)
        )
        # Nodes with one signature and equal types keep one signature object, so that caches by
        # signature still serve all layers.
        types = [value.type for value in values]
        signatures: dict[Any, Signature] = {}
        nodes = []
        for node, other in zip(graph.nodes, self.second.graph.nodes, strict=True):
            operand_types = tuple(types[v] for v in node.operands)
            result_types = tuple(types[v] for v in node.results)
            key = (node.signature, other.signature, operand_types, result_types)
            if key not in signatures:
                params = self.params(node, other)
                signatures[key] = Signature(node.primitive, params, operand_types, result_types)
            nodes.append(replace(node, signature=signatures[key]))
        # The length of a scan is a size, too.
        trips = zip(graph.regions, self.sizes.trips, strict=True)
        regions = tuple(replace(r, trip_count=self.recorded.size(n)) for r, n in trips)
        return replace(graph, values=values, nodes=tuple(nodes), regions=regions)

    def params(self, node: Node, other: Node) -> Params:
        """Return a node's parameters, in which numbers that depend on sizes are recorded sizes.

        Args:
          other: the same node in the second trace.
        """
        # Sizes of the node's own tensors come first: a parameter is most likely one of them.
        values = (*node.operands, *node.results)
        own_sizes = [*(n for v in values for n in self.sizes.dims[v]), *self.sizes.trips]
        known = tuple(dict.fromkeys((*own_sizes, *self.names)))
        pairs = zip(node.signature.params, other.signature.params, strict=True)
        found = []
        for (name, here), (_, there) in pairs:
            place = node.index, (name,)
            # `param` returns a tuple with the new parameter, or None if no formula gives it.
            param = self.param((here, there), known, place)
            # The plan is then bound to its hints. The first reason is kept for the user.
            if param is None and not self.bound:
                source = node.source or "an unknown line"
                self.bound = (
                    f"the parameter {name} of {node.primitive} at {source} is {here} at the hints "
                    f"and {there} at {self.second}, and has no formula in named sizes: whether the "
                    "plan holds at other dimensions, only planning there tells"
                )
            found.append((name, here if param is None else param[0]))
        return tuple(found)

    def param(
        self, pair: tuple[Any, Any], known: tuple[Size, ...], place: Place
    ) -> tuple[Any] | None:
        """Return (parameter,), with a recorded size in place of each number that depends on sizes.

        The function was traced at two sets of sizes. A number that differs between the two traces
        depends on them. None if such a number has no formula.

        Args:
          pair: the parameter in the first and in the second trace.
          known: sizes to which its numbers may be equal, the most likely first.
          place: the node, and the position of the number in its parameters.
        """
        here, there = pair
        # A graph keeps only the name of a function or jaxpr, which differs between two traces and
        # which planning does not read.
        if is_same(here, there) or (is_code(here) and is_code(there)):
            return (here,)
        if type(here) is type(there) is tuple and len(here) == len(there):
            items = [
                self.param(both, known, (place[0], (*place[1], i)))
                for i, both in enumerate(zip(here, there, strict=True))
            ]
            made = tuple(item[0] for item in items if item is not None)
            return (made,) if len(made) == len(items) else None
        is_number = type(here) is type(there) is int
        found = self.formula((here, there), known, place) if is_number else None
        if found is not None and here in (n for n in known if type(n) is int):
            # Python computed this size: it is a number in all shapes, too (`Symbols.constants`). A
            # formula in the parameter alone would contradict them.
            return (here,)
        return None if found is None else (self.recorded.size(found),)

    def formula(self, pair: tuple[int, int], known: tuple[Size, ...], place: Place) -> Size | None:
        """Return a formula of a number that differs in two traces, or None.

        The formula is a known size or the sum of two named sizes, plus a constant. Of several the
        one with the smallest constant is used. Two traces may agree by accident, if the constant is
        larger than 1. A third trace then decides.

        Args:
          pair: the number in the first and in the second trace.
          known: sizes from which the formula may be built.
          place: the position of the number in the graph.
        """
        assert self.second is not None, "parameters are formulas by a second trace"
        # The number is n + gap for a known size n if the gap is equal in both traces.
        here, there = pair
        points = self.sizes.hints, {**self.sizes.hints, **self.second.values}
        sums = (a + b for a, b in combinations_with_replacement(self.names, 2))

        def gaps(sizes: Iterable[Formula]) -> list[tuple[Number, Formula]]:
            """Return (gap, size) for each size with one gap in both traces; small gaps first."""
            both = ((here - n.at(points[0]), there - n.at(points[1]), n) for n in sizes)
            found = [(gap, size) for gap, other, size in both if gap == other]
            return sorted(found, key=lambda pair: float(abs(Fraction(pair[0]))))

        # A gap of at most 1 is common in programs (n - 1), so it needs no third trace.
        for gap, size in gaps(n for n in known if type(n) is Formula):
            if -1 <= gap <= 1 or self.is_right(size + gap, place):
                return size + gap
        # Sums of two sizes agree by accident more often, so they always need a third trace.
        right = (size + gap for gap, size in gaps(sums) if self.is_right(size + gap, place))
        return next(right, None)

    @cached_property
    def names(self) -> tuple[Formula, ...]:
        """The named sizes of dimensions, each as a formula that consists of the name alone."""
        return tuple(symbol(name) for name in self.stages.symbols.sizes)

    def is_right(self, formula: Size, place: Place) -> bool:
        """Return whether the number at `place` has the value of `formula` in a third trace.

        False if there is no third trace.
        """
        # Without a third trace, `formula` accepts only numbers within 1 of a known size.
        if self.third is None:
            return False
        node, (name, *inside) = place
        found = self.third.graph.nodes[node].signature.param(str(name))
        for index in inside:
            found = found[index]
        return bool(found == Formula.of(formula).at({**self.sizes.hints, **self.third.values}))

    @cached_property
    def third(self) -> Retrace | None:
        """The function traced at sizes that differ from all sizes of the first two traces.

        None if the function cannot be traced at such sizes, or is another program there.
        """
        from shardalg.algebra.dims import Size, second_hints

        assert self.second is not None, "a third trace comes after a second one"
        symbols = self.stages.symbols
        assert symbols.tracer is not None, "the second trace had a tracer"
        # `second_hints` multiplies each size by a factor that depends on its place. In the reversed
        # order, the factors differ from those between the first two traces.
        sizes = [Size(name, number) for name, number in reversed(list(self.second.values.items()))]
        # Some functions can be traced only if sizes are multiples of their hints.
        for multiples in (False, True):
            values = second_hints(sizes, multiples=multiples)
            try:
                graph = symbols.tracer(values)
            except Exception:  # the user's function may raise anything at sizes it cannot take
                continue
            if Alignment(self.stages.graph, graph).difference is None:
                return Retrace(graph, values)
        return None
