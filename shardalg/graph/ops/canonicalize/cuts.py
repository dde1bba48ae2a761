"""Merging of consecutive slices and pads, so that a device fetches missing elements only once.

A slice also moves through pointwise operators to the slice or pad that it can be merged with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from shardalg.graph.ir import Graph, Node, Params, Signature, ValueType
from shardalg.graph.ops.canonicalize.known import (
    KnownValues,
    producing_node,
    replace_nodes,
    with_nodes,
)
from shardalg.graph.ops.families import pointwise
from shardalg.graph.ops.rows import BUILDERS

Join = Callable[[Node, Node], Node | None]
"""A function of a slice or pad and of the slice or pad that it reads.

It returns one node for both, or None if they cannot be merged.
"""


def move_slices(graph: Graph, join: Join) -> Graph:
    """Return the graph with each slice moved next to the slice or pad that it merges with.

        slice(f(pad(x))) = f(slice(pad(x)))        pad(f(slice(x))) = pad(slice(f(x)))

    This holds for pointwise f. The values between the two must have no other reader. A slice moves
    down only to a pad that adds at least the elements that the slice removes. Then f computes no
    more elements than the result has.
    """
    for node in graph.nodes_of(_MOVES):
        chain = _chain(graph, node)
        moved = _MOVES[node.primitive](graph, chain, join) if len(chain) > 2 else None
        if moved is not None:
            graph = _reorder(graph, chain, moved)
    return graph


def can_join(graph: Graph, node: Node, join: Join) -> bool:
    """Return whether `join` can merge a slice or pad with the slice or pad that it reads.

    Pointwise operators may be between the two if one of them can be moved through these. `node`
    need not be in the graph: it may be a replacement of a node.
    """
    before = producing_node(graph, node.operands[0])
    if before is None or before.region != node.region:
        return False
    chain = _chain(graph, node)
    moves = len(chain) > 2 and _MOVES[node.primitive](graph, chain, join) is not None
    return moves or join(node, before) is not None


def _chain(graph: Graph, last: Node) -> list[Node]:
    """Return a slice or pad, pointwise operators, and the slice or pad `last`, in this order.

    Each of these nodes reads the one before. The result is empty if there is no such chain, or if a
    value between the nodes has another reader.
    """
    region_results = {v for region in graph.regions for v in region.results}
    chain = [last]
    while True:
        value = chain[0].operands[_array_operand(chain[0])]
        # Go back from `last` to the slice or pad with which it can be merged. A node in another
        # body, such as a loop's, runs another number of times.
        producer = producing_node(graph, value)
        if producer is None or producer.region != last.region:
            return []
        # Another reader needs the value in its old shape.
        if len(graph.users[value]) != 1 or value in graph.results or value in region_results:
            return []
        chain.insert(0, producer)
        if producer.primitive in _MOVES:
            return chain
        # A slice moves past an operator only if each result element depends on one element of one
        # array, and on scalars. A second array would need a slice of its own.
        operator = producer.signature
        builder = BUILDERS.get(operator.primitive)
        shapes = [type_.shape for type_ in operator.operands if type_.shape]
        if builder is not pointwise.pointwise and operator.primitive != "convert_element_type":
            return []
        if shapes != [type_.shape for type_ in operator.results] or len(shapes) != 1:
            return []


def _array_operand(node: Node) -> int:
    """Return the position of a node's first operand that is not a scalar; 0 if all are scalars."""
    return next((k for k, type_ in enumerate(node.signature.operands) if type_.shape), 0)


def _move_up(graph: Graph, chain: list[Node], join: Join) -> list[Node] | None:
    """Return the chain with its last node, a slice, moved right behind its first node.

    None if `join` cannot merge the two.

    Args:
      chain: a slice or pad, pointwise operators, and a slice, each of which reads the one before.
      join: merges two neighbouring slices or pads into one node, or returns None.
    """
    first, *others, last = chain
    shape = last.signature.results[0].shape
    moved_cut = _with_types(last, first.signature.results[0], shape)
    if join(moved_cut, first) is None:
        return None
    return [first, moved_cut, *(_with_shape(node, shape) for node in others)]


