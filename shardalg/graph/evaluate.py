"""Run a graph node by node through JAX's own primitives: the reference for every check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.extend.core.primitives as extended
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive

from shardalg.errors import TraceError
from shardalg.graph.annotate import annotate_p
from shardalg.graph.ir import Graph, Missing, Node, Params, Plain
from shardalg.graph.plain import HINTS, OPAQUE, SCATTERS, is_opaque
from shardalg.graph.plain import number as plain_number
from shardalg.graph.tracing.written import join_ends_p, positions_p

# What `graph.bindings` holds for a node: JAX's primitive and its parameters.
Binding = tuple[Any, Mapping[str, Any]]
Annotate = Callable[[Node, Any], Any]


def evaluate(
    graph: Graph,
    *arrays: Any,
    annotate: Annotate | None = None,
    scope: Callable[[Node], AbstractContextManager[Any]] | None = None,
) -> list[Any]:
    """The results of the graph on flat arguments, on one device; also inside `jax.jit`.

    Args:
      arrays: one per argument, of its shape and type.
      annotate: called as `annotate(node, value)` at every site, in place of the identity.
      scope: what a node runs in, such as a `jax.named_scope` with its name.

    Raises:
      TraceError: wrong arguments, or a loaded graph without what a node needs (a large constant,
        code as a parameter).

    >>> from shardalg.graph.tracing.trace import trace
    >>> graph = trace(lambda x: {"twice": x + x}, jnp.zeros(2))
    >>> evaluate(graph, jnp.ones(2))[0].tolist()
    [2.0, 2.0]
    """
    _check_arguments(graph, arrays)
    env: dict[int, Any] = {index: _present(graph, index, a) for index, a in graph.constants}
    around = scope or (lambda node: nullcontext())
    run = _Run(graph, annotate or (lambda node, value: value), dict(env), around)
    env.update(zip(graph.arguments, map(_device_array, arrays), strict=True))
    run.region(0, env)
    return [_device_array(env[index]) for index in graph.results]


def apply(
    primitive_name: str, binding: Binding | None, params_override: Params, operands: Sequence[Any]
) -> list[Any]:
    """Run one primitive.

    Args:
      binding: JAX's own primitive and parameters; where it is None, or of another primitive, the
        primitive is looked up by its name.
      params_override: plain parameters that replace those of the binding (local shapes).

    Raises:
      TraceError: no such primitive, or a parameter that is code and has no binding.

    >>> params = (("broadcast_dimensions", ()), ("shape", (2,)))
    >>> apply("broadcast_in_dim", None, params, [np.ones(())])
    [Array([1., 1.], dtype=float32)]
    """
    own = binding if binding is not None and binding[0].name == primitive_name else None
    if own is None and primitive_name in SCATTERS:
        return [_scatter(primitive_name, params_override, operands)]
    primitive, params = own or (find_primitive(primitive_name), {})
    # A hint names the sharding of a global value: no local one has it.
    kept = {name: None if name in HINTS else value for name, value in params.items()}
    if own is None and primitive_name in _HINTED:
        kept[_HINTED[primitive_name]] = None
    changed = {name: jax_param(name, value, primitive_name) for name, value in params_override}
    bound = primitive.get_bind_params({**kept, **changed})
    # Before 0.10 the functions of a call came apart from its parameters.
    functions, bound = bound if isinstance(bound, tuple) else ((), bound)
    if primitive_name == "conv_general_dilated":
        return [_convolved(primitive, *_cropped(operands, bound))]
    results = primitive.bind(*functions, *operands, **bound)
    return list(results) if primitive.multiple_results else [results]


def _cropped(operands: Sequence[Any], params: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
    """Image and kernel, with what a negative padding in front takes away taken before.

    XLA's convolution of f32 on a CPU reads behind the image where the padding is negative in front
    and positive at the end (jaxlib 0.10.2).
    """
    image, kernel = operands
    padding, dims = list(params["padding"]), params["dimension_numbers"].lhs_spec[2:]
    for k, (low, high) in enumerate(padding):
        if low < 0 < high and params["lhs_dilation"][k] == 1 and image.shape[dims[k]] >= -low:
            image = lax.slice_in_dim(image, -low, None, axis=dims[k])
            padding[k] = (0, high)
    return (image, kernel), params | {"padding": tuple(padding)}


def _convolved(primitive: Any, operands: Sequence[Any], params: dict[str, Any]) -> Any:
    """A convolution that XLA's simplifier takes for none of groups.

    Where nothing is padded, the base dilation is the kernel's size and the stride one less, it
    takes a dimension for groups whatever the image's size, and ends the process (`SwapConvOperands`
    in xla/hlo/transforms/simplifiers/algebraic_simplifier.cc; jaxlib 0.10.2, 0.11). There one
    window more is made, and dropped.
    """
    numbers, padding, kept = params["dimension_numbers"], list(params["padding"]), {}
    sides = (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec)
    for k, (image, kernel, out) in enumerate(zip(*(side[2:] for side in sides), strict=True)):
        size, taps = operands[0].shape[image], operands[1].shape[kernel]
        stride, base = params["window_strides"][k], params["lhs_dilation"][k]
        plain = padding[k] == (0, 0) and params["rhs_dilation"][k] == 1
        if plain and base == taps == stride + 1 != size and (size - 1) * base + 1 >= taps:
            padding[k] = (0, stride)
            kept[out] = ((size - 1) * base + 1 - taps) // stride + 1
    made = primitive.bind(*operands, **params | {"padding": tuple(padding)})
    for dim, count in kept.items():
        made = lax.slice_in_dim(made, 0, count, axis=dim)
    return made


def _scatter(name: str, params: Params, operands: Sequence[Any]) -> Any:
    """By JAX's function, which makes the code that joins the updates again."""
    options = {key: jax_param(key, value, name) for key, value in params}
    # None of them is left to its default: that would be another graph.
    numbers, *others = (options.pop(key) for key in ("dimension_numbers", *_SCATTERED))
    options |= dict(zip(_SCATTERED, others, strict=True))
    return getattr(lax, name.replace("-", "_"))(*operands, numbers, **options)


