"""Which digits partition which loops of a node: candidates from its shardings, the best of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

from shardalg.algebra.derived_layouts import interned, whole
from shardalg.algebra.digits import Digits, overlap, parts
from shardalg.algebra.sharding import Sharding
from shardalg.costs.compute import contracts
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import PICK, SUM
from shardalg.planner.partition.choose import regroup
from shardalg.planner.partition.choose.component import (
    Assigned,
    Component,
    Loops,
    as_set,
    components,
    reduced_digits,
)
from shardalg.planner.partition.choose.key import (
    Choice,
    CostWeights,
    NodeKey,
    Weighed,
    available,
    devices_of,
    weight,
)
from shardalg.planner.partition.choose.matches import behind_split, required_devices, twins
from shardalg.planner.partition.choose.owner_select import elements, picked
from shardalg.planner.partition.choose.sent import GATHERED, sent_bytes
from shardalg.planner.reshard.paths import reshard_bound, reshard_price
from shardalg.sizes.recorded import first_least

Layouts = tuple[tuple[Sharding, ...], tuple[Sharding, ...]]
"""Of the operands and of the results."""
Options = dict[str, list[Digits]]
"""Per loop the digits that may be on it."""


def choose(key: NodeKey) -> Choice:
    """The assignment that takes the least time, of those that the layouts demand.

    Time is what a device sends, computes and writes, each at the rate of the hardware; an operator
    without arithmetic (layout changes, copies) takes the fewest bytes first. A contraction is
    computed on no fewer devices than its layouts match on (`required_devices`). Candidates are the
    digits that the operands' and results' shardings put on a loop, and none.
    """
    rows = rules(key.signature)
    if rows is None:
        return _gather_all(key)
    merged: Choice | None = None
    for place, component in enumerate(components(rows)):
        if key.loops:
            given = _candidates(key, component, [dict(key.loops[place])])
            if key.required:
                asked = key.required[place]
                chosen = [c for c in given if all(c.required_shardings[k] == at for k, at in asked)]
                given = chosen or given
            best = _arg_reduce(key, given, component)
        else:
            best = _fitting(key, component) or _least_time(key, component)
        merged = best if merged is None else _merge(merged, best, component)
    assert merged is not None, f"{key.signature.primitive} has an empty row"
    return merged


def _fitting(key: NodeKey, component: Component) -> Choice | None:
    """What `_undisputed` finds where everything lies as it is computed, and nothing is combined.

    All digits at hand divide the work and nothing is sent, so that no other choice is better.
    """
    given = tuple([available[0] for available in key.sources])
    if not component.is_whole or any(s.unreduced for s in (*given, *key.value_shardings)):
        return None
    if any(any(s.dims) for available in key.sources for s in available[1:]):
        return None
    assigned = component.fitted([s.dims for s in given], [s.dims for s in key.value_shardings])
    if assigned is None or regroup.regrouped(key.signature):
        return None
    digits = tuple([digit for own in assigned.values() for digit in own])
    if _meet(digits) or not component.allows(assigned) or component.moves(assigned):
        return None
    return Choice(tuple(assigned.items()), given, key.value_shardings, parts(digits))


def _least_time(key: NodeKey, component: Component) -> Choice:
    """The best of what the digits at hand allow."""
    options = _options(key, component)
    return _undisputed(key, component, options) or _disputed(key, component, options)


def _undisputed(key: NodeKey, component: Component, options: Options) -> Choice | None:
    """What `_disputed` finds where all tensors put the same digits on the same loops, if it wins.

    All digits at hand then divide the work, so nothing computes on as many devices: it wins where
    nothing is sent, or where fewer devices are not enough.
    """
    if _passed(key, component) or regroup.regrouped(key.signature):
        return None
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
    if not found:
        return None
    if required_devices(key, component, [assigned]) == found[0].devices > 1:
        return found[0]
    if sent_bytes(key, found[0], reshard_bound) == 0 == _price(key, found[0]):
        return found[0]
    return None


def _price(key: NodeKey, choice: Choice) -> Any:
    return sent_bytes(key, choice, partial(reshard_price, padded=key.padded))


def _disputed(key: NodeKey, component: Component, options: Options) -> Choice:
    """The best of all candidates."""
    return _arg_reduce(key, candidates(key, component, options)[0], component)


def candidates(key: NodeKey, component: Component, options: Options) -> tuple[list[Choice], int]:
    """What is weighed: all that lies on enough devices, and how many are enough."""
    assignments = list(_assignments(component, options))
    least = required_devices(key, component, assignments)
    if least > 1:
        assignments = [a for a in assignments if devices_of(a) >= least]
    return _candidates(key, component, assignments), least


def allowed_choices(
    key: NodeKey, component: Component, assignments: Iterable[Assigned]
) -> Iterator[Choice]:
    """What follows from those of the assignments that the rows allow, and from those at hand."""
    allowed = [found for found in assignments if component.allows(found)]
    available = _assignments(component, _options(key, component))
    for choice in _candidates(key, component, [*available, *allowed]):
        if not choice.regrouped:
            yield choice


def _arg_reduce(key: NodeKey, candidates: list[Choice], component: Component) -> Choice:
    """The first of the least time, or of the fewest bytes; then of the most devices.

    Candidates are priced in the order of what they cost at least, until the rest cost more.
    """
    if len(candidates) == 1:
        return candidates[0]
    weighs = component.rule.flops != 0
    counts = weight(key) if weighs else CostWeights(1, 0, 1)

    def bound(choice: Choice) -> Any:
        return counts.time(choice, sent_bytes(key, choice, reshard_bound))

    def rank(choice: Choice) -> tuple[Any, ...]:
        time = counts.time(choice, _price(key, choice))
        return time, not _left_partial(key, choice), -choice.devices, _moved(key, choice)

    def about(best: int, other: int) -> Weighed:
        return Weighed(candidates[best], candidates[other], "time" if weighs else "bytes")

    bounds, ranks = ([partial(of, choice) for choice in candidates] for of in (bound, rank))
    return candidates[first_least(key.numbers, bounds, ranks, about)]


def _left_partial(key: NodeKey, choice: Choice) -> bool:
    """Whether it leaves partial sums that may wait."""
    return key.waits and any(made.unreduced for made in choice.produced)


def _moved(key: NodeKey, choice: Choice) -> bool:
    """Return whether a choice moves a result that several nodes read.

    Values that are computed from this result would be moved, too.
    """
    return key.read_again and any(
        made.dims != result_sharding.dims and not made.unreduced
        for made, result_sharding in zip(choice.produced, key.value_shardings, strict=True)
    )


def _gather_all(key: NodeKey) -> Choice:
    """A primitive without a row: every device computes the whole of it."""
    required_shardings = tuple(whole(sources[0]) for sources in key.sources)
    return Choice((), required_shardings, tuple(map(whole, key.value_shardings)), 1)


def _laid(like: Sharding, dims: tuple[Digits, ...], unreduced: Digits = ()) -> Sharding:
    if dims == like.dims and unreduced == like.unreduced:
        return like
    return interned(like.mesh, like.shape, dims, unreduced)


def _merge(first: Choice, second: Choice, component: Component) -> Choice:
    """Put the operands and results of `component` from `second` into `first`."""
    required_shardings, produced = list(first.required_shardings), list(first.produced)
    for tensor in component.tensors:
        if tensor.operand is not None:
            required_shardings[tensor.operand] = second.required_shardings[tensor.operand]
        else:
            produced[tensor.number] = second.produced[tensor.number]
    return Choice(
        first.loops + second.loops, tuple(required_shardings), tuple(produced), first.devices
    )


def _candidates(
    key: NodeKey, component: Component, assignments: Iterable[Assigned]
) -> list[Choice]:
    passed, adds = _passed(key, component), not contracts(key.signature)
    required_shardings = [_laid(sources[0], sources[0].dims) for sources in key.sources]
    produced = [
        _laid(result_sharding, result_sharding.dims) for result_sharding in key.value_shardings
    ]
    found: list[Choice] = []
    for assigned in assignments:
        for gathered in (False, True) if component.moves(assigned) else (False,):
            layouts = _layouts(key, component, assigned, (required_shardings, produced), gathered)
            if layouts is not None:
                for laid in (layouts, *_picked(key, component, layouts)):
                    found += _choices(tuple(assigned.items()), laid, passed, adds=adds)
    return [*found, *_regrouped(key)]


def _picked(key: NodeKey, component: Component, layouts: Layouts) -> Iterator[Layouts]:
    """The same where single elements of dimensions are picked from blocks as they lie."""
    dims = elements(key.signature, component.rule) if component.is_whole else ()
    if dims:
        (required,), (made,) = layouts
        for blocks, partial_ in picked(dims, key.sources[0], (required, made)):
            yield (blocks,), (partial_,)


def _regrouped(key: NodeKey) -> Iterator[Choice]:
    """Reshapes by an exchange of flat elements."""
    if regroup.regrouped(key.signature):
        (result_sharding,) = key.value_shardings
        for dims, out in regroup.layouts(key.signature, key.sources[0], result_sharding):
            required, made = _laid(key.sources[0][0], dims), _laid(result_sharding, out)
            devices = math.prod([parts(digits) for digits in out])
            yield Choice((), (required,), (made,), devices, regrouped=True)


def _assignments(component: Component, options: Options) -> Iterator[Assigned]:
    """Every combination of digits that are at hand, each on one loop, that the rows allow."""
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


def _options(key: NodeKey, component: Component) -> Options:
    """Per loop the digits that some tensor's sharding puts on it, and no digits.

    Digits of a dimension that an operator needs as one block, or whose partial results are sent
    whole, may go to any other loop instead; digits of a contracted loop to an axis that is idle.
    """
    options: Options = {name: [()] for name in component.loops}
    moved: dict[Digits, None] = {}
    for tensor in component.tensors:
        for sharding in available(key, tensor):
            for loops, digits in zip(tensor.suggested, sharding.dims, strict=True):
                if digits and _elsewhere(component, loops):
                    moved[digits] = None
                    continue
                for loop, own in spread(loops, digits) if digits else ():
                    known = options.get(loop)
                    if known is not None:
                        tops = (own[:end] for end in range(len(own), 0, -1))
                        known += [top for top in tops if top not in known]
    for digits in moved:
        _add_behind(options, component, digits)
    for name, digits in twins(key, component).items():
        if name in options and digits not in options[name]:
            options[name] += [digits, *behind_split(key, component, name, digits)]
    return options


def _elsewhere(component: Component, loops: Loops) -> bool:
    """Whether the digits of a dimension may go to any other loop."""
    return any(
        name in rule.whole or (rule.combine in GATHERED and name in rule.reduced)
        for rule in component.rules
        for name, _ in loops
    )


def _add_behind(options: Options, component: Component, digits: Digits) -> None:
    """Put digits on every loop with room for them: alone, and behind what splits it already."""
    for name, known in options.items():
        behind = [(*own, *digits[:end]) for own in known for end in range(len(digits), 0, -1)]
        for joint in behind:
            if joint not in known and name in component.roomy(parts(joint)):
                known.append(joint)


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
    required_shardings, produced = list(others[0]), list(others[1])
    asked: dict[int, Sharding] = {}
    for tensor in component.tensors:
        dims, rule = tensor.digits(assigned, gathered=gathered), tensor.rule
        if tensor.operand is None:
            pending = reduced_digits(rule, assigned) if rule.combine in (SUM, PICK) else ()
            produced[tensor.number] = _laid(key.value_shardings[tensor.number], dims, pending)
            continue
        made = _laid(key.sources[tensor.operand][0], dims)
        if asked.setdefault(tensor.operand, made) != made:
            return None
        required_shardings[tensor.operand] = made
    return tuple(required_shardings), tuple(produced)


def _choices(
    loops: tuple[tuple[str, Digits], ...],
    layouts: Layouts,
    ways: tuple[Mapping[int, Digits], ...],
    *,
    adds: bool,
) -> Iterator[Choice]:
    """Without partial sums, and where they may be passed on, with them.

    Args:
      ways: how partial sums of operands may pass (`_passed`).
      adds: whether members that work on sums of their own count as dividing the work. Beside a
        product a sum is little, but a product of partial sums is the whole product on each member.
    """
    devices = math.prod([parts(digits) for _, digits in loops])
    yield Choice(loops, *layouts, devices)
    for passed in ways:
        digits = next(iter(passed.values()))
        required_shardings, produced = layouts
        used = {d for one in (*required_shardings, *produced) for dim in one.dims for d in dim}
        used.update(d for made in produced for d in made.unreduced)
        if not any(overlap(*pair) for pair in itertools.product(used, digits)):
            required_shardings = tuple(
                _laid(w, w.dims, passed.get(i, ())) for i, w in enumerate(required_shardings)
            )
            produced = tuple(_laid(m, m.dims, as_set(m.unreduced + digits)) for m in produced)
            yield Choice(
                loops, required_shardings, produced, devices * (parts(digits) if adds else 1)
            )


def _passed(key: NodeKey, component: Component) -> tuple[Mapping[int, Digits], ...]:
    """Return the ways in which partial sums of operands may pass through the operator.

    All addends pass together if they are partial along the same axes. Of factors one alone passes:
    the others are reduced first. Each way maps operands to the axes of their partial sums.
    """
    pending = {i: s[0].unreduced for i, s in enumerate(key.sources) if s[0].unreduced}
    rule = component.rule
    if not pending or not component.is_whole or rule.combine != SUM:
        return ()
    passes = rule.passes(finite=key.finite)
    if set(pending) & rule.addends:
        is_alike = len(set(pending.values())) == 1
        return (pending,) if is_alike and set(pending) == rule.addends <= passes else ()
    alone = (i for i in pending if i in passes and key.values.count(key.values[i]) == 1)
    return tuple({i: pending[i]} for i in alone)
