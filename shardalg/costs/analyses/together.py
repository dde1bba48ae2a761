"""All-reduces that are sent as one: of one kind along one set of axes, none waiting for another."""

from __future__ import annotations

from collections.abc import Iterator

from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.instructions import AllReduce

Levels = dict[AllReduce, int]
"""How many all-reduces of each kind follow one another up to a value."""


def together(block: Block) -> dict[int, tuple[Instruction, ...]]:
    """Per all-reduce, by the `id` of its instruction, those that are sent with it, itself first.

    Those at the same place of their chains, in one block, go together: the first one takes the
    others with it, which have an empty entry. So does XLA's all-reduce combiner (`xla/service/
    all_reduce_combiner.h`): of the 50 of an optimizer's step for 25 weights two are left.
    """
    found: dict[int, tuple[Instruction, ...]] = {}
    for members in _groups(block):
        found[id(members[0])] = tuple(members)
        found.update({id(other): () for other in members[1:]})
    for instruction in block.instructions:
        for body in instruction.attributes.bodies:
            found.update(together(body))
    return found


def _groups(block: Block) -> Iterator[list[Instruction]]:
    reached: dict[int, Levels] = {}
    found: dict[tuple[AllReduce, int], list[Instruction]] = {}
    for instruction in block.instructions:
        levels = _joined([reached[v] for v in instruction.operands if v in reached])
        attributes = instruction.attributes
        if isinstance(attributes, AllReduce) and attributes.sends > 0:
            level = levels.get(attributes, 0)
            found.setdefault((attributes, level), []).append(instruction)
            levels = {**levels, attributes: level + 1}
        if levels:
            reached.update(dict.fromkeys(instruction.results, levels))
    yield from found.values()


def _joined(all_levels: list[Levels]) -> Levels:
    """The largest level of each kind; chains share one dictionary, which is then no copy."""
    if not all_levels:
        return {}
    first, *rest = all_levels
    for other in rest:
        if other is not first and any(first.get(kind, 0) < n for kind, n in other.items()):
            kinds = first.keys() | other.keys()
            first = {kind: max(first.get(kind, 0), other.get(kind, 0)) for kind in kinds}
    return first
