"""A traced function and its annotations with other numbers as the hints of its named sizes.

Formulas hold where the planner decides as at the hints. With hints elsewhere, other formulas hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from shardalg.algebra.dims import Expr, Size, SymbolError, sizes_of
from shardalg.algebra.mesh import Mesh
from shardalg.graph.ir import Graph
from shardalg.planner.propagate.strategy import Annotations
from shardalg.planner.stages import annotations_at
from shardalg.planner.traced import Traced


def inputs_with_hints(
    traced: Traced, annotations: Annotations, point: Mapping[str, int]
) -> tuple[Traced, Annotations]:
    """Return a function with named sizes, and its annotations, whose hints are another point.

    Args:
      point: a number for each named size of the function and of the mesh.

    Raises:
      SymbolError: the function is another program there, a hint is 1, or the function is not
        available (a loaded plan, or a manual axis of another size).
      MeshError: the size of an axis is 1. An exception of the user's function.
    """
    mesh = annotations.mesh
    if mesh.symbolic:
        mesh = Mesh([(name, point[name]) for name, _ in mesh.axes], symbolic=True)
    changed = {name for name, size in mesh.axes if size != annotations.mesh.shape[name]}
    if changed & traced.graph.traced_axes:
        raise SymbolError(
            f"the function has regions that are manual along {', '.join(sorted(changed))}: plan it "
            "again on that mesh."
        )
    made = _with_hints(traced, point)
    return made, annotations_at(annotations, made.graph, mesh)


def _with_hints(traced: Traced, point: Mapping[str, int]) -> Traced:
    """Return a function whose named dimensions have the numbers of a point as their hints.

    A hint is the number at which a named size is planned. The function is traced again at the
    point. It is returned unchanged if no size has a name, or if it comes from a loaded plan.
    """
    from shardalg.sizes.symbolic.symbols import name_sizes

    symbols = traced.symbols
    if symbols is None:
        return traced
    # It raises if the function is another program at the point, or cannot be traced there.
    symbols.graph_at(point)
    if symbols.tracer is None:  # a loaded plan, and the point is that of its hints
        return traced
    tracer = symbols.tracer
    # A named size is a symbol that has its hint; the symbols of the point replace the old ones.
    sizes = sizes_of(size for shape in symbols.dims for size in shape)
    new_sizes = {size: Size(name, point[name]) for name, size in sizes.items()}

    def with_new_hints(size: Expr) -> Expr:
        """Return a size, a number or an expression, in terms of the new symbols."""
        return size if isinstance(size, int) else size.xreplace(new_sizes)

    def trace(values: Mapping[str, int]) -> Graph:
        """Return the graph of the function at the point, except for the given values."""
        return tracer({**point, **values})

    graph = trace({})
    dims = [tuple(map(with_new_hints, shape)) for shape in symbols.dims]
    # Further traces at other sizes show which numbers of the graph depend on names.
    new_symbols = name_sizes(graph, dims, trace, symbols.jaxpr_at)
    # Rewrites name nodes of the old graph, so the new one starts without them.
    again = traced.again and partial(_again, traced, point)
    return replace(
        traced, graph=graph, symbols=new_symbols, narrow=None, whole=None, orders=(), again=again
    )


def _again(traced: Traced, point: Mapping[str, int], axes: Mapping[str, int] | None) -> Traced:
    """Return the function with these hints, traced for other sizes of mesh axes."""
    assert traced.again is not None, "a function with manual axes"
    return _with_hints(traced.again(axes), point)
