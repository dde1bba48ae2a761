"""The inputs of the choice at a node (`NodeKey`), the choice (`Choice`), and the time it takes."""

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


class NodeKey(NamedTuple):
    """All inputs of the choice at a node. Nodes with equal keys are decided once.

    Attributes:
      signature: the operator, its parameters and its types.
      values: per operand, the number of the first operand that is the same value: (0, 0) for
        `x * x`.
      sources: per operand, the shardings of its available copies, unreduced digits included.
      value_shardings: per result, the completed sharding.
      rates: floating-point operations that take as long as one byte sent or written.
      loops: per component, the digits on its loops if they are decided already; else empty.
      unread: numbers of results that no node reads. They are not moved to their completed sharding.
      padded: whether blocks may be padded while they are moved (`Switches.pad_blocks`).
      finite: whether sums may be deferred until after a product (`Switches.finite_sums`).
      waits: whether partial sums of the result may be deferred until a loop is over. Among choices
        of equal cost, one that defers them is preferred.
      required: per component, (operand number, required sharding) that policy "cost" chose together
        with `loops`.
      shared: numbers of a product's operands that a later product reads, too, perhaps as the same
        copy.
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
        """The numbers on which a choice depends, for plans with named sizes.

        They are sizes and digits of the results, and sizes of the operands.
        """
        for layout in self.value_shardings:
            yield from layout.numbers
        for layouts in self.sources:
            yield from layouts[0].shape


@dataclass(frozen=True)
class Choice:
    """One way to compute a node: the sharded loops, and the shardings that follow from them.

    Attributes:
      loops: the sharded loops with their digits.
      required_shardings: the sharding in which each operand is read.
      produced: the sharding in which each result is computed; axes of pending sums are unreduced.
      devices: the number of parts that the iterations are divided into.
      regrouped: whether the node is a reshape that runs as an exchange
        (`planner/partition/choose/regroup.py`).
    """

    loops: tuple[tuple[str, Digits], ...]
    required_shardings: tuple[Sharding, ...]
    produced: tuple[Sharding, ...]
    devices: int
    regrouped: bool = False


class Weighed(NamedTuple):
    """A comparison of two choices at a node, recorded as the reason of a plan's condition.

    Attributes:
      chosen: the best choice.
      other: a choice that it was compared with.
      by: the compared quantity, "time" or "bytes".
    """

    chosen: Choice
    other: Choice
    by: str


def available(key: NodeKey, tensor: Tensor) -> tuple[Sharding, ...]:
    """Return the shardings of an operand's available copies, or a result's completed sharding.

    The latter is a tuple of one.
    """
    if tensor.operand is not None:
        return key.sources[tensor.operand]
    return (key.value_shardings[tensor.number],)


def num_parts(assigned: Assigned) -> int:
    """Return the number of parts into which an assignment divides the iterations of a node."""
    return math.prod([parts(digits) for digits in assigned.values()])


class CostWeights(NamedTuple):
    """Weights of bytes and arithmetic at a node, to compare choices in one unit of time.

    The unit is the time of one flop of a device, divided by the devices of the mesh. All times are
    then whole numbers.

    Attributes:
      byte: flops that take as long as one byte sent.
      work: flops of the whole operator, including those that take as long as writing its results.
      size: the number of devices of the mesh.
    """

    byte: int
    work: Any
    size: int

    def time(self, choice: Choice, sent: Any) -> Any:
        """Return the time of a choice, in flops of a device divided by the devices of the mesh.

        In this unit the time is a whole number.

        Args:
          sent: bytes that a device sends for the choice.
        """
        # The mesh size is a multiple of `choice.devices`, so the time is a whole number.
        return sent * self.byte * self.size + self.work * (self.size // choice.devices)


def cost_weights(key: NodeKey) -> CostWeights:
    """Return the weights by which the choices at a node are compared."""
    signature, rates = key.signature, key.rates
    # Each device writes its own part of the results. Without this, an operator with few flops per
    # element, such as an addition, would gain almost nothing from more devices.
    written = sum([math.prod(type_.shape) * type_.itemsize for type_ in signature.results])
    work = signature_flops(signature) + written * rates.written_flops
    return CostWeights(rates.sent_flops, work, key.value_shardings[0].mesh.size)
