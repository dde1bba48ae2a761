"""Rewrites of gathers and scatters whose indices are constant or are 0, 1, 2, ....

- `indices_paired`: in `x[arange(n), i]` the first index is 0, 1, 2, ... along one dimension. This
  dimension and the operand's first dimension become batch dimensions. If both have the same
  sharding, nothing is sent. XLA recognises such indices by their iotas too.
- `scatters_added`: updates that are added to zeros and then to a table are added to the table.
- `first_elements`: a gather may have a dimension that no index selects and that the result lacks.
  It reads only element 0 of it, which a slice or an index then states explicitly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple, TypeVar

import numpy as np

from shardalg.graph.ir import Graph, Node, Params, Signature
from shardalg.graph.ops.canonicalize.known import KnownValues, producing_node, replace_nodes
from shardalg.graph.ops.families.building import record
from shardalg.graph.ops.families.indexing import COMBINE, GATHER, SCATTER, applies_code, numbers

Answer = TypeVar("Answer")
# JAX has different names for the same dimension numbers of gathers and of scatters.
DROPPED = {"gather": "collapsed_slice_dims", **dict.fromkeys(COMBINE, "inserted_window_dims")}
"""By primitive, the name of the operand dimensions that the result or the update lacks."""
SELECTED = {"gather": "start_index_map", **dict.fromkeys(COMBINE, "scatter_dims_to_operand_dims")}
"""By primitive, the name of the operand dimensions that the indices select."""
PAIRED = {
    "gather": "start_indices_batching_dims",
    **dict.fromkeys(COMBINE, "scatter_indices_batching_dims"),
}
"""By primitive, the name of the batch dimensions of the indices."""


def indices_paired(graph: Graph) -> Graph:
    """Return the graph in which indices 0, 1, 2, ... of gathers and scatters are batch dimensions.

    A gather that reads all elements of a dimension in order becomes a reshape.
    """
    counting = _Counting(graph)
    pair = partial(_with_batch_dimensions, graph, counting)
    table = dict.fromkeys(SELECTED, pair)
    return replace_nodes(graph, table | {"gather": lambda n: _as_reshape(counting, n) or pair(n)})


def _as_reshape(counting: _Counting, node: Node) -> Node | None:
    """Return a reshape that replaces a gather of all elements of one dimension in order, or None.

    For example, `x[arange(6).reshape(2, 3)]` of a shape (6, 4) is a reshape to (2, 3, 4). None if
    the gather reads other elements or another order.
    """
    dims = numbers(node.signature)  # the roles of dimensions
    shape, result_shape = node.signature.operands[0].shape, node.signature.results[0].shape
    index_shape = node.signature.operands[1].shape
    # One index per row, for one dimension, and no batch dimension: only then is order all that
    # matters.
    if len(dims.selected) != 1 or index_shape[-1:] != (1,) or dims.operand_batching:
        return None
    # A reshape keeps the row-major order. So the gather must read whole rows (`row_sizes`), and its
    # result must have the indices' dimensions exactly in the place of the gathered dimension. The
    # result dimensions that do not come from the indices are its window dimensions.
    (dim,) = dims.selected
    row_sizes = tuple(1 if d == dim else n for d, n in enumerate(shape))
    num_index_dims = len(index_shape) - 1
    wanted_window = (*range(dim), *range(dim + num_index_dims, len(result_shape)))
    is_whole = node.signature.param("slice_sizes") == row_sizes and dims.dropped == (dim,)
    # As many indices as elements, and (tested last, because it is slow) each in its place.
    if not is_whole or dims.window != wanted_window or math.prod(index_shape) != shape[dim]:
        return None
    if not counting.in_order(node.operands[1]):
        return None
    params = (("dimensions", None), ("new_sizes", result_shape))
    types = node.signature.operands[:1]
    signature = Signature("reshape", params, types, node.signature.results)
    return replace(node, signature=signature, operands=node.operands[:1])


def _with_batch_dimensions(graph: Graph, counting: _Counting, node: Node) -> Node | None:
    """Return a gather or scatter with batch dimensions for index components that are 0, 1, 2, ....

    For example, the indices of `x[arange(n), i]` have two components. The first one becomes a batch
    dimension: row k of the result reads row k of `x`. None if no component counts, if not exactly
    one other component is left, or if a scatter combines updates by a function of the user.
    """
    # The user's function that combines updates was traced for the old parameters and stays there.
    if applies_code(node.signature):
        return None
    components = _index_components(graph, node)
    roles = numbers(node.signature)
    operand_shape = graph.values[node.operands[0]].type.shape
    index_dim_of: dict[int, int] = {}
    for component, component_value in enumerate(components):
        # `batch` is a dimension of the indices, `dim` is the operand dimension that the component
        # selects.
        batch = counting.along(component_value)
        dim = roles.selected[component]
        shape = graph.values[component_value].type.shape
        # Along dimension `batch` the component is 0, 1, 2, ... A constant 0 also counts along the
        # index vector's own dimension, which has one element.
        vector = len(shape) - 1
        if batch is None or batch in {*roles.index_batching, *index_dim_of.values(), vector}:
            continue
        # A batch dimension reads one element of each row, and all rows: so the gather must read one
        # element of `dim`, and the sizes must be equal.
        if dim in roles.dropped and shape[batch] == operand_shape[dim]:
            index_dim_of[dim] = batch
    # Exactly one component must be left: its value replaces the concatenation as the indices.
    other_components = [
        p for p, dim in zip(components, roles.selected, strict=False) if dim not in index_dim_of
    ]
    if not index_dim_of or len(other_components) != 1:
        return None
    types = list(node.signature.operands)
    types[1] = graph.values[other_components[0]].type
    params = _batched_params(node, index_dim_of)
    signature = replace(node.signature, params=params, operands=tuple(types))
    return replace(
        node,
        signature=signature,
        operands=(node.operands[0], other_components[0], *node.operands[2:]),
    )


def _index_components(graph: Graph, node: Node) -> tuple[int, ...]:
    """Return the value of each component of a gather's or scatter's index vector.

    The indices must be a concatenation of the components; otherwise return ().
    """
    indices = node.operands[1]
    concatenation = producing_node(graph, indices)
    last = len(graph.values[indices].type.shape) - 1
    # A node of another region, such as a loop body, cannot be replaced together with this one.
    if (
        concatenation is None
        or concatenation.primitive != "concatenate"
        or concatenation.region != node.region
    ):
        return ()
    # The index vector is the last dimension. An operand with several elements along it would be
    # several components.
    has_single_elements = all(type_.shape[-1] == 1 for type_ in concatenation.signature.operands)
    return (
        concatenation.operands
        if concatenation.signature.param("dimension") == last and has_single_elements
        else ()
    )


def _batched_params(node: Node, dims: dict[int, int]) -> Params:
    """Return the parameters of a gather or scatter with additional batch dimensions.

    Args:
      dims: the operand dimensions that become batch dimensions, each with the dimension of the
        indices with which it is paired.
    """
    name = node.primitive
    fields = record(
        node.signature.param("dimension_numbers"), GATHER if name == "gather" else SCATTER
    )
    pairs = dict(zip(fields["operand_batching_dims"], fields[PAIRED[name]], strict=True)) | dims
    changed = {
        # The tables have JAX's names, such as `collapsed_slice_dims` for `DROPPED["gather"]`. A
        # batch dimension is neither dropped nor selected by an index any more.
        DROPPED[name]: tuple(d for d in fields[DROPPED[name]] if d not in dims),
        SELECTED[name]: tuple(d for d in fields[SELECTED[name]] if d not in dims),
        "operand_batching_dims": tuple(sorted(pairs)),
        PAIRED[name]: tuple(pairs[d] for d in sorted(pairs)),
    }
    # Indices that were sorted as whole vectors may be unsorted within each batch.
    new_params = {
        "dimension_numbers": tuple((fields | changed).items()),
        "indices_are_sorted": False,
    }
    return tuple((dict(node.signature.params) | new_params).items())


class _Counting:
    """Search for dimensions along which the elements of a value are 0, 1, 2, ....

    Such a dimension is the value's counting dimension. Along all other dimensions the elements must
    be equal, as in an iota. The methods after `in_order` are the rules of single operators: each
    returns the counting dimension of the operator's result, or None.

    Attributes:
      constants: the array of each constant, by value index.
      known: the counting dimension of each value that was examined, or None.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.constants = dict(graph.constants)
        self.known: dict[int, int | None] = {}

    def along(self, value: int) -> int | None:
        """Return the dimension of a value along which its elements are 0, 1, 2, ..., or None.

        None means that no such dimension was found, although there may be one.
        """
        if value not in self.known:
            producer = self.graph.producer[value]
            # The rules of operators (`_FOLLOW`) call this method for their operands, so that the
            # search goes back to a constant or an iota. Operators without a rule, and arguments of
            # the program, give None.
            if value in self.constants:
                self.known[value] = _counting_dimension(np.asarray(self.constants[value]))
            elif producer is None:
                self.known[value] = None
            else:
                node = self.graph.nodes[producer]
                follow = _FOLLOW.get(node.primitive)
                self.known[value] = follow(self, node) if follow else None
        return self.known[value]

    def in_order(self, value: int) -> bool:
        """Return whether the elements of a value are 0, 1, 2, ... in row-major order.

        For example, [[0, 1, 2], [3, 4, 5]] is in order, but has no counting dimension.
        """
        shape = self.graph.values[value].type.shape
        # With one element or none, the indices select no dimension that is worth a reshape.
        if math.prod(shape) < 2:
            return False
        # A value with one dimension (except dimensions of size 1) is in order if it counts along
        # it.
        dim = self.along(value)
        if dim is not None and shape[dim] == math.prod(shape):
            return True
        # Otherwise go back through operators that keep the row-major order, such as reshapes.
        node = producing_node(self.graph, value)
        if node is None or node.primitive not in _IN_ORDER:
            return False
        # `select_n(i < 0, i, i + n)` equals i, because 0, 1, 2, ... are not negative.
        if node.primitive == "select_n":
            return bool(self.ask_without_wrap(node, self.in_order))
        # A broadcast keeps the order only if it repeats no element.
        operand_type = node.signature.operands[0]
        if node.primitive == "broadcast_in_dim" and math.prod(operand_type.shape) != math.prod(
            shape
        ):
            return False
        # A conversion to a narrow integer type would wrap around and break the order.
        narrow = _if_wide_enough(node, 0, math.prod(shape)) is None
        return not narrow and self.in_order(node.operands[0])

    def through_reshape(self, node: Node) -> int | None:
        """Return the dimension of a reshape's result along which its elements are 0, 1, 2, ....

        It is the operand's counting dimension if it has the same size, and the sizes before it have
        the same product. For example, a reshape from (2, 3, 4) to (6, 4) keeps the last dimension.
        None if there is no such dimension.
        """
        dim = self.along(node.operands[0])
        before, after = node.signature.operands[0].shape, node.signature.results[0].shape
        if dim is None or node.signature.param("dimensions") is not None:
            return None
        # With equal size and equal product before it, an element's coordinate along the dimension
        # is the same number in both shapes: floor(position / product of the sizes after it) mod
        # size.
        return next(
            (
                d
                for d, size in enumerate(after)
                if size == before[dim] and math.prod(after[:d]) == math.prod(before[:dim])
            ),
            None,
        )

    def through_squeeze(self, node: Node) -> int | None:
        """Return the dimension of a squeeze's result that counts 0, 1, 2, ..., or None.

        There is none if the squeeze removes it, or if the operand has none.
        """
        dim, gone = self.along(node.operands[0]), node.signature.param("dimensions")
        return None if dim is None or dim in gone else dim - sum(d < dim for d in gone)

    def through_transpose(self, node: Node) -> int | None:
        """Return the dimension of a transpose's result that counts 0, 1, 2, ..., or None."""
        dim = self.along(node.operands[0])
        return None if dim is None else node.signature.param("permutation").index(dim)

    def iota(self, node: Node) -> int | None:
        """Return the dimension along which an iota counts 0, 1, 2, ..., or None.

        None means that the iota's integer type overflows along this dimension.
        """
        return _if_wide_enough(node, node.signature.param("dimension"))

    def through_conversion(self, node: Node) -> int | None:
        """Return the dimension along which a converted value counts 0, 1, 2, ..., or None.

        It is the operand's dimension, unless the new type overflows along it.
        """
        return _if_wide_enough(node, self.along(node.operands[0]))

    def broadcast(self, node: Node) -> int | None:
        """Return the dimension of a broadcast's result that counts 0, 1, 2, ..., or None.

        It is the dimension that comes from the operand's counting dimension. The result is None if
        the operand has no counting dimension, or if the broadcast repeats its single element.
        """
        dim, dims = self.along(node.operands[0]), node.signature.param("broadcast_dimensions")
        if dim is None:
            return None
        before, after = node.signature.operands[0].shape, node.signature.results[0].shape
        return dims[dim] if before[dim] == after[dims[dim]] else None

    def through_wrap_around(self, node: Node) -> int | None:
        """Return the dimension along which `i` counts, for `select_n(i < 0, i, i + n)`, or None.

        JAX adds such selections to indices, so that negative indices count from the end.
        """
        return self.ask_without_wrap(node, self.along)

    def ask_without_wrap(self, node: Node, ask: Callable[[int], Answer]) -> Answer | None:
        """Return `ask(i)` for a selection `select_n(i < 0, i, i + n)`; None for any other one.

        JAX writes this selection for indices that may be negative. If `i` is 0, 1, 2, ..., no
        element is negative, so that the selection equals `i`.

        Args:
          ask: a question about a value, such as `along`.
        """
        return ask(node.operands[1]) if self._selects_nonnegative(node) else None

    def _selects_nonnegative(self, node: Node) -> bool:
        """Return whether a `select_n` yields its first case wherever this case is not negative.

        This holds if its condition is `first_case < 0`, or a constant False. JAX writes
        `select_n(i < 0, i, i + n)` for an index that may count from the end.
        """
        condition, first_case, *_ = node.operands
        # `select_n` yields its first case where the condition is False.
        if condition in self.constants:
            return not np.any(self.constants[condition])
        test = producing_node(self.graph, condition)
        if test is None:
            return False
        is_sign_test = test.primitive == "lt" and test.operands[0] == first_case
        zero = self.constants.get(test.operands[1]) if is_sign_test else None
        return zero is not None and not np.any(zero)


