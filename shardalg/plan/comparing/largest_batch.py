"""The largest batch that fits, per strategy: the function is planned with a name for its batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shardalg.errors import TableError
from shardalg.plan.comparing.step_figures import StrategyFigures
from shardalg.plan.plan import Plan, plan_of
from shardalg.plan.planning import planned_strategy, traced_call
from shardalg.planner.propagate.strategy import Strategy

if TYPE_CHECKING:
    from shardalg.plan.comparing.compared import ComparedStrategy
    from shardalg.planner.propagate.options import Options
    from shardalg.planner.traced import Traced

NAME = "batch"


@dataclass(frozen=True)
class BatchSearch:
    """A function whose data arguments get a named leading dimension.

    Attributes:
      given: the positional and the keyword arguments.
      settings: roles and donated arguments, as of `sa.plan`.
      traced: the trace of the function in numbers.
    """

    fn: Callable[..., Any]
    given: tuple[tuple[Any, ...], Mapping[str, Any]]
    settings: tuple[Any, Any]
    traced: Traced

    @cached_property
    def data(self) -> list[int]:
        """Positions of the data arguments among all arrays of the arguments; scalars are left out.

        Their common leading dimension is the batch.

        Raises:
          TableError: the data arguments do not have one leading dimension in common.
        """
        roles = self.traced.argument_roles
        positions = [n for n, role in enumerate(roles) if role == "data" and self._shapes[n]]
        sizes = {self._shapes[n][0] for n in positions}
        # Without any data arguments there is no batch; with several sizes it is ambiguous.
        if len(sizes) != 1:
            raise TableError(
                f"the data arguments have {len(sizes)} leading dimensions: give roles=, with "
                '"data" for the arguments that have the batch as their first dimension.'
            )
        return positions

    @property
    def batch(self) -> int:
        """Number of samples in the arguments: the leading dimension of the data arguments."""
        return int(self._shapes[self.data[0]][0])

    @property
    def _shapes(self) -> list[tuple[int, ...]]:
        """Shapes of all arrays of the arguments."""
        graph = self.traced.graph
        return [graph.values[v].type.shape for v in graph.arguments]

    @cached_property
    def named(self) -> Traced:
        """The trace whose data arguments have the leading dimension `batch`.

        Raises:
          TableError: the data arguments do not have one leading dimension in common.
        """
        # Named sizes are sympy symbols, and a comparison alone needs no sympy.
        from shardalg.algebra.dims import dims
        from shardalg.graph.arguments import with_named_lead

        # With a name for the batch, one trace serves every batch, and memory is a formula of it.
        (batch,) = dims(NAME, hint=self.batch)
        given = with_named_lead(self.given, self.data, batch, len(self._shapes))
        roles_given, donated = self.settings
        mesh = self.traced.first_mesh
        assert mesh is not None, "compare traces on a mesh"
        return traced_call(self.fn, given, roles_given, donated, Strategy(mesh), None)[0]

    def largest(self, row: ComparedStrategy, options: Options) -> int:
        """Return the largest batch at which a strategy fits; 0 if none does.

        The function is planned with the batch as a named size on the strategy's mesh. The formula
        of the peak memory gives a first guess, from which one batch after the other is planned.

        Raises:
          TableError: the strategy was refused, or the batch is not known.
        """
        plan = self.plan(row, options)
        cost = plan.cost(row.on)
        # The search compares peaks with the memory of the chip. A smaller chip is the way to tell
        # it about the reserve.
        chip = replace(cost.hardware, hbm_bytes=row.capacity_bytes)
        # `elsewhere.fits` plans again at one batch. It must have the same limit.
        elsewhere = cost.elsewhere and replace(cost.elsewhere, fits=_within(plan, row))
        return replace(cost, hardware=chip, elsewhere=elsewhere).largest_batch_that_fits(NAME)

    def plan(self, row: ComparedStrategy, options: Options) -> Plan:
        """Return the plan of a strategy with the batch as a named size.

        Raises:
          TableError: the strategy was refused, or the batch is not known.
        """
        if row.plan is None:
            raise TableError(f"{row.name!r} has no plan: {row.refused}")
        mesh = row.plan.mesh
        # The row `current` has the annotations of the function, which the trace has.
        strategy = row.strategy or Strategy(mesh)
        there = self.named.on(mesh, before=self.named.first_mesh or mesh)
        return plan_of(*planned_strategy(there, strategy, options))

    def at_largest(self, row: ComparedStrategy) -> ComparedStrategy:
        """Return a strategy planned with the largest batch at which it fits.

        Its samples and tokens grow in proportion. A strategy that does not fit with one sample is
        refused. A row that has no plan is returned as it is.

        Raises:
          TableError: the batch is not known.
        """
        if row.plan is None:
            return row
        options, before = row.plan.options, self.batch
        # The strategy is planned at its largest batch, whose figures replace those of the row.
        batch = self.largest(row, options)
        if not batch:
            return replace(row, plan=None, figures=None, refused="a batch of 1 does not fit")
        plan = self.plan(row, options).at(**{NAME: batch})
        figures = StrategyFigures.of(plan, row.on)
        samples, tokens = (
            None if count is None else count * batch // before
            for count in (row.samples, row.tokens)
        )
        return replace(row, plan=plan, figures=figures, samples=samples, tokens=tokens)


def _within(plan: Any, row: ComparedStrategy) -> Callable[[Mapping[str, int]], bool]:
    """Return a function of sizes: True if the plan at these sizes fits a device's memory."""

    def fits(point: Mapping[str, int]) -> bool:
        peak = plan.at(**point).cost(row.on).peak_memory_bytes
        return float(peak) <= row.capacity_bytes

    return fits
