"""Windows over a sharded dimension: what each device has to receive, and how it gets there.

The interval that a device's iterations read comes from the row (`algebra.interval.touched`), and
the rounds that bring it from `algebra.exchange`. The instructions: the piece of a block that can be
needed, a fetch per round, the pieces side by side, one slice at a start in closed form, a mask
where elements that do not exist may be read, and a dilation of its own where the phase of a
dilated window depends on the device (GSPMD, arXiv:2105.04663, appendix A.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.exchange import Exchange, Permute, Round
from shardalg.algebra.interval import Interval, touched
from shardalg.ops.rule import PICK, Access, Rule
from shardalg.ops.windows import Place, Span, reach, windowed
from shardalg.partition.context import Cause, PartitionContext
from shardalg.spmd.program import (
    Attributes,
    Concatenate,
    Dilate,
    Fetch,
    MaskAt,
    Slice,
    SliceAt,
    Start,
)

Loops = tuple[tuple[str, Digits], ...]


@dataclass(frozen=True)
class Window:
    """One dimension of an operand that is read through a window with sharded loops.

    Attributes:
      exchange: brings the interval that a device needs.
      index: the row's index of the dimension, before its division by `base`.
      numerator: its smallest value on a device, in partition ids; `reach` values from there on.
      masked: whether places may be read that hold no element, and nothing else is chosen there.
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
    skipped: Start | None = None
    needed: int = 0

    @property
    def length(self) -> int:
        """Elements of the interval."""
        return self.exchange.want.length

    @cached_property
    def phases(self) -> frozenset[int]:
        """All values of `base * start - numerator` over the devices."""
        start = self.start(self.numerator * -1)
        return frozenset(start.at(p) % self.base for p in range(self.exchange.devices))

    @property
    def span(self) -> Span:
        """What the local operator is given."""
        if len(self.phases) > 1:
            return Span(self.reach)
        (phase,) = self.phases
        return Span(self.length, phase, self.base)

    def start(self, index: Index, more: int = 0) -> Start:
        """A start of the program's language from one in the loops' partition ids."""
        ids = tuple((n, d) for n, d in self.exchange.ids if n in index.variables)
        return Start(index, ids, more)


@lru_cache(maxsize=1 << 14)
def windows(
    rule: Rule, loops: Loops, held: tuple[tuple[int, tuple[Digits, ...]], ...], devices: int
) -> tuple[Window, ...]:
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
                where = layouts[operand][dim], devices
                found.append(_derived(rule, (operand, dim), assigned, where))
    return tuple(found)


