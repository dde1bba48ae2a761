"""What the choice at a node depends on, what is chosen, and what its time is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.sharding import Sharding
from shardalg.costs.compute import signature_flops
from shardalg.costs.hardware import Rates
from shardalg.graph.ir import Signature
from shardalg.planner.partition.choose.component import Assigned, Tensor

LoopDigits = tuple[tuple[str, Digits], ...]
"""Sharded loops with their digits."""


class NodeKey(NamedTuple):
    """All that the choice depends on; nodes that are alike are decided once.

    Attributes:
      values: per operand, the first one that is the same value.
      sources: per operand, the layouts in which the value is at hand (unreduced digits included).
      homes: per result, the completed sharding.
      rates: what a byte weighs against a floating-point operation.
      loops: per component the digits on its loops, where that was decided before; else empty.
      unread: results that nobody reads, and so nobody brings home.
      padded: whether blocks may be padded on their way (`Switches.pad_blocks`).
      finite: whether sums wait behind products too (`Switches.finite_sums`).
      waits: whether partial sums of the result may wait until a loop is over: of two choices that
        cost the same, they do.
      required: per component the layouts of operands that were chosen with `loops`.
      shared: operands of a product that a later product reads too, and maybe the same copy.
      read_again: whether the result is a pointwise float that several nodes read. Among choices of
        equal cost, the result's own sharding is then preferred.
    """

    signature: Signature
    values: tuple[int, ...]
    sources: tuple[tuple[Sharding, ...], ...]
    value_shardings: tuple[Sharding, ...]
    rates: Rates
    loops: tuple[LoopDigits, ...] = ()
    unread: tuple[int, ...] = ()
    padded: bool = True
    finite: bool = False
    waits: bool = False
    shared: tuple[int, ...] = ()
    required: tuple[tuple[tuple[int, Sharding], ...], ...] = ()
    read_again: bool = False

    @property
    def numbers(self) -> Iterator[Any]:
        """Sizes and digits of results, and of operands."""
        for layout in self.value_shardings:
            yield from layout.numbers
        for layouts in self.sources:
            yield from layouts[0].shape


@dataclass(frozen=True)
class Choice:
    """An assignment and the layouts that follow from it.

    Attributes:
      loops: sharded loops with their digits.
      demands: layout of each operand; produced: layout of each result, pending digits as unreduced.
      devices: how many parts the iterations are computed in.
      regrouped: whether an exchange stands for the operator (`planner.partition.choose.regroup`).
    """

    loops: tuple[tuple[str, Digits], ...]
    required_shardings: tuple[Sharding, ...]
    produced: tuple[Sharding, ...]
    devices: int
    regrouped: bool = False


class Weighed(NamedTuple):
    """What was chosen, what else could have been, and what was compared: time or bytes."""

    chosen: Choice
    other: Choice
    by: str


def available(key: NodeKey, tensor: Tensor) -> tuple[Sharding, ...]:
    """The layouts of an operand, or the home of a result."""
    if tensor.operand is not None:
        return key.sources[tensor.operand]
    return (key.value_shardings[tensor.number],)


def devices_of(assigned: Assigned) -> int:
    """In how many parts an assignment divides the work."""
    return math.prod([parts(digits) for digits in assigned.values()])


class CostWeights(NamedTuple):
    """How the time of a choice is counted, in whole flops of all devices together.

    Attributes:
      byte: flops that weigh as much as a byte sent; work: of the whole operator, with what it
        writes. size: devices of the mesh.
    """

    byte: int
    work: Any
    size: int

    def time(self, choice: Choice, sent: Any) -> Any:
        """Args: sent: bytes that a device sends for the choice."""
        return sent * self.byte * self.size + self.work * (self.size // choice.devices)


def weight(key: NodeKey) -> CostWeights:
    """What bytes and arithmetic weigh at a node."""
    signature, rates = key.signature, key.rates
    written = sum([math.prod(type_.shape) * type_.itemsize for type_ in signature.results])
    work = signature_flops(signature) + written * rates.written_flops
    return CostWeights(rates.sent_flops, work, key.value_shardings[0].mesh.size)
