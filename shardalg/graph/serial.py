"""Conversion of a graph to JSON and back, and a hash of a graph that is equal in every process.

A file contains no code, so that it is safe to read a file of unknown origin.
"""

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
LIMIT_BYTES = 1 << 20
"""A larger constant is stored as its hash. Such a graph can be planned and priced, but not run."""


def to_json(graph: Graph, *, limit_bytes: int = LIMIT_BYTES) -> dict[str, Any]:
    """Return the graph as a dictionary of lists, numbers and text, which JSON can store.

    JAX's objects (bindings, trees) are left out. Region arguments are left out too, because they
    follow from the calls.

    Args:
      limit_bytes: a constant of more bytes is replaced by its SHA-256.
    """
    # Many values share a type and many nodes a signature. The file has a table of each, and refers
    # to its rows by number.
    types = _Interned(lambda t: [list(t.shape), t.dtype])
    signatures = _Interned(
        lambda s: [s.primitive, to_data(s.params), types.all(s.operands), types.all(s.results)]
    )
    # Values and nodes come before the tables in time, because writing them fills the tables.
    values = [[types(v.type), v.kind, v.name] for v in graph.values]
    nodes = [
        [signatures(n.signature), n.operands, n.results, n.source, n.phase, n.region, n.bodies]
        for n in graph.nodes
    ]
    # Optional keys are written only if they are used, so a graph without them has the same file.
    optional: dict[str, Any] = {}
    for key, name in _TEXTS.items():
        # Many nodes share a text: the file has [text, numbers of its nodes].
        nodes_of_text: dict[str, list[int]] = {}
        for node in graph.nodes:
            if text := getattr(node, name):
                nodes_of_text.setdefault(text, []).append(node.index)
        if nodes_of_text:
            optional[key] = [[text, numbers] for text, numbers in nodes_of_text.items()]
    if graph.block_axes:
        optional["block_axes"] = list(graph.block_axes)
    return {
        "schema": SCHEMA,
        "types": types.items,
        "signatures": signatures.items,
        "values": values,
        "nodes": to_data(nodes),
        **optional,
        "regions": [to_data(_fields(r)[1:]) for r in graph.regions],
        "sites": [to_data(_fields(site)) for site in graph.sites],
        "left_out": [_fields(effect) for effect in graph.left_out],
        "constants": [[i, *_stored(array, limit_bytes)] for i, array in graph.constants],
        **{key: list(getattr(graph, key)) for key in _PLAIN_FIELDS},
    }


def from_json(data: Mapping[str, Any]) -> Graph:
    """Return the graph that `to_json` wrote, without bindings.

    Raises:
      PlanFileError: the schema is another one, or the file was truncated or edited: a value has the
        wrong type, or tracing cannot produce such a graph (see `shardalg.graph.loaded`).
    """
    schema = data.get("schema") if isinstance(data, Mapping) else None
    if schema != SCHEMA:
        raise PlanFileError(
            f"this graph has the schema {schema!r}, this version reads {SCHEMA!r}. "
            "Save it again with this version."
        )
    # Optional keys are read separately, because `_SavedGraph` declares keys that must exist.
    required = {key: value for key, value in data.items() if key not in _OPTIONAL_KEYS}
    graph = _graph(read(_SavedGraph, required, "graph"))
    for key in _TEXTS:
        graph = _with_texts(graph, key, data.get(key, ()))
    block_axes = read(tuple[str, ...], data.get("block_axes", ()), "block_axes")
    # `check` comes last: it compares types by indices, whose range `loaded` has checked before.
    graph = replace(graph, block_axes=block_axes)
    try:
        check(graph)
    except TraceError as error:
        raise PlanFileError(
            f"the saved graph is damaged: {error}. Plan the function again."
        ) from None
    return graph


def graph_hash(graph: Graph) -> str:
    """Return the SHA-256 of the program, in hexadecimal, equal in every process.

    Names of values, modules, source lines and omitted effects do not count, so that editing a
    comment or a print does not change the hash. Paths of arguments and results, sites, phases and
    the data of constants count.
    """
    # With a negative limit all constants are stored as hashes.
    data = to_json(graph, limit_bytes=-1)
    # Left out of the hash: editing a print or a comment must not change it.
    del data["left_out"]
    for key in _OPTIONAL_KEYS:
        data.pop(key, None)
    # Entry 2 of a value is its name, and entry 3 of a node is its source line.
    data["values"] = [value[:2] for value in data["values"]]
    data["nodes"] = [node[:3] + node[4:] for node in data["nodes"]]
    # Sorted keys and fixed separators, so that the text is equal in every process.
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _with_texts(graph: Graph, key: str, data: Any) -> Graph:
    """Return the graph with one text field of its nodes set from a file.

    Args:
      key: the key in the file, which `_TEXTS` maps to the field of `Node`.
      data: lists `[text, node indices]`; other nodes keep the empty text.

    Raises:
      PlanFileError: the data have another form, or a node does not exist.
    """
    texts = read(tuple[tuple[str, tuple[int, ...]], ...], data, key)
    text_of = {node: text for text, nodes in texts for node in nodes}
    if not set(text_of) <= set(range(len(graph.nodes))):
        raise PlanFileError(f"the saved graph is damaged: {key} of nodes that do not exist.")
    name = _TEXTS[key]
    nodes = tuple(
        replace(n, **{name: text_of[n.index]}) if n.index in text_of else n for n in graph.nodes
    )
    return replace(graph, nodes=nodes) if text_of else graph


_TEXTS = {"modules": "module", "kernels": "kernel"}
"""Texts of nodes that few nodes have: the key in the file, and the field of the node."""


