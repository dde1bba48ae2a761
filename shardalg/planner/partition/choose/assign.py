"""The choice at a node: which loops are sharded along which digits of the mesh.

An assignment maps loops to digits (parts of mesh axes). The module lists the candidate assignments
of a node, derives the shardings of its operands and results, and takes the cheapest.
"""

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
    components,
    major_first,
    reduced_digits,
)
from shardalg.planner.partition.choose.key import (
    Choice,
    CostWeights,
    NodeKey,
    Weighed,
    available,
    cost_weights,
    num_parts,
)
from shardalg.planner.partition.choose.matches import (
    contracted_then_idle,
    idle_axes_of_equal_size,
    required_devices,
)
from shardalg.planner.partition.choose.owner_select import elements, owner_select_choices
from shardalg.planner.partition.choose.sent import GATHERED, sent_bytes
from shardalg.planner.reshard.paths import reshard_bound, reshard_price
from shardalg.sizes.recorded import first_least

# Operands and results are separate, because a component sets some entries of each by number.
Layouts = tuple[tuple[Sharding, ...], tuple[Sharding, ...]]
LoopCandidates = dict[str, list[Digits]]
"""Per loop, the alternatives for its digits. The first is (): the loop is not sharded."""


def choose(key: NodeKey) -> Choice:
    """Return how a node is computed: its sharded loops, and the shardings that follow from them.

    A component is a group of rows of RULES that share loops or operands. Components are decided
    one by one. A primitive without a row of RULES is computed by every device on whole operands.
    """
    rows = rules(key.signature)
    if rows is None:
        required = tuple([whole(sources[0]) for sources in key.sources])
        return Choice((), required, tuple(map(whole, key.value_shardings)), 1)
    merged: Choice | None = None
    for place, component in enumerate(components(rows)):
        if key.loops:
            # Policy "cost" decided the loops before. Windows and partial sums can still be handled
            # in several ways, of which `key.required` selects those that were priced.
            given = _choices(key, component, [dict(key.loops[place])])
            if key.required:
                fixed = key.required[place]
                chosen = [c for c in given if all(c.required_shardings[k] == at for k, at in fixed)]
                given = chosen or given
            best = least_time(key, component, given)
        else:
            best = cheapest_choice(key, component)
        # A component decides its own operands and results only; the others stay as earlier
        # components decided them.
        merged = best if merged is None else _merge(merged, best, component)
    assert merged is not None, f"{key.signature.primitive} has an empty row"
    return merged


def cheapest_choice(key: NodeKey, component: Component) -> Choice:
    """Return the choice for one component that takes the least time.

    The time includes sending, computing and writing, at the rates of the hardware. For an operator
    without arithmetic it is the choice that sends fewest bytes. `least_time` says how ties are
    broken.
    """
    # Shortcut 1: every tensor already has the sharding that its loops need. Nothing is sent and all
    # available digits divide the work, so no other choice can be cheaper.
    found = communication_free_choice(key, component)
    if found is not None:
        return found
    # Shortcut 2: all tensors suggest the same digits on the same loops, and that candidate sends
    # nothing or is the only one on enough devices. The search below would return it, too.
    by_loop = available_digits(key, component)
    found = unanimous_choice(key, component, by_loop)
    if found is not None:
        return found
    return least_time(key, component, candidates(key, component, by_loop)[0])


def communication_free_choice(key: NodeKey, component: Component) -> Choice | None:
    """Return the choice that reads and computes all tensors in the shardings they have, or None.

    None if this needs communication or leaves partial sums. `unanimous_choice` would return the
    same choice. This function is faster, because it builds no candidates.

    Args:
      key: the operator, the available shardings of each operand, the shardings of its results.
      component: the operator's loops and tensors.
    """
    # The first available copy of an operand is the one that was computed or placed.
    given = tuple([available[0] for available in key.sources])
    if not component.is_whole or any(s.unreduced for s in (*given, *key.value_shardings)):
        return None
    # A sharded copy would suggest further candidates.
    if any(any(s.dims) for available in key.sources for s in available[1:]):
        return None
    # The digits of each loop, if all dimensions that a loop indexes have the same ones.
    assigned = component.local_assignment(
        [s.dims for s in given], [s.dims for s in key.value_shardings]
    )
    # A reshape with exchanges has choices beyond its loops.
    if assigned is None or regroup.regroups(key.signature):
        return None
    # One digit cannot divide two loops. A sharded dimension that a window slides over needs
    # elements of neighbours, so that the choice is not local.
    digits = tuple([digit for loop_digits in assigned.values() for digit in loop_digits])
    if _overlapping(digits) or not component.allows(assigned) or component.reads_windows(assigned):
        return None
    return Choice(tuple(assigned.items()), given, key.value_shardings, parts(digits))


