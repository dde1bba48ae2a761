"""Values written as text, as the options of a command have them."""

from __future__ import annotations

from shardalg.algebra.mesh import Mesh
from shardalg.errors import NotationError, ShardingError


def assignments(text: str, what: str, example: str) -> dict[str, int]:
    """`A=1,B=2` as a mapping.

    Args:
      what, example: the option and a right value, for the message.

    Raises:
      NotationError: something else, or a name given twice.

    >>> assignments("B=8, S=64", "sizes", "B=8")
    {'B': 8, 'S': 64}
    """
    pairs = [part.strip() for part in text.split(",") if part.strip()]
    found: dict[str, int] = {}
    for pair in pairs:
        name, equals, size = (part.strip() for part in pair.partition("="))
        if not (name and equals and _is_number(size)) or name in found:
            raise NotationError(
                f"{what}: {pair!r} in {text!r}; write NAME=SIZE, each name once, as in {example}."
            )
        found[name] = int(size)
    return found


def mesh_of(text: str) -> Mesh:
    """A mesh from "X=2,Y=4".

    >>> mesh_of("data=2,model=4")
    Mesh(data=2, model=4)
    """
    return Mesh(assignments(text, "mesh", "X=2,Y=4"))


def shape_of(text: str) -> tuple[int, ...]:
    """A shape from "64,128"; "" is the shape of a scalar.

    >>> shape_of("64,128"), shape_of("")
    ((64, 128), ())

    Raises:
      ShardingError: something else than whole numbers.
    """
    sizes = [part.strip() for part in text.split(",")] if text.strip() else []
    wrong = [size for size in sizes if not _is_number(size)]
    if wrong:
        raise ShardingError(
            f"shape: {', '.join(map(repr, wrong))} in {text!r}; write sizes as in 64,128."
        )
    return tuple(map(int, sizes))


def _is_number(text: str) -> bool:
    """Whether the text is a whole number of up to 18 digits."""
    return text.isascii() and text.isdecimal() and len(text) <= 18
