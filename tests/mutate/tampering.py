"""Ways to tamper with a program: one field, or several that agree with each other.

Each takes a random generator and a subject, and gives a program and what was done, in words, with
the place if it was a single one; or None where there is nothing of the kind to do.
"""

from dataclasses import dataclass, replace

from shardalg.algebra.digits import Digit
from shardalg.spmd.check import check
from shardalg.spmd.instructions import Apply, Branches, Loop, While
from tests.mutate.fields import Place, at, changed, mapped, places
from tests.mutate.moves import put_in
from tests.mutate.subject import (
    Subject,
    made_of,
    name,
    renamed,
    with_behind,
    with_fields,
    with_local,
    without,
)


def one_field(rng, subject, *, among=None):
    """Any field of anything."""
    kind = rng.choice(among or list(subject.kinds))
    place = rng.choice(subject.kinds[kind])
    new = subject.other(rng).value(place, at(subject.program, place.steps))
    return None if new is None else (changed(subject.program, place.steps, new), kind, place)


def of_an_instruction(rng, subject):
    """Change a field of an instruction's attributes; later shapes follow."""
    inside = [kind for kind, found in subject.kinds.items() if "attributes" in found[0].steps[:-1]]
    made = one_field(rng, subject, among=inside)
    if made is None:
        return None
    program, kind, place = made
    steps = place.steps[: place.steps.index("attributes")]
    if rng.random() < 0.3:
        for local in at(program, steps).results:
            program = _laid_out(program, local, rng.choice([local, *at(program, steps).operands]))
    return subject.settled(rng, program), f"{kind}, settled", place


def rewired(rng, subject):
    """Replace an operand, or a result of a block, by another local of the same shape and type."""
    kind = rng.choice(["Instruction.operands", "Instruction.operands", "Block.results"])
    place = rng.choice([p for p in subject.kinds[kind] if not p.direct])
    new = subject.other(rng).local(at(subject.program, place.steps))
    program = changed(subject.program, place.steps, new)
    return subject.settled(rng, program), f"{kind} rewired", place


def left_out(rng, subject):
    """Leave out an instruction; its operand takes its place."""
    steps, step = rng.choice(subject.moves)
    shapes = [subject.program.locals[local].shape for local in (*step.operands, *step.results)]
    alike = [o for o, shape in zip(step.operands, shapes, strict=False) if shape == shapes[-1]]
    stands = rng.choice(alike or step.operands)
    program = renamed(without(subject.program, steps), {step.results[0]: stands})
    return subject.settled(rng, program), f"{name(step)} left out"


def exchanged(rng, subject):
    """Two instructions, one of which reads the other, exchange what they do."""
    makers = {step.results[0]: (steps, step) for steps, step in subject.moves}
    pairs = [(makers[o], move) for move in subject.moves for o in move[1].operands if o in makers]
    if not pairs:
        return None
    (first, one), (second, two) = rng.choice(pairs)
    program = with_fields(subject.program, first, attributes=two.attributes, node=two.node)
    program = with_fields(program, second, attributes=one.attributes, node=one.node)
    between = rng.choice([one.results[0], two.results[0], one.operands[0]])
    program = _laid_out(program, one.results[0], between)
    return subject.settled(rng, program), f"{name(one)} and {name(two)} exchanged"


def _laid_out(program, local, other):
    """Return the program with one local sharded like another, a stage of an emission."""
    layout = program.locals[other].sharding
    return with_fields(program, ("locals", local), sharding=layout, origin=None)


def inserted(rng, subject):
    """Apply one instruction to another local as well, sometimes twice to its own."""
    (_, step), (where, there) = rng.choice(subject.moves), rng.choice(subject.moves)
    if isinstance(step.attributes, Apply) and rng.random() < 0.8:
        return None
    if rng.random() < 0.4:
        step = there
    (result,) = there.results
    program, before = with_local(subject.program, result)
    program = with_fields(program, where, results=(before,))
    node = rng.choice([step.node, there.node])
    extra = replace(step, operands=(before, *step.operands[1:]), results=(result,), node=node)
    if rng.random() < 0.5:
        program = _laid_out(program, rng.choice([before, result]), rng.choice(step.results))
    return subject.settled(rng, with_behind(program, where, extra)), f"{name(step)} inserted"


