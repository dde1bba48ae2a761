"""Known issues of XLA and JAX, found by the idiom of a refuted instruction.

An idiom is the kind of the fault, the moves of data before it, and the operator that computed the
wrong value. Names of a program play no part. Each row has the number and the title of the issue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardalg.lower.xla_dump.hlo_text import HloInstruction
from shardalg.xla.audit.values.per_device import COMPLETE_ALREADY, NOT_COMPLETED, OTHER_BLOCKS

_BLOCKS = ("dynamic-slice", "slice")
_FOLLOWED = (
    *_BLOCKS, "copy", "bitcast", "reshape", "transpose", "convert", "all-reduce", "tuple",
    "get-tuple-element",
)  # fmt: skip


@dataclass(frozen=True)
class Idiom:
    """The form of a wrong part of a program.

    Attributes:
      fault: the reason why the instruction is refuted.
      is_block: whether a block is taken between the operator and the instruction.
      source: opcode of the operator that computed the wrong value.
    """

    fault: str
    is_block: bool
    source: str


KNOWN: Mapping[Idiom, str] = {
    # https://github.com/openxla/xla/issues/42481
    Idiom(OTHER_BLOCKS, True, "scatter"): "openxla/xla#42481: SPMD partitioner produces incorrect "
    "all-reduce ordering for scatter-add backward",
    # https://github.com/openxla/xla/issues/40034
    Idiom(NOT_COMPLETED, False, "dot"): "openxla/xla#40034: Incorrect sharded matmul results when "
    "resharding unreduced axes to mixed sharded/replicated axes",
    # https://github.com/jax-ml/jax/issues/36886
    Idiom(COMPLETE_ALREADY, False, "dot"): "jax-ml/jax#36886: shard_map + grad produces unexpected "
    "results on multi-device",
}
"""The issue of each idiom; titles as on 2026-11-28."""


def known_issue(why: str, one: HloInstruction, body: Mapping[str, HloInstruction]) -> str:
    """Return the number and the title of the issue with a refuted instruction's idiom, or "".

    Args:
      why: the reason of the refutation. body: the instructions of the same computation.
    """
    fault = next((f for f in (OTHER_BLOCKS, NOT_COMPLETED, COMPLETE_ALREADY) if f in why), "")
    # A reader of a wrong value is refuted, or the result itself: the operator is before them.
    todo, seen, is_block = [(one, False)], set(), False
    while fault and todo:
        current, is_block = todo.pop(0)
        if current.name in seen:
            continue
        seen.add(current.name)
        issue = KNOWN.get(Idiom(fault, is_block, current.opcode))
        if issue is not None:
            return issue
        if current is one or current.opcode in _FOLLOWED:
            is_block = is_block or current.opcode in _BLOCKS
            todo += [(body[name], is_block) for name in current.operands if name in body]
    return ""
