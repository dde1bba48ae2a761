"""Inequalities that are equivalent to a statement about a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.algebra.digits import overlap
from shardalg.costs.analyses.mesh_axes import idle
from shardalg.costs.walk import local_bytes
from shardalg.errors import ContractError
from shardalg.graph.ops.roles import ARGUMENT_ROLES
from shardalg.plan.contracts.bound_formulas import formula_of
from shardalg.plan.contracts.sent_rows import (
    SentRow,
    check_subject,
    check_word,
    rows_of,
)
from shardalg.plan.contracts.statements import (
    OF_COLLECTIVES,
    AtMost,
    NoCollective,
    NoIdleDevices,
    ShardedAlong,
    SomeCollective,
    Statement,
    Subject,
    Unchanged,
)
from shardalg.sizes.facts import NONNEGATIVE, Fact
from shardalg.sizes.formula import Formula

if TYPE_CHECKING:
    from shardalg.costs.cost import Cost
    from shardalg.plan.plan import Plan

MEMORY_CLASSES = (
    "parameters", "optimizer_state", "data", "activations", "gradients", "constants", "results",
    "transients", "unknown",
)  # fmt: skip


ZERO, ONE = Formula.of(0), Formula.of(1)


@dataclass(frozen=True)
class Inequality:
    """The inequality `amount <= bound` about a plan, with the place that it is about.

    Attributes:
      amount, bound: formulas of the named sizes; numbers in a plan in numbers.
      at: text that names the place: an operator with its line, an argument, or "".
      row: the row of `plan.collectives()` that the claim is about; None: none.
    """

    amount: Formula
    bound: Formula
    at: str = ""
    row: int | None = None

    @property
    def fact(self) -> Fact:
        """The inequality as a fact about sizes."""
        return Fact(self.bound - self.amount, NONNEGATIVE)


@dataclass(frozen=True)
class Place:
    """What the names and the files in a statement mean.

    Attributes:
      folder: the folder of files that statements name.
      point: the number of each named size, for a plan in numbers that was made there; {} for a
        plan whose names are its own.
    """

    folder: Path = Path()
    point: Mapping[str, int] = field(default_factory=dict)

    def formula(self, bound: object, plan: Plan) -> Formula:
        """Return a bound of a statement: a number at a point, else a formula of the plan's names.

        Raises:
          ContractError: it cannot be read, or has unknown names.
        """
        return formula_of(bound, self.point or plan.sizes).subs(self.point)


@dataclass(frozen=True)
class Claims:
    """The inequalities that a statement is: it is true if all of them hold.

    Attributes:
      claims: the inequalities.
      unknown: the reason why they do not decide the statement, or "".
      about_memory: whether they depend on the order in which memory is used, which planning
        compares apart from its other decisions.
      here_only: whether they are about these sizes alone, although sizes have names.
    """

    claims: tuple[Inequality, ...]
    unknown: str = ""
    about_memory: bool = False
    here_only: bool = False


def _none(statement: NoCollective, plan: Plan, place: Place) -> Claims:
    """Return the claims that a plan has none of some collectives."""
    check_subject(statement.subject, plan)
    return none_of(statement.subject, rows_of(plan))


def _some(statement: SomeCollective, plan: Plan, place: Place) -> Claims:
    """Return the claim that a plan has some collective."""
    check_subject(statement.subject, plan)
    return some_of(statement.subject, rows_of(plan))


def _at_most(statement: AtMost, plan: Plan, place: Place) -> Claims:
    """Return the claims that an amount of a plan is at most a bound.

    The amount is one of collectives (bytes, executions), the seconds of a step, or bytes of memory.
    """
    bound = place.formula(statement.bound, plan)
    if statement.measure in OF_COLLECTIVES:
        check_subject(statement.subject, plan)
        return amounts_of(statement, rows_of(plan), bound)
    if statement.measure == "step_time_s":
        cost = plan.cost(
            statement.hardware or plan.options.hardware, overlap="none", software=statement.software
        )
        seconds = cost._time(cost.totals)
        # An exact fraction: a float such as 0.1 would give a formula with a long denominator.
        largest = bound * (1 + Fraction(statement.tolerance).limit_denominator(10**6))
        return Claims((Inequality(_exact(seconds), largest, "the step"),))
    memory = plan._stages.cost if plan._symbolised is None else plan.cost(plan.options.hardware)
    if statement.measure == "peak_bytes":
        totals = memory.totals
        peaks = totals.peaks() if totals.peaks else (totals.peak_bytes,)
        # The peak is the largest of these, so each of them is at most the bound.
        claims = tuple(Inequality(_exact(peak), bound, "bytes at the peak") for peak in peaks)
        return Claims(claims, about_memory=True)
    check_word("memory_class", statement.memory_class, MEMORY_CLASSES)
    return _held(str(statement.memory_class), plan, memory, bound)


def _held(memory_class: str, plan: Plan, memory: Cost, bound: Formula) -> Claims:
    """Return the claim that the values of a memory class have at most `bound` bytes at the peak.

    Args:
      memory_class: an entry of `MEMORY_CLASSES`, such as "activations".
      memory: the cost of the plan, with the bytes of each memory class at the hints.
      bound: the largest number of bytes that the statement allows.
    """
    named, place_text = plan._symbolised, f"{memory_class} at the peak"
    if named is not None and memory_class in ARGUMENT_ROLES:
        # At other sizes another instruction may be the peak. But at every instruction, at most the
        # arguments of this role are alive in their class.
        block, roles = named.program.block, plan._traced.argument_roles
        role_arguments = [
            v for v, r in zip(block.arguments, roles, strict=True) if r == memory_class
        ]
        whole = Formula.of(local_bytes(named.program, role_arguments))
        return Claims((Inequality(whole, bound, place_text),), about_memory=True)
    class_bytes = memory.totals.memory.by_class.get(memory_class, 0)
    why = ""
    if named is not None:
        why = f"the formula of {memory_class} is for the instruction that is the peak at the hints"
    return Claims((Inequality(_exact(class_bytes), bound, place_text),), why, about_memory=True)


def _sharded(statement: ShardedAlong, plan: Plan, place: Place) -> Claims:
    """Return the claims that all large arguments of a role are sharded along an axis.

    There is a claim per argument of the role that is replicated along the axis: its bytes are at
    most the statement's `above_bytes`.

    Raises:
      ContractError: the plan has no roles, or no argument has this one.
    """
    check_word("axis", statement.axis, plan.mesh.axis_names)
    check_word("role", statement.role, ARGUMENT_ROLES)
    roles, graph = plan._traced.argument_roles, plan.graph
    if not any(roles):
        raise ContractError(
            f"the statement is about the role {statement.role!r}, but the plan has no roles. Plan "
            "with roles=, such as ('parameters', 'data')."
        )
    if statement.role not in roles and None not in roles:
        known = ", ".join(dict.fromkeys(filter(None, roles)))
        raise ContractError(
            f"the statement is about the role {statement.role!r}, which no argument has: the "
            f"arguments have {known}."
        )
    bound = place.formula(statement.above_bytes, plan)
    named, digit, claims = plan._symbolised, plan.mesh.digit(statement.axis), []
    unknown = []
    for value, role in zip(graph.arguments, roles, strict=True):
        layout, kind = plan._sharded.shardings[value], graph.values[value].type
        # A dimension may be sharded along a sub-axis of the axis only.
        is_sharded = any(overlap(digit, used) for digits in layout.dims for used in digits)
        if role not in (statement.role, None) or is_sharded or plan.mesh.shape[statement.axis] == 1:
            continue
        # The bytes of the whole argument, as a formula of the named sizes if there are any.
        num_bytes = Formula.of(kind.itemsize)
        for size in kind.shape if named is None else named.sizes.dims[value]:
            num_bytes = num_bytes * Formula.of(size)
        name = graph.values[value].name
        # An argument without a role may have the statement's role, so the answer is unknown.
        if role is None:
            unknown.append(name)
        else:
            claims.append(Inequality(num_bytes, bound, f"argument {name}: {layout.text()}"))
    why = f"arguments without a role are replicated: {', '.join(unknown[:3])}" if unknown else ""
    return Claims(tuple(claims), why)


def _idle(statement: NoIdleDevices, plan: Plan, place: Place) -> Claims:
    """Return a claim, which fails, per product that leaves a mesh axis unused.

    The claim is 1 <= 0, because the statement is true only without such a product.
    """
    nodes = plan.graph.nodes
    return Claims(tuple(
        Inequality(
            ONE,
            ZERO,
            f"{nodes[one.node].primitive} at {nodes[one.node].source}: the devices along "
            f"{', '.join(one.axes)} repeat the same work",
        )
        for one in idle(plan.program, plan.graph)
    ))  # fmt: skip


def _unchanged(statement: Unchanged, plan: Plan, place: Place) -> Claims:
    """Return a claim, which fails, per difference from the plan in a file.

    The claim is 1 <= 0, because the statement is true only without a difference.

    Raises:
      ContractError: the file does not exist.
    """
    from shardalg.plan import plan_file
    from shardalg.plan.explain.decisions import difference
    from shardalg.plan.explain.plan_summary import planned_file

    path = place.folder / statement.path
    if not path.exists():
        raise ContractError(
            f"{path} does not exist: write it with plan.save, or run shardalg check with --update."
        )
    saved, _, _ = planned_file(plan_file.read(path), path)
    # Plans on other meshes differ in almost every row, so the meshes are the only claim.
    if saved.mesh.shape != plan.mesh.shape:
        here, there = plan.mesh, saved.mesh
        return Claims((Inequality(ONE, ZERO, f"{here!r}, {there!r} in {path.name}"),))
    rows = [row for row in difference(saved, plan._stages).table if row["this"] != row["other"]]
    claims = [
        Inequality(
            ONE,
            ZERO,
            f"{row['what']} {row['place']}: {row['this'] or 'absent'} in {path.name}, "
            f"{row['other'] or 'absent'} here",
        )
        for row in rows
    ]
    return Claims(tuple(claims), here_only=plan.is_symbolic)


_CLAIMS: dict[type, Callable[..., Claims]] = {
    NoCollective: _none,
    SomeCollective: _some,
    AtMost: _at_most,
    ShardedAlong: _sharded,
    NoIdleDevices: _idle,
    Unchanged: _unchanged,
}


def claims_of(statement: Statement, plan: Plan, place: Place) -> Claims:
    """Return the inequalities that are equivalent to a statement about a plan.

    Args:
      place: what names and files in the statement mean.

    Raises:
      ContractError: the statement names something that the plan does not have.
      FormulaError: a size or price of the plan has no formula.
    """
    return _CLAIMS[type(statement)](statement, plan, place)


def none_of(subject: Subject, rows: Iterable[SentRow]) -> Claims:
    """Return the claims that no collective of a subject is in a program."""
    rows_of_subject, unknown = _chosen(subject, rows)
    inequalities = tuple(
        Inequality(row.executions, Formula.of(0), _named(row), row.number)
        for row in rows_of_subject
    )
    return Claims(inequalities, unknown)


def some_of(subject: Subject, rows: Iterable[SentRow]) -> Claims:
    """Return the claim that at least one collective of a subject is in a program."""
    rows_of_subject, unknown = _chosen(subject, rows)
    # Rows that may belong to the subject matter only if none certainly does.
    number = _total(row.executions for row in rows_of_subject)
    claim = Inequality(
        Formula.of(1) - number, Formula.of(0), "" if rows_of_subject else f"there is no {subject}"
    )
    return Claims((claim,), "" if rows_of_subject else unknown)


def amounts_of(statement: AtMost, rows: Iterable[SentRow], bound: Formula) -> Claims:
    """Return the claims that the collectives of a statement have at most its bound.

    "largest_bytes" has a claim per collective. "executions" and bytes are sums over all of them,
    with one claim.
    """
    found, unknown = _chosen(statement.subject, rows)
    if statement.measure == "largest_bytes":
        return Claims(
            tuple(Inequality(o.bytes, bound, _named(o), o.number) for o in found), unknown
        )
    if statement.measure == "executions":
        amount = _total(one.executions for one in found)
    else:
        amount = _total(one.executions * one.bytes for one in found)
    # The sum has no one place, so a failure names the collective that contributes most.
    # Formulas are compared where every size is large.
    amounts = [one.executions * one.bytes for one in found]
    amounts_at_64 = [float(size.at(dict.fromkeys(size.names, 64))) for size in amounts]
    largest = found[amounts_at_64.index(max(amounts_at_64))] if found else None
    place = ""
    if largest is not None:
        place = f"the most of {len(found)} is {_named(largest)}" if found[1:] else _named(largest)
    return Claims(
        (Inequality(amount, bound, place, None if largest is None else largest.number),), unknown
    )


def _chosen(subject: Subject, rows: Iterable[SentRow]) -> tuple[list[SentRow], str]:
    """Return the collectives of a subject, and why others may belong to it too, or "".

    A collective whose role, phase, module, region or axes are not known may belong to it.
    """
    found, doubtful = [], []
    for row in rows:
        # True, False, or None if it is not known.
        answer = row.is_of(subject)
        if answer:
            found.append(row)
        elif answer is None:
            doubtful.append(row)
    if not doubtful:
        return found, ""
    # The reason names the properties that the subject asks for and the first of them lacks.
    first = doubtful[0]
    unknown = [
        name
        for name in ("role", "phase", "module", "region", "axis")
        if getattr(subject, name) is not None
        and getattr(first, "axes" if name == "axis" else name) in (None, "unknown")
    ]
    return found, (
        f"{' and '.join(unknown)} not known of {len(doubtful)} collectives, such as {_named(first)}"
    )


def _named(row: SentRow) -> str:
    """Return the text of a collective: kind, axes, and its operator and line."""
    axes = ",".join(sorted(row.axes)) if row.axes else "groups that are no mesh axes"
    return f"{row.kind} along {axes} for {row.at}"


def _total(amounts: Iterable[Formula]) -> Formula:
    """Return the sum of formulas."""
    found = ZERO
    for amount in amounts:
        found = found + amount
    return found


def _exact(number: Any) -> Formula:
    """Return an amount as a formula, without rounding a float."""
    return Formula.of(Fraction(number) if isinstance(number, float) else number)