def unanimous_choice(key: NodeKey, component: Component, by_loop: LoopCandidates) -> Choice | None:
    """Return the choice that shards each loop along all digits that any tensor suggests, or None.

    All available digits then divide the work, so no other choice uses as many devices. It is the
    cheapest if it sends nothing, or if a contraction must use that many devices. None if two
    suggestions for a loop contradict each other, or if neither condition holds. Also None if
    partial sums can be passed on, or for a reshape with exchanges: each has choices beyond loops.

    Args:
      by_loop: per loop, the candidate digits that the tensors' shardings suggest.
    """
    if pending_sums(key, component) or regroup.regroups(key.signature):
        return None
    # Suggestions agree if each is a prefix of the longest one: it then splits the others' blocks.
    longest = {name: max(candidates, key=len) for name, candidates in by_loop.items()}
    for name, candidates in by_loop.items():
        if any(longest[name][: len(digits)] != digits for digits in candidates):
            return None
    assigned = {name: digits for name, digits in longest.items() if digits}
    # One digit cannot divide two loops.
    digits = tuple([d for loop_digits in assigned.values() for d in loop_digits])
    if len(digits) > len(set(digits)) or _overlapping(digits):
        return None
    # Windows can be exchanged or gathered, so that one assignment has two choices.
    if not component.allows(assigned) or component.reads_windows(assigned):
        return None
    found = _choices(key, component, [assigned])
    if not found:
        return None
    # A contraction must use the required number of devices, and no other choice has as many.
    if required_devices(key, component, [assigned]) == found[0].devices > 1:
        return found[0]
    # The lower bound is cheap. The exact price is computed only if the bound is 0.
    if sent_bytes(key, found[0], reshard_bound) == 0 == _exact_bytes(key, found[0]):
        return found[0]
    return None


def candidates(
    key: NodeKey, component: Component, by_loop: LoopCandidates
) -> tuple[list[Choice], int]:
    """Return the choices to compare for a component, and a lower bound of their devices.

    The bound is 1 except for contractions (`required_devices`).
    """
    assignments = list(_assignments(component, by_loop))
    # Comparing bytes alone would repeat a contraction on all devices that share an operand.
    least = required_devices(key, component, assignments)
    if least > 1:
        assignments = [a for a in assignments if num_parts(a) >= least]
    return _choices(key, component, assignments), least


def allowed_choices(
    key: NodeKey, component: Component, assignments: Iterable[Assigned]
) -> Iterator[Choice]:
    """Yield all choices for a component under policy "cost".

    A choice follows from an assignment of mesh digits to loops. These are the given assignments, if
    the component allows them, and those that the shardings of its operands and results suggest.
    Exchanges of a reshape (`Choice.regrouped`) are excluded.
    """
    allowed = [found for found in assignments if component.allows(found)]
    suggested = _assignments(component, available_digits(key, component))
    for choice in _choices(key, component, [*suggested, *allowed]):
        if not choice.regrouped:
            yield choice


