"""`sa.audit`: XLA's partitioned program of a function, audited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from shardalg.algebra.jax_meshes import mesh_to_abstract
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import LoweringError
from shardalg.graph.tracing.parts import installed_partitioner
from shardalg.lower.xla_dump.hlo_collectives import Dump, Dumping
from shardalg.xla.apart import Request, compile_apart
from shardalg.xla.audit.audit_report import Audit
from shardalg.xla.audit.audit_texts import audit_hlo


def audit(
    fn: Callable[..., Any],
    *args: Any,
    mesh: Mesh | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    progress: bool | None = None,
) -> Audit:
    """Return the verdict on XLA's partitioned program of a function.

    XLA compiles the function for CPU devices, and the two texts of its partitioner are audited.

    Args:
      args: arrays, or shapes (`jax.ShapeDtypeStruct`).
      mesh: names the axes of the shardings; None takes it from a `NamedSharding` among them.
      in_shardings, out_shardings: as for `jax.jit`; a `PartitionSpec` is one on the mesh.
      progress: True for a line with counts on stderr; None for a line if stderr is a terminal.

    Raises:
      LoweringError: XLA ends without an answer, or partitions nothing.
    """
    dump = partitioned(fn, args, mesh, in_shardings, out_shardings)
    if dump.before is None or dump.after is None:
        raise LoweringError(
            "XLA partitioned nothing: there is no dump of its partitioner. Audit a program for two "
            "devices or more, with a mesh and in_shardings."
        )
    return audit_hlo(dump.before, dump.after, progress=progress)


def partitioned(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    mesh: Mesh | None,
    in_shardings: Any,
    out_shardings: Any,
) -> Dump:
    """Return XLA's texts of a function before and after partitioning.

    Raises:
      LoweringError: XLA ends without an answer, or no mesh is given.
    """
    given = jax.tree.leaves((in_shardings, out_shardings), is_leaf=_is_sharding)
    if mesh is None:
        named = [s.mesh for s in given if isinstance(s, NamedSharding)]
        if not named:
            raise LoweringError(
                "no mesh is given. Pass mesh=sa.Mesh({'data': 2, 'model': 4}), or NamedShardings."
            )
        mesh = Mesh(list(zip(named[0].axis_names, named[0].axis_sizes, strict=True)))
    abstract = mesh_to_abstract(mesh)

    def on_mesh(tree: Any) -> Any:
        return jax.tree.map(lambda s: _named(s, abstract), tree, is_leaf=_is_sharding)

    more = {} if out_shardings is None else {"out_shardings": on_mesh(out_shardings)}
    if in_shardings is not None:
        more["in_shardings"] = on_mesh(in_shardings)
    # Values play no part, and arrays are on devices that are not those of the mesh.
    args = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if hasattr(x, "dtype") else x, args
    )
    with jax.sharding.use_abstract_mesh(abstract):
        stage = (
            jax.jit(fn, keep_unused=True, **more).trace(*args).lower(lowering_platforms=("cpu",))
        )
    devices = jax.devices("cpu")
    with Dumping(is_run=False) as dumping:
        if len(devices) >= mesh.size:
            stage.compile(
                compiler_options=dumping.options, device_assignment=tuple(devices[: mesh.size])
            )
        else:
            results = len(jax.tree.leaves(stage.out_info))
            leaves = len(jax.tree.leaves(stage.in_avals))
            open_ends = [in_shardings is None] * leaves, [out_shardings is None] * results
            compile_apart(stage, dumping, Request(installed_partitioner(), mesh.size, *open_ends))
        return dumping.read()


def _is_sharding(value: object) -> bool:
    return value is None or isinstance(value, PartitionSpec | NamedSharding | Sharding)


def _named(sharding: Any, mesh: Any) -> Any:
    """Return a sharding on the mesh; None lets XLA choose."""
    if sharding is None:
        return None
    if isinstance(sharding, Sharding):
        sharding = sharding.to_spec()
    spec = sharding.spec if isinstance(sharding, NamedSharding) else sharding
    return NamedSharding(mesh, spec)
