"""Axes per dimension as a caller writes them: names, or numbers as in the paper's `mesh_split`.

PartitionSpecs, both ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from shardalg.algebra.digits import Digit, Digits
from shardalg.algebra.layout import Layout, spelled
from shardalg.algebra.mesh import Mesh
from shardalg.errors import MeshError, NotationError, ShardingError

# What a caller may put on one dimension: nothing, an axis, or several axes, major first.
Entry = str | int | None | Sequence[str | int]


def dims_mapping(sharding: Layout) -> tuple[int | tuple[int, ...], ...]:
    """Per dimension what `mesh_split` takes; open dimensions are `unspecified_dims` beside it.

    >>> mesh = Mesh({"X": 2, "Y": 4, "Z": 2})
    >>> dims_mapping(from_axes(("Y", None, ("Z", "X")), mesh, (8, 8, 8), {}))
    (1, -1, (2, 0))
    """
    mesh = sharding.mesh
    numbers = {mesh.digit(name): number for number, name in enumerate(mesh.axis_names)}
    rows = [_axis_numbers(digits, sharding, numbers) for digits in sharding.dims]
    return tuple(-1 if not row else row[0] if len(row) == 1 else row for row in rows)


def _axis_numbers(
    digits: Digits, sharding: Layout, numbers: Mapping[Digit, int]
) -> tuple[int, ...]:
    parts = [digit for digit in spelled(digits, sharding.mesh) if digit not in numbers]
    if parts:
        raise ShardingError(
            f"{sharding.text()} on {sharding.mesh!r} has no dims_mapping: "
            f"{', '.join(sharding.mesh.texts(tuple(parts)))} is no whole axis. State it on a mesh "
            "whose axes are the parts."
        )
    return tuple(numbers[digit] for digit in spelled(digits, sharding.mesh))


def from_axes(
    entries: tuple[Entry, ...],
    mesh: Mesh,
    shape: tuple[int, ...],
    held: Mapping[str, tuple[str, ...]],
) -> Layout:
    """`Sharding.from_axes`; `held` has the axes of the classes "unreduced" and "replicated"."""
    if len(entries) > len(shape):
        raise ShardingError(
            f"the spec {entries_text(entries)} is longer than the shape {shape}: it has "
            f"{len(entries)} entries for {len(shape)} dimensions. Remove the entries beyond "
            "the last dimension."
        )
    names = [_axis_names(entry, mesh) for entry in entries]
    _check_axis_names(names, held, entries=entries, mesh=mesh, shape=shape)
    names += [()] * (len(shape) - len(names))
    dims = tuple(mesh.digits(name for name in axes if name != "?") for axes in names)
    unspecified = tuple(i for i, axes in enumerate(names) if "?" in axes)
    pending, kept = (mesh.digits(held.get(kind, ())) for kind in ("unreduced", "replicated"))
    return Layout(mesh, shape, dims, unspecified, pending, kept)


def _axis_names(entry: Entry, mesh: Mesh) -> tuple[str, ...]:
    """Names of the axes of one dimension; -1 and None mean none, a number is the axis's place."""
    if entry is None or entry == -1:
        return ()
    several = entry if isinstance(entry, Sequence) and not isinstance(entry, str) else (entry,)
    return tuple(_axis_name(axis, mesh) for axis in several)


def _axis_name(axis: str | int, mesh: Mesh) -> str:
    if isinstance(axis, int):
        if not 0 <= axis < len(mesh.axes):
            raise MeshError(
                f"axis number {axis} is not an axis of {mesh!r}; its axes are numbered from 0 to "
                f"{len(mesh.axes) - 1}, and -1 stands for a dimension that is not partitioned."
            )
        return mesh.axis_names[axis]
    return axis


def _check_axis_names(
    names: list[tuple[str, ...]],
    held: Mapping[str, tuple[str, ...]],
    *,
    entries: tuple[Entry, ...],
    mesh: Mesh,
    shape: tuple[int, ...],
) -> None:
    """Every unknown axis, and every axis used twice, in one message."""
    place = f"the spec {entries_text(entries)} of shape {shape} on {mesh!r}"
    uses: dict[str, list[str]] = {}
    for i, axes in enumerate(names):
        for name in axes:
            uses.setdefault(name, []).append(f"dimension {i}")
    for kind, axes in held.items():
        for name in axes:
            uses.setdefault(name, []).append(f"the {kind} axes")
    uses.pop("?", None)
    unknown = [name for name in uses if name not in mesh.shape]
    if unknown:
        listed = ", ".join(f"{name!r} (on {uses[name][0]})" for name in unknown)
        raise MeshError(
            f"{place} names {listed}, which the mesh does not have. "
            f"Its axes are {list(mesh.axis_names)}."
        )
    twice = {name: places for name, places in uses.items() if len(places) > 1}
    if twice:
        listed = "; ".join(f"{n!r} on {' and on '.join(places)}" for n, places in twice.items())
        raise ShardingError(
            f"an axis is used twice in {place}: {listed}. An axis partitions one dimension of a "
            "tensor: remove it from the other."
        )


def entries_text(entries: tuple[Entry, ...]) -> str:
    """The entries as a list, for messages."""
    return f"[{', '.join(map(repr, entries))}]"


