"""Why an instruction is there: a value, from which tables and listings print their words."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from shardalg.algebra.sharding import Sharding


class Purpose(Enum):
    """What an instruction is there for. The value is the words, behind the operator's name."""

    NONE = ""
    NEEDS = "needs"
    GIVES = "gives"
    LEAVES_SUMS = "leaves partial sums"
    READS_WINDOW = "reads a window"
    COMBINES = "combines"
    MOVES_BLOCKS = "moves borders of blocks"
    LOOP_TAKES = "the loop takes"
    BODIES_TAKE = "the bodies take"
    REGION_TAKES = "the region takes"
    BODY_RESULT = "the body hands on"
    RESULT = "the result is"
    ARGUMENT_ORDER = "the argument is in another order of the devices"
    RESULT_ORDER = "the result is in another order of the devices"
    WRITTEN = "the function asks for it"


class Why(NamedTuple):
    """Why an instruction is there. A named tuple: a plan makes tens of thousands.

    Attributes:
      purpose: what it is for; operator: for which, "" at a border.
      path: of a step between two layouts, the layout before and after it.
      chain: a number for the steps from one layout to another, None outside of such a chain.

    >>> print(Why(Purpose.NEEDS, "dot_general"))
    dot_general needs
    """

    purpose: Purpose = Purpose.NONE
    operator: str = ""
    path: tuple[Sharding, Sharding] | None = None
    chain: int | None = None

    def along(self, path: tuple[Sharding, Sharding] | None, chain: int) -> Why:
        """The same for one step of a chain."""
        return Why(self.purpose, self.operator, path, chain)

    def is_chained(self, other: Why) -> bool:
        """Whether two steps for one node belong to one chain of moves."""
        return (self.chain, self.purpose, self.operator) == (
            other.chain,
            other.purpose,
            other.operator,
        )

    def __str__(self) -> str:
        words = f"{self.operator} {self.purpose.value}" if self.operator else self.purpose.value
        if self.path is None:
            return words
        before, after = self.path
        return f"{words}: {before.text()} to {after.text()}"


UNSTATED = Why()
"""Of an instruction that no operator and no border asks for."""
