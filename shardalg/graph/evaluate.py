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
from shardalg.graph.tracing.grouped import grouped_dot_p, row_groups_p
from shardalg.graph.tracing.written import join_ends_p, positions_p

Binding = tuple[Any, Mapping[str, Any]]
"""An entry of `graph.bindings`: JAX's primitive and its parameters.

They are needed because a node's plain parameters do not include code, such as the function of a
reduction.
"""
Annotate = Callable[[Node, Any], Any]


def evaluate(
    graph: Graph,
    *arrays: Any,
    annotate: Annotate | None = None,
    scope: Callable[[Node], AbstractContextManager[Any]] | None = None,
) -> list[Any]:
    """Return the list of the graph's results for these arrays, computed on one device.

    It may also be called inside `jax.jit`.

    Args:
      arrays: one per argument, of its shape and type.
      annotate: called as `annotate(node, value)` at every site; the default is the identity.
      scope: returns the context in which a node runs, such as a `jax.named_scope`.

    Raises:
      TraceError: the arguments do not match, or a loaded graph lacks a large constant or a
        parameter that is code.

    >>> from shardalg.graph.tracing.trace import trace
    >>> graph = trace(lambda x: {"twice": x + x}, jnp.zeros(2))
    >>> evaluate(graph, jnp.ones(2))[0].tolist()
    [2.0, 2.0]
    """
    _check_arguments(graph, arrays)
    for index, array in graph.constants:
        if isinstance(array, Missing):
            raise TraceError(
                f"the constant {graph.values[index].name} of type {graph.values[index].type} was "
                "too large to be saved. Trace the function again."
            )
    env: dict[int, Any] = dict(graph.constants)
    context = scope or (lambda node: nullcontext())
    # Bodies read constants from outside but no arguments, so the copy is made before these are
    # added.
    run = _Run(graph, annotate or (lambda node, value: value), dict(env), context)
    env.update(zip(graph.arguments, map(_device_array, arrays), strict=True))
    run.region(0, env)
    return [_device_array(env[index]) for index in graph.results]


def apply(
    primitive_name: str, binding: Binding | None, params_override: Params, operands: Sequence[Any]
) -> list[Any]:
    """Run one primitive on arrays and return the list of its results.

    Args:
      binding: JAX's own primitive and parameters. If it is None, or for another primitive, the
        primitive is looked up by its name.
      params_override: plain parameters that replace those of the binding. For example, `shape` is
        replaced by the shape of a device's block.

    Raises:
      TraceError: there is no such primitive, or a parameter without a binding is code.

    >>> params = (("broadcast_dimensions", ()), ("shape", (2,)))
    >>> apply("broadcast_in_dim", None, params, [np.ones(())])
    [Array([1., 1.], dtype=float32)]
    """
    # The parameters of another primitive's binding do not fit this primitive.
    own = binding if binding is not None and binding[0].name == primitive_name else None
    if own is None and primitive_name in SCATTERS:
        # JAX's function of that name builds the code that combines updates, which was not saved.
        options = {key: jax_param(key, value, primitive_name) for key, value in params_override}
        # No option is left to its default, which could differ from the saved graph.
        numbers, *others = (options.pop(key) for key in ("dimension_numbers", *_SCATTER_OPTIONS))
        options |= dict(zip(_SCATTER_OPTIONS, others, strict=True))
        return [getattr(lax, primitive_name.replace("-", "_"))(*operands, numbers, **options)]
    primitive, params = own or (find_primitive(primitive_name), {})
    # A hint is the sharding of a global value, which local values do not have.
    kept = {name: None if name in HINTS else value for name, value in params.items()}
    if own is None and primitive_name in _HINTED:
        kept[_HINTED[primitive_name]] = None
    changed = {name: jax_param(name, value, primitive_name) for name, value in params_override}
    bound = primitive.get_bind_params({**kept, **changed})
    # Before JAX 0.10 the functions of a call were returned separately from its parameters.
    functions, bound = bound if isinstance(bound, tuple) else ((), bound)
    if primitive_name == "conv_general_dilated":
        return [_convolve(primitive, *_crop_image(operands, bound))]
    results = primitive.bind(*functions, *operands, **bound)
    return list(results) if primitive.multiple_results else [results]


