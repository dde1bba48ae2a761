"""The constraints that a search tries: forms of the plan, and neighbours of them.

Only expressions on lines where XLA differs from the plan have constraints.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from shardalg.graph.source import Sources
from shardalg.plan.patching.probes import Axes, Constraint, MarkedPlan

if TYPE_CHECKING:
    from shardalg.algebra.mesh import Mesh
    from shardalg.plan.plan import Plan

MOST_OTHERS = 8
"""Shardings of an expression that are tried although the plan has none of them."""


def grouped(
    constraints: Iterable[Constraint], numbers: Sequence[int]
) -> dict[int, list[Constraint]]:
    """Return the constraints of each expression with one of these numbers."""
    found: dict[int, list[Constraint]] = {}
    for each in constraints:
        if each.expression in numbers:
            found.setdefault(each.expression, []).append(each)
    return found


def by_difference(plan: Plan, marked: MarkedPlan, partitioner: str) -> list[int]:
    """Return the arrays among the expressions, the largest difference of their line's bytes first.

    Only expressions on lines whose collectives or shardings differ from XLA's are returned. If
    there are none, all arrays are returned.

    Returns:
      Numbers of expressions in `marked`.
    """
    beside = plan.compare_xla(partitioner)
    # The difference of the bytes that both programs send, by source line ("model.py:12").
    differences: dict[str, float] = {}
    for row in beside.lines:
        difference = abs((row["xla_wire_bytes"] or 0) - (row["wire_bytes"] or 0))
        line = row["source"].partition(" (")[0]
        if row["verdict"] != "agree":
            differences[line] = differences.get(line, 0.0) + difference
    # A line whose values have other shardings counts, too. A value's name ends in "@line".
    for value in beside.values:
        if value["verdict"] != "agree" and "@" in value["value"]:
            differences.setdefault(value["value"].rpartition("@")[2], 0.0)
    sources, ranked = Sources(), []
    for number in marked.shapes:
        expression = marked.expressions[number]
        file = sources.file(expression.file.path)
        # An expression can have several lines; the one that differs most decides.
        lines = [f"{file}:{line_number}" for line_number in expression.lines]
        found = [differences[line] for line in lines if line in differences]
        if found:
            ranked.append((-max(found), number))
    # Without a line of the user that differs, every value may be the cause.
    return [number for _, number in sorted(ranked)] or sorted(marked.shapes)


def alternatives(
    number: int, forms: Sequence[Constraint], shape: Sequence[int], mesh: Mesh
) -> list[Constraint]:
    """Return other shardings of an expression: the plan's, with axes on another dimension or none.

    XLA may have no short way to the plan's own forms, and one to a neighbour of them.

    Args:
      number: the number of the expression.
      forms: its constraints that the plan has. Without any, each axis is tried on each dimension.
      shape: the shape of its value.

    E.g. a form (X, ()) of shape (4, 4) -> ((), ()), ((), X). Uneven dimensions are left out.
    """
    whole_spec: tuple[Axes, ...] = ((),) * len(shape)
    # A pair is (sharding, the axes of one of its dimensions), which move or are removed.
    plan_specs = [each.spec for each in forms]
    pairs = [(spec, axes) for spec in plan_specs for axes in spec if axes]
    new_specs: list[tuple[Axes, ...]] = []
    for spec, axes in pairs or [(whole_spec, (name,)) for name, size in mesh.axes if size > 1]:
        without_axes = tuple(() if each == axes else each for each in spec)
        num_devices = math.prod(mesh.shape[name] for name in axes)
        fitting_dims = [
            d for d, size in enumerate(shape) if not without_axes[d] and size % num_devices == 0
        ]
        neighbours = [
            without_axes,
            *((*without_axes[:d], axes, *without_axes[d + 1 :]) for d in fitting_dims),
        ]
        new_specs += [other for other in neighbours if other not in (*plan_specs, *new_specs)]
    return [
        Constraint(number, len(forms) + n, spec) for n, spec in enumerate(new_specs[:MOST_OTHERS])
    ]