def _move_down(graph: Graph, chain: list[Node], join: Join) -> list[Node] | None:
    """Return the chain with its first node, a slice, moved right before its last node, a pad.

    None if `join` cannot merge the two, or if the pointwise operators between them would compute
    more elements than the result has.

    Args:
      chain: a slice, pointwise operators, and a pad, each of which reads the one before.
      join: merges two neighbouring slices or pads into one node, or returns None.
    """
    first, *others, last = chain
    shape, kept = first.signature.operands[0].shape, first.signature.results[0].shape
    # The pointwise operators move up to the slice, so their scalar operands must exist there.
    early = all(
        (producer := graph.producer[v]) is None or producer < first.index
        for node in others
        for k, v in enumerate(node.operands)
        if k != _array_operand(node)
    )
    # `moved_cut` is the slice of the pointwise result. The pointwise operators then compute on the
    # slice's whole operand, which must have at most as many elements as the chain's result.
    dtype = last.signature.operands[0].dtype
    moved_cut = _with_types(first, ValueType(shape, dtype), kept)
    grown = prod(last.signature.results[0].shape) >= prod(shape)
    if first.primitive != "slice" or not early or not grown or join(last, moved_cut) is None:
        return None
    return [*(_with_shape(node, shape) for node in others), moved_cut, last]


def _reorder(graph: Graph, chain: list[Node], moved: list[Node]) -> Graph:
    """Return the graph with the operators of `chain` in the order of `moved`.

    The k-th operator of `moved` gets the node index and the result's value index of the k-th node
    of `chain`. Names and bindings move with their operators.
    """
    # Readers of the chain refer to its last value by index, so the indices of nodes and values stay
    # and the operators move.
    nodes, values, bindings = list(graph.nodes), list(graph.values), list(graph.bindings)
    first_operand = chain[0].operands[_array_operand(chain[0])]
    for place, node in zip(chain, moved, strict=True):
        operands = list(node.operands)
        operands[_array_operand(node)], (value,) = first_operand, place.results
        nodes[place.index] = replace(
            node, index=place.index, operands=tuple(operands), results=place.results
        )
        name = graph.values[node.results[0]].name
        values[value] = replace(values[value], type=node.signature.results[0], name=name)
        if bindings:
            bindings[place.index] = graph.bindings[node.index]
        first_operand = value
    return replace(graph, nodes=tuple(nodes), values=tuple(values), bindings=tuple(bindings))


def _with_shape(node: Node, shape: tuple[int, ...]) -> Node:
    """Return a pointwise operator whose array operand and result have the given shape."""
    dtype = node.signature.operands[_array_operand(node)].dtype
    return _with_types(node, ValueType(shape, dtype), shape)


def _with_types(node: Node, read: ValueType, shape: tuple[int, ...]) -> Node:
    """Return the node with another type of its array operand and another shape of its result.

    Args:
      read: the new type of the operand.
      shape: the new shape of the result.
    """
    types, old = list(node.signature.operands), node.signature
    types[_array_operand(node)] = read
    # Slices and pads have the dtype of their operand, pointwise operators may have another one.
    dtype = read.dtype if node.primitive in ("slice", "pad") else old.results[0].dtype
    signature = Signature(old.primitive, old.params, tuple(types), (ValueType(shape, dtype),))
    return replace(node, signature=signature)


_MOVES: dict[str, Callable[[Graph, list[Node], Join], list[Node] | None]] = {
    "slice": _move_up,
    "pad": _move_down,
}


def join_cuts(graph: Graph) -> Graph:
    """Return the graph with consecutive slices and pads merged into one node.

    Otherwise the value between them would be resharded, although no result needs it in blocks. The
    shifts `pad(x)[:-1]` and `pad(x[:-1])` therefore send only the shifted elements. This also holds
    with pointwise operators between the two, and for `concatenate([x[1:], zeros])`, which is a pad.
    A slice of a concatenation that takes elements of only one operand reads this operand.
    """
    known = KnownValues(graph)
    join = partial(_merge, known)

    def pad_instead(node: Node) -> Node | None:
        # A pad is worth it only if it merges: otherwise the concatenation stays as it was written.
        pad = _pad_by_fills(known, node)
        return pad if pad is not None and can_join(known.graph, pad, join) else None

    graph = move_slices(replace_nodes(graph, {"concatenate": pad_instead}), join)
    merged: dict[int, Node] = {}
    for node in graph.nodes_of(("slice", "pad")):
        # A merged node can merge with the node before it, so that a whole chain becomes one node.
        current: Node | None = node
        while current is not None:
            producer = graph.producer[current.operands[0]]
            inner = None if producer is None else merged.get(producer, graph.nodes[producer])
            if inner is None or inner.region != node.region:
                break
            current = _slice_of_one_part(current, inner) or join(current, inner)
            if current is not None:
                merged[node.index] = current
    return with_nodes(graph, merged)


