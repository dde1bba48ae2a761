"""What every device runs: its blocks of instructions, one inside another."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from shardalg.lower.emit.emitter import Array, Emitter, emits, run_block
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.instructions import Branches, Loop, Manual, While
from shardalg.spmd.local import Local

Operands = tuple[Array, ...]


def body(emitter: Emitter) -> Callable[..., tuple[jax.Array, ...]]:
    """The function that every device runs, from its argument blocks to its result blocks."""

    def run(*blocks: Array) -> tuple[Array, ...]:
        block = emitter.program.block
        env = constants(emitter) | dict(zip(block.arguments, blocks, strict=True))
        return tuple(run_block(emitter, block, env))

    return run


@emits(Loop)
def _loop(emitter: Emitter, instruction: Instruction[Loop], *operands: Array) -> list[Array]:
    a = instruction.attributes
    consts, rest = operands[: a.num_consts], operands[a.num_consts :]

    def body(carry: Operands, xs: Operands) -> tuple[Operands, Operands]:
        results = _inside(emitter, a.body, *consts, *carry, *xs)
        return tuple(results[: a.num_carry]), tuple(results[a.num_carry :])

    initial, xs = tuple(rest[: a.num_carry]), tuple(rest[a.num_carry :])
    carry, ys = lax.scan(body, initial, xs, length=a.length, reverse=a.reverse)
    return [*carry, *ys]


def _inside(emitter: Emitter, block: Block, *arguments: Array) -> list[Array]:
    """The results of a block inside an instruction."""
    env = constants(emitter) | dict(zip(block.arguments, arguments, strict=True))
    return run_block(emitter, block, env)


@emits(While)
def _while(emitter: Emitter, instruction: Instruction[While], *operands: Array) -> list[Array]:
    a = instruction.attributes
    first, both = a.num_consts[0], sum(a.num_consts)

    def goes_on(carry: list[Array]) -> Array:
        return _inside(emitter, a.condition, *operands[:first], *carry)[0]

    def body(carry: list[Array]) -> list[Array]:
        return _inside(emitter, a.body, *operands[first:both], *carry)

    return lax.while_loop(goes_on, body, list(operands[both:]))


@emits(Branches)
def _branches(
    emitter: Emitter, instruction: Instruction[Branches], which: Array, *operands: Array
) -> list[Array]:
    blocks = instruction.attributes.blocks
    return lax.switch(which, [partial(_inside, emitter, b) for b in blocks], *operands)


@emits(Manual)
def _manual(emitter: Emitter, instruction: Instruction[Manual], *operands: Array) -> list[Array]:
    return _inside(emitter, instruction.attributes.body, *operands)


def constants(emitter: Emitter) -> dict[int, Array]:
    """The program's constants on every device: its own block of a sharded one."""
    data = dict(emitter.graph.constants)
    env = {}
    for index, value in emitter.program.constants:
        local = emitter.program.locals[index]
        env[index] = _own_block(emitter, jnp.asarray(data[value], local.dtype), local)
    return env


def _own_block(emitter: Emitter, array: Array, local: Local) -> Array:
    if local.shape == array.shape:
        return array
    sharding = local.sharding
    parts = zip(array.shape, local.shape, sharding.parts, strict=True)
    array = jnp.pad(array, [(0, block * n - size) for size, block, n in parts])
    starts = [emitter.partition_id(d) * n for d, n in zip(sharding.dims, local.shape, strict=True)]
    return lax.dynamic_slice(array, starts, local.shape)
