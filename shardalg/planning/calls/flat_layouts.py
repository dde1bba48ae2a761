"""Prefixes of layouts as one entry per array: those of the user, else the function's own."""

from __future__ import annotations

from typing import Any

from shardalg.graph.tracing.trace import flatten_prefix
from shardalg.planning.calls.call import Call, Returned
from shardalg.planning.calls.nnx_call import plain_state
from shardalg.propagate.strategy import PerLeaf, Strategy


def flat_layouts(call: Call, trees: tuple[Any, Any], strategy: Strategy) -> tuple[PerLeaf, PerLeaf]:
    """Per leaf of the arguments, and of the results, what a strategy says of it.

    State that a framework hands out again lies as it came in, where nothing else is said.

    Raises:
      StrategyError: a prefix that is none of the arguments, or of the results.
    """
    arguments = entered(call, strategy.in_shardings)
    results = trees[1].unflatten(range(trees[1].num_leaves))
    if strategy.out_shardings is None and call.out_shardings is not None:
        return arguments, PerLeaf(flatten_prefix(call.out_shardings, results, "out_shardings"))
    returned = _returned(call, trees[1])
    out = flatten_prefix(plain_state(strategy.out_shardings), returned.tree, "out_shardings")
    pairs = zip(returned.states, returned.places, strict=True)
    return arguments, PerLeaf(
        out[place] if place is not None else None if state is None else arguments[state]
        for state, place in pairs
    )


def entered(call: Call, prefix: Any) -> PerLeaf:
    """Per leaf of the arguments what a prefix says of it; None: what the function itself says."""
    if isinstance(prefix, PerLeaf):
        return prefix
    if prefix is not None:
        given = tuple(prefix) if isinstance(prefix, list) else prefix
        return PerLeaf(call.spread(plain_state(given), "in_shardings"))
    return PerLeaf(flatten_prefix(call.in_shardings, call.args, "in_shardings"))


def _returned(call: Call, tree: Any) -> Returned:
    results = tree.unflatten(range(tree.num_leaves))
    if call.returned is not None:
        return call.returned(results)
    count = tree.num_leaves
    return Returned((None,) * count, results, tuple(range(count)))
