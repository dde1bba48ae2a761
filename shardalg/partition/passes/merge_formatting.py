"""Formatting of one value that repeats, continues or undoes itself becomes one instruction.

    mask(mask(x)) = mask(x)                    resize(resize(x)) = resize(x), if nothing was cut off
    slice(slice(x)) = slice(x)                 permute(permute(x)) = permute(x), pairs composed
and what is done twice to one value in one phase is done once. GSPMD, arXiv:2105.04663, section 4.6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardalg.spmd.instruction import Attributes, Block, Instruction
from shardalg.spmd.instructions import (
    CollectivePermute,
    Concatenate,
    Control,
    DynamicSlice,
    Mask,
    MaskAt,
    Resize,
    Slice,
    SliceAt,
    kinds,
)
from shardalg.spmd.local import Local

REPEATED = frozenset({Concatenate, DynamicSlice, Mask, MaskAt, Resize, Slice, SliceAt})
"""Local instructions that cost nothing to keep: a second one like it in a phase is left out."""
Shape = tuple[int, ...]


def joined(block: Block, locals_: Sequence[Local]) -> Block:
    """The same block with its formatting joined; what nobody reads any more stays in it."""
    return _Joining(locals_).run(block)


@dataclass
class _Joining:
    """One block: who made its locals, what stands for a local, and what was done to which."""

    locals: Sequence[Local]
    made: dict[int, Instruction] = field(default_factory=dict)
    stands: dict[int, int] = field(default_factory=dict)
    done: dict[tuple[Attributes, tuple[int, ...], str], int] = field(default_factory=dict)

    def run(self, block: Block) -> Block:
        """The joined block."""
        kept, stands = [], self.stands.keys()
        for instruction in block.instructions:
            if type(instruction.attributes) in _JOINED or not stands.isdisjoint(
                instruction.operands
            ):
                instruction = self.step(instruction)
            kept.append(instruction)
        results = tuple([self.stands.get(local, local) for local in block.results])
        return replace(block, instructions=tuple(kept), results=results)

    def step(self, instruction: Instruction) -> Instruction:
        """An instruction on what stands for its operands, together with the one before it."""
        instruction = self.reading(instruction)
        if self.makes_a_value(instruction):
            self.made.update(dict.fromkeys(instruction.results, instruction))
            return instruction
        if len(instruction.operands) == 1 and type(instruction.attributes) in _JOINS:
            instruction = self.joined(instruction)
        if self.does_nothing(instruction):
            self.stands[instruction.results[0]] = instruction.operands[0]
        elif type(instruction.attributes) in REPEATED:
            (result,) = instruction.results
            key = (instruction.attributes, instruction.operands, instruction.phase)
            self.stands[result] = self.done.setdefault(key, result)
        self.made.update(dict.fromkeys(instruction.results, instruction))
        return instruction

    def makes_a_value(self, instruction: Instruction) -> bool:
        """Whether its result is another value of the graph than its operand: a user's permute."""
        if type(instruction.attributes) not in _JOINS:
            return False
        sides = {
            self.locals[local].origin for local in (*instruction.operands, *instruction.results)
        }
        return len(sides - {None}) > 1

    def reading(self, instruction: Instruction) -> Instruction:
        """With what stands for its operands, and joined bodies."""
        operands = instruction.operands
        if not self.stands.keys().isdisjoint(operands):
            operands = tuple([self.stands.get(local, local) for local in operands])
        blocks = [_Joining(self.locals).run(body) for body in instruction.attributes.bodies]
        if blocks:
            attributes = instruction.attributes.with_bodies(blocks)
            return replace(instruction, attributes=attributes, operands=operands)
        if operands is instruction.operands:
            return instruction
        return replace(instruction, operands=operands)

    def joined(self, instruction: Instruction) -> Instruction:
        """With the instruction before it in it, if they are of one kind that joins."""
        before = self.made.get(instruction.operands[0])
        second = instruction.attributes
        if before is None or type(before.attributes) is not type(second):
            return instruction
        if self.makes_a_value(before):
            return instruction
        (source, *_) = before.operands
        one = _JOINS[type(second)](before.attributes, second, self.locals[source].shape)
        if one is None:
            return instruction
        return replace(instruction, attributes=one, operands=(source,))

    def does_nothing(self, instruction: Instruction) -> bool:
        """Whether the result is the operand."""
        known = _NOTHING.get(type(instruction.attributes))
        if known is None:
            return False
        return known(instruction.attributes, self.locals[instruction.operands[0]].shape)


def _masks(first: Mask, second: Mask, shape: Shape) -> Mask | None:
    return first if first == second else None


def _resizes(first: Resize, second: Resize, shape: Shape) -> Resize | None:
    """What is padded may be stripped at once; what is stripped is gone."""
    kept = first.size >= shape[first.dim] or second.size <= first.size
    return second if first.dim == second.dim and kept else None


def _slices(first: Slice, second: Slice, shape: Shape) -> Slice | None:
    if first.dim != second.dim:
        return None
    return Slice(first.dim, first.start + second.start, second.size)


def _permutes(
    first: CollectivePermute, second: CollectivePermute, shape: Shape
) -> CollectivePermute | None:
    """The device that the second serves gets what the first brought to its server."""
    came = {target: source for source, target in first.pairs}
    if any(source not in came for source, _ in second.pairs):
        return None
    digits = tuple(sorted({*first.digits, *second.digits}, reverse=True))
    return CollectivePermute(digits, tuple((came[s], t) for s, t in second.pairs))


_JOINS: Mapping[type, Callable[..., Attributes | None]] = {
    CollectivePermute: _permutes,
    DynamicSlice: lambda first, second, shape: None,
    Mask: _masks,
    MaskAt: lambda first, second, shape: None,
    Resize: _resizes,
    Slice: _slices,
    SliceAt: lambda first, second, shape: None,
}
_NOTHING: Mapping[type, Callable[..., bool]] = {
    CollectivePermute: lambda a, shape: all(source == target for source, target in a.pairs),
    Resize: lambda a, shape: a.size == shape[a.dim],
    Slice: lambda a, shape: a.size == shape[a.dim],
}
_JOINED = frozenset({*_JOINS, *_NOTHING, *REPEATED, *kinds(Control)})
"""What may be joined or holds blocks; all else stays as it is."""
