"""Plan files: JSON with the inputs of planning and a summary of the plan, written atomically.

A file of today's schema has the parts `versions` (what the plan was made with), `inputs` (all that
planning needs, as plain data) and `summary` (`plan/explain/plan_summary.py`), under one SHA-256.
Reading
evaluates no text: each value is checked by its declared type, and the plan is made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from shardalg import __version__, files
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.costs.topology import machine
from shardalg.errors import PlanFileError
from shardalg.files import write_whole
from shardalg.graph.ir import Graph
from shardalg.graph.tracing.parts import jax_version
from shardalg.planner.propagate.options import JIT, DefaultChip, Options, Switches
from shardalg.planner.propagate.strategy import Annotations, check_fit
from shardalg.planner.traced import Traced, read_traced
from shardalg.renamed import warn_renamed

SCHEMA = "shardalg.plan/5"
PARTS = ("inputs", "summary", "versions")
EARLIER = ("shardalg.plan/4", "shardalg.plan/3")
"""Their one part is `plan`: the inputs, and as `program` a digest of inputs and program."""
WITH_GSPMD = EARLIER[1]
"""Its policy "gspmd" is today's "paper": the name now means the completion of XLA's own GSPMD."""
INPUTS = ("graph", "symbols", "argument_roles", "donated", "home", "annotations", "options")


@dataclass(frozen=True)
class PlanFile:
    """The content of a plan file.

    Attributes:
      inputs: what `read_inputs` reads.
      versions: what the plan was made with (`versions`); empty in files of earlier schemas.
      summary: of the plan, as plain data; None in files of earlier schemas.
      seal: of files of earlier schemas, the digest of inputs and program (`sealed`).
    """

    inputs: Mapping[str, Any]
    versions: Mapping[str, str]
    summary: Any = None
    schema: str = SCHEMA
    seal: str = ""

    @property
    def is_of_other_version(self) -> bool:
        """Whether another version of shardalg wrote the file, or an unknown one."""
        return self.versions.get("shardalg") != __version__

    @cached_property
    def inputs_text(self) -> str:
        """The inputs as a file has them."""
        return body(self.inputs)

    def sealed(self, program: str) -> str:
        """Return the digest of the inputs and of a program's text, which ties one to the other."""
        return digest(f"{self.inputs_text}\n{program}")

    @property
    def parts_text(self) -> str:
        """The parts, of which a file has the digest, as JSON."""
        others = f'"summary": {body(self.summary)}, "versions": {body(self.versions)}'
        return f'{{"inputs": {self.inputs_text}, {others}}}'

    @property
    def text(self) -> str:
        """The whole file."""
        parts = self.parts_text
        return f'{{"schema": "{SCHEMA}", "sha256": "{digest(parts)}", {parts[1:]}\n'


def write(path: str | Path, content: PlanFile) -> None:
    """Write `content`, atomically: another file of that name is replaced whole or not at all.

    Raises:
      PlanFileError: the folder does not exist, or cannot be written to.
    """
    try:
        write_whole(Path(path), content.text)
    except (OSError, TypeError, ValueError) as error:  # a name with a zero in it: ValueError
        reason = getattr(error, "strerror", None) or error
        raise PlanFileError(f"{path} cannot be written: {reason}. Save to another place.") from None


def body(content: object) -> str:
    """Return the one JSON text of some content, whose digest a file has."""
    return json.dumps(content, sort_keys=True)


def digest(text: str) -> str:
    """SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def read(path: str | Path) -> PlanFile:
    """Return the content that `write` was given, or that of a file of an earlier schema.

    Raises:
      PlanFileError: no such file, cut short, edited, or of another schema.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, TypeError, ValueError) as error:
        raise PlanFileError(f"{path} cannot be read: {error}. Save it again.") from None
    return parsed(text, path)


def parsed(text: str, path: object) -> PlanFile:
    """Return the content of a file of this text.

    Args:
      path: names the file in errors.

    Raises:
      PlanFileError: cut short, edited, or of another schema.
    """
    whole = _parsed(path, text)
    schema = whole.pop("schema", None) if isinstance(whole, dict) else None
    if schema not in (SCHEMA, *EARLIER):
        raise PlanFileError(f"{path} has schema {schema!r}, not {SCHEMA!r}: it is no plan file.")
    told = whole.pop("sha256", None)
    if schema == SCHEMA:
        _check_keys(path, whole, PARTS)
        found = PlanFile(**whole)
        _check_digest(path, told, found.parts_text)
        _check_keys(path, found.inputs, INPUTS)
        files.read(dict[str, str], found.versions, f"{path}: versions")
        return found
    inputs = whole.get("plan")
    _check_digest(path, told, body(inputs))
    _check_keys(path, inputs, (*INPUTS, "program"))
    return PlanFile(inputs, {}, schema=schema, seal=str(inputs.pop("program")))


