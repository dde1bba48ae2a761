"""Shardings in StableHLO text, Shardy's and HLO's, on the mesh of the text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import jax
from jax.extend.mlir.dialects import sdy
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import NotationError
from shardalg.graph.annotate import mesh_split_value
from shardalg.planner.propagate.other_mesh import sharding_on_mesh

SHARDY, HLO = "sdy.sharding", "mhlo.sharding"
"""Attributes with the sharding of an argument or a result."""
INLINED = r"mesh<\[[^\]]*\](?:, device_ids=\[[^\]]*\])?>"
"""The pattern of a mesh that a sharding contains instead of the name of a mesh."""
_SUB_AXIS = re.compile(r'"([^"]+)":\((\d+)\)(\d+)')


def shardy_mesh(attribute: Any) -> Mesh:
    """Return a mesh of Shardy, in the order that its `device_ids` give; without axes, one device.

    >>> from jax.extend.mlir import ir
    >>> from jax.interpreters import mlir
    >>> with mlir.make_ir_context():
    ...     shardy_mesh(ir.Attribute.parse('#sdy.mesh<["x"=2, "y"=2], device_ids=[0, 2, 1, 3]>'))
    Mesh(x=2, y=2, device_ids=[0, 2, 1, 3])
    """
    read = sdy.MeshAttr(attribute)
    axes = map(sdy.MeshAxisAttr, read.axes)
    return Mesh({axis.name: axis.size for axis in axes}, list(read.device_ids) or None)


def split_axes(mesh: Mesh, text: str) -> Mesh:
    """Return the mesh in which every sub-axis that a text names is an axis of its own.

    >>> split_axes(Mesh({"a": 2, "b": 8}), '[{"b":(1)2}, {"b":(4)2}]')
    Mesh(a=2, b.0=2, b.1=2, b.2=2)
    """
    # `"b":(4)2` is the factor of size 2 behind a factor of size 4: it cuts the axis at 4 and at 8.
    cuts: dict[str, set[int]] = {}
    for name, major_size, size in _SUB_AXIS.findall(text):
        cuts.setdefault(name, set()).update((int(major_size), int(major_size) * int(size)))
    if not cuts.keys() & set(mesh.axis_names):
        return mesh
    sizes: dict[str, int] = {}
    for name, size in mesh.axes:
        part_ends = sorted({1, size, *cuts.get(name, ())})
        # Each end must divide the next one, so that the parts are factors of the axis.
        if any(high % low for low, high in pairwise(part_ends)):
            raise NotationError(
                f"the sub-axes of {name!r} end at {part_ends}, and no one split of the axis has "
                "these."
            )
        parts = [high // low for low, high in pairwise(part_ends)]
        part_names = [name] if len(parts) < 2 else [f"{name}.{i}" for i in range(len(parts))]
        sizes |= dict(zip(part_names, parts, strict=True))
    return Mesh(sizes, mesh.device_ids)


def per_value(attribute: Any) -> list[Any]:
    """Return the shardings that an operator states, one per value."""
    return list(sdy.TensorShardingPerValueAttr(attribute).shardings)


def hlo_mesh(texts: Sequence[str]) -> Mesh | None:
    """Return the mesh of fewest axes for all tiled HLO shardings; None if none is tiled.

    The axes are the common refinement: one begins at the stride of every split in the texts.

    Raises:
      NotationError: splits that no one mesh has, or a list of devices in an order of its own.

    >>> hlo_mesh(["{devices=[2,1,4]<=[8] last_tile_dim_replicate}", "{devices=[4,2]<=[2,4]T(1,0)}"])
    Mesh(d0=2, d1=4)
    """
    # A digit begins at its stride and ends at stride * size. Each such number is the border of an
    # axis, so it must divide the next larger one.
    ends = {1}
    for text in texts:
        if "devices=" not in text:
            continue
        sharding = Sharding.from_hlo(text, (1,) * _rank(text))
        if sharding.mesh.device_ids is not None:
            raise NotationError(
                f"{text} lists devices in an order of its own, and the mesh of a text has them in "
                "the order of their numbers. Export with Shardy, and name the mesh's axes."
            )
        digits = [digit for dim in sharding.canonical_dims for digit in dim]
        ends |= {sharding.mesh.size}
        for digit in digits:
            ends |= {digit.stride, digit.stride * digit.size}
    sizes = []
    for low, high in pairwise(sorted(ends)):
        if high % low:
            raise NotationError(f"no one mesh has splits at {sorted(ends)}, as these: {[*texts]}.")
        sizes.append(high // low)
    # The smallest stride belongs to the last axis, so the sizes are in reverse order.
    return Mesh({f"d{i}": size for i, size in enumerate(reversed(sizes))}) if sizes else None


def _rank(text: str) -> int:
    """Return the number of dimensions of the tensor that a tiled HLO sharding is for."""
    tiles = text.partition("devices=[")[2].partition("]")[0].count(",") + 1
    kinds = text.partition("last_tile_dims={")[2].partition("}")[0]
    last = kinds.count(",") + 1 if kinds else "last_tile_dim_replicate" in text
    return tiles - last


def read_layout(said: Any, shape: Sequence[int], own: Mesh, mesh: Mesh) -> Sharding:
    """Return a sharding of the text on the plan's mesh.

    Args:
      said: a sharding in Shardy's dialect (`#sdy...`) or in HLO's, on the mesh `own`.

    Raises:
      NotationError, ShardingError, StrategyError: text that does not fit.
    """
    text = str(said)
    read = Sharding.from_sdy if text.startswith("#sdy") else Sharding.from_hlo
    return sharding_on_mesh(read(text, tuple(shape), own), mesh, tuple(shape))


def named(layout: Sharding) -> NamedSharding:
    """Return the sharding of a value inside a program as JAX's `NamedSharding`.

    Axes along which the value is unreduced are left out: the value of the whole program is the
    sum, and the planner decides where to reduce it.

    Raises:
      ShardingError: no `PartitionSpec` expresses the layout.
    """
    spec = layout.to_spec()
    # The planner decides the sharding along every axis, so all axes are automatic, whatever JAX's
    # default type is. Explicitly replicated axes need no entry, because all dimensions are closed.
    sizes = layout.mesh.shape
    types = (AxisType.Auto,) * len(sizes)
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=types)
    return NamedSharding(mesh, PartitionSpec(*spec.partitions))


def constrained(x: Any, layout: Sharding | None) -> Any:
    """Return a value constrained to a sharding; None or only open dimensions leave it unchanged.

    Raises:
      NotationError: priorities, or explicitly replicated axes together with open dimensions.
    """
    if layout is None or not layout.shape:
        return x
    open_dims = layout.unspecified_dims
    if any(layout.priorities) or (layout.replicated and open_dims):
        raise NotationError(
            f"{layout.text()} has priorities, or replicated axes beside open dimensions; inside "
            "a program such a layout cannot be planned. State it on an argument, or close the "
            "dimensions."
        )
    # A layout that shards nothing and has only open dimensions asks for nothing.
    if len(open_dims) == len(layout.shape) and not any(layout.dims):
        return x
    names = layout.mesh.axis_names
    if layout.mesh.device_ids is None and not any(layout.dims[dim] for dim in open_dims):
        return jax.lax.with_sharding_constraint(x, named(layout))
    # JAX's own constraint expresses neither an order of the devices nor a dimension that is open
    # behind given axes. The annotation `mesh_split` expresses both.
    axes = [layout.mesh.axis_ref(digit).name for dim in layout.dims for digit in dim]
    next_axis = iter(axes)
    mapping: list[Any] = [tuple(names.index(next(next_axis)) for _ in dim) for dim in layout.dims]
    return mesh_split_value(x, layout.mesh, [dim or -1 for dim in mapping], open_dims)
