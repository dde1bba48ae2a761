"""Rewrite a program by rules: one driver substitutes values, enters bodies and applies the rules.

A pass is a subclass of `Rewriter`. It lists its rules, each with the kinds of instructions that it
reads; the driver does the rest. The idea is MLIR's pattern rewriting (xDSL's `RewritePattern`,
tinygrad's `graph_rewrite`). A block is visited once, from its first instruction to its last one, so
that a rule sees operands that are rewritten already.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from shardalg.spmd.instruction import Attributes, Block, Instruction
from shardalg.spmd.instructions import Control, kinds
from shardalg.spmd.local import Local
from shardalg.spmd.program import SpmdProgram

Kinds = Collection[type[Attributes]]
Rule = Callable[[Any, Instruction[Any]], Instruction | int | None]
"""Return the new instruction, the local that replaces the instruction's only result, or None.

None means that the rule has put the replacement into `Rewriter.kept` itself.
"""


@dataclass
class Rewriter:
    """The rules of a pass, and the rewriting of one block by these rules.

    A body gets a rewriter of its own: fields of `__init__` are shared with it, all others are new.

    Attributes:
      rules: kinds of instructions and the rule for these kinds, in order of application.
      needs: kinds of instructions; a block without them is returned unchanged.
      leaves: kinds of control flow whose bodies are not rewritten.
      locals: locals of the program. A rule may append to them.
      kept: the rewritten instructions, in order.
      replaced: local to the local that is read in its place from here on.

    >>> import shardalg as sa
    >>> from shardalg.spmd.instructions import Resize
    >>> class DropResizes(Rewriter):
    ...     def drop(self, instruction):
    ...         return instruction.operands[0]
    ...     rules = (((Resize,), drop),)
    >>> whole = sa.Sharding(sa.Mesh({"X": 2}), (4,), ((),))
    >>> rewriter = DropResizes([Local(i, (4,), "float32", whole) for i in range(3)])
    >>> steps = [Instruction(Resize(0, 4), (i,), (i + 1,), None) for i in range(2)]
    >>> rewriter.run(Block((0,), tuple(steps), (2,)))
    Block(arguments=(0,), instructions=(), results=(0,))
    """

    rules: ClassVar[tuple[tuple[Kinds, Rule], ...]] = ()
    needs: ClassVar[Kinds] = kinds()
    leaves: ClassVar[Kinds] = ()
    _rules_of: ClassVar[Mapping[type, tuple[Rule, ...]]] = {}

    locals: list[Local]
    kept: list[Instruction] = field(default_factory=list, init=False)
    replaced: dict[int, int] = field(default_factory=dict, init=False)

    def __init_subclass__(cls) -> None:
        """Collect the rules of a pass by kind of instruction, when its class is defined."""
        rules_of_kind: dict[type, tuple[Rule, ...]] = {}
        # Bodies are rewritten first, so that the pass's own rules see them in their final form.
        for some, rule in ((set(kinds(Control)) - {*cls.leaves}, Rewriter.entered), *cls.rules):
            for kind in some:
                rules_of_kind[kind] = (*rules_of_kind.get(kind, ()), rule)
        cls._rules_of = rules_of_kind

    def run(self, block: Block) -> Block:
        """Return the block after all rules of the pass were applied to its instructions.

        Substitutions of locals are applied to all later instructions and to the results.
        """
        # Most blocks contain nothing for a pass, and `kinds` is cached per block.
        if block.kinds.isdisjoint(self.needs):
            return block
        self.begin(block)
        # A pass without a rule for this block may still change all of it at once in `finish`.
        rules_of, replaced, keep = self._rules_of, self.replaced, self.kept.append
        if block.kinds.isdisjoint(rules_of):
            return self.finish(block)
        replaces_none = replaced.keys().isdisjoint
        for instruction in block.instructions:
            # Substitute first, so that rules see the operands that the rewritten program has.
            if not replaces_none(instruction.operands):
                operands = tuple([replaced.get(local, local) for local in instruction.operands])
                instruction = replace(instruction, operands=operands)
            rules = rules_of.get(type(instruction.attributes))
            if rules is None:
                keep(instruction)
            else:
                self._apply(rules, instruction)
        results = tuple([replaced.get(local, local) for local in block.results])
        return self.finish(replace(block, instructions=tuple(self.kept), results=results))

    def _apply(self, rules: tuple[Rule, ...], instruction: Instruction) -> None:
        """Apply the rules to an instruction in turn, and record the result.

        A rule returns an instruction, which the next rule gets; or a local, which replaces the
        instruction's result; or None, if the rule has recorded the result itself.
        """
        for rule in rules:
            outcome = rule(self, instruction)
            # The rule has put its own instructions into `kept`.
            if outcome is None:
                return
            if isinstance(outcome, int):
                (result,) = instruction.results
                self.replaced[result] = outcome
                return
            instruction = outcome
        self.kept.append(instruction)

    def begin(self, block: Block) -> None:
        """Collect facts of a block before its first instruction is visited; passes override it."""

    def finish(self, block: Block) -> Block:
        """Return the rewritten block; a pass overrides this to change the whole block at once."""
        return block

    def entered(self, instruction: Instruction) -> Instruction:
        """Return a loop or another instruction with bodies, after this pass has rewritten these."""
        # Each body gets a new rewriter: `kept` and `replaced` belong to one block.
        blocks = [replace(self).run(body) for body in instruction.attributes.bodies]
        return replace(instruction, attributes=instruction.attributes.with_bodies(blocks))


def rewrite(program: SpmdProgram, rewriter: Rewriter) -> SpmdProgram:
    """Apply a pass to a program and return the rewritten program.

    Its local values are those of `rewriter.locals`, to which rules of the pass may add new ones.
    """
    block = rewriter.run(program.block)
    # Nothing changed, so everything that is cached for the program stays valid.
    if block is program.block:
        return program
    return replace(program, locals=tuple(rewriter.locals), block=block)


def blocks(block: Block) -> Iterator[Block]:
    """Yield a block and all blocks inside of it, from the outside in."""
    yield block
    for instruction in block.instructions:
        for body in instruction.attributes.bodies:
            yield from blocks(body)


def instructions(block: Block) -> Iterator[Instruction]:
    """Yield every instruction of a block and of the blocks inside of it."""
    for each in blocks(block):
        yield from each.instructions
