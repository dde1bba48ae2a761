"""Which digits partition which loops of a node: candidates from its shardings, the best of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from shardalg.algebra.digits import Digit, Digits, parts
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Signature
from shardalg.ops.emit import unsupported_loops
from shardalg.ops.loops import dim_loops
from shardalg.ops.rule import AND, MAX, MIN, OR, PICK, SUM, Rule
from shardalg.ops.table import rules
from shardalg.partition.reshard import reshard_bound, reshard_price

Dims = tuple[Digits, ...]
Assigned = dict[str, Digits]
COMBINABLE = frozenset({SUM, MAX, MIN, AND, OR})


class NodeKey(NamedTuple):
    """All that the choice depends on; nodes that are alike are decided once.

    Attributes:
      sources: per operand, the layouts in which the value is at hand (unreduced digits included).
      homes: per result, the completed sharding.
    """

    signature: Signature
    sources: tuple[tuple[Sharding, ...], ...]
    homes: tuple[Sharding, ...]


@dataclass(frozen=True)
class Choice:
    """An assignment and the layouts that follow from it.

    Attributes:
      loops: sharded loops with their digits.
      demands: layout of each operand; produced: layout of each result, pending digits as unreduced.
      devices: how many parts the iterations are computed in.
    """

    loops: tuple[tuple[str, Digits], ...]
    demands: tuple[Sharding, ...]
    produced: tuple[Sharding, ...]
    devices: int


def choose(key: NodeKey) -> Choice:
    """The assignment on the most devices, then with the fewest wire bytes.

    An operator without arithmetic (layout changes, copies) takes the fewest bytes first. Candidates
    are the digits that the operands' and results' shardings put on a loop, and none.
    """
    rows = rules(key.signature)
    if rows is None:
        return _gather_all(key)
    merged: Choice | None = None
    for component in _components(rows):
        best = best_of(key, list(_candidates(key, rows, component)), rows[component[0]])
        merged = best if merged is None else _merge(merged, best, rows, component)
    assert merged is not None, f"{key.signature.primitive} has an empty row"
    return merged


def alternatives(key: NodeKey) -> Iterator[tuple[Choice, tuple[Choice, ...], Rule]]:
    """Per part of a node that is decided alone: what was chosen, all that could be, and the row."""
    rows = rules(key.signature) or ()
    for component in _components(rows):
        found = tuple(_candidates(key, rows, component))
        rule = rows[component[0]]
        yield best_of(key, list(found), rule), found, rule


def best_of(key: NodeKey, candidates: list[Choice], rule: Rule) -> Choice:
    """Only what may win is priced: where there is arithmetic, what computes on the most devices."""
    if rule.flops != 0:
        most = max(choice.devices for choice in candidates)
        candidates = [choice for choice in candidates if choice.devices == most]
    return _cheapest(key, candidates)


def _cheapest(key: NodeKey, candidates: list[Choice]) -> Choice:
    """The first of the fewest bytes, then of the most devices.

    Candidates are priced in the order of what they cost at least, until the rest cost more.
    """
    if len(candidates) == 1:
        return candidates[0]
    ordered = sorted((_bytes(key, c, _least), number) for number, c in enumerate(candidates))
    best: tuple[object, int, int] | None = None
    for least, number in ordered:
        if best is not None and least > best[0]:
            break
        choice = candidates[number]
        rank = (_bytes(key, choice, reshard_price), -choice.devices, number)
        best = rank if best is None else min(best, rank)
    return candidates[best[2]]


def _least(source: Sharding, target: Sharding) -> object:
    return reshard_bound(source, target)[0]


def _gather_all(key: NodeKey) -> Choice:
    """A primitive without a row: every device computes the whole of it."""
    demands = tuple(_layout(s[0], ((),) * len(s[0].shape)) for s in key.sources)
    produced = tuple(_layout(h, ((),) * len(h.shape)) for h in key.homes)
    return Choice((), demands, produced, 1)


def _layout(like: Sharding, dims: Dims, unreduced: Digits = ()) -> Sharding:
    return Sharding(like.mesh, like.shape, dims, unreduced=unreduced)


def _components(rows: tuple[Rule, ...]) -> list[tuple[int, ...]]:
    """Rows that share a loop or an operand are decided together."""
    groups: list[tuple[set[object], list[int]]] = []
    for number, rule in enumerate(rows):
        marks: set[object] = set(rule.extents) | set(rule.operands)
        joined = [g for g in groups if g[0] & marks]
        groups = [g for g in groups if not g[0] & marks]
        numbers = sorted([n for _, ns in joined for n in ns] + [number])
        groups.append((marks.union(*(m for m, _ in joined)), numbers))
    return [tuple(numbers) for _, numbers in sorted(groups, key=lambda g: g[1])]


def _merge(
    first: Choice, second: Choice, rows: tuple[Rule, ...], component: tuple[int, ...]
) -> Choice:
    """Put the operands and results of `component` from `second` into `first`."""
    own = set().union(*(rows[r].operands for r in component))
    demands = tuple(
        b if i in own else a
        for i, (a, b) in enumerate(zip(first.demands, second.demands, strict=True))
    )
    produced = tuple(
        b if i in component else a
        for i, (a, b) in enumerate(zip(first.produced, second.produced, strict=True))
    )
    return Choice(first.loops + second.loops, demands, produced, first.devices)


def _candidates(
    key: NodeKey, rows: tuple[Rule, ...], component: tuple[int, ...]
) -> Iterator[Choice]:
    several = len(rows) > 1
    own = [rows[r] for r in component]
    options = _options(key, own, component if several else None)
    names = list(options)
    for combination in itertools.product(*options.values()):
        assigned = {n: d for n, d in zip(names, combination, strict=True) if d}
        digits = [d for group in assigned.values() for d in group]
        if len(digits) == len(set(digits)) and _realisable(own, assigned):
            yield from _choices(key, rows, component, assigned)


def _options(
    key: NodeKey, own: list[Rule], component: tuple[int, ...] | None
) -> dict[str, list[Digits]]:
    """Per loop the digits that some tensor's sharding puts on it, and no digits."""
    options: dict[str, list[Digits]] = {}
    for rule in own:
        barred = unsupported_loops(rule)
        for name, _ in rule.loops:
            if name not in barred:
                options.setdefault(name, [()])
    for number, rule in enumerate(own):
        for tensor in rule.tensors:
            result = ~tensor if component is None else component[number]
            at_hand = key.sources[tensor] if tensor >= 0 else (key.homes[result],)
            for sharding in at_hand:
                _suggest(options, rule, tensor, sharding)
    return options


