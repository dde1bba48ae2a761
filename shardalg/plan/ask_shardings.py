"""What a plan says of layouts: every value's, and the program that they lead to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardalg.plan.planned import Planned

if TYPE_CHECKING:
    from shardalg.io.table import DataFrame
    from shardalg.report.html import Listing


class ShardingAnswers(Planned):
    """How values lie, and what every device runs."""

    def shardings(self) -> DataFrame:
        """Every value: name, shape, completed sharding, local shape, and why it is so."""
        from shardalg.report import tables

        return tables.shardings(self._sharded).df

    def text(self) -> str:
        """The program with source lines."""
        return self.program.text(self.graph)

    def listing(self) -> Listing:
        """The same for a notebook, where pointing at a value shows the chain behind its layout."""
        from shardalg.explain.listing import program_listing

        return program_listing(self.program, self._sharded)
