"""Words of an argument's path, and the module that they name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence

WRAPPERS = frozenset({"state", "params", "variables", "weights"})
"""Names of trees that say nothing about a module."""

_STEP = re.compile(r"\.([^.\[]+)|\[('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\]|\[([^\]]*)\]")


def words(path: str) -> tuple[str, tuple[str, ...]]:
    """Return the argument's name and the words below it.

    >>> words("params['layers'][3]['up']"), words("model.mlp.kernel"), words("x")
    (('params', ('layers', '3', 'up')), ('model', ('mlp', 'kernel')), ('x', ()))
    >>> words("p['net/~/linear']['w']")
    ('p', ('net', 'linear', 'w'))
    """
    root = re.split(r"[.\[]", path, maxsplit=1)[0]
    steps = (_step(*found) for found in _STEP.findall(path[len(root) :]))
    parts = (part for step in steps for part in step.split("/"))
    return root, tuple(part for part in parts if part not in ("", "~"))


def _step(attribute: str, quoted: str, other: str) -> str:
    if quoted:
        return str(ast.literal_eval(quoted))
    flat = re.fullmatch(r"<flat index (\d+)>", other)
    return attribute or (flat[1] if flat else other)


def unwrapped(steps: Sequence[str]) -> tuple[str, ...]:
    """Return the words without the wrappers at the beginning.

    >>> unwrapped(("params", "mlp", "up"))
    ('mlp', 'up')
    """
    start = 0
    while start < len(steps) and steps[start] in WRAPPERS:
        start += 1
    return tuple(steps[start:])


def endings(steps: Sequence[str]) -> Iterable[str]:
    """Return every ending of a path, the longest first.

    >>> list(endings(("net", "mlp", "up")))
    ['net/mlp/up', 'mlp/up', 'up']
    """
    return ("/".join(steps[start:]) for start in range(len(steps)))


def numbered(steps: Sequence[str]) -> tuple[str, ...]:
    """Return the words as frameworks write them: the position in a list joins the list's name.

    >>> numbered(("layers", "3", "mlp"))
    ('layers_3', 'mlp')
    """
    joined: list[str] = []
    for step in steps:
        if step.isdigit() and joined:
            joined[-1] += f"_{step}"
        else:
            joined.append(step)
    return tuple(joined)


def by_ending(modules: Iterable[str]) -> dict[str, str]:
    """Return, for every ending of a module, the shortest module that has it.

    >>> by_ending(["net/layers_0/up"])["layers_0/up"]
    'net/layers_0/up'
    """
    found: dict[str, str] = {}
    for module in sorted(modules, key=lambda m: (m.count("/"), m)):
        for ending in endings(module.split("/")):
            found.setdefault(ending, module)
    return found


def common(modules: Iterable[str]) -> str:
    """Return the longest path that all of these modules begin with.

    >>> common(["layers/0/up", "layers/1/up"]), common(["head"]), common(["head", "embed"])
    ('layers', 'head', '')
    """
    split = [module.split("/") for module in modules]
    shared: list[str] = []
    for steps in zip(*split, strict=False):
        if len(set(steps)) > 1:
            break
        shared.append(steps[0])
    return "/".join(shared)
