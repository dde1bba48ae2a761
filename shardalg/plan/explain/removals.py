"""Changes that remove a collective: of one annotation, of two, of many, each planned again.

A second change is found in the plan under the first one: the collectives that still move the value
(or another value in its place) are explained, and the annotations behind them are changed too. If
two changes are not enough, the collective's axes are dropped from all annotations that they come
from, until nothing moves the value. Then each drop that is not necessary is undone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from shardalg.costs.collectives import MovedValue
from shardalg.plan.explain.changes import AnnotationChange, Changes, changes, drops
from shardalg.plan.explain.disagreements import Side, disagreement
from shardalg.planner.stages import Stages
from shardalg.planner.trials import TrialOutcome, Trials

MOST_FIRST = 8
"""The number of single changes that get a second one: those that leave the fewest bytes."""
MOST_LEFT = 2
"""The number of collectives left by a first change that second changes try to remove, per sort.

One sort has the same kind at a new place, the other moves the same value.
"""
MOST_PAIRS = 64
"""The largest number of pairs that are planned for one collective."""
MOST_NODES = 60_000
"""Bounds the time: the number of operators in all plans of pairs, or of sets, together."""
QUICK_NODES = 18_000
"""Trials stop after this number of operators was planned, unless `thorough` is set."""


@dataclass
class Effort:
    """The budget of the trials for one collective.

    Attributes:
      nodes: the number of operators that may still be planned or priced.
      leaves_out: whether the budget was too small for all trials.
    """

    nodes: float = math.inf
    leaves_out: bool = False

    @property
    def is_spent(self) -> bool:
        """True if the budget for trials is used up, so that no further change is tried."""
        return self.nodes <= 0

    def spend(self, trials: Trials, trial: Trial) -> None:
        """Subtract the cost of a trial from the budget: the number of the graph's operators.

        A trial that removes the collective counts twice, because it was planned and also priced.
        """
        self.nodes -= len(trials.stages.graph.nodes) * (1 + trial.removes)


@dataclass(frozen=True)
class Trial:
    """A change of annotations, the plan's figures with it, and whether it removes a collective.

    Attributes:
      left_bytes: wire bytes per step that still move the collective's value at its operator.
      wire_bytes: wire bytes of the step with the change.
      more: whether the step sends more bytes in total.
      helps: whether the change removes the collective and makes a step cheaper: it fits the chip
        and did not, or takes less time, or the same time with less memory.
    """

    change: AnnotationChange | Changes
    removes: bool
    left_bytes: int | float
    wire_bytes: int | float
    more: bool
    helps: bool
    _outcome: Callable[[], TrialOutcome] = field(repr=False, compare=False)

    @property
    def outcome(self) -> TrialOutcome:
        """The figures of the plan with this change; a plan without a price is priced here."""
        return self._outcome()


def ranked(found: Iterable[Trial]) -> tuple[Trial, ...]:
    """Return trials, best first: those that remove the collective, then the others.

    The first ones are ordered by fit, seconds, memory and number of changed dimensions.

    The others are ordered by the bytes that still move the value at the operator.
    """
    return tuple(sorted(found, key=_rank))


def _rank(trial: Trial) -> tuple[object, ...]:
    """Return the key for sorting trials: those that remove the collective come first."""
    # The price of a plan without effect is not needed, so it is not computed.
    if not trial.removes:
        return True, trial.left_bytes, trial.wire_bytes
    return False, *trial.outcome.price, trial.change.changed_dims


def undominated(found: Iterable[Trial]) -> list[Trial]:
    """Return the trials, except those that an earlier trial equals or beats in every figure.

    The figures are seconds, number of changed dimensions, wire bytes and peak memory. For example,
    of (1 s, 1 dimension, 4 B, 8 B) and (2 s, 1 dimension, 4 B, 8 B), the second one is left out.
    """
    best: list[Trial] = []
    for trial in found:
        figures = _figures(trial)
        # A user gains nothing from a change if an earlier one is at least as good in every figure.
        is_beaten = False
        for earlier in best:
            pairs_of_figures = zip(_figures(earlier), figures, strict=True)
            is_beaten |= all(first <= second for first, second in pairs_of_figures)
        if not is_beaten:
            best.append(trial)
    return best


def _figures(trial: Trial) -> tuple[int | float, ...]:
    """Return the figures by which trials are compared; a smaller one is better.

    They are seconds, changed dimensions, wire bytes and peak memory.
    """
    outcome = trial.outcome
    # The price has rounded seconds: differences in the last digits must not decide.
    seconds = outcome.price[1]
    return seconds, trial.change.changed_dims, outcome.wire_bytes, outcome.peak_memory_bytes


def singles(
    trials: Trials, moved: MovedValue, sides: tuple[Side, Side], effort: Effort
) -> tuple[Trial, ...]:
    """Return trials of a change of one annotation that causes a collective, best first (`ranked`).

    The most promising changes are tried first, until the effort is spent.
    """
    found, tried = list(changes(trials.stages, sides, moved.digits)), {}
    # Trials run in the order of promise, but the result is in the order of `changes`.
    for number in _promising(found, sides):
        if effort.is_spent:
            break
        tried[number] = _tried(trials, moved, found[number])
        effort.spend(trials, tried[number])
    effort.leaves_out |= len(tried) < len(found)
    return ranked(tried[number] for number in sorted(tried))


def _promising(found: Sequence[AnnotationChange], sides: tuple[Side, Side]) -> list[int]:
    """Return indices of the changes in `found`, the most promising change first.

    Changes to the sharding before or after the collective (`sides`) come first. The others follow
    in turns: the first change of each annotation, then the second one, and so on.
    """
    side_dims = {side.layout.dims for side in sides}
    # The slots of a change are the entries of the annotations that it sets. Equal slots mean the
    # same annotation, whose changes are counted here.
    turns: Counter[tuple[object, ...]] = Counter()
    keys = []
    for number, change in enumerate(found):
        turns[change.slots] += 1
        # False sorts before True: a change to the sharding of a side comes first.
        keys.append((change.after.dims not in side_dims, turns[change.slots], number))
    return [number for _, _, number in sorted(keys)]


def pairs(
    trials: Trials, moved: MovedValue, tried: tuple[Trial, ...], effort: Effort
) -> tuple[Trial, ...]:
    """Return trials in which two annotations are changed, best first (`ranked`).

    A trial is a plan of the function with changed annotations, made to remove a collective.

    Args:
      moved: the collective.
      tried: the trials of one changed annotation. The pairs combine their changes.
      effort: the remaining time; no pair is tried after it is spent.
    """
    # A pair is one more plan of the whole graph: large graphs get fewer pairs.
    most = min(MOST_PAIRS, MOST_NODES // max(1, len(trials.stages.graph.nodes)))
    found: dict[Changes, Trial] = {}
    for pair in () if effort.is_spent else islice(_pairs(trials, moved, tried), most):
        if pair not in found:
            found[pair] = _tried(trials, moved, pair)
            effort.spend(trials, found[pair])
        if effort.is_spent:
            effort.leaves_out = True
            break
    return ranked(found.values())


def _pairs(trials: Trials, moved: MovedValue, tried: tuple[Trial, ...]) -> Iterator[Changes]:
    """Yield pairs of two annotation changes that may remove a collective together.

    The first pair of each first change comes before the second pair of any. So no first change
    alone uses up the limit on the number of pairs.

    Args:
      tried: the trials of single changes.
    """
    first = [one.change for one in tried[:MOST_FIRST] if isinstance(one.change, AnnotationChange)]
    # An iterator over pairs for each first change; it plans a pair only when it is advanced.
    pair_iterators = [_second(trials, moved, change) for change in first]
    while pair_iterators:
        # One pair of each in turn, from a copy of the list, because finished ones are removed.
        for iterator in tuple(pair_iterators):
            pair = next(iterator, None)
            if pair is None:
                pair_iterators.remove(iterator)
            else:
                yield pair


def _second(trials: Trials, moved: MovedValue, first: AnnotationChange) -> Iterator[Changes]:
    """Yield pairs of `first` and a change that may remove a collective left by `first`."""
    stages = trials.under(first.applied(trials.stages.annotations))
    for left in _left(trials.stages, stages, moved, MOST_LEFT):
        sides = disagreement(stages.sharded, stages.traffic, left)
        for second in changes(stages, sides, left.digits):
            # A second change of the same entries would only replace the first one.
            if not set(first.slots) & set(second.slots):
                yield Changes((first, second))


def together(trials: Trials, moved: MovedValue) -> tuple[Trial, ...]:
    """Return one trial of many changes, all of them necessary, which removes a collective.

    Each change removes the collective's axes from one annotation. Changes are added until the
    collective is gone, then those that are not necessary are undone. Empty if no such set is found.
    """
    # Every step plans the whole graph, so a large graph gets fewer steps.
    num_plans = MOST_NODES // max(1, len(trials.stages.graph.nodes))
    dropped_changes: tuple[AnnotationChange, ...] = ()
    # One half of the plans is for dropping axes, the other for undoing drops.
    for _ in range(num_plans // 2):
        stages = trials.under(Changes(dropped_changes).applied(trials.stages.annotations))
        # If no more annotation has these axes, their source has no annotation, and further plans
        # cannot remove the collective.
        more_changes = _dropped(trials, stages, moved, dropped_changes)
        if more_changes == dropped_changes:
            break
        dropped_changes, trial = more_changes, _tried(trials, moved, Changes(more_changes))
        if trial.removes:
            # Undoing one drop can make another one necessary. The order therefore decides how many
            # changes remain, and both directions are tried.
            ways = (
                (dropped_changes, dropped_changes[::-1]) if len(dropped_changes) < num_plans else ()
            )
            return ranked(_fewest(trials, moved, trial, order) for order in ways)[:1]
    return ()


def _dropped(
    trials: Trials, stages: Stages, moved: MovedValue, found: tuple[AnnotationChange, ...]
) -> tuple[AnnotationChange, ...]:
    """Return `found` with more changes, which remove axes of the collectives that remain.

    Each added change drops, from an annotation, axes that cause a remaining collective. Changes of
    one annotation become a single change.

    Args:
      stages: the plan under the changes `found`.
      moved: the collective that should be removed.
    """
    known = {change.slots: change for change in found}
    for left in _left(trials.stages, stages, moved, len(stages.traffic.collectives)):
        sides = disagreement(stages.sharded, stages.traffic, left)
        for change in drops(stages, sides, left.digits):
            # A second change of an annotation starts from the first one. Together they are one
            # change from the user's annotation.
            if (old := known.get(change.slots)) is not None:
                change = replace(old, after=change.after)
            known[change.slots] = change
    return tuple(known.values())


def _fewest(
    trials: Trials, moved: MovedValue, trial: Trial, order: tuple[AnnotationChange, ...]
) -> Trial:
    """Return a trial with only the necessary changes of `trial`.

    Args:
      order: the order in which changes are undone, to see if the collective stays away.
    """
    kept = None
    # Undoing one drop can make another one unnecessary, so this iterates to a fixed point.
    while kept != trial:
        kept = trial
        for change in order:
            rest = tuple(step for step in trial.change.steps if step != change)
            fewer = _tried(trials, moved, Changes(rest)) if rest else trial
            trial = fewer if fewer.removes else trial
    return trial


def _left(before: Stages, after: Stages, moved: MovedValue, most: int) -> list[MovedValue]:
    """Return the collectives which show that a change of annotations does not remove a collective.

    A collective is like `moved` if both have the same kind and mesh axes. The result has, at most
    `most` of each: collectives like `moved` at a place where the first plan has no collective, and
    collectives that move the same value at the same operator. Without any of these, it has up to
    `most` collectives like `moved` at any place.

    Args:
      before, after: the plans without and with the change.
      moved: the collective that should be removed.
    """
    # A collective of the same kind at a new place is the old one, moved by the change.
    old_places = {other.place for other in before.traffic.collectives}
    remaining = after.traffic.collectives
    alike = [other for other in remaining if other.alike == moved.alike]
    at_new_places = [other for other in alike if other.place not in old_places]
    of_same_value = [other for other in remaining if other.place == moved.place]
    return [*at_new_places[:most], *of_same_value[:most]] or alike[:most]


def _tried(trials: Trials, moved: MovedValue, change: AnnotationChange | Changes) -> Trial:
    """Plan the function with a change of annotations, and compare the plan with the present one.

    The plan is priced now if the change removes the collective; otherwise when its price is asked
    for.
    """
    annotations, now = change.applied(trials.stages.annotations), trials.now
    # Pricing is slow, so the traffic alone is found first; the function tells whether to price.
    changed_traffic = trials.traffic(annotations, partial(_removes, moved, now))
    removes = _removes(moved, now, changed_traffic)
    more = changed_traffic.wire_bytes > now.wire_bytes
    helps = removes and changed_traffic.price < now.price
    left_bytes = changed_traffic.sent.get(moved.place, 0)
    outcome = partial(trials.outcome, annotations)
    return Trial(change, removes, left_bytes, changed_traffic.wire_bytes, more, helps, outcome)


def _removes(moved: MovedValue, now: TrialOutcome, then: TrialOutcome) -> bool:
    """Return whether a change of annotations removes a collective, rather than moves it elsewhere.

    Two conditions must hold in the new plan: no collective moves this value for the same operator,
    and fewer collectives of the same kind and axes run per step. The second one excludes, for
    example, a sum that is merely reduced one operator later.

    Args:
      moved: the collective.
      now, then: the plan before and after the change.
    """
    fewer = then.runs.get(moved.alike, 0) < now.runs[moved.alike]
    return moved.place not in then.sent and fewer