def axes_exchanged(rng, subject):
    """Exchange two axes in an instruction, its results and later ones, but not at the border."""
    program, mesh = subject.program, subject.program.mesh
    if len(mesh.axis_names) < 2:
        return None
    a, b = (mesh.digit(axis) for axis in mesh.axis_names[:2])

    def turned(value):
        return mapped(value, lambda v: {a: b, b: a}.get(v, v) if isinstance(v, Digit) else v)

    where = rng.choice(["an instruction", "an instruction", "one alone", "what follows", "all"])
    steps, step = rng.choice(subject.instructions)
    if where == "all":
        locals_, steps = set(range(len(program.locals))), ("block",)
    else:
        locals_ = set() if where == "one alone" else set(step.results)
        locals_ = made_of(program, locals_) if where == "what follows" else locals_
    new = tuple(turned(x) if x.index in locals_ else x for x in program.locals)
    program = replace(changed(program, steps, turned(at(program, steps))), locals=new)
    return subject.settled(rng, program), f"axes exchanged in {where}"


def dims_exchanged(rng, subject):
    """Move an instruction to another dimension, with its result sharded accordingly."""
    steps, step = rng.choice(subject.moves)
    made = subject.program.locals[step.results[0]]
    numbers = [place for place, _ in places(step.attributes)
               if place.direct and place.steps and "dim" in str(place.steps[-1])]  # fmt: skip
    if not numbers or len(made.shape) < 2:
        return None
    a, b = rng.sample(range(len(made.shape)), 2)
    attributes = step.attributes
    for place in numbers:
        old = at(attributes, place.steps)
        attributes = changed(attributes, place.steps, {a: b, b: a}.get(old, old))
    program = with_fields(subject.program, steps, attributes=attributes)
    dims = list(made.sharding.dims)
    if rng.random() < 0.7:
        dims[a], dims[b] = dims[b], dims[a]
    layout = replace(made.sharding, dims=tuple(dims))
    program = with_fields(program, ("locals", made.index), sharding=layout)
    return subject.settled(rng, program), f"dimensions of {name(step)} exchanged"


def relaid(rng, subject):
    """Give all locals of one sharding another one, with or without the border."""
    program, old = subject.program, rng.choice(subject.program.locals).sharding
    new = subject.other(rng).sharding(Place(), old)
    sides = rng.choice([(), ("argument_shardings", "result_shardings")])
    border = {s: tuple(new if x == old else x for x in getattr(program, s)) for s in sides}
    locals_ = tuple(replace(x, sharding=new) if x.sharding == old else x for x in program.locals)
    words = f"layout exchanged everywhere{', border too' if sides else ''}"
    return replace(program, locals=locals_, **border), words


def relabelled(rng, subject):
    """Give a local the sharding, and perhaps the name, of another one of its shape."""
    one = rng.choice(subject.program.locals)
    alike = [x for x in subject.program.locals if (x.shape, x.dtype) == (one.shape, one.dtype)]
    other = rng.choice(alike)
    origin = rng.choice([one.origin, other.origin, None])
    new = {"sharding": other.sharding, "origin": origin}
    return with_fields(subject.program, ("locals", one.index), **new), "local laid out as another"


def said_otherwise(rng, subject):
    """Change a parameter of the node that the instruction does not override."""
    steps, step = rng.choice(subject.instructions)
    if not isinstance(step.attributes, Apply) or step.node is None:
        return None
    params = subject.graph.nodes[step.node].signature.params
    if not params:
        return None
    param, old = rng.choice(params)
    other, place = subject.other(rng), Place(kind=f"param {param}")
    if isinstance(old, tuple) and old and rng.random() < 0.7:
        k = rng.randrange(len(old))
        new = (*old[:k], other.value(place.item(k), old[k]), *old[k + 1 :])
    else:
        new = other.value(place, old)
    rest = tuple((n, v) for n, v in step.attributes.params if n != param)
    place = (*steps, "attributes")
    program = with_fields(subject.program, place, params=(*rest, (param, new)))
    return subject.settled(rng, program), f"Apply.params + {param}"


