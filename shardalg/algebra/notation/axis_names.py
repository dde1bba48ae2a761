"""Shardings as Python lists with an entry per dimension: names of axes, or their numbers.

The paper's `mesh_split` uses numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardalg.algebra.layout import Layout, spelled
from shardalg.algebra.mesh import Mesh
from shardalg.errors import MeshError, ShardingError

Entry = str | int | None | Sequence[str | int]
"""The entry of one dimension: None or -1, an axis, or several axes, major first.

Users may mix names and numbers of axes.
"""


def dims_mapping(sharding: Layout) -> tuple[int | tuple[int, ...], ...]:
    """Return the `dims_mapping` of a sharding: for each dimension its axis number, several, or -1.

    Open dimensions are the separate argument `unspecified_dims` of `mesh_split`.

    Raises:
      ShardingError: a dimension is split by a part of an axis.

    >>> mesh = Mesh({"X": 2, "Y": 4, "Z": 2})
    >>> dims_mapping(from_axes(("Y", None, ("Z", "X")), mesh, (8, 8, 8), {}))
    (1, -1, (2, 0))
    """
    mesh = sharding.mesh
    numbers = {mesh.digit(name): number for number, name in enumerate(mesh.axis_names)}
    rows = []
    for digits in (spelled(digits, mesh) for digits in sharding.dims):
        parts = tuple(digit for digit in digits if digit not in numbers)
        if parts:
            raise ShardingError(
                f"{sharding.text()} on {mesh!r} has no dims_mapping: "
                f"{', '.join(mesh.texts(parts))} is no whole axis. State it on a mesh whose axes "
                "are the parts."
            )
        # The paper writes -1 for no axis, and a number for a single one.
        row = tuple(numbers[digit] for digit in digits)
        rows.append(row[0] if len(row) == 1 else row or -1)
    return tuple(rows)


def from_axes(
    entries: tuple[Entry, ...],
    mesh: Mesh,
    shape: tuple[int, ...],
    held: Mapping[str, tuple[str, ...]],
) -> Layout:
    """Return the layout with these axes on each dimension; see `Sharding.from_axes`.

    Args:
      held: names of the axes that split no dimension, by kind: "unreduced", "replicated".
    """
    if len(entries) > len(shape):
        raise ShardingError(
            f"the spec {entries_text(entries)} is longer than the shape {shape}: it has "
            f"{len(entries)} entries for {len(shape)} dimensions. Remove the entries beyond "
            "the last dimension."
        )
    names = [_axis_names(entry, mesh) for entry in entries]
    _check_axis_names(names, held, entries=entries, mesh=mesh, shape=shape)
    # As in a PartitionSpec, missing entries mean dimensions that are not partitioned.
    names += [()] * (len(shape) - len(names))
    dims = tuple(mesh.digits(name for name in axes if name != "?") for axes in names)
    # "?" marks a dimension that completion may shard further.
    unspecified = tuple(i for i, axes in enumerate(names) if "?" in axes)
    pending, explicit = (mesh.digits(held.get(kind, ())) for kind in ("unreduced", "replicated"))
    return Layout(mesh, shape, dims, unspecified, pending, explicit)


def _axis_names(entry: Entry, mesh: Mesh) -> tuple[str, ...]:
    """Return the names of the axes of one dimension's entry; -1 and None mean no axis.

    Raises:
      MeshError: an axis number is not in the mesh.
    """
    if entry is None or entry == -1:
        return ()
    axes = entry if isinstance(entry, Sequence) and not isinstance(entry, str) else (entry,)
    names = []
    for axis in axes:
        if isinstance(axis, int):
            if not 0 <= axis < len(mesh.axes):
                raise MeshError(
                    f"axis number {axis} is not an axis of {mesh!r}; its axes are numbered from 0 "
                    f"to {len(mesh.axes) - 1}, and -1 means a dimension that is not partitioned."
                )
            axis = mesh.axis_names[axis]
        names.append(axis)
    return tuple(names)


def _check_axis_names(
    names: list[tuple[str, ...]],
    held: Mapping[str, tuple[str, ...]],
    *,
    entries: tuple[Entry, ...],
    mesh: Mesh,
    shape: tuple[int, ...],
) -> None:
    """Raise if an axis is unknown or used twice; the message names all such axes.

    Args:
      names: the names of the axes of each dimension.
      held: names of the axes that split no dimension, by kind.
      entries, mesh, shape: for the message.

    Raises:
      MeshError: the mesh has no such axis.
      ShardingError: an axis is used twice.
    """
    place = f"the spec {entries_text(entries)} of shape {shape} on {mesh!r}"
    # Every place where an axis occurs, so that one message names all faults.
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
        faults = ", ".join(f"{name!r} (on {uses[name][0]})" for name in unknown)
        raise MeshError(
            f"{place} names {faults}, which the mesh does not have. "
            f"Its axes are {list(mesh.axis_names)}."
        )
    repeated = {name: places for name, places in uses.items() if len(places) > 1}
    if repeated:
        faults = "; ".join(f"{n!r} on {' and on '.join(places)}" for n, places in repeated.items())
        raise ShardingError(
            f"an axis is used twice in {place}: {faults}. An axis partitions one dimension of a "
            "tensor: remove it from the other."
        )


def entries_text(entries: tuple[Entry, ...]) -> str:
    """Return the entries of all dimensions as text, for messages."""
    return f"[{', '.join(map(repr, entries))}]"
