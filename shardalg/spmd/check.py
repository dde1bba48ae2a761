"""Structure of a program: every value made once, before it is read, in the shape it should have."""

from __future__ import annotations

from collections.abc import Callable

from shardalg.algebra.digits import Digits, parts
from shardalg.errors import ProgramError
from shardalg.spmd.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Apply,
    Block,
    CollectivePermute,
    DynamicSlice,
    FirstMember,
    Instruction,
    Loop,
    Mask,
    MaskIndexed,
    Offset,
    ReduceScatter,
    Resize,
    SpmdProgram,
)

Shape = tuple[int, ...]


def _scaled(shape: Shape, dim: int, *, times: int = 1, over: int = 1) -> Shape:
    return (*shape[:dim], shape[dim] * times // over, *shape[dim + 1 :])


def _all_to_all(a: AllToAll, shape: Shape) -> Shape:
    n = parts(a.digits)
    return _scaled(_scaled(shape, a.split_dim, over=n), a.concat_dim, times=n)


# Shape of the result, from the first operand's; an Apply and a Loop say theirs in the locals.
_SHAPES: dict[type, Callable[..., Shape]] = {
    AllGather: lambda a, s: _scaled(s, a.dim, times=parts(a.digits)),
    AllReduce: lambda a, s: s,
    ReduceScatter: lambda a, s: _scaled(s, a.dim, over=parts(a.digits)),
    AllToAll: _all_to_all,
    CollectivePermute: lambda a, s: s,
    DynamicSlice: lambda a, s: (*s[: a.dim], a.block, *s[a.dim + 1 :]),
    Resize: lambda a, s: (*s[: a.dim], a.size, *s[a.dim + 1 :]),
    Mask: lambda a, s: s,
    Offset: lambda a, s: s,
    MaskIndexed: lambda a, s: s,
    FirstMember: lambda a, s: s,
}
# (dimension, digits) that must divide the operand.
_CUTS: dict[type, Callable[..., tuple[int, Digits]]] = {
    ReduceScatter: lambda a: (a.dim, a.digits),
    AllToAll: lambda a: (a.split_dim, a.digits),
    DynamicSlice: lambda a: (a.dim, a.digits),
}


def check(program: SpmdProgram) -> SpmdProgram:
    """Return `program` if its structure is sound.

    Raises:
      ProgramError: a local is read before it is made or made twice, a shape is not what its
        instruction gives, a dimension does not divide, or digits are not on the mesh.
    """
    known = {local for local, _ in program.constants}
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


def _check_block(program: SpmdProgram, block: Block, known: set[int]) -> None:
    made = known | set(block.arguments)
    for instruction in block.instructions:
        missing = [v for v in instruction.operands if v not in made]
        twice = [v for v in instruction.results if v in made]
        if missing or twice:
            what = (
                f"reads %{missing[0]}, which is not made yet"
                if missing
                else f"makes %{twice[0]} again"
            )
            raise ProgramError(f"{_where(program, instruction)} {what}.")
        if isinstance(instruction.attributes, Loop):
            _check_loop(program, instruction, instruction.attributes, known)
        elif not isinstance(instruction.attributes, Apply):
            _check_shape(program, instruction)
        made.update(instruction.results)
    lost = [v for v in block.results if v not in made]
    if lost:
        raise ProgramError(f"the block returns %{lost[0]}, which nothing makes.")


def _check_shape(program: SpmdProgram, instruction: Instruction) -> None:
    attributes = instruction.attributes
    before = program.locals[instruction.operands[0]].shape
    cut = _CUTS.get(type(attributes))
    if cut:
        dim, digits = cut(attributes)
        if before[dim] % parts(digits):
            raise ProgramError(
                f"{_where(program, instruction)} cuts dimension {dim} of size {before[dim]} "
                f"into {parts(digits)} blocks: pad it first."
            )
    for digit in getattr(attributes, "digits", ()):
        program.mesh.axis_ref(digit)
    expected = _SHAPES[type(attributes)](attributes, before)
    got = program.locals[instruction.results[0]].shape
    if expected != got:
        raise ProgramError(
            f"{_where(program, instruction)} gives {expected}, but %{instruction.results[0]} is {got}."
        )


def _check_loop(
    program: SpmdProgram, instruction: Instruction, loop: Loop, known: set[int]
) -> None:
    body = loop.body
    shape = lambda v: program.locals[v].shape  # noqa: E731
    for number, (outer, inner) in enumerate(zip(instruction.operands, body.arguments, strict=True)):
        stacked = number >= loop.num_consts + loop.num_carry
        if shape(outer) != ((loop.length, *shape(inner)) if stacked else shape(inner)):
            raise ProgramError(
                f"{_where(program, instruction)} passes {shape(outer)} for %{inner} of {shape(inner)}."
            )
    for number, (outer, inner) in enumerate(zip(instruction.results, body.results, strict=True)):
        stacked = number >= loop.num_carry
        if shape(outer) != ((loop.length, *shape(inner)) if stacked else shape(inner)):
            raise ProgramError(
                f"{_where(program, instruction)} returns {shape(inner)} as %{outer} of {shape(outer)}."
            )
    carries = zip(body.arguments[loop.num_consts :], body.results[: loop.num_carry], strict=False)
    for argument, result in carries:
        if program.locals[argument].sharding != program.locals[result].sharding:
            raise ProgramError(
                f"{_where(program, instruction)} carries %{result} back as %{argument}, but they are "
                f"{program.locals[result].sharding.text()} and {program.locals[argument].sharding.text()}."
            )
    _check_block(program, body, known)


def _where(program: SpmdProgram, instruction: Instruction) -> str:
    results = ", ".join(f"%{r}" for r in instruction.results)
    return f"{type(instruction.attributes).__name__} ({results}) on {program.mesh!r}"
