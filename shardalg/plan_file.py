"""Plan files: JSON with a schema and a digest, written atomically, read without evaluating text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shardalg.algebra.digits import Digit, Digits
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import PlanFileError
from shardalg.files import write_whole
from shardalg.propagate.strategy import Annotations

SCHEMA = "shardalg.plan/2"


def write(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write `content`, atomically: another file of that name is replaced whole or not at all.

    Raises:
      PlanFileError: the folder does not exist, or cannot be written to.
    """
    body = json.dumps(content, sort_keys=True)
    text = f'{{"schema": {json.dumps(SCHEMA)}, "sha256": "{digest(body)}", "plan": {body}}}\n'
    try:
        write_whole(Path(path), text)
    except (OSError, ValueError) as error:  # a name with a zero in it is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise PlanFileError(
            f"{path} cannot be written: {reason}. Save to another place."
        ) from None


def digest(text: str) -> str:
    """SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def read(path: str | Path) -> Mapping[str, Any]:
    """The content that `write` was given.

    Raises:
      PlanFileError: no such file, cut short, edited, or of another schema.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise PlanFileError(f"{path} cannot be read: {error}. Save it again.") from None
    try:
        whole = json.loads(text)
    except json.JSONDecodeError as error:
        raise PlanFileError(
            f"{path} is no JSON from line {error.lineno}, column {error.colno} on ({error.msg}): "
            "it was cut short or edited. Save the plan again."
        ) from None
    schema = whole.get("schema") if isinstance(whole, dict) else None
    if schema != SCHEMA:
        raise PlanFileError(f"{path} has schema {schema!r}, not {SCHEMA!r}: it is no plan file.")
    found = digest(json.dumps(whole.get("plan"), sort_keys=True))
    if found != whole.get("sha256"):
        raise PlanFileError(
            f"{path} was edited: its content has digest {found[:12]}, the file says "
            f"{str(whole.get('sha256'))[:12]}. Change the plan in Python and save it again."
        )
    return whole["plan"]


def annotations_json(annotations: Annotations) -> dict[str, Any]:
    """Annotations as plain data."""
    mesh = annotations.mesh
    return {
        "axes": [[name, size] for name, size in mesh.axes],
        "device_ids": None if mesh.device_ids is None else list(mesh.device_ids),
        "symbolic": mesh.symbolic,
        "arguments": [_sharding(s) for s in annotations.arguments],
        "results": [_sharding(s) for s in annotations.results],
        "sites": [_sharding(s) for s in annotations.sites],
    }


_CLASSES = ("unreduced", "replicated", "manual")


def _sharding(sharding: Sharding | None) -> dict[str, Any] | None:
    if sharding is None:
        return None
    return {
        "shape": list(sharding.shape),
        "dims": [_digits(digits) for digits in sharding.dims],
        "unspecified_dims": list(sharding.unspecified_dims),
        **{name: _digits(getattr(sharding, name)) for name in _CLASSES},
    }


def _digits(digits: Digits) -> list[list[int]]:
    return [[digit.stride, digit.size] for digit in digits]


def _read_digits(data: list[list[int]]) -> Digits:
    return tuple(Digit(int(stride), int(size)) for stride, size in data)


def read_annotations(data: Mapping[str, Any]) -> Annotations:
    """The annotations that `annotations_json` wrote."""
    axes = [(name, size) for name, size in data["axes"]]
    mesh = Mesh(axes, data["device_ids"], symbolic=data["symbolic"])
    sides = (data["arguments"], data["results"], data["sites"])
    return Annotations(mesh, *(tuple(_read_sharding(mesh, s) for s in side) for side in sides))


def _read_sharding(mesh: Mesh, data: Mapping[str, Any] | None) -> Sharding | None:
    if data is None:
        return None
    return Sharding(
        mesh,
        tuple(data["shape"]),
        tuple(_read_digits(digits) for digits in data["dims"]),
        tuple(data["unspecified_dims"]),
        *(_read_digits(data[name]) for name in _CLASSES),
    )


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
        path.write_bytes(content)
        return load(path)
