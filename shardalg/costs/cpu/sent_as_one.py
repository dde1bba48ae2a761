"""All-reduces that XLA's CPU compiler combines: of the same devices, none waiting for another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardalg.costs.cpu.written_out import APART, Operation
from shardalg.spmd.instructions import AllReduce


def combined(operations: Sequence[Operation]) -> list[Operation]:
    """The same operations, with one for all that are combined, where the last of them stood.

    In the order of the program each joins the first group that it may (`AllReduceCombiner`).
    """
    known = _Groups(operations)
    for place, operation in enumerate(operations):
        key = _combinable(operation)
        if key is not None:
            known.join(place, key)
    found = []
    for place, operation in enumerate(operations):
        group = known.group.get(place, [place])
        if place == group[-1]:
            found.append(_one([operations[k] for k in group]) if len(group) > 1 else operation)
    return found


def _combinable(operation: Operation) -> Any:
    """Alike of all-reduces that could be one; None of all else."""
    attributes = operation.instruction.attributes
    if operation.kind != APART or not isinstance(attributes, AllReduce):
        return None
    return attributes.digits, attributes.combine


def _one(operations: Sequence[Operation]) -> Operation:
    reads = tuple(v for one in operations for v in one.reads)
    makes = tuple(v for one in operations for v in one.makes)
    return replace(operations[-1], reads=reads, makes=makes)


@dataclass
class _Groups:
    operations: Sequence[Operation]
    group: dict[int, list[int]] = field(default_factory=dict)
    of_key: dict[Any, list[list[int]]] = field(default_factory=dict)
    maker: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.maker = {v: k for k, one in enumerate(self.operations) for v in one.makes}

    def join(self, place: int, key: Any) -> None:
        """Put an operation into the first group of its key that nothing makes it wait for."""
        groups = self.of_key.setdefault(key, [])
        for group in groups:
            if not self.waits([place], {*group}) and not self.waits(group, {place}):
                group.append(place)
                self.group.update(dict.fromkeys(group, group))
                return
        groups.append([place])

    def waits(self, places: Iterable[int], others: set[int]) -> bool:
        """Whether one of the places reads what follows from one of the others."""
        seen: set[int] = set()
        waiting = [before for place in places for before in self.before(place)]
        while waiting:
            for place in self.group.get(first := waiting.pop(), [first]):
                if place in others:
                    return True
                if place not in seen:
                    seen.add(place)
                    waiting += self.before(place)
        return False

    def before(self, place: int) -> list[int]:
        """What makes that which an operation reads."""
        return [self.maker[v] for v in self.operations[place].reads if v in self.maker]