def _suggest(options: dict[str, list[Digits]], rule: Rule, tensor: int, sharding: Sharding) -> None:
    for dim, digits in enumerate(sharding.dims):
        for loop, own in spread(dim_loops(rule, tensor, dim), digits):
            for end in range(len(own), 0, -1):
                if loop in options and own[:end] not in options[loop]:
                    options[loop].append(own[:end])


def spread(loops: tuple[tuple[str, int], ...], digits: Digits) -> list[tuple[str, Digits]]:
    """Put a dimension's digits on its loops, major first.

    A minor loop gets digits only where the more major ones are split to single elements.

    >>> from shardalg.algebra.digits import Digit
    >>> spread((("i", 2), ("j", 8)), (Digit(4, 2), Digit(1, 4)))
    [('i', (Digit(stride=4, size=2),)), ('j', (Digit(stride=1, size=4),))]
    """
    if len(loops) == 1:
        return [(loops[0][0], digits)]
    out, rest = [], digits
    for name, extent in loops:
        taken = 0
        while taken < len(rest) and extent % parts(rest[: taken + 1]) == 0:
            taken += 1
        if taken:
            out.append((name, rest[:taken]))
        if parts(rest[:taken]) != extent:
            break
        rest = rest[taken:]
    return out


def _realisable(own: list[Rule], assigned: Assigned) -> bool:
    return all(_row_realisable(rule, assigned) for rule in own)


def _row_realisable(rule: Rule, assigned: Assigned) -> bool:
    """Whether every sharded loop partitions each dimension it runs over, and can be combined."""
    for tensor in rule.tensors:
        for dim in range(len(rule.indices(tensor))):
            if not _partitions(rule, (tensor, dim), assigned):
                return False
    return all(
        _combinable(rule, loop, parts(assigned[loop])) for loop in rule.reduced if loop in assigned
    )


def _combinable(rule: Rule, loop: str, count: int) -> bool:
    """Whether partial results over blocks of `loop` combine: padding must be maskable too."""
    picked = rule.combine == PICK and bool(rule.guards)
    plain = any(index.loop == loop for dims in rule.operands.values() for index in dims)
    even = rule.extents[loop] % count == 0
    return (rule.combine in COMBINABLE or picked) and (even or plain)


