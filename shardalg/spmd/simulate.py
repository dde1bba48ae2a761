"""Run an SPMD program for every device position on one host, in numpy.

Nothing is shared with the lowering but the program itself and JAX's primitives: collectives are
plain numpy over the groups of positions that differ in the collective's digits alone. The padding
of arguments is garbage (NaN, the largest integer), so that a mask left out is seen, and devices
that should hold copies of one block are compared after every instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shardalg.algebra.digits import Digits, partition_id
from shardalg.errors import ProgramError
from shardalg.graph.evaluate import apply
from shardalg.graph.ir import Graph, Params
from shardalg.spmd import program as spmd
from shardalg.spmd.blocks import Stack, garbage, groups, ids, item_type, join, split, valid
from shardalg.spmd.identity import identity
from shardalg.spmd.program import Block, Instruction, SpmdProgram

Environment = dict[int, Stack]
_UFUNCS = {
    "sum": np.add,
    "product": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "pick": np.add,
}


@dataclass(frozen=True)
class _Run:
    """The program that runs, and the graph whose primitives it applies."""

    program: SpmdProgram
    graph: Graph

    @property
    def positions(self) -> range:
        return range(self.program.mesh.size)

    def bound(self, instruction: Instruction) -> tuple[object, Params]:
        """JAX's own primitive and parameters, None in a loaded graph, and what replaces them."""
        changed, node = instruction.attributes.params, instruction.node
        if node is None or self.graph.bindings:
            return None if node is None else self.graph.bindings[node], changed
        own = dict(self.graph.nodes[node].signature.params)
        return None, tuple({**own, **dict(changed)}.items())

    def place(self, instruction: Instruction) -> str:
        """The instruction in words, for messages."""
        node = instruction.node
        values = self.graph.nodes[node].results if node is not None else ()
        name = f" for {self.graph.values[values[0]].name}" if values else ""
        results = ", ".join(repr(self.program.locals[r]) for r in instruction.results)
        return f"{_kind(instruction)} -> {results}{name} ({instruction.attributes!r})"


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
        env[index] = split(array, sharding, garbage(dtype))
    _run_block(run, program.block, env)
    stacks = [env[index] for index in program.block.results]
    return [join(s, sharding) for s, sharding in zip(stacks, program.result_shardings, strict=True)]


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
        step = _STEPS[type(instruction.attributes)]
        stacks = step(run, instruction, env, *operands)
        for index, stack in zip(instruction.results, stacks, strict=True):
            _check_result(run, instruction, index, stack)
            env[index] = stack


def _check_result(run: _Run, instruction: Instruction, index: int, stack: Stack) -> None:
    local = run.program.locals[index]
    if stack[0].shape != local.shape:
        raise ProgramError(
            f"{run.place(instruction)} makes blocks of shape {stack[0].shape}; the program "
            f"declares {local.shape} for value {index}."
        )
    if local.origin is None:  # a stage of an emission may differ between devices
        return
    sharding = local.sharding
    first: dict[tuple[int, ...], int] = {}
    for position in run.positions:
        key = (*ids(sharding, position), partition_id(sharding.unreduced, position))
        other = first.setdefault(key, position)
        inside = valid(sharding, position, local.shape)
        if not _agree(stack[other], stack[position], inside):
            raise ProgramError(
                f"{run.place(instruction)} leaves different copies of value {index}, laid out as "
                f"{sharding.text()}: positions {other} and {position} should hold the same block "
                f"and differ by up to {_difference(stack[other][inside], stack[position][inside])}."
            )


def _agree(first: np.ndarray, second: np.ndarray, inside: tuple[slice, ...]) -> bool:
    if first is second:
        return True
    a, b = first[inside], second[inside]
    if a.dtype.kind in "biu" or np.array_equal(a, b):
        return bool(np.array_equal(a, b))
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    return bool(np.allclose(a.astype(wide), b.astype(wide), rtol=1e-5, atol=1e-6, equal_nan=True))


def _difference(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.nanmax(np.abs(first.astype(np.float64) - second.astype(np.float64))))


# One function per kind of instruction: (run, instruction, environment, *operand stacks) -> stacks.


def _shared(run: _Run, function: Callable[..., np.ndarray], *stacks: Stack) -> Stack:
    """`function(position, *blocks)` at every position."""
    return [function(position, *(s[position] for s in stacks)) for position in run.positions]