def _crop_image(operands: Sequence[Any], params: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
    """Return the operands and parameters of a convolution without negative padding in front.

    The image is sliced instead. XLA's float32 convolution on a CPU reads beyond the image if the
    padding is negative in front and positive at the end (jaxlib 0.10.2).
    """
    image, kernel = operands
    padding, dims = list(params["padding"]), params["dimension_numbers"].lhs_spec[2:]
    for k, (low, high) in enumerate(padding):
        if low < 0 < high and params["lhs_dilation"][k] == 1 and image.shape[dims[k]] >= -low:
            image = lax.slice_in_dim(image, -low, None, axis=dims[k])
            padding[k] = (0, high)
    return (image, kernel), params | {"padding": tuple(padding)}


def _convolve(primitive: Any, operands: Sequence[Any], params: dict[str, Any]) -> Any:
    """Return a convolution in a form that does not crash XLA's simplifier.

    The simplifier mistakes a spatial dimension for groups if it is not padded, its base dilation is
    the kernel's size, and the stride is one less. It then aborts the process (`SwapConvOperands`
    in xla/hlo/transforms/simplifiers/algebraic_simplifier.cc; jaxlib 0.10.2, 0.11). In this case
    the convolution computes one more window, which is dropped.
    """
    numbers, padding, kept = params["dimension_numbers"], list(params["padding"]), {}
    sides = (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec)
    for k, (image, kernel, out) in enumerate(zip(*(side[2:] for side in sides), strict=True)):
        size, taps = operands[0].shape[image], operands[1].shape[kernel]
        stride, base = params["window_strides"][k], params["lhs_dilation"][k]
        # A dilated image has (size - 1)*base + 1 elements. Padding of one stride at its end makes
        # room for exactly one more window, which is cut off again below.
        plain = padding[k] == (0, 0) and params["rhs_dilation"][k] == 1
        if plain and base == taps == stride + 1 != size and (size - 1) * base + 1 >= taps:
            padding[k] = (0, stride)
            kept[out] = ((size - 1) * base + 1 - taps) // stride + 1
    result = primitive.bind(*operands, **params | {"padding": tuple(padding)})
    for dim, count in kept.items():
        result = lax.slice_in_dim(result, 0, count, axis=dim)
    return result


_SCATTER_OPTIONS = ("indices_are_sorted", "mode", "unique_indices")


def find_primitive(name: str) -> Any:
    """Return the primitive called `name`; raise TraceError if JAX exports none.

    >>> find_primitive("add_any").name, find_primitive("scatter-add").name
    ('add_any', 'scatter-add')
    """
    primitive = primitives().get(name)
    if primitive is None:
        raise TraceError(
            f"no primitive {name!r} is public in jax {jax.__version__}. Trace the function again "
            "instead of using the saved graph."
        )
    return primitive


@cache
def primitives() -> dict[str, Any]:
    """Return the primitives by name: the primitives of shardalg, and all that JAX exports."""
    shown = [p for module in (extended, lax) for p in vars(module).values()]
    barrier = jax.make_jaxpr(lax.optimization_barrier)(0.0).eqns[0].primitive
    own = [annotate_p, positions_p, join_ends_p, row_groups_p, grouped_dot_p, barrier]
    return {p.name: p for p in (*shown, *own) if isinstance(p, Primitive)}


def jax_param(name: str, value: Plain, primitive: str) -> Any:
    """Return a plain parameter as JAX expects it: the inverse of `plain.plain`.

    Args:
      name, value: the parameter.
      primitive: the primitive's name, for the error message.

    Raises:
      TraceError: the parameter is code, which plain data do not include.

    >>> jax_param("new_dtype", "bfloat16", "convert_element_type")
    dtype(bfloat16)
    """
    if is_opaque(value) and not _is_primitive(value):
        raise TraceError(
            f"the parameter {name} of {primitive} is code ({value}), which is not saved in a "
            "graph. Trace the function again."
        )
    if _is_primitive(value):
        return find_primitive(value[1].removeprefix(_PRIMITIVE))
    return _DECODERS[name](value) if name in _DECODERS and value is not None else value


def _is_primitive(value: Plain) -> bool:
    """Return whether plain data stand for a JAX primitive, such as `("opaque", "primitive:ge")`."""
    if not (isinstance(value, tuple) and len(value) == 2 and value[0] == OPAQUE):
        return False
    return isinstance(value[1], str) and value[1].startswith(_PRIMITIVE)


def _member(kind: Any) -> Callable[[str | int], Any]:
    """Return a function from the name or the number of an enum's member to the member."""
    return lambda value: kind[value] if isinstance(value, str) else kind(value)


def _precision(value: Plain) -> Any:
    """Return JAX's `precision` parameter of a matrix product or convolution from plain data.

    Plain data are the name of a precision or of an algorithm, the fields of a `DotAlgorithm`, or a
    tuple with an entry per operand.
    """
    if value is None:
        return None
    # The fields of a `DotAlgorithm` are pairs (name, value); types are stored as names.
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        types: dict[str, Any] = {
            name: jnp.dtype(v) if isinstance(v, str) else v for name, v in value
        }
        return lax.DotAlgorithm(**types)
    if isinstance(value, tuple):
        return tuple(map(_precision, value))
    # A name belongs to one of two enumerations of JAX.
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
    # Plain data of a named tuple are (field, value) pairs; the first field says which tuple it was.
    # The dimension numbers of a dot are a tuple without names, which may be empty.
    **dict.fromkeys(
        ("dimension_numbers", "ragged_dot_dimension_numbers"),
        lambda value: (
            _NUMBERINGS[value[0][0]](**dict(value))
            if value and value[0] and isinstance(value[0][0], str)
            else value
        ),
    ),
    "mode": _member(lax.GatherScatterMode),
    "precision": _precision,
    "fill_value": plain_number,
    "rounding_method": _member(lax.RoundingMethod),
    "fft_type": _member(lax.FftType),
    "algorithm": _member(lax.RandomAlgorithm),
}
# JAX's `bind` fails without these parameters. A saved graph does not have them, because
# `plain.plain_params` drops layout hints (`HINTS`).
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
"""By primitive, the name of the parameter with the layout hint that it requires."""