def _partitions(rule: Rule, place: tuple[int, int], assigned: Assigned) -> bool:
    """Whether the sharded loops of a dimension leave each device one block of it.

    Where several loops make up the dimension, the blocks must be even.
    """
    index = rule.indices(place[0])[place[1]]
    sharded = {v for v in index.variables if v in assigned}
    loops = dim_loops(rule, *place)
    if not sharded <= {name for name, _ in loops}:
        return False
    open_end = False
    for name, extent in loops if len(loops) > 1 else ():
        count = parts(assigned.get(name, ()))
        if count > 1 and (open_end or extent % count):
            return False
        open_end = open_end or count != extent
    return True


def dims_of(rule: Rule, tensor: int, assigned: Assigned) -> Dims:
    """Digits per dimension of a tensor of `rule` (operand number, or `~r` for result r)."""
    return tuple(
        tuple(d for name, _ in dim_loops(rule, tensor, dim) for d in assigned.get(name, ()))
        for dim in range(len(rule.indices(tensor)))
    )


def reduced_digits(rule: Rule, assigned: Assigned) -> Digits:
    """Digits on loops whose iterations combine; major first, so that equal sets are alike."""
    return _as_set(d for name in rule.reduced for d in assigned.get(name, ()))


def _as_set(digits: Iterable[Digit]) -> Digits:
    return tuple(sorted(digits, reverse=True))


def _choices(
    key: NodeKey, rows: tuple[Rule, ...], component: tuple[int, ...], assigned: Assigned
) -> Iterator[Choice]:
    demands = [_layout(s[0], s[0].dims) for s in key.sources]
    produced = [_layout(home, home.dims) for home in key.homes]
    agreed: dict[int, Dims] = {}
    for number in component:
        rule = rows[number]
        pending = reduced_digits(rule, assigned) if rule.combine in (SUM, PICK) else ()
        for tensor in rule.tensors:
            dims = dims_of(rule, tensor, assigned)
            if tensor < 0:
                result = ~tensor if len(rows) == 1 else number
                produced[result] = _layout(key.homes[result], dims, pending)
            elif agreed.setdefault(tensor, dims) != dims:
                return
            else:
                demands[tensor] = _layout(key.sources[tensor][0], dims)
    yield from _finished(key, rows, assigned, (tuple(demands), tuple(produced)))


def _finished(
    key: NodeKey,
    rows: tuple[Rule, ...],
    assigned: Assigned,
    layouts: tuple[tuple[Sharding, ...], tuple[Sharding, ...]],
) -> Iterator[Choice]:
    loops = tuple(assigned.items())
    devices = math.prod(parts(digits) for digits in assigned.values())
    yield Choice(loops, *layouts, devices)
    passed = _pass_pending(key, rows[0], layouts) if len(rows) == 1 else None
    if passed:
        # Each member adds its own partial sums: no device repeats another's work.
        members = parts(passed[1][0].unreduced) // max(parts(layouts[1][0].unreduced), 1)
        yield Choice(loops, *passed, devices * members)


def _pass_pending(
    key: NodeKey, rule: Rule, layouts: tuple[tuple[Sharding, ...], tuple[Sharding, ...]]
) -> tuple[tuple[Sharding, ...], tuple[Sharding, ...]] | None:
    """The same assignment, partial sums passed on: all addends pending alike, or one factor."""
    pending = {i: s[0].unreduced for i, s in enumerate(key.sources) if s[0].unreduced}
    if not pending or rule.combine != SUM or not set(pending) <= rule.linear:
        return None
    alike = len(set(pending.values())) == 1
    added = set(pending) == rule.addends
    factor = len(pending) == 1 and not set(pending) & rule.addends
    if not alike or not (added or factor):
        return None
    digits = next(iter(pending.values()))
    wanted, made = layouts
    used = {d for layout in (*wanted, *made) for dim in layout.dims for d in dim}
    if used & set(digits) or any(set(m.unreduced) & set(digits) for m in made):
        return None
    demands = tuple(_layout(w, w.dims, pending.get(i, ())) for i, w in enumerate(wanted))
    return demands, tuple(_layout(m, m.dims, _as_set(m.unreduced + digits)) for m in made)


def _bytes(key: NodeKey, choice: Choice, price: Callable[[Sharding, Sharding], object]) -> object:
    """Bytes that a device sends to bring operands in and results home.

    Args:
      price: elements sent from one layout to another.
    """
    total: object = 0
    for sources, demand, type_ in zip(
        key.sources, choice.demands, key.signature.operands, strict=True
    ):
        total += min([price(source, demand) for source in sources]) * type_.itemsize
    for made, home, type_ in zip(choice.produced, key.homes, key.signature.results, strict=True):
        total += price(made, home) * type_.itemsize
    return total
