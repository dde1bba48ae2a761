"""Conversion of shardings from and to PartitionSpecs."""

from __future__ import annotations

from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from shardalg.algebra.digits import Digits
from shardalg.algebra.layout import Layout
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.notation.axis_names import from_axes
from shardalg.errors import MeshError, NotationError, ShardingError


def from_spec(spec: Any, mesh: Mesh, shape: tuple[int, ...]) -> Layout:
    """Return the sharding of a tensor with this `PartitionSpec` on `mesh`.

    None and missing dimensions are not partitioned. `P.UNCONSTRAINED` leaves a dimension open. The
    devices along `unreduced` axes hold partial sums. `reduced` axes are kept replicated.

    Raises:
      MeshError: the mesh has no such axis.
      ShardingError: the spec is longer than the shape, or an axis is used twice.
      NotationError: an entry is no axis, tuple of axes, None or UNCONSTRAINED.

    >>> P = PartitionSpec
    >>> from_spec(P(("x", "y"), None, P.UNCONSTRAINED), Mesh({"x": 2, "y": 4}), (16, 3, 5))
    Sharding([(x, y), None, ?], shape=(16, 3, 5), Mesh(x=2, y=4))
    """
    entries = tuple(_entry(entry, spec) for entry in _entries(spec))
    axes_of_kinds = [
        tuple(sorted(getattr(spec, name, None) or ())) for name in ("unreduced", "reduced")
    ]
    # Older versions of JAX have no kinds: their unreduced values are sums.
    kind = getattr(getattr(spec, "unreduced_kind", None), "name", "sum")
    if kind != "sum":
        raise NotationError(
            f"{spec} holds partial values that are combined by {kind}: a sharding here holds sums "
            "only. Leave unreduced_kind out, or combine them before."
        )
    classes = dict(zip(("unreduced", "replicated"), axes_of_kinds, strict=True))
    return from_axes(entries, mesh, shape, classes)


def to_spec(sharding: Layout) -> PartitionSpec:
    """Return the `PartitionSpec` of a sharding, one entry per dimension.

    A spec cannot express manual digits and priorities, which are dropped. It cannot express a
    dimension that is both partitioned and open: the entry is the axes.

    Raises:
      ShardingError: the sharding has sub-axes, digits of another mesh, or a mesh without axis
        names; or it is on one device.

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
    entries: list[Any] = []
    for i, digits in enumerate(sharding.dims):
        # This raises the error for sub-axes and for digits of another mesh.
        names = _names(digits, sharding)
        if not names:
            is_open = i in sharding.unspecified_dims
            entries.append(PartitionSpec.UNCONSTRAINED if is_open else None)
        else:
            entries.append(names[0] if len(names) == 1 else names)
    # JAX calls axes "reduced" along which the value is explicitly replicated.
    classes = {"unreduced": sharding.unreduced, "reduced": sharding.replicated}
    axes_of_kind = {kind: frozenset(_names(d, sharding)) for kind, d in classes.items() if d}
    return PartitionSpec(*entries, **axes_of_kind)


def check_named(named: Any) -> None:
    """Raise ShardingError if `named` is not a `NamedSharding`.

    Raises:
      ShardingError: `named` is another kind of JAX sharding.
    """
    if not isinstance(named, NamedSharding):
        raise ShardingError(
            f"expected a NamedSharding, got {type(named).__name__}: {named!r}. Put the value on a "
            "mesh with jax.device_put(value, NamedSharding(mesh, spec))."
        )


def _entries(spec: Any) -> tuple[Any, ...]:
    """Return the entries of a PartitionSpec, one per dimension; None has no entries.

    Raises:
      NotationError: `spec` is no PartitionSpec, tuple or list.
    """
    if spec is None:
        return ()
    # JAX raises an error if a caller iterates over a spec with unreduced axes.
    partitions = getattr(spec, "partitions", None)
    if partitions is not None:
        return tuple(partitions)
    if not isinstance(spec, tuple | list):
        raise NotationError(
            f"expected a PartitionSpec, got {type(spec).__name__}: {spec!r}. Write it as "
            "jax.sharding.PartitionSpec('x', None, ('y', 'z'))."
        )
    return tuple(spec)


def _entry(entry: Any, spec: Any) -> str | tuple[str, ...] | None:
    """Return one entry of a PartitionSpec in the form that `Sharding.from_axes` takes.

    The forms are a name, a tuple of names, None (not partitioned) and "?" (unconstrained).

    Raises:
      NotationError: the entry is no axis, tuple of axes, None or UNCONSTRAINED.
    """
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
    """Return the names of the axes that make up the digits.

    Raises:
      ShardingError: the digits contain only a part of an axis.
    """
    mesh = sharding.mesh
    try:
        refs = mesh.refs(digits)
    except MeshError as error:
        raise ShardingError(
            f"{sharding.text()} on {mesh!r} has no PartitionSpec: {error}"
        ) from None
    # A PartitionSpec can name whole axes only; a reference to a whole axis has no size.
    sub_axes = [ref for ref in refs if ref.size is not None]
    if sub_axes:
        raise ShardingError(
            f"{sharding.text()} on {mesh!r} has no PartitionSpec: it splits by the sub-axes "
            f"{sub_axes}. State it on a mesh whose axes are these."
        )
    return tuple(ref.name for ref in refs)
