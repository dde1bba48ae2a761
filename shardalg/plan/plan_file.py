"""Plan files: JSON with the inputs of planning and a summary of the plan, written atomically.

A file has the parts `versions` (of shardalg, jax and the chip's figures), `inputs` (of planning, as
plain data) and `summary` (`plan/explain/plan_summary.py`), under one SHA-256. Reading evaluates no
text: each value is checked by its declared type, and the plan is made again.
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
from shardalg.costs.kernels.kernel_price import KernelPrice
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
"""Files of these schemas have one part, `plan`: the inputs, and a digest as `program`."""
WITH_GSPMD = EARLIER[1]
"""In this schema, policy "gspmd" meant today's "paper"; now it means XLA's own GSPMD."""
INPUTS = ("graph", "symbols", "argument_roles", "donated", "home", "annotations", "options")


@dataclass(frozen=True)
class PlanFile:
    """The content of a plan file.

    Attributes:
      inputs: the inputs of planning, for `read_inputs`.
      versions: the result of `versions`; empty in files of earlier schemas.
      summary: the plan's summary as plain data; None in files of earlier schemas.
      seal: the digest of inputs and program (`sealed`) in files of earlier schemas; "" otherwise.
    """

    inputs: Mapping[str, Any]
    versions: Mapping[str, str]
    summary: Any = None
    schema: str = SCHEMA
    seal: str = ""

    @property
    def is_of_other_version(self) -> bool:
        """True if another version of shardalg, or an unknown one, wrote the file."""
        return self.versions.get("shardalg") != __version__

    @cached_property
    def inputs_text(self) -> str:
        """The inputs as JSON text."""
        return body(self.inputs)

    def sealed(self, program: str) -> str:
        """Return the digest of the inputs together with a program's text."""
        return digest(f"{self.inputs_text}\n{program}")

    @property
    def parts_text(self) -> str:
        """The parts as JSON text; the file's digest is of this text."""
        # This equals `body` of all three parts, but the text of the inputs is made only once.
        others = f'"summary": {body(self.summary)}, "versions": {body(self.versions)}'
        return f'{{"inputs": {self.inputs_text}, {others}}}'

    @property
    def text(self) -> str:
        """The text of the whole file."""
        # The digest covers the parts alone, so it can be written into the same object.
        parts = self.parts_text
        return f'{{"schema": "{SCHEMA}", "sha256": "{digest(parts)}", {parts[1:]}\n'


