"""On how many devices a contraction is computed at least: as its layouts match."""

from __future__ import annotations

from shardalg.algebra.digits import Digit
from shardalg.costs.compute import contracts
from shardalg.partition.component import Assigned, Component
from shardalg.partition.key import NodeKey, at_hand, devices_of

Held = dict[str, set[Digit]]
"""Digits per loop."""


def demanded_devices(key: NodeKey, component: Component, assignments: list[Assigned]) -> int:
    """How many devices a contraction is computed on at least.

    Loops are matched by digits that an operand and the result both put on them, contracted ones
    where all operands put the same (a window's other operand has no digits on its taps). What matches splits the work as it lies; besides, the result's
    digits may. The most devices of the assignments that use all matches and no digits of one
    operand alone: so that less traffic never means more arithmetic than in XLA's partitioner, which
    groups devices by the same matches (`dot_handler.cc`, PartitionDotGroupOn*).
    """
    if not (component.is_whole and contracts(key.signature)):
        return 1
    matched, usable = _matches(key, component)
    most = 1
    for assigned in assignments:
        count = devices_of(assigned)
        if count > most and _is_matched(assigned, matched, usable):
            most = count
    return most


def _is_matched(assigned: Assigned, matched: Held, usable: Held) -> bool:
    """Whether it uses all matches, and nothing that one operand alone has."""
    if not all(digits.issubset(assigned.get(name, ())) for name, digits in matched.items()):
        return False
    return all(usable.get(name, set()).issuperset(own) for name, own in assigned.items())


def _matches(key: NodeKey, component: Component) -> tuple[Held, Held]:
    """Per loop the digits on which its tensors agree, and those that may split it besides."""
    asked, held = _held(key, component, of_result=True), _held(key, component, of_result=False)
    reduced = [name for name in component.loops if name in component.rule.reduced]
    home = {name: set().union(*found) for name, found in asked.items()}
    matched = {name: own & set().union(*held.get(name, ())) for name, own in home.items()}
    used = {digit for digits in matched.values() for digit in digits}
    left = {
        name: [digits - used for digits in held[name]]
        for name in reduced
        if len(held.get(name, ())) == _readers(component, name)
    }
    shared = {name: set.intersection(*found) for name, found in left.items()}
    same = {name: shared[name] if _alike(found) else set() for name, found in left.items()}
    contracted = {digit for digits in shared.values() for digit in digits}
    usable = {name: own - contracted for name, own in home.items()}
    return matched | same, usable | same


def _readers(component: Component, loop: str) -> int:
    """How many dimensions of operands are read along a loop, through windows too."""
    return sum(
        loop in index.variables
        for tensor in component.tensors
        if tensor.operand is not None
        for index in tensor.rule.indices(tensor.operand)
    )


def _alike(held: list[set[Digit]]) -> bool:
    return all(found == held[0] for found in held)


def _held(key: NodeKey, component: Component, *, of_result: bool) -> dict[str, list[set[Digit]]]:
    """Per loop, what each of its dimensions puts on it; of partial sums any dimension may get."""
    found: dict[str, list[set[Digit]]] = {}
    for tensor in component.tensors:
        if (tensor.operand is None) == of_result:
            layouts = at_hand(key, tensor)[:1]
            pending = {d for layout in layouts for d in layout.unreduced}
            for dim, loops in enumerate(tensor.suggested):
                digits = pending.union(*(layout.dims[dim] for layout in layouts))
                for name, _ in loops:
                    found.setdefault(name, []).append(digits)
    return found
