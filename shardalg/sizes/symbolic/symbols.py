"""Formulas of a traced function's sizes, and checks of the sizes that users give to a plan.

A plan with named sizes is computed at its hints, one example number per name. Formulas of the named
sizes enter afterwards, in prices. Planning records the conditions under which the plan is valid at
other sizes (`planner.guards`), and `Plan.at` checks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from numbers import Integral
from typing import Any

import numpy as np

from shardalg.algebra.dims import Data, Expr, Size, SymbolError, hint_of, second_hints, sizes_of
from shardalg.algebra.mesh import Mesh
from shardalg.files import read
from shardalg.graph.ir import Graph
from shardalg.graph.tracing.refused import user_line
from shardalg.graph.tracing.symbolic_trace import JaxprTracer, dependent_sizes
from shardalg.sizes.symbolic.lift import Constant, Lifted, compare, lift
from shardalg.sizes.symbolic.retrace import Difference, Retrace
from shardalg.tables import Table

Shape = tuple[Expr, ...]
Tracer = Callable[[Mapping[str, int]], Graph]
"""Function that traces the user's function at given sizes and returns the normalised graph.

All other sizes have their hints.
"""

MULTIPLE = 2**7 * 3 * 5 * 7
"""The multiple of the hints at which a function is traced that may ask what divides a size."""
_KEPT = 16
"""Number of graphs that are kept: a map of strategies has up to nine values of a size by default,
and each strategy is planned at all of them."""

CONSTANT_COLUMNS = ("dimension", "source", "value", "varies")


@dataclass(frozen=True, eq=False)
class Symbols:
    """Formulas of all sizes of a traced function.

    Attributes:
      dims: for each flattened argument, its declared shape.
      lifted: the graph with the formulas of all shapes and trip counts.
      second: the sizes at which a second trace was the same program, by name.
      tracer: function that traces at other sizes; None in a loaded plan.
      jaxpr_at: function that traces at symbolic dimensions of JAX, too; None in a loaded plan.
    """

    dims: tuple[Shape, ...]
    lifted: Lifted
    second: Mapping[str, int]
    tracer: Tracer | None = None
    jaxpr_at: JaxprTracer | None = None

    @cached_property
    def sizes(self) -> dict[str, Size]:
        """The named sizes of the arguments' dimensions, by name."""
        return sizes_of(size for shape in self.dims for size in shape)

    @cached_property
    def constants(self) -> Table:
        """Table of the sizes that are numbers in every formula, because no argument gives them."""
        rows = ((c.size, c.source, c.value, c.varies) for c in self.lifted.constants)
        return Table(CONSTANT_COLUMNS, tuple(rows))

    @cached_property
    def has_fixed_constants(self) -> bool:
        """Whether the constants are certainly the same numbers at all sizes.

        A constant is a size in the program that no argument determines, such as 128 in
        `x.reshape(-1, 128)`. It is fixed if Python code made it without a number of a named size
        (`dependent_sizes`). False means that this is not certain.
        """
        constants = self.lifted.constants
        if not constants:
            return True
        # `varies` is True if a second trace had another number there, and None without a second
        # trace. A loaded plan has no function to ask.
        if any(each.varies is not False for each in constants) or self.jaxpr_at is None:
            return False
        hints = {name: size.hint for name, size in self.sizes.items()}
        dependent_numbers = dependent_sizes(self.jaxpr_at, hints)
        # A constant that equals a dependent size may be that size, or equal it by accident.
        if dependent_numbers is None or not dependent_numbers.isdisjoint(
            each.size for each in constants
        ):
            return False
        # JAX takes `S % 128 == 0` of a symbolic size as False. Where it is True, Python code may
        # make other constants.
        try:
            _, fault = self.graph_at({name: MULTIPLE * hint for name, hint in hints.items()})
        except Exception:  # the user's function may raise anything at sizes it cannot take
            return False
        return fault is None

    def to_json(self) -> dict[str, Any]:
        """Return the formulas as a JSON object, without the function and the graph.

        `from_json` reads it, for the same graph. A size is a number, or a formula in JSON
        (`to_data`).
        """
        from shardalg.algebra.dims import to_data

        def rows(shapes: Iterable[Shape]) -> list[list[Any]]:
            """Return shapes as lists of JSON values."""
            return [[to_data(size) for size in shape] for shape in shapes]

        return {
            "dims": rows(self.dims),
            "shapes": rows(self.lifted.shapes),
            "trips": [to_data(trips) for trips in self.lifted.trip_counts],
            "constants": [[c.size, c.source, c.value, c.varies] for c in self.lifted.constants],
            "second": dict(self.second),
        }

    @cached_property
    def _last_graphs(self) -> dict[tuple[int, ...], Graph]:
        """The graphs of the last sizes, by a number for each named size; at most `_KEPT`."""
        return {}

    def traced_graph(self, point: Mapping[str, int]) -> Graph:
        """Return the function's graph at other sizes; several strategies share it at one point.

        The last `_KEPT` graphs are stored, because tracing a large model takes seconds.

        Args:
          point: a number for each named size; a missing one has its hint.
        """
        assert self.tracer is not None
        key = tuple(point.get(name, size.hint) for name, size in self.sizes.items())
        graphs = self._last_graphs
        # Dictionaries keep the order of insertion. Removing and adding the graph makes it the last
        # one, so that the first one is the one that is longest unused.
        graphs[key] = graphs.pop(key) if key in graphs else self.tracer(point)
        while len(graphs) > _KEPT:
            graphs.pop(next(iter(graphs)))
        return graphs[key]

    def graph_at(self, point: Mapping[str, int]) -> tuple[Graph, Difference | None]:
        """Return the function's graph at other sizes, and the first constant that differs there.

        Such a constant is a size that Python code computed, so that formulas have it as a number.
        The second result is None if no constant differs.

        Args:
          point: a number for each named size.

        Raises:
          SymbolError: the function is another program there, cannot be traced there, or is not
            available (a loaded plan).
        """
        # At the hints the stored graph is valid, without another trace.
        if all(size.hint == point.get(name, size.hint) for name, size in self.sizes.items()):
            return self.lifted.graph, None
        if self.tracer is None:
            raise SymbolError(
                "a loaded plan has no function to trace at other dimensions "
                f"({_text(point)}): plan the function again, or change the sizes of axes only."
            )
        graph = self.traced_graph(point)
        difference = compare(self.lifted, Retrace(graph, point))
        if difference is not None and difference.kind != "constant":
            place = f" ({difference.source})" if difference.source not in difference.text else ""
            raise SymbolError(
                f"the function is another program at {_text(point)}{place}: {difference}. Python "
                "code, or JAX at a size of 1, decided on a size, so that no formula of this plan "
                "holds there. Plan it at those sizes."
            )
        return graph, difference