def _slice_of_one_part(node: Node, inner: Node) -> Node | None:
    """Return a slice of a concatenation as a slice of the only operand that it reads elements of.

    For example, elements 5 to 7 of a concatenation of sizes 4 and 6 are elements 1 to 3 of operand
    1. None if it reads several operands, if a value is empty, or if the nodes are no slice and no
    concatenation.

    Args:
      node: the slice.
      inner: the concatenation that it reads.
    """
    if (node.primitive, inner.primitive) != ("slice", "concatenate"):
        return None
    if not (_has_elements(node) and _has_elements(inner)):
        return None
    dim, end, slice_of_dim = inner.signature.param("dimension"), 0, _slice_rows(node)
    for value, type_ in zip(inner.operands, inner.signature.operands, strict=True):
        # The operand has the elements from `offset` to `end` of the concatenation.
        offset, end = end, end + type_.shape[dim]
        start, limit, stride = slice_of_dim[dim]
        if offset <= start and limit <= end:
            slice_of_dim[dim] = (start - offset, limit - offset, stride)
            params = _slice_params(slice_of_dim)
            signature = Signature("slice", params, (type_,), node.signature.results)
            return replace(node, signature=signature, operands=(value,))
    return None


def _pad_by_fills(known: KnownValues, node: Node) -> Node | None:
    """Return `concatenate([full(c), x, full(c)])` as a pad of x; None for other concatenations.

    A fill is an array that repeats one number in all elements. The widths of the pad are the sizes
    of the fills before and after x.
    """
    # A pad has one array and one number, so all operands except one must repeat the same scalar.
    # The number that each operand repeats, as a value index; None for an array.
    fills = [known.fill(value, node.region) for value in node.operands]
    numbers = [fill for fill in fills if fill is not None]
    if len(numbers) != len(fills) - 1 or not numbers:
        return None
    if not all(known.same(numbers[0], number) for number in numbers):
        return None
    dim, array_place = node.signature.param("dimension"), fills.index(None)
    widths = [type_.shape[dim] for type_ in node.signature.operands]
    pad_of_dim = sum(widths[:array_place]), sum(widths[array_place + 1 :]), 0
    rank = len(node.signature.results[0].shape)
    config = tuple(pad_of_dim if d == dim else (0, 0, 0) for d in range(rank))
    types = node.signature.operands[array_place], known.graph.values[numbers[0]].type
    params = (("padding_config", config),)
    signature = Signature("pad", params, types, node.signature.results)
    return replace(node, signature=signature, operands=(node.operands[array_place], numbers[0]))


def _merge(known: KnownValues, node: Node, inner: Node) -> Node | None:
    """Return the slice or pad `node` merged with the slice or pad `inner` that it reads, or None.

    For example, a slice of a slice is one slice. None if no rule of `_MERGES` merges the two nodes,
    or if a value is empty. Two pads must have the same padding number.
    """
    merge_rule = _MERGES.get((node.primitive, inner.primitive))
    if merge_rule is None or not (_has_elements(node) and _has_elements(inner)):
        return None
    are_pads = node.primitive == inner.primitive == "pad"
    if are_pads and not known.same(node.operands[1], inner.operands[1]):
        return None
    return merge_rule(node, inner)


def _has_elements(node: Node) -> bool:
    """Return whether all operands and results of a node have at least one element."""
    types = (*node.signature.operands, *node.signature.results)
    return not any(0 in type_.shape for type_ in types)


def _slice_of_slice(node: Node, inner: Node) -> Node:
    """Return one slice for two: `x[a::s][b::t]` is `x[a+s*b::s*t]`.

    With `y = x[a::s]`, the slice `y[b:stop:t]` ends at `y[stop-1]`, element `a + s*(stop-1)` of x.
    """
    rows = []
    for (a, _, s), (b, stop, t) in zip(_slice_rows(inner), _slice_rows(node), strict=True):
        rows.append((a + s * b, a + s * (stop - 1) + 1, s * t))
    return _merged_node(node, _slice_params(rows), inner, inner)


