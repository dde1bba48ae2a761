"""Expansion of some of JAX's primitives into primitives that have rows, during tracing.

Random bits: `jax.random` uses one primitive for all bits of an array, so that each device would
compute all of them. The expansion is `threefry2x32` of the elements' positions, with the same bits.
The positions are computed by the primitive `positions` of shardalg, because no primitive of JAX can
start at the position of a device's block.

Derivatives by integers are arrays of JAX's type `float0`, without content. A graph has no value for
them. In the tree of a function's results each becomes a node without leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from shardalg.errors import TraceError
from shardalg.graph.tracing.attention import backward, forward, has_expansion
from shardalg.graph.tracing.control_flow import ATTENTION, INDEXED, RAGGED_DOT
from shardalg.graph.tracing.grouped import grouped_rows
from shardalg.graph.tracing.subgroups import evaluated

FLOAT0 = jax.dtypes.float0


@dataclass(frozen=True)
class Nothing:
    """Replacement of a `float0` array in a tree of results: a tree node without leaves."""

    shape: tuple[int, ...]


jax.tree_util.register_pytree_node(
    Nothing, lambda nothing: ((), nothing.shape), lambda shape, _: Nothing(shape)
)


def without_float0(results: Any) -> Any:
    """Return the tree with a `Nothing` in place of each `float0` array.

    >>> without_float0({"x": 1.0, "index": np.zeros(3, FLOAT0)})
    {'index': Nothing(shape=(3,)), 'x': 1.0}
    """
    return jax.tree.map(lambda x: Nothing(x.shape) if _is_float0(x) else x, results)


def with_float0(results: Any) -> Any:
    """Return the tree with a `float0` array in place of each `Nothing`.

    >>> with_float0({"index": Nothing((3,)), "x": 1.0})["index"].dtype == FLOAT0
    True
    """
    return jax.tree.map(
        lambda x: np.zeros(x.shape, FLOAT0) if isinstance(x, Nothing) else x,
        results,
        is_leaf=lambda x: isinstance(x, Nothing),
    )


def refuse_float0(path: str, leaf: Any) -> None:
    """Raise TraceError if an argument has the type `float0`."""
    if _is_float0(leaf):
        raise TraceError(
            f"{path} is of type float0, which has no content: it is the tangent of an integer. "
            "Create it inside the function: numpy.zeros(shape, jax.dtypes.float0)."
        )


def _is_float0(leaf: Any) -> bool:
    """Return whether a value is a `float0` array."""
    return getattr(leaf, "dtype", None) == FLOAT0


WORD, HALF = 1 << 32, 1 << 16


def bits_of(equation: Any) -> Any | None:
    """Return a jaxpr that computes a `random_bits` with JAX's default keys; None for other keys.

    The primitive `random_bits` computes all bits of an array at once. The jaxpr has elementwise
    operators instead, so that each device computes only the bits of its block.
    """
    (keys,) = (var.aval for var in equation.invars)
    key_type: Any = getattr(keys.dtype, "_impl", None)
    if getattr(key_type, "name", None) != "threefry2x32":
        return None
    bit_width, shape = equation.params["bit_width"], equation.params["shape"]

    def bits(words: Any) -> Any:
        """Return the random bits for one key, given as two words."""
        return key_type.random_bits(words, bit_width, shape)

    # `bits` takes a single key, so each dimension of the array of keys needs a `vmap`.
    for _ in keys.shape:
        bits = jax.vmap(bits)
    spec = jax.ShapeDtypeStruct(keys.shape, keys.dtype)
    return jax.make_jaxpr(lambda keys: bits(jax.random.key_data(keys)))(spec)


def positions_of(equation: Any) -> Any:
    """Return a jaxpr that computes an `iota_2x32_shape` by the primitive `positions`.

    Its result are the positions of all elements in row-major order, in two 32-bit words.
    """
    shape = equation.params["shape"]
    strides = tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))
    starts = [np.uint32(0)] * len(shape)
    return jax.make_jaxpr(lambda: positions_p.bind(*starts, shape=shape, strides=strides))()


def positions(*starts: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the high and low 32 bits of `sum over d of (starts[d] + index_d) * strides[d]`.

    >>> high, low = positions(np.uint32(4), np.uint32(0), shape=(1, 3), strides=(2**31, 1))
    >>> high.tolist(), low.tolist()
    ([[2, 2, 2]], [[0, 1, 2]])
    """
    high, low = jnp.zeros(shape, "uint32"), jnp.zeros(shape, "uint32")
    for dim, (start, stride) in enumerate(zip(starts, strides, strict=True)):
        index = lax.broadcasted_iota("uint32", shape, dim) + start
        added = index * np.uint32(stride % WORD)
        low = low + added
        # An unsigned sum wraps around exactly if it is smaller than an addend.
        carry = (low < added).astype("uint32")
        high = high + _high_word(index, stride % WORD) + index * np.uint32(stride // WORD) + carry
    return high, low


def _high_word(x: Any, factor: int) -> Any:
    """Return the upper 32 of the 64 bits of `x * factor`, by products of 16-bit halves."""
    # With x = a*2^16 + b and factor = c*2^16 + d:
    # x*factor = a*c*2^32 + (a*d + b*c)*2^16 + b*d. A product of two halves fits into 32 bits.
    mask, shift = np.uint32(HALF - 1), np.uint32(16)
    major, minor = (np.uint32(n) for n in divmod(factor, HALF))
    cross = (x >> shift) * minor, (x & mask) * major
    middle = ((x & mask) * minor >> shift) + (cross[0] & mask) + (cross[1] & mask)
    upper = (x >> shift) * major
    return upper + (cross[0] >> shift) + (cross[1] >> shift) + (middle >> shift)


# The starts of `positions` are operands, so that a device can start at the position of its block.
positions_p = Primitive("positions")
positions_p.multiple_results = True
positions_p.def_impl(positions)
positions_p.def_abstract_eval(lambda first, *_, shape, strides: (first.update(shape=shape),) * 2)
mlir.register_lowering(positions_p, mlir.lower_fun(positions, multiple_results=True))


def written_out(equation: Any) -> Any | None:
    """Return a closed jaxpr that computes an equation by primitives with rows, or None.

    None if the equation has no expansion and stays one node.
    """
    return _EXPANSIONS[equation.primitive.name](equation)


def _body(function: Callable[..., Any], equation: Any) -> Any:
    """Return the closed jaxpr of a function, traced on the types of an equation's operands.

    The manual axes of the equation are known in the function.
    """
    types = (var.aval for var in equation.invars)
    structs = (jax.ShapeDtypeStruct(v.shape, v.dtype) for v in types)
    # A collective in the function needs the sizes of the axes along which its region is manual.
    mesh = equation.ctx.cur_abstract_mesh
    axes = [(name, int(mesh.shape[name])) for name in getattr(mesh, "manual_axes", ())]
    return jax.make_jaxpr(function, axis_env=axes)(*structs)


def _split(equation: Any) -> Any:
    """Return a jaxpr that computes a `split` by one slice per part."""
    axis, sizes = equation.params["axis"], equation.params["sizes"]
    ends = tuple(accumulate(sizes))

    def slices(x: Any) -> list[Any]:
        parts = zip(sizes, ends, strict=True)
        # A part ends at the sum of all sizes up to its own.
        return [lax.slice_in_dim(x, end - size, end, axis=axis) for size, end in parts]

    return _body(slices, equation)


def _stacked(equation: Any) -> Any:
    """Return a jaxpr that computes a `stack` by a concatenation, or an `unstack` by slices."""
    axis = equation.params["axis"]
    # A stack adds a dimension of size 1 to each operand and concatenates them along it.
    if equation.primitive.name == "stack":
        return _body(
            lambda *xs: lax.concatenate([lax.expand_dims(x, (axis,)) for x in xs], axis), equation
        )
    # `unstack` removes the dimension, which a slice alone would keep with size 1.
    return _body(
        lambda x: [
            lax.index_in_dim(x, k, axis, keepdims=False) for k in range(len(equation.outvars))
        ],
        equation,
    )


def _while(equation: Any) -> Any:
    """Return a jaxpr that computes a while loop under `vmap` by a loop with one condition.

    The loop runs while any batch element continues. Finished elements keep their carry, as in JAX's
    own compilation. The carry includes the mask of unfinished elements, so that each iteration
    evaluates the condition once.

    >>> loop = jax.vmap(lambda n: lax.while_loop(lambda i: i < n, lambda i: i + 1, 0))
    >>> *_, equation = jax.make_jaxpr(loop)(jax.numpy.arange(3)).eqns
    >>> inner = _while(equation).eqns[-1].params["cond_jaxpr"]
    >>> inner.out_avals[0].shape
    ()
    """
    params = equation.params
    first = params["cond_nconsts"]
    both = first + params["body_nconsts"]
    condition, body = (partial(evaluated, params[name]) for name in ("cond_jaxpr", "body_jaxpr"))

    def loop(*operands: Any) -> list[Any]:
        """Run a batched `while`: iterate until the condition is false for all batch elements.

        An element whose condition is false keeps its carry.

        Args:
          operands: constants of the condition, constants of the body, and the initial carry.
        """

        def goes_on(carry: list[Any]) -> Any:
            """Return, per batch element, whether its condition is true."""
            return condition(*operands[:first], *carry)[0]

        def step(state: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
            """Return the next state of the loop: which elements continue, and the carry."""
            is_running, carry = state
            new_carry = body(*operands[first:both], *carry)
            # A flag per batch element becomes one per element of the carry. A finished element
            # keeps its value.
            masks = [
                lax.broadcast_in_dim(is_running, x.shape, range(is_running.ndim)) for x in new_carry
            ]
            next_carry = [lax.select(*row) for row in zip(masks, new_carry, carry, strict=True)]
            return goes_on(next_carry), next_carry

        # One flag crosses devices per iteration: whether any element continues.
        start = list(operands[both:])
        state = (goes_on(start), start)
        return lax.while_loop(lambda s: lax.reduce_or(s[0], range(s[0].ndim)), step, state)[1]

    return _body(loop, equation)


def _wide_indices(equation: Any) -> Any | None:
    """Return a jaxpr with a gather's or scatter's indices converted to 32 bits.

    None if they have 32 bits or more.
    A device shifts indices to its block, `i - p*block`. In 8 or 16 bits this wraps around, so that
    the index of another block would select an element of this block.
    """
    indices = equation.invars[1].aval.dtype
    if indices.itemsize >= _INDEX.itemsize:
        return None

    def wide(x: Any, i: Any, *more: Any) -> Any:
        return equation.primitive.bind(x, i.astype(_INDEX), *more, **equation.params)

    return _body(wide, equation)


def join_ends(*xs: Any, dimension: int, sizes: tuple[int, ...]) -> Any:
    """Return the last `sizes[0]` elements of the first operand, then the first ones of the others.

    >>> x = jax.numpy.arange(5)
    >>> join_ends(x, x, dimension=0, sizes=(2, 3)).tolist()
    [3, 4, 0, 1, 2]
    """
    skipped = (xs[0].shape[dimension] - sizes[0], *(0 for _ in sizes[1:]))
    triples = zip(xs, skipped, sizes, strict=True)
    pieces = [lax.slice_in_dim(x, a, a + size, axis=dimension) for x, a, size in triples]
    return lax.concatenate(pieces, dimension)


# Graph rewrites produce this primitive; it has a row, and no equation of JAX.
join_ends_p = Primitive("join_ends")
join_ends_p.def_impl(join_ends)
join_ends_p.def_abstract_eval(
    lambda first, *_, dimension, sizes: first.update(
        shape=(*first.shape[:dimension], sum(sizes), *first.shape[dimension + 1 :])
    )
)
mlir.register_lowering(join_ends_p, mlir.lower_fun(join_ends, multiple_results=False))


def rotated(x: Any, by: int) -> Any:
    """Return `jnp.roll(x, by, 0)` as one primitive, whose derivative is one rotation too.

    JAX's derivative of `jnp.roll` consists of two shifts.

    >>> rotated(jax.numpy.arange(4), 1).tolist()
    [3, 0, 1, 2]
    """
    return rotate_p.bind(x, by=by, dim=0)


def _rolled(x: Any, *, by: int, dim: int) -> Any:
    """Return `jnp.roll(x, by, dim)`."""
    return jax.numpy.roll(x, by, dim)


# The derivative rule of this primitive is one rotation. JAX transposes `jnp.roll` to two shifts.
rotate_p = Primitive("rotate")
rotate_p.def_impl(_rolled)
rotate_p.def_abstract_eval(lambda x, **params: x)
ad.deflinear2(rotate_p, lambda dy, _, *, by, dim: [rotate_p.bind(dy, by=-by, dim=dim)])
# Under `vmap`, a batch dimension at or before the rotated one moves the rotated one up by one.
batching.primitive_batchers[rotate_p] = lambda values, dims, *, by, dim: (
    rotate_p.bind(values[0], by=by, dim=dim + (dims[0] <= dim)),
    dims[0],
)
mlir.register_lowering(rotate_p, mlir.lower_fun(_rolled, multiple_results=False))

_INDEX = np.dtype("int32")


def _over_dimensions(equation: Any) -> Any:
    """Return a jaxpr that computes a collective's reduction over dimensions of its operands.

    `vmap(..., axis_name=)` replaces an axis name of a collective by the number of a dimension.
    Axes with a name are left out.

    >>> mean = jax.vmap(lambda x: x - lax.psum(x, "batch"), axis_name="batch")
    >>> psum, *_ = jax.make_jaxpr(mean)(jax.numpy.ones((8, 3))).eqns
    >>> _over_dimensions(psum).eqns[0].primitive.name
    'reduce_sum'
    """
    reduce = _REDUCED[equation.primitive.name]
    dims = [axis for axis in equation.params["axes"] if not isinstance(axis, str)]
    return _body(lambda *xs: [reduce(x, dims) for x in xs], equation)


_REDUCED = {"psum": lax.reduce_sum, "pmax": lax.reduce_max, "pmin": lax.reduce_min}


def _attention(equation: Any) -> Any | None:
    """Return a jaxpr that computes cuDNN's attention by products and a softmax.

    None if it has dropout, packed sequences or paged keys.
    """
    if not has_expansion(equation):
        return None
    run = forward if "is_training" in equation.params else backward
    return _body(partial(run, **equation.params), equation)


_EXPANSIONS: dict[str, Callable[[Any], Any | None]] = {
    **dict.fromkeys(ATTENTION, _attention),
    **dict.fromkeys(INDEXED, _wide_indices),
    **dict.fromkeys(_REDUCED, _over_dimensions),
    # A product whose ragged dimension is a batch has no expansion.
    RAGGED_DOT: lambda equation: (
        None if (run := grouped_rows(equation)) is None else _body(run, equation)
    ),
    "iota_2x32_shape": positions_of,
    "random_bits": bits_of,
    # JAX traces `jnp.roll` by a known distance to a concatenation of two slices.
    "rotate": lambda equation: _body(partial(_rolled, **equation.params), equation),
    "split": _split,
    **dict.fromkeys(("stack", "unstack"), _stacked),
    "while": _while,
}
