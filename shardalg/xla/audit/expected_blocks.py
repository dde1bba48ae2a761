"""The elements that an operator's operands should have, as shardings before partitioning say.

XLA partitions most operators by the sharding of their result, and contracting loops by those of
the operands. So if an operator reads wrong elements, these blocks say which ones were meant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from shardalg.lower.xla_dump.hlo_text import HloInstruction, HloModule
from shardalg.xla.audit.block_checks import blocks_of
from shardalg.xla.audit.hlo_attributes import shardings_of, window_of
from shardalg.xla.audit.operators.operator_table import Entry
from shardalg.xla.audit.operators.window_matching import WindowSizes, taps
from shardalg.xla.audit.values.element_views import Value, View, find_places
from shardalg.xla.audit.values.per_device import (
    ArrayPool,
    AuditFinding,
    PerDevice,
    WantedElement,
)


def expected_elements(
    pool: ArrayPool,
    before: HloModule,
    entry: Entry,
    instruction: HloInstruction,
    operands: Sequence[Value],
) -> list[WantedElement]:
    """Return the first wrong element of each operand of an operator on devices.

    Args:
      before: the program with the operator of the entry.
      operands: the device's operands, in the order of the entry.
    """
    expected = _result_blocks(pool, entry, instruction)
    expected.update(_window_blocks(pool, before, entry, instruction, operands, expected))
    found = []
    for number, (mine, theirs) in enumerate(zip(operands, entry.operands, strict=True)):
        if not isinstance(mine, View) or not isinstance(theirs, View):
            continue
        blocks = _operand_blocks(pool, before, entry, number, mine, expected)
        wrong = _first_wrong(pool, mine, theirs, blocks)
        if wrong is not None:
            found.append(wrong)
    return found


def _first_wrong(
    pool: ArrayPool, mine: View, theirs: View, blocks: Sequence[PerDevice]
) -> WantedElement | None:
    """Return the first element that a device's operand lacks, or None if it has its block.

    Args:
      blocks: the indices per dimension that the operand should have; -1: any element.
    """
    _, classes = pool.joined((mine.shift, *mine.lines, *blocks))
    for device in np.unique(classes, return_index=True)[1]:
        places = [block.of(device) for block in blocks]
        if not all((place >= 0).any() for place in places):
            continue
        # Places are compared along one dimension at a time, at a place of the others that is read.
        spot = tuple(int(np.argmax(place >= 0)) for place in places)
        want = [line.of(device)[at] for line, at in zip(theirs.lines, places, strict=True)]
        got = [line.of(device) for line in mine.lines]
        for dim, place in enumerate(places):
            totals = []
            for x, lines in ((theirs, want), (mine, got)):
                rest = sum(int(line[spot[d]]) for d, line in enumerate(lines) if d != dim)
                totals.append(int(x.shift.of(device)) + rest + lines[dim])
            wrong = (totals[0] >= 0) & (totals[0] != totals[1]) & (place >= 0)
            if wrong.any():
                index = int(np.argmax(wrong))
                at = tuple(index if d == dim else i for d, i in enumerate(spot))
                return WantedElement(mine.base, int(totals[0][index]), int(device), at, mine)
    return None


def _result_blocks(
    pool: ArrayPool, entry: Entry, instruction: HloInstruction
) -> dict[int, PerDevice]:
    """Return the indices of the loops of a result, if the device's result is a block of it."""
    theirs = entry.instruction
    texts = shardings_of(theirs.attributes.get("sharding"), len(theirs.leaves))
    found: dict[int, PerDevice] = {}
    rows = zip(texts, theirs.leaves, instruction.leaves, entry.loops.results, strict=False)
    for text, (_, shape), (_, local), dims in rows:
        try:
            blocks = blocks_of(pool, text, shape)
        except AuditFinding:
            continue
        if tuple(block.rows.shape[1] for block in blocks) == local:
            found.update(zip(dims, blocks, strict=True))
    return found