def least_time(key: NodeKey, component: Component, candidates: list[Choice]) -> Choice:
    """Return the candidate of least time; of fewest bytes if the operator has no arithmetic.

    Between candidates of equal price these criteria decide, in this order:
    1. A partial sum is deferred until a loop ends.
    2. More devices share the work.
    3. A result with several readers needs no move.
    4. The candidate comes earlier in the list.
    """
    if len(candidates) == 1:
        return candidates[0]
    has_arithmetic = component.rule.flops != 0
    weights = cost_weights(key) if has_arithmetic else CostWeights(1, 0, 1)

    def bound(choice: Choice) -> Any:
        return weights.time(choice, sent_bytes(key, choice, reshard_bound))

    def rank(choice: Choice) -> tuple[Any, ...]:
        """Return the sort key of a choice: its exact price, then preferences between equal prices.

        Preferred are a deferred sum, then more devices, then a result that is not moved for several
        readers.
        """
        time = weights.time(choice, _exact_bytes(key, choice))
        # `waits`: the partial sums of the result may stay pending until a loop is over.
        defers = key.waits and any(made.unreduced for made in choice.produced)
        # Values that are computed from a moved result have its sharding, and would be moved, too.
        moves_shared = key.read_again and any(
            made.dims != result_sharding.dims and not made.unreduced
            for made, result_sharding in zip(choice.produced, key.value_shardings, strict=True)
        )
        return time, not defers, -choice.devices, moves_shared

    # With recorded sizes, each comparison of two candidates is noted with this description.
    def about(best: int, other: int) -> Weighed:
        by = "time" if has_arithmetic else "bytes"
        return Weighed(candidates[best], candidates[other], by)

    # Branch and bound: candidates are ranked exactly in the order of their lower bounds, until the
    # next bound exceeds the best exact time.
    bounds, ranks = ([partial(of, choice) for choice in candidates] for of in (bound, rank))
    return candidates[first_least(key.numbers, bounds, ranks, about)]


def _exact_bytes(key: NodeKey, choice: Choice) -> Any:
    return sent_bytes(key, choice, partial(reshard_price, padded=key.padded))


def _with_dims(like: Sharding, dims: tuple[Digits, ...], unreduced: Digits = ()) -> Sharding:
    """Return a sharding with the mesh and shape of `like` and these digits per dimension.

    It is `like` itself if nothing differs.
    """
    if dims == like.dims and unreduced == like.unreduced:
        return like
    return interned(like.mesh, like.shape, dims, unreduced)


def _merge(first: Choice, second: Choice, component: Component) -> Choice:
    """Return a choice that joins the choices of two groups of components.

    It has the loops of both. The operands and results of `component` have the shardings of
    `second`, all others have those of `first`.

    Args:
      component: the component that `second` decides.
    """
    required_shardings, produced = list(first.required_shardings), list(first.produced)
    for tensor in component.tensors:
        # A tensor without an operand number is a result.
        if tensor.operand is not None:
            required_shardings[tensor.operand] = second.required_shardings[tensor.operand]
        else:
            produced[tensor.number] = second.produced[tensor.number]
    return Choice(
        first.loops + second.loops, tuple(required_shardings), tuple(produced), first.devices
    )


def _choices(key: NodeKey, component: Component, assignments: Iterable[Assigned]) -> list[Choice]:
    """Return all choices that follow from the assignments of digits to loops.

    One assignment can have several: windows are exchanged or gathered, partial sums of operands are
    reduced first or passed on, one element is gathered or read from its owner. A reshape also has
    exchanges, which follow from no assignment.

    Args:
      key: the operator, the available shardings of each operand, the shardings of its results.
      assignments: dictionaries from sharded loops to their digits.
    """
    signature, passed = key.signature, pending_sums(key, component)
    # Devices that add different partial sums divide the work; those that multiply them do not.
    adds = not contracts(signature)
    # Tensors of other components keep these shardings, without their partial sums.
    required_shardings = [_with_dims(sources[0], sources[0].dims) for sources in key.sources]
    produced = [_with_dims(sharding, sharding.dims) for sharding in key.value_shardings]
    # Dimensions of which the operator reads one element, as x[-1] does.
    single = elements(signature, component.rule) if component.is_whole else ()
    found: list[Choice] = []
    for assigned in assignments:
        loops = tuple(assigned.items())
        # Neither halos nor a gather always sends less, so both ways are candidates.
        for gathered in (False, True) if component.reads_windows(assigned) else (False,):
            layouts = _layouts(key, component, assigned, (required_shardings, produced), gathered)
            # An assignment that a tensor cannot have gives no choice.
            if layouts is None:
                continue
            found += _with_pending_sums(loops, layouts, passed, adds=adds)
            if single:
                # One element of a dimension can also be read from the block of its owner.
                ((required,), (made,)) = layouts
                for blocks, pending in owner_select_choices(
                    single, key.sources[0], (required, made)
                ):
                    layouts = (blocks,), (pending,)
                    found += _with_pending_sums(loops, layouts, passed, adds=adds)
    if regroup.regroups(signature):
        (result_sharding,) = key.value_shardings
        for dims, out in regroup.layouts(signature, key.sources[0], result_sharding):
            operand, result = key.sources[0][0], result_sharding
            ends = (_with_dims(operand, dims),), (_with_dims(result, out),)
            devices = math.prod([parts(digits) for digits in out])
            found.append(Choice((), *ends, devices, regrouped=True))
    return found


