"""Run an SPMD program for every device position on one host, in numpy.

Nothing is shared with the lowering but the program itself and JAX's primitives: collectives are
plain numpy over the groups of positions that differ in the collective's digits alone. The padding
of arguments is garbage (NaN, the largest integer), so that a mask left out is seen, and devices
that should hold copies of one block are compared after every instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardalg.algebra.digits import partition_id
from shardalg.algebra.sharding import Sharding
from shardalg.errors import ProgramError
from shardalg.graph.evaluate import apply
from shardalg.graph.ir import Graph
from shardalg.spmd import instructions as spmd
from shardalg.spmd.bound import bound
from shardalg.spmd.host.blocks import (
    Stack,
    garbage,
    groups,
    ids,
    in_order,
    item_type,
    join,
    split,
    valid,
)
from shardalg.spmd.host.host_steps import HOST_STEPS, fetched, top
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.instructions import Control
from shardalg.spmd.program import SpmdProgram

Environment = dict[int, Stack]


@dataclass(frozen=True)
class _Run:
    """The program that runs, and the graph whose primitives it applies."""

    program: SpmdProgram
    graph: Graph
    manual: bool = False
    """Whether it is in a manual region, where devices may differ in everything."""

    @property
    def positions(self) -> range:
        """All positions of the mesh."""
        return range(self.program.mesh.size)

    def place(self, instruction: Instruction) -> str:
        """The instruction in words, for messages."""
        node = instruction.node
        values = self.graph.nodes[node].results if node is not None else ()
        name = f" for {self.graph.values[values[0]].name}" if values else ""
        results = ", ".join(repr(self.program.locals[r]) for r in instruction.results)
        said = (
            "" if isinstance(instruction.attributes, Control) else f" ({instruction.attributes!r})"
        )
        return f"{_kind(instruction)} -> {results}{name}{said}"


def _kind(instruction: Instruction) -> str:
    return type(instruction.attributes).__name__


def simulate(program: SpmdProgram, graph: Graph, *global_arrays: object) -> list[np.ndarray]:
    """The function's flattened results, computed device by device from its flattened arguments.

    Raises:
      ProgramError: the arguments do not fit, copies of a value differ between devices, a local
        value has not the shape that the program declares, or a slice reaches outside its operand.
    """
    run = _Run(program, graph)
    env = _constants(run)
    _check_arguments(run, global_arrays)
    for index, array, sharding in zip(
        program.block.arguments, global_arrays, program.argument_shardings, strict=True
    ):
        dtype = program.locals[index].dtype
        array = np.asarray(array).astype(item_type(dtype), copy=False)
        blocks = split(array, sharding, garbage(dtype))
        env[index] = in_order(blocks, sharding.mesh, program.mesh)
    _run_block(run, program.block, env)
    results = list(zip(program.block.results, program.result_shardings, strict=True))
    for number, (index, sharding) in enumerate(results):
        _check_copies(run, env[index], sharding, f"result {number}: the program hands on")
    return [
        join(in_order(env[index], program.mesh, sharding.mesh), sharding)
        for index, sharding in results
    ]


def _check_arguments(run: _Run, arrays: Sequence[object]) -> None:
    shardings = run.program.argument_shardings
    if len(arrays) != len(shardings):
        raise ProgramError(f"the program takes {len(shardings)} arrays, got {len(arrays)}.")
    paths = run.graph.argument_paths or tuple(f"argument {i}" for i in range(len(arrays)))
    bad = [
        f"{path}: shape {np.shape(array)}, planned for {sharding.shape}"
        for path, array, sharding in zip(paths, arrays, shardings, strict=True)
        if np.shape(array) != sharding.shape
    ]
    if bad:
        raise ProgramError("arguments of other shapes than planned:\n  " + "\n  ".join(bad))


def _constants(run: _Run) -> Environment:
    data = dict(run.graph.constants)
    env: Environment = {}
    for index, value in run.program.constants:
        local = run.program.locals[index]
        array = np.asarray(data[value], item_type(local.dtype))
        env[index] = split(array, local.sharding, garbage(local.dtype))
    return env


def _run_block(run: _Run, block: Block, env: Environment) -> None:
    for instruction in block.instructions:
        operands = [env[index] for index in instruction.operands]
        stacks = _step(run, instruction, env, operands)
        for index, stack in zip(instruction.results, stacks, strict=True):
            _check_result(run, instruction, index, stack)
            env[index] = stack


def _step(
    run: _Run, instruction: Instruction, env: Environment, operands: list[Stack]
) -> list[Stack]:
    kind = type(instruction.attributes)
    if kind in _CONTROL:
        return _CONTROL[kind](run, instruction, env, *operands)
    try:
        return [HOST_STEPS[kind](instruction.attributes, *operands)]
    except ProgramError as error:
        raise ProgramError(f"{run.place(instruction)}: {error}") from None


def _check_result(run: _Run, instruction: Instruction, index: int, stack: Stack) -> None:
    local = run.program.locals[index]
    if stack[0].shape != local.shape:
        raise ProgramError(
            f"{run.place(instruction)} makes blocks of shape {stack[0].shape}; the program "
            f"declares {local.shape} for value {index}."
        )
    if local.origin is None or run.manual:  # a stage of an emission may differ between devices
        return
    _check_copies(run, stack, local.sharding, f"{run.place(instruction)} leaves")


def _check_copies(run: _Run, stack: Stack, sharding: Sharding, what: str) -> None:
    stack = in_order(stack, run.program.mesh, sharding.mesh)
    first: dict[tuple[int, ...], int] = {}
    for position in run.positions:
        key = (*ids(sharding, position), partition_id(sharding.unreduced, position))
        other = first.setdefault(key, position)
        inside = valid(sharding, position, stack[position].shape)
        if not _agree(stack[other], stack[position], inside):
            raise ProgramError(
                f"{what} different copies of a value, laid out as {sharding.text()}: positions "
                f"{other} and {position} should hold the same block and differ by up to "
                f"{_difference(stack[other][inside], stack[position][inside])}."
            )


def _agree(first: np.ndarray, second: np.ndarray, inside: tuple[slice, ...]) -> bool:
    if first is second:
        return True
    a, b = first[inside], second[inside]
    if not isinstance(a.dtype, np.dtype):
        return bool((a == b).all())
    if a.dtype.kind in "biu" or np.array_equal(a, b):
        return bool(np.array_equal(a, b))
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    return bool(np.allclose(a.astype(wide), b.astype(wide), rtol=1e-5, atol=1e-6, equal_nan=True))


def _difference(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.nanmax(np.abs(first.astype(np.float64) - second.astype(np.float64))))


def _apply(run: _Run, instruction: Instruction, env: Environment, *stacks: Stack) -> list[Stack]:
    attributes = instruction.attributes
    binding, params = bound(run.graph, instruction)
    done: dict[tuple[int, ...], list[np.ndarray]] = {}
    rows = []
    for position in run.positions:
        blocks = [stack[position] for stack in stacks]
        key = tuple(map(id, blocks))  # equal objects give equal results: computed once
        if key not in done:
            try:
                results = apply(attributes.primitive, binding, params, blocks)
            except (TypeError, ValueError) as error:
                what = str(error).split("\n")[0]
                raise ProgramError(f"{run.place(instruction)}: JAX refuses it: {what}") from None
            done[key] = [_on_host(result) for result in results]
        rows.append(done[key])
    return [list(stack) for stack in zip(*rows, strict=True)] if instruction.results else []


def _on_host(array: Any) -> Any:
    """A numpy array; random keys have no such form and stay what they are."""
    return np.asarray(array) if isinstance(array.dtype, np.dtype) else array


def _loop(run: _Run, instruction: Instruction, env: Environment, *stacks: Stack) -> list[Stack]:
    a = instruction.attributes
    consts, rest = stacks[: a.num_consts], stacks[a.num_consts :]
    carry, xs = list(rest[: a.num_carry]), rest[a.num_carry :]
    order = range(a.length)[::-1] if a.reverse else range(a.length)
    outputs: dict[int, list[Stack]] = {}
    for step in order:
        slices = [[block[step] for block in stack] for stack in xs]
        results = _inside(run, a.body, env, (*consts, *carry, *slices))
        carry, outputs[step] = results[: a.num_carry], results[a.num_carry :]
    return [*carry, *_stacked(run, instruction, outputs)]


def _inside(run: _Run, block: Block, env: Environment, arguments: Sequence[Stack]) -> list[Stack]:
    """The results of a block inside an instruction."""
    inner = dict(env) | dict(zip(block.arguments, arguments, strict=True))
    _run_block(run, block, inner)
    return [inner[index] for index in block.results]


def _while(run: _Run, instruction: Instruction, env: Environment, *stacks: Stack) -> list[Stack]:
    a = instruction.attributes
    first, both = a.num_consts[0], sum(a.num_consts)
    carry = list(stacks[both:])
    while True:
        (says,) = _inside(run, a.condition, env, (*stacks[:first], *carry))
        ways = _ways(run, instruction, says)
        if not any(ways):
            return carry
        after = _inside(run, a.body, env, (*stacks[first:both], *carry))
        carry = [_taken(ways, (old, new)) for old, new in zip(carry, after, strict=True)]


def _branches(
    run: _Run, instruction: Instruction, env: Environment, which: Stack, *stacks: Stack
) -> list[Stack]:
    blocks = instruction.attributes.blocks
    ways = [min(max(way, 0), len(blocks) - 1) for way in _ways(run, instruction, which)]
    made = {way: _inside(run, blocks[way], env, stacks) for way in set(ways)}
    count = len(instruction.results)
    return [_taken(ways, {way: made[way][k] for way in made}) for k in range(count)]


def _ways(run: _Run, instruction: Instruction, stack: Stack) -> list[int]:
    """The number that each device holds: outside of manual regions all must go one way."""
    ways = [int(block) for block in stack]
    if len(set(ways)) > 1 and not run.manual:
        raise ProgramError(
            f"{run.place(instruction)}: devices go different ways: {sorted(set(ways))}."
        )
    return ways


def _taken(ways: list[int], stacks: Mapping[int, Stack] | Sequence[Stack]) -> Stack:
    """Per position the block of the stack that its way leads to."""
    return [stacks[way][position] for position, way in enumerate(ways)]


def _manual(run: _Run, instruction: Instruction, env: Environment, *stacks: Stack) -> list[Stack]:
    return _inside(replace(run, manual=True), instruction.attributes.body, env, stacks)


def _stacked(run: _Run, instruction: Instruction, outputs: dict[int, list[Stack]]) -> list[Stack]:
    """What a loop hands out per iteration, on a new leading dimension."""
    a = instruction.attributes
    indices = instruction.results[a.num_carry :]
    if not a.length:
        made = [run.program.locals[index] for index in indices]
        empty = [np.zeros(local.shape, item_type(local.dtype)) for local in made]
        return [[block] * len(run.positions) for block in empty]
    return [
        [np.stack([outputs[i][k][p] for i in range(a.length)]) for p in run.positions]
        for k in range(len(indices))
    ]


def _top(run: _Run, instruction: Instruction, env: Environment, *stacks: Stack) -> list[Stack]:
    return top(instruction.attributes, *stacks)


def _fold(run: _Run, instruction: Instruction, env: Environment, *stacks: Stack) -> list[Stack]:
    count, node = len(instruction.results), run.graph.nodes[instruction.node]
    results = [list(stack) for stack in stacks[:count]]
    binding, params = bound(run.graph, instruction)
    for group in groups(instruction.attributes.digits, len(run.positions)):
        every = [np.stack([stack[p] for p in group]) for stack in stacks[:count]]
        numbers = [stack[group[0]] for stack in stacks[count:]]
        joined = apply(node.primitive, binding, params, [*every, *numbers])
        for result, one in zip(results, joined, strict=True):
            for position in group:
                result[position] = _on_host(one)
    return results


_CONTROL: dict[type, Callable[..., list[Stack]]] = {
    spmd.Apply: _apply,
    spmd.Fetch: lambda _, instruction, __, *xs: fetched(instruction.attributes, *xs),
    spmd.Loop: _loop,
    spmd.While: _while,
    spmd.Branches: _branches,
    spmd.Manual: _manual,
    spmd.Top: _top,
    spmd.Fold: _fold,
}
