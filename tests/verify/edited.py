"""Planned programs that are taken apart and put together otherwise."""

from dataclasses import replace

from shardalg.spmd.instruction import Instruction, infer_types
from shardalg.spmd.instructions import AllReduce
from shardalg.spmd.local import Local


class Edited:
    """A plan's program that is taken apart."""

    def __init__(self, plan):
        self.program = plan.program
        self.digits = plan.program.mesh.digits(("X",))
        self.locals, self.steps = list(plan.program.locals), list(plan.program.block.instructions)
        self.results, self.border = plan.program.block.results, {}

    def place(self, kind):
        return max(k for k, step in enumerate(self.steps) if isinstance(step.attributes, kind))

    def left_out(self, kind):
        """Leave out the step; its operand takes its place."""
        step = self.steps.pop(self.place(kind))
        self.read_instead(step.results[0], step.operands[0])
        return step

    def read_instead(self, old, new):
        def renamed(locals_):
            return tuple(new if local == old else local for local in locals_)

        self.steps = [replace(step, operands=renamed(step.operands)) for step in self.steps]
        self.results = renamed(self.results)

    def like(self, local, **more):
        made = replace(self.locals[local], index=len(self.locals), origin=None, **more)
        self.locals.append(made)
        return made.index

    def partial(self, local):
        """Declare the sharding of a local as a partial sum along X."""
        return replace(self.locals[local].sharding, unreduced=self.digits)

    def says_partial(self, local):
        self.locals[local] = replace(self.locals[local], sharding=self.partial(local))

    def changed_first(self, local, attributes):
        """Whatever reads a local reads it changed."""
        made = self.like(local)
        first = next(k for k, step in enumerate(self.steps) if local in step.operands)
        self.read_instead(local, made)
        node = self.steps[first].node
        self.steps.insert(first, Instruction(attributes, (local,), (made,), node))

    def summed_behind(self, place):
        """Make the result of a step a partial sum, summed after it."""
        step = self.steps[place]
        (result,) = step.results
        made = self.like(result, sharding=self.partial(result))
        self.steps[place] = replace(step, results=(made,))
        self.steps.insert(
            place + 1, Instruction(AllReduce(self.digits), (made,), (result,), step.node)
        )

    @property
    def made(self):
        block = replace(self.program.block, instructions=tuple(self.steps), results=self.results)
        return replace(self.program, locals=tuple(self.locals), block=block, **self.border)


def before(plan, number, operand, moves):
    """Return the program with moves of an operand before the instruction of that number."""
    program = plan.program
    locals_, steps = list(program.locals), list(program.block.instructions)
    step = steps[number]
    held = step.operands[operand]
    added = []
    for move in moves:
        ((shape, dtype),) = infer_types(move, [(locals_[held].shape, locals_[held].dtype)])
        layout = locals_[held].sharding
        locals_.append(Local(len(locals_), shape, dtype, layout, None))
        added.append(Instruction(move, (held,), (len(locals_) - 1,), step.node))
        held = len(locals_) - 1
    operands = list(step.operands)
    operands[operand] = held
    steps[number : number + 1] = [*added, replace(step, operands=tuple(operands))]
    return replace(
        program, locals=tuple(locals_), block=replace(program.block, instructions=tuple(steps))
    )


def tampered(plan, kind, change):
    """Return the program with another instruction in place of one kind."""

    def changed(step):
        known = isinstance(step.attributes, kind)
        return replace(step, attributes=change(step.attributes)) if known else step

    block = plan.program.block
    steps = tuple(map(changed, block.instructions))
    assert steps != block.instructions
    return replace(plan.program, block=replace(block, instructions=steps))