def _if_wide_enough(node: Node, dim: int | None, count: int | None = None) -> int | None:
    """Return `dim` if the node's result has an integer type that represents 0 to count - 1.

    Otherwise return None, because the elements overflow and do not count.

    Args:
      dim: a dimension of the result, or None.
      count: the number of different values; None for the size of the dimension.
    """
    type_ = node.signature.results[0]
    if dim is None or "int" not in type_.dtype:
        return None
    value_bits = int(type_.dtype.strip("uint")) - (not type_.dtype.startswith("u"))
    return dim if (type_.shape[dim] if count is None else count) <= 1 << value_bits else None


def _counting_dimension(array: np.ndarray) -> int | None:
    """Return the dimension along which an integer array is 0, 1, 2, ..., or None.

    Along all other dimensions its elements must be equal.
    """
    if array.dtype.kind not in "iu" or array.size < 2:
        return None
    # Compare with 0, 1, 2, ... along each dimension, repeated along all others.
    for dim, size in enumerate(array.shape):
        places = np.arange(size).reshape([-1 if d == dim else 1 for d in range(array.ndim)])
        # A dimension of size 1 has only element 0, which does not show that it counts.
        if size > 1 and np.array_equal(array, np.broadcast_to(places, array.shape)):
            return dim
    return None


