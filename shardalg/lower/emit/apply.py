"""An operator of the function, on the device's blocks."""

from __future__ import annotations

from jax import lax

from shardalg.graph.evaluate import apply
from shardalg.lower.around_xla import around_faults
from shardalg.lower.emit.emitter import Array, Emitter, emits
from shardalg.lower.kernels import KERNEL, kernel_binding
from shardalg.spmd.bound import bound
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import Apply


@emits(Apply)
def _apply(emitter: Emitter, instruction: Instruction[Apply], *operands: Array) -> list[Array]:
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
    graph, node = emitter.graph, instruction.node
    if not emitter.program.locals[instruction.operands[0]].sharding.unreduced or node is None:
        return False
    maker = graph.producer[graph.nodes[node].operands[0]]
    if maker is None or graph.nodes[maker].primitive != "dot_general":
        return False
    _, (batch, _) = graph.nodes[maker].signature.param("dimension_numbers")
    return not batch
