"""Where masks are placed: what padding would be counted, and the number that stands for it.

A combined loop that does not divide leaves padding in its last blocks, which may hold anything. An
operand is masked along it by the identity of the combine (0 of a sum, the lowest number of a
maximum), or by the number of an operand that fills places; windows beyond the end of a block read
0. `partition/choose/windows.py` masks what windows read beyond a tensor, and
`partition/passes/moving_masks.py` then moves masks to where a value is made, or leaves them out.

Source: GSPMD (arXiv:2105.04663) section 4.1; XLA spmd_partitioner.cc, PadWithValue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digits, parts
from shardalg.ops.local_parameters import Emission
from shardalg.ops.rule import PICK, SUM, Rule
from shardalg.reshard.even import tile
from shardalg.spmd.instruction import Attributes
from shardalg.spmd.instructions import Dilate, Mask, MaskAt
from shardalg.spmd.local import Start


class Before(NamedTuple):
    """An instruction on an operand before the operator runs.

    Attributes:
      filler: the operand whose number fills places, if one does.
    """

    operand: int
    attributes: Attributes
    filler: int | None = None


def masks(rows: tuple[Rule, ...], loops: dict[str, Digits]) -> tuple[Before, ...]:
    """Mask operands along a combined loop that does not divide: padding would be counted."""
    found: dict[Before, None] = {}
    for rule in rows:
        split = [name for name in _joined(rule) if name in loops]
        for operand, dims in rule.operands.items() if split and rule.combine != PICK else ():
            for dim, index in enumerate(dims):
                mask = _mask(rule, index.loop, loops) if index.loop in split else None
                if mask:
                    made = _masking(rule, operand, dim, mask)
                    found[Before(operand, made, rule.filler(operand))] = None
    return tuple(found)


class PaddedLoop(NamedTuple):
    """A loop whose last blocks hold padding: by which digits it is cut, its block, its extent."""

    digits: Digits
    block: int
    size: int


def _masking(rule: Rule, operand: int, dim: int, padded: PaddedLoop) -> Mask | MaskAt:
    """What fills the places beyond a loop: an identity, or the number that stands for it."""
    if rule.filler(operand) is None:
        return Mask(dim, *padded, rule.combine)
    loop = rule.operands[operand][dim].loop
    assert loop is not None, "what is padded is a loop"
    start = Start(Index.of(loop) * padded.block, ((loop, padded.digits),))
    return MaskAt(dim, start, padded.size, None)


def _joined(rule: Rule) -> tuple[str, ...]:
    """Loops whose padding joins what is kept: combined ones, and those of prefixes from the end."""
    return rule.reduced if rule.prefix is None or not rule.prefix[1] else (rule.prefix[0],)


def _mask(rule: Rule, loop: str, loops: dict[str, Digits]) -> PaddedLoop | None:
    """A sharded loop as it is padded; None where its blocks are even."""
    digits, extent = loops.get(loop, ()), rule.extents[loop]
    if extent % parts(digits) == 0:
        return None
    return PaddedLoop(digits, tile(extent, parts(digits)), extent)


def around(rule: Rule, emission: Emission, loops: dict[str, Digits]) -> Iterator[Before]:
    """Margins around a block that windows overlap; what is read there, or behind its end, is 0."""
    for dim, loop, width in emission.margins:
        mask = _mask(rule, loop, loops)
        if mask:
            yield Before(0, Mask(dim, *mask, SUM))
        yield Before(0, Dilate(dim, 1, width, width, SUM))
