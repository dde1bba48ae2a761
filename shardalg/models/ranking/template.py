"""Templates: a train step for all sizes of batch and schedule, from three traces.

A traced step has the same operators for every batch and number of microbatches, stages and rounds.
Each of its numbers is `c * product of some sizes + d`. Two traces determine c and d for a product;
the third trace shows whether the product is the right one. The sizes of the traces are numbers that
occur nowhere else in the program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from shardalg.algebra.mesh import Mesh
from shardalg.errors import ShardalgError
from shardalg.graph.ir import Graph, Signature, ValueType
from shardalg.models.dense import DONATED, ROLES, DenseTransformer
from shardalg.models.ranking.candidate import PIPELINED, Candidate
from shardalg.planner.calls.user_call import opened
from shardalg.planner.traced import Traced, trace_call

Sizes = Mapping[str, Any]
"""The sizes of a step, as numbers or recorded sizes.

b sequences of a microbatch, Q microbatches, L stages, R rounds, n layers of a stage in a round, and
T iterations of the pipeline.
"""
_POINTS = (
    {"b": 22, "Q": 26, "L": 3, "R": 5, "n": 7},
    {"b": 34, "Q": 38, "L": 11, "R": 13, "n": 17},
    {"b": 46, "Q": 58, "L": 19, "R": 23, "n": 29},
)

_FIELDS = {f.name for f in fields(DenseTransformer)} - {"batch", "microbatches"}

# Every program has the scalars 0, 1 and 2, so a size up to 2 coincides with them: it is traced
# unchanged.
_SMALL = 2
_OF_ITERATIONS = ("R", "Q", "L")
"""The sizes that determine T (`with_iterations`)."""
# Two equal counts are one scalar of the program, two different counts are two: so equal counts must
# stay equal in all traces.
_COUNTS = ("Q", "L", "R")


class NoTemplateError(ShardalgError, ValueError):
    """The step has different programs at different sizes, so that no template describes it."""


class ProductTerm(NamedTuple):
    """The formula `factor * product of the sizes in names + more`."""

    names: tuple[str, ...]
    factor: Fraction
    more: Fraction

    def at(self, sizes: Sizes) -> Any:
        """Return the number at these sizes."""
        value = math.prod([sizes[name] for name in self.names]) * self.factor + self.more
        # Shapes and trip counts are ints, so a whole Fraction becomes an int.
        return value.numerator if type(value) is Fraction and value.denominator == 1 else value


def sizes_of(one: Candidate) -> dict[str, Any]:
    """Return the sizes of a candidate's step.

    >>> from shardalg.models.dense import DenseTransformer
    >>> model = DenseTransformer(4, 16, 32, 2, 8, 32, 8, 8, microbatches=4)
    >>> sizes_of(Candidate(model, Mesh({"L": 2, "X": 2}), "pipelined"))
    {'b': 2, 'Q': 4, 'L': 2, 'R': 1, 'n': 2, 'T': 5}
    """
    model = one.model
    sizes = {"b": model.batch // model.microbatches, "Q": model.microbatches}
    if one.strategy == PIPELINED:
        stages = one.mesh.shape["L"]
        sizes |= {"L": stages, "R": one.rounds, "n": model.layers // (stages * one.rounds)}
    return with_iterations(sizes)


def with_iterations(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes, with the number of iterations T if they have stages L (a pipeline)."""
    if "L" not in sizes:
        return dict(sizes)
    return {**sizes, "T": sizes["R"] * sizes["Q"] + sizes["L"] - 1}


def kind_of(one: Candidate) -> tuple[Any, ...]:
    """Return a key that is equal for candidates whose steps have one template.

    The key has the model's fields, whether it is a pipeline, the sizes that are too small to vary
    (`_SMALL`), and which of the counts Q (microbatches), L (stages) and R (rounds) are equal.
    """
    sizes = sizes_of(one)
    small = tuple((name, size) for name, size in sizes.items() if size <= _SMALL)
    counts = [sizes.get(name) for name in _COUNTS]
    # `alike` has the place of the first equal count, e.g. (0, 0, 2) for counts 8, 8, 1.
    equality_pattern = tuple(counts.index(n) for n in counts)
    is_pipeline = one.strategy == PIPELINED
    # A pipeline's layers are the product of the sizes L, R and n, so the key must not fix them.
    fixed_fields = [
        name
        for name in vars(one.model)
        if name in _FIELDS and not (is_pipeline and name == "layers")
    ]
    return (
        tuple(getattr(one.model, name) for name in fixed_fields),
        is_pipeline,
        small,
        equality_pattern,
    )


