"""Structure of a program: each value is made once, before it is read, with the declared shape."""

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
    """Return the program if its structure is sound.

    Raises:
      ProgramError: a local is read before it is made or made twice, a shape is not the one that
        its instruction gives, a dimension does not divide, digits are not on the mesh, or an
        instruction other than a permute uses another device order.
    """
    constants = {local for local, _ in program.constants}
    mesh = program.mesh
    # Partition ids count positions of the program's mesh. In another device order the same ids name
    # other devices, so only a permute may read such a local.
    other_order = {
        local.index
        for local in program.locals
        if local.sharding.mesh is not mesh and local.sharding.mesh != mesh
    }
    if other_order:
        _check_orders(program, program.block, other_order)
    _check_block(program, program.block, constants)
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
    """Raise ProgramError if a local in another device order is used other than by a permute.

    Bodies of loops and branches are checked too.

    Args:
      other_order: the locals whose sharding is on a mesh with another order of devices.
    """
    for instruction in block.instructions:
        uses = other_order.intersection((*instruction.operands, *instruction.results))
        if uses and type(instruction.attributes) is not CollectivePermute:
            fault = f" uses %{min(uses)}, which is in another device order: permute it first."
            raise _fault(program, instruction, fault)
        for body in instruction.attributes.bodies:
            _check_orders(program, body, other_order)


def _check_block(program: SpmdProgram, block: Block, known: set[int]) -> None:
    """Raise unless the instructions of a block are sound, one after the other.

    Args:
      known: the locals that a block may read in addition to its arguments: the constants.
    """
    # A program has tens of thousands of instructions. So methods are looked up once here, and equal
    # instructions on equal types are checked once (`checked`).
    defined, checked = known | set(block.arguments), set()
    has_all, has_none, add = defined.issuperset, defined.isdisjoint, defined.update
    for instruction in block.instructions:
        if not (has_all(instruction.operands) and has_none(instruction.results)):
            for local in instruction.operands:
                if local not in defined:
                    raise _fault(program, instruction, f" reads %{local}, which is not made yet.")
            repeated = next(local for local in instruction.results if local in defined)
            raise _fault(program, instruction, f" makes %{repeated} again.")
        kind = type(instruction.attributes)
        # JAX alone knows the result types of a primitive, so an Apply's locals declare them.
        if kind in _BORDERS:
            _BORDERS[kind](program, instruction)
        elif kind is not Apply:
            # Layers repeat instructions on the same types: check equal ones once.
            values = (*instruction.operands, *instruction.results)
            types = tuple([_type(program, local) for local in values])
            key = instruction.attributes, types, len(instruction.operands)
            if key not in checked:
                _check_types(program, instruction)
                checked.add(key)
        if kind is not Apply:
            # Bodies read constants of the program, but no other local from outside.
            for body in instruction.attributes.bodies:
                _check_block(program, body, known)
        add(instruction.results)
    undefined = [v for v in block.results if v not in defined]
    if undefined:
        raise ProgramError(f"the block returns %{undefined[0]}, which nothing makes.")


def _check_types(program: SpmdProgram, instruction: Instruction) -> None:
    """Raise unless the results have the types that the instruction infers from its operands."""
    attributes = instruction.attributes
    try:
        # `axis_ref` raises if the digit is not one of the mesh.
        for digit in getattr(attributes, "digits", ()):
            program.mesh.axis_ref(digit)
        inferred = infer_types(
            attributes, [_type(program, local) for local in instruction.operands]
        )
    except (MeshError, ProgramError) as error:
        raise _fault(program, instruction, f": {error}") from None
    declared_types = [_type(program, local) for local in instruction.results]
    for local, (expected, declared) in zip(
        instruction.results, zip(inferred, declared_types, strict=False), strict=False
    ):
        if expected != declared:
            first, second = _type_texts(expected, declared)
            raise _fault(program, instruction, f" gives {first}, but %{local} is {second}.")
    if len(inferred) != len(declared_types):
        raise _fault(
            program, instruction, f" gives {len(inferred)} results, not {len(declared_types)}."
        )


def _type(program: SpmdProgram, local: int) -> Type:
    found = program.locals[local]
    return found.shape, found.dtype


def _type_texts(first: Type, second: Type) -> tuple[str, str]:
    """Return two different types in words: the shapes if they differ, otherwise the item types."""
    if first[0] != second[0]:
        return str(first[0]), str(second[0])
    return first[1], second[1]


def _check_loop(program: SpmdProgram, instruction: Instruction[Loop]) -> None:
    """Raise unless the values around a scan have the types of the values in its body."""
    loop = instruction.attributes
    body = loop.body
    # Constants and carries enter as they are; `xs` enter one element at a time.
    fixed = loop.num_consts + loop.num_carry
    _check_arguments(program, instruction, (instruction.operands, body.arguments, fixed))
    _check_results(program, instruction, (instruction.results, body.results, loop.num_carry))
    carries = zip(body.arguments[loop.num_consts :], body.results[: loop.num_carry], strict=False)
    _check_carries(program, instruction, carries)


