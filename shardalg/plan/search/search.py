"""`sa.search`: the fastest shardings of a function over a family of meshes, with a lower bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardalg.algebra.mesh import Mesh
from shardalg.costs.calibration.constants import DATASHEET
from shardalg.costs.topology import Machine, Topology, arranged, machine
from shardalg.errors import ShardalgError, StrategyError
from shardalg.graph.ops.roles import check_roles
from shardalg.graph.serial import graph_hash
from shardalg.plan.comparing.compare import hardware_text
from shardalg.plan.plan import plan_of
from shardalg.plan.planning import traced_call
from shardalg.plan.search.bound_certificate import Certificate
from shardalg.plan.search.cost_table import CostTable
from shardalg.plan.search.family import Family, family
from shardalg.plan.search.layout_moves import PICOSECONDS
from shardalg.plan.search.memory_terms import memory_terms, with_memory_price
from shardalg.plan.search.minimising.message_passing import CAP
from shardalg.plan.search.minimising.minimum import Minimum, minimum
from shardalg.plan.search.search_answer import SearchAnswer, SearchedMesh
from shardalg.plan.search.winner import winner
from shardalg.plan.strategies.derive.argument_roles import next_values
from shardalg.planner.propagate.options import Options
from shardalg.planner.propagate.strategy import Strategy
from shardalg.planner.traced import Traced

MOST_PRICES = 8
"""Number of prices of memory that are tried to meet a budget."""
STEP, CLOSE = 8.0, 1.5
"""Ratio of two prices while none meets the budget or all do; and the ratio that ends the search."""

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
      progress: called with a line of text after each mesh; True prints it.

    Raises:
      StrategyError: the function has while loops, branches or manual regions; no mesh has this
        number of devices; or no plan was found that fits.
      HardwareError: unknown hardware. TraceError: jax cannot trace the function.

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
    rows: list[SearchedMesh] = []
    for mesh in meshes:
        place = arranged(on, mesh)
        # The plan prints the seconds of the chip for which it was searched.
        options = replace(options, hardware=hardware_text(on))
        try:
            row = _Searched(traced, mesh, place, options, limit).row()
        except ShardalgError as error:
            row = SearchedMesh(mesh, refused=" ".join(str(error).split()))
        rows.append(row)
        if callable(say):
            say(f"{len(rows)} of {len(meshes)}: {row!r}")
    return SearchAnswer.of(rows, limit)


def _limit(memory_bytes: Any, on: Machine) -> float:
    """Return the memory budget of a device in bytes: the user's, or the memory of the chip."""
    if memory_bytes is None:
        return float(on.chip.hbm_bytes)
    is_number = isinstance(memory_bytes, int | float) and not isinstance(memory_bytes, bool)
    if not (is_number and memory_bytes > 0):
        raise StrategyError(f"memory_bytes is {memory_bytes!r:.40}: give a number above 0, 80e9.")
    return float(memory_bytes)


def _num_devices(devices: int | None, on: Machine, over: Family) -> int:
    """Return the number of devices that the user gave, or that of the topology or a mesh."""
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


@dataclass
class _Searched:
    """The search on one mesh.

    Attributes:
      place: the chips under the mesh.
      memory_bytes: the largest peak memory of a device.
    """

    traced: Traced
    mesh: Mesh
    place: Machine
    options: Options
    memory_bytes: float
    table: CostTable = field(init=False)

    def __post_init__(self) -> None:
        graph = self.traced.graph
        tied = {
            graph.results[result]: graph.arguments[argument]
            for result, argument in next_values(graph).items()
        }
        self.table = CostTable.of(graph, self.mesh, self.place.on(DATASHEET), tied)

    def row(self) -> SearchedMesh:
        """Return the result of the search."""
        found = minimum(self.table.factors)
        graph = self.traced.graph
        text = f"{len(graph.nodes)} nodes, graph {graph_hash(graph)}, {self.mesh!r}, {self.place!r}"
        proof = Certificate(text, self.table.factors, found)
        row = replace(self._planned(found), certificate=proof)
        return row if row.fits else self._within(self.memory_bytes, row)

    def _planned(self, found: Minimum) -> SearchedMesh:
        """Return the row of a solution: its plan, with seconds and peak memory."""
        stages = winner(self.table, found.labels, self.traced, self.options)
        plan = plan_of(stages, self.options)
        # The table has the rates of the data sheet, and one instruction after the other.
        cost = plan.cost(self.place.on(DATASHEET), overlap="none")
        return SearchedMesh(
            self.mesh,
            plan=plan,
            step_s=float(cost.step_time_s),
            table_s=self.table.factors.total(found.labels) / PICOSECONDS,
            bound_s=found.bound_ps / PICOSECONDS,
            peak_bytes=float(plan.cost(self.place).peak_memory_bytes),
            limit_bytes=self.memory_bytes,
            limits=cost.limits.seconds,
        )

    def _within(self, budget: float, first: SearchedMesh) -> SearchedMesh:
        """Return the fastest plan that was found within a memory budget.

        A price per byte of the arguments is added to the costs (a Lagrange multiplier) and changed
        until plans just fit. At each price p, the least of `cost + p * bytes`, minus `p * budget`,
        is a lower bound of every plan that fits, because the arguments are part of its peak.

        Args:
          first: the row without a price of memory, which does not fit.
        """
        terms = memory_terms(self.table)
        best, bound = first, first.bound_s
        too_low, enough = 0.0, math.inf
        # At this price the memory of the first plan would cost as much as its step.
        price = first.table_s * PICOSECONDS / max(first.peak_bytes, 1.0)
        largest = max(float(sizes.max()) for sizes in terms.values())
        for _ in range(MOST_PRICES):
            # Beyond this price the costs of arguments would count as impossible.
            if price * largest > CAP / 100:
                break
            found = minimum(with_memory_price(self.table.factors, terms, price))
            row = self._planned(found)
            bound = max(bound, (found.bound_ps - price * budget) / PICOSECONDS)
            best = min(best, row, key=lambda one: one.preference)
            if row.fits:
                enough = price
            else:
                too_low = price
            if enough < CLOSE * too_low:
                break
            # Prices of interest differ by orders of magnitude, so that the next one is a multiple,
            # or the geometric mean of two.
            if enough == math.inf:
                price = too_low * STEP
            else:
                price = math.sqrt(too_low * enough) if too_low else enough / STEP
        # The bound within a budget has a price of memory, which certificates do not have.
        return replace(best, bound_s=bound, certificate=None)
