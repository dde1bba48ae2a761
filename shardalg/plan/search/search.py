"""`sa.search`: the fastest shardings of a function over a family of meshes, with a lower bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shardalg.costs.topology import Machine, Topology, arranged, machine
from shardalg.errors import ShardalgError, StrategyError
from shardalg.graph.ops.roles import check_roles
from shardalg.plan.comparing.compare import hardware_text
from shardalg.plan.comparing.jobs import (
    Executor,
    Failed,
    check_executor,
    check_failures,
    reason,
    results,
)
from shardalg.plan.comparing.largest_batch import BatchSearch
from shardalg.plan.planning import traced_call
from shardalg.plan.search.family import Family, family
from shardalg.plan.search.mesh_search import MeshFigures, MeshSearch
from shardalg.plan.search.minimising.minimum import INTERRUPTED, Clock
from shardalg.plan.search.search_answer import SearchAnswer, SearchedMesh
from shardalg.plan.search.search_file import SearchFile
from shardalg.planner.propagate.options import Options
from shardalg.planner.propagate.strategy import Strategy
from shardalg.planner.traced import Traced
from shardalg.tables import seconds_text

Progress = Callable[[str], None]
"""Called with a line of text after each mesh."""


def search(
    fn: Any,
    *args: Any,
    hardware: Any,
    devices: int | None = None,
    memory_bytes: float | None = None,
    over: Family | None = None,
    roles: Any = None,
    options: Options | None = None,
    kwargs: Mapping[str, Any] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    seconds: float | None = None,
    executor: Executor | None = None,
    file: str | Path | None = None,
    progress: Progress | bool | None = None,
) -> SearchAnswer:
    """Return the fastest plan of a function over a family of meshes and layouts, and a lower bound.

    The function is traced once. Per mesh, the prices of all layouts form a table: operators, moves
    between layouts, memory traffic. Its minimum is found with a proof that no solution is cheaper,
    and is planned. Seconds are those of `plan.cost` at the rates of the data sheet, without
    overlap. A new argument (`params` of a training step) has the layout of the old one.

    Args:
      fn, args, kwargs: the function and its arguments, as of `sa.plan`. Its sizes are numbers.
      hardware: a chip such as "h100", or a topology such as "h100:64".
      devices: number of devices; None for that of the topology or of the family's meshes.
      memory_bytes: the largest peak memory of a device; None for the memory of the chip, and
        `math.inf` without a limit. If the fastest plan does not fit, the price of a byte is raised
        until one does.
      over: the family, by default every mesh of at most two axes (`sa.family`).
      roles, options, donate_argnums: as of `sa.plan`.
      seconds: the time of the search; None without a limit. At its end, and at an interruption
        (Ctrl-C), the answer is the best plan so far with its bound. The table of the first mesh is
        made in any case.
      executor: meshes are searched by its workers, for example those of a
        `concurrent.futures.ProcessPoolExecutor`; only `submit` and `result` are called. Each worker
        has all `seconds`.
      file: a file with the figures of finished meshes. The same search takes them from there.
      progress: called with a line of text after each mesh, with the bound so far; True prints it.

    Raises:
      StrategyError: the function has while loops, branches or manual regions; no mesh has this
        number of devices; or no plan was found that fits.
      HardwareError: unknown hardware. TraceError: jax cannot trace the function. PlanFileError:
        the file is no file of a search.

    >>> import jax, shardalg as sa
    >>> x, w = (jax.ShapeDtypeStruct(s, "bfloat16") for s in ((8192, 1024), (1024, 1024)))
    >>> found = sa.search(lambda x, w: jax.nn.relu(x @ w), x, w, hardware="h100:8")
    >>> found.best.mesh, found.best.collectives().empty
    (Mesh(a=8), True)
    >>> found.gap < 0.01
    True
    """
    on = machine(hardware)
    over = family() if over is None else over
    if not isinstance(over, Family):
        raise StrategyError(f"over is {over!r:.60}: give a family, as in sa.family(axes=2).")
    limit = _limit(memory_bytes, on)
    check_executor(executor)
    is_time = isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0
    if seconds is not None and not is_time:
        raise StrategyError(f"seconds is {seconds!r:.40}: give a number above 0, or None.")
    say = print if progress is True else progress
    number = _num_devices(devices, on, over)
    meshes = over.of(number)
    others = [mesh for mesh in meshes if mesh.size != number]
    if others or not meshes:
        raise StrategyError(
            f"meshes of the family do not have {number} devices: "
            f"{', '.join(map(repr, others)) or 'it is empty'}."
        )
    given = (args, kwargs or {})
    traced, _, options = traced_call(fn, given, roles, donate_argnums, Strategy(meshes[0]), options)
    # A wrong role is a mistake in the call, not a reason to refuse each mesh.
    check_roles(traced.graph, traced.argument_roles)
    _refuse_regions(traced)
    # The plans print the seconds of the chip for which they were searched.
    options = replace(options, hardware=hardware_text(on))
    searches = [
        MeshSearch(traced, mesh, arranged(on, mesh), options, limit, over.wishes) for mesh in meshes
    ]
    run = _Run(searches, seconds, say if callable(say) else None, SearchFile.opened(file))
    try:
        if executor is None:
            run.here()
        else:
            run.elsewhere(executor)
    except KeyboardInterrupt:
        # The meshes that are finished are the answer; without one there is none.
        if not any(row.has_figures for row in run.rows):
            raise
    answer = SearchAnswer.of(run.rows, limit, meshes[len(run.rows) :])
    batches = BatchSearch(fn, given, (roles, donate_argnums), traced)
    return replace(answer, batches=batches)


@dataclass
class _Run:
    """The searches on all meshes while they run.

    Attributes:
      seconds: the time of all searches; None without a limit.
      say: called with a line of text after each mesh.
      file: the figures of earlier searches.
      rows: the results so far, in the order of the meshes.
    """

    searches: list[MeshSearch]
    seconds: float | None
    say: Callable[[str], None] | None
    file: SearchFile
    rows: list[SearchedMesh] = field(default_factory=list)

    def here(self) -> None:
        """Search the meshes one after the other; each has an equal share of the time that is left.

        The first mesh is searched in any case, so that there is an answer.
        """
        clock = Clock.of(self.seconds)
        best: SearchedMesh | None = None
        for number, search in enumerate(self.searches):
            if number and clock.left_s <= 0:
                break
            key = self.file.key(search)
            if (known := self.file.entries.get(key)) is not None:
                self._add(SearchedMesh(search.mesh, search, known))
                continue
            share = None if self.seconds is None else clock.left_s / (len(self.searches) - number)
            try:
                figures, plan = search.run(Clock.of(share))
            except ShardalgError as error:
                self._add(SearchedMesh(search.mesh, search, refused=reason(error)))
                continue
            row = SearchedMesh(search.mesh, search, figures, made=plan)
            self.file.add(key, figures)
            # Only the best table stays in memory: others are made again if they are asked for.
            if best is None or row.preference < best.preference:
                worse, best = best, row
            else:
                worse = row
            if worse is not None and worse.search is not None:
                worse.search.forget()
            self._add(row)
            if figures.stopped == INTERRUPTED:
                break

    def elsewhere(self, executor: Executor) -> None:
        """Search the meshes by the workers of an executor.

        Raises:
          StrategyError: the executor failed for all meshes.
        """
        keys = [self.file.key(search) for search in self.searches]
        missing = [n for n, key in enumerate(keys) if key not in self.file.entries]
        jobs = ((n, self.searches[n].job(self.seconds)) for n in missing)
        found, failures = results(executor, jobs), []
        for number, (search, key) in enumerate(zip(self.searches, keys, strict=True)):
            result = self.file.entries.get(key) if number not in missing else next(found)[1]
            if isinstance(result, MeshFigures):
                self.file.add(key, result)
                self._add(SearchedMesh(search.mesh, search, result))
            else:
                failures += [str(result)] if isinstance(result, Failed) else []
                self._add(SearchedMesh(search.mesh, search, refused=str(result)))
        check_failures(failures, len(missing))

    def _add(self, row: SearchedMesh) -> None:
        """Add the result of a mesh, and report it with the bound of all meshes so far."""
        self.rows.append(row)
        if self.say is not None:
            done = [one for one in self.rows if one.has_figures]
            bound = min((one.bound_s for one in done), default=0.0)
            told = f"; no layouts so far take less than {seconds_text(bound)}" if done else ""
            self.say(f"{len(self.rows)} of {len(self.searches)}: {row!r}{told}")


def _limit(memory_bytes: Any, on: Machine) -> float:
    """Return the memory budget of a device in bytes: the user's, or the memory of the chip."""
    if memory_bytes is None:
        return float(on.chip.hbm_bytes)
    is_number = isinstance(memory_bytes, int | float) and not isinstance(memory_bytes, bool)
    if not (is_number and memory_bytes > 0):
        raise StrategyError(f"memory_bytes is {memory_bytes!r:.40}: give a number above 0, 80e9.")
    return float(memory_bytes)


