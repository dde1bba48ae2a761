"""Formulas for every dimension of a graph, from the declared dimensions of its arguments.

The relations between the dimensions of each operator (`extents.py`) give one formula from another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import sympy

from shardalg.algebra.dims import Expr, SymbolError, evaluate, sizes_of
from shardalg.graph.ir import Graph
from shardalg.pause import collection_paused
from shardalg.sizes.symbolic.naming import Names
from shardalg.sizes.symbolic.retrace import Alignment, Difference, Retrace

Shape = tuple[Expr, ...]


@dataclass(frozen=True)
class Constant:
    """A size that is a number in every formula, because no argument determines it.

    Attributes:
      size: the number.
      source: the user's line where it occurs first, "" if unknown.
      value: name of the first value with this size.
      varies: whether a second trace had another number there; None without a second trace.
    """

    size: int
    source: str
    value: str
    varies: bool | None = None

    def __str__(self) -> str:
        place = self.source or self.value
        note = ", although it changes with the arguments' sizes" if self.varies else ""
        return f"size {self.size} at {place} is a constant in the formulas{note}"


@dataclass(frozen=True, eq=False)
class Lifted:
    """A graph with a formula for each dimension.

    Attributes:
      graph: the graph at the hints.
      shapes: for each value, its shape: integers and sympy expressions.
      trip_counts: for each region, its executions per call of the function.
      constants: sizes that no argument determines, one entry per size and source line.
    """

    graph: Graph
    shapes: tuple[Shape, ...]
    trip_counts: Shape
    constants: tuple[Constant, ...] = field(default=())

    def shapes_at(self, values: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of all values as numbers.

        Args:
          values: numbers of some named sizes; all others have their hints.
        """
        # Few expressions occur in many shapes, and sympy is slow: evaluate each one once.
        distinct = {e for shape in self.shapes for e in shape if not isinstance(e, int)}
        numbers = {e: evaluate(e, values) for e in distinct}
        return tuple(
            tuple(e if isinstance(e, int) else numbers[e] for e in shape) for shape in self.shapes
        )


@collection_paused()
def lift(graph: Graph, argument_dims: Sequence[Shape], second: Retrace | None = None) -> Lifted:
    """Return formulas for every dimension of a normalised graph that was traced at the hints.

    Dimensions that share a loop of an operator have the same size. A reshape implies equal products
    of sizes; a concatenation or a split implies a sum. Slices, padding and windows give an affine
    formula. A name propagates along these relations, never because two numbers are equal. Sizes
    that no argument determines are numbers, which are listed in `Lifted.constants`.

    Args:
      argument_dims: for each flattened argument, its declared shape: integers and sympy
        expressions of the sizes that `algebra.dims.dims` returns.
      second: the function traced at other sizes. One trace cannot distinguish `x[:S-1]` from
        `x[:1023]`, nor show which factor of `reshape(B, S, 8, M//8)` is a number. Without a second
        trace, the likelier formula is used.

    Raises:
      SymbolError: declared sizes do not fit the arguments; a hint is 1; an operator needs two sizes
        to be equal; or the second trace is another program or refutes a formula. A constant that
        differs there is no error, but has `varies` set.

    >>> import jax
    >>> from shardalg.algebra.dims import dims
    >>> from shardalg.graph.tracing.trace import trace
    >>> from shardalg.graph.ops.canonicalize.normalise import normalise
    >>> (B, M), x = dims("B M", hint=(8, 6)), jax.ShapeDtypeStruct((8, 6), "float32")
    >>> flat = normalise(trace(lambda x: x.reshape(-1)[1:], x))
    >>> found = lift(flat, [(B, M)])
    >>> found.shapes[flat.results[0]]
    (B*M - 1,)
    """
    _check_declared(graph, argument_dims)
    names = Names(graph, second)
    for value, dims in zip(graph.arguments, argument_dims, strict=True):
        for dim, size in enumerate(dims):
            names.declare(names.base[value] + dim, sympy.sympify(size))
    names.join_loops()
    names.join_regions()
    names.solve()
    lifted = _with_formulas(names)
    # Formulas were read from two traces. Check them against all sizes of the second one.
    difference = compare(lifted, second, aligned=names.aligned) if second else None
    if difference is not None and difference.kind == "size":
        raise SymbolError(
            f"a size is not what its loops say ({difference.source or 'unknown line'}): "
            f"{difference}. Two hints are equal by accident, or Python code decided on a size: "
            "give other hints."
        )
    return lifted


def compare(
    lifted: Lifted, second: Retrace, *, aligned: Alignment | None = None
) -> Difference | None:
    """Return the worst difference between a trace at other sizes and the formulas, or None.

    The worst is another program, then a wrong formula, then a constant with another number.

    Args:
      lifted: the graph at the hints with its formulas.
      second: the trace at other sizes.
      aligned: the correspondence of both graphs, if it exists already.
    """
    aligned = aligned or Alignment(lifted.graph, second.graph)
    if aligned.difference is not None:
        return aligned.difference
    wrong = sorted(_wrong_sizes(lifted, second, aligned), key=lambda d: d.kind != "size")
    return wrong[0] if wrong else None


