"""Modules of a plan as a tree, in which repeated layers are one module such as `layers[0:32]`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

Part = tuple[str, bool]
"""A module's name without its number, and whether it has a number."""


@dataclass
class ModuleNode:
    """A module of the tree, or several numbered modules that are folded into one.

    Attributes:
      path: the names of the module and of the modules around it, outermost first.
      parent: number of the module around it; -1 if there is none.
      numbers: the numbers of the folded modules; empty if the module has no number.
    """

    path: tuple[Part, ...]
    parent: int
    numbers: set[int] = field(default_factory=set)

    @property
    def label(self) -> str:
        """The name of the module, such as `layers[0:32]`.

        >>> ModuleNode((("layers", True),), -1, {0, 1, 2}).label
        'layers[0:3]'
        """
        name, found = self.path[-1][0], sorted(self.numbers)
        if not found:
            return name
        if found == list(range(found[0], found[-1] + 1)):
            inside = str(found[0]) if len(found) == 1 else f"{found[0]}:{found[-1] + 1}"
        else:
            inside = ",".join(map(str, found[:3])) + (",..." if len(found) > 3 else "")
        return f"{name}[{inside}]"


def parts_of(module: str) -> list[tuple[str, int | None]]:
    """Return the names of a module's path with their numbers.

    >>> parts_of("net/layers_3/mlp"), parts_of("layers/3/up")
    ([('net', None), ('layers', 3), ('mlp', None)], [('layers', 3), ('up', None)])
    """
    found: list[tuple[str, int | None]] = []
    for name in module.split("/"):
        # A list of layers has modules whose names are numbers, and belongs to the name before them.
        if name.isdecimal() and found and found[-1][1] is None:
            found[-1] = found[-1][0], int(name)
            continue
        numbered = re.fullmatch(r"(.*?[^_\d])_?(\d+)", name)
        found.append((name, None) if numbered is None else (numbered[1], int(numbered[2])))
    return found


def folded_modules(names: Iterable[str]) -> tuple[list[ModuleNode], dict[str, int]]:
    """Return the tree of modules, parents first, and the number of each module's node.

    Args:
      names: paths of modules, such as `net/layers_3/mlp`; "" is no module.

    >>> nodes, of = folded_modules(["layers_0/mlp", "layers_1/mlp", "head"])
    >>> [(node.label, node.parent) for node in nodes]
    [('layers[0:2]', -1), ('mlp', 0), ('head', -1)]
    >>> of
    {'layers_0/mlp': 1, 'layers_1/mlp': 1, 'head': 2}
    """
    nodes: dict[tuple[Part, ...], ModuleNode] = {}
    of: dict[str, tuple[Part, ...]] = {}
    for name in dict.fromkeys(names):
        path: tuple[Part, ...] = ()
        for base, number in parts_of(name) if name else [("no module", None)]:
            around, path = path, (*path, (base, number is not None))
            node = nodes.setdefault(path, ModuleNode(path, -1))
            if number is not None:
                node.numbers.add(number)
            assert around == path[:-1], "a path grows by one name"
        of[name] = path
    # Children follow their parent, and modules of one parent keep the order of execution.
    first = {path: place for place, path in enumerate(nodes)}
    order = sorted(nodes, key=lambda p: [first[p[: i + 1]] for i in range(len(p))])
    number_of = {path: place for place, path in enumerate(order)}
    for path in order:
        nodes[path].parent = number_of.get(path[:-1], -1)
    return [nodes[path] for path in order], {name: number_of[path] for name, path in of.items()}