_SCATTERED = ("indices_are_sorted", "mode", "unique_indices")


def find_primitive(name: str) -> Any:
    """JAX's primitive called `name`.

    >>> find_primitive("add_any").name, find_primitive("scatter-add").name
    ('add_any', 'scatter-add')
    """
    found = primitives().get(name)
    if found is None:
        raise TraceError(
            f"no primitive {name!r} is public in jax {jax.__version__}. Trace the function again "
            "instead of using the saved graph."
        )
    return found


@cache
def primitives() -> dict[str, Any]:
    """Name to primitive: our own, then all that jax shows."""
    shown = [p for module in (extended, lax) for p in vars(module).values()]
    barrier = jax.make_jaxpr(lax.optimization_barrier)(0.0).eqns[0].primitive
    own = [annotate_p, positions_p, join_ends_p, barrier]
    return {p.name: p for p in (*shown, *own) if isinstance(p, Primitive)}


def jax_param(name: str, value: Plain, primitive: str) -> Any:
    """A plain parameter as JAX takes it: the inverse of `plain.plain`.

    >>> jax_param("new_dtype", "bfloat16", "convert_element_type")
    dtype(bfloat16)
    """
    if is_opaque(value) and not _is_primitive(value):
        raise TraceError(
            f"the parameter {name} of {primitive} is code ({value}), which a saved graph lacks. "
            "Trace the function again."
        )
    if _is_primitive(value):
        return find_primitive(value[1].removeprefix(_PRIMITIVE))
    return _DECODERS[name](value) if name in _DECODERS and value is not None else value


def _is_primitive(value: Plain) -> bool:
    """Whether code is a primitive, which has a name: `("opaque", "primitive:ge")`."""
    if not (isinstance(value, tuple) and len(value) == 2 and value[0] == OPAQUE):
        return False
    return isinstance(value[1], str) and value[1].startswith(_PRIMITIVE)


