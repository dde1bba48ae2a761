"""Simulate instructions that combine the devices' results along a sharded loop."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from shardalg.graph.evaluate import apply
from shardalg.spmd.bound import bound, node_of
from shardalg.spmd.host.blocks import Stack, groups
from shardalg.spmd.host.collectives import combine_blocks
from shardalg.spmd.host.control import on_host
from shardalg.spmd.host.run import HostRun, map_blocks, on_blocks, simulates
from shardalg.spmd.identity import identity
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import ArgReduce, ExclusiveScan, Fold, Join, Top, ValueAt


@on_blocks(ExclusiveScan)
def _exclusive_scan(a: ExclusiveScan, x: Stack) -> Stack:
    """Combine block by block, from the first member of a group to the last, or in reverse."""
    neutral = np.full_like(x[0], identity(a.combine, x[0].dtype.name))
    result = [neutral] * len(x)
    # combine(totals up to p - 1) = combine(combine(totals up to p - 2), total of p - 1).
    for group in groups(a.digits, len(x)):
        order = group[::-1] if a.reverse else group
        # No block is before the first member's, so its result stays the identity.
        for before, position in pairwise(order):
            result[position] = combine_blocks([result[before], x[before]], a.combine)
    return result


@on_blocks(ArgReduce)
def _arg_reduce(a: ArgReduce, values: Stack, places: Stack) -> Stack:
    """Choose the best of the blocks' best values, and return its position in the whole loop.

    Each device has the best value of its block (`values`) and its place in the block (`places`).
    With blocks of 4 elements, place 1 of the block with number 2 is position 9.
    """
    arg_function, result = getattr(np, a.combine), list(places)
    for group in groups(a.digits, len(values)):
        # Places are added in `int`, because a narrow index type could overflow here.
        global_places = np.stack(
            [places[p].astype(int) + number * a.block for number, p in enumerate(group)]
        )
        # numpy takes the first of equal values, and a NaN before all numbers, as the definition
        # says.
        winner = arg_function(np.stack([values[p] for p in group]), axis=0)
        best = np.take_along_axis(global_places, winner[None], 0)[0].astype(places[0].dtype)
        for position in group:
            result[position] = best
    return result


@simulates(Top)
def _top(run: HostRun, instruction: Instruction[Top], values: Stack, places: Stack) -> list[Stack]:
    """Choose the best by a stable sort, which leaves the lower place of equal values first."""
    a = instruction.attributes
    # The lists are copied, because other instructions may read the operands again.
    results = list(values), list(places)
    for group in groups(a.digits, len(values)):
        all_values = np.concatenate([values[p] for p in group], a.dim)
        global_places = [places[p] + place * a.block for place, p in enumerate(group)]
        all_places = np.concatenate(global_places, a.dim).astype(places[0].dtype)
        # The bits of floats, read as integers, are in the total order of the floats, except that
        # negative numbers are in the reverse order. `argsort` of `~keys` sorts descending.
        keys = all_values
        if keys.dtype.kind not in "iu":
            keys = keys.view(f"int{8 * keys.dtype.itemsize}")
            keys = np.where(keys < 0, keys ^ np.iinfo(keys.dtype).max, keys)
        order = np.argsort(~keys, axis=a.dim, kind="stable")
        order = order.take(range(values[0].shape[a.dim]), a.dim)
        for position in group:
            results[0][position] = np.take_along_axis(all_values, order, a.dim)
            results[1][position] = np.take_along_axis(all_places, order, a.dim)
    return list(results)


@on_blocks(ValueAt)
def _value_at(a: ValueAt, places: Stack, x: Stack) -> Stack:
    """Read the value at each best place, from the block in which the place was found.

    `places` has the place of the best value along dimension `a.dim` of the block, which the result
    lacks.
    """

    def at(_: int, place: np.ndarray, block: np.ndarray) -> np.ndarray:
        index = np.expand_dims(place.astype(np.int64), a.dim)
        return np.take_along_axis(block, index, a.dim).squeeze(a.dim)

    return map_blocks(at, places, x)


@on_blocks(Join)
def _join(a: Join, x: Stack, one: Stack) -> Stack:
    """Combine each place of a block with the total of all blocks before it.

    This completes a prefix, such as a cumulative sum. `one` has the total, with size 1 along the
    dimension.
    """

    def joined(_: int, block: np.ndarray, single: np.ndarray) -> np.ndarray:
        """Return one device's block, combined with the total at every place."""
        return combine_blocks([block, np.broadcast_to(single, block.shape)], a.combine)

    return map_blocks(joined, x, one)


@simulates(Fold)
def _fold(run: HostRun, instruction: Instruction[Fold], *stacks: Stack) -> list[Stack]:
    """Reduce the partial results of each group by the user's function, over a new dimension.

    The first stacks are the partial results, one per result; the others are the start values.
    """
    count, node = len(instruction.results), node_of(run.graph, instruction)
    results = [list(stack) for stack in stacks[:count]]
    binding, params = bound(run.graph, instruction)
    for group in groups(instruction.attributes.digits, len(run.positions)):
        # The members are a new leading dimension, which the user's function reduces.
        partial_results = [np.stack([stack[p] for p in group]) for stack in stacks[:count]]
        start_values = [stack[group[0]] for stack in stacks[count:]]
        combined = apply(node.primitive, binding, params, [*partial_results, *start_values])
        for result, value in zip(results, combined, strict=True):
            for position in group:
                result[position] = on_host(value)
    return results
