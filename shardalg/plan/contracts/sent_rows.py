"""The collectives that a statement is about, in a plan or in XLA's program."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from shardalg.costs.collectives import is_collective, wire_bytes
from shardalg.costs.walk import sent_bytes, walk
from shardalg.errors import ContractError
from shardalg.graph.modules import modules
from shardalg.graph.ops.roles import ARGUMENT_ROLES, UNKNOWN
from shardalg.plan.contracts.statements import Subject
from shardalg.show.tables import collectives
from shardalg.sizes.formula import Formula

if TYPE_CHECKING:
    from shardalg.plan.plan import Plan

KINDS = (
    "all_gather", "all_reduce", "all_to_all", "collective_permute", "ragged_all_to_all",
    "reduce_scatter",
)  # fmt: skip
PHASES = ("forward", "backward", "update")
ROLES = (*ARGUMENT_ROLES, "activation", "gradient", "loss", "weight", "constant")


@dataclass(frozen=True)
class SentRow:
    """A collective of a program, with the properties by which a contract's statements select it.

    For example, the statement `sa.no("all_gather", axis="model")` selects collectives by their kind
    and axis. A property is None if it is not known.

    Attributes:
      kind: the kind of collective, as in `plan.collectives()`, such as "all_gather".
      axes: the mesh axes along which it runs.
      executions: the number of times that it runs in a step.
      bytes: the bytes that a device sends in one execution.
      role: the role of the sent value, such as "weight" or "gradient".
      phase: "forward", "backward" or "update".
      module: the path of the module that it belongs to, such as "net/layers_3/mlp".
      region: the loop or branch in which it runs, such as "scan"; "root" outside of all of them.
      number: the number of its row in `plan.collectives()`; None in XLA's program.
      at: text that names its operator, module and source line.
      is_exact: False if it is in a loop of unknown length, which counts as one execution.
    """

    kind: str
    axes: frozenset[str] | None
    executions: Formula
    bytes: Formula
    role: str | None
    phase: str | None
    module: str | None
    region: str | None
    number: int | None
    at: str
    is_exact: bool = True

    def is_of(self, subject: Subject) -> bool | None:
        """Return whether a statement is about this collective; None if that is not known.

        It is if all properties agree that the subject names. A property that the collective does
        not know (None) leaves the answer open, unless another one differs.

        >>> row = SentRow("all_gather", frozenset({"X"}), Formula.of(1), Formula.of(64), None,
        ...               "forward", "net/layers_3/mlp", "root", 0, "")
        >>> row.is_of(Subject("all_gather", axis="X")), row.is_of(Subject(axis="Y"))
        (True, False)
        >>> row.is_of(Subject(module="layers_*/mlp")), row.is_of(Subject(role="weight"))
        (True, None)
        """
        answers = [
            subject.kind is None or subject.kind == self.kind,
            self._has(subject.axis, self.axes),
            self._has(subject.phase, None if self.phase is None else {self.phase}),
            self._has(subject.role, None if self.role in (None, UNKNOWN) else {self.role}),
            self._has(subject.region, None if self.region is None else {self.region}),
            subject.module is None
            or (None if self.module is None else _is_inside(self.module, subject.module)),
        ]
        if False in answers:
            return False
        return None if None in answers else True

    @staticmethod
    def _has(asked: str | None, known: Collection[str | None] | None) -> bool | None:
        """Return whether a property has the asked word; None if the property is not known."""
        if asked is None:
            return True
        return None if known is None else asked in known


def _is_inside(module: str, pattern: str) -> bool:
    """Return whether the steps of a pattern are consecutive steps of a module's path.

    A step of the pattern is a glob. E.g. "layers_*/mlp" is inside of "net/layers_3/mlp/up".
    """
    path, globs = module.split("/"), pattern.split("/")
    # Every place at which the pattern fits into the path; none if the path is shorter.
    for start in range(len(path) - len(globs) + 1):
        steps = path[start : start + len(globs)]
        if all(fnmatchcase(step, glob) for step, glob in zip(steps, globs, strict=True)):
            return True
    return False


def rows_of(plan: Plan) -> tuple[SentRow, ...]:
    """Return the collectives of a plan in order of execution.

    Executions and bytes are formulas of the named sizes if the plan has them.

    Raises:
      FormulaError: a named size of the program has no formula.
    """
    named = plan._symbolised
    # With named sizes there is a second program, whose sizes are formulas.
    priced = plan.program if named is None else named.program
    table_rows = iter(collectives(plan.program, plan.graph))
    sent_rows: list[SentRow] = []
    # Only sizes differ between the two programs, so their instructions correspond one to one.
    for step, priced_step in zip(walk(plan.program), walk(priced), strict=True):
        attributes = step.instruction.attributes
        if not is_collective(attributes):
            continue
        row = next(table_rows)
        sent_per_execution = wire_bytes(
            priced_step.instruction.attributes, sent_bytes(priced, priced_step.instruction)
        )
        texts = plan.program.mesh.texts(attributes.digits)
        where = f"{row['op']} in {row['module']}" if row["module"] else row["op"]
        sent_rows.append(
            SentRow(
                row["kind"],
                # A part of an axis prints as "X:(1)2".
                axes=frozenset(text.partition(":")[0] for text in texts),
                executions=Formula.of(priced_step.count),
                bytes=Formula.of(sent_per_execution),
                role=row["role"],
                phase=row["phase"],
                module=row["module"],
                region=row["region"],
                number=len(sent_rows),
                at=f"{where} at {row['source']}: {row['why']}",
            )
        )
    return tuple(sent_rows)


def check_subject(subject: Subject, plan: Plan) -> None:
    """Check that the plan has all that a statement's subject names.

    Otherwise "no all_gather along modle" would hold for every plan.

    Raises:
      ContractError: an unknown kind, axis, phase, role, region or module; a phase that the function
        does not have; or a role although the plan was made without roles.
    """
    check_word("kind", subject.kind, KINDS)
    check_word("axis", subject.axis, plan.mesh.axis_names)
    check_word("phase", subject.phase, PHASES)
    phases = {node.phase for node in plan.graph.nodes}
    if subject.phase is not None and subject.phase not in phases:
        raise ContractError(
            f"the function has no {subject.phase} phase: the statement would hold for every plan. "
            f"{near(subject.phase, sorted(phases))}"
        )
    check_word("role", subject.role, ROLES)
    if subject.role is not None and not any(plan._traced.argument_roles):
        raise ContractError(
            f"the statement is about the role {subject.role!r}, but the plan has no roles. Plan "
            "with roles=, such as ('parameters', 'data')."
        )
    if subject.module is not None:
        every = dict.fromkeys(name for name in modules(plan.graph) if name)
        if not any(_is_inside(name, subject.module) for name in every):
            raise ContractError(
                f"no module of the plan has the path {subject.module!r}. "
                f"{near(subject.module, every)}"
            )
    if subject.region is not None:
        kinds = dict.fromkeys(("root", *(region.kind for region in plan.graph.regions)))
        # E.g. "scan/cond": a branch inside of a loop.
        for word in subject.region.split("/"):
            check_word("region", word, tuple(kinds))


def check_word(what: str, word: str | None, known: Collection[str]) -> None:
    """Raise an error unless a word is None or known.

    Raises:
      ContractError: it is another word; the error has similar ones.
    """
    if word is not None and word not in known:
        raise ContractError(f"{what} is {word!r}. {near(word, known)}")


def near(word: str, known: Iterable[str]) -> str:
    """Return a sentence with the known words that are most similar, or with all of them.

    >>> near("all_gathr", KINDS), near("z", ("X", "Y"))
    ('Did you mean all_gather?', 'Known are X, Y.')
    """
    words = list(known)
    found = difflib.get_close_matches(word, words, 3)
    if found:
        return f"Did you mean {' or '.join(found)}?"
    return f"Known are {', '.join(words[:12])}{', ...' if len(words) > 12 else ''}."
