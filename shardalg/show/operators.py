"""The page of operators, printed from the table of rows by `python -m shardalg.show.operators`."""

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

`python -m shardalg.show.operators` prints this page from the table of rows. A test compares both.

A row names the element of each operand that an iteration reads (`[d0, 2*d1+1]`: an index per
dimension), the element that it writes (`->`), and how iterations that write the same element are
combined. An iteration that reads outside of a tensor does not count. `|` separates alternatives, of
which exactly one exists. `init` is the value of an element that no iteration writes. `where` is
a choice at run time.

Columns:

- **local**: loops that can be partitioned without communication.
- **moves**: loops that can be partitioned, with the communication that they need.
- **whole**: loops that stay whole on every device, because the operator needs all iterations.
- **not yet**: loops that are not partitioned yet, with the communication that they would need.

A sharding moves to another free loop, and back afterwards, if its dimension has to be whole. The
dimension is gathered if no loop is free. That costs bytes, never correctness.
`plan.warnings()` shows how many bytes.
"""
# The first class that occurs decides, because loops of several classes can be in one index.
NEEDS = {
    COMPOUND: "exchange",
    WINDOW: "halo",
    SHIFTED: "exchange",
    SELECTED: "window across blocks",
}
# No collective combines these partial results, so every block would send its own.
SENT = {
    **dict.fromkeys((ARGMAX, ARGMIN), "a value and an index per block"),
    TOP: "values and indices per block",
    USER: "partial results per block",
}
COLUMNS = ("row", "local", "moves", "whole", "not yet")


def operators_page() -> str:
    """Return the page: a section per family, then the calls, then operators without a row.

    >>> print(operators_page().splitlines()[0])
    # Operators
    """
    parts = [HEAD, *(_family(module) for module in FAMILIES), _calls(), _left_out()]
    return "\n".join(parts)


def _family(module: ModuleType) -> str:
    """Return the section of one family of operators: a table of rules per builder.

    A builder is the function that makes the rows of some operators. The rows are those of example
    calls (`CASES`).

    Args:
      module: the module of the family; the first line of its docstring is the title.
    """
    title = (module.__doc__ or "").splitlines()[0].rstrip(".")
    lines = [f"## {title}", ""]
    # Operators with the same builder have the same rows, so they share one table.
    for builder in dict.fromkeys(module.ROWS.values()):
        names = [name for name, own in module.ROWS.items() if own is builder]
        lines += [f"`{'` `'.join(names)}`", "", _line(COLUMNS), _line(["---"] * len(COLUMNS))]
        found = [case for case in CASES if BUILDERS[case[0]] is builder]
        rows = [rule for case in found for rule in rules(signature(case)) or ()]
        shown = dict.fromkeys(_line(_cells(rule)) for rule in rows)
        lines += [*shown, ""]
    return "\n".join(lines)


def _cells(rule: Rule) -> Iterator[str]:
    """Yield the cells of a rule's row in the table of the page, in the order of `COLUMNS`.

    For example, `[m, k], [k, n] -> [m, n] sum [k]`, a matrix product, has "m, n" in the column
    "local" and "k: all_reduce sum" in the column "moves". The columns "whole" and "not yet" are
    empty.
    """
    # A loop cannot be partitioned if the operator has no local form for it. Nor can a reduced loop
    # if no collective combines the partial results. A row with `pick` and guards, such as a gather,
    # takes one element. Devices without this element mask their result, and an all-reduce combines
    # the results.
    is_combined = rule.combine in COMBINABLE or (rule.combine == PICK and rule.guards)
    impossible = unsupported_loops(rule)
    if not is_combined:
        impossible |= frozenset(rule.reduced)
    # A loop of one iteration cannot be partitioned, so it would be noise in the table.
    possible = [name for name, extent in rule.loops if name not in impossible and extent > 1]
    # Devices must combine their results along a reduced loop. They must do so along the loop of a
    # prefix sum, too, because a block needs the total of all blocks before it.
    communicating = set(rule.reduced)
    if rule.prefix is not None:
        prefix_loop, _is_reverse = rule.prefix
        communicating.add(prefix_loop)
    moves = [name for name in possible if name in communicating]
    local = [name for name in possible if name not in communicating]
    # The operator itself needs these loops whole. All other impossible loops are not done yet.
    whole = rule.whole | rule.local
    not_yet = [name for name in rule.extents if name in impossible - whole]
    # A bar would end the cell of the Markdown table.
    yield f"`{rule}`".replace("|", "\\|")
    yield ", ".join(local)
    yield ", ".join(f"{name}: {_movement(rule)}" for name in moves)
    yield ", ".join(sorted(whole))
    yield ", ".join(f"{name}: {_need(rule, name)}" for name in not_yet)


def _movement(rule: Rule) -> str:
    """Return the communication that combines the partial results of all blocks, as text."""
    if rule.prefix:
        return "carry of block totals"
    if rule.combine in SENT:
        return SENT[rule.combine]
    return "mask, all_reduce" if rule.combine == PICK else f"all_reduce {rule.combine}"


def _need(rule: Rule, loop: str) -> str:
    """Return the communication that a loop needs which is not partitioned yet, as text."""
    if loop in rule.guarded:
        return NEEDS[SELECTED]
    # The class of a window or of a compound index can belong to another loop in the same index, as
    # in `stride*o + r`. So all loops that share an index with `loop` are looked at.
    maps = [index for tensor in rule.tensors for index in rule.indices(tensor)]
    others = {v for index in maps if loop in index.variables for v in index.variables}
    classes = {loop_class(rule, v) for v in others if v in rule.extents}
    return next(need for name, need in NEEDS.items() if name in classes)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _calls() -> str:
    """Return the section about calls: primitives, such as `jit`, that contain a program.

    It lists them by how tracing treats them, and all operators by whether the body of a
    `shard_map` may contain them.
    """
    sites = sorted(set(HANDLERS) - INLINED - set(CALLS))
    return f"""\
## Calls and annotations

Calls that are inlined: `{"` `".join(sorted(INLINED))}`.
Calls that become a region of the graph (`tracing/control_flow.py`): `{"` `".join(sorted(CALLS))}`.
Calls that become regions, constraints or other code (`tracing/jaxpr.py`): `{"` `".join(sites)}`.

Supported in the body of a `shard_map` (`spmd/manual.py`): `{"` `".join(sorted(PLANNED))}`.
Refused in the body of a `shard_map`: `{"` `".join(sorted(UNPLANNED))}`.
"""


def _left_out() -> str:
    """Return the section that lists the operators without a row, by reason."""
    lines = [
        "## Without a row",
        "",
        "These operators run on whole operands on every device, or are refused.",
    ]
    for reason, names in REASONS.items():
        lines += ["", f"- {reason}: `{'` `'.join(sorted(names.split()))}`"]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(operators_page(), end="")
