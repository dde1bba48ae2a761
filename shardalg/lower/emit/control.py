"""Emission of the function that every device runs: its operators, loops and branches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from shardalg.graph.evaluate import apply
from shardalg.lower.around_xla import KERNEL, around_faults, kernel_binding
from shardalg.lower.emit.emitter import Array, Emitter, emits, run_block
from shardalg.spmd.bound import bound
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.instructions import Apply, Branches, Loop, Manual, While
from shardalg.spmd.local import Local


@emits(Apply)
def _apply(emitter: Emitter, instruction: Instruction[Apply], *operands: Array) -> list[Array]:
    """Emit an operator on the device's blocks, with the workarounds that XLA needs."""
    binding, params = bound(emitter.graph, instruction)
    primitive = instruction.attributes.primitive
    if primitive == "transpose" and not emitter.tiled and _is_partial_matmul(emitter, instruction):
        # XLA would fold the transpose into the matmul that made the partial sums, in a form that
        # its fast CPU kernel does not take (1.3 times the whole gradient of a feed-forward layer).
        operands = tuple(map(lax.optimization_barrier, operands))
    if primitive == KERNEL and binding is not None:
        on_cpu = not emitter.tiled
        binding = kernel_binding(emitter.graph, instruction, binding, on_cpu=on_cpu)
    operands = around_faults(emitter.program, emitter.graph, instruction)(*operands)
    return apply(primitive, binding, params, operands)


def _is_partial_matmul(emitter: Emitter, instruction: Instruction) -> bool:
    """Return whether partial sums of a product without batch dimensions are transposed.

    A barrier behind a product with batch dimensions would end the process: XLA's CPU compiler
    removes barriers after it has assigned layouts, and then folds the transpose into the product.
    The product gets the transposed layout, and a check in its emitter fails (jaxlib 0.10.2,
    `dot_op_emitter.cc`, `IsMonotonicWithDim0Major`). `jax.jit` emits no barrier there either.
    """
    # The instruction is the transpose. Its operand must be partial, and come from a product.
    graph, node = emitter.graph, instruction.node
    if not emitter.program.locals[instruction.operands[0]].sharding.unreduced or node is None:
        return False
    producer = graph.producer[graph.nodes[node].operands[0]]
    if producer is None or graph.nodes[producer].primitive != "dot_general":
        return False
    # JAX's form: ((contracting dimensions), (batch dimensions)), each of both operands.
    _, (batch, _) = graph.nodes[producer].signature.param("dimension_numbers")
    return not batch


Operands = tuple[Array, ...]


def body(emitter: Emitter) -> Callable[..., tuple[jax.Array, ...]]:
    """Return the function that every device runs, from its argument blocks to its result blocks."""

    def run(*blocks: Array) -> tuple[Array, ...]:
        block = emitter.program.block
        env = constants(emitter) | dict(zip(block.arguments, blocks, strict=True))
        return tuple(run_block(emitter, block, env))

    return run


@emits(Loop)
def _loop(emitter: Emitter, instruction: Instruction[Loop], *operands: Array) -> list[Array]:
    """Emit a loop with a known trip count as `lax.scan`; return its carries and stacked results.

    Args:
      operands: the device's blocks of the constants, the initial carries and the stacked inputs.
    """
    a = instruction.attributes
    # The operands keep the order of JAX's scan: constants, carry, stacked inputs.
    consts, rest = operands[: a.num_consts], operands[a.num_consts :]

    def body(carry: Operands, xs: Operands) -> tuple[Operands, Operands]:
        """Return the next carries and this iteration's slices of the stacked results."""
        results = _inside(emitter, a.body, *consts, *carry, *xs)
        return tuple(results[: a.num_carry]), tuple(results[a.num_carry :])

    initial, xs = tuple(rest[: a.num_carry]), tuple(rest[a.num_carry :])
    carry, ys = lax.scan(body, initial, xs, length=a.length, reverse=a.reverse)
    return [*carry, *ys]


def _inside(emitter: Emitter, block: Block, *arguments: Array) -> list[Array]:
    """Return the results of the body of a loop or a branch, given its arguments."""
    env = constants(emitter) | dict(zip(block.arguments, arguments, strict=True))
    return run_block(emitter, block, env)


@emits(While)
def _while(emitter: Emitter, instruction: Instruction[While], *operands: Array) -> list[Array]:
    """Emit a loop that ends by a condition as `lax.while_loop`."""
    a = instruction.attributes
    # JAX's order of operands: constants of the condition, constants of the body, carry.
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
    """Emit a conditional as `lax.switch`; `which` is the number of the branch that runs."""
    blocks = instruction.attributes.blocks
    return lax.switch(which, [partial(_inside, emitter, b) for b in blocks], *operands)


@emits(Manual)
def _manual(emitter: Emitter, instruction: Instruction[Manual], *operands: Array) -> list[Array]:
    return _inside(emitter, instruction.attributes.body, *operands)


def constants(emitter: Emitter) -> dict[int, Array]:
    """Return the device's blocks of the program's constants, by the number of the local value.

    A constant is an array that the user's function closes over. A sharded one is cut here.
    """
    array_of = dict(emitter.graph.constants)
    blocks = {}
    for index, value in emitter.program.constants:
        local = emitter.program.locals[index]
        blocks[index] = _own_block(emitter, jnp.asarray(array_of[value], local.dtype), local)
    return blocks


def _own_block(emitter: Emitter, array: Array, local: Local) -> Array:
    """Return the device's block of a global array that has the sharding of `local`.

    For example, of 10 elements on 4 devices, device 2 has the elements 6 to 8.
    """
    # A replicated array is its own block.
    if local.shape == array.shape:
        return array
    sharding = local.sharding
    dims = zip(array.shape, local.shape, sharding.parts, strict=True)
    # Pad to full blocks, so that the last device's slice is inside.
    array = jnp.pad(array, [(0, block * num_parts - size) for size, block, num_parts in dims])
    # The partition id is the number of the device's block along a dimension.
    starts = [
        emitter.partition_id(digits) * block
        for digits, block in zip(sharding.dims, local.shape, strict=True)
    ]
    return lax.dynamic_slice(array, starts, local.shape)