def _apply(run: _Run, instruction: Instruction, env: Environment, *stacks: Stack) -> list[Stack]:
    attributes = instruction.attributes
    binding, params = run.bound(instruction)
    done: dict[tuple[int, ...], list[np.ndarray]] = {}
    rows = []
    for position in run.positions:
        blocks = [stack[position] for stack in stacks]
        key = tuple(map(id, blocks))  # equal objects give equal results: computed once
        if key not in done:
            results = apply(attributes.primitive, binding, params, blocks)
            done[key] = [np.asarray(result) for result in results]
        rows.append(done[key])
    return [list(stack) for stack in zip(*rows, strict=True)] if instruction.results else []


def _exchange(
    run: _Run, digits: Digits, stack: Stack, function: Callable[[list[np.ndarray]], list]
) -> list[Stack]:
    """`function(blocks of a group)` gives the blocks that its members hold afterwards."""
    result: Stack = [stack[0]] * len(stack)
    for group in groups(digits, len(stack)):
        for position, block in zip(group, function([stack[p] for p in group]), strict=True):
            result[position] = block
    return [result]


def _all_gather(run: _Run, instruction: Instruction, env: Environment, x: Stack) -> list[Stack]:
    a = instruction.attributes
    return _exchange(run, a.digits, x, lambda blocks: [np.concatenate(blocks, a.dim)] * len(blocks))


def combined(blocks: list[np.ndarray], combine: str) -> np.ndarray:
    """`blocks` joined elementwise; sums of 2-byte floats are kept in f32, as XLA keeps them."""
    if combine not in _UFUNCS:
        raise ProgramError(f"no collective joins by {combine!r}; known: {sorted(_UFUNCS)}.")
    array = np.stack(blocks)
    if array.dtype == np.bool_ and combine in ("sum", "pick"):
        combine = "or"
    if array.dtype.itemsize == 2 and array.dtype.kind in "fV":
        return _UFUNCS[combine].reduce(array.astype(np.float32)).astype(array.dtype)
    return _UFUNCS[combine].reduce(array, dtype=array.dtype)


def _all_reduce(run: _Run, instruction: Instruction, env: Environment, x: Stack) -> list[Stack]:
    a = instruction.attributes
    return _exchange(run, a.digits, x, lambda blocks: [combined(blocks, a.combine)] * len(blocks))


def _reduce_scatter(run: _Run, instruction: Instruction, env: Environment, x: Stack) -> list[Stack]:
    a = instruction.attributes
    return _exchange(
        run,
        a.digits,
        x,
        lambda blocks: _pieces(run, instruction, combined(blocks, a.combine), a.dim, len(blocks)),
    )


def _pieces(
    run: _Run, instruction: Instruction, block: np.ndarray, dim: int, n: int
) -> list[np.ndarray]:
    if block.shape[dim] % n:
        raise ProgramError(
            f"{run.place(instruction)}: {block.shape[dim]} elements of dimension {dim} cannot be "
            f"split among {n} devices. Resize the dimension to a multiple first."
        )
    return np.split(block, n, dim)


def _all_to_all(run: _Run, instruction: Instruction, env: Environment, x: Stack) -> list[Stack]:
    a = instruction.attributes

    def swap(blocks: list[np.ndarray]) -> list[np.ndarray]:
        sent = [_pieces(run, instruction, b, a.split_dim, len(blocks)) for b in blocks]
        return [np.concatenate(row, a.concat_dim) for row in zip(*sent, strict=True)]

    return _exchange(run, a.digits, x, swap)


def _permute(run: _Run, instruction: Instruction, env: Environment, x: Stack) -> list[Stack]:
    result = [np.zeros_like(block) for block in x]
    for source, target in instruction.attributes.pairs:
        result[target] = x[source]
    return [result]


def _dynamic_slice(run: _Run, instruction: Instruction, env: Environment, x: Stack) -> list[Stack]:
    a = instruction.attributes

    def own(position: int, block: np.ndarray) -> np.ndarray:
        start = partition_id(a.digits, position) * a.block
        if start + a.block > block.shape[a.dim]:
            raise ProgramError(
                f"{run.place(instruction)}: position {position} slices [{start}, {start + a.block})"
                f" of {block.shape[a.dim]} elements. Resize dimension {a.dim} first."
            )
        return block.take(range(start, start + a.block), a.dim)

    return [_shared(run, own, x)]


def _resize(run: _Run, instruction: Instruction, env: Environment, x: Stack) -> list[Stack]:
    a = instruction.attributes

    def fit(_: int, block: np.ndarray) -> np.ndarray:
        grow = [(0, max(a.size - n, 0) if i == a.dim else 0) for i, n in enumerate(block.shape)]
        return np.pad(block, grow).take(range(a.size), a.dim)

    return [_shared(run, fit, x)]


