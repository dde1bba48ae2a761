"""Claims about run-time starts: the places of a block that they select, and the partitions."""

from __future__ import annotations

from collections.abc import Iterator

from shardalg.algebra.digits import parts
from shardalg.graph.ops.local_parameters import Emission, IndexShift
from shardalg.graph.ops.rule import CLIP, DROP, Guard
from shardalg.merge.proofs.integers import All, IntegerClaim, Not, Number, equal, implies, within
from shardalg.verify.contents import partition_number
from shardalg.verify.operators.local_rows import Goal, LocalOperator
from shardalg.verify.report import Decided


def selection_claims(run: LocalOperator, emission: Emission) -> Iterator[Goal]:
    """Yield the claims about run-time indices that select elements of a sharded dimension.

    Each device shifts the index into its own block. An index must select an element on the
    partition that has the element, and on no other. An index that JAX clips must stay inside of the
    dimension. A start outside of the block, whose update the row drops, must be masked, because the
    operator on the block would clip it.
    """
    starts = {shift.loop: shift for shift in emission.shifts if shift.sign}
    for guard in run.rule.guards:
        name = guard.loop.loop
        if name is None or not run.digits[name]:
            continue
        # The index of a guard is a run-time number, plus the loop over a window if it has one.
        windows = [v for v in guard.index.variables if v in run.rule.extents]
        # A window may overlap the blocks of several partitions, a single place is in one block.
        if windows and name in starts:
            yield "selected", _window_claim(run, guard, starts[name])
        else:
            yield "selected", _point_claim(run, name)
        # A clipped index is moved to the last valid start, so it never leaves the dimension. Then
        # the claims above, for all starts in the dimension, are about all starts.
        (symbol,) = (s for s in run.rule.symbols if s.name in guard.index.variables)
        width = max((run.rule.extents[v] for v in windows), default=1)
        inside = symbol.mode != CLIP or symbol.high + width <= run.rule.extents[name]
        yield "selected", Decided(f"a clipped index stays below {run.rule.extents[name]}", inside)
    # The operator on a block would clip a start that misses the block, and so update a wrong place.
    # Where the row drops such updates, each of these starts must therefore be masked.
    drops = [symbol.mode for symbol in run.rule.symbols].count(DROP)
    if drops and dict(emission.params).get("mode") == "CLIP":
        words = "every start that drops updates is masked"
        yield "selected", Decided(words, drops == len(emission.owned))


def _point_claim(run: LocalOperator, name: str) -> IntegerClaim:
    """Return the claim that each index of a sharded dimension is in exactly one partition's block.

    Index `t` must be place `t - p*block` of partition `p = t // block`, and of no other partition.
    """
    block, extent = run.blocks[name], run.rule.extents[name]
    t, partition = Number.of("t"), partition_number(run.digits[name])
    is_in_block, is_owner = within(t - partition * block, 0, block), equal(t // block, partition)
    on_mesh = within(t // block, 0, parts(run.digits[name]))
    first = equal(dict(run.wider).get(name, partition * block), partition * block)
    goal = All((implies(is_in_block, is_owner), implies(is_owner, is_in_block), on_mesh, first))
    words = f"index t of {name} is place t - p*{block} on partition t // {block} alone"
    return IntegerClaim(words, run.mesh, goal, (("t", extent),))


def _window_claim(run: LocalOperator, guard: Guard, shift: IndexShift) -> IntegerClaim:
    """Return the claim that a device reads or writes the right places of its block in a window.

    The window begins at a run-time index t of the whole dimension, and may overlap several blocks.
    The device runs the operator on its block, extended by a margin, with t shifted by the block's
    start. The claim has two parts. The window covers the same places of the block as the global
    window does. If the shifted start is outside of block and margin, the global window covers no
    place of the block.
    """
    name = guard.loop.loop
    assert name is not None, "a guard is on a loop"
    (window,) = (v for v in guard.index.variables if v in run.rule.extents)
    block, extent, width = run.blocks[name], run.rule.extents[name], run.rule.extents[window]
    block_start = partition_number(run.digits[name]) * block
    t, w, x = Number.of("t"), Number.of("w"), Number.of("x")
    local = t + partition_number(run.digits[name]) * (shift.sign * block) + shift.more
    margin = dict(run.wider).get(name, 0)  # a window of one place or none has no margin
    is_global_place, is_local_place = (
        equal(block_start + x, t + w),
        equal(block_start - margin + x, local + w),
    )
    runs = run.local.extents[name]
    # The operator clamps or drops starts outside of this range.
    is_reached = within(local, 0, runs - width + 1)
    same_places = All(
        (implies(is_global_place, is_local_place), implies(is_local_place, is_global_place))
    )
    outside = Not(is_global_place)
    goal = All((implies(is_reached, same_places), implies(Not(is_reached), outside)))
    words = f"a window of {width} at start t of {name} has the same place x of the block"
    unknowns = (("t", extent - width + 1), ("w", width), ("x", block))
    return IntegerClaim(words, run.mesh, goal, unknowns)