def _assignments(component: Component, by_loop: LoopCandidates) -> Iterator[Assigned]:
    """Yield every assignment of one candidate per loop that the component allows.

    An assignment is a dictionary from the sharded loops to their digits. No digit may be used for
    two loops (`Component.allows` has the other conditions).

    Args:
      by_loop: per loop its candidates, each a tuple of digits; () leaves the loop unsharded.
    """
    groups = (group for candidates in by_loop.values() for group in candidates)
    all_digits = dict.fromkeys(digit for group in groups for digit in group)
    # Most nodes have no two overlapping digits; then no combination has to be checked for them.
    may_overlap = _overlapping(tuple(all_digits))
    for combination in itertools.product(*by_loop.values()):
        digits = tuple([d for group in combination for d in group])
        if len(digits) == len(set(digits)) and not (may_overlap and _overlapping(digits)):
            assigned = {n: d for n, d in zip(by_loop, combination, strict=True) if d}
            if component.allows(assigned):
                yield assigned


@lru_cache(maxsize=1 << 12)
def _overlapping(digits: Digits) -> bool:
    """Return whether two of the digits are overlapping parts of one axis."""
    return any(overlap(*pair) for pair in itertools.combinations(digits, 2))


def available_digits(key: NodeKey, component: Component) -> LoopCandidates:
    """Return per loop a list of candidate digits; the first is (): the loop is not sharded.

    Candidates have three origins:
    - digits that shard a dimension of an operand or result which this loop indexes;
    - digits that shard a dimension which the operator needs whole (a sort), because an all-to-all
      can move them to another loop;
    - for a contracting loop, an idle axis (no tensor is sharded along it) as large as the digits of
      the loop, because it can replace or extend these.
    """
    by_loop: LoopCandidates = {name: [()] for name in component.loops}
    # No device does less work if these loops are split: the operator needs the dimension whole, or
    # the partial results of all devices are gathered.
    gathered = {
        name
        for rule in component.rules
        for name in (*rule.whole, *(rule.reduced if rule.combine in GATHERED else ()))
    }
    # Digits of such loops, which an all-to-all can move to another loop.
    moved: dict[Digits, None] = {}
    for tensor in component.tensors:
        for sharding in available(key, tensor):
            for loops, digits in zip(tensor.suggested, sharding.dims, strict=True):
                if digits and any(name in gathered for name, _ in loops):
                    moved[digits] = None
                    continue
                # A dimension of several loops (a reshape) gives its digits to the major loop first.
                for loop, of_loop in spread(loops, digits) if digits else ():
                    found = by_loop.get(loop)
                    if found is not None:
                        # A loop without its minor digits leaves these to other loops.
                        majors = (of_loop[:end] for end in range(len(of_loop), 0, -1))
                        found += [major for major in majors if major not in found]
    # An all-to-all can move these digits to any loop that is long enough for all parts, also behind
    # the digits that the loop has already.
    for digits in moved:
        ends = range(len(digits), 0, -1)
        for name, found in by_loop.items():
            for joint in [(*before, *digits[:end]) for before in found for end in ends]:
                if joint not in found and name in component.loops_of_extent(parts(joint)):
                    found.append(joint)
    # Idle axes shard no tensor, so a contraction can be divided along them as well.
    for name, digits in idle_axes_of_equal_size(key, component).items():
        if name in by_loop and digits not in by_loop[name]:
            by_loop[name] += [digits, *contracted_then_idle(key, component, name, digits)]
    return by_loop


