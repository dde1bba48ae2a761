"""Contracts and their reports: which statements hold, at these sizes or for all sizes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.algebra.mesh import Mesh
from shardalg.errors import ContractError
from shardalg.plan.contracts.all_sizes import SizeScope, point_text, refuted, undecided
from shardalg.plan.contracts.bound_formulas import fact_of
from shardalg.plan.contracts.inequalities import Claims, Inequality, Place, claims_of
from shardalg.plan.contracts.sent_rows import near
from shardalg.plan.contracts.statements import Statement
from shardalg.sizes.formula import FormulaError
from shardalg.tables import Answer, Parts, Table, counted

if TYPE_CHECKING:
    from shardalg.plan.plan import Plan

HOLDS, PROVED, REFUTED, UNDECIDED = "holds", "proved", "refuted", "not decided"
COLUMNS = ("statement", "verdict", "where", "at", "repair")


@dataclass(frozen=True, repr=False)
class StatementVerdict:
    """The answer about one statement of a contract.

    Attributes:
      statement: the statement.
      verdict: "holds" (at the sizes of the plan), "proved" (in a region of all sizes), "refuted"
        or "not decided".
      where: the sizes of the answer: numbers, the region of a proof, or the point of a refutation;
        or why nothing is decided.
      claim: the inequality that fails; None unless the statement is refuted.
      plan: the plan that breaks the statement; None unless it is refuted.
    """

    statement: Statement
    verdict: str
    where: str
    claim: Inequality | None = None
    plan: Plan | None = field(default=None, repr=False)

    @property
    def ok(self) -> bool:
        """Whether the statement holds or is proved."""
        return self.verdict in (HOLDS, PROVED)

    @cached_property
    def repair(self) -> str:
        """The cheapest change of annotations that removes the collective that fails; else "".

        The changes are planned when this text is first read (about half a second).
        """
        if self.claim is None or self.claim.row is None or self.plan is None:
            return ""
        change = self.plan.explain(self.claim.row).change  # type: ignore[union-attr]
        return "" if change is None else str(change)

    @cached_property
    def annotations(self) -> str:
        """The annotations that cause the collective that fails, as text; else ""."""
        if self.claim is None or self.claim.row is None or self.plan is None:
            return ""
        found: Any = self.plan.explain(self.claim.row)
        return ", ".join(map(str, found.annotations))

    @property
    def amount(self) -> str:
        """The amount of the claim that fails, and its bound, as text; else "".

        E.g. "12,288 instead of at most 8,192;". The text is "" if one of both is a formula.
        """
        if self.claim is None:
            return ""
        amount, bound = self.claim.amount.number, self.claim.bound.number
        # A bound of 0 is that of a statement "there is none", where an amount says nothing.
        if amount is None or bound is None or float(bound) == 0:
            return ""
        texts = [
            f"{n:,.0f}" if abs(n) >= 1000 else f"{n:.6g}" for n in (float(amount), float(bound))
        ]
        return f"{texts[0]} instead of at most {texts[1]};"

    def __str__(self) -> str:
        """Return the verdict, and for a claim that fails its amount, place, cause and repair."""
        text = f"{self.verdict}: {self.statement}. {self.where}"
        if self.claim is None:
            return text
        # A text that is "" is left out.
        parts = [f"{text}:", self.amount, self.claim.at]
        line = " ".join(part for part in parts if part)
        line += f"; annotations: {self.annotations}" if self.annotations else ""
        return line + (f"; repair: {self.repair}" if self.repair else "")

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class ContractReport(Answer):
    """The verdicts about the statements of a contract, in their order.

    Attributes:
      verdicts: one per statement.
    """

    verdicts: tuple[StatementVerdict, ...]

    @property
    def ok(self) -> bool:
        """Whether every statement holds or is proved."""
        return all(one.ok for one in self.verdicts)

    @property
    def table(self) -> Table:
        """A row per statement: verdict, sizes, and for a refuted one the place and the repair."""
        return Table(COLUMNS, tuple(
            (str(v.statement), v.verdict, v.where, "" if v.claim is None else v.claim.at, v.repair)
            for v in self.verdicts
        ))  # fmt: skip

    @property
    def sentence(self) -> str:
        """The number of statements that hold, are proved, are refuted and are not decided."""
        counts = [(word, sum(v.verdict == word for v in self.verdicts)) for word in _VERDICTS]
        # "1 holds", but "2 hold"; the other words are the same for several statements.
        texts = [f"{n} {'hold' if word == HOLDS and n > 1 else word}" for word, n in counts if n]
        return f"{counted(len(self.verdicts), 'statement')}: {', '.join(texts) or 'none'}."

    def parts(self) -> Parts:
        """Return the counts, and a sentence per statement; broken ones come first."""
        ordered = sorted(self.verdicts, key=lambda one: one.ok)
        return (self.sentence, *map(str, ordered))


_VERDICTS = (HOLDS, PROVED, REFUTED, UNDECIDED)


@dataclass(frozen=True)
class Contract:
    """Statements that must be true of a plan; `contract` and `load_contract` make it.

    Attributes:
      statements: the statements.
      where: conditions on named sizes, such as "X divides B".
      for_all: the named sizes that vary; None: all of them. () checks at the hints alone.
      folder: the folder of the files that statements name.
    """

    statements: tuple[Statement, ...]
    where: tuple[str, ...] = ()
    for_all: tuple[str, ...] | None = None
    folder: Path = Path()

    def check(self, plan: Plan) -> ContractReport:
        """Return a verdict per statement.

        A plan with named sizes is checked for all sizes that fulfil `where`. A statement is proved
        where planning makes the same decisions (the region of the verdict), and refuted at a point
        where a plan that is made there breaks it. A plan in numbers is checked as it is.

        Raises:
          ContractError: a statement names something that the plan does not have.
        """
        # The class is told by name, because the module of `Plan` uses this one.
        if type(plan).__name__ != "Plan":
            raise ContractError(f"a contract is about a plan, got {plan!r:.80}. Pass a Plan.")
        scope = self._scope(plan)
        return ContractReport(
            tuple(self._verdict(statement, plan, scope) for statement in self.statements)
        )

    def hlo(
        self, text: str, mesh: Any, *, sizes: Mapping[str, int] | None = None
    ) -> ContractReport:
        """Return a verdict per statement about XLA's own partitioned program.

        Kinds, axes, executions and bytes of collectives are read from the text, asynchronous ones
        too. A statement about something that the text does not say is "not decided". An all-reduce
        of which only a block is read counts whole: XLA for CPUs has no reduce-scatter.

        Args:
          text: of `jax.jit(f).lower(...).compile().as_text()`, or of a dump after partitioning.
          mesh: the mesh of the program: a `Mesh`, or axis sizes as {"data": 8, "model": 4}. Its
            devices are in the order of their numbers unless the mesh says otherwise.
          sizes: the numbers of names in bounds, such as {"M": 4096}.

        Raises:
          ContractError: text that is cut short, not partitioned yet, or for another number of
            devices; or a statement that names something unknown.

        >>> import jax, shardalg as sa
        >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
        >>> text = jax.jit(lambda x: x.sum(0)).lower(x).compile().as_text()
        >>> sa.contract(sa.no("all_gather"), sa.at_most(sent_bytes=96)).hlo(text, {"X": 1}).ok
        True
        """
        from shardalg.plan.contracts.hlo_contract import hlo_claims, hlo_rows

        for name, size in (sizes or {}).items():
            if type(size) is not int or size < 1:
                raise ContractError(f"sizes has {name}={size!r}: give a whole number from 1 on.")
        mesh = mesh if isinstance(mesh, Mesh) else Mesh(mesh)
        rows = hlo_rows(text, mesh)
        return ContractReport(tuple(
            _verdict(statement, hlo_claims(statement, rows, mesh, sizes or {}), f"On {mesh!r}")
            for statement in self.statements
        ))  # fmt: skip

    def _scope(self, plan: Plan) -> SizeScope | None:
        """Return the sizes that statements are about; None for the numbers of the plan.

        Raises:
          ContractError: an unknown name, or a condition that is false at the hints.
        """
        unknown = [name for name in self.for_all or () if name not in plan.sizes]
        if unknown:
            raise ContractError(
                f"for_all has {unknown[0]!r}. "
                + (near(unknown[0], plan.sizes) if plan.sizes else "The plan has no named sizes.")
            )
        domain = tuple(fact_of(text, plan.sizes) for text in self.where)
        hints = {name: size.hint for name, size in plan.sizes.items()}
        for text, fact in zip(self.where, domain, strict=True):
            if not fact.holds(hints):
                raise ContractError(f"where has {text!r}, which is false at the hints.")
        # Without free names, a statement is about one point only: the hints.
        free = tuple(plan.sizes) if self.for_all is None else self.for_all
        return SizeScope(plan, free, domain) if free else None

    def _verdict(
        self, statement: Statement, plan: Plan, scope: SizeScope | None
    ) -> StatementVerdict:
        """Return the verdict about one statement.

        Args:
          scope: the sizes that the statement is about; None for the numbers of the plan.
        """
        if scope is None:
            return _at_numbers(statement, plan, self.folder)
        # The claims are inequalities in the named sizes that are equivalent to the statement.
        try:
            claims = claims_of(statement, plan, Place(self.folder))
        except FormulaError as error:
            return StatementVerdict(statement, UNDECIDED, f"A size has no formula: {error}")
        if claims.here_only:
            return _at_numbers(statement, plan, self.folder)

        def asked(at: Plan, point: Mapping[str, int]) -> Claims:
            """Return the claims of the statement about a plan that is made at a point."""
            return claims_of(statement, at, Place(self.folder, point))

        # A counterexample first: it is quick to find, and the user can look at its plan.
        try:
            found = refuted(scope, claims, asked)
            if found is not None:
                where = f"At {point_text(found.point)}"
                return StatementVerdict(statement, REFUTED, where, found.claim, found.plan)
            reason = undecided(scope, claims)
        except FormulaError as error:
            reason = f"a size has no formula: {error}"
        if reason:
            return StatementVerdict(statement, UNDECIDED, f"Reason: {reason}.")
        region = scope.region(with_memory=claims.about_memory)
        assert region is not None, "a proof has a region"
        return StatementVerdict(statement, PROVED, f"For {region.text}.")


def _at_numbers(statement: Statement, plan: Plan, folder: Path) -> StatementVerdict:
    """Return the verdict about a statement at the numbers of a plan, which are hints of names."""
    point = {name: size.hint for name, size in plan.sizes.items()}
    plan = plan.at() if plan.is_symbolic else plan
    claims = claims_of(statement, plan, Place(folder, point))
    return _verdict(statement, claims, f"On {plan.mesh!r}", plan)


def _verdict(
    statement: Statement, claims: Claims, here: str, plan: Plan | None = None
) -> StatementVerdict:
    """Return the verdict about a statement whose claims are about numbers.

    Args:
      here: text that names the mesh.
      plan: the plan that the claims are about; None for XLA's program.
    """
    # A claim that fails refutes the statement, even if others are not known.
    broken_claim = next((claim for claim in claims.claims if not claim.fact.holds({})), None)
    if broken_claim is not None:
        return StatementVerdict(statement, REFUTED, here, broken_claim, plan)
    if claims.unknown:
        return StatementVerdict(statement, UNDECIDED, f"{here}: {claims.unknown}.")
    return StatementVerdict(statement, HOLDS, f"{here}, at these sizes.")


def contract(
    *statements: Statement,
    where: Sequence[str] = (),
    for_all: Sequence[str] | None = None,
    folder: str | os.PathLike[str] = "",
) -> Contract:
    """Return a contract: statements that must be true of a plan.

    Args:
      statements: made by `no`, `some`, `at_most`, `sharded`, `no_idle_devices` and `unchanged`.
      where: conditions on the named sizes of a plan, such as ["X divides B", "X >= 2"].
      for_all: the named sizes that vary; None: all. Others have their hints.
      folder: the folder of files that statements name.

    Raises:
      ContractError: no statements, or something that is none.

    >>> import jax, shardalg as sa
    >>> from jax.sharding import PartitionSpec as P
    >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
    >>> plan = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"X": 4}), in_shardings=(P("X"),))
    >>> print(sa.contract(sa.no("all_gather"), sa.at_most(sent_bytes=100)).check(plan))
    2 statements: 2 hold.
    holds: no all_gather. On Mesh(X=4), at these sizes.
    holds: bytes sent per device and step by collective at most 100. On Mesh(X=4), at these sizes.
    """
    wrong = [one for one in statements if not isinstance(one, Statement)]
    # A contract without statements would hold for every plan.
    if wrong or not statements:
        raise ContractError(
            f"{wrong[0]!r:.60} is no statement: use sa.no, sa.some, sa.at_most and others."
            if wrong
            else "a contract needs at least one statement, such as sa.no('all_gather')."
        )
    # A text would be read letter by letter, because it is a sequence, too.
    for name, words in (("where", where), ("for_all", for_all or ())):
        if isinstance(words, str) or not all(isinstance(word, str) for word in words):
            raise ContractError(f"{name} is {words!r:.60}: give a list of texts.")
    if not isinstance(folder, str | os.PathLike):
        raise ContractError(f"folder is {folder!r:.60}: give a path.")
    names = None if for_all is None else tuple(for_all)
    return Contract(statements, tuple(where), names, Path(folder))


def require(
    plan: Plan,
    statements: Sequence[Statement],
    where: Sequence[str],
    for_all: Sequence[str] | None,
) -> ContractReport:
    """Return the report about statements that all hold; see `Plan.require`.

    Raises:
      ContractError: a statement is refuted or not decided, or names something unknown.
    """
    report = contract(*statements, where=where, for_all=for_all).check(plan)
    if not report.ok:
        raise ContractError(str(report))
    return report
