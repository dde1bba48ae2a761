"""An SPMD program as one `jax.shard_map`, compiled ahead of its first call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

import jax
from jax.sharding import AbstractMesh
from jax.sharding import Mesh as JaxMesh

from shardalg.algebra.sharding import Sharding
from shardalg.costs.step_time import timed
from shardalg.errors import CheckpointError, LoweringError
from shardalg.graph.ir import Graph
from shardalg.graph.tracing.opened import bodies
from shardalg.graph.tracing.written import without_float0
from shardalg.lower.arrays import (
    ArrayBorder,
    border,
    border_in_other_order,
    call_executable,
    even_on,
    on_axes,
    place,
    results_of_call,
    with_empty,
    without_empty,
)
from shardalg.lower.axes import FOR_DEVICES, Axes, on_whole_axes, run_axes, user_axes
from shardalg.lower.emit import Emitter, body
from shardalg.lower.jit import ON_ARRAYS, Twin, UserCall, explicit_mesh, on_explicit_axes, platforms
from shardalg.lower.measure import Measurement, measure
from shardalg.spmd.instruction import is_a
from shardalg.spmd.instructions import RaggedAllToAll
from shardalg.spmd.program import SpmdProgram
from shardalg.spmd.rewrite import instructions

if TYPE_CHECKING:
    from shardalg.costs.hardware import Hardware
    from shardalg.costs.topology import Topology
    from shardalg.lower.breakdown import Breakdown
    from shardalg.tables import DataFrame


@dataclass(frozen=True, eq=False)
class Lowered:
    """A program that runs: call it on the function's own arguments.

    Attributes:
      program: the SPMD program. graph: the traced function that it computes.
      user, run: axes of the user's mesh, and of the mesh that the collectives name.
      donate: flattened arguments whose memory the results may take.
      sites: for each graph node that is an annotation, its sharding. `jit()` constrains the values
        to these shardings.
      verified: how far the plan was proved, in words; every measurement has a copy.
      platform: platform to lower for if the mesh has no devices ("tpu", "cuda"); None for that of
        the devices.
      call: conversion of the user's calls to calls of a function of arrays.
      drawn: makes a timeline from events and the text of a mesh (`show.timeline`).
    """

    program: SpmdProgram
    graph: Graph
    user: Axes
    run: Axes
    donate: tuple[int, ...] = ()
    sites: Mapping[int, Sharding] = field(default_factory=dict)
    verified: str = "not verified"
    platform: str | None = None
    call: UserCall = ON_ARRAYS
    drawn: Callable[..., Any] | None = None

    def __deepcopy__(self, memo: object = None) -> Lowered:
        """Return the program itself, because it never changes."""
        return self

    __copy__ = __deepcopy__

    def __reduce__(self) -> Never:
        """Raise: an executable of these devices cannot be pickled.

        Raises:
          LoweringError: always.
        """
        raise LoweringError("a lowered program is not pickled: pickle the Plan, and lower it.")

    @cached_property
    def arguments(self) -> tuple[ArrayBorder, ...]:
        """For each flattened argument, its shardings in the user's call and in the program."""
        dtypes = [self.program.locals[index].dtype for index in self.program.block.arguments]
        return self._borders(self.graph.argument_paths, dtypes, self.program.argument_shardings)

    @cached_property
    def results(self) -> tuple[ArrayBorder, ...]:
        """For each flattened result, its shardings in the program and in the user's call."""
        dtypes = [self.program.locals[index].dtype for index in self.program.block.results]
        return self._borders(self.graph.result_paths, dtypes, self.program.result_shardings)

    def _borders(
        self, paths: Sequence[str], dtypes: Sequence[str], shardings: Sequence[Sharding]
    ) -> tuple[ArrayBorder, ...]:
        """Return for each value its shardings in the user's call and in the program.

        A sharding may have another order of devices than the program.
        """
        mesh, found = self.program.mesh, []
        for path, dtype, sharding in zip(paths, dtypes, shardings, strict=True):
            plain = replace(sharding, mesh=mesh)
            made = border(path, dtype, plain, run=self.run, user=self.user)
            # If a primitive is lowered for devices at hand, as a callback is, JAX refuses a program
            # whose shardings have different axis names.
            if self._names_one_mesh:
                made = on_axes(made, self.run)
            if sharding.mesh != mesh:
                made = border_in_other_order(made, sharding, mesh, run=self.run, user=self.user)
            found.append(made)
        return tuple(found)

    @cached_property
    def _names_one_mesh(self) -> bool:
        """True if JAX requires all shardings of the program to name the same axes.

        It does so if the program contains a callback or a `custom_partitioning`. JAX lowers these
        primitives only for a mesh of existing devices (jax 0.10.2).
        """
        return any(node.primitive in FOR_DEVICES for node in self.graph.walk())

    @cached_property
    def donated(self) -> tuple[int, ...]:
        """The arguments of `donate` whose memory a result can have."""

        # XLA reuses a donated block only for a result of the same block shape and type.
        def block_type(border: ArrayBorder) -> tuple[tuple[int, ...], str]:
            return border.inner.shard_shape(border.padded_shape), border.dtype

        # How many results of each type have not got the memory of an argument yet.
        free = Counter(map(block_type, self.results))
        reused = []
        for number in self.donate:
            argument = self.arguments[number]
            if free[block_type(argument)] > 0 and not argument.is_empty:
                free[block_type(argument)] -= 1
                reused.append(number)
        return tuple(reused)

    @cached_property
    def stage(self) -> Any:
        """JAX's lowered (not yet compiled) program.

        Raises:
          LoweringError: the lowering of another package's primitive fails.
        """
        borders = self.arguments, self.results
        # The function that each device runs on its blocks, in JAX's operations. Arrays without
        # elements stay outside of `shard_map`, which cannot shard them.
        on_device = body(Emitter(self.program, self.graph, self.run, self.tiled))
        function = jax.shard_map(
            without_empty(on_device, *borders),
            mesh=self.run.mesh,
            in_specs=tuple(self.run.spec(b.sharding) for b in self.arguments if not b.is_empty),
            out_specs=[self.run.spec(b.sharding) for b in self.results if not b.is_empty],
            # Replication is proved by `verify`; JAX's own check refuses programs that it cannot
            # follow.
            check_vma=False,
        )
        jitted = jax.jit(
            with_empty(function, *borders),
            in_shardings=tuple(b.run for b in self.arguments),
            out_shardings=[b.run for b in self.results],
            donate_argnums=self.donated,
        )
        # The caller may have set another mesh, which JAX would use inside of this program.
        with jax.sharding.use_abstract_mesh(self.run.mesh.abstract_mesh):
            try:
                traced = jitted.trace(*(b.struct for b in self.arguments))
                return traced.lower(lowering_platforms=platforms(self.platform))
            except Exception as error:  # code of another package may raise anything
                foreign = self._foreign(error)
                if foreign is None:
                    raise
                raise foreign from None

    @property
    def tiled(self) -> bool:
        """True if collectives are emitted tiled: everywhere except on CPU."""
        return self._platform != "cpu"

    @property
    def _platform(self) -> str:
        return self.platform or self.run.mesh.devices.flat[0].platform

    def _foreign(self, error: Exception) -> LoweringError | None:
        """Return the message for a program whose primitives of other packages fail to lower.

        None if it has no such primitive, so that the error is not theirs.

        Args:
          error: the exception that JAX raised.
        """
        # A binding is (primitive, parameters). Another package's primitive is one whose body JAX
        # could not trace; `bodies` names its implementations.
        pairs = zip(self.graph.nodes, self.graph.bindings, strict=False)
        nodes = [node for node, bound in pairs if bound is not None and bodies(bound[0])]
        if not nodes:
            return None
        names = ", ".join(f"{n.primitive} at {n.source or 'an unknown line'}" for n in nodes)
        return LoweringError(
            f"{names}: a primitive of another package, which JAX could not open where it was "
            f"traced, and now does not lower on a device ({type(error).__name__}: {error}). Give "
            "it a body that JAX traces, or leave it out of the function."
        )

    @cached_property
    def compiled(self) -> Any:
        """JAX's compiled program: `memory_analysis()`, `as_text()`.

        Raises:
          LoweringError: XLA has no collective for an item type on these devices, for example for
            2-bit integers on CPU.
        """
        try:
            return self.stage.compile()
        except jax.errors.JaxRuntimeError as error:
            if not str(error).startswith("UNIMPLEMENTED"):
                raise
            raise LoweringError(
                f"XLA does not compile this for {self._platform} devices ({error}). Convert what "
                "is moved or combined to a wider type inside the function, and plan it again."
            ) from None

    def differences(self) -> DataFrame:
        """Return the instructions whose compiled collectives differ from the plan, with the reason.

        Columns: instruction; kind, mesh_axes and wire_bytes by the plan; the same as compiled;
        reason ("merged", "combined", "turned into another kind", "removed", "added", "sends other
        bytes"). Bytes are per device and execution. No rows: what is sent is what was planned.
        """
        from shardalg.lower.xla_dump.differences import differences

        return differences(self.program, self.compiled.as_text()).df

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the results on the user's mesh.

        JAX has no uneven arrays. A result whose planned sharding is uneven is therefore sharded
        only along the longest prefix of its axes that divides each dimension.

        Args:
          args, kwargs: the function's own arguments, with global arrays of numpy or JAX; padded
            ones too. What the function updates in them is updated as it would be by the framework.
        """
        return self.call.through(self._run, args, kwargs)

    def _run(self, *arrays: Any) -> Any:
        mesh = explicit_mesh(jax.tree.leaves(arrays))
        results = self.leave(call_executable(self.compiled, self._taken(*arrays)))
        return results_of_call(self.graph, on_explicit_axes(results, mesh))

    def padded(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; uneven results keep their padding and their full sharding.

        Such results can be passed to the next call without a change. The arguments and the pytree
        of the results are those of the planned function.
        """

        def run(*arrays: Any) -> Any:
            """Return the results for the arrays to which the user's arguments were reduced."""
            outputs = call_executable(self.compiled, self._taken(*arrays))
            pairs = zip(self.results, outputs, strict=True)
            return results_of_call(self.graph, [b.handed(x) for b, x in pairs])

        return self.call.through(run, args, kwargs)

    def strip(self, results: Any) -> Any:
        """Return the results of `padded` at their true sizes."""
        return results_of_call(self.graph, self.leave(jax.tree.leaves(without_float0(results))))

    def leave(self, outputs: Sequence[jax.Array]) -> list[jax.Array]:
        """Return the executable's results at their true sizes."""
        return [b.leave(x) for b, x in zip(self.results, outputs, strict=True)]

    def place(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the arguments padded and sharded as planned; calls with them move nothing.

        An array may be given by a function from the place of a block (a slice with start and stop
        per dimension, of the true shape) to its elements: it is asked for the blocks of this
        process's devices, so that no process holds a global array.

        Raises:
          LoweringError: the pytree, a shape, an item type or the devices are others than planned;
            a block is not that of its place.
        """
        leaves = self.call.inside(self._placed, args, kwargs)
        return tuple(leaves if self.graph.trees is None else self.graph.trees[0].unflatten(leaves))

    def entering(self, *args: Any, **kwargs: Any) -> list[jax.Array]:
        """Return the flattened result of `place`, as `compiled` takes it."""
        return self.call.inside(self._taken, args, kwargs)

    def _placed(self, *arrays: Any) -> list[jax.Array]:
        return place(self.graph, self.arguments, arrays)

    def _taken(self, *arrays: Any) -> list[jax.Array]:
        return [b.taken(x) for b, x in zip(self.arguments, self._placed(*arrays), strict=True)]

    def save_state(self, path: str | Path, state: Any, *, argument: int = 0) -> None:
        """Write a state that `padded` returned, to be loaded on this mesh or another one.

        Args:
          path: a new folder that every process can access.
          state: a result that has the pytree of an argument.
          argument: number of the function's argument that the state becomes when it is loaded.

        Raises:
          CheckpointError: the folder exists, `state` has not the argument's structure, or orbax
            (extra `checkpoint`) is not installed.
        """
        from shardalg.lower.running import checkpoint

        borders, tree = self._argument(argument)
        if jax.tree.structure(state) != tree:
            raise CheckpointError(
                f"the state has the structure\n  {jax.tree.structure(state)}\nbut argument "
                f"{argument} is\n  {tree}"
            )
        checkpoint.save(path, borders, state)

    def load_state(self, path: str | Path, *, argument: int = 0) -> Any:
        """Read the state of `save_state`, padded and sharded as an argument of this plan.

        Args:
          argument: number of the function's argument.

        Raises:
          CheckpointError: the checkpoint is not complete, a file is cut or missing, or it is the
            state of another model: an array's name, item type or true shape is not the plan's.
        """
        from shardalg.lower.running import checkpoint

        borders, tree = self._argument(argument)
        return checkpoint.load(path, borders, tree.unflatten(borders))

    def _argument(self, number: int) -> tuple[Sequence[ArrayBorder], Any]:
        """Return the shardings of the leaves of one argument, and the argument's pytree structure.

        LoweringError if the function has no argument with this number.
        """
        # A graph without pytrees takes plain arrays: each argument is one leaf.
        if self.graph.trees is None:
            return self.arguments[number : number + 1], jax.tree.structure(0)
        argument_trees = self.graph.trees[0].children()
        if not 0 <= number < len(argument_trees):
            raise LoweringError(f"no argument {number}: there are {len(argument_trees)}, from 0.")
        # `self.arguments` lists the leaves of all arguments, one argument after the other.
        first = sum(tree.num_leaves for tree in argument_trees[:number])
        tree = argument_trees[number]
        return self.arguments[first : first + tree.num_leaves], tree

    def jit(self) -> Twin:
        """Return the same function partitioned by XLA, with the same shardings at the same places.

        It is compared with this program: `jax.jit` gets the shardings of the arguments, the results
        and the annotations in the function.

        Raises:
          LoweringError: a value has another order of the devices than the mesh, and a program of
            JAX has one order.
        """
        borders = self.arguments, self.results
        mesh = self.program.mesh
        paths = [b.path for b in chain(*borders) if b.sharding.mesh != mesh]
        if paths:
            raise LoweringError(
                f"{', '.join(paths)} in another order of the devices than {mesh!r}: "
                "jax.jit takes one order per program. Compare a plan in which all lies on the mesh."
            )
        # JAX shards arrays without padding evenly only: an uneven dimension keeps the digits that
        # divide it.
        if self._names_one_mesh:
            arguments, results = (tuple(even_on(b, self.run) for b in side) for side in borders)
            borders = arguments, results
        return Twin(
            self.graph,
            *borders,
            self._twin_axes,
            self.sites,
            self.donated,
            self.platform,
            self.call,
        )

    @property
    def _twin_axes(self) -> Axes:
        """The axes of the mesh on which XLA partitions the same function.

        `run` has the axes of the program's own mesh, `user` those of the user's mesh.
        """
        # With a callback, for example, JAX requires all shardings to name the axes of one mesh.
        if self._names_one_mesh:
            return self.run
        # Annotations may shard along a part of an axis. The user's mesh has no axis for it, but the
        # mesh of the program has.
        digits = [d for s in self.sites.values() for dim in s.dims for d in dim]
        return self.user if on_whole_axes(self.program.mesh, digits) else self.run

    def measure(
        self,
        *args: Any,
        repeats: int = 20,
        isolate: bool = False,
        trace: bool = False,
        hardware: str | Hardware | Topology | None = None,
    ) -> Measurement:
        """Time this program, and the same function partitioned by XLA, in turns on `args`.

        Memory and results of the two are compared, too.

        CPU devices share the machine's cores, so that a time is that of all devices' work on them.

        Args:
          repeats: number of timed runs of each.
          isolate: whether each distinct collective and contraction is also run alone.
          trace: whether one more step runs under the profiler, for `timeline()`.
          hardware: the chip or topology for which times are predicted: a name, or "v3:8x8".

        Raises:
          HardwareError: an unknown chip. LoweringError: a trace has no events of the program.
        """
        from shardalg.costs.calibration.fit import rate_amounts, whole_step
        from shardalg.costs.topology import machine
        from shardalg.lower.breakdown import traced_step
        from shardalg.lower.isolated import each_alone

        chip = None if hardware is None else machine(hardware)
        made = measure(self, self.jit(), args, repeats=repeats, verified=self.verified)
        # Amounts are stored with the measurement, so that rates can be fitted later from its file.
        taken = rate_amounts(self.program, self.graph, finely=True)
        predicted_s = None
        if chip is not None:  # a sum without overlap, because `split` compares it with single runs
            prices = timed(self.program, self.graph, chip)
            predicted_s = sum(price.seconds * price.step.count for price in prices)
        return replace(
            made,
            mesh=repr(self.program.mesh),
            digest=sha256(str(self.program).encode()).hexdigest(),
            predicted_s=predicted_s,
            hardware="" if chip is None else chip.chip.name,
            devices=self.program.mesh.size,
            amounts=whole_step(taken),
            alone=each_alone(self, repeats, taken, chip) if isolate else (),
            events=traced_step(self, args) if trace else (),
            drawn=self.drawn,
        )

    def breakdown(
        self, *args: Any, hardware: str | Hardware | Topology, repeats: int = 10
    ) -> Breakdown:
        """Measure a step by instruction: each collective and contraction, predicted and measured.

        Args:
          hardware: the chip or topology for which times are predicted: a name, "v3:8x8", or the
            result of `measure_hardware`.
          repeats: number of timed steps, and of traced steps.

        Raises:
          LoweringError: the profiler's trace has no events of the program.
          HardwareError: an unknown chip.
        """
        from shardalg.costs.topology import machine
        from shardalg.lower.breakdown import breakdown

        return breakdown(self, args, machine(hardware), repeats)

    def __repr__(self) -> str:
        return (
            f"Lowered({len(self.arguments)} arguments, {len(self.results)} results, "
            f"{self.program.mesh!r} on {self._platform}, {self.verified})"
        )


def lower(
    program: SpmdProgram,
    graph: Graph,
    devices: Sequence[jax.Device] | None = None,
    *,
    donate: Sequence[int] = (),
    mesh: JaxMesh | AbstractMesh | None = None,
    sites: Mapping[int, Sharding] | None = None,
) -> Lowered:
    """Lower a program for devices; return an object that is called as the traced function.

    Args:
      graph: the graph that the program computes.
      devices: position `i` of the mesh is `devices[device_ids[i]]`; None: all of the backend.
      donate: numbers of the *flattened* arguments that a call may consume.
      mesh: the user's own JAX mesh, whose axes results are named on; None: made from `devices`. On
        an abstract one the program is lowered for a `Lowered.platform`, and does not run.
      sites: for each graph node that is an annotation, its sharding; only `Lowered.jit` needs them.

    Raises:
      LoweringError: the graph was loaded from a file and has no functions to run, `mesh` has other
        axes than the program's, or the program's digits do not nest.
      DeviceError: too few devices.
    """
    if not graph.bindings and graph.nodes:
        raise LoweringError(
            "this graph was loaded from a file and holds no JAX functions. Trace the function "
            "again and lower with its graph."
        )
    jax_mesh = program.mesh.to_jax(devices) if mesh is None else mesh
    if dict(jax_mesh.shape) != program.mesh.shape:
        raise LoweringError(
            f"the program was planned on {program.mesh!r}, the JAX mesh has {dict(jax_mesh.shape)}."
        )
    # An abstract mesh has no devices. A ragged all-to-all without digits stays on one device, and
    # runs everywhere.
    on_cpu = not isinstance(jax_mesh, AbstractMesh) and jax_mesh.devices.flat[0].platform == "cpu"
    exchanges = (i.attributes for i in instructions(program.block) if is_a(i, RaggedAllToAll))
    if on_cpu and any(exchange.digits for exchange in exchanges):
        lines = dict.fromkeys(n.source for n in graph.nodes_of(["ragged_all_to_all"]))
        raise LoweringError(
            f"ragged_all_to_all at {', '.join(lines) or 'an unknown line'} does not run on CPU "
            "devices: XLA has it for GPU and TPU only. Lower the plan for these devices, or "
            "simulate its partitions here, with shardalg.spmd.host.simulate.simulate(plan.program, "
            "plan.graph, *arrays)."
        )
    # The user's arrays have the axes of the user's mesh. The program may need parts of these axes,
    # so it runs on a mesh with the parts as axes.
    user = user_axes(program.mesh, jax_mesh)
    run = run_axes(program, jax_mesh)
    return Lowered(program, graph, user, run, tuple(donate), dict(sites or {}))
