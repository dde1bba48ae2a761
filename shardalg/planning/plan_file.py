"""Plan files: JSON with a schema and a digest, written atomically, read without evaluating text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import make_dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import PlanFileError
from shardalg.graph.ir import Graph
from shardalg.io import records
from shardalg.io.files import write_whole
from shardalg.planning.traced import Traced, read_traced
from shardalg.propagate.options import DefaultChip, Options, Switches
from shardalg.propagate.strategy import Annotations, check_fit
from shardalg.renamed import warn_renamed

SCHEMA = "shardalg.plan/4"
BEFORE = "shardalg.plan/3"
"""Its "gspmd" is today's "paper": the name now stands for the completion of XLA's own GSPMD."""
KEYS = (
    "graph", "symbols", "argument_roles", "donated", "home", "annotations", "options", "program",
)  # fmt: skip


def write(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write `content`, atomically: another file of that name is replaced whole or not at all.

    Raises:
      PlanFileError: the folder does not exist, or cannot be written to.
    """
    inside = body(content)
    text = f'{{"schema": {json.dumps(SCHEMA)}, "sha256": "{digest(inside)}", "plan": {inside}}}\n'
    try:
        write_whole(Path(path), text)
    except (OSError, TypeError, ValueError) as error:  # a name with a zero in it: ValueError
        reason = getattr(error, "strerror", None) or error
        raise PlanFileError(f"{path} cannot be written: {reason}. Save to another place.") from None


def body(content: object) -> str:
    """Content as the one text that JSON of a file has for it."""
    return json.dumps(content, sort_keys=True)


def digest(text: str) -> str:
    """SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


class Saved(NamedTuple):
    """What a file holds, and by which schema."""

    content: Mapping[str, Any]
    schema: str


def read(path: str | Path) -> Saved:
    """The content that `write` was given.

    Raises:
      PlanFileError: no such file, cut short, edited, or of another schema.
    """
    try:
        path = Path(path)
        text = path.read_text(encoding="utf-8")
    except (OSError, TypeError, ValueError) as error:
        raise PlanFileError(f"{path} cannot be read: {error}. Save it again.") from None
    whole = _parsed(path, text)
    schema = whole.get("schema") if isinstance(whole, dict) else None
    if schema not in (SCHEMA, BEFORE):
        raise PlanFileError(f"{path} has schema {schema!r}, not {SCHEMA!r}: it is no plan file.")
    found = digest(body(whole.get("plan")))
    if found != whole.get("sha256"):
        raise PlanFileError(
            f"{path} was edited: its content has digest {found[:12]}, the file says "
            f"{str(whole.get('sha256'))[:12]}. Change the plan in Python and save it again."
        )
    if not isinstance(whole["plan"], dict) or set(whole["plan"]) != set(KEYS):
        raise PlanFileError(f"{path}: its content is no plan: it needs {', '.join(KEYS)}, no more.")
    return Saved(whole["plan"], schema)


def _parsed(path: Path, text: str) -> Any:
    """The JSON of a file, no deeper than a plan's."""
    try:
        whole = json.loads(text, parse_constant=_refused)
    except json.JSONDecodeError as error:
        raise PlanFileError(
            f"{path} is no JSON from line {error.lineno}, column {error.colno} on ({error.msg}): "
            "it was cut short or edited. Save the plan again."
        ) from None
    except (RecursionError, ValueError) as error:  # too deep, or a number of too many digits
        raise PlanFileError(f"{path} is no plan file: {error}. Save the plan again.") from None
    records.check_depth(whole)
    return whole