_FOLLOW: dict[str, Callable[[_Counting, Node], int | None]] = {
    "iota": _Counting.iota,
    "convert_element_type": _Counting.through_conversion,
    "broadcast_in_dim": _Counting.broadcast,
    "reshape": _Counting.through_reshape,
    "select_n": _Counting.through_wrap_around,
    "squeeze": _Counting.through_squeeze,
    "transpose": _Counting.through_transpose,
}
_IN_ORDER = frozenset(
    ("broadcast_in_dim", "convert_element_type", "reshape", "select_n", "squeeze")
)
"""Operators that keep the row-major order of elements, if they keep the number of elements."""


def scatters_added(graph: Graph) -> Graph:
    """Return the graph in which `x + scatter_add(zeros, i, u)` is `scatter_add(x, i, u)`.

    A loop may add up gradients of a slice of its constants in this way, as for the weights of one
    round of a circular pipeline. After the rewrite the loop only adds to its carry, so that the sum
    over devices can be deferred until the loop ends. It also needs no second table in memory. The
    rewrite requires that no two updates access one element: `x + (u + v)` would become
    `(x + u) + v`, which rounds differently.
    """
    added = partial(_scatter_into_operand, KnownValues(graph))
    return replace_nodes(graph, {"add": added, "add_any": added})


