"""Which digits partition which loops of a node: candidates from its shardings, the best of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

from shardalg.algebra.digits import Digits, overlap, parts
from shardalg.algebra.sharding import Sharding
from shardalg.costs.collectives import step_wire_bytes
from shardalg.costs.compute import contracts
from shardalg.graph.ir import Signature
from shardalg.ops.rule import ARGMAX, ARGMIN, PICK, SUM, TOP, USER, Rule
from shardalg.ops.table import rules
from shardalg.ops.windows import windowed
from shardalg.partition import regroup
from shardalg.partition.component import (
    Assigned,
    Component,
    Loops,
    Tensor,
    as_set,
    components,
    reduced_digits,
)
from shardalg.partition.layouts import interned, whole
from shardalg.partition.reshard import reshard_bound, reshard_price
from shardalg.partition.windows import elements, together, windows

LoopDigits = tuple[tuple[str, Digits], ...]
"""Sharded loops with their digits."""
GATHERED = (ARGMAX, ARGMIN, TOP, USER)
"""Ways to combine whose partial results are sent whole."""
Layouts = tuple[tuple[Sharding, ...], tuple[Sharding, ...]]
"""Of the operands and of the results."""


class NodeKey(NamedTuple):
    """All that the choice depends on; nodes that are alike are decided once.

    Attributes:
      values: per operand, the first one that is the same value.
      sources: per operand, the layouts in which the value is at hand (unreduced digits included).
      homes: per result, the completed sharding.
      loops: per component the digits on its loops, where that was decided before; else empty.
      padded: whether blocks may be padded on their way (`Options.pad_blocks`).
    """

    signature: Signature
    values: tuple[int, ...]
    sources: tuple[tuple[Sharding, ...], ...]
    homes: tuple[Sharding, ...]
    loops: tuple[LoopDigits, ...] = ()
    padded: bool = True


@dataclass(frozen=True)
class Choice:
    """An assignment and the layouts that follow from it.

    Attributes:
      loops: sharded loops with their digits.
      demands: layout of each operand; produced: layout of each result, pending digits as unreduced.
      devices: how many parts the iterations are computed in.
      regrouped: whether an exchange stands for the operator (`partition.regroup`).
    """

    loops: tuple[tuple[str, Digits], ...]
    demands: tuple[Sharding, ...]
    produced: tuple[Sharding, ...]
    devices: int
    regrouped: bool = False


def choose(key: NodeKey) -> Choice:
    """The assignment on the most devices, then with the fewest wire bytes.

    An operator without arithmetic (layout changes, copies) takes the fewest bytes first. Candidates
    are the digits that the operands' and results' shardings put on a loop, and none.
    """
    rows = rules(key.signature)
    if rows is None:
        return _gather_all(key)
    merged: Choice | None = None
    for place, component in enumerate(components(rows)):
        if key.loops:
            given = _candidates(key, component, [dict(key.loops[place])])
            best = _best(key, given, component.rule)
        else:
            best = _fitting(key, component)
            best = best or _undisputed(key, component) or _disputed(key, component)
        merged = best if merged is None else _merge(merged, best, component)
    assert merged is not None, f"{key.signature.primitive} has an empty row"
    return merged


def _fitting(key: NodeKey, component: Component) -> Choice | None:
    """What `_undisputed` finds where everything lies as it is computed, and nothing is combined.

    All digits at hand divide the work and nothing is sent, so that no other choice is better.
    """
    given = tuple([at_hand[0] for at_hand in key.sources])
    if not component.is_whole or any(s.unreduced for s in (*given, *key.homes)):
        return None
    if any(any(s.dims) for at_hand in key.sources for s in at_hand[1:]):
        return None
    sides = [tuple([layout.dims for layout in side]) for side in (given, key.homes)]
    assigned = component.fitted(*sides)
    if assigned is None or regroup.regrouped(key.signature):
        return None
    digits = tuple([digit for own in assigned.values() for digit in own])
    if _meet(digits) or not component.allows(assigned) or component.moves(assigned):
        return None
    return Choice(tuple(assigned.items()), given, key.homes, parts(digits))


def _undisputed(key: NodeKey, component: Component) -> Choice | None:
    """What `_disputed` finds where all tensors put the same digits on the same loops, if it wins.

    All digits at hand then divide the work, so nothing computes on as many devices; an operator
    without arithmetic must send nothing, too.
    """
    if _passed(key, component) or regroup.regrouped(key.signature):
        return None
    options = _options(key, component)
    longest = {name: max(known, key=len) for name, known in options.items()}
    if any(longest[name][: len(own)] != own for name, known in options.items() for own in known):
        return None
    assigned = {name: digits for name, digits in longest.items() if digits}
    digits = tuple([d for own in assigned.values() for d in own])
    if len(digits) > len(set(digits)) or _meet(digits):
        return None
    if not component.allows(assigned) or component.moves(assigned):
        return None
    found = _candidates(key, component, [assigned])
    if not found or component.rule.flops != 0:
        return found[0] if found else None
    return found[0] if _bytes(key, found[0], _least) == 0 == _price(key, found[0]) else None


def _price(key: NodeKey, choice: Choice) -> object:
    return _bytes(key, choice, partial(reshard_price, padded=key.padded))


def _disputed(key: NodeKey, component: Component) -> Choice:
    """The best of all candidates."""
    promising = _promising(key, component, list(_assignments(key, component)))
    return _best(key, _candidates(key, component, promising), component.rule)


def allowed_choices(
    key: NodeKey, component: Component, assignments: Iterable[Assigned]
) -> Iterator[Choice]:
    """What follows from those of the assignments that the rows allow, and from those at hand."""
    allowed = [found for found in assignments if component.allows(found)]
    for choice in _candidates(key, component, [*_assignments(key, component), *allowed]):
        if not choice.regrouped:
            yield choice


def alternatives(key: NodeKey) -> Iterator[tuple[Choice, tuple[Choice, ...], Rule]]:
    """Per part of a node that is decided alone: what was chosen, all that could be, and the row."""
    for component in components(rules(key.signature) or ()):
        found = _candidates(key, component, _assignments(key, component))
        # what an exchange sends has no formula
        others = tuple(choice for choice in found if not choice.regrouped)
        yield _best(key, found, component.rule), others, component.rule


def _best(key: NodeKey, candidates: list[Choice], rule: Rule) -> Choice:
    """Only what may win is priced: where there is arithmetic, what computes on the most devices."""
    if rule.flops != 0:
        most = max([choice.devices for choice in candidates])
        candidates = [choice for choice in candidates if choice.devices == most]
    return candidates[0] if len(candidates) == 1 else _cheapest(key, candidates)


def _cheapest(key: NodeKey, candidates: list[Choice]) -> Choice:
    """The first of the fewest bytes, then of the most devices.

    Candidates are priced in the order of what they cost at least, until the rest cost more.
    """
    ordered = sorted([(_bytes(key, c, _least), number) for number, c in enumerate(candidates)])
    best: tuple[object, int, int] | None = None
    for least, number in ordered:
        if best is not None and least > best[0]:
            break
        choice = candidates[number]
        rank = (_price(key, choice), -choice.devices, number)
        best = rank if best is None else min(best, rank)
    return candidates[best[2]]


def _bytes(key: NodeKey, choice: Choice, price: Callable[[Sharding, Sharding], object]) -> object:
    """Bytes that a device sends to bring operands in and results home.

    Args:
      price: elements sent from one layout to another.
    """
    signature, total = key.signature, 0
    for number, demand in dict.fromkeys(zip(key.values, choice.demands, strict=True)):
        at_hand = key.sources[number]
        if demand not in at_hand:
            least = min([price(source, demand) for source in at_hand])
            total += least * signature.operands[number].itemsize
    total += _window_bytes(key, choice) + _joined_bytes(key, choice)
    if choice.regrouped:
        sent = regroup.elements(signature, choice.demands[0], choice.produced[0])
        total += sent * signature.operands[0].itemsize
    for made, home, type_ in zip(choice.produced, key.homes, signature.results, strict=True):
        total += price(made, home) * type_.itemsize if made is not home else 0
    return total


def _joined_bytes(key: NodeKey, choice: Choice) -> object:
    """Bytes that a device sends so that partial results other than sums become one."""
    signature, loops, total = key.signature, dict(choice.loops), 0
    for rule in rules(signature) or ():
        digits = reduced_digits(rule, loops) if rule.combine not in (SUM, PICK) else ()
        if digits:
            # the best place is sent with its value
            sent = signature.operands[:1] if rule.combine in (ARGMAX, ARGMIN) else ()
            items = sum([type_.itemsize for type_ in (*signature.results, *sent)])
            held = math.prod(choice.produced[0].shard_shape) * items
            kind = "all_gather" if rule.combine in GATHERED else "all_reduce"
            total += step_wire_bytes(kind, group_size=parts(digits), local_bytes=held)
    return total


def _window_bytes(key: NodeKey, choice: Choice) -> int:
    """Bytes that a device sends so that every one has what its windows read."""
    total = 0
    for rule in through_windows(key.signature):
        loops = tuple((n, d) for n, d in choice.loops if n in rule.extents)
        held = tuple((k, choice.demands[k].dims) for k in rule.operands)
        devices = key.homes[0].mesh.size
        found = windows(rule, loops, held, devices) if loops else ()

        pairs = zip(key.signature.operands, choice.demands, strict=True)
        blocks = [(type_.dtype, demand.shard_shape) for type_, demand in pairs]
        for group in together(found, blocks):
            number = group[0].operand
            shape, itemsize = (
                choice.demands[number].shard_shape,
                key.signature.operands[number].itemsize,
            )
            total += elements(group, key.values, shape) * itemsize
    return total


@lru_cache(maxsize=1 << 14)
def through_windows(signature: Signature) -> tuple[Rule, ...]:
    """The rows that read a dimension through a window."""
    return tuple(
        rule
        for rule in rules(signature) or ()
        if any(windowed(rule, k, d) for k, dims in rule.operands.items() for d in range(len(dims)))
    )


def _least(source: Sharding, target: Sharding) -> object:
    return reshard_bound(source, target)[0]


def _gather_all(key: NodeKey) -> Choice:
    """A primitive without a row: every device computes the whole of it."""
    demands = tuple(whole(sources[0]) for sources in key.sources)
    return Choice((), demands, tuple(map(whole, key.homes)), 1)


def _laid(like: Sharding, dims: tuple[Digits, ...], unreduced: Digits = ()) -> Sharding:
    if dims == like.dims and unreduced == like.unreduced:
        return like
    return interned(like.mesh, like.shape, dims, unreduced)


def _merge(first: Choice, second: Choice, component: Component) -> Choice:
    """Put the operands and results of `component` from `second` into `first`."""
    demands, produced = list(first.demands), list(first.produced)
    for tensor in component.tensors:
        if tensor.operand is not None:
            demands[tensor.operand] = second.demands[tensor.operand]
        else:
            produced[tensor.result] = second.produced[tensor.result]
    return Choice(first.loops + second.loops, tuple(demands), tuple(produced), first.devices)


def _promising(key: NodeKey, component: Component, assignments: list[Assigned]) -> list[Assigned]:
    """Those that may compute on the most devices, where there is arithmetic; as `_best` decides."""
    if component.rule.flops == 0 or len(component.rules) > 1:
        return assignments
    members = 1 if contracts(key.signature) else parts(_passed_digits(key, component))
    counted = [(math.prod([parts(d) for d in found.values()]), found) for found in assignments]
    most = max([devices for devices, _ in counted])
    return [found for devices, found in counted if devices * members >= most]


def _candidates(
    key: NodeKey, component: Component, assignments: Iterable[Assigned]
) -> list[Choice]:
    passed, adds = _passed(key, component), not contracts(key.signature)
    demands = [_laid(sources[0], sources[0].dims) for sources in key.sources]
    produced = [_laid(home, home.dims) for home in key.homes]
    found: list[Choice] = []
    for assigned in assignments:
        for gathered in (False, True) if component.moves(assigned) else (False,):
            layouts = _layouts(key, component, assigned, (demands, produced), gathered)
            if layouts is not None:
                found += _choices(tuple(assigned.items()), layouts, passed, adds=adds)
    return [*found, *_regrouped(key)]


def _regrouped(key: NodeKey) -> Iterator[Choice]:
    """Reshapes by an exchange of flat elements."""
    if regroup.regrouped(key.signature):
        (home,) = key.homes
        for dims, out in regroup.layouts(key.signature, key.sources[0], home):
            demand, made = _laid(key.sources[0][0], dims), _laid(home, out)
            devices = math.prod([parts(digits) for digits in out])
            yield Choice((), (demand,), (made,), devices, regrouped=True)


def _assignments(key: NodeKey, component: Component) -> Iterator[Assigned]:
    """Every combination of digits that are at hand, each on one loop, that the rows allow."""
    options = _options(key, component)
    held = dict.fromkeys(d for groups in options.values() for group in groups for d in group)
    nested = _meet(tuple(held))
    for combination in itertools.product(*options.values()):
        digits = tuple([d for group in combination for d in group])
        if len(digits) == len(set(digits)) and not (nested and _meet(digits)):
            assigned = {n: d for n, d in zip(options, combination, strict=True) if d}
            if component.allows(assigned):
                yield assigned


@lru_cache(maxsize=1 << 12)
def _meet(digits: Digits) -> bool:
    """Whether two digits are parts of one axis that lie over each other."""
    return any(overlap(*pair) for pair in itertools.combinations(digits, 2))


def _options(key: NodeKey, component: Component) -> dict[str, list[Digits]]:
    """Per loop the digits that some tensor's sharding puts on it, and no digits.

    Digits of a dimension that an operator needs as one block, or whose partial results are sent
    whole, may go to any other loop instead.
    """
    options: dict[str, list[Digits]] = {name: [()] for name in component.loops}
    for tensor in component.tensors:
        for sharding in _at_hand(key, tensor):
            for loops, digits in zip(tensor.suggested, sharding.dims, strict=True):
                for loop, own in _places(component, loops, digits) if digits else ():
                    known = options.get(loop)
                    if known is not None:
                        tops = (own[:end] for end in range(len(own), 0, -1))
                        known += [top for top in tops if top not in known]
    return options


def _elsewhere(rule: Rule, loop: str) -> bool:
    return loop in rule.whole or (rule.combine in GATHERED and loop in rule.reduced)


def _places(component: Component, loops: Loops, digits: Digits) -> Iterable[tuple[str, Digits]]:
    """Where the digits of a dimension may go."""
    if any(_elsewhere(rule, name) for rule in component.rules for name, _ in loops):
        return tuple((name, digits) for name in component.roomy(parts(digits)))
    return spread(loops, digits)


def _at_hand(key: NodeKey, tensor: Tensor) -> tuple[Sharding, ...]:
    if tensor.operand is not None:
        return key.sources[tensor.operand]
    return (key.homes[tensor.result],)


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


def _layouts(
    key: NodeKey,
    component: Component,
    assigned: Assigned,
    others: tuple[list[Sharding], list[Sharding]],
    gathered: bool,
) -> Layouts | None:
    """Layouts that follow; None where two rows ask one operand for different ones.

    Args:
      others: layouts of what the component does not touch.
      gathered: whether dimensions behind windows are held whole.
    """
    demands, produced = list(others[0]), list(others[1])
    asked: dict[int, Sharding] = {}
    for tensor in component.tensors:
        dims, rule = tensor.digits(assigned, gathered=gathered), tensor.rule
        if tensor.operand is None:
            pending = reduced_digits(rule, assigned) if rule.combine in (SUM, PICK) else ()
            produced[tensor.result] = _laid(key.homes[tensor.result], dims, pending)
            continue
        made = _laid(key.sources[tensor.operand][0], dims)
        if asked.setdefault(tensor.operand, made) != made:
            return None
        demands[tensor.operand] = made
    return tuple(demands), tuple(produced)


def _choices(
    loops: tuple[tuple[str, Digits], ...],
    layouts: Layouts,
    passed: Mapping[int, Digits],
    *,
    adds: bool,
) -> Iterator[Choice]:
    """Without partial sums, and where they may be passed on, with them.

    Args:
      adds: whether members that work on sums of their own count as dividing the work. Beside a
        product a sum is little, but a product of partial sums is the whole product on each member.
    """
    devices = math.prod([parts(digits) for _, digits in loops])
    yield Choice(loops, *layouts, devices)
    if passed:
        digits = next(iter(passed.values()))
        demands, produced = layouts
        used = {d for one in (*demands, *produced) for dim in one.dims for d in dim}
        used.update(d for made in produced for d in made.unreduced)
        if not any(overlap(*pair) for pair in itertools.product(used, digits)):
            demands = tuple(_laid(w, w.dims, passed.get(i, ())) for i, w in enumerate(demands))
            produced = tuple(_laid(m, m.dims, as_set(m.unreduced + digits)) for m in produced)
            yield Choice(loops, demands, produced, devices * (parts(digits) if adds else 1))


def _passed_digits(key: NodeKey, component: Component) -> Digits:
    return next(iter(_passed(key, component).values()), ())


def _passed(key: NodeKey, component: Component) -> Mapping[int, Digits]:
    """Operands whose partial sums may be passed on: all addends pending alike, or one factor."""
    pending = {i: s[0].unreduced for i, s in enumerate(key.sources) if s[0].unreduced}
    rule = component.rule
    if (
        not pending
        or not component.is_whole
        or rule.combine != SUM
        or not set(pending) <= rule.linear
    ):
        return {}
    alike = len(set(pending.values())) == 1
    added = set(pending) == rule.addends
    factor = len(pending) == 1 and not set(pending) & rule.addends
    return pending if alike and (added or factor) else {}
