"""What is moved to a layout and on to another one, and read in the last alone, is moved there once.

    dynamic_slice(all_gather(x)) = all_to_all(x),  dynamic_slice(all_reduce(x)) = reduce_scatter(x)
An annotation, or the border of a loop, asks for a layout that its only reader then leaves: the
shortest way is that from the first layout to the last, where it sends less than both ways did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from shardalg.ops.rule import SUM
from shardalg.reshard.links import Links
from shardalg.reshard.path_instructions import PathMove, moves
from shardalg.reshard.paths import reshard_price
from shardalg.reshard.retile import Retile
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.instructions import AllReduce, Control, ReduceScatter
from shardalg.spmd.local import Local
from shardalg.spmd.program import SpmdProgram

How = tuple[Links | None, bool]
"""The links that paths heed, and whether blocks may be padded on their way."""
Run = tuple[int, ...]
"""Numbers of moves, each of which alone reads what the one before it made."""


def moves_joined(program: SpmdProgram, how: How) -> SpmdProgram:
    """The same program, where each value goes to the layout it is read in on the shortest path."""
    locals_ = list(program.locals)
    block = _joined(program.block, locals_, how)
    return replace(program, locals=tuple(locals_), block=block)


def _joined(block: Block, locals_: list[Local], how: How) -> Block:
    instructions = list(block.instructions)
    for number, one in enumerate(instructions):
        if isinstance(one.attributes, Control):
            blocks = [_joined(body, locals_, how) for body in one.attributes.bodies]
            instructions[number] = replace(one, attributes=one.attributes.with_bodies(blocks))
    placed: dict[int, list[Instruction]] = {}
    same: dict[int, int] = {}
    for run in _runs(instructions, block.results, locals_):
        steps = _shorter([instructions[number] for number in run], locals_, how)
        if steps is not None:
            (first,), (last,) = instructions[run[0]].operands, instructions[run[-1]].results
            placed |= {number: [] for number in run}
            placed[run[0 if locals_[last].bytes < locals_[first].bytes else -1]] = steps
            same |= {} if steps else {last: first}
    results = tuple([same.get(local, local) for local in block.results])
    every = (placed.get(number, [one]) for number, one in enumerate(instructions))
    left = [_reading(one, same) for place in every for one in place]
    return replace(block, instructions=tuple(left), results=results)


def _reading(instruction: Instruction, same: Mapping[int, int]) -> Instruction:
    """The instruction, reading what is the same instead of what is made no more."""
    if not same.keys() & instruction.operands:
        return instruction
    given = tuple([same.get(local, local) for local in instruction.operands])
    return replace(instruction, operands=given)


def _runs(
    instructions: Sequence[Instruction], results: Sequence[int], locals_: Sequence[Local]
) -> list[Run]:
    """Moves that follow one another, of more than one chain."""
    chained = [n for n, one in enumerate(instructions) if one.why.chain is not None]
    made = {instructions[n].results[0]: instructions[n].why.chain for n in chained}
    steps = [(instructions[n].operands[0], instructions[n].why.chain) for n in chained]
    if all(made.get(given, chain) == chain for given, chain in steps):
        return []
    read = Counter(local for one in instructions for local in one.operands)
    read.update(results)
    ends: dict[int, Run] = {}
    for number in chained:
        if _is_move(instructions[number], locals_):
            (given,), (result,) = instructions[number].operands, instructions[number].results
            before = ends.pop(given) if given in ends and read[given] == 1 else ()
            ends[result] = (*before, number)
    return [run for run in ends.values() if len({instructions[n].why.chain for n in run}) > 1]


def _is_move(instruction: Instruction, locals_: Sequence[Local]) -> bool:
    """Whether it is a step between two layouts of one value, of blocks that are not padded."""
    a = instruction.attributes
    if len(instruction.operands) != 1:
        return False
    if isinstance(a, AllReduce | ReduceScatter) and a.combine != SUM:
        return False
    first, last = (locals_[n] for n in (*instruction.operands, *instruction.results))
    kept = first.sharding.shape == last.sharding.shape
    return kept and all(one.shape == one.sharding.shard_shape for one in (first, last))


def _shorter(
    run: Sequence[Instruction], locals_: list[Local], how: How
) -> list[Instruction] | None:
    """The steps straight from the first layout to the last; None where they send no less."""
    links, padded = how
    layouts = [locals_[one.operands[0]].sharding for one in run]
    layouts.append(locals_[run[-1].results[0]].sharding)
    source, target = layouts[0], layouts[-1]
    sent = [reshard_price(*pair, padded) for pair in pairwise(layouts)]
    if not reshard_price(source, target, padded) < sum(sent):
        return None
    path = moves(source, target, links, padded)
    return None if any(_is_retile(step) for step in path) else list(_steps(run, path, locals_))


def _is_retile(step: PathMove) -> bool:
    return isinstance(step.attributes, Retile)


def _steps(
    run: Sequence[Instruction], path: Sequence[PathMove], locals_: list[Local]
) -> Iterator[Instruction]:
    """The steps of a path from what the first move reads to what the last one made."""
    first, (local,), (end,) = run[0], run[0].operands, run[-1].results
    last, kept = locals_[end], locals_[end].sharding.shape
    for number, step in enumerate(path):
        assert not isinstance(step.attributes, Retile), "what retiles stays as it is"
        made = end if number == len(path) - 1 else len(locals_)
        if made != end:
            origin = last.origin if step.layout.shape == kept else None
            locals_.append(Local(made, step.shape, last.dtype, step.layout, origin))
        why = first.why._replace(path=step.path)
        given = (local,)
        yield replace(first, attributes=step.attributes, operands=given, results=(made,), why=why)
        local = made
