"""The reasons of a recipe: per array what was chosen, why, and which axes could not be placed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shardalg.plan.rules.logical_rules import LogicalRules
from shardalg.plan.rules.rule_strategies import rules_of
from shardalg.plan.strategies.derive.deriving import Derived
from shardalg.planner.propagate.strategy import Strategy
from shardalg.tables import Table, card

if TYPE_CHECKING:
    from shardalg.dataframe import Frame

COLUMNS = ("array", "role", "type", "spec", "reason", "not_placed")
MOST_ROWS = 40
"""Arrays in the printed text; the table has all of them."""


@dataclass(frozen=True, eq=False, repr=False)
class RecipeExplanation:
    """A recipe on one function: `print` it, or take `.table()`, a DataFrame.

    Attributes:
      recipe: the recipe as text. derived: its strategy and reasons.
    """

    recipe: str
    derived: Derived

    @property
    def strategy(self) -> Strategy:
        """The strategy that is explained."""
        return self.derived.strategy

    def rules(self, arrays: Any, **more: Any) -> LogicalRules:
        """Return the logical-axis rules that give the strategy's layouts.

        Args and errors: as of `sa.rules_of`.
        """
        return rules_of(self.strategy, arrays, **more)

    def table(self) -> Frame:
        """Return a row per argument and site: role, spec, reason, and what is not placed."""
        return self._rows.whole_df

    @cached_property
    def _rows(self) -> Table:
        """The rows of `table`: arguments first, then sites (places that `sa.annotate` names).

        A row has the path, role, type, sharding, reason, and the axes that were not placed.
        """
        rows = []
        for layout in self.derived.layouts:
            role = layout.role or ""
            if layout.place in self.derived.deduced and role:
                role += " (deduced)"
            # Without a role or a pin, completion chooses the sharding.
            spec = _text(layout.dims) if layout.role or layout.pinned else ""
            reason = "; ".join(layout.reasons) or _without(layout.role, len(layout.dims))
            rows.append((layout.path, role, layout.type, spec, reason, "; ".join(layout.refused)))
        for site in self.derived.sites:
            # A site has one text: the reason for its axes, or the reason why it has none.
            spec = "" if site.dims is None else _text(site.dims)
            refused = site.reason if site.dims is None else ""
            reason = "" if site.dims is None else site.reason
            rows.append((site.name, "site", site.type, spec, reason, refused))
        return Table(COLUMNS, tuple(rows))

    @property
    def _head(self) -> str:
        """The first line: the recipe, the mesh, and how many arguments are sharded."""
        placed = sum(bool(layout.axes) for layout in self.derived.layouts)
        counts = f"{placed} of {len(self.derived.layouts)} arguments are sharded"
        deduced = len(self.derived.deduced)
        roles = f"; the roles of {deduced} arguments are deduced" if deduced else ""
        return f"{self.recipe} on {self.strategy.mesh!r}: {counts}{roles}."

    def __repr__(self) -> str:
        """Return the first rows of the table and the notes, as lines of text.

        A row has two more lines: the reason for its axes, and the axes that were not placed.
        """
        lines = [self._head]
        for row in self._rows.rows[:MOST_ROWS]:
            # Texts of the row that are "" have no line.
            path, role, kind, spec, reason, refused = row
            lines.append(f"{path}: {kind} {spec or 'left to completion'} ({role or 'no role'})")
            lines += [f"    {reason}"] if reason else []
            lines += [f"    not placed: {refused}"] if refused else []
        if len(self._rows) > MOST_ROWS:
            lines.append(f"... and {len(self._rows) - MOST_ROWS} more rows in .table().")
        return "\n".join([*lines, *(f"Note: {note}." for note in self.derived.notes)])

    def _repr_html_(self) -> str:
        notes = "".join(f" Note: {note}." for note in self.derived.notes)
        return card(self._head + notes, self._rows)


def _text(dims: object) -> str:
    """Return the axes of each dimension as text: `[data, None]`, `[(data, model), None]`."""
    entries = [
        axes[0] if len(axes) == 1 else f"({', '.join(axes)})" if axes else "None"
        for axes in dims  # type: ignore[attr-defined]
    ]
    return f"[{', '.join(entries)}]"


def _without(role: str | None, rank: int) -> str:
    """Return why an argument without axes has none, from its role and number of dimensions."""
    if role is None:
        return "it has no role" if rank else "a single number"
    return "replicated: no part of the recipe shards it"
