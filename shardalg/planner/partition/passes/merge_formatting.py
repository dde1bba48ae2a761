"""Formatting of one value that repeats, continues or undoes itself becomes one instruction.

    mask(mask(x)) = mask(x)                    resize(resize(x)) = resize(x), if nothing was cut off
    slice(slice(x)) = slice(x)                 permute(permute(x)) = permute(x), pairs composed
and what is done twice to one value in one phase is done once. GSPMD, arXiv:2105.04663, section 4.6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from shardalg.spmd.instruction import Attributes, Instruction
from shardalg.spmd.instructions import (
    CollectivePermute,
    Concatenate,
    DynamicSlice,
    Mask,
    MaskAt,
    Resize,
    Slice,
    SliceAt,
)
from shardalg.spmd.rewrite import Rewriter

REPEATED = (Concatenate, DynamicSlice, Mask, MaskAt, Resize, Slice, SliceAt)
"""Local instructions that cost nothing to keep: a second one like it in a phase is left out."""
OF_ONE_VALUE = (CollectivePermute, DynamicSlice, Mask, MaskAt, Resize, Slice, SliceAt)
"""Instructions that are formatting if operand and result are one value of the graph."""
Shape = tuple[int, ...]


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


_COMPOSED: Mapping[type, Callable[..., Attributes | None]] = {
    CollectivePermute: _permutes,
    Mask: _masks,
    Resize: _resizes,
    Slice: _slices,
}
_IDENTITY: Mapping[type, Callable[..., bool]] = {
    CollectivePermute: lambda a, shape: all(source == target for source, target in a.pairs),
    Resize: lambda a, shape: a.size == shape[a.dim],
    Slice: lambda a, shape: a.size == shape[a.dim],
}


@dataclass
class MergeFormatting(Rewriter):
    """Formatting of one value that repeats, continues or undoes itself is one instruction.

    Attributes:
      made: per local, the formatting that makes it.
      done: formatting of a phase, with its operands, to its result.
    """

    needs = (CollectivePermute, *REPEATED)

    made: dict[int, Instruction] = field(default_factory=dict, init=False)
    done: dict[tuple[Attributes, tuple[int, ...], str], int] = field(
        default_factory=dict, init=False
    )

    def keep_other_values(self, instruction: Instruction) -> Instruction | None:
        """Keep an instruction that makes another value of the graph: a user's permute."""
        ends = (*instruction.operands, *instruction.results)
        if len({self.locals[local].origin for local in ends} - {None}) < 2:
            return instruction
        self.kept.append(instruction)
        return None

    def compose(self, instruction: Instruction) -> Instruction:
        """Return one instruction in place of two of one kind that follow one another."""
        before, second = self.made.get(instruction.operands[0]), instruction.attributes
        if before is None or type(before.attributes) is not type(second):
            return instruction
        (source, *_) = before.operands
        one = _COMPOSED[type(second)](before.attributes, second, self.locals[source].shape)
        if one is None:
            return instruction
        return replace(instruction, attributes=one, operands=(source,))

    def drop_identity(self, instruction: Instruction) -> Instruction | int:
        """Return the operand of an instruction that changes nothing."""
        (operand,), attributes = instruction.operands, instruction.attributes
        is_identity = _IDENTITY[type(attributes)](attributes, self.locals[operand].shape)
        return operand if is_identity else instruction

    def share(self, instruction: Instruction) -> Instruction | int:
        """Return the result of an equal instruction of the phase."""
        (result,) = instruction.results
        key = (instruction.attributes, instruction.operands, instruction.phase)
        known = self.done.setdefault(key, result)
        return instruction if known == result else known

    def note(self, instruction: Instruction) -> Instruction:
        """Note the formatting that makes a local."""
        self.made[instruction.results[0]] = instruction
        return instruction

    rules = (
        (OF_ONE_VALUE, keep_other_values),
        (_COMPOSED, compose),  # f(f(x)) = f(x)
        (_IDENTITY, drop_identity),  # f(x) = x
        (REPEATED, share),  # f(x), f(x) = one f(x)
        (_COMPOSED, note),
    )
