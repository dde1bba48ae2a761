"""Every claim on which "the program equals the function" rests, stated and sent to z3.

A local value is followed from the arguments on: the contents say which elements of which graph
value it holds at which place (`contents`). Moves are claimed from the definition of each
instruction (`moves`). Operators are claimed by comparing their row with the row of the operator
that a device runs (`operators`). Nothing is taken from the planner: only the program, the graph and
the rows are read. The assumptions that tests cover instead are listed in `report.FACTS`.
"""

from __future__ import annotations

from shardalg.merge.proofs.prove import MergeClaim
from shardalg.pause import collection_paused
from shardalg.planner.propagate.sharded import ShardedGraph
from shardalg.spmd.program import SpmdProgram
from shardalg.verify import control
from shardalg.verify import control as collective_matmul
from shardalg.verify.report import FACTS, Report
from shardalg.verify.verifier import Verifier

REGISTERED = (collective_matmul, control)
"""Modules that register their functions in `CLAIMS` when they are imported."""


@collection_paused()
def verify(
    sharded: ShardedGraph,
    program: SpmdProgram,
    *,
    finite: bool = False,
    finite_in_loops: bool = False,
) -> Report:
    """Prove that the program computes the graph: decide every claim of every instruction.

    Claims about merged shardings and about the split of loops are proved for meshes of any size.
    All other claims are proved for the sizes of this program.

    Args:
      finite: whether numbers are assumed to be finite, and products of partial sums not to overflow
        (`Switches.finite_sums`). Otherwise a sum that is deferred past a product is refuted.
      finite_in_loops: the same in the bodies of scans (`Switches.defer_in_loops`).
    """
    # Completion chose shardings by merging two of them. The claims of the program would not show a
    # wrong merge, because a program can be right in any shardings.
    verifier = Verifier(sharded.graph, program, finite=finite, finite_in_loops=finite_in_loops)
    merges = [
        verifier.decide(sharded.graph.values[value].name, "merge", MergeClaim(first, second, both))
        for value, first, second, both in sharded.merges
    ]
    claims = (*merges, *verifier.judge(sharded.mesh, sharded))
    merged = tuple(p for c, p in verifier.proofs.items() if isinstance(c, MergeClaim))
    return Report((*claims, *FACTS), merged, sites=tuple(verifier.sites.claims()))
