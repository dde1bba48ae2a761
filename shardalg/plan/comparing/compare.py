"""`sa.compare`: one trace of a function, planned and priced under many strategies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, NamedTuple

from shardalg.algebra.mesh import Mesh
from shardalg.costs.hardware import names
from shardalg.costs.topology import Machine, arranged, machine
from shardalg.errors import ShardalgError, StrategyError, TraceError
from shardalg.graph.ops.roles import check_roles
from shardalg.plan.comparing.compared import ComparedStrategy, StrategyComparison
from shardalg.plan.comparing.given import (
    Progress,
    check_devices,
    check_share,
    devices_of,
    machine_name,
    machines_of,
    mesh_text,
    meshes_of,
    reporter,
)
from shardalg.plan.comparing.jobs import (
    Executor,
    Failed,
    PlanInputs,
    check_executor,
    check_failures,
    reason,
    results,
)
from shardalg.plan.comparing.largest_batch import BatchSearch
from shardalg.plan.comparing.step_figures import StrategyFigures
from shardalg.plan.plan import Plan, plan_of
from shardalg.plan.planning import (
    one_strategy,
    planned_strategy,
    strategy_annotations,
    traced_call,
)
from shardalg.planner.propagate.options import Options
from shardalg.planner.propagate.strategy import Strategy
from shardalg.planner.traced import Traced

CURRENT = "current"
FIXED, LARGEST = "fixed", "largest"
"""Names of the batches of a comparison: the arguments' batch, or the largest one that fits."""


class _Entry(NamedTuple):
    """A strategy on a mesh and a machine that is still to be planned."""

    name: str
    strategy: Any
    mesh: Mesh
    machine: Machine


