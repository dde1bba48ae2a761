"""Moves put before an operand: exchanges of little, places between elements."""

from dataclasses import replace

from shardalg.algebra.affine import Index
from shardalg.spmd.instruction import Instruction, infer_types
from shardalg.spmd.instructions import (
    CollectivePermute,
    Dilate,
    HaloExchange,
    Reading,
    Resize,
    Slice,
)
from shardalg.spmd.local import Start
from tests.mutate.fields import at
from tests.mutate.subject import with_fields, with_local


def put_in(rng, subject):
    """Move an operand before it is read, and give it its former shape."""
    program = subject.program
    steps, step = rng.choice([pair for pair in subject.instructions if pair[1].operands])
    number = rng.randrange(len(step.operands))
    shape = program.locals[step.operands[number]].shape
    dim = rng.randrange(len(shape))
    ways = [_exchanged, _exchanged, _thinned, _shortened, _permuted]
    moves = rng.choice(ways)(rng, program.mesh, dim, shape[dim])
    if rng.random() < 0.5:
        moves = [*moves, *rng.choice([_exchanged, _permuted])(rng, program.mesh, dim, shape[dim])]
    held, added = step.operands[number], []
    for move in moves:
        ((made, _),) = infer_types(move, [(program.locals[held].shape, program.locals[held].dtype)])
        program, result = with_local(program, held)
        program = with_fields(program, ("locals", result), shape=made)
        added.append(Instruction(move, (held,), (result,), step.node))
        held = result
    operands = (*step.operands[:number], held, *step.operands[number + 1 :])
    *block, _, place = steps
    before = at(program, block).instructions
    instructions = (
        *before[:place], *added, replace(step, operands=operands), *before[place + 1 :]
    )  # fmt: skip
    kinds = ", ".join(type(move).__name__ for move in moves)
    return with_fields(program, block, instructions=instructions), f"put in: {kinds}"


def _digits(rng, mesh):
    return mesh.digits((rng.choice(mesh.axis_names),))


def _pairs(rng, mesh, digits):
    """Everyone stays, or sends to the next one along the digits, or to anyone."""
    everyone = list(range(mesh.size))
    (digit,) = digits
    there = [p + digit.stride * ((digit.at(p) + 1) % digit.size - digit.at(p)) for p in everyone]
    mixed = rng.sample(everyone, len(everyone))
    return tuple(zip(everyone, rng.choice([everyone, there, mixed]), strict=True))


def _permuted(rng, mesh, dim, length):
    digits = _digits(rng, mesh)
    return [CollectivePermute(digits, _pairs(rng, mesh, digits))]


def _exchanged(rng, mesh, dim, length):
    """Exchange blocks of which all, few, or no elements are wanted."""
    digits = _digits(rng, mesh)

    def start(scale, more=0):
        return Start(Index.of("o") * scale + more, (("o", digits),))

    places = rng.choice([(0, length), (0, length), (0, 0), (1, length)])
    wanted = start(rng.choice([0, 1, length])), rng.choice([0, 0, 1, length])
    source = start(rng.choice([0, 1, 1]), rng.choice([0, 0, 1]))
    pairs = _pairs(rng, mesh, digits)
    return [HaloExchange(dim, digits, (Reading(0, source, (pairs,), *wanted, places),))]


def _thinned(rng, mesh, dim, length):
    """Every other place is filled."""
    kept = (length + 1) // 2
    first = rng.randrange(length - kept + 1)
    return [Slice(dim, first, kept), Dilate(dim, 2, 0, length - 2 * kept + 1, "sum")]


def _shortened(rng, mesh, dim, length):
    """Places are cut off, and padded again."""
    kept = rng.randrange(length + 1)
    first = rng.randrange(length - kept + 1)
    return [Slice(dim, first, kept), Resize(dim, length)]