def _refused(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def sealed(content: Mapping[str, Any], text: str) -> str:
    """The digest that ties all that was asked for to the program that came of it."""
    return digest(f"{body(content)}\n{text}")


def content(
    traced: Traced, annotations: Annotations, options: Options, *, text: str, schema: str = SCHEMA
) -> dict[str, Any]:
    """What a file of a schema holds of a plan, as plain data; `text` is its program."""
    settings = _as_before(options.settings) if schema == BEFORE else options.settings
    if not options.trips:  # earlier versions have no such setting
        settings = {name: value for name, value in settings.items() if name != "trips"}
    if isinstance(options.hardware, DefaultChip):  # a loaded plan says so again
        settings = {**settings, _DEFAULT: True}
    annotated = annotations_json(annotations)
    asked = {**traced.to_json(), "annotations": annotated, "options": settings}
    return {**asked, "program": sealed(asked, text)}


def _as_before(settings: dict[str, Any]) -> dict[str, Any]:
    renamed = {"paper": "gspmd"}.get(settings["policy"], settings["policy"])
    return {**settings, "policy": renamed}


def _as_now(options: Options) -> Options:
    if options.policy != "gspmd":
        return options
    warn_renamed("a plan file's policy 'gspmd'", "'paper', as which it is loaded")
    return replace(options, policy="paper")


def parts(saved: Saved) -> tuple[Traced, Annotations, Options]:
    """What a plan is made of, from the content of a file; the digest inside is not looked at.

    Raises:
      PlanFileError: a value that its type does not allow, or a graph that no trace makes.
      ShardalgError: what cannot be of layouts, meshes, options and sizes.
    """
    content, schema = saved
    traced = read_traced(content)
    annotations = read_annotations(content["annotations"], traced.graph, traced.first_mesh)
    said = content["options"]
    told = {"trips": [], **said} if isinstance(said, dict) else said
    is_default = isinstance(told, dict) and told.pop(_DEFAULT, False) is True
    settings = records.read(_Settings, told, "options")
    options = Options.of(records.values(settings, _Settings))
    if is_default and isinstance(options.hardware, str):
        options = replace(options, hardware=DefaultChip(options.hardware))
    return traced, annotations, _as_now(options) if schema == BEFORE else options


_DEFAULT = "hardware_is_default"
_SIDES = ("arguments", "results", "sites")
_MESH = ("axes", "device_ids", "symbolic")
# What a file holds of a layout: all of it but the mesh, which is that of all layouts.
_Layout: Any = records.without(Sharding, "mesh")
# Switches stand beside the other options in a file: versions that had them there read it too.
_Settings = records.joined(records.without(Options, "switches"), Switches)
_Saved = make_dataclass(
    "_Saved",
    [
        *(("axes", tuple[tuple[str, int], ...]), ("device_ids", tuple[int, ...] | None)),
        *(("symbolic", bool), *((side, tuple[_Layout | None, ...]) for side in _SIDES)),
        ("orders", tuple[tuple[str, int, tuple[int, ...] | None], ...]),
    ],
)


def annotations_json(annotations: Annotations) -> dict[str, Any]:
    """Annotations as plain data."""
    mesh = {name: getattr(annotations.mesh, name) for name in _MESH}
    sides = {side: [_plain(layout) for layout in getattr(annotations, side)] for side in _SIDES}
    orders = [[side, number, mesh.device_ids] for side, number, mesh in annotations.orders]
    return {**mesh, **sides, "orders": orders}


def _plain(layout: Sharding | None) -> dict[str, Any] | None:
    if layout is None:
        return None
    return records.values(layout, _Layout)


def read_annotations(data: object, graph: Graph, first_mesh: Mesh | None) -> Annotations:
    """The annotations that `annotations_json` wrote, if they are those of the graph.

    Args:
      first_mesh: of the traced function.

    Raises:
      PlanFileError: a value that its type does not allow. StrategyError, ShardingError, MeshError:
        layouts that the graph's values or the mesh cannot have.
    """
    saved = records.read(_Saved, data, "annotations")
    mesh = Mesh(saved.axes, saved.device_ids, symbolic=saved.symbolic)
    arguments, results, sites = (
        tuple(_layout(mesh, layout) for layout in getattr(saved, side)) for side in _SIDES
    )
    orders = tuple((side, at, Mesh(saved.axes, ids)) for side, at, ids in saved.orders)
    annotations = Annotations(mesh, arguments, results, sites, orders=orders)
    check_fit(graph, annotations, first_mesh)
    return annotations


def _layout(mesh: Mesh, saved: Any) -> Sharding | None:
    if saved is None:
        return None
    whole = {mesh.digit(name) for name in mesh.axis_names}
    for digit in chain(*saved.dims, saved.unreduced, saved.replicated, saved.manual):
        if min(digit) < 1 or (mesh.symbolic and digit not in whole):
            raise PlanFileError(f"annotations: {digit!r} is no axis of {mesh!r}.")
        mesh.axis_ref(digit)
    return Sharding(mesh, **records.values(saved, _Layout))


def to_bytes(save: Callable[[Path], None]) -> bytes:
    """What `save` writes to a file."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "plan.json")
        save(path)
        return path.read_bytes()


def from_bytes(load: Callable[[Path], Any], content: bytes) -> Any:
    """What `load` reads from a file of this content."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "plan.json")
        write_whole(path, content)
        return load(path)