def name_sizes(
    graph: Graph, dims: Sequence[Shape], tracer: Tracer, jaxpr_at: JaxprTracer | None = None
) -> Symbols:
    """Return the formulas of all sizes in a function that was traced at the hints.

    They follow from the declared dimensions and the operators (`sizes.symbolic.lift`). A second
    trace, at unrelated sizes, must give the same program with the same formulas.

    Args:
      graph: the normalised graph at the hints.
      dims: for each flattened argument, its declared shape.
      tracer, jaxpr_at: see `Symbols`.

    Raises:
      SymbolError: a hint is 1; an operator needs two sizes to be equal; the function is another
        program at other sizes; or it can be traced only at the hints.
    """
    _check_hints(graph, dims)
    sizes = tuple(sizes_of(size for shape in dims for size in shape).values())
    second, faults = _second_trace(sizes, tracer)
    lifted = lift(graph, dims, second)
    if second is None:
        raise SymbolError(
            "the function can be traced at the hints alone, so that its sizes are no symbols: "
            f"{'; '.join(faults)}. Name a size that others have to fit in terms of them, as in "
            "dims('N D') and N*D, and give sizes that the function fixes as numbers."
        )
    difference = compare(lifted, second)
    # A constant may differ: Python code computed it from a size. `graph_at` reports it.
    if difference is not None and difference.kind != "constant":
        place = (
            f" ({difference.source})"
            if difference.source and difference.source not in difference.text
            else ""
        )
        raise SymbolError(
            f"sizes do not follow from the arguments' as the trace at the hints says{place}: "
            f"{difference}. Two hints are equal by accident, or Python code decided on a size."
        )
    return Symbols(tuple(map(tuple, dims)), lifted, dict(second.values), tracer, jaxpr_at)


def numbers_only(graph: Graph) -> Symbols:
    """Return the formulas of a function without named sizes: all of them are numbers.

    They are needed for plans on a mesh whose axes have named sizes.
    """
    dims = tuple(graph.values[v].type.shape for v in graph.arguments)
    shapes = tuple(value.type.shape for value in graph.values)
    trips = tuple(region.trip_count for region in graph.regions)
    return Symbols(dims, Lifted(graph, shapes, trips), {})


