"""What planning made of a function: what every answer of a plan is read from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from shardalg.algebra.mesh import Mesh
from shardalg.errors import LoweringError
from shardalg.graph.ir import Graph
from shardalg.io.table import Table
from shardalg.planning.stages import NO_CHANGES, Stages
from shardalg.planning.traced import Traced
from shardalg.propagate.options import Options
from shardalg.propagate.sharded import ShardedGraph
from shardalg.spmd.program import SpmdProgram

if TYPE_CHECKING:
    from shardalg.costs.symbolic import Symbolised
    from shardalg.propagate.strategy import Annotations
    from shardalg.symbolic.symbols import Symbols


OLD_NAMES = frozenset({
    "traced", "annotations", "sharded", "symbols", "symbolised", "named",
    "collectives_table", "conditions_table", "warnings_table",
})  # fmt: skip
"""What a plan is made of, once without an underscore; still found so for one version."""


@dataclass(frozen=True, eq=False)
class Planned:
    """What planning made of a function; the classes of this room answer questions of it.

    Attributes:
      options: how the plan was made. changes: of a plan made by `at`, the decisions that differ
        from those at the hints.
    """

    options: Options
    _make: Callable[[], Stages]
    changes: Table = NO_CHANGES
    _since_saved: tuple[str, ...] = ()
    """Of a loaded plan, what the version that saved it decided otherwise."""

    @cached_property
    def _stages(self) -> Stages:
        """What planning made of the function; of a plan by `at`, made when first asked for."""
        return self._make()

    @property
    def _traced(self) -> Traced:
        """The function as it was traced, and what stands at its border."""
        return self._stages.traced

    @property
    def _annotations(self) -> Annotations:
        """What was asked for."""
        return self._stages.annotations

    @property
    def _sharded(self) -> ShardedGraph:
        """The completed layouts."""
        return self._stages.sharded

    @cached_property
    def _symbols(self) -> Symbols:
        """The formulas of the function's sizes; numbers where no dimension has a name."""
        return self._stages.symbols

    @cached_property
    def _symbolised(self) -> Symbolised | None:
        """The program with a formula for each of its sizes; None in a plan in numbers."""
        if not self._stages.is_named:
            return None
        from shardalg.costs.symbolic import Sizes, symbolise
        from shardalg.planning.guards import recorded_shapes

        sizes = Sizes.of(self._symbols.lifted, self.mesh.sizes)
        recorded = partial(recorded_shapes, self._stages, self.options, sizes)
        return symbolise(self.program, self.graph, sizes, recorded)

    @property
    def _named(self) -> Symbolised | None:
        """The same as `_symbolised`; None also where some size has no formula."""
        from shardalg.sizes.formula import FormulaError

        try:
            return self._symbolised
        except FormulaError:
            return None

    @property
    def program(self) -> SpmdProgram:
        """What every device runs."""
        return self._stages.program

    @property
    def mesh(self) -> Mesh:
        """The mesh that the plan is for."""
        return self._annotations.mesh

    @property
    def graph(self) -> Graph:
        """The traced function."""
        return self._traced.graph

    def _bound(self, fn: Callable[..., Any] | None, args: Sequence[Any] | None) -> Traced:
        if self._traced.call is not None and fn is None:
            return self._traced
        if fn is None:
            raise LoweringError(
                "a loaded plan has no function to run: pass it, as plan.lower(fn=train_step)."
            )
        return self._traced.bound(fn, args, self.mesh.shape)

    def __dir__(self) -> list[str]:
        """What can be asked: no internals."""
        return sorted(name for name in super().__dir__() if not name.startswith("_"))

    if not TYPE_CHECKING:  # a checker knows the names that stay

        def __getattr__(self, name: str) -> Any:
            if name in OLD_NAMES:
                return getattr(self, f"_{name}")
            try:  # an error inside a property comes out as it is
                return object.__getattribute__(self, name)
            except AttributeError:
                if name.startswith("_") or hasattr(type(self), name):
                    raise
            near = get_close_matches(name, dir(self), 3)
            hint = f" Did you mean {' or '.join(near)}?" if near else " dir(plan) lists them."
            raise AttributeError(f"a plan does not answer {name!r}.{hint}")