def compare(
    fn: Any,
    *args: Any,
    strategies: Mapping[str, Any] | None = None,
    hardware: Any = None,
    meshes: Sequence[Any] | Mapping[str, int] | None = None,
    roles: Any = None,
    options: Options | None = None,
    kwargs: Mapping[str, Any] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    samples: int | None = None,
    tokens: int | None = None,
    batch: str = FIXED,
    reserve: float = 0.0,
    executor: Executor | None = None,
    progress: Progress | bool | None = None,
) -> StrategyComparison:
    """Plan and price a function under several strategies, and rank them.

    The function is traced once. The fastest strategy that fits comes first, by seconds per sample
    if the samples of a step are known. Strategies that have no plan are rows with their reason. The
    batch is the same for all, unless `batch` asks otherwise. A jitted function, or one whose
    arguments have shardings, has a row `current`, which is planned with the policy "jit": its
    layouts are those of `jax.jit`.

    Args:
      fn: the function, or a mapping of names to plans: `sa.compare({"a": plan_a, "b": plan_b})`.
      args: its arguments, as of `sa.plan`.
      strategies: by name, each a `Strategy` or a recipe (`sa.recipes`).
      hardware: a chip, a topology such as "h100:64", or several of them; None: that of the options.
      meshes: axis sizes, a `Mesh`, or several of them, for recipes. None: every mesh of a recipe's
        axes with as many devices as the hardware has. A `Strategy` has a mesh of its own.
      roles, options, kwargs, donate_argnums: as of `sa.plan`. Without options, each strategy is
        planned for the chip that it is priced on.
      samples, tokens: samples and tokens of a step of all devices. None: the leading dimension of
        the data arguments, and the elements of the first data argument of 32-bit or 64-bit
        integers with two dimensions, if roles are known.
      batch: "fixed", the batch of the arguments for every strategy. "largest": each strategy has
        the largest batch of all devices at which it fits (`largest_batch`), so that strategies with
        less memory gain from it. The batch is the leading dimension of the data arguments.
      reserve: share of a device's memory that must stay free, 0 to 1.
      executor: plans in numbers are made by its workers, for example those of a
        `concurrent.futures.ProcessPoolExecutor`. Only `submit` and `result` are called. The
        function is traced here, and need not be known to the workers. Plans with named sizes are
        made here.
      progress: called after each strategy with its number, the number of all, and its name. True
        prints a line to stderr; None does so if stderr is a terminal.

    Raises:
      StrategyError: no strategies, something that is none, or a mesh, batch or reserve that is not
        valid. TableError: the largest batch is asked for, and the data arguments have no common
        leading dimension.
      HardwareError: unknown hardware. TraceError: jax cannot trace the function. RoleError: a role
        is unknown.

    >>> import jax, shardalg as sa
    >>> from jax.sharding import PartitionSpec as P
    >>> x, w = (jax.ShapeDtypeStruct(s, "bfloat16") for s in ((8192, 4096), (4096, 16384)))
    >>> mesh = sa.Mesh({"d": 8})
    >>> rows = {"batch": sa.Strategy(mesh, (P("d"), P())), "none": sa.Strategy(mesh, (P(), P()))}
    >>> found = sa.compare(lambda x, w: x @ w, x, w, strategies=rows, hardware="h100:8")
    >>> found.best.name, [row.name for row in found.rows]
    ('batch', ['batch', 'none'])
    """
    # Mistakes in the call are reported before the function is traced, which may take long.
    check_share(reserve)
    check_executor(executor)
    for what, count in (("samples", samples), ("tokens", tokens)):
        if count is not None and not (type(count) is int and count > 0):
            raise StrategyError(f"{what} is {count!r}: give a whole number from 1 on.")
    if batch not in (FIXED, LARGEST):
        raise StrategyError(f'batch is {batch!r:.40}: give "{FIXED}" or "{LARGEST}".')
    say = reporter(progress)
    counts = _Counts(samples, tokens, float(reserve))
    if isinstance(fn, Mapping):
        if strategies:
            raise StrategyError("compare() got plans and strategies: give one of both.")
        of_functions = {
            "args": args or None, "meshes": meshes, "roles": roles, "options": options,
            "kwargs": kwargs, "donate_argnums": donate_argnums, "executor": executor,
            "batch": None if batch == FIXED else batch,
        }  # fmt: skip
        unread = [name for name, value in of_functions.items() if value is not None]
        if unread:
            raise StrategyError(
                f"compare() got plans, and {', '.join(unread)} of a function: plans are made "
                "already. Leave these out, or give the function with its arguments and strategies=."
            )
        return _of_plans(fn, machines_of(hardware), counts)
    if not strategies or not isinstance(strategies, Mapping):
        raise StrategyError(
            f"strategies is {strategies!r:.60}: give a dict from names to strategies or recipes, "
            'as in {"fsdp": sa.recipes.fsdp("data")}.'
        )
    if not callable(fn):
        raise TraceError(f"{fn!r:.80} is no function: pass what is called with the arguments.")
    on = machines_of(hardware) or (machine((options or Options()).hardware),)
    _check_names(strategies)
    entries, refused = _entries(strategies, on, meshes_of(meshes))
    rows = [_refused(*each) for each in refused]
    given = (args, kwargs or {})
    has_own = False
    first = next((entry.mesh for entry in entries), None)
    if first is not None:
        # The trace has no shardings: one trace serves every strategy and mesh.
        made, _, base = traced_call(fn, given, roles, donate_argnums, Strategy(first), options)
        # A wrong role is a mistake in the call, not a reason to refuse each strategy.
        check_roles(made.graph, made.argument_roles)
        specs = (site.spec for site in made.graph.sites)
        own = (*made.own_shardings, *specs)
        has_own = hasattr(fn, "lower") or any(each is not None for each in own)
        planned = _EntryRows(made, (options, base), counts)
        rows += (
            planned.here(entries, say) if executor is None else planned.by(executor, entries, say)
        )
    if has_own:
        current = _current(fn, given, (roles, donate_argnums, options), on, counts)
        rows += [] if current is None else [current]
    if first is None:
        return StrategyComparison.of(rows)
    search = BatchSearch(fn, given, (roles, donate_argnums), made)
    if batch == LARGEST:
        rows = [search.at_largest(row) for row in rows]
    return replace(StrategyComparison.of(rows), batches=search)