def _member(kind: Any) -> Callable[[str | int], Any]:
    """The member of an enum by its name, or by its number where it is one of numbers."""
    return lambda value: kind[value] if isinstance(value, str) else kind(value)


def _dimension_numbers(value: Plain) -> Any:
    named = bool(value) and bool(value[0]) and isinstance(value[0][0], str)
    return _NUMBERINGS[value[0][0]](**dict(value)) if named else value


def _precision(value: Plain) -> Any:
    """A precision or an algorithm by its name, an algorithm by its fields, or one per operand."""
    if value is None:
        return None
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        types: dict[str, Any] = {
            name: jnp.dtype(v) if isinstance(v, str) else v for name, v in value
        }
        return lax.DotAlgorithm(**types)
    if isinstance(value, tuple):
        return tuple(map(_precision, value))
    return (lax.Precision if value in lax.Precision.__members__ else lax.DotAlgorithmPreset)[value]


_PRIMITIVE = "primitive:"
_NUMBERINGS: dict[str, Callable[..., Any]] = {
    "offset_dims": lax.GatherDimensionNumbers,
    "update_window_dims": lax.ScatterDimensionNumbers,
    "lhs_spec": lax.ConvDimensionNumbers,
    "dot_dimension_numbers": lax.RaggedDotDimensionNumbers,
}
_DECODERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(
        ("new_dtype", "dtype", "index_dtype", "out_dtype", "preferred_element_type"), jnp.dtype
    ),
    **dict.fromkeys(("dimension_numbers", "ragged_dot_dimension_numbers"), _dimension_numbers),
    "mode": _member(lax.GatherScatterMode),
    "precision": _precision,
    "fill_value": plain_number,
    "rounding_method": _member(lax.RoundingMethod),
    "fft_type": _member(lax.FftType),
    "algorithm": _member(lax.RandomAlgorithm),
}
# The layout hint that a primitive demands, and that plain parameters leave out.
_HINTED = {
    "broadcast_in_dim": "sharding",
    "convert_element_type": "sharding",
    "dot_general": "out_sharding",
    "iota": "sharding",
    "reduce_sum": "out_sharding",
    "reshape": "sharding",
    "conv_general_dilated": "out_sharding",
    "ragged_dot_general": "out_sharding",
}


@dataclass(frozen=True)
class _Run:
    """One evaluation; `constants` are what the nodes of a body may read from outside."""

    graph: Graph
    annotate: Annotate
    constants: Mapping[int, Any]
    scope: Callable[[Node], AbstractContextManager[Any]]

    def region(self, index: int, env: dict[int, Any]) -> None:
        """Run the nodes of a region in place."""
        for number in self.graph.regions[index].nodes:
            node = self.graph.nodes[number]
            operands = [env[value] for value in node.operands]
            with self.scope(node):
                results = _HANDLERS.get(node.primitive, _apply_node)(self, node, operands)
            env.update(zip(node.results, results, strict=True))

    def body(self, index: int, *arguments: Any) -> list[Any]:
        """The results of a body."""
        region = self.graph.regions[index]
        env = {**self.constants, **dict(zip(region.arguments, arguments, strict=True))}
        self.region(index, env)
        return [_device_array(env[value]) for value in region.results]


def _apply_node(run: _Run, node: Node, operands: list[Any]) -> list[Any]:
    binding = run.graph.bindings[node.index] if run.graph.bindings else None
    override = () if binding is not None else node.signature.params
    return apply(node.primitive, binding, override, operands)


def _apply_annotation(run: _Run, node: Node, operands: list[Any]) -> list[Any]:
    return [run.annotate(node, operands[0])]


