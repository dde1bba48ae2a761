"""Known issues of XLA and JAX, found by the idiom of a refuted instruction.

An idiom is the kind of the fault, the moves of data before it, and the operator that computed the
wrong value. Names of a program play no part. Each row has the number and the title of the issue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardalg.lower.xla_dump.hlo_text import HloInstruction
from shardalg.xla.audit.values.per_device import COMPLETE_ALREADY, NOT_COMPLETED, OTHER_BLOCKS

_BLOCKS = frozenset({"dynamic-slice", "slice"})
_SUMS = frozenset({"all-reduce", "reduce-scatter"})
_FOLLOWED = frozenset({
    "copy", "bitcast", "reshape", "transpose", "convert", "tuple", "get-tuple-element",
}) | _BLOCKS | _SUMS  # fmt: skip


@dataclass(frozen=True)
class Idiom:
    """The form of a wrong part of a program.

    Attributes:
      fault: the reason why the instruction is refuted.
      between: opcodes of which one is between the operator and the instruction; without any, no
        block is taken there and no sum is made.
      source: opcode of the operator that computed the wrong value.
    """

    fault: str
    between: frozenset[str]
    source: str

    def fits(self, fault: str, passed: frozenset[str], source: str) -> bool:
        """Return whether a refuted instruction has this form.

        Args:
          passed: opcodes between the operator and the instruction.
        """
        moves = passed & (_BLOCKS | _SUMS)
        is_between = bool(moves & self.between) if self.between else not moves
        return (fault, source) == (self.fault, self.source) and is_between


KNOWN: Mapping[Idiom, str] = {
    # https://github.com/openxla/xla/issues/42481
    Idiom(OTHER_BLOCKS, _BLOCKS, "scatter"): "openxla/xla#42481: SPMD partitioner produces "
    "incorrect all-reduce ordering for scatter-add backward",
    # https://github.com/openxla/xla/issues/40034: the result is sharded along some axes of the
    # sum and replicated along others, and the sum is completed along the former only.
    Idiom(NOT_COMPLETED, _SUMS, "dot"): "openxla/xla#40034: Incorrect sharded matmul "
    "results when resharding unreduced axes to mixed sharded/replicated axes",
    # https://github.com/jax-ml/jax/issues/36886
    Idiom(COMPLETE_ALREADY, frozenset(), "dot"): "jax-ml/jax#36886: shard_map + grad produces "
    "unexpected results on multi-device",
}
"""The issue of each idiom; titles as on 2026-11-28."""


def known_issue(why: str, one: HloInstruction, body: Mapping[str, HloInstruction]) -> str:
    """Return the number and the title of the issue with a refuted instruction's idiom, or "".

    Args:
      why: the reason of the refutation. body: the instructions of the same computation.
    """
    fault = next((f for f in (OTHER_BLOCKS, NOT_COMPLETED, COMPLETE_ALREADY) if f in why), "")
    # A reader of a wrong value is refuted, or the result itself: the operator is before them.
    todo, seen = [(one, frozenset[str]())], set()
    while fault and todo:
        current, passed = todo.pop(0)
        if current.name in seen:
            continue
        seen.add(current.name)
        for idiom, issue in KNOWN.items():
            if idiom.fits(fault, passed, current.opcode):
                return issue
        if current is one or current.opcode in _FOLLOWED:
            # The refuted instruction itself is not between, except a block or a sum as a result.
            here = passed if current is one else passed | {current.opcode}
            todo += [(body[name], here) for name in current.operands if name in body]
    return ""
