"""What stands around a local gather or scatter: shifted indices, masks, the block of margins."""

from __future__ import annotations

from collections.abc import Mapping

from shardalg.algebra.digits import Digits
from shardalg.ops.local_parameters import Emission, IndexShift
from shardalg.ops.rule import Access, Rule
from shardalg.partition.emit.windows import Kept
from shardalg.spmd.program import Attributes, MaskIndexed, Offset, Slice


def shifts(
    emission: Emission, loops: dict[str, Digits], blocks: dict[str, int]
) -> tuple[tuple[int, Attributes], ...]:
    """(operand, instruction) where run-time numbers are shifted before the operator."""
    return tuple(
        (s.operand, _offset(s, loops[s.loop], blocks[s.loop]))
        for s in emission.shifts
        if s.operand is not None and loops.get(s.loop)
    )


def result_shifts(
    emission: Emission, loops: dict[str, Digits], blocks: dict[str, int]
) -> tuple[Attributes, ...]:
    """Shifts of the result's numbers (positions)."""
    return tuple(
        _offset(s, loops[s.loop], blocks[s.loop])
        for s in emission.shifts
        if s.operand is None and loops.get(s.loop)
    )


def _offset(shift: IndexShift, digits: Digits, block: int) -> Offset:
    """The instruction that shifts run-time numbers."""
    scale = shift.sign * block
    return Offset(digits, scale, shift.component, shift.clamp, shift.more, shift.within)


def within_margins(rule: Rule, emission: Emission, blocks: Mapping[str, int]) -> tuple[Kept, ...]:
    """The blocks of a result that was written with its margins."""
    found = []
    for _, loop, width in emission.margins if isinstance(rule.init, Access) else ():
        (dim,) = (d for d, made in enumerate(rule.results[0]) if made.loop == loop)
        block = blocks[loop]
        found.append(Kept(dim, block + 2 * width, Slice(dim, width, block)))
    return tuple(found)


def indexed(
    emission: Emission, loops: dict[str, Digits], blocks: dict[str, int]
) -> tuple[int, MaskIndexed] | None:
    """(operand of the indices, what keeps of a gathered value what the own block holds)."""
    owned = [one for one in emission.owned if loops.get(one[1])]
    if not owned:
        return None
    widths = {loop: width for _, loop, width in emission.margins}
    components = tuple((c, loops[loop], blocks[loop], count) for c, loop, count in owned)
    margins = tuple(widths.get(loop, 0) for _, loop, _ in owned) if widths else ()
    operand = next(s.operand for s in emission.shifts if s.operand is not None)
    return operand, MaskIndexed(components, emission.batch_dims, emission.fill, margins)
