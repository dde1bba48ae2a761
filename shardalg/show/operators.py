"""The page of operators, printed from the table: `python -m shardalg.show.operators`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType

from shardalg.graph.ops.examples import CASES, signature
from shardalg.graph.ops.local_parameters import unsupported_loops
from shardalg.graph.ops.loops import COMPOUND, SELECTED, SHIFTED, WINDOW, loop_class
from shardalg.graph.ops.rows import BUILDERS, FAMILIES, REASONS, rules
from shardalg.graph.ops.rule import ARGMAX, ARGMIN, PICK, TOP, USER, Rule
from shardalg.graph.tracing.control_flow import CALLS, INLINED
from shardalg.graph.tracing.jaxpr import HANDLERS
from shardalg.graph.tracing.manual import PLANNED, UNPLANNED
from shardalg.planner.partition.choose.component import COMBINABLE

HEAD = """\
# Operators

Printed from the table by `python -m shardalg.show.operators`; the suite holds this page against \
it.
A row says which element of each operand an iteration reads (`[d0, 2*d1+1]`: an index per \
dimension), where it writes
(`->`), and how iterations that write one place join. A read outside its tensor voids the \
iteration; `|` separates
alternatives, of which one exists; `init` is what a place without iterations holds; `where` is a \
choice at run time.

Columns: loops that are **local** when partitioned; what **moves** where others are; loops that \
stay **whole** on every
device because the operator needs all of them at once, or that no emission splits **yet**, with \
what it takes.
Where a sharded dimension has to be whole, its split moves to another loop that is free, and back \
afterwards; where none
is, the dimension is gathered. That costs bytes, never correctness, and `plan.warnings()` says how \
many.
"""
# By the class of the loop or of one beside it in an index.
NEEDS = {
    COMPOUND: "exchange",
    WINDOW: "halo",
    SHIFTED: "exchange",
    SELECTED: "window across blocks",
}
# What a block sends where its partial results are sent whole.
SENT = {
    **dict.fromkeys((ARGMAX, ARGMIN), "a value and a place per block"),
    TOP: "values and places per block",
    USER: "partial results per block",
}
COLUMNS = ("row", "local", "moves", "whole", "not yet")


def operators_page() -> str:
    """The page: a section per family, then the calls, then what is left out and why.

    >>> print(operators_page().splitlines()[0])
    # Operators
    """
    parts = [HEAD, *(_family(module) for module in FAMILIES), _calls(), _left_out()]
    return "\n".join(parts)


def _family(module: ModuleType) -> str:
    title = (module.__doc__ or "").splitlines()[0].rstrip(".")
    lines = [f"## {title}", ""]
    for builder in dict.fromkeys(module.ROWS.values()):
        names = [name for name, own in module.ROWS.items() if own is builder]
        lines += [f"`{'` `'.join(names)}`", "", _line(COLUMNS), _line(["---"] * len(COLUMNS))]
        found = [case for case in CASES if BUILDERS[case[0]] is builder]
        rows = [rule for case in found for rule in rules(signature(case)) or ()]
        shown = dict.fromkeys(_line(_cells(rule)) for rule in rows)
        lines += [*shown, ""]
    return "\n".join(lines)


def _cells(rule: Rule) -> Iterator[str]:
    barred = unsupported_loops(rule) | _uncombined(rule)
    free = [name for name, extent in rule.loops if name not in barred and extent > 1]
    carried = rule.prefix[:1] if rule.prefix else ()
    joined = [name for name in free if name in (*rule.reduced, *carried)]
    late = [name for name in rule.extents if name in barred - rule.whole - rule.local]
    yield f"`{rule}`".replace("|", "\\|")
    yield ", ".join(name for name in free if name not in joined)
    yield ", ".join(f"{name}: {_movement(rule)}" for name in joined)
    yield ", ".join(sorted(rule.whole | rule.local))
    yield ", ".join(f"{name}: {_need(rule, name)}" for name in late)


def _uncombined(rule: Rule) -> frozenset[str]:
    """Loops whose partial results no collective joins."""
    joins = rule.combine in COMBINABLE or (rule.combine == PICK and rule.guards)
    return frozenset(() if joins else rule.reduced)


def _movement(rule: Rule) -> str:
    if rule.prefix:
        return "carry of block totals"
    if rule.combine in SENT:
        return SENT[rule.combine]
    return "mask, all_reduce" if rule.combine == PICK else f"all_reduce {rule.combine}"


def _need(rule: Rule, loop: str) -> str:
    if loop in rule.guarded:
        return NEEDS[SELECTED]
    maps = [index for tensor in rule.tensors for index in rule.indices(tensor)]
    beside = {v for index in maps if loop in index.variables for v in index.variables}
    classes = {loop_class(rule, v) for v in beside if v in rule.extents}
    return next(need for name, need in NEEDS.items() if name in classes)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _calls() -> str:
    sites = sorted(set(HANDLERS) - INLINED - set(CALLS))
    return f"""\
## Calls and annotations

Their body stands in their place: `{"` `".join(sorted(INLINED))}`.
A region of its own, tied to the outside (`tracing/control_flow.py`): `{"` `".join(sorted(CALLS))}`.
Read by `tracing/jaxpr.py`, as regions, constraints or code in their place: `{"` `".join(sites)}`.

In the body of a `shard_map`, where devices have values of their own (`spmd/manual.py`): \
`{"` `".join(sorted(PLANNED))}`.
Refused there, by name: `{"` `".join(sorted(UNPLANNED))}`.
"""


def _left_out() -> str:
    lines = [
        "## Without a row",
        "",
        "Every device runs them on whole operands, or they are refused.",
    ]
    for reason, names in REASONS.items():
        lines += ["", f"- {reason}: `{'` `'.join(sorted(names.split()))}`"]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(operators_page(), end="")
