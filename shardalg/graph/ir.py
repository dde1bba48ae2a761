"""The traced program: values, nodes and the tree of regions they stand in. No jax here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

ITEM_SIZES = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "bfloat16": 2, "float16": 2,
    "int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8,
    "complex64": 8, "complex128": 16,
}  # fmt: skip
SHORT = {
    "bool": "pred", "bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64",
    "int8": "s8", "int16": "s16", "int32": "s32", "int64": "s64", "uint8": "u8", "uint16": "u16",
    "uint32": "u32", "uint64": "u64", "complex64": "c64", "complex128": "c128",
}  # fmt: skip

# Parameters of a primitive as plain data: numbers, text, None, and tuples of plain data.
Plain = int | float | bool | str | None | tuple["Plain", ...]
Params = tuple[tuple[str, Plain], ...]


@dataclass(frozen=True, slots=True)
class ValueType:
    """Global shape and item type.

    >>> ValueType((64, 1024), "float32")
    f32[64,1024]
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def itemsize(self) -> int:
        """Bytes of one element (4 for a type without a fixed size, such as a key)."""
        return ITEM_SIZES.get(self.dtype, 4)

    def __repr__(self) -> str:
        return f"{SHORT.get(self.dtype, self.dtype)}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Value:
    """One SSA value.

    Attributes:
      kind: "argument", "constant", "node" (the result of one) or "region_argument".
      name: what tables print and `explain` takes: an argument's path (`params['w']`), a site's
        name, or `dot_general:3@model.py:41`.
    """

    index: int
    type: ValueType
    kind: str
    name: str


@dataclass(frozen=True, eq=False)
class Signature:
    """What a rule depends on: primitive, plain parameters, operand and result types.

    Interned per graph: nodes that are alike share one object, so planning decides them once.
    """

    primitive: str
    params: Params
    operands: tuple[ValueType, ...]
    results: tuple[ValueType, ...]
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "_hash", hash((self.primitive, self.params, self.operands, self.results))
        )

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Signature)
            and self._hash == other._hash
            and (self.primitive, self.params, self.operands, self.results)
            == (other.primitive, other.params, other.operands, other.results)
        )

    def param(self, name: str, default: Plain = None) -> Plain:
        """The parameter called `name`."""
        return dict(self.params).get(name, default)


@dataclass(frozen=True, slots=True)
class Node:
    """One operation.

    Attributes:
      operands, results: value indices.
      source: `model.py:41`, the user's line that made it; "" if unknown.
      phase: "forward", "backward" or "update", from JAX's name stack.
      region: the region it stands in.
      bodies: for a call (scan, while, cond), its regions.
    """

    index: int
    signature: Signature
    operands: tuple[int, ...]
    results: tuple[int, ...]
    source: str = ""
    phase: str = "forward"
    region: int = 0
    bodies: tuple[int, ...] = ()

    @property
    def primitive(self) -> str:
        """Name of the JAX primitive."""
        return self.signature.primitive


@dataclass(frozen=True)
class Region:
    """A body: the whole program ("root"), a "scan" body, or a "remat" span behind its barrier.

    A remat region has no arguments of its own: its nodes read the results of the
    `optimization_barrier` node that opens it.

    Attributes:
      node: the call that owns it; None for root and remat.
      arguments, results: value indices, in the order of the call's operands and results.
      nodes: node indices in order of execution; a call's own index stands where it runs.
      trip_count: executions per step of the program, enclosing loops included.
    """

    index: int
    kind: str
    parent: int | None
    node: int | None
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    nodes: tuple[int, ...]
    trip_count: int


@dataclass(frozen=True, slots=True)
class Tie:
    """Two values on the two sides of a region's border that share a sharding.

    `target = source` but for `drop` leading dimensions that one side lacks:
    kind "const", "init" (outer to body argument), "xs" (outer to body argument, leading dimension dropped),
    "carry" (body result to body argument), "result" (body result to outer result), "ys" (body result to outer
    result, leading dimension added).
    """

    call: int
    kind: str
    source: int
    target: int

    @property
    def source_drop(self) -> int:
        """Leading dimensions of `source` that `target` lacks."""
        return int(self.kind == "xs")

    @property
    def target_drop(self) -> int:
        """Leading dimensions of `target` that `source` lacks."""
        return int(self.kind == "ys")


@dataclass(frozen=True, slots=True)
class Site:
    """An annotation in the function: data beside the graph, so that a strategy may replace it.

    Attributes:
      node: index of the identity node ("annotate") that marks the place.
      name: of `annotate(x, name)`, else None.
      spec: per dimension the axis names, major first; None for a site that only a strategy fills.
      unspecified_dims: dimensions left to completion.
    """

    node: int
    name: str | None
    spec: tuple[tuple[str, ...], ...] | None
    unspecified_dims: tuple[int, ...] = ()


@dataclass(frozen=True)
class Graph:
    """A JAX function as data.

    Attributes:
      values, nodes, regions: `regions[0]` is the whole program; `values[i].index == i`.
      arguments, results: value indices of the flattened pytrees.
      argument_paths: `params['w']`, one per argument; result_paths likewise.
      constants: (value index, array) of literals and of what the function closes over.
      literals: indices of rank-0 constants that are numbers, not data.
      bindings: per node index, jax's own (primitive, params); empty in a loaded graph.
      trees: (arguments' treedef, results' treedef) of jax; None in a loaded graph.
    """

    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    regions: tuple[Region, ...]
    ties: tuple[Tie, ...]
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    argument_paths: tuple[str, ...]
    result_paths: tuple[str, ...]
    sites: tuple[Site, ...] = ()
    constants: tuple[tuple[int, object], ...] = field(default=(), compare=False, repr=False)
    bindings: tuple[object, ...] = field(default=(), compare=False, repr=False)
    trees: object = field(default=None, compare=False, repr=False)

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """Per value, the nodes that read it, in order (a call counts as a user of its operands)."""
        users: list[list[int]] = [[] for _ in self.values]
        for node in self.nodes:
            for value in dict.fromkeys(node.operands):
                users[value].append(node.index)
        return tuple(tuple(u) for u in users)

    @cached_property
    def producer(self) -> tuple[int | None, ...]:
        """Per value, the node that makes it."""
        made: list[int | None] = [None] * len(self.values)
        for node in self.nodes:
            for value in node.results:
                made[value] = node.index
        return tuple(made)

    def trip_count(self, node: Node) -> int:
        """Executions of `node` per step."""
        return self.regions[node.region].trip_count

    def walk(self, region: int = 0) -> Iterator[Node]:
        """Nodes in order of execution, a call's bodies right before the call itself."""
        for index in self.regions[region].nodes:
            node = self.nodes[index]
            for body in node.bodies:
                yield from self.walk(body)
            yield node
