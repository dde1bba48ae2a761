"""Windows over a sharded dimension: what each device has to receive, and how it gets there.

The interval that a device's iterations read comes from the row (`algebra.interval.touched`), and
what brings it from `partition.exchanges`. Then a mask where elements that do not exist may be read,
and a dilation of its own where the phase of a dilated window depends on the device (GSPMD,
arXiv:2105.04663, appendix A.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby
from math import prod

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.exchange import Exchange
from shardalg.algebra.interval import touched
from shardalg.ops.rule import PICK, Access, Rule
from shardalg.ops.windows import Place, Span, reach, windowed
from shardalg.partition.context import Cause, PartitionContext
from shardalg.partition.exchanges import Along, start_of, transfers_of
from shardalg.spmd.program import Attributes, Dilate, MaskAt, SliceAt, Start

Loops = tuple[tuple[str, Digits], ...]


@dataclass(frozen=True)
class Window:
    """One dimension of an operand that is read through a window with sharded loops.

    Attributes:
      exchange: brings the interval that a device needs.
      index: the row's index of the dimension, before its division by `base`.
      numerator: its smallest value on a device, in partition ids; `reach` values from there on.
      masked: whether places may be read that hold no element, and nothing else is chosen there.
    """

    operand: int
    dim: int
    exchange: Exchange
    numerator: Index
    base: int
    reach: int
    masked: bool

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
        return start_of(self.exchange, index, more)


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
                digits = layouts[operand][dim]
                found.append(_window(rule, (operand, dim), assigned, (digits, devices)))
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
        len(rule.terms) == 1 and not _inside(index, executed, size),
    )


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


def together(found: Iterable[Window], tensors: Sequence[int]) -> Iterator[tuple[Window, ...]]:
    """Windows over one dimension of one tensor, which are brought together.

    Args:
      tensors: per operand a number that tells which ones are the same.
    """

    def place(window: Window) -> Place:
        return window.dim, tensors[window.operand]

    return (tuple(group) for _, group in groupby(sorted(found, key=place), place))


def elements(found: tuple[Window, ...], shape: tuple[int, ...]) -> int:
    """Elements that a device sends for windows over one dimension of a tensor of a local shape."""
    others = prod(size for dim, size in enumerate(shape) if dim != found[0].dim)
    sent = transfers_of(tuple(window.exchange for window in found))
    return others * sum(transfer.elements for transfer in sent)


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
        """The operand of the local operator from the interval that it reads."""
        window = self.window
        if window.masked and window.exchange.held:
            start = window.start(window.exchange.want.start)
            mask = MaskAt(window.dim, start, window.exchange.size, self.combine)
            local = self.filled(mask, local, self.along.size(local))
        return self.dilated(local) if len(window.phases) > 1 else local

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
        return self.along.emit(SliceAt(dim, at, want.length), want.length, local)

    @property
    def along(self) -> Along:
        """The dimension."""
        return Along(self.context, self.window.dim, self.cause)

    @property
    def combine(self) -> str | None:
        """How a mask fills: None where it fills with a value."""
        return None if self.fill is not None else self.rule.combine

    def dilated(self, local: int) -> int:
        """The numerators of the device's windows, the gaps of the dilation written out."""
        window, base = self.window, self.window.base
        at = window.start((window.numerator - 1) % base)
        needed = max(map(at.at, range(window.exchange.devices))) + window.reach
        bare = Dilate(window.dim, base, base - 1, 0, self.combine)
        dilate = replace(bare, high=max(0, needed - bare.length(window.length)))
        local = self.filled(dilate, local, dilate.length(window.length))
        return self.along.emit(SliceAt(window.dim, at, window.reach), window.reach, local)

    def filled(self, attributes: Attributes, local: int, size: int) -> int:
        """An instruction that fills places."""
        filler = () if self.fill is None else (self.fill,)
        return self.along.emit(attributes, size, local, *filler)


def filler(rule: Rule) -> int | None:
    """The operand whose number stands for elements that do not exist; None: an identity."""
    picks = rule.combine == PICK and isinstance(rule.init, Access)
    return rule.init.operand if picks else None
