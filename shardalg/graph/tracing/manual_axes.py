"""Functions that run by hand along some mesh axes, and are partitioned along the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import wraps
from typing import Any

import jax
from jax.sharding import PartitionSpec

from shardalg.errors import TraceError


def manual(
    fn: Callable[..., Any],
    axes: str | Sequence[str],
    *,
    in_specs: Any = None,
    out_specs: Any = None,
    mesh: Any = None,
) -> Callable[..., Any]:
    """`fn` on each device's blocks along some axes: `jax.shard_map`, planned on the other axes.

    Inside, `jax.lax.psum`, `ppermute` and the others send along `axes`; dimensions that the specs
    leave open, and all values inside, are laid out on the other axes as anywhere else, with
    annotations as anywhere else.

    Args:
      axes: of the mesh, one or several.
      in_specs, out_specs: as of `jax.shard_map`, of `axes` alone; None: the leading dimension of
        every array lies on all of them, in their order.
      mesh: of JAX; None: the one that is planned on, or that `jax.set_mesh` has set.

    Raises:
      TraceError: no axis, no name, one that stands twice or is manual already, one that the mesh
        lacks, or a mesh that is not of JAX.

    >>> import shardalg as sa
    >>> on = manual(lambda x: jax.lax.ppermute(x, "L", [(0, 1), (1, 2), (2, 3)]), "L")
    >>> x, mesh = jax.ShapeDtypeStruct((8, 6), "float32"), sa.Mesh({"L": 4, "Y": 2})
    >>> plan = sa.plan(on, x, mesh=mesh, in_shardings=(PartitionSpec("L", "Y"),))
    >>> plan.collectives()[["kind", "mesh_axes", "wire_bytes"]].values.tolist()
    [['collective_permute', 'L', 24]]
    """
    names = _names(axes)
    if not isinstance(mesh, jax.sharding.Mesh | jax.sharding.AbstractMesh | None):
        raise TraceError(
            f"manual(fn, {axes!r}, mesh={mesh!r}): jax.shard_map takes a mesh of JAX. Leave mesh "
            "out for the mesh that is planned on, or pass what its to_jax() gives."
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names or twice:
        raise TraceError(
            f"manual(fn, {axes!r}) names {f'{twice[0]!r} twice' if twice else 'no axis'}. Name "
            "each axis along which fn runs by hand once, as in manual(fn, ('L',))."
        )
    blocks = PartitionSpec(names)
    sides = blocks if in_specs is None else in_specs, blocks if out_specs is None else out_specs

    @wraps(fn)
    def on_blocks(*operands: Any) -> Any:
        _check(names, mesh or jax.sharding.get_abstract_mesh())
        run = jax.shard_map(
            fn, mesh=mesh, in_specs=sides[0], out_specs=sides[1], axis_names=set(names)
        )
        return run(*operands)

    return on_blocks


def _names(axes: Any) -> tuple[str, ...]:
    """`axes` as names of axes."""
    names = (axes,) if isinstance(axes, str) else axes
    if isinstance(names, Collection) and all(isinstance(name, str) for name in names):
        return tuple(names)
    raise TraceError(
        f"manual(fn, {axes!r}): axes are given by their names, one or several. Name those along "
        "which fn runs by hand, as in manual(fn, ('L',))."
    )


def _check(names: Sequence[str], mesh: Any) -> None:
    """Raise unless the mesh has these axes, none of them manual yet."""
    here = jax.sharding.get_abstract_mesh()
    inside = set(getattr(here, "manual_axes", ()))
    for name in names:
        if name in inside:
            raise TraceError(
                f"axis {name!r} is manual already where manual(fn, {list(names)}) is called: "
                "inside of a region an axis has one block. Leave it out of the inner one."
            )
        if name not in mesh.axis_names:
            raise TraceError(
                f"manual(fn, {list(names)}) runs along {name!r}, which the mesh does not have: its "
                f"axes are {list(mesh.axis_names)}. Plan on a mesh that has it, or pass mesh=."
            )
