"""Prices of one strategy at each point of a grid of named sizes, mesh axes and device counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardalg.costs.topology import Topology, with_devices_of
from shardalg.errors import ShardalgError
from shardalg.plan.pricing import cost_at
from shardalg.sizes.formula import Formula

if TYPE_CHECKING:
    from shardalg.algebra.mesh import Mesh
    from shardalg.costs.cost import Cost
    from shardalg.costs.topology import Machine
    from shardalg.plan.comparing.compared import ComparedStrategy
    from shardalg.plan.plan import Plan


@dataclass(eq=False)
class GridPrices:
    """Seconds, memory and limit of a strategy at each point of a grid, filled part by part.

    Attributes:
      step_s: seconds of a step; infinite where the function has no plan.
      fits: whether the step fits in a device's memory.
      computes: whether computation takes at least as long as communication.
      formula_holds: whether a formula gives these prices. Elsewhere a plan was made at the point.
      part: number in `costs` of the formula of each point; -1 where there is none.
      costs: costs in formulas: one, or on a topology one for each mesh.
      refused: (point, reason) of each point without a plan.
    """

    step_s: np.ndarray
    fits: np.ndarray
    computes: np.ndarray
    formula_holds: np.ndarray
    part: np.ndarray
    costs: list[Cost]
    refused: list[tuple[dict[str, int], str]]

    @staticmethod
    def empty(shape: tuple[int, ...]) -> GridPrices:
        """Return prices of a grid at which no point has a plan yet."""
        fits, computes, holds = (np.zeros(shape, bool) for _ in range(3))
        never = np.full(shape, np.inf)
        return GridPrices(never, fits, computes, holds, np.full(shape, -1), [], [])

    def put(self, place: Any, cost: Cost, capacity_bytes: float) -> None:
        """Store the prices of a cost in numbers at one place, or at several."""
        at = cost.at_hints
        self.step_s[place] = float(at.step_time_s)
        self.fits[place] = float(at.peak_memory_bytes) <= capacity_bytes
        self.computes[place] = float(at.compute_s) >= float(at.communication_s)


def grid_prices(
    row: ComparedStrategy, grids: Mapping[str, np.ndarray], overlap: str | None
) -> GridPrices:
    """Return the prices of a strategy at each point of a grid.

    On a chip, formulas of all sizes are evaluated. On a topology, each mesh is a part of its own,
    because the placement of axes on links is no formula of their sizes: the topology is arranged
    for the number of devices there, and formulas have the remaining sizes.

    Args:
      row: the strategy with its plan, and the machine that the user asked for.
      grids: an array of the grid's shape for each named size.
      overlap: as of `plan.cost`.
    """
    plan = row.plan
    assert plan is not None, "refused strategies have no regions"
    arrays = {name: values for name, values in grids.items() if name in plan.sizes}
    found = GridPrices.empty(next(iter(grids.values())).shape)
    # The mesh is the same at all points unless sizes of its axes vary.
    axes = [name for name in plan.mesh.axis_names if name in arrays]
    if not (isinstance(row.on, Topology) and axes):
        _fill(found, row, (plan, row.on), (arrays, np.ones(found.fits.shape, bool)), overlap)
        return found
    for point, places in _groups({name: arrays[name] for name in axes}):
        try:
            there = _on_mesh(plan, row.on, point)
        except ShardalgError as error:
            found.refused.append((point, " ".join(str(error).split())))
            continue
        _fill(found, row, there, (arrays, places), overlap)
    return found


def _groups(arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[dict[str, int], np.ndarray]]:
    """Yield (value of each size, mask of the points that have these values)."""
    rows = np.stack([values.ravel() for values in arrays.values()], axis=1)
    for values in np.unique(rows, axis=0):
        point = {name: int(value) for name, value in zip(arrays, values, strict=True)}
        masks = [array == point[name] for name, array in arrays.items()]
        yield point, np.logical_and.reduce(masks)


def _on_mesh(plan: Plan, on: Topology, axes: Mapping[str, int]) -> tuple[Plan, Machine]:
    """Return the plan on a mesh in numbers, and the topology with as many devices.

    Raises:
      HardwareError: the vendor joins no such number, or the mesh does not tile the topology.
      StrategyError: the strategy does not apply to that mesh.
    """
    from shardalg.sizes.symbolic.symbols import mesh_at

    hints = {name: int(size.hint) for name, size in plan.sizes.items()}
    mesh: Mesh = mesh_at(plan.mesh, {**hints, **axes})
    there = with_devices_of(on, mesh)
    # Plans are compared by the rates of the machine that they are priced on.
    known = plan.options.hardware == on.text
    options = replace(plan.options, hardware=there.text) if known else plan.options
    return plan.replan(mesh=mesh, options=options), there


def _fill(
    found: GridPrices,
    row: ComparedStrategy,
    priced: tuple[Plan, Machine],
    points: tuple[Mapping[str, np.ndarray], np.ndarray],
    overlap: str | None,
) -> None:
    """Fill the prices of a plan on a machine at some points.

    Formulas give them where planning decides as at the hints. At each other point a plan is made.

    Args:
      found: the prices to fill, changed in place.
      priced: the plan and the machine.
      points: an array of values for each named size, and the mask of the points to fill.
    """
    plan, on = priced
    arrays, places = points
    cost = plan.cost(on, overlap=overlap)
    # On a mesh in numbers, the axes are no named sizes of the plan any more.
    swept = {name: array[places] for name, array in arrays.items() if name in plan.sizes}
    if not swept:
        found.put(places, cost, row.capacity_bytes)
        return
    number = len(found.costs)
    found.costs.append(cost)
    sweep = plan.sweep(on, overlap=overlap, **swept)
    hints = {name: int(size.hint) for name, size in plan.sizes.items()}
    holds = np.array(sweep.holds)
    guards = plan._guards
    if guards is not None and not holds.all():
        # A doubtful condition is asked again by calling the function that it is part of.
        doubtful = np.flatnonzero(~holds)
        doubtful_points = [{**hints, **{n: int(a[i]) for n, a in swept.items()}} for i in doubtful]
        holds[doubtful] = guards.holding(doubtful_points)
    totals, values = cost.totals, {**hints, **swept}
    compute, sent = (
        Formula.of(totals.sum("time_s", communication=which)).lambdify()(**values)
        for which in (False, True)
    )
    found.step_s[places] = sweep.step_time_s
    found.fits[places] = sweep.peak_memory_bytes <= row.capacity_bytes
    found.computes[places] = compute >= sent
    found.formula_holds[places] = holds
    found.part[places] = number
    # Where a decision differs, the plan that is made there has the last word.
    for place in map(tuple, np.argwhere(places & ~found.formula_holds)):
        point = {name: int(arrays[name][place]) for name in swept}
        try:
            there = cost_at(plan, on, {**hints, **point}, overlap=overlap)
            found.put(place, there, row.capacity_bytes)
        except ShardalgError as error:
            found.step_s[place], found.fits[place] = np.inf, False
            found.refused.append((point, " ".join(str(error).split())))
