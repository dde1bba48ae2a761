"""The number of bytes that a device sends if a node is computed as a `Choice` describes.

It includes moves of operands and results, halo exchanges, and combining partial results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from shardalg.algebra.digits import parts
from shardalg.algebra.sharding import Sharding
from shardalg.costs.collectives import step_wire_bytes
from shardalg.graph.ir import Signature
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import ARGMAX, ARGMIN, PICK, SUM, TOP, USER, Rule
from shardalg.graph.ops.windows import is_windowed
from shardalg.planner.partition.choose import regroup
from shardalg.planner.partition.choose.component import reduced_digits
from shardalg.planner.partition.choose.key import Choice, NodeKey
from shardalg.planner.partition.choose.windows import elements, together, windows
from shardalg.planner.reshard.paths import usable
from shardalg.sizes.amounts import quotient

# Combines without an all-reduce: every device gathers all partial results and combines them.
GATHERED = (ARGMAX, ARGMIN, TOP, USER)


def sent_bytes(key: NodeKey, choice: Choice, price: Callable[[Sharding, Sharding], Any]) -> Any:
    """Return the bytes that a device sends for a choice.

    Operands are moved from the cheapest available copy, results to their completed shardings.

    Args:
      price: returns the elements that a device sends from one sharding to another.
    """
    signature, total = key.signature, 0
    for number, required in dict.fromkeys(zip(key.values, choice.required_shardings, strict=True)):
        available = key.sources[number]
        # A copy that is available is not sent again. Equal operands are sent once.
        if required not in available:
            least = min([price(source, required) for source in usable(available, required)])
            sent = least * signature.operands[number].itemsize
            # A later product may need the same copy. Then it pays half; that is assumed to happen
            # in one case of two, so the copy costs a quarter less here.
            total += quotient(sent * 3, 4) if number in key.shared else sent
    total += window_bytes(key, choice) + _combine_bytes(key, choice)
    if choice.regrouped:
        sent = regroup.elements(signature, choice.required_shardings[0], choice.produced[0])
        total += sent * signature.operands[0].itemsize
    ends = zip(choice.produced, key.value_shardings, signature.results, strict=True)
    for number, (made, result_sharding, type_) in enumerate(ends):
        if made is not result_sharding and number not in key.unread:
            # A sum deferred until a loop is over is sent once for all iterations. If it becomes
            # wider on the way, it counts in the narrower type of its operands.
            waits = key.waits and made.unreduced
            types = (*signature.operands, type_) if waits else (type_,)
            total += price(made, result_sharding) * min([each.itemsize for each in types])
    return total


def _combine_bytes(key: NodeKey, choice: Choice) -> Any:
    """Return the bytes that a device sends to combine partial results, except sums.

    Sums stay partial after the operator; reducing them is a move of the result.

    Args:
      key: the operator and its types.
      choice: the digits of its loops, and the shardings of its operands and results.
    """
    signature, loops, total = key.signature, dict(choice.loops), 0
    for rule in rules(signature) or ():
        digits = reduced_digits(rule, loops) if rule.combine not in (SUM, PICK) else ()
        if digits:
            # An arg-reduce sends the best value together with its index, because an index alone
            # does not say how good its element is.
            with_index = signature.operands[:1] if rule.combine in (ARGMAX, ARGMIN) else ()
            items_bytes = sum([type_.itemsize for type_ in (*signature.results, *with_index)])
            local_bytes = math.prod(choice.produced[0].shard_shape) * items_bytes
            # Results that no collective combines are gathered, and combined on every device.
            kind = "all_gather" if rule.combine in GATHERED else "all_reduce"
            total += step_wire_bytes(kind, group_size=parts(digits), local_bytes=local_bytes)
    return total


def window_bytes(key: NodeKey, choice: Choice) -> int:
    """Return the bytes that a device sends in halo exchanges of windowed dimensions."""
    total = 0
    # `windows` finds the dimensions that need an exchange, `together` groups those that share
    # permutes, and `elements` counts what one group sends.
    for rule in through_windows(key.signature):
        loops = tuple((name, digits) for name, digits in choice.loops if name in rule.extents)
        operand_dims = tuple((k, choice.required_shardings[k].dims) for k in rule.operands)
        devices = key.value_shardings[0].mesh.size
        # Without a sharded loop, every device has all elements that its windows read.
        found = windows(rule, loops, operand_dims, devices) if loops else ()
        pairs = zip(key.signature.operands, choice.required_shardings, strict=True)
        blocks = [(type_.dtype, required.shard_shape) for type_, required in pairs]
        # One permute serves several windows of equal blocks, so groups are counted, not windows.
        for group in together(found, blocks):
            number = group[0].operand
            shape, itemsize = (
                choice.required_shardings[number].shard_shape,
                key.signature.operands[number].itemsize,
            )
            total += elements(group, key.values, shape) * itemsize
    return total


@lru_cache(maxsize=1 << 14)
def through_windows(signature: Signature) -> tuple[Rule, ...]:
    """Return the rules of an operator in which a dimension of an operand is read through a window.

    Windows can be strided, shifted, dilated or reversed (`graph/ops/windows.py`).
    """
    return tuple(
        rule
        for rule in rules(signature) or ()
        if any(
            is_windowed(rule, k, d) for k, dims in rule.operands.items() for d in range(len(dims))
        )
    )
