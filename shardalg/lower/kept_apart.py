"""Copies that a program makes twice on purpose: freed after the forward pass, gathered again.

XLA merges equal operators. The second of two equal collectives would then be the first one, whose
result is alive from the forward pass to the backward pass: what the plan frees (`keep_gathers`) is
held after all. So the operand of the second goes through an `optimization_barrier`, as that of what
`jax.checkpoint` computes again, together with
- what its consumer reads beside the copy, the latest that is there by then: no compiler can gather
  before that is made;
- what became of the gathered copies that are not read any more, repeated ones and others: a
  compiler that computed the gradients of weights when the optimizer asks for them would hold the
  gathered activations until then. The last one is not waited for, so that two are left at a time,
  and one can move while the other is used.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from shardalg.graph.ir import Graph
from shardalg.spmd.instruction import Block, Collective, Instruction, Operator
from shardalg.spmd.instructions import AllGather

Made = Mapping[int, int]
"""Local to the position of the instruction that makes it."""
Readers = Mapping[int, Sequence[int]]
"""Local to the positions of the instructions that read it."""
AT_ONCE = 2


def repeated(graph: Graph, block: Block) -> dict[int, tuple[int, ...]]:
    """The collectives of a block that are equal to an earlier one of it.

    Returns:
      Position in the block to the locals that the collective waits for.
    """
    found = list(_equal_to_earlier(graph, block))
    if not found:
        return {}
    made = {r: at for at, i in enumerate(block.instructions) for r in i.results}
    readers = _readers(block)
    open_copies = _copies(block, block.instructions[found[0]].phase)
    waits = {}
    for at in found:
        before = open_copies[: max(0, bisect_left(open_copies, at) + 1 - AT_ONCE)]
        done = [copy for copy in before if all(i < at for i in _reads(block, copy, readers))]
        open_copies = [copy for copy in open_copies if copy not in done]
        became = (local for copy in done for local in _became(block, copy, at, readers))
        waits[at] = tuple(dict.fromkeys((*_latest_beside(block, at, made), *became)))
    return waits


def _copies(block: Block, phase: str) -> list[int]:
    """Where whole values are gathered in a phase."""
    found = enumerate(block.instructions)
    return [at for at, i in found if type(i.attributes) is AllGather and i.phase == phase]


def _readers(block: Block) -> Readers:
    """Per local, the positions of the instructions that read it; one past the end for a result."""
    found: dict[int, list[int]] = defaultdict(list)
    for at, instruction in enumerate(block.instructions):
        for operand in dict.fromkeys(instruction.operands):
            found[operand].append(at)
    for result in block.results:
        found[result].append(len(block.instructions))
    return found


def _equal_to_earlier(graph: Graph, block: Block) -> Iterator[int]:
    first: dict[int, int] = {}  # a local to the first one of equal content
    known: dict[object, tuple[int, ...]] = {}
    for position, instruction in enumerate(block.instructions):
        attributes, node = instruction.attributes, instruction.node
        # Only an operator depends on the node that it is for; a move is what its attributes say.
        own = None if node is None or _moves(instruction) else graph.nodes[node].signature
        key = attributes, own, tuple(first.get(local, local) for local in instruction.operands)
        earlier = known.setdefault(key, instruction.results)
        if earlier is instruction.results:
            continue
        if isinstance(attributes, Collective):
            yield position
        else:
            first.update(zip(instruction.results, earlier, strict=True))


def _latest_beside(block: Block, position: int, made: Made) -> tuple[int, ...]:
    """Of what the nearest consumer reads beside a result, the latest that is made before it."""
    mine = set(block.instructions[position].results)
    for instruction in block.instructions[position + 1 :]:
        if mine.isdisjoint(instruction.operands):
            continue
        beside = set(instruction.operands) - mine
        there = {local for o in beside for local in _there(block, o, position, made)}
        if there:
            return (max(there, key=made.__getitem__),)
        mine |= set(instruction.results)
    return ()


def _there(block: Block, local: int, position: int, made: Made) -> Iterator[int]:
    """A local, or what it is made of, as far as instructions before the position make it."""
    at = made.get(local)
    if at is None or at == position:
        return
    if at < position:
        yield local
        return
    for operand in block.instructions[at].operands:
        yield from _there(block, operand, position, made)


def _became(block: Block, copy: int, end: int, readers: Readers) -> Iterator[int]:
    """What is made of a copy before `end` and still read after it, nearest to the copy."""
    seen: set[int] = set()
    waiting = list(block.instructions[copy].results)
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        if any(at > end for at in readers[value]):
            yield value
        else:
            makers = (block.instructions[at] for at in readers[value] if at < end)
            waiting += [result for instruction in makers for result in instruction.results]


def _reads(block: Block, position: int, readers: Readers) -> list[int]:
    """Where the results of an instruction are read."""
    return [at for local in block.instructions[position].results for at in readers[local]]


def _moves(instruction: Instruction) -> bool:
    return not isinstance(instruction.attributes, Operator)