def _mask(run: _Run, instruction: Instruction, env: Environment, x: Stack) -> list[Stack]:
    a = instruction.attributes
    fill = identity(a.fill, run.program.locals[instruction.operands[0]].dtype)

    def masked(position: int, block: np.ndarray) -> np.ndarray:
        place = partition_id(a.digits, position) * a.block + np.arange(block.shape[a.dim])
        shape = [-1 if i == a.dim else 1 for i in range(block.ndim)]
        return np.where((place < a.size).reshape(shape), block, np.asarray(fill, block.dtype))

    return [_shared(run, masked, x)]


def _offset(run: _Run, instruction: Instruction, env: Environment, x: Stack) -> list[Stack]:
    a = instruction.attributes

    def shifted(position: int, block: np.ndarray) -> np.ndarray:
        result = np.array(block)
        part = np.asarray(result if a.component is None else result[..., a.component], np.int64)
        if a.clamp is not None:
            part = np.clip(part, *a.clamp)
        part = (part + partition_id(a.digits, position) * a.scale).astype(block.dtype)
        if a.component is None:
            return np.asarray(part)
        result[..., a.component] = part
        return result

    return [_shared(run, shifted, x)]


def _mask_indexed(
    run: _Run, instruction: Instruction, env: Environment, value: Stack, indices: Stack
) -> list[Stack]:
    a = instruction.attributes

    def masked(position: int, block: np.ndarray, index: np.ndarray) -> np.ndarray:
        here = np.ones(index.shape[:-1], bool)
        outside = np.zeros(index.shape[:-1], bool)
        member = 0
        for component, digits, size_here, size in a.components:
            p = partition_id(digits, position)
            member += p
            local = index[..., component].astype(np.int64)
            here &= (local >= 0) & (local < size_here)
            outside |= (local + p * size_here < 0) | (local + p * size_here >= size)
        fill = a.fill if a.fill is not None and member == 0 else 0
        result = np.where(_spread(here & ~outside, a.batch_dims, block), block, block.dtype.type(0))
        return np.where(_spread(outside, a.batch_dims, block), block.dtype.type(fill), result)

    return [_shared(run, masked, value, indices)]


def _spread(array: np.ndarray, dims: tuple[int, ...], like: np.ndarray) -> np.ndarray:
    """`array` with its dimensions at `dims` of a tensor of the rank of `like`."""
    shape = [1] * like.ndim
    for n, dim in zip(array.shape, dims, strict=True):
        shape[dim] = n
    return array.reshape(shape)


def _first_member(run: _Run, instruction: Instruction, env: Environment, x: Stack) -> list[Stack]:
    a = instruction.attributes
    fill = identity(a.combine, run.program.locals[instruction.operands[0]].dtype)
    return [_shared(run, lambda p, b: np.full_like(b, fill) if partition_id(a.digits, p) else b, x)]


def _loop(run: _Run, instruction: Instruction, env: Environment, *stacks: Stack) -> list[Stack]:
    a = instruction.attributes
    consts, rest = stacks[: a.num_consts], stacks[a.num_consts :]
    carry, xs = list(rest[: a.num_carry]), rest[a.num_carry :]
    order = range(a.length)[::-1] if a.reverse else range(a.length)
    outputs: dict[int, list[Stack]] = {}
    for step in order:
        slices = [[block[step] for block in stack] for stack in xs]
        inner = dict(env) | dict(zip(a.body.arguments, (*consts, *carry, *slices), strict=True))
        _run_block(run, a.body, inner)
        results = [inner[index] for index in a.body.results]
        carry, outputs[step] = results[: a.num_carry], results[a.num_carry :]
    return [*carry, *_stacked(run, instruction, outputs)]


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


_STEPS: dict[type, Callable[..., list[Stack]]] = {
    spmd.Apply: _apply,
    spmd.AllGather: _all_gather,
    spmd.AllReduce: _all_reduce,
    spmd.ReduceScatter: _reduce_scatter,
    spmd.AllToAll: _all_to_all,
    spmd.CollectivePermute: _permute,
    spmd.DynamicSlice: _dynamic_slice,
    spmd.Resize: _resize,
    spmd.Mask: _mask,
    spmd.Offset: _offset,
    spmd.MaskIndexed: _mask_indexed,
    spmd.FirstMember: _first_member,
    spmd.Loop: _loop,
}