def _wrong_sizes(lifted: Lifted, second: Retrace, aligned: Alignment) -> Iterator[Difference]:
    """Yield a difference for each value whose formulas do not give its shape in a second trace.

    Args:
      lifted: the graph of the first trace with its formulas.
      second: the graph of the same function, traced at other sizes.
      aligned: the corresponding value of the second graph for each value of the first one.
    """
    producer = lifted.graph.producer
    for value, shape in enumerate(lifted.shapes_at(second.values)):
        counterpart = aligned.partner[value]
        second_shape = second.graph.values[counterpart].type.shape if counterpart >= 0 else shape
        # A value without a counterpart cannot be compared.
        if shape != second_shape:
            node = producer[value]
            source = "" if node is None else lifted.graph.nodes[node].source
            pairs = zip(lifted.shapes[value], shape, second_shape, strict=True)
            # A formula that is a number cannot follow an argument. If only such sizes differ, no
            # formula is wrong: the code determined the sizes.
            are_numbers = [
                isinstance(e, int)
                for e, first_size, second_size in pairs
                if first_size != second_size
            ]
            text = (
                f"{lifted.graph.values[value].name} is {_shape_text(lifted.shapes[value])} by the "
                f"formulas, hence {_shape_text(shape)} at {second}, but "
                f"{_shape_text(second_shape)} there"
            )
            yield Difference("constant" if all(are_numbers) else "size", node, source, text)


def _shape_text(shape: Shape) -> str:
    """Return a shape as text, such as "[B, 4*M]"."""
    return f"[{', '.join(map(str, shape))}]"


def _check_declared(graph: Graph, argument_dims: Sequence[Shape]) -> None:
    """Raise SymbolError unless the declared dimensions give the shapes of the arguments.

    They are compared at the hints, the sizes at which the graph was traced.

    Args:
      argument_dims: the declared shape of each argument: numbers, or formulas of named sizes.
    """
    if len(argument_dims) != len(graph.arguments):
        raise SymbolError(
            f"dimensions of {len(argument_dims)} arguments for {len(graph.arguments)}: "
            f"{', '.join(graph.argument_paths[:8])}. Declare each array's."
        )
    sizes = sizes_of(e for shape in argument_dims for e in shape)
    # A dimension of size 1 is broadcast, so its loops would not be the named size's.
    names_with_hint_1 = [name for name, size in sizes.items() if size.hint == 1]
    if names_with_hint_1:
        raise SymbolError(
            f"the hint of {', '.join(names_with_hint_1)} is 1, which operators read as a "
            "repeated dimension: take 2 or more."
        )
    faults = []
    for path, value, shape in zip(
        graph.argument_paths, graph.arguments, argument_dims, strict=True
    ):
        hints, traced_shape = tuple(evaluate(e, {}) for e in shape), graph.values[value].type.shape
        if hints != traced_shape:
            faults.append(
                f"{path} {_shape_text(shape)} = {list(hints)}, traced as {list(traced_shape)}"
            )
    if faults:
        raise SymbolError(f"declared sizes that do not fit: {'; '.join(faults[:8])}.")


def _with_formulas(names: Names) -> Lifted:
    """Return the graph with the formulas that were found for its sets of equal sizes.

    A slot is one dimension of one value. All slots of a set have one formula, that of its
    representative (`root`).
    """
    graph = names.graph
    root_of_slot = [names.root(slot) for slot in range(names.base[-1])]
    formula = {root: names.formula(root) for root in set(root_of_slot)}
    sizes = [formula[root] for root in root_of_slot]
    slot_ranges = zip(names.base, names.base[1:], strict=False)
    shapes = tuple(tuple(sizes[first:end]) for first, end in slot_ranges)
    trips: list[Expr] = []
    for region in graph.regions:
        outer = 1 if region.parent is None else trips[region.parent]
        length = names.trip.get(region.index)
        outer_trips = 1 if region.parent is None else graph.regions[region.parent].trip_count
        # The trip count of a region includes the outer loops: divide to get its own iterations.
        # Only scans have a length with a formula.
        own_trips = region.trip_count // max(outer_trips, 1)
        own_formula = own_trips if length is None else names.formula(length)
        trips.append(outer if own_formula == 1 else outer * own_formula)
    return Lifted(graph, shapes, tuple(trips), tuple(_constants(names, root_of_slot)))


def _constants(names: Names, classes: list[int]) -> Iterator[Constant]:
    """Yield the sizes that no argument determines, one per number and source line.

    Each has the name of the first value with this size. Trip counts of loops come last.

    Args:
      classes: for each dimension, the representative of its set of equal sizes.
    """
    loops = {names.root(slot): region for region, slot in names.trip.items()}
    open_roots = {root for root in {*classes, *loops} if names.is_constant(root)}
    constant_of: dict[tuple[int, str], Constant] = {}
    # The first value with a size gives the size its name, so values are visited in order.
    values = iter(names.graph.values)
    while open_roots - loops.keys() and (value := next(values, None)):
        for root in classes[slice(*names.span(value.index))]:
            if root not in open_roots:
                continue
            open_roots.discard(root)
            constant = _constant(names, root, value.index)
            constant_of.setdefault((constant.size, constant.source), constant)
    # A loop without stacked values has a trip count that no value's shape shows.
    for root in sorted(open_roots & loops.keys()):
        constant = _constant(names, root, names.loop_result(loops[root]))
        constant_of.setdefault((constant.size, constant.source), constant)
    yield from constant_of.values()


def _constant(names: Names, root: int, value: int) -> Constant:
    """Return the constant for a set of equal sizes.

    Args:
      root: the representative of the set.
      value: a value with this size; its producer or a reader gives the source line.
    """
    graph = names.graph
    nodes = [graph.producer[value], *graph.users[value]]
    source = next((graph.nodes[n].source for n in nodes if n is not None), "")
    name = graph.values[value].name
    return Constant(names.number[root], source, name, names.varies(root))