@dataclass(frozen=True)
class _Counts:
    """Samples and tokens of a step that the user gave, and the share of memory that stays free."""

    samples: int | None
    tokens: int | None
    reserve: float

    def of(self, traced: Traced) -> dict[str, Any]:
        """Return the numbers of samples and tokens of a step, None if not known.

        The user's numbers have precedence over those of the arguments with role "data". The keys
        are the fields of `ComparedStrategy`, with the share of memory that stays free.
        """
        graph = traced.graph
        data = [
            graph.values[value].type
            for value, role in zip(graph.arguments, traced.argument_roles, strict=True)
            if role == "data" and graph.values[value].type.shape
        ]
        # Data arguments with different leading dimensions do not tell which one is the batch.
        leading = {type_.shape[0] for type_ in data}
        samples = int(leading.pop()) if len(leading) == 1 else None
        # Token ids are wide integers in rows; narrow ones are images or quantised values.
        ids = [t for t in data if t.dtype in ("int32", "int64", "uint32") and len(t.shape) == 2]
        tokens = int(math.prod(ids[0].shape)) if ids else None
        return {
            "samples": self.samples or samples,
            "tokens": self.tokens or tokens,
            "reserve": self.reserve,
        }


def _check_names(strategies: Mapping[str, Any]) -> None:
    """Check that every entry is a strategy or a recipe, under a name that is text.

    Raises:
      StrategyError: another name or value, or the name that the function's own annotations have.
    """
    for name, strategy in strategies.items():
        if not isinstance(name, str):
            raise StrategyError(f"strategies has the name {name!r:.40}: names are text.")
        if name == CURRENT:
            raise StrategyError(
                f"{CURRENT!r} is the name of the function's own annotations: take another name."
            )
        # A recipe makes a strategy for a function (`strategy_of`). The text "fsdp" is none.
        if not (isinstance(strategy, Strategy) or hasattr(strategy, "strategy_of")):
            near = get_close_matches(str(strategy), ("data", "fsdp", "tensor", "sequence"), 1)
            hint = f" Did you mean sa.recipes.{near[0]}(...)?" if near else ""
            raise StrategyError(
                f"strategy {name!r} is {strategy!r:.60}: give a Strategy, or a recipe such as "
                f'sa.recipes.fsdp("data").{hint}'
            )


def _entries(
    strategies: Mapping[str, Any], on: Sequence[Machine], meshes: Sequence[Mesh]
) -> tuple[list[_Entry], list[tuple[str, str, Machine, str]]]:
    """Return the combinations of strategy, mesh and machine to plan, and the refused strategies.

    A strategy without a mesh is refused: an entry is (name, "no mesh", machine, reason).

    Args:
      on: the machines.
      meshes: the user's meshes; empty if there are none.
    """
    entries, refused = [], []
    for name, strategy in strategies.items():
        for machine_ in on:
            if isinstance(strategy, Strategy):
                # The mesh of a strategy has precedence over meshes=.
                strategy_mesh = strategy.mesh
                strategy_mesh = (
                    strategy_mesh
                    if isinstance(strategy_mesh, Mesh | None)
                    else Mesh.from_jax(strategy_mesh)
                )
                planned_meshes: Sequence[Mesh] = (
                    meshes if strategy_mesh is None else (strategy_mesh,)
                )
                why = "the strategy has no mesh, and meshes= gives none"
            else:
                # A recipe names axes without sizes, so it is planned on every mesh that has them.
                # Without meshes=, these are all meshes with the machine's number of devices.
                axes = tuple(strategy.axes)
                fitting = [m for m in meshes if set(axes) <= set(m.axis_names)]
                planned_meshes = fitting or ([] if meshes else _splits(axes, devices_of(machine_)))
                why = (
                    f"no mesh of meshes= has the axes {', '.join(axes)}"
                    if meshes
                    else f"{machine_.chip.name} is a chip alone: name its number, "
                    f"hardware='{machine_.chip.name}:64', or give meshes="
                )
            if not planned_meshes:
                refused.append((name, "no mesh", machine_, why))
            entries += [_Entry(name, strategy, mesh, machine_) for mesh in planned_meshes]
    return entries, refused


