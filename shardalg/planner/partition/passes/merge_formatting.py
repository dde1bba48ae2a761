"""The pass that merges formatting: masks, resizes, slices and permutes of one value.

Two instructions in sequence that repeat, continue or undo each other become one:

    mask(mask(x)) = mask(x)                    resize(resize(x)) = resize(x), if nothing was cut off
    slice(slice(x)) = slice(x)                 permute(permute(x)) = permute(x), pairs composed
Equal instructions on one value in one phase are emitted once. Source: GSPMD, arXiv:2105.04663,
section 4.6.
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
"""Local instructions of which a phase keeps only the first of several equal ones."""
# These are formatting only if operand and result are copies of one graph value. Otherwise the user
# wrote the operation, which stays.
OF_ONE_VALUE = (CollectivePermute, DynamicSlice, Mask, MaskAt, Resize, Slice, SliceAt)
Shape = tuple[int, ...]


def _merged_permute(
    first: CollectivePermute, second: CollectivePermute, shape: Shape
) -> CollectivePermute | None:
    """Return one permute for two in sequence.

    None if a device sends in the second permute without receiving in the first.
    """
    source_of = {target: source for source, target in first.pairs}
    if any(source not in source_of for source, _ in second.pairs):
        return None
    digits = tuple(sorted({*first.digits, *second.digits}, reverse=True))
    return CollectivePermute(digits, tuple((source_of[s], t) for s, t in second.pairs))


_COMPOSED: Mapping[type, Callable[..., Attributes | None]] = {
    CollectivePermute: _merged_permute,
    Mask: lambda first, second, shape: first if first == second else None,
    # Padding can be stripped again, but elements that were stripped are lost: a resize that shrinks
    # and then grows writes padding over them.
    Resize: lambda first, second, shape: (
        second
        if (first.size >= shape[first.dim] or second.size <= first.size) and first.dim == second.dim
        else None
    ),
    # The second start counts from the first start.
    Slice: lambda first, second, shape: (
        Slice(first.dim, first.start + second.start, second.size)
        if first.dim == second.dim
        else None
    ),
}
_IDENTITY: Mapping[type, Callable[..., bool]] = {
    CollectivePermute: lambda a, shape: all(source == target for source, target in a.pairs),
    Resize: lambda a, shape: a.size == shape[a.dim],
    Slice: lambda a, shape: a.size == shape[a.dim],
}


@dataclass
class MergeFormatting(Rewriter):
    """The rewriter that merges masks, resizes, slices and permutes of one value.

    Attributes:
      made: the formatting instruction that computes a local value, by this value.
      done: the result of each formatting instruction so far, by (instruction, operands, phase).
    """

    needs = (CollectivePermute, *REPEATED)

    made: dict[int, Instruction] = field(default_factory=dict, init=False)
    done: dict[tuple[Attributes, tuple[int, ...], str], int] = field(
        default_factory=dict, init=False
    )

    def keep_other_values(self, instruction: Instruction) -> Instruction | None:
        """Keep a move between two graph values unchanged; return None if it is one.

        An example is a permute that the user wrote, which is no formatting. Any other instruction
        is returned, so that the pass applies its next rule.
        """
        ends = (*instruction.operands, *instruction.results)
        if len({self.locals[local].origin for local in ends} - {None}) < 2:
            return instruction
        self.kept.append(instruction)
        return None

    def compose(self, instruction: Instruction) -> Instruction:
        """Return the instruction merged with the one that computes its operand, if possible.

        Only two instructions of one kind are merged. Any other is returned as it is.
        """
        before, second = self.made.get(instruction.operands[0]), instruction.attributes
        if before is None or type(before.attributes) is not type(second):
            return instruction
        (source, *_) = before.operands
        one = _COMPOSED[type(second)](before.attributes, second, self.locals[source].shape)
        if one is None:
            return instruction
        # The first instruction stays for its other readers; without any, `DropUnread` removes it.
        return replace(instruction, attributes=one, operands=(source,))

    def drop_identity(self, instruction: Instruction) -> Instruction | int:
        """Return the operand if the instruction changes nothing; otherwise the instruction."""
        (operand,), attributes = instruction.operands, instruction.attributes
        is_identity = _IDENTITY[type(attributes)](attributes, self.locals[operand].shape)
        return operand if is_identity else instruction

    def share(self, instruction: Instruction) -> Instruction | int:
        """Return the result of an earlier equal instruction of the same phase.

        If there is none, the instruction itself is returned.
        """
        # A result that another phase reads would stay in memory between the phases, so equal
        # instructions of different phases stay separate.
        (result,) = instruction.results
        key = (instruction.attributes, instruction.operands, instruction.phase)
        known = self.done.setdefault(key, result)
        return instruction if known == result else known

    def note(self, instruction: Instruction) -> Instruction:
        """Record an instruction in `made`, so that later ones can be merged with it."""
        self.made[instruction.results[0]] = instruction
        return instruction

    rules = (
        (OF_ONE_VALUE, keep_other_values),
        (_COMPOSED, compose),  # f(f(x)) = f(x)
        (_IDENTITY, drop_identity),  # f(x) = x
        (REPEATED, share),  # f(x), f(x) = one f(x)
        (_COMPOSED, note),
    )
