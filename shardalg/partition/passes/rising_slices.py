"""What works element by element works on the block that is kept of it, and nothing else is sent.

    dynamic_slice(all_reduce(x) + y) = reduce_scatter(x) + dynamic_slice(y)
Where a sum or a gathered value goes through operators on elements before it is cut, the cut comes
first; with the movement before it, it then is one (`joined_moves`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardalg.algebra.derived_layouts import interned
from shardalg.graph.ir import Graph
from shardalg.ops.rows import rules
from shardalg.partition.choose.node_classes import elementwise
from shardalg.spmd.instruction import Block, Collective, Instruction, is_a
from shardalg.spmd.instructions import Apply, Control, DynamicSlice
from shardalg.spmd.local import Local
from shardalg.spmd.program import SpmdProgram


def slices_raised(program: SpmdProgram, graph: Graph) -> SpmdProgram:
    """The same program, where blocks are cut before what works on their elements."""
    locals_ = list(program.locals)
    block = _raised(program.block, graph, locals_)
    return replace(program, locals=tuple(locals_), block=block)


@dataclass
class _Reading:
    """A block's instructions, by what they make, and how often each local is read."""

    instructions: list[Instruction]
    made: dict[int, int]
    read: Counter[int]

    def maker(self, local: int) -> tuple[int, Instruction] | None:
        """What makes a local that is read once."""
        number = self.made.get(local) if self.read[local] == 1 else None
        return None if number is None else (number, self.instructions[number])


def _raised(block: Block, graph: Graph, locals_: list[Local]) -> Block:
    instructions = list(block.instructions)
    for number, one in enumerate(instructions):
        if isinstance(one.attributes, Control):
            blocks = [_raised(body, graph, locals_) for body in one.attributes.bodies]
            instructions[number] = replace(one, attributes=one.attributes.with_bodies(blocks))
    cuts = [n for n, one in enumerate(instructions) if is_a(one, DynamicSlice)]
    given = {instructions[n].operands[0] for n in cuts}
    if not any(is_a(one, Apply) and not given.isdisjoint(one.results) for one in instructions):
        return replace(block, instructions=tuple(instructions))
    made = {r: n for n, one in enumerate(instructions) for r in one.results}
    read = Counter(local for one in instructions for local in one.operands)
    read.update(block.results)
    reading = _Reading(instructions, made, read)
    placed: dict[int, list[Instruction]] = {}
    for cut in cuts:
        chain = _chain(reading, instructions[cut].operands[0], graph, locals_)
        if chain and not placed.keys() & chain:
            placed[cut] = []
            placed |= _cut_first(reading, cut, chain, graph, locals_)
    every = (placed.get(number, [one]) for number, one in enumerate(instructions))
    return replace(block, instructions=tuple([one for place in every for one in place]))


def _chain(
    reading: _Reading, local: int, graph: Graph, locals_: Sequence[Local]
) -> tuple[int, ...]:
    """Operators from a local up to what a collective brought there; none where none did."""
    found = reading.maker(local)
    if found is None or not _is_plain(found[1], graph, locals_):
        return ()
    number, operator = found
    for operand in operator.operands:
        above = reading.maker(operand) if locals_[operand].shape else None
        if above and isinstance(above[1].attributes, Collective) and above[1].why.path:
            return (number,)
        chain = _chain(reading, operand, graph, locals_) if above else ()
        if chain:
            return (number, *chain)
    return ()


def _is_plain(instruction: Instruction, graph: Graph, locals_: Sequence[Local]) -> bool:
    """Whether it works on elements of blocks that are not padded."""
    if not is_a(instruction, Apply) or instruction.node is None or len(instruction.results) != 1:
        return False
    signature = graph.nodes[instruction.node].signature
    same = instruction.attributes.primitive == signature.primitive
    alike = {type_.shape for type_ in signature.operands} <= {(), signature.results[0].shape}
    held = [locals_[n] for n in (*instruction.operands, *instruction.results)]
    whole = all(one.shape == one.sharding.shard_shape for one in held)
    return same and alike and whole and elementwise(signature)


def _cut_first(
    reading: _Reading, cut: int, chain: Sequence[int], graph: Graph, locals_: list[Local]
) -> dict[int, list[Instruction]]:
    """What stands in the place of each operator: its operands cut, and the operator on blocks."""
    slice_ = reading.instructions[cut]
    assert is_a(slice_, DynamicSlice), "what cuts is a slice of the own block"
    block = slice_.attributes
    placed: dict[int, list[Instruction]] = {}
    blocks: dict[int, int] = {}
    for number in reversed(chain):
        operator, steps = reading.instructions[number], placed.setdefault(number, [])
        for operand in operator.operands:
            if operand not in blocks and locals_[operand].shape:
                blocks[operand] = _sliced(operand, block, locals_)
                ends = (operand,), (blocks[operand],)
                steps.append(replace(slice_, operands=ends[0], results=ends[1]))
        (made,) = operator.results
        last = number == chain[0]
        blocks[made] = slice_.results[0] if last else _sliced(made, block, locals_)
        attributes = _narrower(operator, block, graph)
        given = tuple([blocks.get(operand, operand) for operand in operator.operands])
        results = (blocks[made],)
        steps.append(replace(operator, attributes=attributes, operands=given, results=results))
    return placed


def _sliced(local: int, cut: DynamicSlice, locals_: list[Local]) -> int:
    """A new local: the own block of another one."""
    held, layout = locals_[local], locals_[local].sharding
    dims = list(layout.dims)
    dims[cut.dim] = (*dims[cut.dim], *cut.digits)
    kept = interned(layout.mesh, layout.shape, tuple(dims), layout.unreduced)
    made = len(locals_)
    locals_.append(replace(held, index=made, shape=kept.shard_shape, sharding=kept))
    return made


def _narrower(operator: Instruction, cut: DynamicSlice, graph: Graph) -> Apply:
    """The operator on blocks: the loop of the dimension has the digits of the cut, too."""
    assert is_a(operator, Apply), "what works on elements is an operator"
    assert operator.node is not None, "of a node"
    rows = rules(graph.nodes[operator.node].signature)
    assert rows is not None, "with a row"
    name = rows[0].results[0][cut.dim].loop
    assert name, "of a loop per dimension"
    loops = dict(operator.attributes.loops)
    loops[name] = (*loops.get(name, ()), *cut.digits)
    return replace(operator.attributes, loops=tuple(loops.items()))