def _check_hints(graph: Graph, dims: Sequence[Shape]) -> None:
    """Raise SymbolError if a declared dimension has a size with the hint 1.

    An operator repeats a dimension of size 1 (broadcasting), so that the traced program would be
    another one than at larger sizes.

    Args:
      dims: the declared shape of each argument, in the order of `graph.argument_paths`.
    """
    for path, shape in zip(graph.argument_paths, dims, strict=True):
        ones = [name for name, size in sizes_of(shape).items() if size.hint == 1]
        if ones:
            raise SymbolError(
                f"argument {path} [{', '.join(map(str, shape))}]: the hint of {', '.join(ones)} is "
                "1, which operators read as a repeated dimension. Take a hint of 2 or more."
            )


def _second_trace(sizes: Sequence[Size], tracer: Tracer) -> tuple[Retrace | None, list[str]]:
    """Return a trace of the function at other sizes, and the error texts of failed attempts.

    Several sets of sizes are tried; the trace is None if the function fails at all of them.
    """
    faults: list[str] = []
    # Coprime sizes tell apart formulas that agree at related sizes. Some functions need sizes that
    # divide each other (multiples of the hints) or fit a table of fixed length (smaller sizes).
    points = second_hints(sizes), second_hints(sizes, multiples=True), _below(sizes)
    for values in points:
        try:
            return Retrace(tracer(values), values), faults
        except Exception as error:  # the user's function may raise anything at sizes it cannot take
            reason = str(error).strip().split("\n")[0]
            what = f"{type(error).__name__}{user_line(error)}: {reason:.160}"
            faults.append(f"at {_text(values)}: {what}")
    return None, faults


def _below(sizes: Sequence[Size]) -> dict[str, int]:
    """Return a size below each hint for a second trace, pairwise coprime sizes if possible.

    Smaller sizes suit functions that index a table of a fixed length.

    >>> _below((Size("B", 8), Size("S", 16), Size("T", 2)))
    {'B': 7, 'S': 15, 'T': 2}
    """
    second_sizes: dict[str, int] = {}
    for size in sizes:
        candidates = range(size.hint - 1, 1, -1)
        coprime = (
            n for n in candidates if all(gcd(n, other) == 1 for other in second_sizes.values())
        )
        second_sizes[size.name] = next(coprime, max(2, size.hint - 1))
    return second_sizes


def _text(point: Mapping[str, int]) -> str:
    """Return sizes as text, such as "B=8, S=16"."""
    return ", ".join(f"{name}={number}" for name, number in point.items())


def named_sizes(symbols: Symbols, mesh: Mesh) -> dict[str, Size]:
    """Return the named sizes of a plan, by name: those of dimensions and those of mesh axes.

    Raises:
      SymbolError: a dimension and an axis have one name and two hints.
    """
    axes = mesh.sizes.values() if mesh.symbolic else ()
    return sizes_of([*symbols.sizes.values(), *axes])


def point_of(named: Mapping[str, Size], given: Mapping[str, int]) -> dict[str, int]:
    """Return a number for every named size of a plan: the given one, or else its hint.

    Args:
      named: the named sizes of the plan.
      given: numbers that a user gives for some of them.

    Raises:
      SymbolError: the plan has no size of a given name, or a number is below 1.

    >>> point_of({"B": Size("B", 8), "X": Size("X", 2)}, {"X": 4})
    {'B': 8, 'X': 4}
    """
    unknown = [name for name in given if name not in named]
    if unknown and not named:
        raise SymbolError(
            f"all sizes of this plan are fixed, so {', '.join(unknown)} cannot be changed. To name "
            "sizes, plan with sa.dims or Mesh(..., symbolic=True)."
        )
    if unknown:
        raise SymbolError(
            f"{', '.join(unknown)} is in no argument's shape and is no symbolic axis of the plan; "
            f"its sizes are {', '.join(f'{n} (hint {s.hint})' for n, s in named.items())}."
        )
    wrong_numbers = {n: v for n, v in given.items() if not _is_size(v)}
    if wrong_numbers:
        raise SymbolError(f"sizes are integers of at least 1, got {_text(wrong_numbers)}.")
    return {name: int(given.get(name, size.hint)) for name, size in named.items()}