def _check_digest(path: object, told: object, text: str) -> None:
    found = digest(text)
    if found != told:
        raise PlanFileError(
            f"{path} was edited: its content has digest {found[:12]}, the file says "
            f"{str(told)[:12]}. Change the plan in Python and save it again."
        )


def _check_keys(path: object, content: Any, keys: tuple[str, ...]) -> None:
    if not isinstance(content, dict) or set(content) != set(keys):
        raise PlanFileError(f"{path}: its content is no plan: it needs {', '.join(keys)}, no more.")


def _parsed(path: object, text: str) -> Any:
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
    files.check_depth(whole)
    return whole


def _refused(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def versions(options: Options) -> dict[str, str]:
    """Return what a plan is made with and no file holds, by name.

    Args:
      options: the chip's figures are not in a file, and policy "jit" asks the installed jax for
        its partitioner.

    >>> sorted(versions(Options(policy="jit")))
    ['hardware', 'jax', 'partitioner', 'shardalg']
    """
    given = machine(options.hardware)
    figures = digest(body(given.chip.to_json()))[:12]
    made = {"shardalg": __version__, "jax": jax_version()}
    made["hardware"] = f"{options.hardware} (figures {figures})"
    return made | ({"partitioner": options.partitioner} if options.policy == JIT else {})


def inputs(traced: Traced, annotations: Annotations, options: Options) -> dict[str, Any]:
    """Return all that planning needs, as plain data."""
    default = {_DEFAULT: isinstance(options.hardware, DefaultChip)}  # a loaded plan says so again
    settings = {**options.settings, **default}
    return {
        **traced.to_json(), "annotations": annotations_json(annotations), "options": settings,
    }  # fmt: skip


def read_inputs(saved: PlanFile) -> tuple[Traced, Annotations, Options]:
    """Return what `inputs` wrote.

    A setting that another version of shardalg did not have is its default.

    Raises:
      PlanFileError: a value that its type does not allow, or a graph that no trace makes.
      ShardalgError: what cannot be of layouts, meshes, options and sizes.
    """
    traced = read_traced(saved.inputs)
    annotations = read_annotations(saved.inputs["annotations"], traced.graph, traced.first_mesh)
    told = saved.inputs["options"]
    if isinstance(told, dict) and saved.is_of_other_version:
        told = {**Options().settings, _DEFAULT: False, **told}
    settings = files.read(_Settings, told, "options")
    options = Options.of({n: v for n, v in vars(settings).items() if n != _DEFAULT})
    if settings.hardware_is_default:
        options = replace(options, hardware=DefaultChip(options.hardware))
    if saved.schema == WITH_GSPMD and options.policy == "gspmd":
        warn_renamed("a plan file's policy 'gspmd'", "'paper', as which it is loaded")
        options = replace(options, policy="paper")
    return traced, annotations, options


_DEFAULT = "hardware_is_default"
_SIDES = ("arguments", "results", "sites")
_MESH = ("axes", "device_ids", "symbolic")
# What a file holds of a layout: all of it but the mesh, which is that of all layouts.
_Layout: Any = files.without(Sharding, "mesh")
# Switches stand beside the other options in a file.
_Settings = files.joined(
    files.without(Options, "switches"), Switches, make_dataclass("Default", [(_DEFAULT, bool)])
)
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
    return files.values(layout, _Layout)


def read_annotations(data: object, graph: Graph, first_mesh: Mesh | None) -> Annotations:
    """The annotations that `annotations_json` wrote, if they are those of the graph.

    Args:
      first_mesh: of the traced function.

    Raises:
      PlanFileError: a value that its type does not allow. StrategyError, ShardingError, MeshError:
        layouts that the graph's values or the mesh cannot have.
    """
    saved = files.read(_Saved, data, "annotations")
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
    return Sharding(mesh, **files.values(saved, _Layout))
