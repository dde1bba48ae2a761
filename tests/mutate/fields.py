"""A program as a tree of fields, found by walking its dataclasses: nothing is listed by name.

A place is the way from the program to a value: field names and positions in tuples. What a new kind
of instruction holds is reached as everything else is.
"""

from dataclasses import dataclass, fields, is_dataclass, replace

from shardalg.algebra.digits import Digit
from shardalg.algebra.mesh import Mesh
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.instructions import kinds
from shardalg.spmd.local import Local

LEAVES = (Mesh,)
"""Dataclasses that are one value: their fields are not set one by one."""
KINDS = kinds()
"""Every kind of instruction of the language."""
OUTER = (Instruction, Block, Local)
"""Dataclasses whose fields are reported as theirs, whatever holds them."""


@dataclass(frozen=True)
class Place:
    """The place of a value in a program.

    Attributes:
      steps: field names and positions.
      owners: (class, field) of every dataclass on the way.
      kind: `Mask.size`, `MaskAt.start.index.constant`, `Apply.params.axes`: positions left out.
      hint: the type of the innermost field, as it is written.
      direct: whether the value is that field itself, and no part of it.
    """

    steps: tuple = ()
    owners: tuple = ()
    kind: str = ""
    hint: str = ""
    direct: bool = True

    def field(self, cls, field):
        """Return the place of a field of the dataclass here."""
        outer = issubclass(cls, OUTER) or not self.kind or cls in KINDS
        kind = f"{cls.__name__ if outer else self.kind}.{field.name}"
        owners = (*self.owners, (cls, field.name))
        return Place((*self.steps, field.name), owners, kind, field.type)

    def item(self, step, name=""):
        """Return the place of a part of the value here; names are allowed."""
        kind = f"{self.kind}.{name}" if name else self.kind
        return replace(self, steps=(*self.steps, step), kind=kind, direct=False)


def parts(value, place):
    """Return the (place, value) pairs of a value's parts."""
    if is_dataclass(value) and not isinstance(value, LEAVES):
        for one in fields(value):
            if one.init:
                yield place.field(type(value), one), getattr(value, one.name)
    elif isinstance(value, Digit):
        yield from ((place.item(n, n), getattr(value, n)) for n in value._fields)
    elif isinstance(value, tuple):
        for k, item in enumerate(value):
            named = isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)
            yield place.item(k, item[0] if named and place.hint == "Params" else ""), item


def places(value, place=Place()):
    """(place, value) of everything in a value, itself included."""
    yield place, value
    for inner, part in parts(value, place):
        yield from places(part, inner)


def at(value, steps):
    """Return the value at the end of the steps."""
    for step in steps:
        value = getattr(value, step) if isinstance(step, str) else value[step]
    return value


def changed(value, steps, new):
    """Return the value with another one at the end of the steps."""
    if not steps:
        return new
    step, rest = steps[0], steps[1:]
    if isinstance(step, int):
        return (*value[:step], changed(value[step], rest, new), *value[step + 1 :])
    inner = changed(getattr(value, step), rest, new)
    return (
        value._replace(**{step: inner})
        if isinstance(value, Digit)
        else replace(value, **{step: inner})
    )


def mapped(value, function):
    """Apply `function` to every part of the value, from the inside; None keeps a part."""
    if is_dataclass(value) and not isinstance(value, LEAVES):
        new = {f.name: mapped(getattr(value, f.name), function) for f in fields(value) if f.init}
        value = replace(value, **new)
    elif isinstance(value, tuple) and not isinstance(value, Digit):
        value = tuple(mapped(item, function) for item in value)
    return function(value)
