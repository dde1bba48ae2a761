"""The traced program: values, nodes and the tree of regions they stand in. No jax here.

What follows from a graph alone, on every mesh: worked out once and remembered on the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, ref

from shardalg.errors import TraceError

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
# Files are read by the exact type. To a type checker it is any: which of these a parameter is, its
# primitive says, and every rule would have to prove it again.
if TYPE_CHECKING:
    Plain: TypeAlias = Any
else:
    Plain = int | float | bool | str | None | tuple["Plain", ...]
Params = tuple[tuple[str, Plain], ...]
PlainMesh = tuple[tuple[tuple[str, int], ...], tuple[int, ...] | None]


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

    def param(self, name: str, default: Any = None) -> Any:
        """The parameter called `name`, of the type that its primitive gives it."""
        for known, value in self.params:
            if known == name:
                return value
        return default


_SHARED: WeakKeyDictionary[Signature, ref[Signature]] = WeakKeyDictionary()


def shared_signature(signature: Signature) -> Signature:
    """Return the one object that stands for all equal signatures of this process.

    Tables that are keyed by signatures then find an entry by identity. Without it, a function that
    was planned before made each lookup compare two signatures item by item.
    """
    known = _SHARED.get(signature)
    found = None if known is None else known()
    if found is None:
        _SHARED[signature] = ref(signature)
    return found or signature


@dataclass(frozen=True, slots=True)
class Node:
    """One operation.

    Attributes:
      operands, results: value indices.
      source: `model.py:41`, the user's line that made it, behind it in brackets the line of an
        installed package that it went through, `model.py:41 (linear.py:271)`; "" if unknown.
      phase: "forward", "backward" or "update", from JAX's name stack.
      region: the region it stands in.
      bodies: for a call (scan, while, cond), its regions.
      module: `layers_3/mlp/up`, the named scopes around it; "" where there is none.
    """

    index: int
    signature: Signature
    operands: tuple[int, ...]
    results: tuple[int, ...]
    source: str = ""
    phase: str = "forward"
    region: int = 0
    bodies: tuple[int, ...] = ()
    module: str = ""

    @property
    def primitive(self) -> str:
        """Name of the JAX primitive."""
        return self.signature.primitive


@dataclass(frozen=True)
class Region:
    """A body: the program ("root"), of a "scan", "while", "cond" or "shard_map", or a "remat" span.

    The nodes of a body read its arguments, each other, and constants; nothing else from outside.
    A remat region has no arguments or results of its own: its nodes stand in the list of the region
    around it as well, read the results of the `optimization_barrier` node before them (where JAX
    asks for one), and hand their values out directly.

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
class RegionArgument:
    """Two values on the two sides of a region's border that share a sharding.

    `target = source` but for `drop` leading dimensions that one side lacks. Kinds: "const" and
    "init" (outer to body argument), "xs" (outer to body argument, leading dimension dropped),
    "carry" (body result to body argument), "result" (body result to outer result), "ys" (body
    result to outer result, leading dimension added). What the condition of a while loop reads of
    the carry is a "const" from the body's argument to its own. Across the border of a manual region
    stands a device's "block" of a value, or what is put together from "blocks": no sharding is
    shared, and sizes differ.
    """

    call: int
    kind: str
    source: int
    target: int

    @property
    def is_manual(self) -> bool:
        """Whether one side is what a device holds of the other one."""
        return self.kind in ("block", "blocks")

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
      unspecified_dims: dimensions left to completion; with `spec` None those that `vmap` added,
        which the strategy's spec does not count.
      mesh: of a constraint that brings its own, the axes with their sizes, and the device ids where
        they are not 0, 1, 2, ...: with the spec it is read by `planner.propagate.strategy`.
    """

    node: int
    name: str | None
    spec: tuple[tuple[str, ...], ...] | None
    unspecified_dims: tuple[int, ...] = ()
    mesh: PlainMesh | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What the plan runs without: an effect that has no result (a print), a copy to the host.

    Attributes:
      primitive, source: as of a node.
      count: executions per step.
    """

    primitive: str
    source: str
    count: int


