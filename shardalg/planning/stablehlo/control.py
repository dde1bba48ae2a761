"""Loops and branches of StableHLO."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jax import lax

from shardalg.planning.stablehlo.text_step import Step


def _while(step: Step, *carry: Any) -> Any:
    """A loop that counts runs so often as it counts; any other until its condition fails."""
    condition, body = step.region(0), step.region(1)
    turns = _turns(step, carry)
    if turns is None:
        return lax.while_loop(lambda c: condition(*c)[0], lambda c: body(*c), carry)
    return lax.scan(lambda c, _: (body(*c), None), carry, None, length=turns)[0]


def _turns(step: Step, carry: tuple[Any, ...]) -> int | None:
    """How often the body runs, where a carried counter goes up by one to a constant."""
    condition, body = (region.blocks[0] for region in step.op.regions)
    *_, compare, end = condition.operations
    compare = compare.operation
    if compare.name != "stablehlo.compare" or list(end.operands) != list(compare.results):
        return None
    if "LT" not in str(compare.attributes["comparison_direction"]):
        return None
    counter = [i for i, arg in enumerate(condition.arguments) if arg == compare.operands[0]]
    stop = _number(compare.operands[1])
    if not counter or stop is None:
        return None
    at = counter[0]
    start = _number(step.op.operands[at])
    *_, end = body.operations
    added: Any = getattr(end.operands[at], "owner", None)
    up = getattr(added, "name", "") == "stablehlo.add"
    if not up or start is None or added.operands[0] != body.arguments[at]:
        return None
    return max(0, stop - start) if _number(added.operands[1]) == 1 else None


def _number(value: Any) -> int | None:
    """The number that a constant is."""
    owner = value.owner
    if getattr(owner, "name", "") != "stablehlo.constant":
        return None
    said = owner.attributes["value"]
    return int(said.get_splat_value().value) if said.is_splat else None


def _if(step: Step, which: Any) -> Any:
    return tuple(lax.cond(which, step.region(0), step.region(1)))


def _case(step: Step, which: Any) -> Any:
    """StableHLO takes the last branch for a number that is none's."""
    count = len(step.op.regions)
    index = lax.select((which < 0) | (which >= count), lax.full_like(which, count - 1), which)
    return tuple(lax.switch(index, [step.region(i) for i in range(count)]))


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "stablehlo.while": _while,
    "stablehlo.if": _if,
    "stablehlo.case": _case,
}