def _slice_params(rows: Sequence[tuple[int, int, int]]) -> Params:
    """Return the parameters of a slice.

    Args:
      rows: (start, limit, stride) per dimension.
    """
    # A scalar has no rows, so zip(*rows) would not give three tuples.
    starts, limits, strides = (tuple(row[k] for row in rows) for k in range(3))
    return (("limit_indices", limits), ("start_indices", starts), ("strides", strides))


def _slice_of_pad(node: Node, inner: Node) -> Node | None:
    """Return a pad for a slice of a pad: `pad(x, low)[a:]` is `pad(x, low - a)`.

    Negative padding cuts. None if the slice has a stride. In the code, the slice is `[a:b:s]` of a
    dimension of size n.
    """
    config = []
    padded = inner.signature.results[0].shape
    pads = inner.signature.param("padding_config")
    for (low, high, interior), (a, b, s), n in zip(pads, _slice_rows(node), padded, strict=True):
        if s > 1:
            return None
        # XLA inserts interior padding before edge padding. A negative edge width then removes
        # elements of the dilated operand, exactly as the slice does.
        config.append((low - a, high - (n - b), interior))
    return _merged_node(node, (("padding_config", tuple(config)),), inner, inner)


def _pad_of_slice(node: Node, inner: Node) -> Node | None:
    """Return a pad for a pad of a slice; None if one pad cannot do both.

    A negative width cuts elements off. So for `low <= 0`, `pad(x[a:], low)` is `pad(x, low - a)`:
    for example, `pad(x[2:], -1)` is `pad(x, -3)`. None if the slice has a stride. None also if the
    slice cuts off elements at an end where the pad then adds some (`a > 0` and `low > 0`): one pad
    would show the old elements there instead of the padding number.

    Args:
      node: the pad.
      inner: the slice that it reads, in the code `[a:b:s]` of a dimension of size n.
    """
    config = []
    shape = inner.signature.operands[0].shape
    pads = node.signature.param("padding_config")
    for (low, high, interior), (a, b, s), n in zip(pads, _slice_rows(inner), shape, strict=True):
        # The slice cuts a elements off at the start and n - b at the end.
        if s > 1 or (a and low > 0) or (n - b and high > 0):
            return None
        # The one pad inserts `interior` elements next to the cut elements too, which the pad of the
        # slice does not. So `interior + 1` places are cut for each element.
        config.append((low - a * (interior + 1), high - (n - b) * (interior + 1), interior))
    return _merged_node(node, (("padding_config", tuple(config)),), inner, node)


def _pad_of_pad(node: Node, inner: Node) -> Node | None:
    """Return one pad for two; None if the outer pad fills elements that the inner one cut off.

    Widths add. Interior padding multiplies: a pad by g and then by h elements between neighbours
    puts (g+1)*(h+1) - 1 elements between them.
    """
    config = []
    pads = (pad.signature.param("padding_config") for pad in (inner, node))
    for (low, high, gap), (before, after, between) in zip(*pads, strict=True):
        # A negative width cuts elements off. One pad would keep elements that are filled here.
        if (low < 0 < before) or (high < 0 < after):
            return None
        # The outer pad puts `between` elements after each element, those of the inner pad included.
        factor = between + 1
        config.append((low * factor + before, high * factor + after, (gap + 1) * factor - 1))
    return _merged_node(node, (("padding_config", tuple(config)),), inner, node)


def _slice_rows(node: Node) -> list[tuple[int, int, int]]:
    """Return (start, limit, stride) per dimension of a slice."""
    param = node.signature.param
    starts, limits = param("start_indices"), param("limit_indices")
    return list(zip(starts, limits, param("strides") or (1,) * len(starts), strict=True))


def _merged_node(node: Node, params: Params, inner: Node, like: Node) -> Node:
    """Return one node for `inner` and `node`: it reads the operand of `inner`.

    Args:
      node: a slice or pad of the result of `inner`; the merged node has its result.
      params: the parameters of the merged node.
      like: the node with the primitive and the other operands of the merged node.
    """
    types = (inner.signature.operands[0], *like.signature.operands[1:])
    signature = Signature(like.primitive, params, types, node.signature.results)
    operands = (inner.operands[0], *like.operands[1:])
    return replace(node, signature=signature, operands=operands)


_MERGES: dict[tuple[str, str], Callable[[Node, Node], Node | None]] = {
    ("slice", "slice"): _slice_of_slice,
    ("slice", "pad"): _slice_of_pad,
    ("pad", "slice"): _pad_of_slice,
    ("pad", "pad"): _pad_of_pad,
}
