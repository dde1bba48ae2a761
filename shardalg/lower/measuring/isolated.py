"""Each distinct collective and contraction of a program run alone, on blocks of the plan's shapes.

No model code is needed. What lies between a step and its prediction splits in two: the prediction
against the sum of the operators alone is rates; that sum against the step is what runs beside each
other, what the compiler fuses, and all other compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from shardalg.costs.analyses.together import together
from shardalg.costs.collectives import axis_names
from shardalg.costs.compute import contracts
from shardalg.costs.step_time import timed
from shardalg.costs.walk import walk
from shardalg.graph.abstract import item_type
from shardalg.io.table import Table
from shardalg.lower.emit import EMIT, Emitter
from shardalg.lower.measure import Timing, repeated
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import Apply

if TYPE_CHECKING:
    from shardalg.costs.analyses.rate_amounts import Taken
    from shardalg.costs.hardware import Hardware
    from shardalg.costs.topology import Topology
    from shardalg.lower.shard_map import Lowered

CONTRACTION = "contraction"


@dataclass(frozen=True)
class Alone:
    """One collective or contraction by itself, and how often a step has one that is alike.

    Attributes:
      name: of the first result of the first of them, as the printed program has it: "%5".
      shapes: local, of what it takes: "f32[4,8]".
      predicted_s: of all executions in a step; None where nothing predicts.
      timing: of one, what a program of the same border that does nothing takes being taken off.
      amounts: what one takes of the figures that measurements are fitted to (`rate_amounts`).
    """

    name: str
    kind: str
    axes: tuple[str, ...]
    shapes: tuple[str, ...]
    count: int
    timing: Timing
    predicted_s: float | None = None
    amounts: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Of all executions in a step."""
        return self.count * self.timing.step_s


@dataclass(frozen=True)
class Sort:
    """Instructions that are alike: of one operator, on blocks of the same types.

    Attributes:
      first: of them; all-reduces that are sent as one stand together.
      place: the `id` of the instruction that they are priced as.
    """

    first: tuple[Instruction, ...]
    kind: str
    axes: tuple[str, ...]
    count: int
    predicted_s: float | None = None
    place: int = 0


def each_alone(
    lowered: Lowered,
    repeats: int,
    taken: Sequence[Taken],
    hardware: Hardware | Topology | None = None,
) -> tuple[Alone, ...]:
    """Every distinct collective and contraction, in the order of the program.

    Args:
      taken: by every instruction. hardware: what predicts, if anything.
    """
    prices = timed(lowered.program, lowered.graph, hardware) if hardware is not None else ()
    seconds = {id(p.step.instruction): p.seconds * p.step.count for p in prices}
    amounts = {one.instruction: one.amounts for one in taken}
    return tuple(
        replace(_timed(lowered, sort, repeats), amounts=amounts[sort.place])
        for sort in sorts(lowered, seconds)
    )


def table(rows: Sequence[Alone]) -> Table:
    """A row per operator: measured and predicted are of all its executions in a step."""
    names = ("instruction", "kind", "mesh_axes", "shapes", "executions", "predicted_s", "alone_s")
    return Table(
        names,
        tuple(
            (
                r.name,
                r.kind,
                ",".join(r.axes),
                " ".join(r.shapes),
                r.count,
                r.predicted_s,
                r.seconds,
            )
            for r in rows
        ),
    )


def sorts(lowered: Lowered, seconds: Mapping[int, float]) -> list[Sort]:
    """The collectives and contractions of a program, those that are alike together.

    Args:
      seconds: predicted, by the `id` of the instruction.
    """
    found: dict[Any, Sort] = {}
    sent = together(lowered.program.block)
    for step in walk(lowered.program):
        group = sent.get(id(step.instruction), (step.instruction,))
        kind = _kind(lowered, step.instruction) if group else None
        if kind is None:
            continue
        key = kind, tuple(_operation(lowered, one) for one in group)
        axes = axis_names(lowered.program.mesh, getattr(group[0].attributes, "digits", ()))
        mine = seconds.get(id(step.instruction))
        place = id(step.instruction)
        one = found.get(key, Sort(group, kind, axes, 0, 0.0 if seconds else None, place))
        predicted = None if one.predicted_s is None else one.predicted_s + (mine or 0.0)
        found[key] = replace(one, count=one.count + step.count, predicted_s=predicted)
    return list(found.values())


def _kind(lowered: Lowered, instruction: Instruction) -> str | None:
    attributes = instruction.attributes
    if type(attributes) is Apply and instruction.node is not None:
        graph = lowered.graph
        return CONTRACTION if contracts(graph.nodes[instruction.node].signature) else None
    return getattr(attributes, "sent_as", None) if _sent(attributes) else None


def _sent(attributes: Any) -> bool:
    return getattr(attributes, "sends", 0) > 0 and not attributes.stays


def _operation(lowered: Lowered, instruction: Instruction) -> Any:
    """What is done, to what: alike where two instructions cannot be told apart by their times."""
    attributes, held = instruction.attributes, lowered.program.locals
    what: Any = attributes
    if type(attributes) is Apply and instruction.node is not None:
        what = lowered.graph.nodes[instruction.node].signature
    return what, tuple((held[v].shape, held[v].dtype) for v in instruction.operands)


def _timed(lowered: Lowered, sort: Sort, repeats: int) -> Alone:
    """One sort of instructions, run on blocks of ones."""
    held = lowered.program.locals
    operands = list(dict.fromkeys(v for one in sort.first for v in one.operands))
    emitter = Emitter(lowered.program, lowered.graph, lowered.run, lowered.tiled)

    def emitted(*blocks: Any) -> list[Any]:
        env = dict(zip(operands, blocks, strict=True))
        made = (
            EMIT[type(one.attributes)](emitter, one, *(env[v] for v in one.operands))
            for one in sort.first
        )
        return [result for results in made for result in results]

    mesh, names = lowered.run.mesh, lowered.run.all_names
    blocks = [_ones(mesh, names, held[v].shape, held[v].dtype) for v in operands]
    shared = mesh.devices.flat[0].platform == "cpu"
    taken = [
        repeated(_compiled(mesh, names, function, blocks), repeats, shared=shared)
        for function in (emitted, _nothing)
    ]
    return Alone(
        f"%{sort.first[0].results[0]}",
        sort.kind,
        sort.axes,
        tuple(repr(held[v]) for v in operands),
        sort.count,
        taken[0].without(taken[1]),
        sort.predicted_s,
    )


def _nothing(*blocks: Any) -> list[Any]:
    return [jnp.zeros(())]


def _ones(mesh: Any, names: tuple[str, ...], shape: tuple[int, ...], dtype: str) -> jax.Array:
    """A block of ones on every device, with a dimension in front that numbers the devices."""
    layout = NamedSharding(mesh, PartitionSpec(names))
    make = jax.jit(lambda: jnp.ones((mesh.size, *shape), item_type(dtype)), out_shardings=layout)
    return make()


def _compiled(
    mesh: Any, names: tuple[str, ...], function: Callable[..., Any], blocks: Sequence[jax.Array]
) -> Callable[[], Any]:
    """A call of a function of blocks on all devices."""

    def on_blocks(*stacked: Any) -> list[Any]:
        return [x[None] for x in function(*(x[0] for x in stacked))]

    spec = PartitionSpec(names)
    mapped = jax.shard_map(on_blocks, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        run = jax.jit(mapped).lower(*blocks).compile()
    return lambda: run(*blocks)
