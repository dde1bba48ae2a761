"""Structure of a program: every value made once, before it is read, in the shape it should have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from shardalg.algebra.digits import Digits, parts
from shardalg.errors import MeshError, ProgramError
from shardalg.spmd.control import bodies, executions
from shardalg.spmd.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Apply,
    Best,
    Block,
    Branches,
    Carry,
    Choose,
    CollectivePermute,
    Concatenate,
    Dilate,
    DynamicSlice,
    Extract,
    Fetch,
    FirstMember,
    Fold,
    Insert,
    Instruction,
    Join,
    Loop,
    Manual,
    Mask,
    MaskAt,
    MaskIndexed,
    Offset,
    ReduceScatter,
    Resize,
    Slice,
    SliceAt,
    SpmdProgram,
    Top,
    ValueAt,
    While,
)
from shardalg.spmd.regroup import Regroup

Shape = tuple[int, ...]


def _scaled(shape: Shape, dim: int, *, times: int = 1, over: int = 1) -> Shape:
    return (*shape[:dim], shape[dim] * times // over, *shape[dim + 1 :])


def _all_to_all(a: AllToAll, shape: Shape) -> Shape:
    n = parts(a.digits)
    return _scaled(_scaled(shape, a.split_dim, over=n), a.concat_dim, times=n)


def _sized(shape: Shape, dim: int, size: int) -> Shape:
    return (*shape[:dim], size, *shape[dim + 1 :])


def _one(shape: Shape, dim: int) -> Shape:
    """The shape with a dimension of one place more."""
    return (*shape[:dim], 1, *shape[dim:])


# Shape of the result, from the operands'; an Apply and a Loop say theirs in the locals.
_SHAPES: dict[type, Callable[..., Shape]] = {
    AllGather: lambda a, s: _scaled(s, a.dim, times=parts(a.digits)),
    AllReduce: lambda a, s: s,
    ReduceScatter: lambda a, s: _scaled(s, a.dim, over=parts(a.digits)),
    AllToAll: _all_to_all,
    CollectivePermute: lambda a, s: s,
    Fetch: lambda a, *s: s[0] if len(set(s)) == 1 else (),
    Carry: lambda a, s: s,
    Best: lambda a, s, place: s if s == place else (),
    DynamicSlice: lambda a, s: _sized(s, a.dim, a.block),
    Slice: lambda a, s: _sized(s, a.dim, a.size),
    SliceAt: lambda a, s: _sized(s, a.dim, a.size),
    Concatenate: lambda a, *s: _sized(s[0], a.dim, sum(shape[a.dim] for shape in s)),
    Resize: lambda a, s: _sized(s, a.dim, a.size),
    Regroup: lambda a, s: a.shape(s),
    Dilate: lambda a, s, *_: _sized(s, a.dim, a.length(s[a.dim])),
    Mask: lambda a, s: s,
    MaskAt: lambda a, s, *_: s,
    Choose: lambda a, *s: s[0] if len(set(s)) == 1 else (),
    Join: lambda a, s, one: s if _sized(s, a.dim, 1) == one else (),
    ValueAt: lambda a, place, s: place if _sized(s, a.dim, 1) == _one(place, a.dim) else (),
    Offset: lambda a, s: s,
    MaskIndexed: lambda a, s, *_: s,
    FirstMember: lambda a, s: s,
    Extract: lambda a, s, *_: a.sizes,
    Insert: lambda a, s, *_: s,
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
    has_all, has_none, add = made.issuperset, made.isdisjoint, made.update
    for instruction in block.instructions:
        if not (has_all(instruction.operands) and has_none(instruction.results)):
            raise _order_fault(program, instruction, made)
        kind = type(instruction.attributes)
        # What an Apply gives is what its primitive gives: its locals say it.
        if kind is not Apply:
            _BORDERS.get(kind, _check_shape)(program, instruction)
            for body in bodies(instruction.attributes):
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


def _check_shape(program: SpmdProgram, instruction: Instruction) -> None:
    attributes = instruction.attributes
    shapes = [program.locals[operand].shape for operand in instruction.operands]
    before = shapes[0]
    if type(attributes) in _CUTS:
        dim, digits = _CUTS[type(attributes)](attributes)
        count, size = parts(digits), before[dim]
        if size % count:
            what = f" cuts dimension {dim} of size {size} into {count} blocks: pad it first."
            raise _fault(program, instruction, what)
    if (
        isinstance(attributes, Slice)
        and attributes.start + attributes.size > before[attributes.dim]
    ):
        what = f" reads {attributes} of {before[attributes.dim]} elements."
        raise _fault(program, instruction, what)
    for digit in getattr(attributes, "digits", ()):
        try:
            program.mesh.axis_ref(digit)
        except MeshError as error:
            raise _fault(program, instruction, f": {error}") from None
    expected = _SHAPES[type(attributes)](attributes, *shapes)
    for result in instruction.results:
        if expected != program.locals[result].shape:
            what = f" gives {expected}, but %{result} is {program.locals[result].shape}."
            raise _fault(program, instruction, what)


def _check_loop(program: SpmdProgram, instruction: Instruction) -> None:
    loop: Loop = instruction.attributes
    body = loop.body
    fixed = loop.num_consts + loop.num_carry
    _check_passed(program, instruction, (instruction.operands, body.arguments, fixed))
    _check_returned(program, instruction, (instruction.results, body.results, loop.num_carry))
    carries = zip(body.arguments[loop.num_consts :], body.results[: loop.num_carry], strict=False)
    _check_carried(program, instruction, carries)


def _check_while(program: SpmdProgram, instruction: Instruction) -> None:
    loop: While = instruction.attributes
    first, both = loop.num_consts[0], sum(loop.num_consts)
    operands, count = instruction.operands, len(instruction.operands)
    given = ((*operands[:first], *operands[both:]), loop.condition.arguments, count)
    _check_passed(program, instruction, given)
    _check_passed(program, instruction, (operands[first:], loop.body.arguments, count))
    _check_returned(
        program, instruction, (instruction.results, loop.body.results, len(instruction.results))
    )
    carries = zip(loop.body.arguments[loop.num_consts[1] :], loop.body.results, strict=True)
    _check_carried(program, instruction, carries)
    carries = zip(loop.condition.arguments[first:], loop.body.results, strict=True)
    _check_carried(program, instruction, carries)


def _check_branches(program: SpmdProgram, instruction: Instruction) -> None:
    _check_blocks(program, instruction, instruction.operands[1:])


def _check_blocks(
    program: SpmdProgram, instruction: Instruction, operands: tuple[int, ...]
) -> None:
    """Every block takes these operands, and gives the instruction's results."""
    count = len(operands)
    for block in bodies(instruction.attributes):
        _check_passed(program, instruction, (operands, block.arguments, count))
        _check_returned(
            program, instruction, (instruction.results, block.results, len(instruction.results))
        )


