"""Structure of a program: every value made once, before it is read, in the shape it should have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from shardalg.errors import MeshError, ProgramError
from shardalg.spmd.instruction import Block, Instruction, Type, infer_types
from shardalg.spmd.instructions import (
    Apply,
    Branches,
    CollectiveMatmul,
    CollectivePermute,
    Loop,
    Manual,
    While,
)
from shardalg.spmd.program import SpmdProgram


def check(program: SpmdProgram) -> SpmdProgram:
    """Return `program` if its structure is sound.

    Raises:
      ProgramError: a local is read before it is made or made twice, a shape is not what its
        instruction gives, a dimension does not divide, digits are not on the mesh, or anything but
        a permute has to do with another order of the devices.
    """
    known = {local for local, _ in program.constants}
    mesh = program.mesh
    other_order = {
        local.index
        for local in program.locals
        if local.sharding.mesh is not mesh and local.sharding.mesh != mesh
    }
    if other_order:
        _check_orders(program, program.block, other_order)
    _check_block(program, program.block, known)
    for side, shardings, locals_ in (
        ("argument", program.argument_shardings, program.block.arguments),
        ("result", program.result_shardings, program.block.results),
    ):
        for number, (sharding, local) in enumerate(zip(shardings, locals_, strict=True)):
            if program.locals[local].shape != sharding.shard_shape:
                raise ProgramError(
                    f"{side} {number} is {program.locals[local]!r} on a device, but "
                    f"{sharding!r} has blocks of {sharding.shard_shape}."
                )
    return program


def _check_orders(program: SpmdProgram, block: Block, other_order: set[int]) -> None:
    """Nothing but a permute reads or makes a local in another order of the devices."""
    for instruction in block.instructions:
        apart = other_order.intersection((*instruction.operands, *instruction.results))
        if apart and type(instruction.attributes) is not CollectivePermute:
            what = f" has to do with %{min(apart)}, which lies in another order of the devices."
            raise _fault(program, instruction, what)
        for body in instruction.attributes.bodies:
            _check_orders(program, body, other_order)


def _check_block(program: SpmdProgram, block: Block, known: set[int]) -> None:
    made, sound = known | set(block.arguments), set()
    has_all, has_none, add = made.issuperset, made.isdisjoint, made.update
    for instruction in block.instructions:
        if not (has_all(instruction.operands) and has_none(instruction.results)):
            raise _order_fault(program, instruction, made)
        kind = type(instruction.attributes)
        # What an Apply gives is what its primitive gives: its locals say it.
        if kind in _BORDERS:
            _BORDERS[kind](program, instruction)
        elif kind is not Apply:
            # equal instructions are checked once
            values = (*instruction.operands, *instruction.results)
            types = tuple([_type(program, local) for local in values])
            common_shape = instruction.attributes, types, len(instruction.operands)
            if common_shape not in sound:
                _check_types(program, instruction)
                sound.add(common_shape)
        if kind is not Apply:
            for body in instruction.attributes.bodies:
                _check_block(program, body, known)
        add(instruction.results)
    lost = [v for v in block.results if v not in made]
    if lost:
        raise ProgramError(f"the block returns %{lost[0]}, which nothing makes.")


def _order_fault(program: SpmdProgram, instruction: Instruction, made: set[int]) -> ProgramError:
    """What is read before it is made, or made again."""
    for local in instruction.operands:
        if local not in made:
            return _fault(program, instruction, f" reads %{local}, which is not made yet.")
    again = next(local for local in instruction.results if local in made)
    return _fault(program, instruction, f" makes %{again} again.")


def _check_types(program: SpmdProgram, instruction: Instruction) -> None:
    """Results are what the instruction makes of its operands."""
    attributes = instruction.attributes
    try:
        for digit in getattr(attributes, "digits", ()):
            program.mesh.axis_ref(digit)
        made = infer_types(attributes, [_type(program, local) for local in instruction.operands])
    except (MeshError, ProgramError) as error:
        raise _fault(program, instruction, f": {error}") from None
    found = [_type(program, local) for local in instruction.results]
    for local, (expected, declared) in zip(
        instruction.results, zip(made, found, strict=False), strict=False
    ):
        if expected != declared:
            first, second = _type_texts(expected, declared)
            raise _fault(program, instruction, f" gives {first}, but %{local} is {second}.")
    if len(made) != len(found):
        raise _fault(program, instruction, f" gives {len(made)} results, not {len(found)}.")


def _type(program: SpmdProgram, local: int) -> Type:
    found = program.locals[local]
    return found.shape, found.dtype


def _type_texts(first: Type, second: Type) -> tuple[str, str]:
    """Two types in words: shapes alone where these differ."""
    if first[0] != second[0]:
        return str(first[0]), str(second[0])
    return first[1], second[1]


def _check_loop(program: SpmdProgram, instruction: Instruction[Loop]) -> None:
    loop = instruction.attributes
    body = loop.body
    fixed = loop.num_consts + loop.num_carry
    _check_arguments(program, instruction, (instruction.operands, body.arguments, fixed))
    _check_results(program, instruction, (instruction.results, body.results, loop.num_carry))
    carries = zip(body.arguments[loop.num_consts :], body.results[: loop.num_carry], strict=False)
    _check_carries(program, instruction, carries)


def _check_while(program: SpmdProgram, instruction: Instruction[While]) -> None:
    loop = instruction.attributes
    first, both = loop.num_consts[0], sum(loop.num_consts)
    operands, count = instruction.operands, len(instruction.operands)
    given = ((*operands[:first], *operands[both:]), loop.condition.arguments, count)
    _check_arguments(program, instruction, given)
    _check_arguments(program, instruction, (operands[first:], loop.body.arguments, count))
    _check_results(
        program, instruction, (instruction.results, loop.body.results, len(instruction.results))
    )
    carries = zip(loop.body.arguments[loop.num_consts[1] :], loop.body.results, strict=True)
    _check_carries(program, instruction, carries)
    carries = zip(loop.condition.arguments[first:], loop.body.results, strict=True)
    _check_carries(program, instruction, carries)


def _check_branches(program: SpmdProgram, instruction: Instruction) -> None:
    _check_blocks(program, instruction, instruction.operands[1:])


def _check_blocks(
    program: SpmdProgram, instruction: Instruction, operands: tuple[int, ...]
) -> None:
    """Every block takes these operands, and gives the instruction's results."""
    count = len(operands)
    for block in instruction.attributes.bodies:
        _check_arguments(program, instruction, (operands, block.arguments, count))
        _check_results(
            program, instruction, (instruction.results, block.results, len(instruction.results))
        )


