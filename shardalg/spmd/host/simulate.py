"""Run an SPMD program for every device position on one host, in numpy.

The lowering shares only the program itself and JAX's primitives with this code: collectives are
plain numpy over the groups of positions that differ in the collective's digits alone. The padding
of arguments is garbage (NaN, the largest integer), so that a missing mask shows. Devices that
should hold copies of one block are compared after every instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardalg.errors import ProgramError
from shardalg.graph.ir import Graph
from shardalg.spmd.host import collective_matmul, collectives, control, joins, masks, pads, slices
from shardalg.spmd.host.blocks import Stack, in_order, join_blocks, split_array
from shardalg.spmd.host.run import HostRun, check_copies, run_block
from shardalg.spmd.program import SpmdProgram

REGISTERED = (collective_matmul, collectives, control, joins, masks, pads, slices)
"""Modules that register their functions in `SIMULATE` when they are imported."""


def simulate(program: SpmdProgram, graph: Graph, *global_arrays: Any) -> list[np.ndarray]:
    """Return the function's flattened results, computed device by device from its arguments.

    Raises:
      ProgramError: the arguments do not fit, copies of a value differ between devices, a local
        value does not have the declared shape, or a slice reaches outside its operand.
    """
    run = HostRun(program, graph, _constants(program, graph))
    _check_arguments(run, global_arrays)
    arguments = []
    for index, array, sharding in zip(
        program.block.arguments, global_arrays, program.argument_shardings, strict=True
    ):
        dtype = program.locals[index].dtype
        blocks = split_array(array, sharding, dtype)
        # An argument may have another device order than the program.
        arguments.append(in_order(blocks, sharding.mesh, program.mesh))
    stacks = run_block(run, program.block, arguments)
    results = list(zip(stacks, program.result_shardings, strict=True))
    for number, (stack, sharding) in enumerate(results):
        check_copies(run, stack, sharding, f"result {number}: the program returns")
    return [
        join_blocks(in_order(stack, program.mesh, sharding.mesh), sharding)
        for stack, sharding in results
    ]


def _check_arguments(run: HostRun, arrays: Sequence[Any]) -> None:
    """Raise unless the arrays have the number and the shapes for which the program was planned."""
    shardings = run.program.argument_shardings
    if len(arrays) != len(shardings):
        raise ProgramError(f"the program takes {len(shardings)} arrays, got {len(arrays)}.")
    # All wrong arguments are listed: a user who corrects one of several would meet the next error.
    paths = run.graph.argument_paths or tuple(f"argument {i}" for i in range(len(arrays)))
    faults = [
        f"{path}: shape {np.shape(array)}, planned for {sharding.shape}"
        for path, array, sharding in zip(paths, arrays, shardings, strict=True)
        if np.shape(array) != sharding.shape
    ]
    if faults:
        raise ProgramError("arguments of other shapes than planned:\n  " + "\n  ".join(faults))


def _constants(program: SpmdProgram, graph: Graph) -> dict[int, Stack]:
    """Return the blocks of the program's constants, by local: a block per device for each."""
    data = dict(graph.constants)
    stack_of: dict[int, Stack] = {}
    for index, value in program.constants:
        local = program.locals[index]
        stack_of[index] = split_array(data[value], local.sharding, local.dtype)
    return stack_of