def _scatter_into_operand(known: KnownValues, node: Node) -> Node | None:
    """Return an addition as a scatter into one operand, if the other one is a scatter into zeros.

    `x + zeros.at[i].add(u)` becomes `x.at[i].add(u)`, which needs no array of zeros. Otherwise
    return None.
    """
    # Addition is commutative, so either operand may be the scatter.
    for table, other in (node.operands, node.operands[::-1]):
        scatter = _scatter_into_zeros(known, node, other)
        # The new node has the type of the scatter, so the table must have this type.
        if scatter is not None and known.graph.values[table].type == scatter.signature.results[0]:
            operands = (table, *scatter.operands[1:])
            return replace(node, signature=scatter.signature, operands=operands)
    return None


def _scatter_into_zeros(known: KnownValues, node: Node, value: int) -> Node | None:
    """Return the scatter into zeros that computes `value`, or None if no such node does.

    None also if another node than `node` reads `value`, or if two updates may access one element:
    `t + (u + v)` and `(t + u) + v` are rounded differently. The scatter may be in a remat span
    (`jax.checkpoint`) of the node's body.
    """
    graph = known.graph
    scatter = producing_node(graph, value)
    if scatter is None or scatter.primitive != "scatter-add":
        return None
    # A scatter in another body runs another number of times.
    if scatter.index not in graph.regions[node.region].nodes:
        return None
    # `fill` finds the value with which the scatter's operand is filled; it must be the number 0.
    fill_value = known.fill(scatter.operands[0], scatter.region)
    fill_number = None if fill_value is None else known.number(fill_value)
    # A value that the region or the program returns must stay a value of its own.
    is_returned = value in (*graph.regions[node.region].results, *graph.results)
    is_alone = list(graph.users[value]) == [node.index] and not is_returned
    if fill_number is None or fill_number or not is_alone:
        return None
    # No two updates access one element if indices are unique, or if each batch has one update.
    signature = scatter.signature
    positions, batch_dims = signature.operands[1].shape[:-1], numbers(signature).index_batching
    updates_per_batch = math.prod(n for dim, n in enumerate(positions) if dim not in batch_dims)
    return scatter if signature.param("unique_indices") or updates_per_batch <= 1 else None


