"""Forward, backward or update: read off JAX's name stacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shardalg.graph.ir import Signature
from shardalg.graph.source import JVP, TRANSPOSE


class Draft(NamedTuple):
    """A node whose phase is not known yet; `flags` are JVP and TRANSPOSE of its name stack."""

    signature: Signature
    operands: tuple[int, ...]
    results: tuple[int, ...]
    source: str
    flags: int
    region: int
    bodies: tuple[int, ...]
    module: str = ""


def phases(drafts: Sequence[Draft], body_results: Mapping[int, Sequence[int]]) -> list[str]:
    """The phase of every node.

    A transposed equation is backward and any other differentiated one forward; a call is what its
    body is. Of the rest, what a differentiated node needs is forward (masks, casts of parameters)
    and what none needs is update. Without any backward node everything is forward.

    Args:
      drafts: in order of execution, a call right behind its bodies.
      body_results: region to the values that its call hands on.
    """
    flags = _with_bodies(drafts)
    if not any(flag & TRANSPOSE for flag in flags):
        return ["forward"] * len(drafts)
    found = [""] * len(drafts)
    needed: set[int] = set()
    for i in range(len(drafts) - 1, -1, -1):
        draft, flag = drafts[i], flags[i]
        wanted = not needed.isdisjoint(draft.results)
        if flag:
            found[i] = "backward" if flag & TRANSPOSE else "forward"
        else:
            found[i] = "forward" if wanted else "update"
        if flag or wanted:
            needed.update(draft.operands)
        if wanted:
            needed.update(value for body in draft.bodies for value in body_results[body])
    return found


def _with_bodies(drafts: Sequence[Draft]) -> list[int]:
    """Flags per node, a call's joined with those of its bodies."""
    flags, inside = [], dict[int, int]()
    for draft in drafts:
        flag = draft.flags
        for body in draft.bodies:
            flag |= inside.get(body, 0)
        flags.append(flag)
        inside[draft.region] = inside.get(draft.region, 0) | flag & (JVP | TRANSPOSE)
    return flags
