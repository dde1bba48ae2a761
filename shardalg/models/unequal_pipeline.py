"""Pipelines with different stages: each stage has a plan on its own sub-mesh.

A pipeline of equal stages is one tensor program (`models.pipeline`). Stages that differ in their
functions, weights, shapes or devices are not one program. For these GSPMD (arXiv:2105.04663,
section 3.3) partitions each stage inside another implementation of pipelines, and so does this
module. Every stage is planned, verified and priced like any other function: its forward pass for
one microbatch, and its backward pass for all microbatches, whose weight gradients are summed and
reduced once. A schedule then gives the time of each microbatch in each stage
(`costs.pipelines.joined`). The whole pipeline is not lowered, because its devices run different
programs; the plan of each stage can be lowered.

A stage keeps only the input of a microbatch and recomputes the rest in the backward pass, as in the
paper's pipelines (section 5.2). A microbatch moves from the devices of one sub-mesh to those of the
next one, and each device sends its share:

    latency + max(block, block * receivers / senders) / link_bytes_per_s
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from shardalg.algebra.mesh import Mesh
from shardalg.costs.hardware import Hardware
from shardalg.costs.pipelines.events import BUBBLE, EventGroup, parts
from shardalg.costs.pipelines.joined import (
    BACKWARD,
    FORWARD,
    MicrobatchTask,
    StageTimes,
    in_flight,
    join_stages,
    orders,
)
from shardalg.costs.pipelines.schedules import Schedule
from shardalg.costs.step_time import timed
from shardalg.costs.topology import Topology, machine, machine_text
from shardalg.costs.walk import local_bytes
from shardalg.errors import LoweringError, PipelineError
from shardalg.models.pipeline import samples, whole
from shardalg.plan.plan import Plan, plan
from shardalg.planner.propagate.options import Options, Switches
from shardalg.show.timeline import Timeline
from shardalg.tables import Table
from shardalg.verify.report import Report

Tree = Any
StageFn = Callable[[Tree, Tree], Tree]
Parts = tuple[EventGroup, ...]


@dataclass(frozen=True)
class Stage:
    """One stage of a pipeline, for `unequal_pipeline`.

    Attributes:
      fn: `(weights, microbatch) -> microbatch for the next stage`, or a loss.
      weights: arrays, or their types.
      mesh: the devices of the stage; stages share no device.
      specs: shardings of the weights, a PartitionSpec per array; None leaves them to completion.
      x: shardings of the stage's input, a PartitionSpec per array; None leaves them to completion.
    """

    fn: StageFn
    weights: Tree
    mesh: Mesh
    specs: Any = None
    x: Any = None


@dataclass(frozen=True)
class StagePlan:
    """The plans of one stage on its sub-mesh.

    Attributes:
      forward: the plan of `(weights, microbatch)`.
      backward: the plan of `(weights, all microbatches, gradients of all results)`. It returns the
        gradients of the weights and, except in the first stage, of the microbatches.
      weights: the number of weight arrays.
    """

    forward: Plan
    backward: Plan
    weights: int

    @property
    def mesh(self) -> Mesh:
        """The sub-mesh of the stage."""
        return self.forward.mesh

    @cached_property
    def taken_bytes(self) -> int:
        """The bytes per device of one microbatch that the stage receives."""
        program = self.forward.program
        return int(local_bytes(program, program.block.arguments[self.weights :]))

    @cached_property
    def made_bytes(self) -> int:
        """The bytes per device of one microbatch that the stage sends."""
        program = self.forward.program
        return int(local_bytes(program, program.block.results))

    def times(self, hardware: Hardware | Topology, microbatches: int) -> tuple[Parts, Parts, Parts]:
        """Return the events of the stage on this hardware, with their seconds, in three groups.

        The groups are the forward pass of one microbatch, its backward pass, and the work once per
        step after all microbatches.
        """
        forward = timed(self.forward.program, self.forward.graph, hardware)
        backward = timed(self.backward.program, self.backward.graph, hardware)
        # The only loop is the scan over microbatches: its time is shared by all of them. The
        # reductions of the gradients come after it, once per step.
        inside = [each for each in backward if each.step.loops]
        after = [each for each in backward if not each.step.loops]
        # None: no pipeline loop is around the instructions within a stage's own program.
        each = (replace(p, seconds=p.seconds / microbatches) for p in parts(inside, None))
        return (
            _named(FORWARD, parts([*forward], None)),
            _named(BACKWARD, each),
            _named(BACKWARD, parts(after, None)),
        )

    def peak_memory_bytes(self, hardware: Hardware | Topology, kept: int, microbatches: int) -> int:
        """Return the peak bytes of a device that keeps the inputs of `kept` microbatches.

        The result is the larger peak of the forward and the backward pass. The backward plan has
        inputs and gradients of all microbatches in memory. A running stage has them for only one
        microbatch, plus the inputs of the other kept ones.
        """
        block = self.backward.program.block
        gradients = local_bytes(self.backward.program, block.results[: self.weights])
        passing = (*block.arguments[self.weights :], *block.results[self.weights :])
        passing_bytes = local_bytes(self.backward.program, passing)
        # In 1F1B a forward pass runs between backward passes: gradients are alive in both.
        forward = self.forward.cost(hardware).peak_memory_bytes + gradients
        backward = self.backward.cost(hardware).peak_memory_bytes
        alone = backward - passing_bytes + passing_bytes // microbatches
        return int(max(forward, alone) + (kept - 1) * self.taken_bytes)


@dataclass(frozen=True)
class UnequalPipeline:
    """A pipeline of stages with different functions and meshes; `unequal_pipeline` builds one.

    Attributes:
      stages: the plans of the stages, first to last.
      microbatches: the number of parts of the batch.
      schedule: "gpipe" or "1f1b".
    """

    stages: tuple[StagePlan, ...]
    microbatches: int
    schedule: str

    def timeline(self, hardware: str | Hardware | Topology) -> Timeline:
        """Return the predicted events of each stage in one step, as a timeline."""
        chip = machine(hardware)
        times = [
            StageTimes(*stage.times(chip, self.microbatches), *self._sent_s(number, chip))
            for number, stage in enumerate(self.stages)
        ]
        meshes = " | ".join(repr(stage.mesh) for stage in self.stages)
        on = machine_text(hardware, sum(stage.mesh.size for stage in self.stages))
        return Timeline(join_stages(times, self._orders), meshes, f"predicted on {on}")

    def table(self, hardware: str | Hardware | Topology) -> Table:
        """Return a table with a row per stage.

        The columns are its mesh, seconds of work and of waiting, kept microbatches, and peak
        memory.

        The column "lowered" is always "not lowered": the pipeline as a whole cannot be lowered.
        """
        chip, timeline = machine(hardware), self.timeline(hardware)
        rows = []
        for number, (stage, order) in enumerate(zip(self.stages, self._orders, strict=True)):
            waiting_s, microbatches_kept = timeline.seconds(BUBBLE, number), in_flight(order)
            # The stage keeps activations of every microbatch that is between its forward and
            # backward pass.
            peak = stage.peak_memory_bytes(chip, microbatches_kept, self.microbatches)
            busy_s = timeline.step_s - waiting_s
            rows.append(
                (
                    number,
                    repr(stage.mesh),
                    busy_s,
                    waiting_s,
                    microbatches_kept,
                    peak,
                    "not lowered",
                )
            )
        names = ("stage", "mesh", "busy_s", "waits_s", "in_flight", "peak_memory_bytes", "lowered")
        return Table(names, tuple(rows))

    def step_s(self, hardware: str | Hardware | Topology) -> float:
        """Return the predicted seconds of a step, which computes gradients without an update."""
        return self.timeline(hardware).step_s

    def verify(self) -> tuple[Report, ...]:
        """Return the proofs of every stage, forward and backward."""
        return tuple(p.verify() for stage in self.stages for p in (stage.forward, stage.backward))

    def lower(self) -> NoReturn:
        """Raise an error, because only the plans of the single stages can be lowered.

        Raises:
          LoweringError: always.
        """
        raise LoweringError(
            f"a pipeline of {len(self.stages)} unequal stages is not lowered: its devices run "
            "different programs. Lower a stage, pipe.stages[0].forward.lower(), or make the stages "
            "equal: sa.pipeline(layer, stages=...)."
        )

    @cached_property
    def _orders(self) -> tuple[tuple[MicrobatchTask, ...], ...]:
        return orders(self.schedule, len(self.stages), self.microbatches)

    def _sent_s(self, number: int, chip: Hardware | Topology) -> tuple[float, float]:
        """Return the seconds to send a microbatch to the next stage, and its gradient back.

        `number` is the index of the sending stage.
        """
        if number == len(self.stages) - 1:
            return 0.0, 0.0
        here, there = self.stages[number : number + 2]
        rates = chip.chip

        def seconds(senders: int, receivers: int, block: int) -> float:
            # All blocks of the receivers must be sent: with fewer senders each sends several.
            most = max(block, block * receivers / senders)
            return rates.latency_s + most / rates.link_bytes_per_s

        return (
            seconds(here.mesh.size, there.mesh.size, there.taken_bytes),
            seconds(there.mesh.size, here.mesh.size, here.made_bytes),
        )


def unequal_pipeline(
    stages: Sequence[Stage], x: Tree, *, microbatches: int, schedule: str = "gpipe"
) -> UnequalPipeline:
    """Plan stages that differ, each on its own sub-mesh, and join them in time.

    Args:
      stages: the stages, first to last.
      x: the input of the first stage for the whole batch; per leaf (batch, ...).
      microbatches: the number of parts of the batch that follow one another.
      schedule: "gpipe", or "1f1b", which keeps fewer microbatches in memory.

    Raises:
      PipelineError: no stages, a stage without a function or a mesh, two stages on one device,
        microbatches that do not divide the batch, an unknown schedule, or a stage that cannot take
        the result of the previous stage.

    >>> from jax.sharding import PartitionSpec as P
    >>> import shardalg as sa
    >>> def wide(w, x):
    ...     return jnp.tanh(x @ w)
    >>> def thin(w, x):
    ...     return (x @ w).sum()
    >>> stages = [
    ...     sa.Stage(wide, jnp.ones((64, 256)), sa.Mesh({"X": 4}), x=P("X")),
    ...     sa.Stage(thin, jnp.ones((256, 8)), sa.Mesh({"X": 2}), x=P("X")),
    ... ]
    >>> pipe = sa.unequal_pipeline(stages, jnp.ones((64, 64)), microbatches=4, schedule="1f1b")
    >>> table = pipe.table("tpu_v3")
    >>> list(table["in_flight"]), set(table["lowered"])
    ([2, 1], {'not lowered'})
    >>> all(report.ok for report in pipe.verify())
    True

    Source: GSPMD (arXiv:2105.04663) section 3.3, heterogeneous stages.
    """
    _check_stages(stages)
    if not jax.tree.leaves(x):
        raise PipelineError(f"x is {x!r:.80}, without an array: pass a batch, (batch, ...).")
    _own_devices(stages)
    # An unknown schedule raises here, before the plans of the stages cost time.
    orders(schedule, 1, 1)
    microbatches = whole(microbatches)
    size = Schedule(len(stages), microbatches).microbatch_size

    def microbatch(leaf: Any) -> jax.ShapeDtypeStruct:
        count = size(samples(leaf))
        return jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype)

    taken, found = jax.tree.map(microbatch, x), []
    for number, stage in enumerate(stages):
        result = _result_types(number, stage, taken)
        found.append(_planned(stage, taken, result, microbatches, returns=number > 0))
        taken = result
    return UnequalPipeline(tuple(found), microbatches, schedule)


def _check_stages(stages: Any) -> None:
    """Raise a `PipelineError` unless there are stages, each with a function and an `sa.Mesh`."""
    if isinstance(stages, Stage) or not isinstance(stages, Sequence) or not stages:
        raise PipelineError("a pipeline needs stages: pass [sa.Stage(fn, weights, mesh), ...].")
    for number, stage in enumerate(stages):
        if not isinstance(stage, Stage):
            raise PipelineError(
                f"stage {number} is a {type(stage).__name__}: pass sa.Stage(fn, weights, mesh)."
            )
        if not callable(stage.fn):
            raise PipelineError(
                f"fn of stage {number} is a {type(stage.fn).__name__}, no function: pass the "
                "function of the stage, (weights, x) -> x."
            )
        if not isinstance(stage.mesh, Mesh):
            raise PipelineError(
                f"the mesh of stage {number} is a {type(stage.mesh).__name__}, {stage.mesh!r:.80}: "
                "pass sa.Mesh({'X': 2}), or sa.Mesh.from_jax(mesh)."
            )


def _own_devices(stages: Sequence[Stage]) -> None:
    """Raise a `PipelineError` if two stages have a device in common.

    Without device ids in any mesh the stages are on different devices.
    """
    if all(stage.mesh.device_ids is None for stage in stages):
        return
    taken: dict[int, int] = {}
    for number, stage in enumerate(stages):
        for device in stage.mesh.order:
            if device in taken:
                raise PipelineError(
                    f"stages {taken[device]} and {number} are both on device {device}: "
                    f"{stages[taken[device]].mesh} and {stage.mesh}. Give each stage's mesh "
                    "device_ids of its own; without any, only their sizes count."
                )
            taken[device] = number


def _result_types(number: int, stage: Stage, taken: Tree) -> Tree:
    """Return the types of a stage's result for one microbatch of the types `taken`.

    Args:
      number: the number of the stage, for errors.
    """
    # `eval_shape` traces the stage alone, so that an error names this stage and not a whole plan.
    try:
        return jax.eval_shape(stage.fn, stage.weights, taken)
    except (TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise PipelineError(
            f"stage {number} cannot take what comes to it, {taken}: {reason.rstrip('.')}. A stage "
            "takes what the one before makes of a microbatch."
        ) from error


def _planned(
    stage: Stage, taken: Tree, result: Tree, microbatches: int, *, returns: bool
) -> StagePlan:
    """Plan the forward and the backward pass of one stage on its own mesh.

    Args:
      taken, result: types of the stage's input and result for one microbatch.
      returns: whether the backward pass returns the gradients of the stage's input.
    """

    def stacked(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((microbatches, *leaf.shape), leaf.dtype)

    forward = plan(
        stage.fn,
        stage.weights,
        taken,
        mesh=stage.mesh,
        in_shardings=(stage.specs, stage.x),
        roles=("parameters", "data"),
    )
    backward = plan(
        partial(_gradient, stage.fn, returns),
        stage.weights,
        jax.tree.map(stacked, taken),
        jax.tree.map(stacked, result),
        mesh=stage.mesh,
        in_shardings=(stage.specs, _under_loop(stage.x), None),
        out_shardings=(stage.specs, _under_loop(stage.x) if returns else None),
        roles=("parameters", "data", "data"),
        # Without this option the weights' gradients would be reduced for every microbatch; with it
        # they stay partial sums in the loop and are reduced once, after it.
        options=Options(switches=Switches(defer_in_loops=True)),
    )
    return StagePlan(forward, backward, len(jax.tree.leaves(stage.weights)))


def _gradient(fn: StageFn, returns: bool, weights: Tree, xs: Tree, dys: Tree) -> tuple[Tree, Tree]:
    """Return the sum over microbatches of the weights' gradients, and each input's gradient.

    Args:
      xs, dys: inputs, and gradients of the results, stacked along a first dimension of
        microbatches.
      returns: False leaves the inputs' gradients out (None).
    """

    def one(grads: Tree, passing: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        """Return `grads` plus the gradients of one microbatch, and its input's gradient."""
        x, dy = passing
        if returns:
            by_weights, by_x = jax.vjp(fn, weights, x)[1](dy)
        else:
            # The first stage returns no gradient, because its inputs are data.
            (by_weights,), by_x = jax.vjp(lambda w: fn(w, x), weights)[1](dy), None
        # The gradient by an integer array has JAX's type float0, which no addition accepts.
        grads = jax.tree.map(
            lambda total, more: total if more.dtype == jax.dtypes.float0 else total + more,
            grads,
            by_weights,
        )
        return grads, by_x

    return lax.scan(one, jax.tree.map(jnp.zeros_like, weights), (xs, dys))


def _under_loop(specs: Any) -> Any:
    """Add a leading, replicated dimension of microbatches to the shardings."""
    return jax.tree.map(
        lambda spec: None if spec is None else PartitionSpec(None, *spec),
        specs,
        is_leaf=lambda spec: spec is None or isinstance(spec, PartitionSpec),
    )


def _named(phase: str, found: Iterable[EventGroup]) -> Parts:
    return tuple(replace(part, phase=phase) for part in found)
