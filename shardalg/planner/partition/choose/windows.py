"""Windows over a sharded dimension: what each device has to receive, and how it gets there.

The interval that a device's iterations read comes from the row (`halos.interval.touched`), and
what brings it from `planner.reshard.exchanges`. Then a mask where elements that do not exist may
be read,
and a dilation of its own where the phase of a dilated window depends on the device (GSPMD,
arXiv:2105.04663, appendix A.2).

Where masks are placed: what padding would be counted, and the number that stands for it.

A combined loop that does not divide leaves padding in its last blocks, which may hold anything. An
operand is masked along it by the identity of the combine (0 of a sum, the lowest number of a
maximum), or by the number of an operand that fills places; windows beyond the end of a block read
0. `planner/partition/choose/windows.py` masks what windows read beyond a tensor, and
`planner/partition/passes/moving_masks.py` then moves masks to where a value is made, or leaves
them out.

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
from shardalg.graph.ops.windows import OperandDim, WindowBlock, reach, windowed
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


Loops = tuple[tuple[str, Digits], ...]


@dataclass(frozen=True)
class ShardedWindow:
    """One dimension of an operand that is read through a window with sharded loops.

    Attributes:
      exchange: brings the interval that a device needs.
      index: the row's index of the dimension, before its division by `base`.
      numerator: its smallest value on a device, in partition ids; `reach` values from there on.
      masked: whether places may be read that hold no element, and nothing else is chosen there.
      filler: the operand that stands for elements that do not exist; None: they are the identity
        of `combine`.
      skipped: places of the interval before the first window of a block, where they depend on the
        device; `needed` places are left behind them.
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
        """Elements of the interval."""
        return self.exchange.want.length

    @cached_property
    def phases(self) -> frozenset[int]:
        """All values of `base * start - numerator` over the devices."""
        exchange = self.exchange
        return residues(self.numerator * -1, self.base, exchange.ids, exchange.devices)

    @property
    def span(self) -> WindowBlock:
        """What the local operator is given."""
        if len(self.phases) > 1:
            return WindowBlock(self.reach)
        (phase,) = self.phases
        return WindowBlock(self.length, phase, self.base)

    def start(self, index: Index, more: int = 0) -> Start:
        """A start of the program's language from one in the loops' partition ids."""
        return start_of(self.exchange, index, more)


@lru_cache(maxsize=1 << 14)
def windows(
    rule: Rule, loops: Loops, held: tuple[tuple[int, tuple[Digits, ...]], ...], devices: int
) -> tuple[ShardedWindow, ...]:
    """Every dimension that sharded loops read through a window.

    Args:
      held: (operand, digits of its dimensions) as the operands are laid out.
    """
    assigned, found = dict(loops), []
    layouts = dict(held)
    for operand, dims in rule.operands.items():
        for dim, index in enumerate(dims):
            split = [n for n in index.variables if n in assigned]
            if split and windowed(rule, operand, dim):
                place, digits = (operand, dim), layouts[operand][dim]
                found.append(_derived(rule, place, assigned, digits, devices))
    return tuple(found)


