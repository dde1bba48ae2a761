"""An operator of the function, on the device's blocks."""

from __future__ import annotations

from jax import lax

from shardalg.graph.evaluate import apply
from shardalg.lower.around_xla import around_faults, refuse_kernel
from shardalg.lower.emit.emitter import Array, Emitter, emits
from shardalg.spmd.bound import bound
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import Apply


@emits(Apply)
def _apply(emitter: Emitter, instruction: Instruction[Apply], *operands: Array) -> list[Array]:
    binding, params = bound(emitter.graph, instruction)
    primitive = instruction.attributes.primitive
    if primitive == "transpose" and not emitter.tiled and _is_partial(emitter, instruction):
        # XLA would fold the transpose into the matmul that made the partial sums, in a form that
        # its fast CPU kernel does not take (1.3 times the whole gradient of a feed-forward layer).
        operands = tuple(map(lax.optimization_barrier, operands))
    if not emitter.tiled:
        refuse_kernel(emitter.graph, instruction)
    operands = around_faults(emitter.program, emitter.graph, instruction)(*operands)
    return apply(primitive, binding, params, operands)


def _is_partial(emitter: Emitter, instruction: Instruction) -> bool:
    return bool(emitter.program.locals[instruction.operands[0]].sharding.unreduced)