def _window(
    rule: Rule, place: Place, assigned: Mapping[str, Digits], where: tuple[Digits, int]
) -> Window:
    operand, dim = place
    held, devices = where
    index = rule.operands[operand][dim]
    split = {n: assigned[n] for n in index.variables if n in assigned}
    extents = {n: rule.extents[n] for n in index.variables}
    blocks = {n: -(-extents[n] // parts(split.get(n, ()))) for n in extents}
    blocks |= {n: max(blocks[n], index.div) for n in extents if rule.whole and n in rule.local}
    counts = {n: parts(digits) for n, digits in split.items()}
    size = rule.operand_shapes[operand][dim]
    exchange = Exchange(
        touched(index, blocks=blocks, parts=counts),
        size,
        -(-size // parts(held)),
        held,
        tuple(split.items()),
        devices,
    )
    low = sum(min(0, c * (blocks[n] - 1)) for n, c in index.terms)
    terms = tuple((n, c * blocks[n]) for n, c in index.terms if n in split)
    numerator = Index(terms, index.constant + low)
    # an iteration beyond a loop that is combined is executed too
    executed = {
        n: blocks[n] * counts[n] if n in counts and n in rule.reduced else extents[n]
        for n in extents
    }
    return Window(
        operand,
        dim,
        exchange,
        numerator,
        index.div,
        reach(index, blocks),
        len(rule.terms) == 1 and not exchange.exists and not _inside(index, executed, size),
    )


def _derived(
    rule: Rule, place: Place, assigned: Mapping[str, Digits], where: tuple[Digits, int]
) -> Window:
    if rule.whole & set(rule.operands[place[0]][place[1]].variables):
        return _selected(rule, place, assigned, where)
    found = _window(rule, place, assigned, where)
    # the stride of a selection's windows is no dilation: there is one element per window
    return replace(found, base=1) if rule.whole else found


def _selected(
    rule: Rule, place: Place, assigned: Mapping[str, Digits], where: tuple[Digits, int]
) -> Window:
    """All places of the windows, as a block begins with the first of them.

    Window `o` reads `[s*o + c, +q)`; those that a device needs are known from the operand that is
    read once per window, and `s*ceil(n/s) = n + (-n mod s)`. Windows with gaps between them count
    as if they had none, so that they cover the block.
    """
    operand, dim = place
    held, devices = where
    index = rule.operands[operand][dim]
    once = _read_once(rule, index)
    source = _window(rule, once, assigned, where)
    step, numerator = source.base, source.numerator
    moved = index.constant - rule.operands[once[0]][once[1]].constant
    skipped = source.start((numerator * -1) % step)
    skips = [skipped.at(p) for p in range(devices)]
    taps = max(step, *(rule.extents[n] for n in index.variables if n in rule.whole))
    needed = step * (source.length - 1) + taps
    want = Interval(numerator + moved + min(skips), max(skips) - min(skips) + needed)
    size = rule.operand_shapes[operand][dim]
    block = -(-size // parts(held))
    exchange = Exchange(want, size, block, held, source.exchange.ids, devices)
    return Window(
        operand,
        dim,
        exchange,
        want.start,
        1,
        needed,
        masked=not exchange.exists,
        skipped=replace(skipped, more=-min(skips)) if len(set(skips)) > 1 else None,
        needed=needed,
    )


def _read_once(rule: Rule, index: Index) -> Place:
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


def kept(rule: Rule, found: tuple[Window, ...], blocks: Mapping[str, int]) -> tuple[Kept, ...]:
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


def _block_of(window: Window, dim: int, block: int) -> Slice | SliceAt:
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


def owner(rule: Rule, place: Place, assigned: Mapping[str, Digits]) -> Digits:
    """The digits in which a windowed dimension is best held: those of the loop that spans most."""
    index = rule.operands[place[0]][place[1]]
    split = [(abs(c) * rule.extents[n], assigned[n]) for n, c in index.terms if n in assigned]
    return max(split, key=lambda pair: pair[0])[1] if split else ()


def spans(found: tuple[Window, ...]) -> dict[Place, Span]:
    """What the local operator has of each windowed dimension."""
    return {(w.operand, w.dim): w.span for w in found}


def elements(window: Window, shape: tuple[int, ...]) -> int:
    """Elements that a device sends for a window over an operand of a local shape."""
    others = 1
    for dim, size in enumerate(shape):
        others *= 1 if dim == window.dim else size
    return window.exchange.elements * others


Cut = tuple[int, int, tuple[Permute, ...]]
"""Places `[lower, upper)` of a block, and the permutes that bring them."""


def cuts(round_: Round) -> Iterator[Cut]:
    """A round in runs of places: no permute sends more than what it is needed for."""
    borders = {round_.lower, round_.upper}
    for permute in round_.permutes:
        borders |= {permute.lower, permute.upper}
    runs: list[Cut] = []
    for lower, upper in pairwise(sorted(borders)):
        by = tuple(p for p in round_.permutes if p.lower <= lower and upper <= p.upper)
        if runs and runs[-1][2] == by:
            lower = runs.pop()[0]
        runs.append((lower, upper, by))
    yield from runs


@dataclass(frozen=True)
class Bringing:
    """Emits the instructions of one window.

    Attributes:
      fill: the local that stands for elements that do not exist; None: the combine's identity.
    """

    context: PartitionContext
    window: Window
    rule: Rule
    fill: int | None
    cause: Cause

    def run(self, local: int) -> int:
        """The local operand's interval from its block."""
        window = self.window
        if not window.exchange.held:
            return self.own(local)
        rounds = [(r, cut) for r in window.exchange.rounds for cut in cuts(r)]
        pieces = [self.piece(local, r, cut) for r, cut in rounds if window.length]
        pieces = pieces or [self.sized(Slice(window.dim, 0, 0), local, 0)]
        local = pieces[0] if len(pieces) == 1 else self.joined(pieces)
        local = self.cut(local)
        if window.masked:
            start = window.start(window.exchange.want.start)
            local = self.filled(
                MaskAt(window.dim, start, window.exchange.size, self.combine), local
            )
        return self.aligned(local)

    def own(self, local: int) -> int:
        """The interval of a dimension that every device has whole: padded, then cut."""
        window, dim = self.window, self.window.dim
        want, size = window.exchange.want, window.exchange.size
        start = window.start(want.start)
        starts = [start.at(p) for p in range(window.exchange.devices)]
        low, high = max(0, -min(starts)), max(0, max(starts) + want.length - size)
        if low or high:
            local = self.filled(Dilate(dim, 1, low, high, self.combine), local, low + size + high)
        at = window.start(want.start, low)
        return self.aligned(self.sized(SliceAt(dim, at, want.length), local, want.length))

    def aligned(self, local: int) -> int:
        """The interval as the local operator reads it, where that depends on the device."""
        window = self.window
        if len(window.phases) > 1:
            return self.dilated(local)
        if window.skipped is None:
            return local
        cut = SliceAt(window.dim, window.skipped, window.needed)
        return self.sized(cut, local, window.needed)

    @property
    def combine(self) -> str | None:
        """How a mask fills: None where it fills with a value."""
        return None if self.fill is not None else self.rule.nothing(self.window.operand)

    def piece(self, local: int, round_: Round, cut: Cut) -> int:
        """Places of a round's block that the same permutes bring."""
        window, exchange = self.window, self.window.exchange
        lower, upper, permutes = cut
        if upper - lower != exchange.block:
            local = self.sized(Slice(window.dim, lower, upper - lower), local, upper - lower)
        if all(exchange.source(p, round_.number) == p for p in range(exchange.devices)):
            return local
        start = exchange.want.start
        source = Index(start.terms, start.constant, start.div * exchange.block)
        fetch = Fetch(
            window.dim,
            exchange.held,
            window.start(source, round_.number),
            tuple(permute.pairs for permute in permutes),
            window.start(start),
            window.length,
        )
        return self.sized(fetch, local, upper - lower)

    def joined(self, pieces: list[int]) -> int:
        """The pieces side by side."""
        dim = self.window.dim
        width = sum(self.context.locals[piece].shape[dim] for piece in pieces)
        return self.sized(Concatenate(dim), pieces[0], width, *pieces[1:])

    def cut(self, local: int) -> int:
        """The interval out of the rounds."""
        window, exchange = self.window, self.window.exchange
        shifts = {exchange.shift(p) for p in range(exchange.devices)}
        width = self.context.locals[local].shape[window.dim]
        if len(shifts) > 1:
            start = exchange.want.start % exchange.block
            at = window.start(start, -exchange.rounds[0].lower)
            return self.sized(SliceAt(window.dim, at, window.length), local, window.length)
        (shift,) = shifts
        if (shift, width) == (0, window.length):
            return local
        return self.sized(Slice(window.dim, shift, window.length), local, window.length)

    def dilated(self, local: int) -> int:
        """The numerators of the device's windows, the gaps of the dilation written out."""
        window, base = self.window, self.window.base
        at = window.start((window.numerator - 1) % base)
        needed = max(map(at.at, range(window.exchange.devices))) + window.reach
        bare = Dilate(window.dim, base, base - 1, 0, self.combine)
        dilate = replace(bare, high=max(0, needed - bare.length(window.length)))
        local = self.filled(dilate, local, dilate.length(window.length))
        return self.sized(SliceAt(window.dim, at, window.reach), local, window.reach)

    def filled(self, attributes: Attributes, local: int, size: int | None = None) -> int:
        """An instruction that fills places."""
        width = self.context.locals[local].shape[self.window.dim] if size is None else size
        return self.sized(attributes, local, width, *([] if self.fill is None else [self.fill]))

    def sized(self, attributes: Attributes, local: int, size: int, *more: int) -> int:
        """Emit an instruction whose result has `size` places on the dimension."""
        like, dim = self.context.locals[local], self.window.dim
        shape = (*like.shape[:dim], size, *like.shape[dim + 1 :])
        made = self.context.new_local(shape, like.dtype, like.sharding)
        self.context.emit(attributes, (local, *more), (made,), self.cause)
        return made


def filler(rule: Rule) -> int | None:
    """The operand whose number stands for elements that do not exist; None: an identity."""
    picks = rule.combine == PICK and isinstance(rule.init, Access)
    return rule.init.operand if picks else None