def spread(loops: tuple[tuple[str, int], ...], digits: Digits) -> list[tuple[str, Digits]]:
    """Return (loop, digits) for each loop of a dimension that gets some of the dimension's digits.

    Digits are given to the major loop first. A minor loop gets digits only if the more major loops
    are split to single elements.

    Args:
      loops: the loops of the dimension with their extents, major first.

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
        # Blocks of the dimension i*n + j are blocks of j only if a device has one value of i.
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
    """Return the shardings of all operands and results under an assignment of digits to loops.

    Partial sums of operands are reduced first. None if two rules of the component require different
    shardings of one operand.

    Args:
      others: shardings of the tensors that the component does not contain.
      gathered: whether windowed dimensions are gathered instead of exchanged.
    """
    required_shardings, produced = list(others[0]), list(others[1])
    of_operand: dict[int, Sharding] = {}
    for tensor in component.tensors:
        dims, rule = tensor.digits(assigned, gathered=gathered), tensor.rule
        if tensor.operand is None:
            # Other combines are finished right after the local operator (`node_plan.py`).
            pending = reduced_digits(rule, assigned) if rule.combine in (SUM, PICK) else ()
            produced[tensor.number] = _with_dims(key.value_shardings[tensor.number], dims, pending)
            continue
        # An operand must be complete here; `_with_pending_sums` adds the choices with partial sums.
        made = _with_dims(key.sources[tensor.operand][0], dims)
        # Several rows of a component may read one operand, which is moved to one sharding only.
        if of_operand.setdefault(tensor.operand, made) != made:
            return None
        required_shardings[tensor.operand] = made
    return tuple(required_shardings), tuple(produced)


def _with_pending_sums(
    loops: tuple[tuple[str, Digits], ...],
    layouts: Layouts,
    passed: tuple[Mapping[int, Digits], ...],
    *,
    adds: bool,
) -> Iterator[Choice]:
    """Yield a choice that reduces all operands first, then one per way to pass partial sums on.

    Args:
      loops: the sharded loops with their digits.
      layouts: the shardings of the operands and of the results if all operands are reduced.
      passed: the result of `pending_sums`: the operands that may be read as partial sums.
      adds: whether devices that compute on different partial sums count as dividing the work. They
        do for an addition. A product of partial sums is the whole product on every device.
    """
    devices = math.prod([parts(digits) for _, digits in loops])
    yield Choice(loops, *layouts, devices)
    for pending in passed:
        # All operands of one way are partial along the same axes (`pending_sums`).
        digits = next(iter(pending.values()))
        required_shardings, produced = layouts
        used = {d for one in (*required_shardings, *produced) for dim in one.dims for d in dim}
        used.update(d for made in produced for d in made.unreduced)
        # Along the digits of a partial sum every device must compute the same block, so no tensor
        # may be split by them.
        if not any(overlap(*pair) for pair in itertools.product(used, digits)):
            required_shardings = tuple(
                _with_dims(required, required.dims, pending.get(number, ()))
                for number, required in enumerate(required_shardings)
            )
            # A linear operator of partial sums gives a partial sum of its result. It may be partial
            # along its own reduced loops besides.
            produced = tuple(
                _with_dims(made, made.dims, major_first(made.unreduced + digits))
                for made in produced
            )
            yield Choice(
                loops, required_shardings, produced, devices * (parts(digits) if adds else 1)
            )


def pending_sums(key: NodeKey, component: Component) -> tuple[Mapping[int, Digits], ...]:
    """Return the ways in which an operator can compute on unreduced partial sums of operands.

    Its result is then a partial sum, too. Each entry is a dictionary from operand numbers to the
    axes of their partial sums; other operands are reduced first. All addends pass together, if they
    are partial along the same axes. Of several factors only one passes.
    """
    #   sum_p(x_p) + sum_p(y_p) = sum_p(x_p + y_p), but x + sum_p(y_p) would add x once per device.
    pending = {i: s[0].unreduced for i, s in enumerate(key.sources) if s[0].unreduced}
    rule = component.rule
    if not pending or not component.is_whole or rule.combine != SUM:
        return ()
    passes = rule.passes(finite=key.finite)
    if set(pending) & rule.addends:
        is_alike = len(set(pending.values())) == 1
        return (pending,) if is_alike and set(pending) == rule.addends <= passes else ()
    # The square of a sum is not the sum of squares: a value that is read twice does not pass.
    alone = (i for i in pending if i in passes and key.values.count(key.values[i]) == 1)
    return tuple({i: pending[i]} for i in alone)