@dataclass(frozen=True)
class _Run:
    """One evaluation of a graph on given arrays.

    Attributes:
      annotate, scope: see `evaluate`.
      constants: the arrays of the graph's constants by value index. Bodies of loops and branches
        may read them.
    """

    graph: Graph
    annotate: Annotate
    constants: Mapping[int, Any]
    scope: Callable[[Node], AbstractContextManager[Any]]

    def region(self, index: int, env: dict[int, Any]) -> None:
        """Run the nodes of a region and add their results to `env`.

        A region is the program itself, or the body of a loop or branch.

        Args:
          index: the region.
          env: the array of each value that is known so far, by value index.
        """
        for number in self.graph.regions[index].nodes:
            node = self.graph.nodes[number]
            operands = [env[value] for value in node.operands]
            handler = _HANDLERS.get(node.primitive)
            with self.scope(node):
                # Calls and annotations have handlers, because JAX cannot apply them to arrays
                # directly.
                if handler is not None:
                    results = handler(self, node, operands)
                else:
                    binding = self.graph.bindings[node.index] if self.graph.bindings else None
                    # A binding has JAX's own parameters; a graph from a file has plain ones.
                    override = () if binding is not None else node.signature.params
                    results = apply(node.primitive, binding, override, operands)
            env.update(zip(node.results, results, strict=True))

    def body(self, index: int, *arguments: Any) -> list[Any]:
        """Return the results of region `index`, the body of a loop or branch, for these arrays."""
        region = self.graph.regions[index]
        env = {**self.constants, **dict(zip(region.arguments, arguments, strict=True))}
        self.region(index, env)
        return [_device_array(env[value]) for value in region.results]


