"""PartitionSpecs, both ways."""

from __future__ import annotations

from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from shardalg.algebra.digits import Digits
from shardalg.algebra.layout import Layout
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.notation.axis_names import from_axes
from shardalg.errors import MeshError, NotationError, ShardingError


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
