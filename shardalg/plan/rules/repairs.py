"""Changes of one rule that mend a finding, kept if they help in our plan and in XLA's program.

A step of XLA's program is priced from XLA's own figures: the seconds of its collectives, and the
compute seconds of our plan, times the flops that XLA counts over ours. A change helps if a step is
faster and needs no more memory, or needs less memory and is no slower, and if XLA's program is
faster, or no slower where only memory is gained. Mending one rule alone may gain nothing in XLA,
which then reshards elsewhere.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from shardalg.costs.topology import arranged
from shardalg.errors import LoweringError, ShardingError, StrategyError
from shardalg.plan.own_jit import xla_prices
from shardalg.plan.plan import Plan, plan
from shardalg.plan.rules.dataflow import NamedValues
from shardalg.plan.rules.findings import Finding, Repair
from shardalg.plan.rules.named_arrays import NamedArray, NamedTree, argument_trees, structs
from shardalg.planner.propagate.strategy import Strategy

if TYPE_CHECKING:
    from shardalg.plan.rules.logical_rules import LogicalRule, LogicalRules

_NOISE = 0.001
"""A difference below this share of a step, or of the peak, counts as none."""


class Figures(NamedTuple):
    """Seconds, peak memory and bytes sent of a step; the last two are of XLA's program."""

    step_s: float
    peak_bytes: float
    sent_bytes: float
    xla_step_s: float
    xla_sent_bytes: float


@dataclass(frozen=True, eq=False)
class PlannedFunction:
    """A function whose arguments and sites are sharded by rules."""

    rules: LogicalRules
    arrays: dict[str, NamedArray]
    arguments: tuple[NamedTree, ...]
    plan: Plan

    @staticmethod
    def of(
        rules: LogicalRules, arrays: Any, tree: NamedTree, fn: Callable[..., Any]
    ) -> PlannedFunction:
        """Plan a function under rules.

        Args:
          arrays: the user's mapping from keys to arrays; a parameter of the function is a key.
          tree: these arrays with their names and paths. Those that are no arguments name sites.

        Raises:
          StrategyError: a parameter is no key of the arrays. Errors of the function itself are
            raised unchanged.
        """
        parameters = inspect.signature(fn).parameters
        gathers = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        # Only parameters without a default need an array.
        required = [
            n for n, p in parameters.items() if p.default is p.empty and p.kind not in gathers
        ]
        arguments = argument_trees(fn, tree, arrays, required)
        by_key = {one.key: one for one in tree.arrays}

        # The specs are a tuple over positional arguments, so keyword-only parameters become
        # positional here.
        def call(*given: Any) -> Any:
            """Call the function with arrays in the order of `required`."""
            pairs = list(zip(required, given, strict=True))
            named = {n: x for n, x in pairs if parameters[n].kind is inspect.Parameter.KEYWORD_ONLY}
            return fn(*(x for n, x in pairs if n not in named), **named)

        first = plan(
            call,
            *(one.filled(structs(one.arrays)) for one in arguments),
            strategy=_strategy(rules, by_key, arguments),
        )
        return PlannedFunction(rules, by_key, arguments, first)

    @property
    def named(self) -> NamedValues:
        """The arrays of the graph's arguments and sites."""
        graph = self.plan.graph
        arguments = tuple(one.key for tree in self.arguments for one in tree.arrays)
        sites = tuple(site.name if site.name in self.arrays else None for site in graph.sites)
        return NamedValues(arguments, sites)

    @cached_property
    def figures(self) -> Figures:
        """The costs of the function under the rules without any repair."""
        return _figures(self.plan)

    def repaired(self, finding: Finding) -> Finding:
        """Return a finding with the first change of the rules that helps, if there is one.

        Each change is planned, and compiled by XLA. Without one that helps, the finding is returned
        unchanged.
        """
        for rules, text in candidates(self.rules, finding):
            try:
                changed_plan = self.plan.replan(_strategy(rules, self.arrays, self.arguments))
                before, after = self.figures, _figures(changed_plan)
            except (StrategyError, ShardingError, LoweringError):
                continue  # the change has no plan, or XLA has no answer
            # The candidates are in order of preference, so the first one that helps is taken.
            if helps(before, after):
                pairs = zip(before, after, strict=True)
                return replace(finding, repair=Repair(text, rules, *pairs))
        return finding


