"""Chains of operators that a compiler fuses: which go along with a product.

A chain is what pointwise operators, and reductions, make of each other without memory between
them. One without a reduction that stands before or behind a product is carried out with it, while
the matrix unit works. A reduction must end before what it gives is spread over its operand again:
such a chain is a kernel of its own (softmax, norms), and so is one that is next to no product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardalg.costs.fusion import fuses, is_view, reduces, viewed
from shardalg.costs.walk import walk
from shardalg.graph.ir import Graph
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import Apply
from shardalg.spmd.program import SpmdProgram


@dataclass(frozen=True)
class Chains:
    """What is fused in a program.

    Attributes:
      with_products: by the identity of an instruction, whether its chain goes along with a product.
    """

    with_products: Mapping[int, bool]

    def along(self, instruction: Instruction) -> bool:
        """Whether an instruction is a product, or is carried out with one."""
        return self.with_products.get(id(instruction), True)


def chains(program: SpmdProgram, graph: Graph, inside: frozenset[int]) -> Chains:
    """The chains of a program; `inside` as `costs.fusion.fused` and `on_chip` give it."""
    steps = [step.instruction for step in walk(program)]
    fusing = [ins for ins in steps if fuses(ins, graph)]
    products = [ins for ins in steps if _is_product(ins, graph)]
    made = {value: place for place, ins in enumerate(fusing) for value in ins.results}
    joined = _Joined(len(fusing))
    for place, ins in enumerate(fusing):
        for value in ins.operands:
            if value in made and (value in inside or is_view(fusing[made[value]])):
                joined.join(place, made[value])
    by_product = {v for ins in products for v in ins.results}
    for_product = {v for ins in products for v in ins.operands}
    views = [ins for ins in fusing if is_view(ins)]
    for ins in views:
        by_product.update(made for value, made in viewed(ins) if value in by_product)
    for ins in reversed(views):
        for_product.update(value for value, made in viewed(ins) if made in for_product)
    touches = {
        joined.first(place)
        for place, ins in enumerate(fusing)
        if not by_product.isdisjoint(ins.operands) or not for_product.isdisjoint(ins.results)
    }
    summing = {joined.first(place) for place, ins in enumerate(fusing) if reduces(ins, graph)}
    along = {id(ins): joined.first(place) in touches - summing for place, ins in enumerate(fusing)}
    return Chains(along)


class _Joined:
    """Numbers that were joined, directly or through others, have one first number."""

    def __init__(self, count: int) -> None:
        self.above = list(range(count))

    def first(self, number: int) -> int:
        """Of those that a number was joined with."""
        while self.above[number] != number:
            self.above[number] = number = self.above[self.above[number]]
        return number

    def join(self, one: int, other: int) -> None:
        """Make two numbers, and all that they were joined with, one."""
        self.above[self.first(one)] = self.first(other)


def _is_product(instruction: Instruction, graph: Graph) -> bool:
    return type(instruction.attributes) is Apply and not fuses(instruction, graph)
