"""A graph as JSON and back, and a hash that is the same in every process. No code is ever read."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from shardalg.errors import PlanFileError, TraceError
from shardalg.graph.ir import (
    Graph,
    LeftOut,
    Missing,
    Node,
    Params,
    Plain,
    Region,
    Signature,
    Site,
    Tie,
    Value,
    ValueType,
)

SCHEMA = "shardalg.graph/1"
# A larger constant is kept as its hash: such a graph prints, plans and costs, but cannot run.
LIMIT_BYTES = 1 << 20


def to_json(graph: Graph, *, limit_bytes: int = LIMIT_BYTES) -> dict[str, Any]:
    """The graph as lists, numbers and text; JAX's own objects (bindings, trees) are left out.

    Args:
      limit_bytes: a constant of more bytes is replaced by its SHA-256.
    """
    types = _Interned(lambda t: [list(t.shape), t.dtype])
    signatures = _Interned(
        lambda s: [s.primitive, _encode(s.params), types.all(s.operands), types.all(s.results)]
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
        "nodes": _encode(nodes),
        "regions": [_encode(_fields(r)[1:]) for r in graph.regions],
        "ties": [[t.call, t.kind, t.source, t.target] for t in graph.ties],
        "sites": [_encode(_fields(site)) for site in graph.sites],
        "left_out": [_fields(effect) for effect in graph.left_out],
        "constants": [[i, *_stored(array, limit_bytes)] for i, array in graph.constants],
        **{key: list(getattr(graph, key)) for key in _PLAIN_FIELDS},
    }


def from_json(data: Mapping[str, Any]) -> Graph:
    """The graph that `to_json` wrote, without bindings.

    Raises:
      PlanFileError: another schema, or a text that was cut short or edited.
    """
    schema = data.get("schema") if isinstance(data, Mapping) else None
    if schema != SCHEMA:
        raise PlanFileError(
            f"this graph has the schema {schema!r}, this version reads {SCHEMA!r}. "
            "Save it again with this version."
        )
    try:
        graph = _read(data)
        graph.check()
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, TraceError) as error:
        fault = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise PlanFileError(
            f"the saved graph is damaged: {fault}. Plan the function again."
        ) from None
    return graph


def graph_hash(graph: Graph) -> str:
    """SHA-256 of what the program computes, in hexadecimal, equal in every process.

    Names of values, source lines and effects that are left out do not count: an edited comment or
    print changes nothing. The paths of the arguments and results, the sites, the phases and the
    data of constants do.
    """
    data = to_json(graph, limit_bytes=-1)
    del data["left_out"]
    data["values"] = [value[:2] for value in data["values"]]
    data["nodes"] = [node[:3] + node[4:] for node in data["nodes"]]
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


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
        return [self(item) for item in items]


def _fields(record: Region | Site | LeftOut) -> list[Any]:
    return [getattr(record, name) for name in record.__dataclass_fields__]


def _encode(value: Any) -> Any:
    """Tuples as lists; JSON has no number for infinity and NaN."""
    if isinstance(value, tuple | list):
        return [_encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def _decode(value: Any) -> Plain:
    if isinstance(value, list):
        return tuple(_decode(item) for item in value)
    return float(value["float"]) if isinstance(value, dict) else value


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


def _array(name: str, shape: list[int], text: str) -> np.ndarray:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    return np.frombuffer(base64.b64decode(text, validate=True), dtype).reshape(shape)


_RESTORE: dict[str, Callable[..., object]] = {"data": _array, "sha256": Missing}


def _read(data: Mapping[str, Any]) -> Graph:
    types = [ValueType(_decode(shape), dtype) for shape, dtype in data["types"]]
    signatures = [_signature(types, *row) for row in data["signatures"]]
    return Graph(
        values=tuple(
            Value(i, types[t], kind, name) for i, (t, kind, name) in _rows(data, "values")
        ),
        nodes=tuple(
            Node(i, signatures[s], *map(_decode, rest)) for i, (s, *rest) in _rows(data, "nodes")
        ),
        regions=tuple(Region(i, *map(_decode, row)) for i, row in _rows(data, "regions")),
        ties=tuple(Tie(*row) for row in data["ties"]),
        sites=tuple(Site(*map(_decode, row)) for row in data["sites"]),
        left_out=tuple(LeftOut(*row) for row in data["left_out"]),
        constants=tuple((i, _RESTORE[kind](*stored)) for i, kind, *stored in data["constants"]),
        **{key: _decode(data[key]) for key in _PLAIN_FIELDS},
    )


def _rows(data: Mapping[str, Any], key: str) -> Iterable[tuple[int, list[Any]]]:
    return enumerate(data[key])


def _signature(
    types: list[ValueType], primitive: str, params: Any, operands: list[int], results: list[int]
) -> Signature:
    plain: Params = _decode(params)
    return Signature(
        primitive, plain, tuple(types[i] for i in operands), tuple(types[i] for i in results)
    )