class FirstElements(NamedTuple):
    """Replacement of a gather that reads only element 0 of some dimensions.

    Either a slice cuts these dimensions to size 1, or new index components of 0 select the element.

    Attributes:
      cut: the slice of the operand; None if indices are used.
      zeros, joined: the index components that are 0, and the concatenation of the gather's indices
        with them; None if a slice is used.
      rest: the gather from the slice, or with the new indices.
    """

    cut: Signature | None
    zeros: Signature | None
    joined: Signature | None
    rest: Signature


@lru_cache(maxsize=1 << 12)
def first_elements(signature: Signature) -> FirstElements | None:
    """Return the replacement of a gather that reads only element 0 of some dimensions, or None.

    These dimensions have more than one element, no index selects them, and the result lacks them.
    Unchanged, the gather has no loop along such a dimension, so that each device would need the
    operand whole there. With the index 0, the device that holds element 0 reads it and sends the
    result. With a slice, this device sends the slice. The smaller of the two is chosen.
    """
    if signature.primitive != "gather":
        return None
    found, operand, indices = numbers(signature), *signature.operands
    given = {*found.selected, *found.operand_batching}
    # Named sizes and sizes that are being recorded are no plain `int`: such dimensions stay.
    sizes = [(dim, operand.shape[dim]) for dim in found.dropped if dim not in given]
    free = tuple(dim for dim, size in sizes if type(size) is int and size > 1)
    if not free:
        return None
    shape = tuple(1 if dim in free else size for dim, size in enumerate(operand.shape))
    if math.prod(shape) < math.prod(signature.results[0].shape):
        sliced = replace(operand, shape=shape)
        starts = (("start_indices", (0,) * len(shape)), ("strides", None))
        cut = Signature("slice", (("limit_indices", shape), *starts), (operand,), (sliced,))
        return FirstElements(cut, None, None, replace(signature, operands=(sliced, indices)))
    # Otherwise the slice would be larger than the result. Components of 0 are appended to the index
    # vectors instead, so that only the result is sent.
    *places, count = indices.shape
    zero, more = (replace(indices, shape=(*places, n)) for n in (len(free), count + len(free)))
    how = (("broadcast_dimensions", ()), ("shape", zero.shape))
    zeros = Signature("broadcast_in_dim", how, (replace(indices, shape=()),), (zero,))
    joined = Signature("concatenate", (("dimension", len(places)),), (indices, zero), (more,))
    fields = record(signature.param("dimension_numbers"), GATHER)
    fields = fields | {"start_index_map": (*found.selected, *free)}
    params = dict(signature.params) | {"dimension_numbers": tuple(fields.items())}
    rest = replace(signature, params=tuple(params.items()), operands=(operand, more))
    return FirstElements(None, zeros, joined, rest)
