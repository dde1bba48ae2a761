"""What the rows of a node allow: which loops may be sharded, and what that makes of the tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from shardalg.algebra.digits import Digit, Digits, parts
from shardalg.graph.ops.local_parameters import unsupported_loops
from shardalg.graph.ops.loops import dim_loops
from shardalg.graph.ops.rule import (
    AND,
    ARGMAX,
    ARGMIN,
    MAX,
    MIN,
    OR,
    PICK,
    PRODUCT,
    SUM,
    TOP,
    USER,
    XOR,
    Rule,
)
from shardalg.graph.ops.windows import windowed
from shardalg.planner.partition.choose.windows import owner

Dims = tuple[Digits, ...]
Assigned = Mapping[str, Digits]
Loops = tuple[tuple[str, int], ...]
COMBINABLE = frozenset({SUM, PRODUCT, MAX, MIN, AND, OR, XOR, ARGMAX, ARGMIN, TOP, USER})


@dataclass(frozen=True)
class Tensor:
    """An operand or a result of one row.

    Attributes:
      rule: the row.
      operand: its number in the node; None for a result.
      number: among the node's operands, or among its results.
      dims: per dimension its loops with extents, major first.
      windows: dimensions that are read through a window.
    """

    rule: Rule
    operand: int | None
    number: int
    dims: tuple[Loops, ...]
    windows: tuple[int, ...] = ()

    def digits(self, assigned: Assigned, *, gathered: bool = False) -> Dims:
        """Digits per dimension where loops are sharded so.

        Args:
          gathered: whether windowed dimensions are held whole, so that no window is exchanged.
        """
        found = [_joined(loops, assigned) for loops in self.dims]
        for dim in self.windows if not gathered else ():
            found[dim] = owner(self.rule, (self.number, dim), assigned)
        return tuple(found)

    @cached_property
    def suggested(self) -> tuple[Loops, ...]:
        """Per dimension the loops that its digits may go to; of a window the widest one."""
        found = list(self.dims)
        for dim in self.windows:
            index = self.rule.indices(self.number)[dim]
            extents = self.rule.extents
            name = max(index.terms, key=lambda term: abs(term[1]) * extents[term[0]])[0]
            found[dim] = ((name, extents[name]),)
        return tuple(found)


def _joined(loops: Loops, assigned: Assigned) -> Digits:
    if len(loops) == 1:
        return assigned.get(loops[0][0], ())
    return tuple(d for name, _ in loops for d in assigned.get(name, ()))


@dataclass(frozen=True)
class Component:
    """Rows that share a loop or an operand, and so are decided together.

    Attributes:
      rules: the rows; rule: the first of them.
      tensors: of all rows, operands of a row before its results.
      loops: those that may be sharded.
      even: of these the ones that only even parts may split (combined, and no mask fits), with
        their extents.
      nests: dimensions of several loops: all but the last that is split are split to elements.
      is_whole: whether it is all of a node of one row.
    """

    rules: tuple[Rule, ...]
    tensors: tuple[Tensor, ...]
    loops: tuple[str, ...]
    even: Loops
    nests: tuple[Loops, ...]
    is_whole: bool

    @property
    def rule(self) -> Rule:
        """The first row."""
        return self.rules[0]

    def moves(self, assigned: Assigned) -> bool:
        """Whether a window is read along a sharded loop."""
        return not self.read_through.isdisjoint(assigned)

    @cached_property
    def read_through(self) -> frozenset[str]:
        """Loops along which windows are read."""
        return frozenset(
            name
            for t in self.tensors
            for dim in t.windows
            for name in t.rule.indices(t.number)[dim].variables
        )

    def fitted(self, operands: Sequence[Dims], results: Sequence[Dims]) -> Assigned | None:
        """The digits on the loops where all tensors of a node lie so, and nothing is combined.

        None where no assignment says this of all of them.
        """
        found: dict[str, Digits] = {}
        for operand, number, names in self.alone:
            dims = results[number] if operand is None else operands[operand]
            for name, own in zip(names, dims, strict=True):
                if own if name is None else found.setdefault(name, own) != own:
                    return None
        if any(found.get(name) for loops in self.nests for name, _ in loops):
            return None  # another tensor has the loop in a dimension that nothing splits
        return {name: found[name] for name in self.loops if found.get(name)}

    @cached_property
    def alone(self) -> tuple[tuple[int | None, int, tuple[str | None, ...]], ...]:
        """(operand, number, loops) of each tensor: per dimension the one loop that may split it.

        None where there are more loops, or what is split leaves something to combine.
        """
        reduced = {name for rule in self.rules for name in rule.reduced}
        split = frozenset(self.loops) - reduced
        one = [[e[0][0] if len(e) == 1 else None for e in t.dims] for t in self.tensors]
        return tuple(
            (t.operand, t.number, tuple([n if n in split else None for n in names]))
            for t, names in zip(self.tensors, one, strict=True)
        )

    def roomy(self, count: int) -> tuple[str, ...]:
        """Loops that keep so many devices busy."""
        extents = {n: extent for rule in self.rules for n, extent in rule.loops}
        return tuple(name for name in self.loops if extents[name] >= count)

    def allows(self, assigned: Assigned) -> bool:
        """Whether every device gets one block of each tensor, and what is combined can be."""
        for name, extent in self.even:
            if name in assigned and extent % parts(assigned[name]):
                return False
        if not all(_keeps(rule, assigned) for rule in self.rules if rule.combine == TOP):
            return False
        return all(_nests(loops, assigned) for loops in self.nests)


def _keeps(rule: Rule, assigned: Assigned) -> bool:
    """Whether a block has as many elements as are kept: else gathering sends no more."""
    most = max(rule.extents[name] for name in rule.whole)
    split = [name for name in rule.reduced if name in assigned]
    return all(-(-rule.extents[name] // parts(assigned[name])) >= most for name in split)


def _nests(loops: Loops, assigned: Assigned) -> bool:
    open_end = False
    for name, extent in loops:
        count = parts(assigned.get(name, ()))
        if count > 1 and (open_end or extent % count):
            return False
        open_end = open_end or count != extent
    return True


@lru_cache(maxsize=1 << 14)
def components(rows: tuple[Rule, ...]) -> tuple[Component, ...]:
    """The parts of a node that are decided alone, in the order of its results."""
    groups: list[tuple[set[object], list[int]]] = []
    for number, rule in enumerate(rows):
        marks: set[object] = set(rule.extents) | set(rule.operands)
        joined = [g for g in groups if g[0] & marks]
        groups = [g for g in groups if not g[0] & marks]
        numbers = sorted([n for _, ns in joined for n in ns] + [number])
        groups.append((marks.union(*(m for m, _ in joined)), numbers))
    return tuple(
        _component(rows, numbers) for _, numbers in sorted(groups, key=lambda group: group[1])
    )


def _component(rows: tuple[Rule, ...], numbers: list[int]) -> Component:
    rules = tuple(rows[n] for n in numbers)
    tensors = tuple(t for n in numbers for t in _tensors(rows[n], None if len(rows) == 1 else n))
    named = [n for rule in rules for n, _ in rule.loops if n not in unsupported_loops(rule)]
    barred = {name for rule in rules for name in _barred(rule)}
    return Component(
        rules,
        tensors,
        tuple(dict.fromkeys(name for name in named if name not in barred)),
        tuple((n, rule.extents[n]) for rule in rules for n in rule.reduced if not _masked(rule, n)),
        tuple(dict.fromkeys(loops for t in tensors for loops in t.dims if len(loops) > 1)),
        len(rows) == 1,
    )


def _tensors(rule: Rule, number: int | None) -> Iterator[Tensor]:
    """Args: number: of several rows, the result that this one makes."""
    for tensor in rule.tensors:
        dims = tuple(dim_loops(rule, tensor, d) for d in range(len(rule.indices(tensor))))
        if tensor >= 0:
            through = tuple(d for d in range(len(dims)) if windowed(rule, tensor, d))
            yield Tensor(rule, tensor, tensor, dims, through)
        else:
            yield Tensor(rule, None, ~tensor if number is None else number, dims)


def _barred(rule: Rule) -> Iterator[str]:
    """Loops in a dimension whose blocks they do not make, and those that nothing combines.

    Nor is a loop split to be combined that has no iterations: there is nothing to send.
    """
    for tensor in rule.tensors:
        for dim, index in enumerate(rule.indices(tensor)):
            if windowed(rule, tensor, dim):
                continue
            names = {name for name, _ in dim_loops(rule, tensor, dim)}
            yield from (name for name in index.variables if name not in names)
    yield from (n for n in rule.reduced if not rule.extents[n])
    picked = rule.combine == PICK and bool(rule.guards)
    if not (rule.combine in COMBINABLE or picked):
        yield from rule.reduced


def _masked(rule: Rule, loop: str) -> bool:
    """Whether padding along a combined loop can be masked: it is a dimension of an operand.

    Not of the taps of a window, of which there are at most as many as windows: 0 for a tap that is
    no tap, times an element that another window reads, is NaN where that is infinite. (Windows
    themselves are split unevenly, as XLA splits them, for the gradient of the taps.)
    """
    indices = [index for dims in rule.operands.values() for index in dims]
    through = {n for i in indices if i.loop is None and loop in i.variables for n in i.variables}
    taps = any(rule.extents[n] >= rule.extents[loop] for n in through - {loop})
    return not taps and any(index.loop == loop for index in indices)


def reduced_digits(rule: Rule, assigned: Assigned) -> Digits:
    """Digits on loops whose iterations combine; major first, so that equal sets are alike."""
    return as_set(d for name in rule.reduced for d in assigned.get(name, ()))


def as_set(digits: Iterable[Digit]) -> Digits:
    """Digits major first."""
    return tuple(sorted(digits, reverse=True))
