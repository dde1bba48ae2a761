"""Products whose operands want one mesh axis on different dimensions of the result.

GSPMD's paper leaves open which operand wins. XLA lets the larger operand win as soon as both are
sharded, if no chain of readers says otherwise. An elementwise operator further on may then read
the result beside a value in the other layout, and everything behind the operator moves. Such a
product is found after the completion, when all layouts are known. The other operand may then win
in a second completion (`planning/stages.py` compares the two programs).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shardalg.propagate.gspmd import priority
from shardalg.propagate.gspmd.fixpoint import LONGEST_CHAIN, Fixpoint
from shardalg.propagate.gspmd.step import Outcome
from shardalg.propagate.layouts import extends
from shardalg.propagate.operator_classes import Dims


@dataclass(eq=False)
class Contested(Fixpoint):
    """Sweeps that note contested products.

    Attributes:
      turned: steps of products whose second operand wins.
      wanted: per step of a contested product, the layouts that its operands want, the first one
        being the layout that won.
    """

    turned: frozenset[int] = frozenset()
    wanted: dict[int, tuple[Dims, ...]] = field(default_factory=dict)

    def _looked_ahead(self, position: int, outcome: Outcome) -> Outcome:
        found = super()._looked_ahead(position, outcome)
        if found is not outcome or outcome.other is None:
            return found
        if position in self.turned:
            return outcome.other
        self.wanted[position] = outcome.wanted
        return found

    def lost(self) -> frozenset[int]:
        """Return the contested products whose second operand agrees with what is read beside."""
        return frozenset(
            position
            for position, wanted in self.wanted.items()
            if (beside := self._beside(self.index.tensors[position][-1]))
            and [any(extends(dims, own) for dims in beside) for own in wanted] == [False, True]
        )

    def _beside(self, value: int) -> list[Dims]:
        """Return the layouts that an elementwise operator reads beside a value.

        The operator is the first one with another sharded operand on the chain of single readers.
        """
        index, layouts = self.index, self.layouts
        for _ in range(LONGEST_CHAIN):
            readers = [r for r in index.readers[value] if not self._is_beside(r[0])]
            if len({position for position, _ in readers}) != 1:
                return []
            position, kind = readers[0][0], index.kind(readers[0][0])
            if kind.role != priority.POINTWISE or len(kind.results) != 1:
                return []
            values = index.tensors[position]
            numbers = [self.numbers[v] for v in values[: kind.num_operands] if v != value]
            found = [layouts.dims[number] for number in numbers if layouts.tiles[number] > 1]
            if found:
                return found
            value = values[-1]
        return []