def write(path: str | Path, content: PlanFile) -> None:
    """Write a plan file atomically: an existing file is replaced whole or not at all.

    Raises:
      PlanFileError: the folder does not exist, or cannot be written to.
    """
    try:
        write_whole(Path(path), content.text)
    except (OSError, TypeError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = getattr(error, "strerror", None) or error
        raise PlanFileError(f"{path} cannot be written: {reason}. Save to another place.") from None


def body(content: object) -> str:
    """Return the canonical JSON text of some content, for digests."""
    return json.dumps(content, sort_keys=True)


def digest(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def read(path: str | Path) -> PlanFile:
    """Return the content of a plan file, of this schema or an earlier one.

    Raises:
      PlanFileError: no such file, cut short, edited, or of another schema.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, TypeError, ValueError) as error:
        raise PlanFileError(f"{path} cannot be read: {error}. Save it again.") from None
    return parsed(text, path)


def parsed(text: str, path: object) -> PlanFile:
    """Return the content of the plan file with this text, after checking its keys and digest.

    Args:
      path: names the file in errors.

    Raises:
      PlanFileError: cut short, edited, or of another schema.
    """
    whole = read_json(path, text)
    schema = whole.pop("schema", None) if isinstance(whole, dict) else None
    if schema not in (SCHEMA, *EARLIER):
        # A schema is "name/number". A larger number is from a later version of shardalg.
        name, _, version = str(schema).partition("/")
        own_name, _, own_version = SCHEMA.partition("/")
        if name == own_name and version.isdigit() and int(version) > int(own_version):
            raise PlanFileError(
                f"{path} has schema {schema!r}, and this shardalg reads {SCHEMA!r}: install a "
                "later shardalg."
            )
        raise PlanFileError(f"{path} is not a plan file: its schema is {schema!r}, not {SCHEMA!r}.")
    saved_digest = whole.pop("sha256", None)
    if schema == SCHEMA:
        # The keys are checked first, because they become keyword arguments.
        _check_keys(path, whole, PARTS)
        found = PlanFile(**whole)
        _check_digest(path, saved_digest, found.parts_text)
        _check_keys(path, found.inputs, INPUTS)
        files.read(dict[str, str], found.versions, f"{path}: versions")
        return found
    # In earlier schemas one part has the inputs together with the program's digest.
    inputs = whole.get("plan")
    _check_digest(path, saved_digest, body(inputs))
    _check_keys(path, inputs, (*INPUTS, "program"))
    return PlanFile(inputs, {}, schema=schema, seal=str(inputs.pop("program")))


def _check_digest(path: object, told: object, text: str) -> None:
    """Raise a `PlanFileError` unless `told` is the digest of `text`."""
    found = digest(text)
    # The digest detects damage and edits by hand. It is no protection against an attacker.
    if found != told:
        raise PlanFileError(
            f"{path} was edited: its content has digest {found[:12]}, the file says "
            f"{str(told)[:12]}. Change the plan in Python and save it again."
        )


def _check_keys(path: object, content: Any, keys: tuple[str, ...]) -> None:
    """Raise a `PlanFileError` unless JSON content is an object with exactly these keys."""
    if not isinstance(content, dict) or set(content) != set(keys):
        raise PlanFileError(
            f"{path}: its content is not a plan: it needs {', '.join(keys)}, no more."
        )


def read_json(path: object, text: str) -> Any:
    """Return the data of a JSON text.

    Args:
      path: names the file in errors.

    Raises:
      PlanFileError: the text is no JSON, has NaN or infinity, or is nested too deeply.
    """
    try:
        # JSON has no NaN or Infinity, but Python's reader accepts them by default.
        whole = json.loads(text, parse_constant=_refused)
    except json.JSONDecodeError as error:
        raise PlanFileError(
            f"{path} is not JSON from line {error.lineno}, column {error.colno} on ({error.msg}): "
            "it was cut short or edited. Save the plan again."
        ) from None
    except (RecursionError, ValueError) as error:  # too deep, or a number of too many digits
        raise PlanFileError(f"{path} is not a plan file: {error}. Save the plan again.") from None
    # Deep nesting would overflow the stack in later checks.
    files.check_depth(whole)
    return whole


def _refused(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def versions(options: Options) -> dict[str, str]:
    """Return the versions and figures that planning depends on besides its inputs, by name.

    These are shardalg and jax, the figures of the chip, and for policy "jit" the partitioner of the
    installed jax.

    >>> sorted(versions(Options(policy="jit")))
    ['hardware', 'jax', 'partitioner', 'shardalg']
    """
    chip_or_topology = machine(options.hardware)
    figures = digest(body(chip_or_topology.chip.to_json()))[:12]
    # The name of a chip is an option; its figures can change between versions.
    version_texts = {"shardalg": __version__, "jax": jax_version()}
    version_texts["hardware"] = f"{options.hardware} (figures {figures})"
    return version_texts | ({"partitioner": options.partitioner} if options.policy == JIT else {})


def inputs(traced: Traced, annotations: Annotations, options: Options) -> dict[str, Any]:
    """Return the inputs of planning as plain data."""
    # A printed plan says whether its chip is the default one: the file must keep this fact.
    default = {_DEFAULT: isinstance(options.hardware, DefaultChip)}
    settings = {**options.settings, **default, "prices": _saved_prices(options)}
    return {
        **traced.to_json(), "annotations": annotations_json(annotations), "options": settings,
    }  # fmt: skip


def read_inputs(saved: PlanFile) -> tuple[Traced, Annotations, Options]:
    """Return the inputs of planning that a file holds.

    The inputs are the traced function, the annotations of its values, and the options. A setting
    that another version of shardalg did not have gets its default.

    Raises:
      PlanFileError: a value that its type does not allow, or a graph that no trace makes.
      ShardalgError: impossible shardings, meshes, options or sizes.
    """
    traced = read_traced(saved.inputs)
    annotations = read_annotations(saved.inputs["annotations"], traced.graph, traced.first_mesh)
    saved_options = saved.inputs["options"]
    # A file of an older version lacks the settings that were added later, so they get defaults. A
    # file of this version lacks a setting only if it was edited, and reading then fails.
    if isinstance(saved_options, dict) and saved.is_of_other_version:
        saved_options = {**Options().settings, _DEFAULT: False, **saved_options}
    settings = files.read(_Settings, saved_options, "options")
    prices = {name: KernelPrice(price.flops, price.bytes) for name, price in settings.prices}
    # `Options` has no field for `_DEFAULT`, and has prices as values of their own class.
    other_settings = {
        setting: value
        for setting, value in vars(settings).items()
        if setting not in (_DEFAULT, "prices")
    }
    options = Options.of({**other_settings, "prices": prices})
    if settings.hardware_is_default:
        options = replace(options, hardware=DefaultChip(options.hardware))
    # The name changed its meaning after this schema: the plan must not change with it.
    if saved.schema == WITH_GSPMD and options.policy == "gspmd":
        warn_renamed("a plan file's policy 'gspmd'", "'paper', as which it is loaded")
        options = replace(options, policy="paper")
    return traced, annotations, options


def _saved_prices(options: Options) -> list[Any]:
    """Return the user's prices of kernels as plain data: rows [name, {"flops": ..., "bytes": ...}].

    Raises:
      PlanFileError: a price is a function, which a file cannot hold.
    """
    prices = dict(options.prices)
    for name, price in prices.items():
        if callable(price.flops) or callable(price.bytes):
            raise PlanFileError(
                f"the price of {name!r} is a function, which a plan file cannot hold. Plan with "
                "numbers, as in KernelPrice(flops=1e9, bytes=1e6), and save that plan."
            )
    return [[name, {"flops": p.flops, "bytes": p.bytes}] for name, p in prices.items()]


_DEFAULT = "hardware_is_default"
_SIDES = ("arguments", "results", "sites")
_MESH = ("axes", "device_ids", "symbolic")
# A sharding in a file has no mesh, because all shardings have the same one.
_Layout: Any = files.without(Sharding, "mesh")
_SavedPrice: Any = make_dataclass(
    "_SavedPrice", [("flops", int | float), ("bytes", int | float | None)], frozen=True
)
# A file has switches and other options in one object, as `Options.settings` returns them.
_Settings = files.joined(
    files.without(Options, "switches", "prices"),
    Switches,
    make_dataclass("Prices", [("prices", tuple[tuple[str, _SavedPrice], ...])]),
    make_dataclass("Default", [(_DEFAULT, bool)]),
)
_Saved = make_dataclass(
    "_Saved",
    [
        *(("axes", tuple[tuple[str, int], ...]), ("device_ids", tuple[int, ...] | None)),
        *(("symbolic", bool), *((side, tuple[_Layout | None, ...]) for side in _SIDES)),
        ("orders", tuple[tuple[str, int, tuple[int, ...] | None], ...]),
        ("values", tuple[tuple[int, _Layout], ...]),
    ],
)


def annotations_json(annotations: Annotations) -> dict[str, Any]:
    """Return annotations as plain data, as `read_annotations` reads them.

    The keys are those of the mesh, a list of shardings each for arguments, results and sites, and
    the shardings of single values. A sharding is None where the user gave none.
    """
    mesh = {name: getattr(annotations.mesh, name) for name in _MESH}
    # All shardings are on this mesh, so each one is written without its mesh.
    sides = {
        side: [
            None if layout is None else files.values(layout, _Layout)
            for layout in getattr(annotations, side)
        ]
        for side in _SIDES
    }
    orders = [[side, number, mesh.device_ids] for side, number, mesh in annotations.orders]
    values = [[value, files.values(layout, _Layout)] for value, layout in annotations.values]
    # Files without annotations of single values are those of earlier versions.
    more = {"values": values} if values else {}
    return {**mesh, **sides, "orders": orders, **more}


def read_annotations(data: object, graph: Graph, first_mesh: Mesh | None) -> Annotations:
    """Return the annotations that `annotations_json` wrote, if they fit the graph.

    Args:
      first_mesh: the mesh with which the function was traced.

    Raises:
      PlanFileError: a value that its type does not allow. StrategyError, ShardingError, MeshError:
        shardings that the graph's values or the mesh cannot have.
    """
    if isinstance(data, dict):
        data = {"values": [], **data}
    saved = files.read(_Saved, data, "annotations")
    mesh = Mesh(saved.axes, saved.device_ids, symbolic=saved.symbolic)
    arguments, results, sites = (
        tuple(_layout(mesh, layout) for layout in getattr(saved, side)) for side in _SIDES
    )
    # Meshes in another device order have the same axes, so the file has only their device ids.
    orders = tuple((side, at, Mesh(saved.axes, ids)) for side, at, ids in saved.orders)
    values = tuple((value, _annotated(mesh, layout)) for value, layout in saved.values)
    annotations = Annotations(mesh, arguments, results, sites, values, orders)
    check_fit(graph, annotations, first_mesh)
    return annotations


def _layout(mesh: Mesh, saved: Any) -> Sharding | None:
    """Return an annotation of a file as a sharding on a mesh; None if there is no annotation.

    Raises:
      PlanFileError, MeshError: the annotation names axes that the mesh does not have.
    """
    return None if saved is None else _annotated(mesh, saved)


def _annotated(mesh: Mesh, saved: Any) -> Sharding:
    """Return a sharding of a file on a mesh.

    Raises:
      PlanFileError, MeshError: it names axes that the mesh does not have.
    """
    # An edited file may hold digits that no axis has: each is checked before it is used. On a
    # mesh with named sizes only whole axes exist.
    whole = {mesh.digit(name) for name in mesh.axis_names}
    for digit in chain(*saved.dims, saved.unreduced, saved.replicated, saved.manual):
        if min(digit) < 1 or (mesh.symbolic and digit not in whole):
            raise PlanFileError(f"annotations: {digit!r} is not an axis of {mesh!r}.")
        mesh.axis_ref(digit)
    return Sharding(mesh, **files.values(saved, _Layout))