def _apply_scan(run: _Run, node: Node, operands: list[Any]) -> list[Any]:
    """Return the final carry of a scan and its stacked outputs, in one list.

    The operands are the body's constants, the initial carry, and the arrays that are scanned over.
    """
    body = run.graph.regions[node.bodies[0]]
    num_consts = node.signature.param("num_consts")
    num_carry = node.signature.param("num_carry")
    constants, carry, xs = (
        operands[:num_consts],
        operands[num_consts : num_consts + num_carry],
        operands[num_consts + num_carry :],
    )

    # `lax.scan` needs a function from (carry, slices) to (carry, outputs).
    def step(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        """Run the body once; return the next carry and the outputs of this iteration."""
        results = run.body(body.index, *constants, *carry, *xs)
        return results[:num_carry], results[num_carry:]

    length, reverse = node.signature.param("length"), node.signature.param("reverse")
    carry, ys = lax.scan(step, carry, xs, length=length, reverse=reverse)
    return [*carry, *ys]


def _apply_while(run: _Run, node: Node, operands: list[Any]) -> list[Any]:
    """Return the final carry of a while loop.

    The operands are constants of the condition, constants of the body, and the initial carry.
    """
    # The condition returns one boolean, as the only result of its body.
    condition, body = node.bodies
    body_start = node.signature.param("cond_nconsts")
    carry_start = body_start + node.signature.param("body_nconsts")
    return lax.while_loop(
        lambda carry: run.body(condition, *operands[:body_start], *carry)[0],
        lambda carry: run.body(body, *operands[body_start:carry_start], *carry),
        operands[carry_start:],
    )


def _apply_manual(run: _Run, node: Node, operands: list[Any]) -> list[Any]:
    """Return the results of a `shard_map`, run by JAX on its own mesh of devices.

    JAX's mesh must exist: a region with collectives cannot be evaluated on one device.

    Raises:
      TraceError: the graph was loaded from a file, which does not contain the function.
    """
    if not run.graph.bindings:
        raise TraceError(
            "a saved graph has no function for its shard_map. Trace the function again."
        )
    primitive, params = run.graph.bindings[node.index]
    # These parameters were added by tracing; the equation of JAX has none of them.
    added = ("axes", "in_axes", "out_axes")
    jax_params = {k: v for k, v in params.items() if k not in added}
    return apply(node.primitive, (primitive, jax_params), (), operands)


# These nodes cannot be run by `apply`: an annotation calls the caller's function, and the others
# have bodies, which must be run node by node.
_HANDLERS: dict[str, Callable[[_Run, Node, list[Any]], list[Any]]] = {
    "annotate": lambda run, node, operands: [run.annotate(node, operands[0])],
    "scan": _apply_scan,
    "while": _apply_while,
    # Operand 0 is the number of the branch, also for a condition: JAX converts it to an integer.
    "cond": lambda run, node, operands: lax.switch(
        operands[0], [partial(run.body, index) for index in node.bodies], *operands[1:]
    ),
    "shard_map": _apply_manual,
}


def _device_array(array: Any) -> Any:
    """Return a number or an array as a JAX array."""
    return array if isinstance(array, jax.Array) else jnp.asarray(array)


def _check_arguments(graph: Graph, arrays: Sequence[Any]) -> None:
    """Raise TraceError if the number of arrays is wrong, or if an array has a wrong shape."""
    if len(arrays) != len(graph.arguments):
        raise TraceError(
            f"the graph has {len(graph.arguments)} arguments "
            f"({', '.join(graph.argument_paths[:8])}), got {len(arrays)}. Pass one array for each."
        )
    wrong_arguments = [
        f"{path} is {np.shape(array)}, traced as {graph.values[index].type}"
        for path, index, array in zip(graph.argument_paths, graph.arguments, arrays, strict=True)
        if tuple(np.shape(array)) != graph.values[index].type.shape
    ]
    if wrong_arguments:
        raise TraceError(
            f"arguments of another shape: {'; '.join(wrong_arguments[:8])}. Trace the function "
            "again with them."
        )


def is_key(array: Any) -> bool:
    """Return whether the elements of an array are random keys.

    >>> is_key(jax.random.key(0)), is_key(jax.random.PRNGKey(0)), is_key(2.0)
    (True, False, False)
    """
    dtype = getattr(array, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def words(keys: Any) -> list[Any]:
    """Return the integers that random keys consist of, one array per word of a key.

    A threefry key has two words, so an array of threefry keys gives two arrays of its shape.
    """
    data = jax.random.key_data(keys)
    return [data[..., place] for place in range(data.shape[-1])]


def of_words(parts: Sequence[Any], like: Any) -> Any:
    """Return random keys from one array per word: the inverse of `words`.

    Args:
      parts: the words.
      like: keys with the implementation (such as threefry) of the result.

    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> bool((of_words(words(keys), keys) == keys).all())
    True
    """
    data = jnp.stack([jnp.asarray(part) for part in parts], -1)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(like))


def by_word(move: Callable[..., Sequence[Any]], *operands: Any) -> list[Any]:
    """Return the results of a data movement on operands that may be random keys.

    Each word of the keys is moved as an integer array. The moved words are joined to keys again.

    Args:
      move: a function of arrays that only moves elements, such as a pad, and returns a list.
      operands: arrays of keys or numbers. Without keys, the result is `move(*operands)`.

    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> (padded,) = by_word(lambda x: [jnp.pad(x, [(1, 0)])], keys)
    >>> padded.shape, bool((padded[1:] == keys).all())
    ((4,), True)
    """
    key_operand = next(filter(is_key, operands), None)
    if key_operand is None:
        return list(move(*operands))
    words_of_operands = [words(x) if is_key(x) else [x] * len(words(key_operand)) for x in operands]
    results_of_word = [move(*arguments) for arguments in zip(*words_of_operands, strict=True)]
    return [of_words(parts, key_operand) for parts in zip(*results_of_word, strict=True)]