def helps(before: Figures, after: Figures) -> bool:
    """Return whether a change saves time in our plan and in XLA's, or memory at equal times.

    >>> helps(Figures(2.0, 10, 5, 7.0, 9), Figures(1.0, 10, 5, 6.0, 8))
    True
    >>> helps(Figures(2.0, 10, 5, 7.0, 9), Figures(1.0, 10, 5, 7.0, 9))  # XLA gains nothing
    False
    """
    # Differences within the noise count as none.
    is_faster = after.step_s < before.step_s * (1 - _NOISE)
    is_slower = after.step_s > before.step_s * (1 + _NOISE)
    is_smaller = after.peak_bytes < before.peak_bytes * (1 - _NOISE)
    is_larger = after.peak_bytes > before.peak_bytes * (1 + 10 * _NOISE)
    # Our plan alone is no evidence: XLA's program must gain time as well.
    if is_faster and not is_larger:
        return after.xla_step_s < before.xla_step_s * (1 - _NOISE)
    # Memory is saved in our plan, and neither program becomes slower.
    is_xla_slower = after.xla_step_s > before.xla_step_s * (1 + _NOISE)
    return is_smaller and not is_slower and not is_xla_slower


def candidates(rules: LogicalRules, finding: Finding) -> Iterator[tuple[LogicalRules, str]]:
    """Yield changes of one rule that may mend a finding, each with its text.

    The change depends on the kind of the finding (`findings.py` lists the kinds). A rule for the
    name is added; the missing axes are added; the rule gets the axes of the rule that it meets, or
    no axes; axes that another rule takes are removed; or a misspelt name is replaced.

    Yields:
      The changed rules, and the change as text.
    """
    live = [axis for axis in finding.axis.split(", ") if axis]
    # Without a rule, the only change is a new one, for the name that has none.
    if finding.rule is None:
        if finding.kind == "replicated" and finding.name:
            rule = type(rules.rules[0])(finding.name, tuple(live))
            yield replace(rules, rules=(*rules.rules, rule)), f"add {rule}"
        return
    mine = rules.rules[finding.rule]
    others = [rules.rules[i] for i in finding.by]
    if finding.kind == "replicated_by_omission":
        # Both arrays must number their blocks alike, or a permute is needed between them. So the
        # axes are in the order of the other rule.
        all_axes = {*mine.axes, *live}
        ordered = [axis for axis in others[0].axes if axis in all_axes]
        rest = [axis for axis in mine.axes if axis not in ordered]
        yield _changed(rules, finding.rule, replace(mine, axes=(*rest, *ordered)))
    elif finding.kind == "axes_differ_from_what_it_meets":
        yield _changed(rules, finding.rule, replace(mine, axes=others[0].axes))
        yield _changed(rules, finding.rule, replace(mine, axes=()))
    elif finding.kind in ("collision", "never_applies"):
        # The rule keeps the axes that no other rule takes; without any, it would do nothing.
        remaining_axes = tuple(axis for axis in mine.axes if axis not in live)
        if remaining_axes:
            yield _changed(rules, finding.rule, replace(mine, axes=remaining_axes))
    elif finding.kind == "no_array" and (meant := finding.meant):
        yield _changed(rules, finding.rule, replace(mine, name=meant))


def _changed(rules: LogicalRules, at: int, rule: LogicalRule) -> tuple[LogicalRules, str]:
    """Return rules with one of them replaced, and the change as text."""
    made = (*rules.rules[:at], rule, *rules.rules[at + 1 :])
    return replace(rules, rules=made), f"{rule} instead of {rules.rules[at]}"


def _strategy(
    rules: LogicalRules, arrays: dict[str, NamedArray], arguments: tuple[NamedTree, ...]
) -> Strategy:
    """Return the strategy that shards arguments and sites by rules.

    Args:
      arrays: all named arrays by key. Those that are in no argument are sites of the function.
    """
    inside = {one.key for tree in arguments for one in tree.arrays}
    sites = {
        key: rules.spec(one.names)
        for key, one in arrays.items()
        if key not in inside and one.names is not None
    }
    return Strategy(rules.mesh, tuple(tree.specs(rules) for tree in arguments), None, sites)


def _figures(made: Plan) -> Figures:
    """Return the costs of a plan, and those of XLA's program for the same annotations.

    Raises:
      LoweringError: XLA ends without an answer.
    """
    chip = made.options.hardware
    cost, xla = made.cost(chip), made.compare_xla().told
    # XLA's program computes in proportion to its flops. Without a count, it computes as ours does.
    share = xla.flops / float(cost.flops) if xla.flops and cost.flops else 1.0
    sums = xla_prices(xla.collectives, xla.mesh, arranged(chip, made.mesh)).where(kind="all")
    return Figures(
        float(cost.step_time_s), float(cost.peak_memory_bytes), float(cost.wire_bytes),
        float(cost.compute_s) * share + float(sums["time_s"][0]),
        float(sums["wire_bytes_per_step"][0]),
    )  # fmt: skip