@dataclass(frozen=True, eq=False)
class Literal:
    """A scalar of a program, as a function of the sizes.

    Attributes:
      kind: the name of its dtype.
      names: the sizes that the scalar depends on; () for a constant.
      value: the function from sizes to the scalar.
      known: values that are computed already, by the sizes in `names`.
    """

    kind: str
    names: tuple[str, ...]
    value: Callable[[Sizes], Any]
    known: dict[tuple[int, ...], Any] = field(default_factory=dict)

    def at(self, sizes: Sizes) -> Any:
        """Return the scalar at these sizes; it is computed only once for equal sizes of `names`."""
        key = tuple([sizes[name] for name in self.names])
        if key not in self.known:
            self.known[key] = self.value(sizes)
        return self.known[key]


@dataclass(frozen=True, eq=False)
class Template:
    """A step whose numbers are interpolated from three traces.

    Attributes:
      traces: the step, traced at the sizes in `points`; all traces have the same operators.
    """

    traces: tuple[Traced, ...]
    points: tuple[Sizes, ...]

    def at(self, sizes: Sizes, signatures: dict[Signature, Signature] | None = None) -> Traced:
        """Return the traced step at other sizes: numbers, or numbers that record comparisons.

        Args:
          signatures: a dictionary for several steps, in which equal signatures become one object.
        """
        known: dict[Any, Any] = {}

        def number(*values: int) -> Any:
            if values not in known:
                known[values] = self.read(values).at(sizes)
            return known[values]

        first = self.traces[0]
        same = {} if signatures is None else signatures
        graph = _Rebuilt(self._graphs, number, same).graph()
        return replace(first, graph=graph)

    @cached_property
    def _graphs(self) -> tuple[Graph, ...]:
        """The graphs of the traces.

        Raises:
          NoTemplateError: the traces do not have the same operators.
        """
        graphs = tuple(trace.graph for trace in self.traces)
        _check(graphs)
        return graphs

    @cached_property
    def _known(self) -> dict[tuple[int, ...], ProductTerm]:
        """Cache of `read`: a key is the values of a number in the three traces."""
        return {}

    def read(self, values: tuple[int, ...]) -> ProductTerm:
        """Return a formula of the sizes that has given values in the three traces of the step.

        Args:
          values: the numbers that one place of the program has in the three traces, in the order of
            `points` (the traced sizes).

        Raises:
          NoTemplateError: no formula has these values.
        """
        if values not in self._known:
            # Several formulas can pass through the three points. Prefer no constant, then few
            # names, then a whole factor: most sizes in a program are products of sizes.
            found = min(
                self._fitting(values),
                key=lambda f: (f.more != 0, len(f.names), f.factor.denominator, abs(f.more)),
                default=None,
            )
            if found is None:
                raise NoTemplateError(f"a number is {values} at {self.points}: no formula.")
            self._known[values] = found
        return self._known[values]

    def _fitting(self, values: tuple[int, ...]) -> Iterator[ProductTerm]:
        """Yield each formula of a step's sizes that gives a number of the three traced steps.

        The step was traced at three points, each with other sizes. A formula is a constant, or a
        product of at most four sizes times a factor plus a constant.

        Args:
          values: the number, such as the size of a dimension, in each of the three traces.
        """
        one, other, third = values
        if one == other == third:
            yield ProductTerm((), Fraction(1), Fraction(one - 1))
            return
        for names, (here, there, last) in self._products:
            # Three points are on one line if both slopes are equal, here without a division.
            if (one - other) * (here - last) == (one - third) * (here - there):
                factor = Fraction(one - other, here - there)
                yield ProductTerm(names, factor, one - factor * here)

    @cached_property
    def _products(self) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
        """All products of one to four sizes that can explain a number of the step.

        Each entry has the names of the factors, and the values of the product at the three
        `points`. Only products with three different values are listed.
        """
        found = []
        for count in range(1, 5):
            for names in combinations(self.points[0], count):
                values = tuple(math.prod(point[name] for name in names) for point in self.points)
                # Equal values at two points would make the denominator in `_fitting` zero.
                if len(set(values)) == 3:
                    found.append((names, values))
        return found

    @cached_property
    def literals(self) -> tuple[Literal, ...]:
        """The scalar constants of the program, as functions of the sizes.

        Raises:
          NoTemplateError: neither a scalar nor its reciprocal has a formula.
        """
        rows = zip(*(trace.graph.constants for trace in self.traces), strict=True)
        found = ([np.asarray(constant) for _, constant in row] for row in rows)
        return tuple(self._literal(row) for row in found if row[0].ndim == 0)

    def _literal(self, row: list[Any]) -> Literal:
        """Return a scalar constant of the step as a function of the sizes.

        Args:
          row: the value of the scalar in each of the three traces, which are at different sizes.

        Raises:
          NoTemplateError: no formula gives the three values.
        """
        values, kind = [one.item() for one in row], str(row[0].dtype)
        if values.count(values[0]) == len(values):
            return Literal(kind, (), lambda _: values[0])
        if all(value == int(value) for value in values):
            formula = self.read(tuple(map(int, values)))
            return Literal(kind, formula.names, formula.at)
        # Means multiply by 1 / n: the reciprocal has a formula where the value has none.
        inverse = [round(1 / value) for value in values]
        if any(row[0].dtype.type(1 / n) != value for n, value in zip(inverse, values, strict=True)):
            raise NoTemplateError(f"a scalar is {values} at {self.points}: no formula.")
        below = self.read(tuple(inverse))
        inverted = row[0].dtype.type
        return Literal(kind, below.names, lambda sizes: inverted(1 / below.at(sizes)).item())

    def together(self, sizes: Sizes) -> frozenset[str]:
        """Return the names of the sizes for which two scalars of the program have one value.

        A graph has one value for equal scalars. With these sizes the traced step would therefore
        have another form than the template.
        """
        known: dict[Any, Literal] = {}
        found: set[str] = set()
        for one in self.varying:
            key = one.kind, one.at(sizes)
            other = known.setdefault(key, one)
            # The number may also be that of a scalar which is the same in all traces (`fixed`).
            if other is not one or key in self.fixed:
                found.update(one.names, other.names)
        # T, the iterations of a pipeline, follows from its rounds R, microbatches Q and stages L:
        # fixing these three fixes T.
        return frozenset(found - {"T"} | {*_OF_ITERATIONS} if "T" in found else found)

    @cached_property
    def varying(self) -> list[Literal]:
        """The scalars that depend on a size."""
        return [one for one in self.literals if one.names]

    @cached_property
    def fixed(self) -> frozenset[tuple[str, Any]]:
        """The (type, value) pairs of the scalars that depend on no size."""
        return frozenset((one.kind, one.value({})) for one in self.literals if not one.names)