@dataclass(frozen=True, slots=True)
class Unread:
    """What was traced and no result needs: the plan is without it.

    Attributes:
      count, gradients: how many operators, of them of the backward pass; total: of all traced.
      source: of the first of them that is a product, or of the backward pass.
      lost: arguments that the function replaced in place, and did not return.
    """

    count: int
    gradients: int
    total: int
    source: str
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Missing:
    """A constant that a saved graph left out for its size; `sha256` of its bytes."""

    sha256: str


@dataclass(frozen=True, repr=False)
class Graph:
    """A JAX function as data.

    Attributes:
      values, nodes, regions: `regions[0]` is the whole program; `values[i].index == i`.
      arguments, results: value indices of the flattened pytrees.
      argument_paths: `params['w']`, one per argument; result_paths likewise.
      constants: (value index, array) of literals and of what the function closes over.
      bindings: per node index, jax's own (primitive, params); empty in a loaded graph.
      trees: (arguments' treedef, results' treedef) of jax; None in a loaded graph.
      left_out: effects of the function, and copies to the host, that no node stands for.
      unread: operators that no result needs, where they are worth a word; not kept in files.
      block_axes: axes of regions that are written for one block, and stand here for all of them:
        how many blocks there are is in the sizes.
      as_written: makes the graph whose `shard_map`s are nodes without bodies, as the function says
        them; None where none is planned on the axes that it leaves. Not kept in files.
    """

    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    regions: tuple[Region, ...]
    region_arguments: tuple[RegionArgument, ...]
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    argument_paths: tuple[str, ...]
    result_paths: tuple[str, ...]
    sites: tuple[Site, ...] = ()
    constants: tuple[tuple[int, Any], ...] = field(default=(), compare=False, repr=False)
    bindings: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    trees: Any = field(default=None, compare=False, repr=False)
    left_out: tuple[LeftOut, ...] = field(default=(), compare=False, repr=False)
    unread: Unread | None = field(default=None, compare=False, repr=False)
    block_axes: tuple[str, ...] = field(default=(), compare=False, repr=False)
    as_written: Callable[[], Graph] | None = field(default=None, compare=False, repr=False)

    def added_dims(self, site: Site) -> tuple[int, ...]:
        """Dimensions that `vmap` gave a named site; a strategy's spec does not count them."""
        added: tuple[int, ...] = self.nodes[site.node].signature.param("added", ())
        return site.unspecified_dims if site.spec is None else added

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
        made = {value: node.index for node in self.nodes for value in node.results}
        return tuple(map(made.get, range(len(self.values))))

    @cached_property
    def _by_primitive(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for node in self.nodes:
            found.setdefault(node.signature.primitive, []).append(node.index)
        return found

    def __deepcopy__(self, memo: object = None) -> Graph:
        """A graph never changes: its copy is itself, with JAX's own primitives."""
        return self

    __copy__ = __deepcopy__

    def __getstate__(self) -> dict[str, Any]:
        """Raise TraceError where primitives of JAX, which are not pickled, are in it."""
        if self.bindings:
            raise TraceError("a traced graph holds JAX's primitives. Pickle the Plan: its file.")
        return dict(vars(self))

    def nodes_of(self, primitives: Iterable[str]) -> list[Node]:
        """The nodes of some primitives, in order of their numbers."""
        known = self._by_primitive
        return [self.nodes[n] for n in sorted(n for p in primitives for n in known.get(p, ()))]

    def trip_count(self, node: Node) -> int:
        """Executions of `node` per step."""
        return self.regions[node.region].trip_count

    def iterations(self, loop: Node) -> int | None:
        """Return the iterations of a `while` loop per execution, or None if they are unknown.

        A loop of known length runs its condition once more than its body.
        """
        condition, body = (self.regions[index].trip_count for index in loop.bodies)
        return None if condition == body else body // max(self.trip_count(loop), 1)

    def manual_axes(self, region: int) -> dict[str, int]:
        """Axes, with sizes, along which each device runs a region on its own blocks."""
        found: dict[str, int] = {}
        here: Region | None = self.regions[region]
        while here is not None:
            if here.kind == "shard_map" and here.node is not None:
                found |= dict(self.nodes[here.node].signature.param("axes"))
            here = None if here.parent is None else self.regions[here.parent]
        return found

    @cached_property
    def traced_axes(self) -> frozenset[str]:
        """Axes whose sizes are in the graph, since some region is manual along them."""
        called = (node.signature.param("axes") for node in self.nodes_of(["shard_map"]))
        return frozenset(self.block_axes).union(*(dict(axes or ()) for axes in called))

    def walk(self, region: int = 0) -> Iterator[Node]:
        """Nodes in order of execution, a call's bodies right before the call itself."""
        for index in self.regions[region].nodes:
            node = self.nodes[index]
            for body in node.bodies:
                yield from self.walk(body)
            yield node

    @cached_property
    def literals(self) -> frozenset[int]:
        """Constants that are numbers (rank 0), not data."""
        return frozenset(i for i, _ in self.constants if not self.values[i].type.shape)

    @cached_property
    def numbers(self) -> dict[int, int | float | bool]:
        """Literals that are real numbers, by value."""
        types = {i: self.values[i].type for i in self.literals}
        real = {i for i, t in types.items() if t.dtype in ITEM_SIZES and "complex" not in t.dtype}
        return {i: array.item() for i, array in self.constants if i in real}

    def __repr__(self) -> str:
        counts = (len(self.arguments), len(self.nodes), len(self.regions), len(self.results))
        return "Graph({} arguments, {} nodes, {} regions, {} results)".format(*counts)

    def __str__(self) -> str:
        return "\n".join(_text(self))


def _text(graph: Graph) -> Iterator[str]:
    """One line per node, bodies indented before their call."""
    yield f"graph({_typed(graph, graph.arguments)}):"
    yield from _region_lines(graph, graph.regions[0], "  ")
    pairs = zip(graph.result_paths, graph.results, strict=True)
    yield f"  return {', '.join(f'{path} = {_short(graph, i)}' for path, i in pairs)}"


def _region_lines(graph: Graph, region: Region, indent: str) -> Iterator[str]:
    for node in (graph.nodes[i] for i in region.nodes):
        for body in (graph.regions[i] for i in node.bodies):
            arguments = _typed(graph, body.arguments)
            head = f"region {body.index} ({body.kind}, {body.trip_count} times)"
            yield f"{indent}{head}({arguments}):"
            yield from _region_lines(graph, body, indent + "  ")
            yield f"{indent}  yield {', '.join(_short(graph, i) for i in body.results)}"
        yield indent + _node_line(graph, node)


def _node_line(graph: Graph, node: Node) -> str:
    results = ", ".join(f"%{i}: {graph.values[i].type}" for i in node.results)
    operands = ", ".join(_short(graph, i) for i in node.operands)
    params = ", ".join(f"{name}={value!r}" for name, value in node.signature.params)
    remat = f"remat {node.region}" if graph.regions[node.region].kind == "remat" else ""
    notes = " ".join(filter(None, (node.phase, node.source, remat)))
    options = f" {{{params}}}" if params else ""
    return f"{results} = {node.primitive}({operands}){options}  # {notes}"


def _typed(graph: Graph, indices: tuple[int, ...]) -> str:
    return ", ".join(f"%{i} {graph.values[i].name}: {graph.values[i].type}" for i in indices)


def _short(graph: Graph, index: int) -> str:
    """A number as itself, any other value by its index."""
    return graph.values[index].name if index in graph.literals else f"%{index}"


Given = ParamSpec("Given")
Made = TypeVar("Made")
MEMO = "_once_per_graph"


def once_per_graph(
    make: Callable[Concatenate[Graph, Given], Made],
) -> Callable[Concatenate[Graph, Given], Made]:
    """A function of a graph, and of more that hashes, that remembers what it made of each graph.

    It is remembered in the graph, as a cached property is, and gone with it: a frozen graph has no
    better key, for its hash walks all nodes. Planning again on another mesh would else index the
    graph again: 0.17 s of process time beside the 0.22 s of the plan, of 64 unrolled layers.
    """

    @wraps(make)
    def known(graph: Graph, *args: Given.args, **kwargs: Given.kwargs) -> Made:
        memo = vars(graph).setdefault(MEMO, {})
        key = (make, *args, *sorted(kwargs.items()))
        if key not in memo:
            memo[key] = make(graph, *args, **kwargs)
        return memo[key]

    return known