def _num_devices(devices: int | None, on: Machine, over: Family) -> int:
    """Return the number of devices: the user's, or the size of the topology or of a mesh."""
    if devices is None:
        devices = on.devices if isinstance(on, Topology) else None
        sizes = {mesh.size for mesh in over.meshes}
        if devices is None and len(sizes) == 1:
            devices = sizes.pop()
    if type(devices) is not int or devices < 2:
        raise StrategyError(
            f"devices is {devices!r}: give a whole number from 2 on, or a topology such as "
            "hardware='h100:64'."
        )
    if isinstance(on, Topology) and on.devices != devices:
        raise StrategyError(
            f"devices is {devices}, and {on!r} has {on.devices}: no mesh of {devices} devices "
            f"uses all of them. Give a topology of {devices} devices, or the chip alone, as in "
            "hardware='h100'."
        )
    return devices


def _refuse_regions(traced: Traced) -> None:
    """Raise an error if the function has while loops, branches or manual regions.

    Raises:
      StrategyError: it does; the error names them, and what to do.
    """
    calls = [n for n in traced.graph.walk() if n.bodies and n.primitive != "scan"]
    if calls:
        names = ", ".join(sorted({node.primitive for node in calls}))
        raise StrategyError(
            f"the function has {len(calls)} regions ({names}), and search decides the layouts of "
            "functions without while loops, branches and shard_map only. Write loops over layers "
            "as jax.lax.scan, or compare strategies with sa.compare."
        )
    if traced.symbols is not None:
        raise StrategyError("sizes have names: search decides at numbers, so give hints as sizes.")