def _splits(axes: tuple[str, ...], devices: int | None) -> list[Mesh]:
    """Return every mesh of these axes with this many devices, each axis larger than 1.

    >>> [dict(mesh.axes) for mesh in _splits(("a", "b"), 8)]
    [{'a': 4, 'b': 2}, {'a': 2, 'b': 4}]
    """
    if devices is None:
        return []

    def shapes(left: int, count: int) -> Iterator[tuple[int, ...]]:
        """Yield each way to write `left` as a product of `count` factors larger than 1."""
        # The last axis takes the remaining factor. An axis of size 1 would shard nothing, except on
        # a single device, where no other mesh exists.
        if count == 1:
            if left > 1 or devices == 1:
                yield (left,)
            return
        for size in range(left, 1, -1):
            if left % size == 0:
                yield from ((size, *rest) for rest in shapes(left // size, count - 1))

    return [Mesh(dict(zip(axes, shape, strict=True))) for shape in shapes(devices, len(axes))]


def _refused(name: str, mesh: str, on: Machine, why: str) -> ComparedStrategy:
    return ComparedStrategy(name, mesh, machine_name(on), None, None, why)


def hardware_text(on: Machine) -> str:
    """Return the text for `Options.hardware` that names a machine.

    If the user built the chip in Python, no name finds it, and the text names the default chip.
    """
    return machine_name(on) if on.chip.name in names() else Options().hardware


@dataclass(frozen=True)
class _EntryRows:
    """Rows of strategies of one traced function.

    Attributes:
      options: the options as the user gave them or None, and the options to plan with.
      counts: samples and tokens of a step.
    """

    traced: Traced
    options: tuple[Options | None, Options]
    counts: _Counts

    def here(self, entries: Sequence[_Entry], say: Progress | None) -> Iterator[ComparedStrategy]:
        """Yield a row per entry, planned and priced in this process.

        Args:
          say: called after each entry with its number, the number of all, and its name.
        """
        for number, entry in enumerate(entries, 1):
            # An entry without a plan gets a row with the reason, and does not end the comparison.
            try:
                strategy, inputs = self.inputs(entry)
                yield self.row(entry, strategy, inputs, inputs.strategy())
            except ShardalgError as error:
                yield self.refused(entry, reason(error))
            if say is not None:
                say(number, len(entries), entry.name)

    def by(
        self, executor: Executor, entries: Sequence[_Entry], say: Progress | None
    ) -> Iterator[ComparedStrategy]:
        """Yield a row per entry, planned and priced by the workers of an executor.

        Workers return numbers. So entries with named sizes, whose figures are formulas, are planned
        in this process. Rows are yielded after all workers have ended.

        Raises:
          StrategyError: every entry that was sent to the executor failed.
        """
        waiting: list[tuple[_Entry, Strategy, PlanInputs]] = []
        rows: list[ComparedStrategy] = []
        for entry in entries:
            try:
                strategy, inputs = self.inputs(entry)
                if inputs.is_named:
                    rows.append(self.row(entry, strategy, inputs, inputs.strategy()))
                else:
                    waiting.append((entry, strategy, inputs))
            except ShardalgError as error:
                rows.append(self.refused(entry, reason(error)))
        jobs = ((sent, sent[2].job("strategy")) for sent in waiting)
        failures = []
        # A worker returns figures, the reason why there is no plan, or its own failure (`Failed`).
        done = enumerate(results(executor, jobs), 1 + len(rows))
        for number, ((entry, strategy, inputs), found) in done:
            if isinstance(found, StrategyFigures):
                rows.append(self.row(entry, strategy, inputs, found))
            else:
                failures += [str(found)] if isinstance(found, Failed) else []
                rows.append(self.refused(entry, str(found)))
            if say is not None:
                say(number, len(entries), entry.name)
        check_failures(failures, len(waiting))
        yield from rows

    def inputs(self, entry: _Entry) -> tuple[Strategy, PlanInputs]:
        """Return the strategy of an entry, and the inputs of its plan.

        Raises:
          ShardalgError: the strategy does not fit the function, the mesh or the machine.
        """
        asked, base = self.options
        check_devices(entry.mesh, entry.machine)
        there = self.traced.on(entry.mesh, before=self.traced.first_mesh or entry.mesh)
        strategy = entry.strategy
        if isinstance(strategy, Strategy):
            strategy = replace(strategy, mesh=entry.mesh)
        else:
            strategy = strategy.strategy_of(there, entry.mesh)
        # The planner decides by the rates of a chip. It is the chip that the row is priced on,
        # unless the user gave options, which name the chip themselves.
        plan_options = (
            base if asked is not None else replace(base, hardware=hardware_text(entry.machine))
        )
        annotations = strategy_annotations(there, strategy)
        return strategy, PlanInputs(Plan, there, annotations, plan_options, entry.machine)

    def row(
        self, entry: _Entry, strategy: Strategy, inputs: PlanInputs, figures: StrategyFigures
    ) -> ComparedStrategy:
        """Return the row of an entry that has a plan."""
        counts = self.counts.of(inputs.traced)
        # The plan may not be made here, so that its links are asked of the mesh.
        plan, on = inputs.plan, entry.machine
        joined = arranged(on, entry.mesh)
        found = _row(entry.name, plan, (entry.mesh, joined), figures, on, counts)
        return replace(found, strategy=strategy)

    def refused(self, entry: _Entry, why: str) -> ComparedStrategy:
        """Return the row of an entry that has no plan."""
        return _refused(entry.name, mesh_text(entry.mesh), entry.machine, why)


def _row(
    name: str,
    plan: Plan,
    there: tuple[Mesh, Machine],
    figures: StrategyFigures,
    on: Machine,
    counts: Mapping[str, Any],
) -> ComparedStrategy:
    """Return the row of a plan with its figures on a machine.

    Args:
      there: the mesh, and the machine with the links that the price assumes.
      on: the machine that the user asked for.
    """
    texts = (mesh_text(there[0]), machine_name(there[1]))
    return ComparedStrategy(name, *texts, plan, figures, on=on, **counts)


def _priced(name: str, plan: Plan, on: Machine, counts: Mapping[str, Any]) -> ComparedStrategy:
    """Return the row of a plan on a machine.

    Raises:
      HardwareError: the mesh does not tile the machine, or has another number of devices.
    """
    check_devices(plan.mesh, on)
    figures = StrategyFigures.of(plan, on)
    return _row(name, plan, (plan.mesh, plan._stages.machine(on)), figures, on, counts)


def _of_plans(
    plans: Mapping[str, Any], on: Sequence[Machine], counts: _Counts
) -> StrategyComparison:
    """Return the comparison of plans that the user gives, each priced on every machine.

    Without a machine, each plan is priced on the chip of its own options.

    Raises:
      StrategyError: there are none, or a value is no plan.
    """
    wrong = [name for name, plan in plans.items() if not isinstance(plan, Plan)]
    if wrong or not plans:
        raise StrategyError(
            f"compare() got a dict whose entries {wrong!r} are not plans. Give plans, as in "
            '{"a": plan_a}, or a function with its arguments and strategies=.'
        )
    rows = []
    for name, plan in plans.items():
        for machine_ in on or (machine(plan.options.hardware),):
            # A machine may not fit the plan's mesh. The row then has the reason.
            try:
                rows.append(_priced(name, plan, machine_, counts.of(plan._traced)))
            except ShardalgError as error:
                why = " ".join(str(error).split())
                rows.append(_refused(name, mesh_text(plan.mesh), machine_, why))
    return StrategyComparison.of(rows)


def _current(
    fn: Any,
    given: tuple[tuple[Any, ...], Mapping[str, Any]],
    settings: tuple[Any, Any, Options | None],
    on: Sequence[Machine],
    counts: _Counts,
) -> ComparedStrategy | None:
    """Return the row of the user's own annotations under `jax.jit`; None if there are none.

    Args:
      given: the positional and the keyword arguments of `fn`.
      settings: roles, donated arguments and options, as of `sa.plan`.
    """
    roles, donated, options = settings
    own = replace(options or Options(hardware=hardware_text(on[0])), policy="jit")
    try:
        traced, strategy, own = traced_call(
            fn, given, roles, donated, one_strategy(None, None, None, None), own
        )
    except StrategyError:
        # Without a mesh of the function or of its arguments, there are no own annotations to
        # compare.
        return None
    try:
        plan = plan_of(*planned_strategy(traced, strategy, own))
        return _priced(CURRENT, plan, on[0], counts.of(traced))
    except ShardalgError as error:
        return _refused(CURRENT, mesh_text(strategy.mesh), on[0], " ".join(str(error).split()))