def _window_blocks(
    pool: ArrayPool,
    before: HloModule,
    entry: Entry,
    instruction: HloInstruction,
    operands: Sequence[Value],
    expected: dict[int, PerDevice],
) -> dict[int, PerDevice]:
    """Return the indices of the image that each place must have, so that windows are whole.

    Place `i` of the image is tap `t` of the device's output `o`. It must hold the element that is
    tap `t` of the output before partitioning which `o` is.
    """
    found: dict[int, PerDevice] = {}
    loops = entry.loops
    if not loops.windows or instruction.opcode == "select-and-scatter":
        return found
    mine, theirs = window_of(instruction), window_of(entry.instruction)
    dims = {image: at for at, (image, _, _) in enumerate(sorted(loops.windows))}
    if len(dims) != len(mine):
        # A reduce-window has a window for each dimension; a convolution for each spatial one.
        dims = {image: loops.operands[0].index(image) for image in dims}
    for image, kernel, output in loops.windows:
        local, whole = mine[dims[image]], theirs[dims[image]]
        place, part = expected.get(output), pool.same(np.arange(local.size))
        if kernel >= 0 and local.size != whole.size:
            # The device has a part of the kernel: its block by the sharding of the kernel.
            own = _own_block(pool, before, entry, 1, kernel)
            if own is None or own.rows.shape[1] != local.size:
                continue
            part = own
        if place is None:
            continue
        held = operands[0].shape[loops.operands[0].index(image)]
        sizes = (
            WindowSizes(held, place.rows.shape[1], local),
            WindowSizes(entry.extents[image][0], entry.extents[output][0], whole),
        )
        key = ("window image", *sizes)
        found[image] = pool.applied(key, _image_places(*sizes), place, part)
    return found


def _image_places(local: WindowSizes, whole: WindowSizes) -> Callable[..., np.ndarray]:
    """Return a function from outputs and kernel elements to the image's elements, per device."""
    index, exists = taps(local)
    index_whole, exists_whole = taps(whole)

    def places(outputs: np.ndarray, part: np.ndarray) -> np.ndarray:
        found = np.full((len(outputs), local.image), -1)
        for row, (at, kernel) in enumerate(zip(outputs, part, strict=True)):
            # Element k of a reversed kernel is at the tap that is k before the last one.
            tap = whole.window.size - 1 - kernel if whole.window.is_reversed else kernel
            tap = tap[::-1] if local.window.is_reversed else tap
            safe = np.ix_(np.maximum(at, 0), np.maximum(tap, 0))
            good = exists & exists_whole[safe] & (at >= 0)[:, None] & (tap >= 0)
            found[row, index[good]] = index_whole[safe][good]
        return found

    return places


def _own_block(
    pool: ArrayPool, before: HloModule, entry: Entry, number: int, loop: int
) -> PerDevice | None:
    """Return the block of an operand along a loop that its sharding gives, or None."""
    blocks = _sharded(pool, before, entry, number)
    dims = entry.loops.operands[number]
    return blocks[dims.index(loop)] if blocks and loop in dims else None


def _sharded(pool: ArrayPool, before: HloModule, entry: Entry, number: int) -> list[PerDevice]:
    """Return the blocks of an operand before partitioning by its sharding; [] if it has none."""
    instruction = entry.instruction
    source = before.computations[instruction.computation].get(instruction.operands[number])
    text = source.attributes.get("sharding", "") if source is not None else ""
    try:
        return blocks_of(pool, text, entry.operands[number].shape)
    except AuditFinding:
        return []


def _operand_blocks(
    pool: ArrayPool,
    before: HloModule,
    entry: Entry,
    number: int,
    mine: View,
    expected: dict[int, PerDevice],
) -> list[PerDevice]:
    """Return the indices per dimension that an operand should have on each device."""
    theirs, dims = entry.operands[number], entry.loops.operands[number]
    assert isinstance(theirs, View)
    own = _sharded(pool, before, entry, number)
    try:
        places, _ = find_places(pool, theirs, mine)
    except AuditFinding:
        places = (None,) * len(dims)
    blocks = []
    for dim, loop in enumerate(dims):
        size, place = mine.shape[dim], places[dim]
        candidates = [expected[loop]] if loop in expected else own[dim : dim + 1]
        candidates = [c for c in candidates if c.rows.shape[1] == size]
        if candidates:
            blocks.append(candidates[0])
        elif size == theirs.shape[dim] or place is None:
            blocks.append(pool.same(np.arange(size) % max(theirs.shape[dim], 1)))
        else:
            # No sharding says the block, so that the places with known elements stay.
            blocks.append(pool.applied("known places", lambda p: np.maximum(p, -1), place))
    return blocks
