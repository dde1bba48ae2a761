"""The Plan: one JAX function on one mesh under one strategy, and all that can be asked of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.algebra.mesh import Mesh
from shardalg.costs.topology import OF_OPTIONS, chip_text, machine
from shardalg.errors import PlanFileError, ShardalgError, StrategyError
from shardalg.graph.user_frames import passed_on
from shardalg.io.units import bytes_text, counted
from shardalg.plan.ask_overview import OverviewAnswers
from shardalg.planning.calls.meshes import placed
from shardalg.planning.calls.user_call import opened
from shardalg.planning.restated import restated
from shardalg.planning.stages import Stages, planned, planned_at
from shardalg.planning.traced import Traced, trace_call, with_own
from shardalg.planning.trips import while_loops
from shardalg.propagate.options import Options, options_from
from shardalg.propagate.strategy import Annotations, Strategy, resolve, strategy_from

if TYPE_CHECKING:
    from shardalg.explain.difference import PlanDifference
    from shardalg.planning.plan_file import PlanFile


@dataclass(frozen=True, eq=False, repr=False)
class Plan(OverviewAnswers):
    """A planned function: completed shardings, the program that every device runs, and its tables.

    Made by `plan` and `load_plan`; `replan` makes another one from the same trace. A plan with
    named sizes is made at their hints, and shardings, program, `verify`, `simulate` and `lower` are
    those of the hints; `at` makes the plan at other sizes. What it answers stands in this room by
    question: `ask_overview`, `ask_shardings`, `ask_collectives`, `ask_cost`, `ask_why`,
    `ask_sizes`, `ask_sweep`, `ask_verify`, `ask_run`; here is what makes and compares plans. Tables
    are methods, values properties.

    Attributes:
      options: how the plan was made.
      changes: of a plan made by `at`, the decisions that differ from those at the hints.
    """

    def replan(
        self, strategy: Strategy | None = None, *, mesh: Any = None, options: Options | None = None
    ) -> Plan:
        """The same trace under another strategy, or on another mesh under the same one.

        The function is traced again where an axis along which it is manual has another size there.

        Args:
          mesh: alone; every layout keeps the names of its axes.

        Raises:
          StrategyError: a strategy and a mesh, a layout that the mesh does not have, or a loaded
            plan whose function is to be traced again.

        >>> import jax, shardalg as sa
        >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
        >>> from jax.sharding import PartitionSpec as P
        >>> first = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"x": 4}), in_shardings=(P("x"),))
        >>> first.collectives()["kind"].tolist()
        ['all_reduce']
        >>> first.replan(sa.Strategy(first.mesh, in_shardings=(P(None, "x"),))).collectives().empty
        True
        """
        options = options_from(options or self.options)
        if strategy is not None:
            if mesh is not None:
                raise StrategyError(
                    "replan() takes a strategy, which has a mesh, or a mesh: give one of both."
                )
            strategy = strategy_from(strategy)
            traced = self._traced.on(strategy.mesh, before=self.mesh)
            return _planned(traced, strategy, options)
        if mesh is None:
            return from_annotations(self._traced, self._annotations, options)
        there = mesh if isinstance(mesh, Mesh) else Mesh.from_jax(mesh)
        traced = self._traced.on(there, before=self.mesh)
        asked = restated((self.graph, traced.graph), self._annotations, there, traced.first_mesh)
        return from_annotations(traced, asked, options)

    def at(self, **sizes: int) -> Plan:
        """The same plan in numbers, where these names have these sizes; others have their hints.

        Everything that planning asked of the sizes is checked there, which takes a millisecond
        (after the first time, when all of it is found out). If it holds, no decision is another
        one: `changes` is empty, the formulas hold, and the function is traced and planned there
        when something but the cost is asked of the plan that comes back. Else that is done at once,
        and `changes` lists the decisions that are others than at the hints, and the prices of
        which the formula gives another number than the plan there.

        Raises:
          SymbolError: a name that the plan does not have, a size below 1, a function that is
            another program there (found when it is traced). StrategyError: `strict`, and a decision
            changed; a loaded plan whose function is to be traced again, on other manual axes.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> B, M = sa.dims("B M", hint=(64, 16))
        >>> x = jax.ShapeDtypeStruct((B, M), "float32")
        >>> mesh = sa.Mesh({"X": 4}, symbolic=True)
        >>> plan = sa.plan(lambda x: x.sum(0), x, mesh=mesh, in_shardings=(P("X"),))
        >>> plan.at(B=32, X=2)
        Plan on Mesh(X=2) for 2 x tpu_v3 (the default chip; devices of the mesh), ...
        """
        from shardalg.symbolic.symbols import point_of

        point = point_of(self.sizes, sizes)
        if self._guarded(point):
            return Plan(self.options, lambda: planned_at(self._stages, point, self.options)[0])
        here = self._planned_at(point)
        found = here.changes
        decided = [row for row in found if row["kind"] not in ("peak", "formula")]
        if self.options.strict and decided:
            raise StrategyError(
                f"strict=True, and {len(decided)} decisions at {point} are others than at the "
                f"hints:\n{found}\nPlan at these sizes, or allow it."
            )
        return here

    def _planned_at(self, point: Mapping[str, int]) -> Plan:
        """Return the plan there, with its changes; of the last point it is kept."""
        key = tuple(point.items())
        if key not in self._last_made:
            self._last_made.clear()
            self._last_made[key] = self._made_at(point)
        return self._last_made[key]

    @cached_property
    def _last_made(self) -> dict[tuple[tuple[str, int], ...], Plan]:
        """The plan at the last point, for `holds` and `at` ask one after the other."""
        return {}

    def _made_at(self, point: Mapping[str, int]) -> Plan:
        stages, constant = planned_at(self._stages, point, self.options)
        here = _checked(stages, self.options)
        both = self._stages, stages
        from shardalg.explain import decisions

        found = decisions.changes(*both, self._named, point=point, constant=constant)
        return replace(here, changes=found)

    def holds(self, **sizes: int) -> bool:
        """Return whether no decision changes where these names have these sizes.

        Where it is True, bytes, operations, the peak of memory and seconds by formula equal those
        of a plan made there. Everything that planning asked of the sizes is checked first, which
        takes a millisecond. If an answer differs, the question may not matter: the function is
        planned there, once for each point, and both plans are compared.

        True rests on the formulas of the sizes if the function makes no size in Python
        (`constants`): Python code may still decide on a size that two traces do not show.

        Raises:
          SymbolError: a name that the plan does not have, a size below 1.
        """
        from shardalg.symbolic.symbols import point_of

        point = point_of(self.sizes, sizes)
        if self._guarded(point):
            return True
        key = tuple(point.items())
        if key not in self._compared:
            self._compared[key] = self._is_same_at(point)
        return self._compared[key]

    @cached_property
    def _compared(self) -> dict[tuple[tuple[str, int], ...], bool]:
        """The points at which a plan was made and compared."""
        return {}

    def _is_same_at(self, point: Mapping[str, int]) -> bool:
        """Return whether a plan made at the point decides and costs the same as the formulas say.

        The place of the peak is no decision: it may change if its bytes do not.
        """
        from shardalg.planning.same_formulas import formulas_hold

        if not self.is_symbolic:
            return False
        try:
            here = self._planned_at(point)
        except ShardalgError:
            # The function is another program there, or a loaded plan has no function to trace.
            return False
        if any(row["kind"] != "peak" for row in here.changes):
            return False
        named = self._named
        if named is None:
            return False
        chip = machine(self.options.hardware)
        return formulas_hold(named, (self._cost(chip), here._cost(chip)), here.program, point)

    def diff(self, other: Plan) -> PlanDifference:
        """Values, collectives, bytes and memory in which another plan differs.

        Raises:
          StrategyError: `other` is no plan.
        """
        from shardalg.explain.difference import difference

        if not isinstance(other, Plan):
            raise StrategyError(f"a plan differs from another Plan, got {other!r:.80}.")
        return difference(self._stages, other._stages)

    def __reduce__(self) -> tuple[Callable[[bytes], Plan], tuple[bytes]]:
        """Pickled, a plan is its file: it comes back as `load_plan` gives it."""
        return _from_bytes, (self._file.text.encode(),)

    def __deepcopy__(self, memo: object = None) -> Plan:
        """A plan never changes: its copy is itself."""
        return self

    __copy__ = __deepcopy__

    def __repr__(self) -> str:
        from shardalg.report import tables

        table = tables.collectives(self.program, self.graph)
        moved = sum(row["wire_bytes_per_step"] for row in table)
        hints = self._hints(n for n in self.sizes if n not in self.mesh.axis_names)
        notes = [f"at the hints {hints}"] if hints else []
        # Prices differ because decisions do: such rows are counted where no decision is.
        decided = [row for row in self.changes if row["kind"] not in ("peak", "formula")]
        if decided:
            notes += [f"{counted(len(decided), 'decision')} changed"]
        elif len(self.changes):
            notes += [f"{counted(len(self.changes), 'formula')} changed"]
        unknown = [loop for loop in while_loops(self.graph) if loop.iterations is None]
        notes += [f"one iteration of {loop.text} ({loop.name})" for loop in unknown]
        sizes = ((len(self.graph.nodes), "node"), (len(table), "collective"))
        counts = ", ".join(counted(n, what) for n, what in sizes)
        whose = self.options.followed
        chip = chip_text(self.options.hardware, self.mesh.size, OF_OPTIONS)
        return (
            f"Plan on {self.mesh!r} for {chip}, layouts {whose}: {counts}, "
            f"{bytes_text(moved)} sent per device and step, "
            f"{', '.join([self._verified(), *notes])}"
        )


def plan(
    fn: Callable[..., Any],
    *args: Any,
    mesh: Any = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    roles: Any = None,
    donate_argnums: int | Sequence[int] | None = None,
    options: Options | None = None,
    strategy: Strategy | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **unknown: Any,
) -> Plan:
    """Plan a JAX function on a mesh: complete its shardings and make every collective explicit.

    Args:
      fn: any function that jax can trace. One jitted by `jax.jit` brings its shardings, what it
        donates and its static arguments; of `eqx.filter_jit` and `nnx.jit`, and where modules of
        nnx are arguments, state goes in and comes out as the framework splits it. Or the trace that
        `jax.jit(f).trace(...)` gives, without arguments.
      args: arrays or `jax.ShapeDtypeStruct`s, any pytree. Only shapes and types are used; an
        argument that carries a `NamedSharding` keeps it where `in_shardings` says nothing.
      mesh: devices and axes, a mesh of JAX too. None takes that of the arguments' own shardings and
        of the function's, else the one that `jax.set_mesh` has set.
      in_shardings: as in `jax.jit`, a prefix of the tuple of arguments: PartitionSpec, Sharding,
        NamedSharding, text of any notation, or None to let completion decide. Static arguments do
        not count; the dict of keyword arguments may come last.
      out_shardings: the same for the result.
      roles: a prefix of "parameters", "optimizer_state" and "data", or a dict of them by paths of
        arguments, `{"state.params": "parameters"}`. None: as the trees say them, where one holds a
        TrainState, a state of optax or modules of nnx.
      donate_argnums: positional arguments whose memory the step may reuse.
      options: the policy, the chip by whose rates it weighs (a TPU v3, whatever chip `cost` is
        asked of later), and switches.
      strategy: mesh, shardings and sites in one value, in place of the three above.
      kwargs: keyword arguments of the function.

    Raises:
      TraceError: jax cannot trace the function. StrategyError: a specification does not fit.

    >>> import jax, shardalg as sa
    >>> from jax.sharding import PartitionSpec as P
    >>> x, w = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((64, 16), (16, 64)))
    >>> specs = (P("X", "Y"), P("X", "Y"))
    >>> p = sa.plan(lambda x, w: x @ w, x, w, mesh=sa.Mesh({"X": 2, "Y": 4}), in_shardings=specs)
    >>> p.collectives()[["kind", "mesh_axes", "wire_bytes"]].values.tolist()
    [['all_gather', 'Y', 1536], ['all_gather', 'X', 512]]
    """
    if unknown:
        raise StrategyError(_unknown(unknown))
    if strategy is None:
        # None until the arguments are read: then it is the mesh that they bring.
        strategy = Strategy(mesh, in_shardings, out_shardings)
    elif not (mesh is None and in_shardings is None and out_shardings is None):
        raise StrategyError(
            "plan() takes a strategy, or mesh and shardings, not both: put them into the Strategy."
        )
    strategy, options = strategy_from(strategy), options_from(options or Options())
    try:
        return _traced_and_planned(
            fn, (args, kwargs or {}), roles, donate_argnums, strategy, options
        )
    except ShardalgError:
        raise
    except Exception as error:
        raise passed_on(fn, error)  # noqa: B904  # the same exception, with the user's frames


def _traced_and_planned(
    fn: Callable[..., Any],
    given: tuple[tuple[Any, ...], Mapping[str, Any]],
    roles: Any,
    donate_argnums: Any,
    strategy: Strategy,
    options: Options,
) -> Plan:
    """Open the call with its arguments, trace it, and plan it."""
    call = opened(fn, *given)
    given = call.given or given
    if donate_argnums is not None:
        call = replace(call, donated=call.donates(donate_argnums))
    strategy, explicit = placed(call, strategy, given)
    traced = trace_call(call, strategy.mesh.shape, given=given, roles=roles, explicit=explicit)
    if roles is None and any(traced.argument_roles) and options.keep_gathers is None:
        # What the trees say names bytes; what stays for the backward pass is the user's to say.
        options = replace(options, keep_gathers=True)
    return _planned(replace(traced, first_mesh=strategy.mesh), strategy, options)


def _unknown(given: Mapping[str, Any]) -> str:
    """What to do about keywords that `plan` does not have."""
    known = [name for name in signature(plan).parameters if name not in ("fn", "args", "unknown")]
    near = [(name, get_close_matches(name, known, 1)) for name in given]
    said = [f"{name}={given[name]!r:.40}" + (f" (near {n[0]})" if n else "") for name, n in near]
    return (
        f"plan() has no keyword {', '.join(said)}: its keywords are {', '.join(known)}. Keyword "
        "arguments of the function are given as kwargs={'name': value}."
    )


def _planned(traced: Traced, strategy: Strategy, options: Options) -> Plan:
    flat = traced.with_layouts(strategy)
    annotations = with_own(resolve(traced.graph, flat, traced.first_mesh), traced)
    return from_annotations(traced, annotations, options)


def from_annotations(traced: Traced, annotations: Annotations, options: Options) -> Plan:
    """Complete, partition and check: the one way in which a Plan comes about."""
    return _checked(planned(traced, annotations, options), options)


def _checked(stages: Stages, options: Options) -> Plan:
    from shardalg.explain.warnings import roundabout

    made = Plan(options.where(named=stages.is_named), lambda: stages)
    fallbacks = roundabout.warnings(made.program, made.graph) if options.strict else ()
    if len(fallbacks):
        raise StrategyError(
            f"strict=True, and operators fall back:\n{fallbacks}\nAdd a row, or allow them."
        )
    return made


def load_plan(path: str | Path) -> Plan:
    """Read a plan that `Plan.save` wrote, and plan again: it prints, costs and verifies.

    `lower` then needs the function again, and checks that its graph is the planned one. No text of
    the file is evaluated: every value is checked by its type, every operator by JAX's own rules.

    The plan made here is compared with the summary in the file. If another version of shardalg or
    jax, another partitioner (policy "jit") or other figures of the chip made the file, a
    difference is a warning, which `plan.warnings()` repeats; the plan is then the one made here. A
    file of the same version that gives another plan was edited.

    Raises:
      PlanFileError: no such file, cut short, edited, or of another schema.
    """
    from shardalg.planning import plan_file

    return _loaded(plan_file.read(path), path)


def _from_bytes(content: bytes) -> Plan:
    """The plan of a file's content."""
    from shardalg.planning import plan_file

    return _loaded(plan_file.parsed(content.decode(), "a pickled plan"), "a pickled plan")


def _loaded(saved: PlanFile, path: object) -> Plan:
    """Plan again, and compare; `path` names the file in errors and warnings."""
    from shardalg.explain.plan_summary import read_summary, since_saved
    from shardalg.planning import plan_file

    try:
        loaded = from_annotations(*plan_file.read_inputs(saved))
        told = None if saved.summary is None else read_summary(saved.summary)
    except Exception as error:  # a stage takes for granted what tracing guarantees
        raise PlanFileError(
            f"{path}: its content is no plan ({type(error).__name__}: {error}). Save it again."
        ) from (None if isinstance(error, ShardalgError) else error)
    here = plan_file.versions(loaded.options)
    found = since_saved(saved, told, loaded._stages, here)
    if found and saved.versions == here:
        raise PlanFileError(
            f"{path} was edited, or saved by other code of this version: its inputs give another "
            f"plan than its summary says: {'; '.join(found)}. Plan the function again."
        )
    if found:
        warnings.warn(f"{path}: {'; '.join(found)}. Save the plan again.", stacklevel=3)
    return replace(loaded, _since_saved=found)