def from_spec(spec: Any, mesh: Mesh, shape: tuple[int, ...]) -> Layout:
    """The sharding that a `PartitionSpec` gives a tensor of `shape` on `mesh`.

    None and missing dimensions are not partitioned, `P.UNCONSTRAINED` leaves a dimension open,
    `unreduced` axes hold partial sums, `reduced` axes are kept replicated.

    Raises:
      MeshError: an axis that the mesh does not have.
      ShardingError: a spec longer than the shape, or an axis used twice.
      NotationError: an entry that is no axis, tuple of axes, None or UNCONSTRAINED.

    >>> P = PartitionSpec
    >>> from_spec(P(("x", "y"), None, P.UNCONSTRAINED), Mesh({"x": 2, "y": 4}), (16, 3, 5))
    Sharding([(x, y), None, ?], shape=(16, 3, 5), Mesh(x=2, y=4))
    """
    entries = tuple(_entry(entry, spec) for entry in _entries(spec))
    held = [tuple(sorted(getattr(spec, name, None) or ())) for name in ("unreduced", "reduced")]
    kind = getattr(getattr(spec, "unreduced_kind", None), "name", "sum")
    if kind != "sum":
        raise NotationError(
            f"{spec} holds partial values that are joined by {kind}: a sharding here holds sums "
            "only. Leave unreduced_kind out, or join them before."
        )
    classes = dict(zip(("unreduced", "replicated"), held, strict=True))
    return from_axes(entries, mesh, shape, classes)


def to_spec(sharding: Layout) -> PartitionSpec:
    """The `PartitionSpec` of a sharding, one entry per dimension.

    A spec has no word for manual digits and priorities, nor for a dimension that is both split
    and open: such a dimension shows its axes.

    Raises:
      ShardingError: sub-axes, digits of another mesh, a mesh without axis names, or one device.

    >>> mesh = Mesh({"x": 2, "y": 2, "z": 2})
    >>> to_spec(from_axes(("x", None, ("y", "z")), mesh, (4, 4, 4), {})) == PartitionSpec(
    ...     "x", None, ("y", "z")
    ... )
    True
    """
    if sharding.mesh.is_unnamed and sharding.mesh.size > 1:
        raise ShardingError(
            f"{sharding!r} was read without a mesh, so its axes have no names for a "
            "PartitionSpec. Give the mesh: Sharding.from_hlo(text, shape, mesh)."
        )
    if sharding.is_maximal:
        raise ShardingError(
            f"{sharding!r} is on one device, for which a PartitionSpec has no word: use "
            "jax.sharding.SingleDeviceSharding."
        )
    opened = set(sharding.unspecified_dims)
    entries = [
        _spec_entry(_names(digits, sharding), i in opened) for i, digits in enumerate(sharding.dims)
    ]
    classes = {"unreduced": sharding.unreduced, "reduced": sharding.replicated}
    held = {kind: frozenset(_names(d, sharding)) for kind, d in classes.items() if d}
    return PartitionSpec(*entries, **held)


def check_named(named: Any) -> None:
    """Raise unless this is a `NamedSharding`.

    Raises:
      ShardingError: another kind of JAX sharding.
    """
    if not isinstance(named, NamedSharding):
        raise ShardingError(
            f"expected a NamedSharding, got {type(named).__name__}: {named!r}. Put the value on a "
            "mesh with jax.device_put(value, NamedSharding(mesh, spec))."
        )


def _entries(spec: Any) -> tuple[Any, ...]:
    """Entries of a spec; iterating over one with unreduced axes is an error in JAX."""
    if spec is None:
        return ()
    held = getattr(spec, "partitions", None)
    if held is not None:
        return tuple(held)
    if not isinstance(spec, tuple | list):
        raise NotationError(
            f"expected a PartitionSpec, got {type(spec).__name__}: {spec!r}. Write it as "
            "jax.sharding.PartitionSpec('x', None, ('y', 'z'))."
        )
    return tuple(spec)


def _entry(entry: Any, spec: Any) -> str | tuple[str, ...] | None:
    """One dimension in the words of `Sharding.from_axes`."""
    if entry is None or isinstance(entry, str):
        return entry
    if entry is PartitionSpec.UNCONSTRAINED:
        return "?"
    if isinstance(entry, tuple | list) and all(isinstance(axis, str) for axis in entry):
        return tuple(entry)
    raise NotationError(
        f"entry {entry!r} of {spec!r} is no axis name, tuple of axis names, None or UNCONSTRAINED."
    )


def _names(digits: Digits, sharding: Layout) -> tuple[str, ...]:
    """Whole axes that the digits are."""
    mesh = sharding.mesh
    try:
        refs = mesh.refs(digits)
    except MeshError as error:
        raise ShardingError(
            f"{sharding.text()} on {mesh!r} has no PartitionSpec: {error}"
        ) from None
    partial = [ref for ref in refs if ref.size is not None]
    if partial:
        raise ShardingError(
            f"{sharding.text()} on {mesh!r} has no PartitionSpec: it splits by the sub-axes "
            f"{partial}. State it on a mesh whose axes are these."
        )
    return tuple(ref.name for ref in refs)


def _spec_entry(names: tuple[str, ...], is_open: bool) -> Any:
    if not names:
        return PartitionSpec.UNCONSTRAINED if is_open else None
    return names[0] if len(names) == 1 else names