def points_of(
    named: Mapping[str, Size], given: Mapping[str, Any]
) -> tuple[dict[str, int], dict[str, np.ndarray]]:
    """Return the points of a sweep: the sizes that are one number, and the arrays of the others.

    A sweep evaluates a plan at many sizes at once. The arrays broadcast against each other, as in
    numpy.

    Args:
      named: the named sizes of the plan.
      given: numbers and arrays that a user gives for some of them; all others have their hints.

    Raises:
      SymbolError: as in `point_of`; or the arrays do not broadcast or are no integers; or there is
        no array at all.

    >>> points_of({"B": Size("B", 8), "X": Size("X", 2)}, {"X": [2, 4]})
    ({'B': 8}, {'X': array([2, 4])})
    """
    arrays = {name: np.asarray(value) for name, value in given.items()}
    # A number has no dimension; each array with a dimension is swept.
    swept = {name: array for name, array in arrays.items() if array.ndim}
    number_of = point_of(named, {n: v for n, v in given.items() if n not in swept})
    # The names of swept sizes are checked too; the number 1 stands for their arrays.
    point_of(named, dict.fromkeys(swept, 1))
    if not swept:
        raise SymbolError(
            "a sweep needs an array of some size, as in sweep('tpu_v3', B=2 ** np.arange(10)), or "
            "lists: sweep(mesh=[...], B=[...], remat=[...]); "
            "plan.at(...) is for one point."
        )
    for name, array in swept.items():
        if array.dtype.kind not in "iu" or (array.size and array.min() < 1):
            shown = np.array2string(array.reshape(-1)[:3], separator=", ")
            raise SymbolError(
                f"{name} is {shown}... of {array.dtype}: give integers of at least 1, as "
                f"np.arange(1, 9) has them."
            )
    try:
        np.broadcast_shapes(*(array.shape for array in swept.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in swept.items())
        raise SymbolError(
            f"arrays of shapes {shapes} do not broadcast: give all points of each size, or a grid "
            "as np.ix_ makes it."
        ) from None
    return {name: size for name, size in number_of.items() if name not in swept}, swept


def _is_size(value: object) -> bool:
    """Return whether a value is an integer of at least 1, also of a numpy type."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def mesh_at(mesh: Mesh, point: Mapping[str, int]) -> Mesh:
    """Return a mesh whose named axis sizes are replaced by their numbers at a point.

    A mesh without named sizes is returned unchanged.

    >>> mesh_at(Mesh({"X": 8, "Y": 16}, symbolic=True), {"X": 4, "Y": 16})
    Mesh(X=4, Y=16)
    """
    return Mesh([(name, point[name]) for name, _ in mesh.axes]) if mesh.symbolic else mesh


def from_json(graph: Graph, data: Mapping[str, Any]) -> Symbols:
    """Return the `Symbols` that `Symbols.to_json` wrote, for the same graph.

    Raises:
      PlanFileError: an entry is missing or has another type.
      SymbolError: the formulas do not give the sizes of the graph.
    """
    from shardalg.algebra.dims import from_data

    def shapes(rows: Iterable[Sequence[Any]]) -> tuple[Shape, ...]:
        """Return shapes from lists of JSON values."""
        return tuple(tuple(from_data(size) for size in row) for row in rows)

    saved = read(_SavedSymbols, data, "symbols")
    trips = tuple(from_data(trips) for trips in saved.trips)
    lifted = Lifted(
        graph, shapes(saved.shapes), trips, tuple(Constant(*c) for c in saved.constants)
    )
    symbols = Symbols(shapes(saved.dims), lifted, saved.second)
    argument_shapes = tuple(tuple(map(hint_of, shape)) for shape in symbols.dims)
    all_names = {*symbols.sizes, *sizes_of(size for shape in lifted.shapes for size in shape)}
    # The file may be edited or of another graph: the formulas must give the graph's sizes. A second
    # trace has a number for each size; without one, there are no numbers.
    conditions = (
        lifted.shapes_at({}) == tuple(value.type.shape for value in graph.values),
        tuple(map(hint_of, trips)) == tuple(region.trip_count for region in graph.regions),
        argument_shapes == tuple(graph.values[v].type.shape for v in graph.arguments),
        all_names == set(symbols.sizes) and set(symbols.second) in (set(), all_names),
        all(size >= 1 for size in symbols.second.values()),
    )
    if not all(conditions):
        raise SymbolError("the formulas of the sizes are not those of the graph: save it again.")
    return symbols


@dataclass(frozen=True)
class _SavedSymbols:
    """JSON object of `Symbols.to_json`, with the types of its entries, which are checked."""

    dims: tuple[tuple[Data, ...], ...]
    shapes: tuple[tuple[Data, ...], ...]
    trips: tuple[Data, ...]
    constants: tuple[tuple[int, str, str, bool | None], ...]
    second: dict[str, int]