_BORDERS: dict[type, Callable[[SpmdProgram, Any], None]] = {
    Loop: _check_loop,
    While: _check_while,
    Branches: _check_branches,
    Manual: lambda program, instruction: _check_blocks(program, instruction, instruction.operands),
    CollectiveMatmul: lambda program, one: _check_blocks(program, one, one.operands),
}
# Locals outside and inside a block, in order, and how many of them are not stacked inside a loop.
_Pairs = tuple[tuple[int, ...], tuple[int, ...], int]


def _check_arguments(program: SpmdProgram, instruction: Instruction, pairs: _Pairs) -> None:
    for outer, inner in _type_mismatches(program, instruction.attributes.executions, pairs):
        raise _fault(program, instruction, f" passes {outer[1]} for %{inner[0]} of {inner[1]}.")


def _check_results(program: SpmdProgram, instruction: Instruction, pairs: _Pairs) -> None:
    for outer, inner in _type_mismatches(program, instruction.attributes.executions, pairs):
        raise _fault(program, instruction, f" returns {inner[1]} as %{outer[0]} of {outer[1]}.")


def _check_carries(
    program: SpmdProgram, instruction: Instruction, carries: Iterable[tuple[int, int]]
) -> None:
    for argument, result in carries:
        before, after = program.locals[argument].sharding, program.locals[result].sharding
        if before != after and before.key != after.key:
            what = f" carries %{result} back as %{argument}, but they are "
            raise _fault(program, instruction, f"{what}{after.text()} and {before.text()}.")


def _type_mismatches(
    program: SpmdProgram, length: int, pairs: _Pairs
) -> Iterator[tuple[tuple[int, str], tuple[int, str]]]:
    """(local, type) outside and inside a loop that do not fit; stacked from `pairs[2]` on."""
    for number, (outer, inner) in enumerate(zip(*pairs[:2], strict=True)):
        here, (shape, dtype) = _type(program, outer), _type(program, inner)
        there = shape if number < pairs[2] else (length, *shape), dtype
        if here != there:
            shown = _type_texts(here, there)
            yield (outer, shown[0]), (inner, str(shape) if here[0] != there[0] else shown[1])


def _fault(program: SpmdProgram, instruction: Instruction, what: str) -> ProgramError:
    """The error that names the instruction, its results and the mesh."""
    results = ", ".join(f"%{r}" for r in instruction.results)
    kind = type(instruction.attributes).__name__
    return ProgramError(f"{kind} ({results}) on {program.mesh!r}{what}")