def template(one: Candidate, fixed: Set[str] = frozenset()) -> Template:
    """Return the template of a candidate's step: its traces at three points of other sizes.

    Formulas are fitted to the numbers of the three traces (`Template.read`).

    Args:
      fixed: names of sizes that keep the candidate's value in all traces, because two scalars of
        the program are equal at this value (`Template.together`).

    Raises:
      NoTemplateError: the candidate's step has different operators at the three traced sizes.
    """
    candidate_sizes = sizes_of(one)
    points = []
    for point in _POINTS:
        # Sizes up to `_SMALL` equal other scalars of the program, so they keep their value. T
        # follows from the sizes of loops (`with_iterations`).
        traced_sizes = {
            n: candidate_sizes[n] if candidate_sizes[n] <= _SMALL or n in fixed else point[n]
            for n in candidate_sizes
            if n != "T"
        }
        # Equal counts of the candidate stay equal in each trace: their scalars are one value.
        for name in _COUNTS:
            equal_count = next(
                (n for n in _COUNTS if candidate_sizes.get(n) == candidate_sizes.get(name)), name
            )
            if equal_count in traced_sizes:
                traced_sizes[name] = traced_sizes[equal_count]
        points.append(with_iterations(traced_sizes))
    return Template(tuple(_traced(_candidate_at(one, point)) for point in points), tuple(points))


