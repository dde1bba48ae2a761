"""Which sizes of a program depend on named sizes, by a trace with JAX's symbolic dimensions.

Two traces at numbers do not tell that Python code made a size without reading the named ones: the
16 in `x.reshape(B, S, 16, 128)` is the same in both, and so is `min(B, 512)`. In a trace with
symbolic dimensions (`jax.export.symbolic_shape`) there are no numbers to read. A size that is a
number in such a trace is that number at all sizes.

JAX decides `==` of two symbolic sizes as False if it cannot know. The program at the hints must
therefore be the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jax import export

from shardalg.graph.tracing.manual import equations

JaxprTracer = Callable[[Mapping[str, Any]], Any]
"""Function that returns the jaxpr of the user's function at given numbers, or symbolic dimensions,
of all named sizes."""
_BRANCHING = ("max(", "min(", "mod(", "floordiv(")
"""Operations of symbolic sizes whose result may be the same number at several sizes."""


def dependent_sizes(jaxpr_at: JaxprTracer, hints: Mapping[str, int]) -> frozenset[int] | None:
    """Return the numbers at the hints of all sizes of a program that depend on the named sizes.

    The result is None if that is not known: the function cannot be traced with symbolic dimensions,
    is another program then, or has a size that is no polynomial of the named ones.

    Args:
      hints: the number of each named size.

    >>> import jax
    >>> def jaxpr_at(sizes):
    ...     x = jax.ShapeDtypeStruct((sizes["B"], 6), "float32")
    ...     return jax.make_jaxpr(lambda x: x.reshape(-1, 2, 3) + 1)(x)
    >>> dependent_sizes(jaxpr_at, {"B": 8})
    frozenset({8})
    """
    try:
        dims = export.symbolic_shape(", ".join(hints))
        symbolic = _operators(jaxpr_at(dict(zip(hints, dims, strict=True))))
        at_numbers = _operators(jaxpr_at(hints))
    # JAX and the user's function may raise anything for sizes without numbers.
    except Exception:
        return None
    sizes = {size for _, shapes in symbolic for shape in shapes for size in shape}
    dependent = {size for size in sizes if not isinstance(size, int)}
    if any(word in str(size) for size in dependent for word in _BRANCHING):
        return None
    # JAX writes powers as `B^2`. The text has only names, integers and operators.
    number_of = {
        size: eval(str(size).replace("^", "**"), {"__builtins__": {}}, dict(hints))
        for size in dependent
    }
    at_hints = [
        (name, [tuple(number_of.get(size, size) for size in shape) for shape in shapes])
        for name, shapes in symbolic
    ]
    return frozenset(number_of.values()) if at_hints == at_numbers else None


def _operators(jaxpr: Any) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """Return the operators of a jaxpr in order, each with its sizes.

    Scalars are left out: a size as a value is a constant at numbers, and computed from a symbolic
    dimension. The sizes are those of the results, and those in parameters, as lengths of loops.
    """
    operators = []
    for equation in equations(jaxpr):
        shapes = [tuple(getattr(out.aval, "shape", ())) for out in equation.outvars]
        if any(shapes):
            sizes = tuple(_sizes(list(equation.params.values())))
            operators.append((equation.primitive.name, [*shapes, sizes]))
    return operators


def _sizes(part: Any) -> Iterator[Any]:
    """Yield the sizes in a parameter: integers and symbolic dimensions, in nested tuples."""
    if isinstance(part, tuple | list):
        for each in part:
            yield from _sizes(each)
    elif type(part) is int or export.is_symbolic_dim(part):
        yield part