def _apply_scan(run: _Run, node: Node, operands: list[Any]) -> list[Any]:
    body = run.graph.regions[node.bodies[0]]
    split = node.signature.param("num_consts")
    carried = node.signature.param("num_carry")
    constants, carry, xs = (
        operands[:split],
        operands[split : split + carried],
        operands[split + carried :],
    )

    def step(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        made = run.body(body.index, *constants, *carry, *xs)
        return made[:carried], made[carried:]

    length, reverse = node.signature.param("length"), node.signature.param("reverse")
    carry, ys = lax.scan(step, carry, xs, length=length, reverse=reverse)
    return [*carry, *ys]


def _apply_while(run: _Run, node: Node, operands: list[Any]) -> list[Any]:
    condition, body = node.bodies
    first = node.signature.param("cond_nconsts")
    both = first + node.signature.param("body_nconsts")
    return lax.while_loop(
        lambda carry: run.body(condition, *operands[:first], *carry)[0],
        lambda carry: run.body(body, *operands[first:both], *carry),
        operands[both:],
    )


def _apply_branches(run: _Run, node: Node, operands: list[Any]) -> list[Any]:
    branches = [partial(run.body, index) for index in node.bodies]
    return lax.switch(operands[0], branches, *operands[1:])


def _apply_manual(run: _Run, node: Node, operands: list[Any]) -> list[Any]:
    """On JAX's own devices: what a region does with its collectives, no single one can."""
    if not run.graph.bindings:
        raise TraceError("a shard_map in a saved graph has no function to run: trace it again.")
    primitive, params = run.graph.bindings[node.index]
    kept = {k: v for k, v in params.items() if k not in _BORDER}
    return apply(node.primitive, (primitive, kept), (), operands)


_BORDER = ("axes", "in_axes", "out_axes")
"""Of a region's node, what its equation does not say so."""
_HANDLERS: dict[str, Callable[[_Run, Node, list[Any]], list[Any]]] = {
    "annotate": _apply_annotation,
    "scan": _apply_scan,
    "while": _apply_while,
    "cond": _apply_branches,
    "shard_map": _apply_manual,
}


def _device_array(array: Any) -> Any:
    return array if isinstance(array, jax.Array) else jnp.asarray(array)


def _check_arguments(graph: Graph, arrays: Sequence[Any]) -> None:
    if len(arrays) != len(graph.arguments):
        raise TraceError(
            f"the graph has {len(graph.arguments)} arguments "
            f"({', '.join(graph.argument_paths[:8])}), got {len(arrays)}. Pass one array for each."
        )
    bad = [
        f"{path} is {np.shape(array)}, traced as {graph.values[index].type}"
        for path, index, array in zip(graph.argument_paths, graph.arguments, arrays, strict=True)
        if tuple(np.shape(array)) != graph.values[index].type.shape
    ]
    if bad:
        raise TraceError(f"arguments of another shape: {'; '.join(bad[:8])}. Trace again for them.")


def _present(graph: Graph, index: int, array: Any) -> Any:
    if isinstance(array, Missing):
        raise TraceError(
            f"the constant {graph.values[index].name} of type {graph.values[index].type} was too "
            "large to be saved. Trace the function again."
        )
    return array


def is_key(array: Any) -> bool:
    """Whether an array holds random keys.

    >>> is_key(jax.random.key(0)), is_key(jax.random.PRNGKey(0)), is_key(2.0)
    (True, False, False)
    """
    dtype = getattr(array, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def words(keys: Any) -> list[Any]:
    """Each word of all keys."""
    data = jax.random.key_data(keys)
    return [data[..., place] for place in range(data.shape[-1])]


def of_words(parts: Sequence[Any], like: Any) -> Any:
    """The keys of these words, of the same kind as others.

    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> bool((of_words(words(keys), keys) == keys).all())
    True
    """
    data = jnp.stack([jnp.asarray(part) for part in parts], -1)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(like))


def by_word(move: Callable[..., Sequence[Any]], *operands: Any) -> list[Any]:
    """What a move makes of its operands, of those that are keys word by word.

    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> (padded,) = by_word(lambda x: [jnp.pad(x, [(1, 0)])], keys)
    >>> padded.shape, bool((padded[1:] == keys).all())
    ((4,), True)
    """
    like = next(filter(is_key, operands), None)
    if like is None:
        return list(move(*operands))
    each = [words(x) if is_key(x) else [x] * len(words(like)) for x in operands]
    made = [move(*given) for given in zip(*each, strict=True)]
    return [of_words(parts, like) for parts in zip(*made, strict=True)]
