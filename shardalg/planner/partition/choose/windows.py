"""The elements that windows over sharded dimensions read, and masks of padding.

The row gives the interval that a device's iterations read (`algebra/halos/intervals.py`), and
`planner/reshard/exchanges.py` gives the instructions that fetch it. Elements beyond the tensor are
masked. A dilated window whose phase depends on the device writes its dilation out (GSPMD,
arXiv:2105.04663, appendix A.2).

A reduced loop whose extent does not divide leaves padding in its last blocks. The padding may hold
any number. An operand is therefore masked along such a loop. The mask writes the identity of the
combination (0 for a sum, the lowest number for a maximum), or the value of another operand.
`planner/partition/passes/moving_masks.py` then moves each mask to the instruction that computes the
value, or drops it.

Source: GSPMD (arXiv:2105.04663) section 4.1; XLA spmd_partitioner.cc, PadWithValue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.halos.exchange import Exchange
from shardalg.algebra.halos.intervals import Interval, extremes, residues, touched
from shardalg.graph.ops.local_parameters import Emission
from shardalg.graph.ops.rule import PICK, SUM, Rule
from shardalg.graph.ops.windows import OperandDim, WindowBlock, is_windowed, reach
from shardalg.planner.reshard.even import tile
from shardalg.planner.reshard.exchanges import (
    DimBuilder,
    DimProgram,
    cheaper,
    deliver,
    start_of,
    transfers_of,
)
from shardalg.spmd.instruction import Attributes
from shardalg.spmd.instructions import Dilate, Mask, MaskAt, Slice, SliceAt
from shardalg.spmd.local import Start


class Before(NamedTuple):
    """An instruction that changes one operand before the local operator reads it.

    Attributes:
      operand: the number of the operand.
      attributes: the instruction, such as a mask.
      filler: the number of the operand whose value overwrites masked elements. If it is None, the
        identity of the mask's combination overwrites them (0 for a sum).
    """

    operand: int
    attributes: Attributes
    filler: int | None = None


def masks(rows: tuple[Rule, ...], loops: dict[str, Digits]) -> tuple[Before, ...]:
    """Return the masks that keep padding of operands out of sums and other reductions.

    Blocks hold padding along a sharded reduced loop whose extent does not divide. A mask overwrites
    it with the identity of the reduction, such as 0 for a sum. Each entry has the operand, the mask
    instruction, and the number of the operand with the fill value, or None.

    Args:
      loops: the digits of each sharded loop.
    """
    found: dict[Before, None] = {}
    for rule in rows:
        # A reduction reads the padding along its reduced loops. A cumulative operator (a prefix)
        # reads it before the elements only if it runs from the end.
        is_reversed = rule.prefix is not None and rule.prefix[1]
        reading_loops = (rule.prefix[0],) if rule.prefix and is_reversed else rule.reduced
        sharded_loops = [name for name in reading_loops if name in loops]
        # A pick selects elements by their indices, and never reads padding.
        has_masks = sharded_loops and rule.combine != PICK
        for operand, dims in rule.operands.items() if has_masks else ():
            for dim, index in enumerate(dims):
                loop = index.loop
                # None if the loop divides evenly, so that there is no padding.
                padded = _padded_loop(rule, loop, loops) if loop in sharded_loops else None
                if loop is None or padded is None:
                    continue
                filler = rule.filler(operand)
                mask: Mask | MaskAt = Mask(dim, *padded, rule.combine)
                if filler is not None:
                    # A number known only at run time fills the padding: the mask reads it.
                    start = Start(Index.of(loop) * padded.block, ((loop, padded.digits),))
                    mask = MaskAt(dim, start, padded.size, None)
                found[Before(operand, mask, filler)] = None
    return tuple(found)


class PaddedLoop(NamedTuple):
    """A sharded loop whose last blocks hold padding.

    Attributes:
      digits: the digits along which it is sharded.
      block: its iterations per device.
      size: its extent before it is sharded.
    """

    digits: Digits
    block: int
    size: int


def _padded_loop(rule: Rule, loop: str, loops: dict[str, Digits]) -> PaddedLoop | None:
    """Return a loop as a `PaddedLoop`; None if its blocks are even or it is not sharded."""
    digits, extent = loops.get(loop, ()), rule.extents[loop]
    if extent % parts(digits) == 0:
        return None
    return PaddedLoop(digits, tile(extent, parts(digits)), extent)


def around(rule: Rule, emission: Emission, loops: dict[str, Digits]) -> Iterator[Before]:
    """Yield instructions that add margins of zeros to a block of operand 0.

    Windows at run-time indices may overlap the ends of the block. They then read or write the
    margin. Padding at the end of the tensor is masked to 0, too.
    """
    for dim, loop, width in emission.margins:
        mask = _padded_loop(rule, loop, loops)
        if mask:
            yield Before(0, Mask(dim, *mask, SUM))
        yield Before(0, Dilate(dim, 1, width, width, SUM))


Loops = tuple[tuple[str, Digits], ...]


@dataclass(frozen=True)
class ShardedWindow:
    """A dimension of an operand that sharded loops read through a window.

    Attributes:
      operand, dim: the number of the operand, and the dimension.
      exchange: the exchange that fetches the interval of elements that a device needs.
      numerator: the smallest index that a device reads, as a formula in partition ids, before the
        division by `base`; the device reads `reach` indices from there on.
      base: the divisor of the index (the base dilation).
      reach: the number of indices that a device reads, gaps of the dilation included.
      masked: whether a device may read elements that do not exist and must be masked.
      filler: the number of the operand whose value replaces elements that do not exist; None if the
        identity of `combine` replaces them.
      combine: the combination whose identity replaces missing elements; None if `filler` is given.
      skipped: elements of the interval before the first window of a block, if their number depends
        on the device; `needed` elements follow them.
      needed: for an operator that selects from windows (`_selected_window`), the number of elements
        that all windows of a device cover.
    """

    operand: int
    dim: int
    exchange: Exchange
    numerator: Index
    base: int
    reach: int
    masked: bool
    filler: int | None
    combine: str | None
    skipped: Start | None = None
    needed: int = 0

    @property
    def length(self) -> int:
        """The number of elements of the interval that a device needs."""
        return self.exchange.want.length

    @cached_property
    def phases(self) -> frozenset[int]:
        """The numbers of gap places before the first element of a device's interval.

        With base dilation, element k of the dimension is at place `base*k`, and `base - 1` gap
        places follow. A device reads from place `numerator` on. Its first element is `start =
        ceil(numerator / base)`, so that `base*start - numerator` gap places come before it. The set
        has the numbers of all devices.
        """
        exchange = self.exchange
        return residues(self.numerator * -1, self.base, exchange.ids, exchange.devices)

    @property
    def span(self) -> WindowBlock:
        """The block that the local operator reads in this dimension, as a `WindowBlock`."""
        # Devices with different phases write the dilation out (`_dilate`): the operator sees none.
        if len(self.phases) > 1:
            return WindowBlock(self.reach)
        (phase,) = self.phases
        return WindowBlock(self.length, phase, self.base)

    def start(self, index: Index, more: int = 0) -> Start:
        """Return the number `index + more`, which is another one on each device, as a `Start`.

        A slice or a mask starts at this number.

        Args:
          index: a formula in the partition ids of the sharded loops.
        """
        return start_of(self.exchange, index, more)


@lru_cache(maxsize=1 << 14)
def windows(
    rule: Rule, loops: Loops, held: tuple[tuple[int, tuple[Digits, ...]], ...], devices: int
) -> tuple[ShardedWindow, ...]:
    """Return a `ShardedWindow` for each dimension that is read through a window by sharded loops.

    Args:
      loops: the sharded loops with their digits.
      held: (operand number, digits of its dimensions) for each operand.
      devices: the number of devices of the mesh.
    """
    assigned, found = dict(loops), []
    layouts = dict(held)
    for operand, dims in rule.operands.items():
        for dim, index in enumerate(dims):
            split = [n for n in index.variables if n in assigned]
            if split and is_windowed(rule, operand, dim):
                place, digits = (operand, dim), layouts[operand][dim]
                # A loop over taps that must be whole selects one of them, as in the gradient of a
                # max pooling.
                if rule.whole & set(index.variables):
                    found.append(_selected_window(rule, place, assigned, digits, devices))
                    continue
                window = _window(rule, place, assigned, digits, devices)
                # The stride of a selection's windows is no dilation: each window has one element.
                found.append(replace(window, base=1) if rule.whole else window)
    return tuple(found)


def _window(
    rule: Rule, place: OperandDim, assigned: Mapping[str, Digits], held: Digits, devices: int
) -> ShardedWindow:
    """Return one dimension as a `ShardedWindow`: the interval that a device's iterations read.

    For the index `2*o + r - 1` with o sharded, a device with partition id p reads the elements from
    `2*p*block - 1` on, as many as its block of o and all r need. The exchange brings this interval
    from the devices that hold it.

    Args:
      place: (operand number, dimension).
      assigned: the digits of each sharded loop.
      held: the digits that shard the dimension.
      devices: the number of devices of the mesh.
    """
    operand, dim = place
    index = rule.operands[operand][dim]
    split = {n: assigned[n] for n in index.variables if n in assigned}
    extents = {n: rule.extents[n] for n in index.variables}
    blocks = {n: -(-extents[n] // parts(split.get(n, ()))) for n in extents}
    # In a selection, a window that is shorter than the stride counts with the gap behind it.
    blocks |= {n: max(blocks[n], index.div) for n in extents if rule.whole and n in rule.local}
    counts = {n: parts(digits) for n, digits in split.items()}
    size = rule.operand_shapes[operand][dim]
    want, block = touched(index, blocks=blocks, parts=counts), -(-size // parts(held))
    exchange = cheaper(
        Exchange(
            want=want, size=size, block=block, held=held, ids=tuple(split.items()), devices=devices
        )
    )
    # A negative coefficient reads its smallest index in the last iteration of a block.
    low = sum(min(0, c * (blocks[n] - 1)) for n, c in index.terms)
    # The first iteration of partition p of loop n is p * blocks[n]. So `numerator` is the smallest
    # index that a device reads, before the division by `index.div`.
    terms = tuple((n, c * blocks[n]) for n, c in index.terms if n in split)
    numerator = Index(terms, index.constant + low)
    # Iterations in the padding of a reduced loop are executed too.
    executed = {
        n: blocks[n] * counts[n] if n in counts and n in rule.reduced else extents[n]
        for n in extents
    }
    # Reads of elements that do not exist must be masked, unless the iterations or the exchange
    # exclude them. With several terms (a concatenation) another term is chosen there.
    masked = len(rule.terms) == 1 and not (
        exchange.exists or _reads_elements_only(index, executed, size)
    )
    filler = rule.filler(operand)
    return ShardedWindow(
        operand=operand,
        dim=dim,
        exchange=exchange,
        numerator=numerator,
        base=index.div,
        reach=reach(index, blocks),
        masked=masked,
        filler=filler,
        combine=rule.nothing(operand) if filler is None else None,
    )


def _selected_window(
    rule: Rule, place: OperandDim, assigned: Mapping[str, Digits], held: Digits, devices: int
) -> ShardedWindow:
    """Return the interval of a windowed dimension that a device needs, if windows select elements.

    An example is the gradient of a max pooling: each window of the input selects one element, to
    which the gradient of the window is added. A device computes its block of the input's gradient
    from all windows that overlap the block.

    The operand with one element per window tells which windows these are. Window `o` covers the
    elements `[s*o + c, s*o + c + q)` for stride s, first element c and q taps. The first window
    that starts at index n or later begins at `s*ceil(n/s) = n + (-n mod s)`. If q < s, the gap
    behind a window counts as a part of the window.

    Args:
      place: (operand number, dimension) of the windowed dimension.
      assigned: the digits of each sharded loop.
      held: the digits that shard the dimension.
      devices: the number of devices of the mesh.
    """
    operand, dim = place
    index = rule.operands[operand][dim]
    loops = {n for n in index.variables if n not in rule.whole}
    places = ((k, d) for k, dims in rule.operands.items() for d in range(len(dims)))
    # Only a dimension with one element per window is indexed by the loops over windows alone. The
    # elements that a device reads of it are the windows that overlap the device's block.
    once = next((k, d) for k, d in places if {*rule.operands[k][d].variables} == loops)
    source = _window(rule, once, assigned, held, devices)
    # With the stride s and the first index n, the first window has the number ceil(n/s). It begins
    # -n mod s elements after n: so many elements of the interval are skipped.
    step, numerator = source.base, source.numerator
    moved = index.constant - rule.operands[once[0]][once[1]].constant
    skipped = source.start((numerator * -1) % step)
    skips = residues(numerator * -1, step, source.exchange.ids, devices)
    # A window that is shorter than the stride counts with the gap behind it.
    taps = max(step, *(rule.extents[n] for n in index.variables if n in rule.whole))
    needed = step * (source.length - 1) + taps
    # All devices fetch equally many elements, so the interval has room for every number of skipped
    # ones.
    want = Interval(numerator + moved + min(skips), max(skips) - min(skips) + needed)
    size = rule.operand_shapes[operand][dim]
    block = -(-size // parts(held))
    exchange = cheaper(
        Exchange(
            want=want, size=size, block=block, held=held, ids=source.exchange.ids, devices=devices
        )
    )
    # The interval begins at `want.start`. It has no base dilation (1), so it has `needed` indices.
    filler = rule.filler(operand)
    return ShardedWindow(
        operand=operand,
        dim=dim,
        exchange=exchange,
        numerator=want.start,
        base=1,
        reach=needed,
        masked=not exchange.exists,
        filler=filler,
        combine=rule.nothing(operand) if filler is None else None,
        skipped=replace(skipped, more=-min(skips)) if len(skips) > 1 else None,
        needed=needed,
    )


@dataclass(frozen=True)
class Kept:
    """A dimension of a result of which the local operator computes more than the device's block.

    Attributes:
      dim: the dimension.
      length: its size in elements as the local operator computes it.
      cut: the slice that returns the device's block.
    """

    dim: int
    length: int
    cut: Slice | SliceAt


def dims_with_margin(
    rule: Rule, found: tuple[ShardedWindow, ...], blocks: Mapping[str, int]
) -> tuple[Kept, ...]:
    """Return the dimensions of a local result that are longer than the device's block.

    A `select_and_scatter` adds its updates at elements of whole windows. The device's windows cover
    `window.needed` elements, and a slice of them is the block. Other operators have no such
    dimension.

    Args:
      found: the windows of the operator.
      blocks: the iterations of each loop on one device.
    """
    cuts = []
    for window in found:
        index = rule.operands[window.operand][window.dim]
        # Only a selection writes its result into the windowed dimension. The result of any other
        # operator is indexed by loops without a window.
        if not rule.whole & set(index.variables):
            continue
        (loop,) = (n for n in index.variables if n in rule.result_loops)
        (dim,) = (d for d, made in enumerate(rule.results[0]) if made.loop == loop)
        cut = _cut_of_block(window, dim, blocks[loop])
        if (window.needed, cut) != (blocks[loop], Slice(dim, 0, blocks[loop])):
            cuts.append(Kept(dim, window.needed, cut))
    return tuple(cuts)


def _cut_of_block(window: ShardedWindow, dim: int, block: int) -> Slice | SliceAt:
    """Return the slice that takes the device's block from a result that covers all its windows.

    On device `p` the slice starts at `p*block`, minus the first element of the windows. The start
    is written with `-(-n mod s) = (n-1) mod s - (s-1)`, because a `Start` adds a remainder and
    never subtracts one.

    Args:
      dim: the dimension of the result.
      block: its size in a device's block.
    """
    first = window.exchange.want.start.constant
    skipped = window.skipped
    # On every device the windows begin at the same offset from the block: the start is a constant.
    if skipped is None:
        return Slice(dim, -first, block)
    step = skipped.index.mod
    terms = tuple((name, -c) for name, c in skipped.index.terms)
    behind = Index(terms, -skipped.index.constant - 1, mod=step)
    return SliceAt(dim, Start(behind, skipped.digits, 1 - step - skipped.more - first), block)


def _reads_elements_only(index: Index, extents: Mapping[str, int], size: int) -> bool:
    """Return whether every iteration reads an element that exists.

    Args:
      extents: the iterations of each loop that are executed.
      size: the number of elements of the dimension.
    """
    ends = [(0, c * (extents[n] - 1)) for n, c in index.terms]
    low = index.constant + sum(map(min, ends))
    high = index.constant + sum(map(max, ends))
    return low >= 0 and high <= (size - 1) * index.div


def owner(rule: Rule, place: OperandDim, assigned: Mapping[str, Digits]) -> Digits:
    """Return the digits along which a windowed dimension is sharded, so that halos are smallest.

    They are the digits of the loop that spans most of the dimension; () if no loop of it is
    sharded.

    Args:
      place: (operand number, dimension).
      assigned: the digits of each sharded loop.
    """
    index = rule.operands[place[0]][place[1]]
    split = [(abs(c) * rule.extents[n], assigned[n]) for n, c in index.terms if n in assigned]
    return max(split, key=lambda pair: pair[0])[1] if split else ()


def spans(found: tuple[ShardedWindow, ...]) -> dict[OperandDim, WindowBlock]:
    """Return a dictionary from (operand number, dimension) to the block that is read locally."""
    return {(w.operand, w.dim): w.span for w in found}


# Element type and local shape: blocks in which these differ cannot share a permute.
Block = tuple[str, tuple[int, ...]]


def together(
    found: Iterable[ShardedWindow], blocks: Sequence[Block]
) -> list[tuple[ShardedWindow, ...]]:
    """Return the windows in groups; the halo exchanges of one group are sent together.

    Windows are in one group if they read the same dimension of blocks with one type, one sharding
    of the dimension, and equal other dimensions.

    Args:
      blocks: per operand, the type and the shape of a device's block.
    """
    groups: dict[object, list[ShardedWindow]] = {}
    for window in found:
        dtype, shape = blocks[window.operand]
        others = (*shape[: window.dim], *shape[window.dim + 1 :])
        key = window.dim, window.exchange.held, dtype, others
        groups.setdefault(key, []).append(window)
    return [tuple(group) for group in groups.values()]


def elements(
    found: tuple[ShardedWindow, ...], tensors: Sequence[int], shape: tuple[int, ...]
) -> int:
    """Return the number of elements that a device sends in the halo exchange of one group.

    Args:
      found: a group of `together`.
      tensors: a number per operand; operands with equal numbers are the same value.
      shape: the local shape of one of the operands.
    """
    exchanges = tuple(window.exchange for window in found)
    # No digits shard the dimension: every device has all of it, and reads its own elements.
    if not exchanges[0].held:
        return 0
    blocks = tuple(tensors[window.operand] for window in found)
    # Windows of one tensor read each piece once.
    sent = transfers_of(exchanges, tuple(map(blocks.index, blocks)))
    others = prod(size for dim, size in enumerate(shape) if dim != found[0].dim)
    return others * sum(transfer.elements for transfer in sent)


@lru_cache(maxsize=1 << 12)
def fetch_program(found: tuple[ShardedWindow, ...], tensors: tuple[int, ...]) -> DimProgram:
    """Return the program that fetches the elements that a group of windows reads.

    Its inputs are the operands of the node. It has one result per window: the operand of the local
    operator.

    Args:
      found: a group of `together`.
      tensors: per operand, the number of the first operand that is the same local value.
    """
    dim, blocks = found[0].dim, tuple(tensors[window.operand] for window in found)
    # An operand that fills missing elements is a scalar: its size along the dimension is not read.
    sizes = [0] * len(tensors)
    for window, block in zip(found, blocks, strict=True):
        sizes[block] = window.exchange.block
    along = DimBuilder(dim, tuple(sizes))
    # `held` has the digits that shard the dimension. Without any, every device has it whole, and it
    # is padded and cut without an exchange.
    if found[0].exchange.held:
        intervals = deliver(along, blocks, tuple(window.exchange for window in found))
    else:
        intervals = tuple(
            _own_interval(along, w, block) for w, block in zip(found, blocks, strict=True)
        )
    pairs = zip(found, intervals, strict=True)
    return along.program(*[_local_operand(along, window, interval) for window, interval in pairs])


def _own_interval(along: DimBuilder, window: ShardedWindow, value: int) -> int:
    """Add instructions that pad and cut a replicated dimension; return the number of the result.

    The result is the interval that the device's window reads.

    Args:
      along: the program under construction.
      value: the number of the operand in this program.
    """
    want, size = window.exchange.want, window.exchange.size
    # The smallest and the largest start of all devices' intervals give the padding that is needed
    # before and after the dimension.
    first, last = extremes(want.start, window.exchange.ids, window.exchange.devices)
    low, high = max(0, -first), max(0, last + want.length - size)
    # A dimension of one element needs no padding: a mask fills it on devices that do not read it.
    if (low or high) and size == want.length == 1:
        mask = MaskAt(along.dim, window.start(want.start), size, window.combine)
        return _add_filled(along, window, mask, size, value)
    if low or high:
        dilate = Dilate(along.dim, 1, low, high, window.combine)
        value = _add_filled(along, window, dilate, low + size + high, value)
    cut = SliceAt(along.dim, window.start(want.start, low), want.length)
    return along.add(cut, want.length, value)


def _local_operand(along: DimBuilder, window: ShardedWindow, value: int) -> int:
    """Add masks, dilation or a cut to a fetched interval; return the local operator's operand.

    Args:
      along: the program under construction.
      value: the number of the interval in this program.
    """
    # Elements of an exchanged interval that are beyond the tensor are garbage. A dimension that
    # every device has whole was filled before it was cut (`_own_interval`).
    if window.masked and window.exchange.held:
        start = window.start(window.exchange.want.start)
        mask = MaskAt(along.dim, start, window.exchange.size, window.combine)
        value = _add_filled(along, window, mask, along.sizes[value], value)
    # With base dilation, blocks of some devices begin at an element, others between two. One
    # operator cannot pad both, so the dilation is written out.
    if len(window.phases) > 1:
        return _dilate(along, window, value)
    # All devices fetch equally many elements; a number that depends on the device is cut off.
    if window.skipped is None:
        return value
    return along.add(SliceAt(along.dim, window.skipped, window.needed), window.needed, value)


def _dilate(along: DimBuilder, window: ShardedWindow, value: int) -> int:
    """Add instructions that write the gaps of a dilation into a fetched interval.

    Returns the number of the result, which begins at the first index that the device reads.

    Args:
      value: the number of the interval in the program `along`.
    """
    # The interval begins at element ceil(numerator / base), and `base - 1` fills come before each
    # element. So place t of the dilated interval has the index
    #   t - (base - 1) + base*ceil(numerator / base),
    # which is `numerator`, the first index that the device reads, at t = (numerator - 1) mod base.
    base, exchange, before = window.base, window.exchange, window.numerator - 1
    needed = max(residues(before, base, exchange.ids, exchange.devices)) + window.reach
    bare = Dilate(along.dim, base, base - 1, 0, window.combine)
    dilate = replace(bare, high=max(0, needed - bare.length(window.length)))
    value = _add_filled(along, window, dilate, dilate.length(window.length), value)
    cut = SliceAt(along.dim, window.start(before % base), window.reach)
    return along.add(cut, window.reach, value)


def _add_filled(
    along: DimBuilder, window: ShardedWindow, made: Dilate | MaskAt, length: int, value: int
) -> int:
    """Add an instruction that fills elements that do not exist; return the number of its result.

    If the window has a `filler`, the instruction reads the fill value from this operand.

    Args:
      made: the instruction.
      length: the size of the dimension after the instruction.
      value: the number of the value that is filled.
    """
    filler = () if window.filler is None else (window.filler,)
    return along.add(made, length, value, *filler)
