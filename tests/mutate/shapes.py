"""Shapes and types of a tampered program, derived again so that its structure holds together."""

from dataclasses import dataclass, field, replace
from functools import lru_cache

import jax
import numpy as np

from shardalg.graph.evaluate import apply
from shardalg.spmd.bound import bound
from shardalg.spmd.host.blocks import item_type
from shardalg.spmd.host.run import SIMULATE
from shardalg.spmd.instructions import (
    Apply,
    Branches,
    Control,
    Fold,
    HaloExchange,
    Loop,
    Resize,
    Top,
    While,
)
from tests.partition.planned import instructions


class Derivation:
    """Locals of a program whose operands changed get the shape that they then have.

    Where it is `resized`, what an instruction makes is padded or stripped to the shape that it had,
    of whatever kind it is: nothing behind it changes, and the border is as it was.
    """

    def __init__(self, before, program, graph, *, resized):
        self.program, self.graph, self.resized = program, graph, resized
        self.locals = list(program.locals)
        known = before.locals
        self.other = {x.index for x, y in zip(self.locals, known, strict=False) if x is not y}
        self.other |= set(range(len(known), len(self.locals)))
        self.same = {id(step) for step in instructions(before.block)}

    def run(self):
        """Return the program with the present locals."""
        block = self.block(self.program.block)
        return replace(self.program, block=block, locals=tuple(self.locals))

    def block(self, block):
        """Return the block with the present instructions."""
        steps = [one for step in block.instructions for one in self.settled(step)]
        return replace(block, instructions=tuple(steps))

    def settled(self, step):
        """Return the instruction, and instructions that restore its results' shapes."""
        if step.attributes.bodies:
            return [self.around(step)]
        if id(step) in self.same and self.other.isdisjoint(step.operands):
            return [step]
        results, more = list(step.results), []
        for k, (local, made) in enumerate(zip(step.results, self.made(step), strict=False)):
            if self.resized and self.is_resizable(local, *made):
                results[k], steps = self.back(step, local, made[0])
                more += steps
            else:
                self.set(local, *made)
        return [replace(step, results=tuple(results)), *more]

    def is_resizable(self, local, shape, dtype):
        old = self.locals[local]
        return (len(old.shape), old.dtype) == (len(shape), dtype)

    def back(self, step, local, shape):
        """Return a local of the shape, and the instructions that resize it to `local`."""
        old = self.locals[local]
        dims = [d for d, pair in enumerate(zip(shape, old.shape, strict=True)) if len({*pair}) > 1]
        stages, steps = [], []
        for dim in dims:
            stages.append(len(self.locals))
            self.locals.append(replace(old, index=stages[-1], shape=shape, origin=None))
            shape = (*shape[:dim], old.shape[dim], *shape[dim + 1 :])
        stages.append(local)
        for dim, *pair in zip(dims, stages, stages[1:], strict=False):
            resize, (before, after) = Resize(dim, old.shape[dim]), pair
            steps.append(replace(step, attributes=resize, operands=(before,), results=(after,)))
        return stages[0], steps

    def around(self, step):
        """Arguments of blocks follow what they are given, and results of the step theirs."""
        a, operands = step.attributes, [self.locals[o] for o in step.operands]
        fixed, given = len(operands), [operands] * 4
        if isinstance(a, Loop):
            fixed = a.num_consts + a.num_carry
        elif isinstance(a, While):
            first, both = a.num_consts[0], sum(a.num_consts)
            given = [[*operands[:first], *operands[both:]], operands[first:]]
        elif isinstance(a, Branches):
            given = [operands[1:]] * len(a.blocks)
        blocks = list(a.bodies)
        for number, (block, outer) in enumerate(zip(a.bodies, given, strict=False)):
            for k, (local, one) in enumerate(zip(block.arguments, outer, strict=False)):
                self.set(local, one.shape if k < fixed else one.shape[1:], one.dtype)
            blocks[number] = self.block(block)
        stacked = a.num_carry if isinstance(a, Loop) else len(step.results)
        for k, (local, inner) in enumerate(zip(step.results, block.results, strict=False)):
            leading = () if k < stacked else (a.length,)
            self.set(local, (*leading, *self.locals[inner].shape), self.locals[inner].dtype)
        return replace(step, attributes=a.with_bodies(blocks))

    def set(self, local, shape, dtype):
        old = self.locals[local]
        if (old.shape, old.dtype) != (shape, dtype):
            self.locals[local] = replace(old, shape=shape, dtype=dtype)
            self.other.add(local)

    def made(self, step):
        """(shape, type) of every result."""
        types = tuple((self.locals[o].shape, self.locals[o].dtype) for o in step.operands)
        if isinstance(step.attributes, Apply):
            graph = self.graph
            return applied(Key(step.node, step.attributes, types, id(graph), graph, step))
        if isinstance(step.attributes, Control | HaloExchange | Fold | Top):
            return types
        stacks = [
            [np.zeros(shape, item_type(dtype))] * self.program.mesh.size for shape, dtype in types
        ]
        made = SIMULATE[type(step.attributes)](None, step, *stacks)[0][0]
        return [(made.shape, made.dtype.name)]


@dataclass(frozen=True)
class Key:
    """The key of an operator's result types."""

    node: int
    attributes: object
    types: tuple
    number: int
    graph: object = field(compare=False)
    step: object = field(compare=False)


@lru_cache(maxsize=1 << 14)
def applied(key):
    """Return result types by JAX's abstract evaluation of the primitive on local operands."""
    binding, params = bound(key.graph, key.step)
    given = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in key.types]
    made = jax.eval_shape(
        lambda *xs: apply(key.step.attributes.primitive, binding, params, xs), *given
    )
    return [(one.shape, str(one.dtype)) for one in made]


def rederived(before, program, graph, *, resized):
    """Return the program with derived shapes; unchanged if an instruction cannot run on them."""
    try:
        return Derivation(before, program, graph, resized=resized).run()
    except Exception:  # it stays malformed: that, too, wants a verdict
        return program
