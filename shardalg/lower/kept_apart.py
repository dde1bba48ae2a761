"""Copies that a program makes twice on purpose: freed after the forward pass, gathered again.

XLA merges equal operators. The second of two equal collectives would then be the first one, whose
result is alive from the forward pass to the backward pass: what the plan frees (`keep_gathers`) is
held after all. So the operand of the second goes through an `optimization_barrier`, as that of what
`jax.checkpoint` computes again, together with
- what its consumer reads beside the copy, the latest that is there by then: no compiler can gather
  before that is made;
- what became of the copy before the last one: a compiler that computed the gradients of weights
  when the optimizer asks for them would hold the gathered activations until then. Two copies at a
  time are left, so that one can move while the other is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardalg.graph.ir import Graph
from shardalg.spmd.instruction import Block, Collective, Instruction, Operator

Made = Mapping[int, int]
"""Local to the position of the instruction that makes it."""
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
    read = {o: at for at, i in enumerate(block.instructions) for o in i.operands}
    read |= dict.fromkeys(block.results, len(block.instructions))
    before = [None] * AT_ONCE + found
    return {
        at: tuple({*_latest_beside(block, at, made), *_became(block, earlier, at, read)})
        for at, earlier in zip(found, before, strict=False)
    }


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


def _became(block: Block, start: int | None, end: int, read: Mapping[int, int]) -> tuple[int, ...]:
    """The last of what is made of a result until `end` and still read after it, if anything is.

    Args:
      read: local to where it is read last.
    """
    if start is None:
        return ()
    mine, kept = set(block.instructions[start].results), None
    for instruction in block.instructions[start + 1 : end]:
        if not mine.isdisjoint(instruction.operands):
            mine |= set(instruction.results)
            kept = next((r for r in instruction.results if read.get(r, -1) > end), kept)
    return () if kept is None else (kept,)


def _moves(instruction: Instruction) -> bool:
    return not isinstance(instruction.attributes, Operator)
