"""What operators make of padding that is filled: numbers of numbers, on every device alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardalg.graph.ir import Signature
from shardalg.graph.ops.families.pointwise import Number
from shardalg.graph.ops.loops import moves_none, number_along, operands_along
from shardalg.graph.ops.rule import SUM
from shardalg.verify.contents import Contents, Fill, Held, fill_number
from shardalg.verify.operators.local_rows import Run


@dataclass(frozen=True)
class Filling:
    """An operator whose operands may be filled beyond their elements."""

    run: Run
    signature: Signature
    operands: Mapping[int, Contents]

    def made(self, nth: int, said: Contents) -> Contents:
        """A result with what stands beyond its elements.

        Place `x` of it is made of place `x` of the operands, which hold no element either.
        """
        plain = moves_none(self.run.rule) and moves_none(self.run.local)
        if not plain or any(held.changes or held.viewed for held in self.operands.values()):
            return said
        pairs = zip(self.run.rule.results[nth], said.dims, strict=True)
        dims = tuple(
            replace(held, fill=_named(self.along(index.loop, held))) if index.loop else held
            for index, held in pairs
        )
        return replace(said, dims=dims, number=self.along("", None))

    def along(self, loop: str, beside: Held | None) -> Number | None:
        """The number beyond the elements of a loop; with no loop the one that all elements are."""
        along = operands_along(self.run.rule, loop)
        if along is None or along != operands_along(self.run.local, loop):
            return None
        numbers = {k: self.operands[k].number for k in along}
        places = [(k, dim) for k, dim in along.items() if dim is not None]
        fills = {(k, dim): self.fill(k, dim, beside) for k, dim in places}
        return number_along(self.signature, along, numbers, fills)

    def fill(self, operand: int, dim: int, beside: Held | None) -> Number | None:
        """What stands where an operand has no element, if it lies as the result does."""
        held = self.operands[operand].dims[dim]
        if beside is None:
            return None
        if replace(held, fill=beside.fill) != beside or held.base != 1 or held.wanted:
            return None
        return fill_number(held.fill, self.signature.operands[operand].dtype)


def _named(number: Number | None) -> Fill:
    """Zero by its name."""
    return SUM if number is not None and number == 0 else number
