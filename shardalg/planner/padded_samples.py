"""Two changes of a plan: padded samples of a batch, and loops that fetch one layer per iteration.

A batched convolution merges the samples with its features: 13 samples of 2 features become one
dimension of 26. On 4 devices, a block of 13 samples has 4 samples, which are 8 features. A block of
26 features has only 7. The two blocks differ, so that all samples would be gathered. With padding
to 16 samples, every device has 4 samples and the same 8 features:

    x[13] -> pad [16] -> merge [32] -> operators -> split [16, 2] -> slice [13, 2]

Each operator between merge and split computes every sample on its own, or sums over the samples. A
sum reads zeros in place of the added samples.

A loop reads one layer of a stack in each iteration, so that its stack cannot be sharded along the
layers inside the loop. If the layers are divided among devices, they are therefore gathered before
the loop. `by_layer` is the alternative: the blocks are exchanged once, so that each device has a
part of every layer, and an iteration gathers the parts of one layer. On `n` devices it sends one
part in `n` more, and no device ever holds the stack. Gradients that the loop stacks are scattered
in each iteration and exchanged after the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shardalg.algebra.affine import Index
from shardalg.algebra.derived_layouts import interned, plain
from shardalg.algebra.digits import Digits, overlap, parts
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph, Node, Signature, ValueType
from shardalg.graph.ops.canonicalize.normalise import NodeReplacement, Padding
from shardalg.graph.ops.families.pointwise import MANY, UNARY
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import SUM, Rule
from shardalg.planner.propagate.sharded import Reason, ShardedGraph


def by_layer(sharded: ShardedGraph) -> ShardedGraph | None:
    """Return the graph with shardings under which scans fetch one layer per iteration, or None.

    None if no stack is sharded along its layers, or if policy "cost" chose the shardings at the
    borders of loops. Only the layers inside of the loops get other shardings. Completion does not
    run again.
    """
    if sharded.borders:
        return None
    found, made = list(sharded.shardings), []
    # The stack keeps its sharding outside of the loop. Inside, the digits that divide the layers
    # among devices divide each single layer instead.
    for node in sharded.graph.nodes_of(["scan"]):
        for stack, layer in stacks(sharded.graph, node):
            layout = _divided(plain(found[layer]), plain(found[stack]).dims[0])
            if layout is not None and layer not in sharded.fixed:
                found[layer] = layout
                made.append(Reason(layer, layout, "streamed", node.index, sources=(stack,)))
    if not made:
        return None
    history = (*sharded.history, *made)
    return replace(sharded, shardings=tuple(found), _history=lambda: history)


def stacks(graph: Graph, node: Node) -> Iterator[tuple[int, int]]:
    """Yield (stack, layer) for each stack that a scan reads or computes.

    Both are graph values: the stack outside of the loop, and its slice of one iteration inside.
    """
    body = graph.regions[node.bodies[0]]
    consts, carry = (node.signature.param(name) for name in ("num_consts", "num_carry"))
    # Operands of a scan and arguments of its body are (consts, carry, xs); results are (carry, ys).
    read = consts + carry
    yield from zip(node.operands[read:], body.arguments[read:], strict=True)
    made = zip(node.results[carry:], body.results[carry:], strict=True)
    # A layer that is also an argument of the body keeps the argument's sharding.
    yield from ((stack, layer) for stack, layer in made if layer not in body.arguments)


def _divided(layer: Sharding, digits: Digits) -> Sharding | None:
    """Return the sharding of a layer with one more dimension sharded along `digits`, or None.

    The dimension is the largest one that divides evenly, in its absence the largest one. None if
    the layer is sharded along these digits already, or if every dimension has fewer elements than
    there would be parts.

    Args:
      layer: the sharding of the layer.
      digits: the mesh axes, or factors of axes, along which its stack is sharded.
    """
    # One digit cannot partition two dimensions of the layer.
    used = [digit for dim_digits in layer.dims for digit in dim_digits]
    if not digits or any(overlap(old, new) for old in used for new in digits):
        return None
    # The digits that each dimension would have, and the dimensions that are long enough for them.
    joined = [(*dim_digits, *digits) for dim_digits in layer.dims]
    long_dims = [dim for dim, size in enumerate(layer.shape) if size >= parts(joined[dim])]
    if not long_dims:
        return None

    def preference(dim: int) -> tuple[bool, int]:
        """Return (is even, size): uneven blocks would be padded in every iteration."""
        size = layer.shape[dim]
        return size % parts(joined[dim]) == 0, size

    best = max(long_dims, key=preference)
    dims = tuple(joined[dim] if dim == best else old for dim, old in enumerate(layer.dims))
    return interned(layer.mesh, layer.shape, dims, ())


_POINTWISE = frozenset((*UNARY.split(), *MANY.split(), "convert_element_type", "copy"))
_OTHERS = (
    ["broadcast_in_dim", "conv_general_dilated", "dot_general", "reduce_max", "reduce_min"],
    ["reduce_prod", "reduce_sum", "reshape", "transpose"],
)
# Operators whose results for one sample do not depend on the other samples, so that padded samples
# change nothing (sums read zeros in their place).
MOVABLE = _POINTWISE.union(*_OTHERS)
SUMS = frozenset(("conv_general_dilated", "dot_general", "reduce_sum"))


def padding_of_samples(sharded: ShardedGraph) -> Padding | None:
    """Return how to pad samples that reshapes merge with features, or None.

    None if all such samples divide evenly among the devices, or if no operator sequence between
    merge and split can be padded.
    """
    changes: dict[int, NodeReplacement] = {}
    types: dict[int, ValueType] = {}
    for merge in _merges(sharded):
        # A region has the operators between a merge and the split that ends it; None if one of them
        # cannot be padded. An operator in two regions would be padded twice, so only the first
        # region is padded.
        region = merge.region()
        if region is not None and not region.nodes & changes.keys():
            changes.update((node, region.change(node)) for node in sorted(region.nodes))
            types.update(region.types())
    if not changes:
        return None
    return Padding(tuple(changes.items()), tuple(types.items()))


def _merges(sharded: ShardedGraph) -> Iterator[_Merge]:
    """Yield a `_Merge` for each reshape that merges an unevenly sharded dimension with others.

    The other dimensions are minor to it. For example, 6 samples of 4 features on 4 devices become
    24 elements: the samples are then padded to 8.
    """
    graph = sharded.graph
    for node in graph.nodes_of(["reshape"]):
        (rule,) = rules(node.signature) or ()
        layout = plain(sharded.shardings[node.operands[0]]).dims
        for dim, index in enumerate(rule.results[0]):
            # A merged dimension is indexed as 4*i + j: its major loop i has the factor 4.
            major = _major(rule, index)
            if major is None:
                continue
            name, factor = major
            size = rule.extents[name]
            # The operand has the samples as a dimension of their own. Its number of parts need not
            # divide the number of samples, which is then rounded up to a multiple.
            for place, other in enumerate(rule.operands[0]):
                count = parts(layout[place]) if other.loop == name else 1
                if size % count:
                    padded = -(-size // count) * count
                    yield _Merge(graph, (node.results[0], dim, factor), size, padded)


def _major(rule: Rule, index: Index) -> tuple[str, int] | None:
    """Return the major loop of a merged dimension, and the elements of one iteration of the loop.

    For the index `2*i + j` of a dimension, with two iterations of `j`, this is `("i", 2)`. None if
    the index has another form.
    """
    if len(index.terms) < 2 or index.constant or index.div != 1 or index.mod:
        return None
    # In factor*i + j, i is the major loop if the other loops together count from 0 to factor - 1.
    name, factor = max(index.terms, key=lambda term: term[1])
    rest = sum(c * (rule.extents[n] - 1) for n, c in index.terms if n != name) + 1
    return (name, factor) if rest == factor else None


class _Merge(NamedTuple):
    """A reshape that merges samples with another dimension.

    Attributes:
      start: the reshaped value, its merged dimension, and the elements of one sample in it.
      size, padded: the numbers of samples without and with padding.
    """

    graph: Graph
    start: tuple[int, int, int]
    size: int
    padded: int

    def region(self) -> _Region | None:
        """Return the operators between this reshape and those that split the samples off again.

        None if one of these operators cannot compute on padded samples.
        """
        made = _Region(self.graph, self.size, self.padded)
        return made if made.grown(*self.start) else None


@dataclass
class _Region:
    """The operators between a reshape that merges samples and those that split them off again.

    Attributes:
      size, padded: the numbers of samples without and with padding.
      marks: per value with merged samples, the merged dimension and the elements of one sample.
      ends: per node, a dictionary from its tensors in which samples are a dimension of their own to
        this dimension. Operand k is tensor k, the result is tensor ~0.
      loops: per node, the loop over samples and its iterations for one sample.
      sums: the nodes that sum over samples.
    """

    graph: Graph
    size: int
    padded: int
    marks: dict[int, tuple[int, int]] = field(default_factory=dict)
    ends: dict[int, dict[int, int]] = field(default_factory=dict)
    loops: dict[int, tuple[str, int]] = field(default_factory=dict)
    sums: set[int] = field(default_factory=set)

    @property
    def nodes(self) -> set[int]:
        """The indices of the nodes that the padding changes."""
        return set(self.ends)

    def grown(self, value: int, dim: int, factor: int) -> bool:
        """Add all operators that compute on merged samples, starting from one value.

        Merged samples share a dimension with other elements, after a reshape of (batch, features)
        for example. The search follows readers and makers of such values, up to the operators at
        which samples have a dimension of their own. Return False if one of them cannot be padded.

        Args:
          value: a value with merged samples.
          dim: its merged dimension.
          factor: the elements of one sample in this dimension.
        """
        # All readers of a merged value and its maker must compute on padded samples, too, so the
        # search visits them. It ends where an operator has the samples in a dimension of their own,
        # which can be padded or cut there.
        graph, todo = self.graph, [(value, dim, factor)]
        ends = {*graph.results, *(v for region in graph.regions for v in region.results)}
        while todo:
            value, dim, factor = todo.pop()
            # Two paths may lead to one value. If they find its samples in different places, it has
            # no padded type.
            if value in self.marks:
                if self.marks[value] != (dim, factor):
                    return False
                continue
            # Arguments and results of the program or of a region keep their types, without padding.
            maker = graph.producer[value]
            if maker is None or value in ends:
                return False
            self.marks[value] = dim, factor
            for number in dict.fromkeys((*graph.users[value], maker)):
                found = self._visited(graph.nodes[number], value, dim)
                if found is None:
                    return False
                todo.extend(found)
        return True

    def _visited(self, node: Node, value: int, dim: int) -> list[tuple[int, int, int]] | None:
        """Add a node that reads or computes a merged value, and return all its merged values.

        A merged value has several samples in one dimension, which a reshape merged with another
        dimension. The node is added to `loops`, with its loop over samples.

        Args:
          value: an operand or the result of the node that is known to have merged samples.
          dim: its merged dimension.

        Returns:
          A list of (value, merged dimension, elements of one sample in this dimension), or None if
          the node cannot compute on padded samples.
        """
        found = rules(node.signature)
        if node.primitive not in MOVABLE or node.region or not found or len(node.results) > 1:
            return None
        # A merged dimension of 26 = 13 samples * 2 elements: with the index i, the loop i has two
        # iterations for one sample; with the index 2*i + j, it has one.
        rule, factor = found[0], self._merged(value, dim) // self.size
        tensors = {~0: node.results[0], **dict(enumerate(node.operands))}
        # A node may read one value twice (`x * x`). Both operands must have the samples in one
        # loop.
        at, *others = {rule.indices(k)[dim] for k, v in tensors.items() if v == value}
        major = (at.loop, 1) if at.loop else _major(rule, at)
        if others or major is None or factor % major[1]:
            return None
        loop = major[0], factor // major[1]
        # Another merged value reached the node before: both must have the samples in one loop.
        if self.loops.get(node.index, loop) != loop:
            return None
        # The operator sums over samples: the added ones must be zero.
        if loop[0] not in rule.result_loops:
            if node.primitive not in SUMS or rule.combine != SUM:
                return None
            self.sums.add(node.index)
        self.loops[node.index] = loop
        return self._sample_dimensions(rule, tensors, loop, self.ends.setdefault(node.index, {}))

    @staticmethod
    def _sample_dimensions(
        rule: Rule, tensors: Mapping[int, int], loop: tuple[str, int], ends: dict[int, int]
    ) -> list[tuple[int, int, int]] | None:
        """Find the dimensions of a node's tensors that the loop over samples indexes.

        Args:
          rule: the node's row of RULES.
          tensors: the value of each tensor: operand k has number k, the result ~0.
          loop: the name of the loop over samples, and its iterations for one sample.
          ends: an output. Per tensor, the dimension that has the samples alone is written here.

        Returns:
          (value, dimension, elements of one sample) of each dimension in which samples are merged
          with other elements. None if some index uses the loop otherwise than as its major loop,
          so that padding would move elements.
        """
        merged, (name, count) = [], loop
        for tensor, value in tensors.items():
            for dim, index in enumerate(rule.indices(tensor)):
                if name not in index.variables:
                    continue
                major = (name, 1) if index.loop == name else _major(rule, index)
                if major is None or major[0] != name:
                    return None
                # One element per sample: the samples are a dimension of their own here.
                if major[1] * count == 1:
                    ends[tensor] = dim
                else:
                    merged.append((value, dim, major[1] * count))
        return merged

    def _merged(self, value: int, dim: int) -> int:
        """Return the size of a merged dimension: samples times elements per sample."""
        return self.graph.values[value].type.shape[dim]

    def types(self) -> Mapping[int, ValueType]:
        """Return a dictionary from each value with merged samples to its type with padding."""
        return {value: self._wider(value, *mark) for value, mark in self.marks.items()}

    def _wider(self, value: int, dim: int, factor: int) -> ValueType:
        """Return the type that a value with merged samples has after padding.

        Args:
          dim: the merged dimension.
          factor: the elements of one sample in this dimension.
        """
        type_ = self.graph.values[value].type
        return _with_size(type_, dim, self.padded * factor)

    def change(self, number: int) -> NodeReplacement:
        """Return the replacement of a node that computes on padded samples.

        The new node has the padded number of samples in its types and parameters. An operand with a
        dimension for samples alone (`ends`) is padded before the node, and such a result is cut
        after the node. A value whose samples are merged with other elements (`marks`) is padded by
        the node that computes it.

        Args:
          number: the index of the node.
        """
        # In `ends`, operand k is tensor k, and the result is tensor ~0. A merged operand is padded
        # already; if the node sums over samples, the added ones are set to zero before it.
        node, ends = self.graph.nodes[number], self.ends[number]
        chains: list[tuple[int, tuple[Signature, ...]]] = []
        operands = []
        for k, value in enumerate(node.operands):
            type_ = self.graph.values[value].type
            if k in ends:
                wide = _with_size(type_, ends[k], self.padded)
                chains.append((k, (_pad(type_, wide),)))
            elif value in self.marks:
                wide = self._wider(value, *self.marks[value])
                if number in self.sums:
                    chains.append((k, tuple(self._masked(wide, *self.marks[value]))))
            else:
                wide = type_
            operands.append(wide)
        result = node.results[0]
        result_type = self.graph.values[result].type
        cut = None
        if ~0 in ends:
            wide = _with_size(result_type, ends[~0], self.padded)
            cut, result_type = _slice(wide, result_type), wide
        elif result in self.marks:
            result_type = self._wider(result, *self.marks[result])
        # Some operators have sizes in their parameters: a reshape or a broadcast its result's
        # shape, a convolution its number of groups. "g" is a convolution's loop over groups. If the
        # samples are groups, every added sample adds groups.
        loop_name, count = self.loops[number]
        changed: dict[str, object] = {"new_sizes": result_type.shape, "shape": result_type.shape}
        if loop_name == "g":
            old_params = dict(node.signature.params)
            for name in ("feature_group_count", "batch_group_count"):
                if old_params.get(name) != 1:
                    changed[name] = self.padded * count
        params = tuple((name, changed.get(name, old)) for name, old in node.signature.params)
        signature = Signature(node.primitive, params, tuple(operands), (result_type,))
        return NodeReplacement(tuple(chains), signature, cut)

    def _masked(self, wide: ValueType, dim: int, factor: int) -> Iterator[Signature]:
        """Yield a chain of operators that sets the added samples of a merged value to zero.

        Args:
          wide: the padded type of the value.
          dim: its merged dimension.
          factor: the elements of one sample in this dimension.
        """
        # A cut of the merged dimension would move the borders of blocks, so samples are split off:
        # merged [32] -> split [16, 2] -> slice [13, 2] -> pad with zeros [16, 2] -> merged [32]
        shape = wide.shape
        split = ValueType((*shape[:dim], self.padded, factor, *shape[dim + 1 :]), wide.dtype)
        true = _with_size(split, dim, self.size)
        yield _reshape(wide, split)
        yield _slice(split, true)
        yield _pad(true, split)
        yield _reshape(split, wide)


def _with_size(type_: ValueType, dim: int, size: int) -> ValueType:
    """Return the type in which dimension `dim` has `size` elements."""
    return ValueType((*type_.shape[:dim], size, *type_.shape[dim + 1 :]), type_.dtype)


def _reshape(given: ValueType, made: ValueType) -> Signature:
    """Return the signature of a reshape from the type `given` to the type `made`."""
    return Signature(
        "reshape", (("dimensions", None), ("new_sizes", made.shape)), (given,), (made,)
    )


def _pad(given: ValueType, made: ValueType) -> Signature:
    """Return the signature of the operator that pads dimensions at their ends to another type."""
    pairs = zip(given.shape, made.shape, strict=True)
    config = tuple((0, wide - size, 0) for size, wide in pairs)
    zero = ValueType((), given.dtype)
    return Signature("pad", (("padding_config", config),), (given, zero), (made,))


def _slice(given: ValueType, made: ValueType) -> Signature:
    """Return the signature of a slice that keeps the first elements of each dimension.

    Args:
      given, made: the types before and after the slice.
    """
    starts = (0,) * len(given.shape)
    params = (("limit_indices", made.shape), ("start_indices", starts), ("strides", None))
    return Signature("slice", params, (given,), (made,))
