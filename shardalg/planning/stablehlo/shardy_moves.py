"""Shardy's operators that move a value to another sharding: it stays the same global value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shardalg.planning.stablehlo.text_layouts import constrained
from shardalg.planning.stablehlo.text_step import Step


def _as_stated(name: str) -> Callable[..., Any]:
    """Return the reading of an operator whose result has the sharding in this attribute."""
    return lambda step, x: constrained(x, step.layout(step.op.attributes[name], np.shape(x)))


def _reduced(step: Step, x: Any) -> Any:
    """Return the sum, which is the operand's global value: the operand's blocks are partial sums.

    Of a value that no operator has left as partial sums, each device would have a summand of its
    own, and the program of all devices has no such value.
    """
    if not _is_partial(step.op.operands[0]):
        raise step.refused(" of a value that is no partial sum")
    return _as_stated("out_sharding")(step, x)


def _is_partial(value: Any) -> bool:
    owner = value.owner
    name = getattr(owner, "name", "")
    if name.startswith("sdy.") and list(getattr(owner, "operands", ())):
        return _is_partial(owner.operands[0])
    return name in _SUMS or "unreduced" in _own_sharding(owner)


def _own_sharding(owner: Any) -> str:
    attributes = getattr(owner, "attributes", {})
    return str(attributes["sdy.sharding"]) if "sdy.sharding" in attributes else ""


_SUMMING = "convolution dot dot_general gather reduce reduce_window scatter select_and_scatter"
_SUMS = frozenset(f"stablehlo.{name}" for name in _SUMMING.split())
"""Operators whose blocks are partial sums where a dimension that they sum over is sharded."""

OPERATORS: Mapping[str, Callable[..., Any]] = {
    "sdy.sharding_constraint": _as_stated("sharding"),
    "sdy.reshard": _as_stated("sharding"),
    "sdy.all_gather": _as_stated("out_sharding"),
    "sdy.all_slice": _as_stated("out_sharding"),
    "sdy.all_to_all": _as_stated("out_sharding"),
    "sdy.collective_permute": _as_stated("out_sharding"),
    "sdy.all_reduce": _reduced,
    "sdy.reduce_scatter": _reduced,
}
