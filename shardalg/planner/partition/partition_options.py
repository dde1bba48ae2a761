"""The part of the user's `Options` that the partitioner reads, as one small value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardalg.costs.topology import Topology, machine
from shardalg.planner.propagate.options import DEFAULT_CHIP, Options


@dataclass(frozen=True)
class PartitionOptions:
    """The settings of one run of the partitioner, derived from the user's `Options`.

    Attributes:
      hardware: the chip or topology whose rates compare bytes sent with repeated work.
      weigh_links: whether reshard paths are chosen by the links of the mesh axes.
      keep_gathers: whether a copy that is gathered in one phase (forward, backward, update) is also
        read in the other phases.
      hoist_gathers: whether the constants of a loop are gathered before the loop.
      keep_unannotated: whether readers of an annotated value may also read the copy in the sharding
        in which it was computed.
      share_gathers, defer_sums, defer_in_loops, finite_sums, pad_blocks: as in `Switches`.
      join_gathers: as in `Switches`, by the policies that do not follow XLA.
    """

    hardware: str = DEFAULT_CHIP
    weigh_links: bool = False
    keep_gathers: bool = False
    hoist_gathers: bool = False
    keep_unannotated: bool = False
    share_gathers: bool = True
    defer_sums: bool = True
    defer_in_loops: bool = False
    finite_sums: bool = False
    pad_blocks: bool = True
    join_gathers: bool = True

    @staticmethod
    def of(options: Options, roles: Sequence[str]) -> PartitionOptions:
        """Return the partitioner's settings for a program.

        Args:
          options: the user's options.
          roles: the role of each graph value; they decide `keep_gathers` if the user's is None.
        """
        switches, is_by_cost = options.switches, options.policy == "cost"
        return PartitionOptions(
            hardware=options.hardware,
            weigh_links=is_by_cost or isinstance(machine(options.hardware), Topology),
            # A number of bytes is not True: `pipeline` turns it into a set of kept copies.
            keep_gathers=options.keeping(roles) is True,
            hoist_gathers=options.hoist_gathers,
            keep_unannotated=is_by_cost,
            share_gathers=switches.share_gathers,
            defer_sums=switches.defer_sums,
            defer_in_loops=switches.defer_in_loops,
            finite_sums=switches.finite_sums,
            pad_blocks=switches.pad_blocks,
            # XLA gathers one dimension at a time, and a collective matmul replaces a gather of a
            # single dimension. In both cases gathers of several dimensions are not joined.
            join_gathers=(
                switches.join_gathers and options.way == "paper" and not switches.collective_matmul
            ),
        )