def beyond_a_border(rng, subject):
    """Move the last instruction of a block after the block, onto its result."""
    found = [
        x for x in subject.instructions if isinstance(x[1].attributes, Branches | While | Loop)
    ]
    steps, step = rng.choice(found)
    number = rng.randrange(len(step.results))
    blocks, moved = [], None
    for block in step.attributes.bodies:
        last = [s for s in block.instructions if s.results == (block.results[number],)
                and s.operands and not s.attributes.bodies]  # fmt: skip
        if (
            last
            and len(block.results) == len(step.results)
            and (moved is None or rng.random() < 0.7)
        ):
            (moved,) = last
            results = (*block.results[:number], moved.operands[0], *block.results[number + 1 :])
            block = replace(block, results=results)
        blocks.append(block)
    program, between = with_local(subject.program, moved.operands[0])
    origin = program.locals[step.results[number]].origin
    program = with_fields(program, ("locals", between), origin=rng.choice([origin, None]))
    results = (*step.results[:number], between, *step.results[number + 1 :])
    around = step.attributes.with_bodies(blocks)
    program = with_fields(program, steps, attributes=around, results=results)
    operands = (between, *moved.operands[1:])
    extra = replace(moved, operands=operands, results=(step.results[number],))
    if hasattr(moved.attributes, "combine") and rng.random() < 0.5:
        combine = rng.choice(["sum", "max"])
        extra = replace(extra, attributes=replace(moved.attributes, combine=combine))
    program = subject.settled(rng, with_behind(program, steps, extra))
    return program, f"{name(moved)} moved behind {name(step)}"


CONSISTENT = (
    of_an_instruction, of_an_instruction, of_an_instruction, left_out, exchanged, inserted,
    rewired, axes_exchanged, dims_exchanged, relaid, said_otherwise, beyond_a_border, relabelled,
    put_in, put_in,
)  # fmt: skip
UNMADE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What constructors say of values that there are none of, ShardingErrors among it."""
SINGLE, TWICE = 0.3, 0.2
"""Shares of mutants: of a single field alone, and of those that are tampered with twice."""
TRIES = 3
"""How often a consistent way is tried for a program whose structure is sound."""


@dataclass(frozen=True)
class Mutant:
    """A tampered program.

    Attributes:
      kinds: what was tampered with.
      owners: (class, field) of everything on the way to it.
    """

    program: object
    kinds: tuple
    owners: frozenset = frozenset()


def is_sound(program):
    """Return True if a program passes `check`."""
    try:
        check(program)
    except Exception:  # of any kind: it is not sound
        return False
    return True


def mutant(rng, subject):
    """Return a mutated program, sometimes mutated twice."""
    found = None
    while found is None:
        found = _tampered(rng, subject)
    if rng.random() < TWICE:
        more = _tampered(rng, Subject(found.program, subject.graph, subject))
        if more is not None and more.program != subject.program:
            return Mutant(more.program, found.kinds + more.kinds, found.owners | more.owners)
    return found


def _tampered(rng, subject):
    """Change a single field, or several consistently until the program is sound."""
    if rng.random() < SINGLE:
        return _once(rng, subject, one_field)
    way, found = rng.choice(CONSISTENT), None
    for _ in range(TRIES):
        found = _once(rng, subject, way) or found
        if found and is_sound(found.program):
            break
    return found


def _once(rng, subject, way):
    try:
        made = way(rng, subject)
    except UNMADE:
        return None
    if made is None or made[0] == subject.program:
        return None
    program, kind, *place = made
    return Mutant(program, (kind,), frozenset(place[0].owners if place else ()))