_OPTIONAL_KEYS = (*_TEXTS, "block_axes")
_PLAIN_FIELDS = ("arguments", "results", "argument_paths", "result_paths")


class _Interned:
    """A table in which equal items have one number, so that a file stores each of them once.

    Calling the table with an item returns the item's number, and adds a new item at the end.

    Attributes:
      items: the distinct items as JSON data, in order of their numbers. The function `write`
        converts an item to JSON data.
    """

    def __init__(self, write: Callable[[Any], Any]) -> None:
        self.items: list[Any] = []
        self._write = write
        self._numbers: dict[Any, int] = {}

    def __call__(self, item: Any) -> int:
        """Return the number of an item in the table; add the item if it is new."""
        if item not in self._numbers:
            # Writing an item may add items to another table, but never to this one. So the next
            # number is still free afterwards.
            written = self._write(item)
            self._numbers[item] = len(self.items)
            self.items.append(written)
        return self._numbers[item]

    def all(self, items: Iterable[Any]) -> list[int]:
        """Return the number of each item in the table; new items are added at its end."""
        return [self(item) for item in items]


def _fields(record: Region | Site | LeftOut) -> list[Any]:
    """Return the values of a dataclass's fields, in the order of their declaration."""
    return [getattr(record, name) for name in record.__dataclass_fields__]


def _stored(array: object, limit_bytes: int) -> list[Any]:
    """Return a constant as `["data", dtype, shape, base64]`, or as `["sha256", digest]`.

    The second form has only a hash, so that the constant must be given again when the file is read.
    It is used for a constant of more than `limit_bytes`, for random keys, and for a constant that
    is missing already.
    """
    if isinstance(array, Missing):
        return ["sha256", array.sha256]
    try:
        plain_array = np.asarray(array)
    except TypeError:  # a typed random key has no bytes, but its text has its words
        return ["sha256", hashlib.sha256(repr(array).encode()).hexdigest()]
    content = plain_array.tobytes()
    if len(content) > limit_bytes:
        return ["sha256", hashlib.sha256(content).hexdigest()]
    text = base64.b64encode(content).decode()
    return ["data", plain_array.dtype.name, list(plain_array.shape), text]


_TYPE: Any = row_of(ValueType)
_SIGNATURE = tuple[str, Params, tuple[int, ...], tuple[int, ...]]
_VALUE: Any = row_of(Value, without=("index",), type=int)
_PHASE = Literal["forward", "backward", "update"]
_NODE: Any = row_of(Node, without=("index", "module", "kernel"), signature=int, phase=_PHASE)
_REGION: Any = row_of(Region, without=("index",))
_SITE: Any = row_of(Site)
_LEFT_OUT: Any = row_of(LeftOut)
_CONSTANT = (
    tuple[int, Literal["data"], str, tuple[int, ...], str] | tuple[int, Literal["sha256"], str]
)


@dataclass(frozen=True)
class _SavedGraph:
    """The content of a graph file, after a check of each entry's type.

    Values refer to entries of `types` by their number, and nodes to entries of `signatures`.
    """

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
    """Return the graph that the tables of a file describe.

    Raises:
      PlanFileError: a number refers to no entry of a table, or tracing cannot produce the graph.
    """
    # A file has each type and each signature once, and refers to them by number.
    type_table = [ValueType(*row) for row in saved.types]
    signature_table = [
        Signature(name, params, _chosen(type_table, ins), _chosen(type_table, outs))
        for name, params, ins, outs in saved.signatures
    ]
    # Numbers that refer to types and signatures are checked here, all others in `loaded`.
    values = [
        Value(i, *_chosen(type_table, (t,)), *rest) for i, (t, *rest) in enumerate(saved.values)
    ]
    nodes = [Node(i, *_chosen(signature_table, (s,)), *r) for i, (s, *r) in enumerate(saved.nodes)]
    return loaded(
        Graph(
            values=tuple(values),
            nodes=tuple(nodes),
            regions=tuple(Region(i, *row) for i, row in enumerate(saved.regions)),
            # `loaded` computes the region arguments, because files do not store them.
            region_arguments=(),
            sites=tuple(Site(*row) for row in saved.sites),
            left_out=tuple(LeftOut(*row) for row in saved.left_out),
            constants=tuple((i, _RESTORE[kind](*rest)) for i, kind, *rest in saved.constants),
            **{key: getattr(saved, key) for key in _PLAIN_FIELDS},
        )
    )


def _chosen(table: Sequence[Any], numbers: Iterable[int]) -> tuple[Any, ...]:
    """Return the entries of a table at the positions `numbers`.

    Raises:
      PlanFileError: a position is out of range.
    """
    numbers = tuple(numbers)
    beyond = [i for i in numbers if not 0 <= i < len(table)]
    if beyond:
        raise PlanFileError(f"the saved graph is damaged: {beyond} of {len(table)} rows.")
    return tuple([table[i] for i in numbers])


def _array(name: str, shape: tuple[int, ...], text: str) -> np.ndarray:
    """Return a saved constant as an array.

    Args:
      name: the name of its dtype.
      text: the bytes of its elements in base64.

    Raises:
      PlanFileError: there is no such dtype, or the bytes do not fit the shape.
    """
    dtype = item_type(name)
    try:
        if dtype is None:
            raise ValueError(f"{name!r} is no type")
        # With `validate`, characters that are not base64 are an error and are not skipped.
        return np.frombuffer(base64.b64decode(text, validate=True), dtype).reshape(shape)
    except ValueError as error:
        raise PlanFileError(
            f"the saved graph is damaged: a constant {name}{list(shape)}: {error}."
        ) from None


_RESTORE: dict[str, Callable[..., object]] = {"data": _array, "sha256": Missing}
