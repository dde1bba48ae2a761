"""What a plan says of layouts: every value's, and the program that they lead to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardalg.plan.planned import Planned

if TYPE_CHECKING:
    from shardalg.io.table import DataFrame
    from shardalg.partition.pipeline import ProgramStages
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

    def stages(self) -> ProgramStages:
        """Return the program after each pass, in order; `print` shows the passes that change it.

        The first stage is the program as it was emitted, the last one is `program`. They are made
        again for this call: a plan holds only its last program.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jax.ShapeDtypeStruct((8, 6), "float32")
        >>> plan = sa.plan(lambda x: x.max(0), x, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),),
        ...                out_shardings=P("X"))
        >>> print(plan.stages())
        // after emit
        SpmdProgram on Mesh(X=2), every device runs:
          %0 = f32[4@X,6] argument x
          %1 = f32[6]{U:X} reduce_max [d0@X] %0  # ...
          %2 = f32[6] all_reduce max axes=X %1  # reduce_max combines; ...
          %3 = f32[3@X] dynamic_slice dim=0 at p(X)*3 %2  # ...
          return %3
        // after move_masks: no change
        // after merge_formatting: no change
        // after drop_unread: no change
        // after scatter_reductions
        SpmdProgram on Mesh(X=2), every device runs:
          %0 = f32[4@X,6] argument x
          %1 = f32[6]{U:X} reduce_max [d0@X] %0  # ...
          %3 = f32[3@X] reduce_scatter max dim=0 axes=X %1  # reduce_max combines; ...
          return %3
        // after join_as_bits: no change
        // after collective_matmul: off, Switches(collective_matmul=True) runs it
        """
        from shardalg.partition.pipeline import program_stages

        made = self._stages
        return program_stages(made.sharded, made.traced.roles, self.options, made.kept)
