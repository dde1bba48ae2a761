"""Operands of a local operator, so that XLA's simplifier does not make another operator of it.

XLA makes one slice of two, and one update of two, and adds their starts without clamping each
(openxla/xla issue 49121). In a partitioned program the second of them is the device's block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from shardalg.graph.ir import Graph
from shardalg.ops.families.indexing import numbers
from shardalg.ops.rows import rules
from shardalg.ops.rule import Access
from shardalg.spmd.bound import node_of
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import Apply
from shardalg.spmd.program import SpmdProgram

Array = Any
Operands = tuple[Array, ...]


def around_faults(
    program: SpmdProgram, graph: Graph, instruction: Instruction[Apply]
) -> Callable[..., Operands]:
    """What is done to the operands of an `Apply` before it runs; mostly nothing."""
    if _writes_at_indices(graph, instruction):
        return _apart
    if instruction.attributes.primitive == "dynamic_slice":
        sizes = program.locals[instruction.results[0]].shape
        return lambda x, *starts: _clamped_starts(x, starts, sizes)
    if instruction.attributes.primitive == "gather" and instruction.node is not None:
        return lambda x, indices: _clamped_indices(graph, instruction, (x, indices))
    return lambda *operands: operands


def _writes_at_indices(graph: Graph, instruction: Instruction[Apply]) -> bool:
    """Whether it writes updates over its own block, at places known at run time."""
    if not instruction.attributes.loops:
        return False
    rows = rules(node_of(graph, instruction).signature)
    return any(row.guards and isinstance(row.init, Access) for row in rows or ())


def _apart(block: Array, *rest: Array) -> Operands:
    """An index that misses the block would write what another block holds."""
    return lax.optimization_barrier(block), *rest


def _clamped_starts(x: Array, starts: Operands, sizes: tuple[int, ...]) -> Operands:
    """Starts of a dynamic slice, clamped as the operator does it."""
    highest = (size - length for size, length in zip(x.shape, sizes, strict=True))
    return x, *(_clipped(start, h) for start, h in zip(starts, highest, strict=True))


def _clamped_indices(graph: Graph, instruction: Instruction[Apply], operands: Operands) -> Operands:
    """Indices of a gather that clips."""
    node, (x, indices) = node_of(graph, instruction).signature, operands
    param: dict[str, Any] = dict(node.params) | dict(instruction.attributes.params)
    for component, dim in enumerate(numbers(node).selected if param.get("mode") == "CLIP" else ()):
        highest = x.shape[dim] - param["slice_sizes"][dim]
        part = _clipped(indices[..., component], highest)
        indices = indices.at[..., component].set(part)
    return x, indices


def _clipped(start: Array, highest: int) -> Array:
    return jnp.clip(start, 0, min(highest, int(jnp.iinfo(start.dtype).max)))
