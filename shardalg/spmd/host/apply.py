"""An operator of the function, by JAX on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardalg.errors import ProgramError
from shardalg.graph.evaluate import apply
from shardalg.spmd.bound import bound
from shardalg.spmd.host.blocks import Stack
from shardalg.spmd.host.run import Run, simulates
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import Apply


@simulates(Apply)
def _apply(run: Run, instruction: Instruction[Apply], *stacks: Stack) -> list[Stack]:
    primitive = instruction.attributes.primitive
    binding, params = bound(run.graph, instruction)
    done: dict[tuple[int, ...], list[np.ndarray]] = {}
    rows = []
    for position in run.positions:
        blocks = [stack[position] for stack in stacks]
        key = tuple(map(id, blocks))  # equal objects give equal results: computed once
        if key not in done:
            try:
                results = apply(primitive, binding, params, blocks)
            except (TypeError, ValueError) as error:
                what = str(error).split("\n")[0]
                raise ProgramError(f"{run.place(instruction)}: JAX refuses it: {what}") from None
            done[key] = [on_host(result) for result in results]
        rows.append(done[key])
    return [list(stack) for stack in zip(*rows, strict=True)] if instruction.results else []


def on_host(array: Any) -> Any:
    """A numpy array; random keys have no such form and stay what they are."""
    return np.asarray(array) if isinstance(array.dtype, np.dtype) else array
