"""`LogicalRules.lint`: the faults of rules on arrays, and on the values of a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardalg.errors import StrategyError
from shardalg.plan.rules.checks import AppliedRules, check_arrays, check_rules
from shardalg.plan.rules.dataflow import check_flow
from shardalg.plan.rules.findings import Finding, Findings
from shardalg.plan.rules.named_arrays import named_arrays
from shardalg.plan.rules.repairs import PlannedFunction

if TYPE_CHECKING:
    from shardalg.plan.rules.logical_rules import LogicalRules


def lint(rules: LogicalRules, arrays: Any, fn: Any, names: Any) -> Findings:
    """Check logical-axis rules on arrays, and return the findings in the order of the rules.

    With a function, its values are checked too, and a repair of each finding is tried. Args as of
    `LogicalRules.lint`.

    Raises:
      StrategyError: arrays or names that do not fit, or a parameter of the function that is no key.
    """
    tree = named_arrays(arrays, names)
    laid = AppliedRules.of(rules, tree.arrays)
    found = [*check_rules(laid), *check_arrays(laid)]
    # A function shows which values of the arrays meet, and what a repair costs.
    if fn is not None:
        if not callable(fn):
            raise StrategyError(f"fn is {fn!r:.60}: give a function of the arrays.")
        planned = PlannedFunction.of(rules, arrays, tree, fn)
        found += check_flow(laid, planned.plan.graph, planned.named)
        found = [planned.repaired(one) for one in found]
    return Findings(rules, tuple(sorted(found, key=_order)), len(tree.arrays))


def _order(finding: Finding) -> tuple[bool, int]:
    """Return the key by which findings are sorted: by rule, those without a rule last."""
    return finding.rule is None, finding.rule or 0
