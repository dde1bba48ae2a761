"""The leaves of a call's arguments: which are donated, how they are placed already, what they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from shardalg.errors import StrategyError
from shardalg.graph.ir import Graph


def donated_leaves(args: Sequence[Any], donate_argnums: int | Sequence[int]) -> tuple[int, ...]:
    """Numbers of the flattened arguments that belong to the donated positions.

    Raises:
      StrategyError: a position that no argument has.

    >>> donated_leaves(({"a": 1, "b": 2}, 3), 0)
    (0, 1)
    """
    wanted = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
    bad = [n for n in wanted if not -len(args) <= n < len(args)]
    if bad:
        raise StrategyError(f"donate_argnums names {bad}, but there are {len(args)} arguments.")
    positions = {n % len(args) for n in wanted}
    owner = [i for i, arg in enumerate(args) for _ in jax.tree.leaves(arg)]
    return tuple(leaf for leaf, i in enumerate(owner) if i in positions)


def own_shardings(args: Sequence[Any]) -> tuple[Any, ...]:
    """Per leaf the NamedSharding that it carries, or None.

    A sharding on a mesh of one device says nothing.
    """
    leaves = jax.tree.leaves(tuple(args))
    found = [getattr(leaf, "sharding", None) for leaf in leaves]
    named = [s if isinstance(s, jax.sharding.NamedSharding) else None for s in found]
    return tuple(None if s is None or s.mesh.size == 1 else s for s in named)


def argument_structs(graph: Graph, like: Any = None) -> tuple[Any, ...]:
    """Shapes and item types of the planned arguments, flat."""
    types = [graph.values[v].type for v in graph.arguments]
    return tuple(jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types)
