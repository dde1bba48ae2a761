"""The smallest list of logical-axis rules that gives wanted layouts, or the arrays that forbid it.

In flax linen, and in MaxText, rules are tried in order. A rule applies to an array if the array's
dimension of its name has no rule yet, and if no other dimension has one of its axes. Let `A` be the
axes that a dimension with the name `n` is wanted on in some array. Every rule `(n, A)` is needed.
No other rule helps: where it applied, a layout would be wrong. Only the order is to be found:

- An array that wants `n` on `A` needs `(n, A)` before `(n, B)`, or a blocked `(n, B)`: another
  dimension of the array has an axis of `B`, by a rule before `(n, B)`.
- An array that wants `n` whole needs a blocked `(n, B)`.

Each requirement has the form "one of these rules is before that rule". More rules at the start
never break such a requirement. So any rule is taken whose requirements are met by those taken
before. If none is left to take, no order exists (AND-OR precedence: Möhring, Skutella and Stork,
SIAM J. Comput. 33, 2004).

nnx and haliax have one rule per name, without order. nnx takes a name without a rule for a mesh
axis, so every name has a rule there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from shardalg.plan.rules.logical_rules import Axes, LogicalRule
from shardalg.plan.rules.named_arrays import Names


@dataclass(frozen=True)
class Wanted:
    """Arrays with the same names and the same wanted layout.

    Attributes:
      keys: the paths of the arrays.
      names: the name of each dimension, None for a dimension without a name.
      axes: the mesh axes of each dimension, major first.
    """

    keys: tuple[str, ...]
    names: Names
    axes: tuple[Axes, ...]

    def __str__(self) -> str:
        """Return the first array and its layout, as "w (and 3 more): 'mlp' on x, 'out' whole"."""
        placed = ", ".join(
            f"{name!r} on {' and '.join(axes)}" if axes else f"{name!r} whole"
            for name, axes in zip(self.names, self.axes, strict=True)
        )
        more = f" (and {len(self.keys) - 1} more)" if len(self.keys) > 1 else ""
        return f"{self.keys[0]}{more}: {placed}"


@dataclass(frozen=True)
class Conflict:
    """Arrays whose layouts no rules can give together.

    Attributes:
      arrays: the arrays that are left without rules.
      others: the arrays that forbid them; () if they forbid themselves.
      why: the reason.
    """

    arrays: Wanted
    others: tuple[Wanted, ...]
    why: str


Found = tuple[LogicalRule, ...] | None
Style = Callable[[Sequence[Wanted]], Found]


def in_order(arrays: Sequence[Wanted]) -> Found:
    """Return the rules for flax linen or MaxText; None if there are none.

    A rule is needed for each wanted (name, axes). The rules are then ordered: a rule may come next
    if each of its requirements is met, which means that one of certain other rules is before it.
    Without such an order, no rules give the layouts.

    >>> one = Wanted(("up",), ("embed", "mlp"), (("data",), ("model",)))
    >>> other = Wanted(("out",), ("batch", "embed"), (("data",), ("model",)))
    >>> [str(rule) for rule in in_order((one, other))]
    ["('mlp', 'model')", "('batch', 'data')", "('embed', 'data')", "('embed', 'model')"]
    """
    rules = [
        LogicalRule(name, axes)
        for array in arrays
        for name, axes in zip(array.names, array.axes, strict=True)
        if name is not None and axes
    ]
    remaining_rules = list(dict.fromkeys(rules))
    # Per rule, a set of rules for each array in which the rule must not apply: one of the set must
    # be tried before it. A rule that applies in all arrays with its name has no requirement.
    needed = {rule: list(_requirements(rule, arrays)) for rule in remaining_rules}
    # A dict in place of a set keeps the order. Each round adds all rules that may come next.
    ordered: dict[LogicalRule, None] = {}
    while remaining_rules:
        next_rules = [
            rule
            for rule in remaining_rules
            if all(not ordered.keys().isdisjoint(n) for n in needed[rule])
        ]
        # Each of the remaining rules would have to be after another one of them.
        if not next_rules:
            return None
        ordered.update(dict.fromkeys(next_rules))
        remaining_rules = [rule for rule in remaining_rules if rule not in ordered]
    return tuple(ordered)


def _requirements(rule: LogicalRule, arrays: Sequence[Wanted]) -> Iterator[set[LogicalRule]]:
    """Yield, per array in which a rule must not apply, the rules of which one must be before it.

    A rule does not apply if an earlier rule has given the dimension its axes, or has given another
    dimension one of the rule's axes. For an array with the names ("batch", "mlp") on the axes x and
    y, the rule (mlp, x) must not apply: (mlp, y) or (batch, x) must be before it.
    """
    for one in arrays:
        if rule.name not in one.names:
            continue
        dim = one.names.index(rule.name)
        # In this array, the rule must apply.
        if one.axes[dim] == rule.axes:
            continue
        # The rule that gives the dimension its own axes, if it has any; then the rules that give
        # other dimensions one of the rule's axes.
        rule_of_dim = {LogicalRule(rule.name, one.axes[dim])} if one.axes[dim] else set()
        pairs = zip(one.names, one.axes, strict=True)
        yield rule_of_dim | {
            LogicalRule(name, axes) for name, axes in pairs if name and set(axes) & set(rule.axes)
        }


def one_per_name(arrays: Sequence[Wanted]) -> Found:
    """Return the rules for nnx, one for every name; None if a name has several layouts.

    A name whose dimension stays whole has a rule without axes: nnx would take a name without a rule
    for a mesh axis.
    """
    axes_by_name: dict[str, Axes] = {}
    for one in arrays:
        for name, axes in zip(one.names, one.axes, strict=True):
            # The first array with the name decides; another array with other axes contradicts it.
            if name is not None and axes_by_name.setdefault(name, axes) != axes:
                return None
    return tuple(LogicalRule(name, axes) for name, axes in axes_by_name.items())


def split_names(arrays: Sequence[Wanted]) -> Found:
    """Return the rules for haliax: those of `one_per_name` that have axes."""
    found = one_per_name(arrays)
    return None if found is None else tuple(rule for rule in found if rule.axes)


STYLES: dict[str, Style] = {
    "linen": in_order,
    "nnx": one_per_name,
    "haliax": split_names,
    "maxtext": in_order,
}
"""How each library applies rules, by its name."""


def conflicts(arrays: Sequence[Wanted], style: str) -> tuple[Conflict, ...]:
    """Return the arrays that are left out so that rules give all other layouts, with witnesses.

    Each witness is minimal: without any array of it, there are rules for the rest of it. The empty
    tuple means that there are rules for all arrays.

    Args:
      style: the library that applies the rules, a key of `STYLES`.
    """
    # First the arrays that no rules give, not even alone.
    conflicts_found, remaining = [], []
    for one in arrays:
        why = _own_fault(one, style)
        if why:
            conflicts_found.append(Conflict(one, (), why))
        else:
            remaining.append(one)
    # Then one array of each smallest conflict is left out, until rules give all others.
    rules_of = STYLES[style]
    while rules_of(remaining) is None:
        core = _core(remaining, rules_of)

        def exception(one: Wanted) -> tuple[int, int]:
            """Return (number of layouts that exclude this one, negated number of its arrays).

            The largest is left out: it clashes with most others, and has the fewest arrays.
            """
            against = sum(rules_of((one, other)) is None for other in remaining)
            return against, -len(one.keys)

        out = max(reversed(core), key=exception)
        others = tuple(one for one in core if one is not out)
        conflicts_found.append(Conflict(out, others, _reason(out, others, style)))
        remaining.remove(out)
    return tuple(conflicts_found)


def _own_fault(one: Wanted, style: str) -> str:
    """Return why rules cannot give the layout of an array, whatever other arrays want; else ""."""
    for dim, (name, axes) in enumerate(zip(one.names, one.axes, strict=True)):
        # A rule finds a dimension by its name.
        if name is None and axes:
            return f"dimension {dim} has no name, and is wanted on {', '.join(axes)}"
        # A rule would shard both dimensions along one axis. nnx accepts this without any axes.
        if name is not None and name in one.names[:dim] and (style != "nnx" or any(one.axes)):
            return f"{name!r} is the name of two dimensions"
    return ""


def _core(arrays: Sequence[Wanted], rules_of: Style) -> list[Wanted]:
    """Return a smallest conflict: arrays that no rules give, although rules give any fewer of them.

    Args:
      arrays: arrays that no rules give.
      rules_of: returns the rules that give some arrays, or None if there are none.
    """
    # A pair is the easiest conflict to read. Without one, each array is dropped in turn, and stays
    # away if the others still conflict.
    for pair in combinations(arrays, 2):
        if rules_of(pair) is None:
            return list(pair)
    core = list(arrays)
    for one in arrays:
        rest = [other for other in core if other is not one]
        if rules_of(rest) is None:
            core = rest
    return core


def _reason(out: Wanted, others: Sequence[Wanted], style: str) -> str:
    """Return why arrays have no rules together.

    Either two of them give a name different axes. Or no order of the rules is possible, because
    each of several rules would have to be before the next one, and the last before the first.
    """
    for other in others:
        for name, axes in zip(out.names, out.axes, strict=True):
            if name in other.names and other.axes[other.names.index(name)] != axes:
                # `others` is the smallest set of arrays that exclude `out` together. If there are
                # several, no pair excludes each other: each array needs its rule for this name
                # before the rule of the next one, and the last one before the first.
                if len(others) > 1:
                    return f"the rules for {name!r} would have to be before each other in a circle"
                only = "one rule" if style in ("nnx", "haliax") else "the same rule"
                return f"{only} for {name!r} applies to both"
    return "their rules exclude each other"
