"""What a plan with named sizes says of them: names, constants, and where it holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from shardalg.io.table import Table
from shardalg.plan.planned import Planned
from shardalg.renamed import also_without_call

if TYPE_CHECKING:
    from shardalg.algebra.dims import Size
    from shardalg.io.table import DataFrame
    from shardalg.sizes.decided import Guards


class SizeAnswers(Planned):
    """Named sizes, and at which others the plan is the same."""

    @property
    def is_symbolic(self) -> bool:
        """Whether sizes have names, so that prices are formulas."""
        return self._stages.is_named

    @cached_property
    def sizes(self) -> dict[str, Size]:
        """Every named size, of dimensions and axes, with its hint; empty in a plan in numbers."""
        if not self.is_symbolic:
            return {}
        from shardalg.symbolic.symbols import named_sizes

        return named_sizes(self._symbols, self.mesh)

    @also_without_call
    def constants(self) -> DataFrame:
        """Sizes that no argument reaches: they stay numbers in every formula.

        Columns: dimension, source, value (the first that has it), varies (whether the second trace
        had another size there, so that formulas hold at the hints' size alone).
        """
        return self._symbols.constants.df

    @also_without_call
    def conditions(self) -> DataFrame:
        """What planning found of its sizes: where a row fails, `at` may give another plan.

        The rows are the facts that `holds` asks, comparisons first, the nearest at the hints before
        others; `holds` also checks that the formula of the peak of memory is right. A choice
        "rather than" another one turns as its row says, as long as the paths are those of the
        hints. Other rows of choices, and those of paths ("collectives"), are questions of a search,
        whose outcome may stay the same without them: `holds` asks again there.

        Columns: kind (the part of `changes` in which another answer shows: "choice" of an operator,
        "sharding", "collectives", "divides" for an even or an uneven split, "part" for a
        size held at its hint), condition, margin (by how much of its larger side it holds), place,
        source, decides (what was chosen, rather than what, by time or by bytes), rests_on (earlier
        operators whose choices decide which copies are at hand: where one is another choice, the
        condition says nothing), flips (per size where it turns, the others at their hints). Where
        `unguarded` says that questions are not known, the rows are what the formulas rest on.
        """
        return self._conditions_table.df

    @cached_property
    def _conditions_table(self) -> Table:
        """The table behind `conditions`; empty in a plan in numbers."""
        from shardalg.plan import plan_conditions

        if self._symbolised is None:
            return plan_conditions.NO_CONDITIONS
        return plan_conditions.conditions(self._symbolised, self._guards, self.options)

    @property
    def unguarded(self) -> str:
        """Return why `at` and `holds` know other sizes only by planning there; "" if not so.

        If a parameter of an operator is another one in a second trace and has no formula, the text
        names the operator, the parameter and the source line. Sizes of axes are known all the same.
        """
        return self._recorded[1]

    def _guarded(self, point: Mapping[str, int]) -> bool:
        return self._guards is not None and self._guards.hold(point)

    @property
    def _guards(self) -> Guards | None:
        """What planning asked of the sizes; None where that is not known."""
        return self._recorded[0]

    @cached_property
    def _recorded(self) -> tuple[Guards | None, str]:
        from shardalg.planning.guards import guards

        return guards(self._stages, self.options, lambda: self._symbolised)

    def _hints(self, names: Iterable[str]) -> str:
        return ", ".join(f"{name}={self.sizes[name].hint}" for name in names)
