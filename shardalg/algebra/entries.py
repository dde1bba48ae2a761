"""The paper's `mesh_split` on a shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.notation.axis_names import Entry, entries_text
from shardalg.algebra.sharding import Sharding
from shardalg.errors import ShardingError


def mesh_split(
    shape: Sequence[int],
    mesh: Mesh,
    dims_mapping: Sequence[Entry],
    unspecified_dims: Iterable[int] = (),
) -> Sharding:
    """The paper's `mesh_split` on a shape: dimension `i` is split along axis `dims_mapping[i]`.

    Args:
      dims_mapping: per dimension the number (or name) of a mesh axis, several of them major first,
        or -1 (or None) for a dimension that is not partitioned.
      unspecified_dims: dimensions that completion may still refine.

    Raises:
      MeshError: an axis that the mesh does not have.
      ShardingError: a mapping of another rank than the shape, or an axis used twice.

    >>> mesh_split((64, 1024, 8192), Mesh({"X": 8, "Y": 16}), [0, -1, 1])
    Sharding([X, None, Y], shape=(64, 1024, 8192), Mesh(X=8, Y=16))

    GSPMD (arXiv:2105.04663), section 3.1.
    """
    check_mapping(mesh, dims_mapping, unspecified_dims)
    if len(dims_mapping) != len(shape):
        raise ShardingError(
            f"dims_mapping {entries_text(tuple(dims_mapping))} has {len(dims_mapping)} entries "
            f"for the {len(shape)} dimensions of shape {tuple(shape)}. Give one axis, or -1, per "
            "dimension."
        )
    closed = Sharding.from_axes(dims_mapping, mesh, shape)
    return replace(closed, unspecified_dims=tuple(sorted(unspecified_dims)))


def check_mapping(mesh: object, dims_mapping: object, unspecified_dims: object = ()) -> None:
    """Raise unless these are what `mesh_split` takes.

    Raises:
      ShardingError: no mesh, or no sequences.
    """
    given = {"mesh": (mesh, isinstance(mesh, Mesh), "a shardalg.Mesh")}
    lists = {"dims_mapping": dims_mapping, "unspecified_dims": unspecified_dims}
    given |= {n: (v, isinstance(v, Iterable), "a list as [0, -1]") for n, v in lists.items()}
    for name, (value, fits, wanted) in given.items():
        if not fits:
            raise ShardingError(
                f"mesh_split(x, mesh, dims_mapping) needs {wanted} as its {name}, got "
                f"{value!r:.60}. Write mesh_split(x, Mesh({{'X': 2}}), [0, -1])."
            )