def _check_while(program: SpmdProgram, instruction: Instruction[While]) -> None:
    """Raise unless the values around a while loop have the types inside both of its blocks."""
    loop = instruction.attributes
    first, both = loop.num_consts[0], sum(loop.num_consts)
    operands, count = instruction.operands, len(instruction.operands)
    # The condition reads its own constants and the carry, which follow the body's constants.
    given = ((*operands[:first], *operands[both:]), loop.condition.arguments, count)
    _check_arguments(program, instruction, given)
    _check_arguments(program, instruction, (operands[first:], loop.body.arguments, count))
    _check_results(
        program, instruction, (instruction.results, loop.body.results, len(instruction.results))
    )
    carries = zip(loop.body.arguments[loop.num_consts[1] :], loop.body.results, strict=True)
    _check_carries(program, instruction, carries)
    # The condition reads the carry that the body returned, so its arguments must have the shardings
    # of the body's results, too.
    carries = zip(loop.condition.arguments[first:], loop.body.results, strict=True)
    _check_carries(program, instruction, carries)


def _check_blocks(
    program: SpmdProgram, instruction: Instruction, operands: tuple[int, ...]
) -> None:
    """Raise unless every block takes these operands and gives the instruction's results."""
    # Only scans stack values, so all values have equal types outside and inside here.
    count = len(operands)
    for block in instruction.attributes.bodies:
        _check_arguments(program, instruction, (operands, block.arguments, count))
        _check_results(
            program, instruction, (instruction.results, block.results, len(instruction.results))
        )


_BORDERS: dict[type, Callable[[SpmdProgram, Any], None]] = {
    Loop: _check_loop,
    While: _check_while,
    # Operand 0 selects the block that runs, and is no argument of the blocks.
    Branches: lambda program, one: _check_blocks(program, one, one.operands[1:]),
    Manual: lambda program, instruction: _check_blocks(program, instruction, instruction.operands),
    CollectiveMatmul: lambda program, one: _check_blocks(program, one, one.operands),
}
_Pairs = tuple[tuple[int, ...], tuple[int, ...], int]
"""(locals outside a block, locals inside it, number of the first ones that no loop stacks)."""


def _check_arguments(program: SpmdProgram, instruction: Instruction, pairs: _Pairs) -> None:
    for outer, inner in _type_mismatches(program, instruction.attributes.executions, pairs):
        raise _fault(program, instruction, f" passes {outer[1]} for %{inner[0]} of {inner[1]}.")


def _check_results(program: SpmdProgram, instruction: Instruction, pairs: _Pairs) -> None:
    for outer, inner in _type_mismatches(program, instruction.attributes.executions, pairs):
        raise _fault(program, instruction, f" returns {inner[1]} as %{outer[0]} of {outer[1]}.")


def _check_carries(
    program: SpmdProgram, instruction: Instruction, carries: Iterable[tuple[int, int]]
) -> None:
    """Raise unless each carry leaves the body in the sharding in which it enters.

    The next iteration would otherwise read other elements than this iteration wrote.

    Args:
      carries: (argument of the body, result of the body) of each carry.
    """
    for argument, result in carries:
        before, after = program.locals[argument].sharding, program.locals[result].sharding
        if before != after and before.key != after.key:
            what = f" carries %{result} back as %{argument}, but they are "
            raise _fault(program, instruction, f"{what}{after.text()} and {before.text()}.")


def _type_mismatches(
    program: SpmdProgram, length: int, pairs: _Pairs
) -> Iterator[tuple[tuple[int, str], tuple[int, str]]]:
    """Yield (local, type) outside and inside a loop where the types differ.

    Args:
      length: the number of iterations.
      pairs: the locals outside, the locals inside, and a number. From this number on, the outer
        locals are stacked over the iterations.
    """
    for number, (outer, inner) in enumerate(zip(*pairs[:2], strict=True)):
        # Outside a loop, `xs` and `ys` have the iterations as leading dimension.
        here, (shape, dtype) = _type(program, outer), _type(program, inner)
        there = shape if number < pairs[2] else (length, *shape), dtype
        if here != there:
            shown = _type_texts(here, there)
            yield (outer, shown[0]), (inner, str(shape) if here[0] != there[0] else shown[1])


def _fault(program: SpmdProgram, instruction: Instruction, what: str) -> ProgramError:
    """Return the error that names the instruction, its results and the mesh."""
    results = ", ".join(f"%{r}" for r in instruction.results)
    kind = type(instruction.attributes).__name__
    return ProgramError(f"{kind} ({results}) on {program.mesh!r}{what}")
