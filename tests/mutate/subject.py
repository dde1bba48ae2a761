"""A program that is tampered with, and how parts of it are taken out, added and replaced."""

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property

from shardalg.spmd.instruction import Instruction
from tests.mutate.fields import at, changed, places
from tests.mutate.shapes import rederived
from tests.mutate.values import Other

RESIZED = 0.6
"""Share of those whose values are resized to the shapes that they had."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A program to mutate, with an index of its contents.

    Attributes:
      before: of a program that was tampered with already, the one before.
    """

    program: object
    graph: object
    before: object = None

    @cached_property
    def places(self):
        """(place, value) of everything in the program."""
        return [(place, value) for place, value in places(self.program) if place.steps]

    @cached_property
    def kinds(self):
        """Kind of field to its places."""
        found = defaultdict(list)
        for place, _ in self.places:
            found[place.kind].append(place)
        return dict(found)

    @cached_property
    def pool(self):
        """Kind of field to the values there, each once."""
        if self.before is not None:
            return self.before.pool
        found = defaultdict(dict)
        for place, value in self.places:
            found[place.kind][value] = None
        return {kind: list(values) for kind, values in found.items()}

    @cached_property
    def instructions(self):
        """Steps to every instruction, and the instruction."""
        return [(p.steps, v) for p, v in self.places if isinstance(v, Instruction)]

    @cached_property
    def moves(self):
        """Return the instructions that make one local of others and have no blocks."""
        return [
            (steps, step)
            for steps, step in self.instructions
            if len(step.results) == 1 and step.operands and not step.attributes.bodies
        ]

    def other(self, rng):
        return Other(rng, self.program, self.pool)

    def settled(self, rng, program):
        """Give the locals of a mutated program their new shapes, or keep their old ones."""
        return rederived(self.program, program, self.graph, resized=rng.random() < RESIZED)


def name(step):
    """Return the kind of an instruction."""
    return type(step.attributes).__name__


def with_fields(program, steps, **more):
    """Return the program with other fields at a place."""
    return changed(program, steps, replace(at(program, steps), **more))


def with_local(program, like):
    """Return the program with one more local, a stage of an emission, and its index."""
    index = len(program.locals)
    made = replace(program.locals[like], index=index, origin=None)
    return replace(program, locals=(*program.locals, made)), index


def without(program, steps):
    """Return the program without an instruction."""
    *block, _, number = steps
    before = at(program, block).instructions
    return with_fields(program, block, instructions=(*before[:number], *before[number + 1 :]))


def with_behind(program, steps, extra):
    """Return the program with one more instruction after another one."""
    *block, _, number = steps
    before = at(program, block).instructions
    return with_fields(
        program, block, instructions=(*before[: number + 1], extra, *before[number + 1 :])
    )


def renamed(program, names):
    """Return the program with readers that read other locals."""

    def of_block(block):
        results = tuple(names.get(r, r) for r in block.results)
        return replace(block, instructions=tuple(map(of_step, block.instructions)), results=results)

    def of_step(step):
        operands = tuple(names.get(o, o) for o in step.operands)
        blocks = [of_block(body) for body in step.attributes.bodies]
        if not blocks and operands == step.operands:
            return step
        return replace(step, operands=operands, attributes=step.attributes.with_bodies(blocks))

    return replace(program, block=of_block(program.block))


def made_of(program, locals_):
    """All locals that are made of these."""
    found = set(locals_)
    for _, step in places(program.block):
        if isinstance(step, Instruction) and found & set(step.operands):
            found |= set(step.results)
    return found
