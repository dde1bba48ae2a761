"""Instructions that hold blocks: loops and branches, for passes that walk or rebuild a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from shardalg.spmd.program import Attributes, Block, Branches, Loop, Manual, While

CONTROL = (Loop, While, Branches, Manual)


def bodies(attributes: Attributes) -> tuple[Block, ...]:
    """The blocks inside an instruction; none for most.

    >>> block = Block((), (), ())
    >>> bodies(While(block, block, (0, 0))) == (block, block)
    True
    """
    inside = _BODIES.get(type(attributes))
    return inside(attributes) if inside else ()


def with_bodies(attributes: Attributes, blocks: Sequence[Block]) -> Attributes:
    """The same instruction around other blocks."""
    rebuilt = _REBUILT.get(type(attributes))
    return rebuilt(attributes, tuple(blocks)) if rebuilt else attributes


def executions(attributes: Attributes) -> int:
    """How often its blocks run: the length of a scan.

    Of a while loop nobody knows, and of the branches one runs: each block counts once.
    """
    return attributes.length if type(attributes) is Loop else 1


_BODIES: dict[type, Callable[..., tuple[Block, ...]]] = {
    Loop: lambda a: (a.body,),
    While: lambda a: (a.condition, a.body),
    Branches: lambda a: a.blocks,
    Manual: lambda a: (a.body,),
}
_REBUILT: dict[type, Callable[..., Attributes]] = {
    Loop: lambda a, blocks: replace(a, body=blocks[0]),
    While: lambda a, blocks: replace(a, condition=blocks[0], body=blocks[1]),
    Branches: lambda a, blocks: replace(a, blocks=blocks),
    Manual: lambda a, blocks: replace(a, body=blocks[0]),
}
