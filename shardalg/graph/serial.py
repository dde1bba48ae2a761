"""A graph as JSON and back, and a hash that is the same in every process. No code is ever read."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from shardalg.errors import PlanFileError, TraceError
from shardalg.files import read, row_of, to_data
from shardalg.graph.ir import (
    Graph,
    LeftOut,
    Missing,
    Node,
    Params,
    Region,
    Signature,
    Site,
    Value,
    ValueType,
)
from shardalg.graph.loaded import item_type, loaded
from shardalg.graph.well_formed import check

SCHEMA = "shardalg.graph/2"
# A larger constant is kept as its hash: such a graph prints, plans and costs, but cannot run.
LIMIT_BYTES = 1 << 20


def to_json(graph: Graph, *, limit_bytes: int = LIMIT_BYTES) -> dict[str, Any]:
    """The graph as lists, numbers and text; JAX's own objects (bindings, trees) are left out.

    Ties are left out too: they follow from the calls.

    Args:
      limit_bytes: a constant of more bytes is replaced by its SHA-256.
    """
    types = _Interned(lambda t: [list(t.shape), t.dtype])
    signatures = _Interned(
        lambda s: [s.primitive, to_data(s.params), types.all(s.operands), types.all(s.results)]
    )
    values = [[types(v.type), v.kind, v.name] for v in graph.values]
    nodes = [
        [signatures(n.signature), n.operands, n.results, n.source, n.phase, n.region, n.bodies]
        for n in graph.nodes
    ]
    return {
        "schema": SCHEMA,
        "types": types.items,
        "signatures": signatures.items,
        "values": values,
        "nodes": to_data(nodes),
        **_modules(graph),
        **({"block_axes": list(graph.block_axes)} if graph.block_axes else {}),
        "regions": [to_data(_fields(r)[1:]) for r in graph.regions],
        "sites": [to_data(_fields(site)) for site in graph.sites],
        "left_out": [_fields(effect) for effect in graph.left_out],
        "constants": [[i, *_stored(array, limit_bytes)] for i, array in graph.constants],
        **{key: list(getattr(graph, key)) for key in _PLAIN_FIELDS},
    }


def from_json(data: Mapping[str, Any]) -> Graph:
    """The graph that `to_json` wrote, without bindings.

    Raises:
      PlanFileError: another schema, or a text that was cut short or edited: a value that its type
        does not allow, or a graph that no trace makes (`loaded.check`).
    """
    schema = data.get("schema") if isinstance(data, Mapping) else None
    if schema != SCHEMA:
        raise PlanFileError(
            f"this graph has the schema {schema!r}, this version reads {SCHEMA!r}. "
            "Save it again with this version."
        )
    plain = {key: value for key, value in data.items() if key not in _WHERE_THERE_ARE_ANY}
    graph = _in_modules(_graph(read(_SavedGraph, plain, "graph")), data.get("modules", ()))
    blocks = read(tuple[str, ...], data.get("block_axes", ()), "block_axes")
    graph = replace(graph, block_axes=blocks)
    try:
        check(graph)
    except TraceError as error:
        raise PlanFileError(
            f"the saved graph is damaged: {error}. Plan the function again."
        ) from None
    return graph


def graph_hash(graph: Graph) -> str:
    """SHA-256 of what the program computes, in hexadecimal, equal in every process.

    Names of values, modules, source lines and effects that are left out do not count: an edited
    comment or print changes nothing. The paths of the arguments and results, the sites, the phases
    and the data of constants do.
    """
    data = to_json(graph, limit_bytes=-1)
    del data["left_out"]
    for key in _WHERE_THERE_ARE_ANY:
        data.pop(key, None)
    data["values"] = [value[:2] for value in data["values"]]
    data["nodes"] = [node[:3] + node[4:] for node in data["nodes"]]
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _modules(graph: Graph) -> dict[str, Any]:
    """The nodes of every module, where there are modules."""
    inside: dict[str, list[int]] = {}
    for node in graph.nodes:
        if node.module:
            inside.setdefault(node.module, []).append(node.index)
    return {"modules": [[name, nodes] for name, nodes in inside.items()]} if inside else {}


def _in_modules(graph: Graph, data: Any) -> Graph:
    modules = read(tuple[tuple[str, tuple[int, ...]], ...], data, "modules")
    at = {node: name for name, nodes in modules for node in nodes}
    if not set(at) <= set(range(len(graph.nodes))):
        raise PlanFileError("the saved graph is damaged: modules of nodes that there are not.")
    nodes = tuple(replace(n, module=at[n.index]) if n.index in at else n for n in graph.nodes)
    return replace(graph, nodes=nodes) if at else graph


_WHERE_THERE_ARE_ANY = ("modules", "block_axes")
_PLAIN_FIELDS = ("arguments", "results", "argument_paths", "result_paths")


class _Interned:
    """Distinct items in order of appearance, each written once and then called by its number."""

    def __init__(self, write: Callable[[Any], Any]) -> None:
        self.items: list[Any] = []
        self._write = write
        self._numbers: dict[Any, int] = {}

    def __call__(self, item: Any) -> int:
        if item not in self._numbers:
            # Writing an item may intern others in another table, never in this one.
            written = self._write(item)
            self._numbers[item] = len(self.items)
            self.items.append(written)
        return self._numbers[item]

    def all(self, items: Iterable[Any]) -> list[int]:
        """The number of each item, new ones added."""
        return [self(item) for item in items]


def _fields(record: Region | Site | LeftOut) -> list[Any]:
    return [getattr(record, name) for name in record.__dataclass_fields__]


def _stored(array: object, limit_bytes: int) -> list[Any]:
    """How a constant is kept: `["data", dtype, shape, base64]` or `["sha256", digest]`."""
    if isinstance(array, Missing):
        return ["sha256", array.sha256]
    try:
        plain = np.asarray(array)
    except TypeError:  # a typed random key shows its words, and has no bytes
        return ["sha256", hashlib.sha256(repr(array).encode()).hexdigest()]
    content = plain.tobytes()
    if len(content) > limit_bytes:
        return ["sha256", hashlib.sha256(content).hexdigest()]
    text = base64.b64encode(content).decode()
    return ["data", plain.dtype.name, list(plain.shape), text]


_TYPE: Any = row_of(ValueType)
_SIGNATURE = tuple[str, Params, tuple[int, ...], tuple[int, ...]]
_VALUE: Any = row_of(Value, without=("index",), type=int)
_PHASE = Literal["forward", "backward", "update"]
_NODE: Any = row_of(Node, without=("index", "module"), signature=int, phase=_PHASE)
_REGION: Any = row_of(Region, without=("index",))
_SITE: Any = row_of(Site)
_LEFT_OUT: Any = row_of(LeftOut)
_CONSTANT = (
    tuple[int, Literal["data"], str, tuple[int, ...], str] | tuple[int, Literal["sha256"], str]
)


@dataclass(frozen=True)
class _SavedGraph:
    """What a file holds of a graph: rows, in which numbers stand for types and signatures."""

    schema: str
    types: tuple[_TYPE, ...]
    signatures: tuple[_SIGNATURE, ...]
    values: tuple[_VALUE, ...]
    nodes: tuple[_NODE, ...]
    regions: tuple[_REGION, ...]
    sites: tuple[_SITE, ...]
    left_out: tuple[_LEFT_OUT, ...]
    constants: tuple[_CONSTANT, ...]
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    argument_paths: tuple[str, ...]
    result_paths: tuple[str, ...]


def _graph(saved: _SavedGraph) -> Graph:
    types = [ValueType(*row) for row in saved.types]
    signatures = [
        Signature(name, params, _chosen(types, ins), _chosen(types, outs))
        for name, params, ins, outs in saved.signatures
    ]
    values = [Value(i, *_chosen(types, (t,)), *rest) for i, (t, *rest) in enumerate(saved.values)]
    nodes = [Node(i, *_chosen(signatures, (s,)), *r) for i, (s, *r) in enumerate(saved.nodes)]
    return loaded(
        Graph(
            values=tuple(values),
            nodes=tuple(nodes),
            regions=tuple(Region(i, *row) for i, row in enumerate(saved.regions)),
            region_arguments=(),
            sites=tuple(Site(*row) for row in saved.sites),
            left_out=tuple(LeftOut(*row) for row in saved.left_out),
            constants=tuple((i, _RESTORE[kind](*rest)) for i, kind, *rest in saved.constants),
            **{key: getattr(saved, key) for key in _PLAIN_FIELDS},
        )
    )


def _chosen(table: Sequence[Any], numbers: Iterable[int]) -> tuple[Any, ...]:
    """Rows of a table by their numbers."""
    numbers = tuple(numbers)
    beyond = [i for i in numbers if not 0 <= i < len(table)]
    if beyond:
        raise PlanFileError(f"the saved graph is damaged: {beyond} of {len(table)} rows.")
    return tuple([table[i] for i in numbers])


def _array(name: str, shape: tuple[int, ...], text: str) -> np.ndarray:
    dtype = item_type(name)
    try:
        if dtype is None:
            raise ValueError(f"{name!r} is no type")
        return np.frombuffer(base64.b64decode(text, validate=True), dtype).reshape(shape)
    except ValueError as error:
        raise PlanFileError(
            f"the saved graph is damaged: a constant {name}{list(shape)}: {error}."
        ) from None


_RESTORE: dict[str, Callable[..., object]] = {"data": _array, "sha256": Missing}
