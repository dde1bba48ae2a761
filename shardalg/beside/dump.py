"""XLA asked for its own completion: shardings of every instruction, and collectives.

XLA's dump before SPMD partitioning has every sharding completed, by GSPMD's propagation or by
Shardy's; CPU devices suffice (`shardalg.host_devices`).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from shardalg.algebra.hlo import from_hlo
from shardalg.algebra.jax_types import mesh_to_jax
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import LoweringError
from shardalg.graph.evaluate import evaluate
from shardalg.graph.ir import Graph, Node
from shardalg.lower.axes import Axes, axes_of
from shardalg.lower.border import even_prefix, item_type
from shardalg.lower.hlo import HloCollective, collectives
from shardalg.lower.hlo_text import HloModule, parse
from shardalg.propagate.strategy import Annotations

_SWITCH = "jax_use_shardy_partitioner"
_BEFORE = re.compile(r"before_(tpu-)?spmd-partitioning")
_AFTER = re.compile(r"after_(tpu-)?spmd-partitioning")


@dataclass(frozen=True, eq=False)
class Completion:
    """What XLA made of one function.

    Attributes:
      partitioner: "gspmd" or "shardy".
      module: the program as it enters partitioning, every sharding completed.
      results: layout per result; None where no digits of the mesh say it.
      collectives: what partitioning made.
      compiled: JAX's executable.
    """

    partitioner: str
    mesh: Mesh
    module: HloModule
    results: tuple[Sharding | None, ...]
    collectives: tuple[HloCollective, ...]
    compiled: Any


def partitioners() -> tuple[str, ...]:
    """The partitioners that this JAX can be told to use.

    >>> "shardy" in partitioners()
    True
    """
    return ("gspmd", "shardy") if hasattr(jax.config, _SWITCH) else ("shardy",)


@contextmanager
def using(partitioner: str) -> Iterator[None]:
    """JAX lowers for this partitioner inside.

    Raises:
      LoweringError: this JAX does not have it.
    """
    if partitioner not in partitioners():
        raise LoweringError(
            f"jax {jax.__version__} has no partitioner {partitioner!r}, only {partitioners()}. "
            "Compare with one of these, or install a version of jax that has it."
        )
    if not hasattr(jax.config, _SWITCH):
        yield
        return
    before = getattr(jax.config, _SWITCH)
    jax.config.update(_SWITCH, partitioner == "shardy")
    try:
        yield
    finally:
        jax.config.update(_SWITCH, before)


def ask(
    graph: Graph,
    annotations: Annotations,
    partitioner: str = "gspmd",
    devices: Sequence[jax.Device] | None = None,
) -> Completion:
    """XLA's completion of a graph under the same annotations; what has none, XLA completes.

    Args:
      devices: of the mesh; None: all of the backend. `shardalg.host_devices(8)` makes CPU devices.

    Raises:
      LoweringError: this JAX lacks the partitioner, or one device leaves nothing to partition.
      DeviceError: too few devices.
    """
    with using(partitioner):
        return read(_stage(graph, annotations, devices), annotations.mesh, partitioner)


def read(stage: Any, mesh: Mesh, partitioner: str) -> Completion:
    """Compile a lowered JAX program, and read what its partitioner was given and made.

    Args:
      stage: `jax.jit(f).lower(...)`, lowered and to be compiled `using` the partitioner.
    """
    with tempfile.TemporaryDirectory(prefix="shardalg-hlo-") as folder:
        options = {"xla_dump_to": folder, "xla_dump_hlo_pass_re": "spmd"}
        compiled = stage.compile(compiler_options=options)
        before, after = (_largest(Path(folder), pattern) for pattern in (_BEFORE, _AFTER))
    if before is None or after is None:
        raise LoweringError(
            f"XLA partitioned nothing on {mesh!r}: there is no dump of its partitioner. Compare a "
            "plan for two devices or more."
        )
    leaves = jax.tree.leaves(compiled.output_shardings)
    shapes = [leaf.shape for leaf in jax.tree.leaves(compiled.out_info)]
    results = tuple(_layout(s, shape, mesh) for s, shape in zip(leaves, shapes, strict=True))
    made = collectives(after, mesh)
    return Completion(partitioner, mesh, parse(before), results, made, compiled)


def _largest(folder: Path, pattern: re.Pattern[str]) -> str | None:
    texts = [p.read_text() for p in sorted(folder.iterdir()) if pattern.search(p.name)]
    return max(texts, key=len, default=None)


def _layout(sharding: Any, shape: tuple[int, ...], mesh: Mesh) -> Sharding | None:
    made = from_hlo(str(sharding._to_xla_hlo_sharding(len(shape))), shape, mesh)
    return made if made.mesh == mesh else None


def _stage(graph: Graph, annotations: Annotations, devices: Sequence[jax.Device] | None) -> Any:
    """JAX's lowered program of a graph with its annotations, uneven ones right inside."""
    given = [s for s in (*annotations.arguments, *annotations.sites, *annotations.results) if s]
    digits = {digit for sharding in given for dim in sharding.dims for digit in dim}
    axes = axes_of(annotations.mesh, digits, mesh_to_jax(annotations.mesh, devices))
    sites = zip(graph.sites, annotations.sites, strict=True)
    asked = _Asked(graph, axes, annotations, {site.node: s for site, s in sites if s is not None})
    types = [graph.values[value].type for value in graph.arguments]
    jitted = jax.jit(
        asked.function,
        in_shardings=tuple(map(asked.border, annotations.arguments)),
        out_shardings=tuple(map(asked.border, annotations.results)),
    )
    with jax.set_mesh(axes.mesh):
        return jitted.lower(*(jax.ShapeDtypeStruct(t.shape, item_type(t.dtype)) for t in types))


@dataclass(frozen=True, eq=False)
class _Asked:
    """A graph as a function of flat arguments, constrained where it is annotated."""

    graph: Graph
    axes: Axes
    annotations: Annotations
    sites: dict[int, Sharding]

    def function(self, *leaves: jax.Array) -> tuple[jax.Array, ...]:
        annotations = self.annotations
        inside = map(self._uneven, leaves, annotations.arguments)
        results = evaluate(self.graph, *inside, annotate=self._at_site)
        return tuple(map(self._uneven, results, annotations.results))

    def border(self, sharding: Sharding | None) -> NamedSharding | None:
        """JAX's sharding of an argument or a result, which divides it."""
        return None if sharding is None else self._named(even_prefix(sharding))

    def _uneven(self, x: jax.Array, sharding: Sharding | None) -> jax.Array:
        if sharding is None or sharding.is_even:
            return x
        return jax.lax.with_sharding_constraint(x, self._named(sharding))

    def _at_site(self, node: Node, x: jax.Array) -> jax.Array:
        sharding = self.sites.get(node.index)
        if sharding is None:
            return x
        return jax.lax.with_sharding_constraint(x, self._named(sharding))

    def _named(self, sharding: Sharding) -> NamedSharding:
        spec = list(self.axes.spec(sharding))
        for dim in sharding.unspecified_dims:
            spec[dim] = _opened(spec[dim])
        return NamedSharding(self.axes.mesh, PartitionSpec(*spec))


def _opened(entry: object) -> object:
    """An open dimension; JAX has no word for one that is open behind given axes."""
    return PartitionSpec.UNCONSTRAINED if entry is None else entry
