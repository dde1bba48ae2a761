"""Shardings in StableHLO text, Shardy's and HLO's, as NamedShardings on the mesh of the text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from jax.extend.mlir.dialects import sdy
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import NotationError

SHARDY, HLO = "sdy.sharding", "mhlo.sharding"
"""Attributes that say the sharding of an argument or a result."""
_PRIORITY = re.compile(r"\}p[1-9]")


def shardy_mesh(attribute: Any) -> Mesh:
    """A mesh of Shardy.

    Raises:
      NotationError: its devices are in an order of their own.
    """
    read = sdy.MeshAttr(attribute)
    if list(read.device_ids):
        raise NotationError(
            f"{attribute} orders its devices, and the mesh of a text has them in the order of "
            "their numbers. Leave out device_ids, and give plan() a mesh that orders them: "
            "mesh=sa.Mesh(axes, device_ids=...)."
        )
    axes = map(sdy.MeshAxisAttr, read.axes)
    return Mesh({axis.name: axis.size for axis in axes})


def hlo_mesh(texts: Sequence[str]) -> Mesh | None:
    """The mesh of fewest axes on which tiled HLO shardings can be said; None where none is tiled.

    An axis ends wherever a split of one of them ends.

    Raises:
      NotationError: splits that no one mesh has, or a list of devices in an order of its own.

    >>> hlo_mesh(["{devices=[2,1,4]<=[8] last_tile_dim_replicate}", "{devices=[4,2]<=[2,4]T(1,0)}"])
    Mesh(d0=2, d1=4)
    """
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
    return Mesh({f"d{i}": size for i, size in enumerate(reversed(sizes))}) if sizes else None


def _rank(text: str) -> int:
    """Of the tensor that a tiled sharding is for."""
    tiles = text.partition("devices=[")[2].partition("]")[0].count(",") + 1
    kinds = text.partition("last_tile_dims={")[2].partition("}")[0]
    last = kinds.count(",") + 1 if kinds else "last_tile_dim_replicate" in text
    return tiles - last


def named(said: Any, shape: Sequence[int], mesh: Mesh) -> NamedSharding:
    """The layout that a sharding of either dialect states.

    Raises:
      NotationError, ShardingError: text that does not fit, or a layout that no PartitionSpec says.
    """
    text = str(said)
    if _PRIORITY.search(text):
        raise NotationError(
            f"{text} has a dimension of a priority, and layouts that are planned have none. Leave "
            "priorities out."
        )
    read = Sharding.from_sdy if text.startswith("#sdy") else Sharding.from_hlo
    spec = read(text, tuple(shape), mesh).to_spec()
    # Axes that are said to be replicated are so where every dimension is closed.
    return NamedSharding(_abstract(mesh), PartitionSpec(*spec, unreduced=spec.unreduced))


def _abstract(mesh: Mesh) -> AbstractMesh:
    """Of axes along which the partitioner decides, whatever JAX takes where nothing is said."""
    sizes = mesh.shape
    automatic = (AxisType.Auto,) * len(sizes)
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=automatic)