def _candidate_at(one: Candidate, sizes: Sizes) -> Candidate:
    """Return a candidate at other sizes, which replace those of its model and mesh.

    Args:
      sizes: "b" sequences of a microbatch, "Q" microbatches, "L" stages of a pipeline, "R" rounds,
        and "n" layers of a stage in one round.
    """
    model = replace(one.model, batch=sizes["b"] * sizes["Q"], microbatches=sizes["Q"])
    if one.strategy != PIPELINED:
        return replace(one, model=model)
    layers = sizes["L"] * sizes["R"] * sizes["n"]
    mesh = Mesh({"L": sizes["L"]})
    return replace(one, model=replace(model, layers=layers), mesh=mesh, rounds=sizes["R"])


def _traced(one: Candidate) -> Traced:
    """Return the traced train step of a candidate."""
    of: Any = one.pipelined if one.strategy == PIPELINED else one.model
    args = of.arguments()
    call = opened(of.train_step, args, {})
    call = replace(call, donated=call.donates(DONATED))
    return trace_call(call, one.mesh.shape, given=call.given or (args, {}), roles=ROLES)


class _Rebuilt:
    """Builds a graph from graphs that differ only in numbers.

    `number(*values)` gives the number of the result from its values in the graphs. `same` maps each
    signature to the one object that all graphs share.
    """

    def __init__(
        self,
        graphs: tuple[Graph, ...],
        number: Callable[..., Any],
        same: dict[Signature, Signature],
    ) -> None:
        """Store the graphs, the function and the dictionary that the class describes."""
        self.graphs, self.number, self.same = graphs, number, same

    def graph(self) -> Graph:
        """Return the first graph with each number replaced by `number` of its values in all graphs.

        The numbers are those in shapes and in parameters, and trip counts.

        Raises:
          NoTemplateError: the graphs differ in more than numbers.
        """
        first = self.graphs[0]
        values, nodes, regions = [], [], []
        for same_value in zip(*(graph.values for graph in self.graphs), strict=True):
            shape = self.of(*(value.type.shape for value in same_value))
            value = same_value[0]
            values.append(replace(value, type=ValueType(shape, value.type.dtype)))
        types, rebuilt = [value.type for value in values], {}
        for same_node in zip(*(graph.nodes for graph in self.graphs), strict=True):
            node = same_node[0]
            operands = tuple(types[operand] for operand in node.operands)
            results = tuple(types[result] for result in node.results)
            signatures = [node.signature for node in same_node]
            key = (*signatures, operands, results)
            # Most operators of equal layers share a signature, which is rebuilt once.
            if key not in rebuilt:
                params = self.of(*(signature.params for signature in signatures))
                found = Signature(node.primitive, params, operands, results)
                rebuilt[key] = self.same.setdefault(found, found)
            nodes.append(replace(node, signature=rebuilt[key]))
        for same_region in zip(*(graph.regions for graph in self.graphs), strict=True):
            count = self.number(*(region.trip_count for region in same_region))
            regions.append(replace(same_region[0], trip_count=count))
        return replace(
            first,
            values=tuple(values),
            nodes=tuple(nodes),
            regions=tuple(regions),
            bindings=(),
        )

    def of(self, *found: Any) -> Any:
        """Return a parameter whose integers are `number` of the integers in all graphs.

        A float, such as a scale, is that of the first graph.

        Args:
          found: the value of the parameter in each graph.

        Raises:
          NoTemplateError: the values differ in more than integers and floats.
        """
        first = found[0]
        # A part that is equal in all graphs depends on no size, so it is used unchanged.
        if all(one is first or one == first for one in found):
            return first
        if all(type(one) is tuple and len(one) == len(first) for one in found):
            return tuple(self.of(*row) for row in zip(*found, strict=True))
        if all(type(one) is int for one in found):
            return self.number(*found)
        if all(type(one) is float for one in found):
            return first
        raise NoTemplateError(f"a parameter is {found} at other sizes.")


def _check(graphs: tuple[Graph, ...]) -> None:
    """Raise `NoTemplateError` unless the graphs differ only in sizes, parameters and scalars."""
    forms = [
        (
            [(n.primitive, n.operands, n.results, n.region, n.bodies) for n in graph.nodes],
            # Sizes may differ from trace to trace, ranks may not: another rank is another program.
            [(len(v.type.shape), v.type.dtype, v.kind) for v in graph.values],
            (graph.arguments, graph.results, [i for i, _ in graph.constants]),
            graph.sites and [site.name for site in graph.sites],
        )
        for graph in graphs
    ]
    if any(form != forms[0] for form in forms[1:]):
        raise NoTemplateError("the step is another program at other sizes.")