def _check_joined(program: SpmdProgram, instruction: Instruction) -> None:
    """Results are as the operands are, all alike but for their types."""
    joined = instruction.operands[: len(instruction.results)]
    given = [program.locals[v].shape for v in joined]
    made = [program.locals[v].shape for v in instruction.results]
    if given != made or len(set(given)) != 1:
        raise _fault(program, instruction, f" joins {given} to {made}.")


_BORDERS: dict[type, Callable[[SpmdProgram, Instruction], None]] = {
    Loop: _check_loop,
    While: _check_while,
    Branches: _check_branches,
    Manual: lambda program, instruction: _check_blocks(program, instruction, instruction.operands),
    Top: _check_joined,
    Fold: _check_joined,
}
# Locals outside and inside a block, in order, and how many of them are not stacked inside a loop.
_Pairs = tuple[tuple[int, ...], tuple[int, ...], int]


def _check_passed(program: SpmdProgram, instruction: Instruction, pairs: _Pairs) -> None:
    for outer, inner in _unlike(program, executions(instruction.attributes), pairs):
        raise _fault(program, instruction, f" passes {outer[1]} for %{inner[0]} of {inner[1]}.")


def _check_returned(program: SpmdProgram, instruction: Instruction, pairs: _Pairs) -> None:
    for outer, inner in _unlike(program, executions(instruction.attributes), pairs):
        raise _fault(program, instruction, f" returns {inner[1]} as %{outer[0]} of {outer[1]}.")


def _check_carried(
    program: SpmdProgram, instruction: Instruction, carries: Iterable[tuple[int, int]]
) -> None:
    for argument, result in carries:
        before, after = program.locals[argument].sharding, program.locals[result].sharding
        if before != after and before.key != after.key:
            what = f" carries %{result} back as %{argument}, but they are "
            raise _fault(program, instruction, f"{what}{after.text()} and {before.text()}.")


def _unlike(
    program: SpmdProgram, length: int, pairs: _Pairs
) -> Iterator[tuple[tuple[int, Shape], tuple[int, Shape]]]:
    """(local, shape) outside and inside a loop that do not fit; stacked from `pairs[2]` on."""
    for number, (outer, inner) in enumerate(zip(*pairs[:2], strict=True)):
        here, there = program.locals[outer].shape, program.locals[inner].shape
        if here != (there if number < pairs[2] else (length, *there)):
            yield (outer, here), (inner, there)


def _fault(program: SpmdProgram, instruction: Instruction, what: str) -> ProgramError:
    """The error that names the instruction, its results and the mesh."""
    results = ", ".join(f"%{r}" for r in instruction.results)
    kind = type(instruction.attributes).__name__
    return ProgramError(f"{kind} ({results}) on {program.mesh!r}{what}")