def _window(
    rule: Rule, place: OperandDim, assigned: Mapping[str, Digits], held: Digits, devices: int
) -> ShardedWindow:
    operand, dim = place
    index = rule.operands[operand][dim]
    split = {n: assigned[n] for n in index.variables if n in assigned}
    extents = {n: rule.extents[n] for n in index.variables}
    blocks = {n: -(-extents[n] // parts(split.get(n, ()))) for n in extents}
    blocks |= {n: max(blocks[n], index.div) for n in extents if rule.whole and n in rule.local}
    counts = {n: parts(digits) for n, digits in split.items()}
    size = rule.operand_shapes[operand][dim]
    want, block = touched(index, blocks=blocks, parts=counts), -(-size // parts(held))
    exchange = cheaper(Exchange(want, size, block, held, tuple(split.items()), devices))
    low = sum(min(0, c * (blocks[n] - 1)) for n, c in index.terms)
    terms = tuple((n, c * blocks[n]) for n, c in index.terms if n in split)
    numerator = Index(terms, index.constant + low)
    # an iteration beyond a loop that is combined is executed too
    executed = {
        n: blocks[n] * counts[n] if n in counts and n in rule.reduced else extents[n]
        for n in extents
    }
    return ShardedWindow(
        operand,
        dim,
        exchange,
        numerator,
        index.div,
        reach(index, blocks),
        len(rule.terms) == 1 and not exchange.exists and not _inside(index, executed, size),
        *_filling(rule, operand),
    )


def _filling(rule: Rule, operand: int) -> tuple[int | None, str | None]:
    filler = rule.filler(operand)
    return filler, rule.nothing(operand) if filler is None else None


def _derived(
    rule: Rule, place: OperandDim, assigned: Mapping[str, Digits], held: Digits, devices: int
) -> ShardedWindow:
    if rule.whole & set(rule.operands[place[0]][place[1]].variables):
        return _selected(rule, place, assigned, held, devices)
    found = _window(rule, place, assigned, held, devices)
    # the stride of a selection's windows is no dilation: there is one element per window
    return replace(found, base=1) if rule.whole else found


def _selected(
    rule: Rule, place: OperandDim, assigned: Mapping[str, Digits], held: Digits, devices: int
) -> ShardedWindow:
    """All places of the windows, as a block begins with the first of them.

    Window `o` reads `[s*o + c, +q)`; those that a device needs are known from the operand that is
    read once per window, and `s*ceil(n/s) = n + (-n mod s)`. Windows with gaps between them count
    as if they had none, so that they cover the block.
    """
    operand, dim = place
    index = rule.operands[operand][dim]
    once = _read_once(rule, index)
    source = _window(rule, once, assigned, held, devices)
    step, numerator = source.base, source.numerator
    moved = index.constant - rule.operands[once[0]][once[1]].constant
    skipped = source.start((numerator * -1) % step)
    skips = residues(numerator * -1, step, source.exchange.ids, devices)
    taps = max(step, *(rule.extents[n] for n in index.variables if n in rule.whole))
    needed = step * (source.length - 1) + taps
    want = Interval(numerator + moved + min(skips), max(skips) - min(skips) + needed)
    size = rule.operand_shapes[operand][dim]
    block = -(-size // parts(held))
    exchange = cheaper(Exchange(want, size, block, held, source.exchange.ids, devices))
    return ShardedWindow(
        operand,
        dim,
        exchange,
        want.start,
        1,
        needed,
        not exchange.exists,
        *_filling(rule, operand),
        skipped=replace(skipped, more=-min(skips)) if len(skips) > 1 else None,
        needed=needed,
    )


def _read_once(rule: Rule, index: Index) -> OperandDim:
    """Where the operand is read that has one element per window of `index`."""
    loops = {n for n in index.variables if n not in rule.whole}
    places = ((k, d) for k, dims in rule.operands.items() for d in range(len(dims)))
    return next((k, d) for k, d in places if {*rule.operands[k][d].variables} == loops)


@dataclass(frozen=True)
class Kept:
    """The block of a device in a result that has all places of its windows.

    Attributes:
      dim: of the result; length: places of it; cut: takes the block out.
    """

    dim: int
    length: int
    cut: Slice | SliceAt


def kept(
    rule: Rule, found: tuple[ShardedWindow, ...], blocks: Mapping[str, int]
) -> tuple[Kept, ...]:
    """Dimensions of the result of an operator that writes into the windows of a selection."""
    cuts = []
    for window in found:
        index = rule.operands[window.operand][window.dim]
        if not rule.whole & set(index.variables):
            continue
        (loop,) = (n for n in index.variables if n in rule.result_loops)
        (dim,) = (d for d, made in enumerate(rule.results[0]) if made.loop == loop)
        cut = _block_of(window, dim, blocks[loop])
        if (window.needed, cut) != (blocks[loop], Slice(dim, 0, blocks[loop])):
            cuts.append(Kept(dim, window.needed, cut))
    return tuple(cuts)


def _block_of(window: ShardedWindow, dim: int, block: int) -> Slice | SliceAt:
    """`p*block` less the first place of the windows; `-(-n mod s) = (n-1) mod s - (s-1)`."""
    first = window.exchange.want.start.constant
    skipped = window.skipped
    if skipped is None:
        return Slice(dim, -first, block)
    step = skipped.index.mod
    terms = tuple((name, -c) for name, c in skipped.index.terms)
    behind = Index(terms, -skipped.index.constant - 1, mod=step)
    return SliceAt(dim, Start(behind, skipped.digits, 1 - step - skipped.more - first), block)


def _inside(index: Index, extents: Mapping[str, int], size: int) -> bool:
    """Whether every iteration reads an element that exists."""
    ends = [(0, c * (extents[n] - 1)) for n, c in index.terms]
    low = index.constant + sum(map(min, ends))
    high = index.constant + sum(map(max, ends))
    return low >= 0 and high <= (size - 1) * index.div


def owner(rule: Rule, place: OperandDim, assigned: Mapping[str, Digits]) -> Digits:
    """The digits in which a windowed dimension is best held: those of the loop that spans most."""
    index = rule.operands[place[0]][place[1]]
    split = [(abs(c) * rule.extents[n], assigned[n]) for n, c in index.terms if n in assigned]
    return max(split, key=lambda pair: pair[0])[1] if split else ()


def spans(found: tuple[ShardedWindow, ...]) -> dict[OperandDim, WindowBlock]:
    """What the local operator has of each windowed dimension."""
    return {(w.operand, w.dim): w.span for w in found}


Block = tuple[str, tuple[int, ...]]
"""Type and shape of a local value."""


def together(
    found: Iterable[ShardedWindow], blocks: Sequence[Block]
) -> list[tuple[ShardedWindow, ...]]:
    """Windows over one dimension that share permutes: of blocks that are shaped and spread alike.

    Args:
      blocks: of every operand.
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
    """Elements that a device sends for windows that share permutes.

    Args:
      tensors: per operand a number that tells which ones are the same.
      shape: local shape of one of them.
    """
    exchanges = tuple(window.exchange for window in found)
    if not exchanges[0].held:  # every device has all of it
        return 0
    blocks = tuple(tensors[window.operand] for window in found)
    sent = transfers_of(exchanges, tuple(map(blocks.index, blocks)))
    others = prod(size for dim, size in enumerate(shape) if dim != found[0].dim)
    return others * sum(transfer.elements for transfer in sent)


@lru_cache(maxsize=1 << 12)
def brought(found: tuple[ShardedWindow, ...], tensors: tuple[int, ...]) -> DimProgram:
    """What makes of a node's operands the intervals that windows over one dimension read.

    Args:
      found: windows that share permutes (`together`); the program has a result for each.
      tensors: per operand, the first one that is the same local.
    """
    dim, blocks = found[0].dim, tuple(tensors[window.operand] for window in found)
    sizes = [0] * len(tensors)  # who fills places is not looked at along the dimension
    for window, block in zip(found, blocks, strict=True):
        sizes[block] = window.exchange.block
    along = DimBuilder(dim, tuple(sizes))
    if found[0].exchange.held:
        intervals = deliver(along, blocks, tuple(window.exchange for window in found))
    else:
        intervals = tuple(_own(along, w, block) for w, block in zip(found, blocks, strict=True))
    pairs = zip(found, intervals, strict=True)
    return along.program(*[_read(along, window, interval) for window, interval in pairs])


def _own(along: DimBuilder, window: ShardedWindow, value: int) -> int:
    """The interval of a dimension that every device has whole: padded, then cut.

    One place of one element is filled wherever the element is not read.
    """
    want, size = window.exchange.want, window.exchange.size
    first, last = extremes(want.start, window.exchange.ids, window.exchange.devices)
    low, high = max(0, -first), max(0, last + want.length - size)
    if (low or high) and size == want.length == 1:
        mask = MaskAt(along.dim, window.start(want.start), size, window.combine)
        return _filled(along, window, mask, size, value)
    if low or high:
        dilate = Dilate(along.dim, 1, low, high, window.combine)
        value = _filled(along, window, dilate, low + size + high, value)
    cut = SliceAt(along.dim, window.start(want.start, low), want.length)
    return along.add(cut, want.length, value)


def _read(along: DimBuilder, window: ShardedWindow, value: int) -> int:
    """The operand of the local operator from the interval that it reads."""
    if window.masked and window.exchange.held:
        start = window.start(window.exchange.want.start)
        mask = MaskAt(along.dim, start, window.exchange.size, window.combine)
        value = _filled(along, window, mask, along.sizes[value], value)
    if len(window.phases) > 1:
        return _dilated(along, window, value)
    if window.skipped is None:
        return value
    return along.add(SliceAt(along.dim, window.skipped, window.needed), window.needed, value)


def _dilated(along: DimBuilder, window: ShardedWindow, value: int) -> int:
    """The numerators of the device's windows, the gaps of the dilation written out."""
    base, exchange, before = window.base, window.exchange, window.numerator - 1
    needed = max(residues(before, base, exchange.ids, exchange.devices)) + window.reach
    bare = Dilate(along.dim, base, base - 1, 0, window.combine)
    dilate = replace(bare, high=max(0, needed - bare.length(window.length)))
    value = _filled(along, window, dilate, dilate.length(window.length), value)
    cut = SliceAt(along.dim, window.start(before % base), window.reach)
    return along.add(cut, window.reach, value)


def _filled(
    along: DimBuilder, window: ShardedWindow, made: Dilate | MaskAt, length: int, value: int
) -> int:
    """Args: made: an instruction that fills places; length: how many there are then."""
    filler = () if window.filler is None else (window.filler,)
    return along.add(made, length, value, *filler)
