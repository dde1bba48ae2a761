"""Donated arguments: which results XLA writes in their place.

XLA aliases a donated argument with a result of the same block shape and item type, each once. The
memory of other donated arguments stays taken until the program ends. So does the memory of an
argument that nothing reads: `jax.jit` does not pass it to the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardalg.spmd.program import SpmdProgram


def reused(program: SpmdProgram, donated: Sequence[int]) -> Mapping[int, int]:
    """Return the donated argument in whose memory a result is written, by result.

    Args:
      donated: positions of the flattened arguments.

    Returns:
      Local values; results without such an argument are left out.
    """
    held, found = program.locals, {}
    block = program.block
    read = {v for one in block.instructions for v in one.operands} | set(block.results)
    free = [v for v in (block.arguments[position] for position in donated) if v in read]
    for result in dict.fromkeys(program.block.results):
        made = held[result]
        for argument in free:
            if held[argument].dtype == made.dtype and held[argument].shape == made.shape:
                free.remove(argument)
                found[result] = argument
                break
    return found
