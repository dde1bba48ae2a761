"""Findings about logical-axis rules: one line each, with the array, the rule and the repair.

| kind | the finding |
|---|---|
| shadowed | an earlier rule of the same name applies to every array that has the name |
| never_applies | other dimensions have the rule's axes in every array that has the name |
| no_array | no array has a dimension of the rule's name |
| unknown_axis | the mesh has no axis of this name |
| size_one | the rule's axes have size 1, so that an array is whole on every device |
| not_divisible | the rule's axes do not divide the size of a dimension |
| collision | two dimensions of one array want the same axis; the one that loses has no axis |
| replicated | a name without a rule leaves an array whole along an axis that splits the others |
| replicated_by_omission | a value loses an axis because one of two rules does not name it |
| axes_differ_from_what_it_meets | an array is sharded along other axes than the value it meets |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, overload

from shardalg.errors import TableError
from shardalg.tables import Parts, Table, html_part, repr_part

if TYPE_CHECKING:
    from shardalg.plan.rules.logical_rules import LogicalRules
    from shardalg.tables import DataFrame

KINDS = (
    "shadowed", "never_applies", "no_array", "unknown_axis", "size_one", "not_divisible",
    "collision", "replicated", "replicated_by_omission", "axes_differ_from_what_it_meets",
)  # fmt: skip
COLUMNS = ("kind", "rule", "array", "axis", "bytes", "repair", "why")


@dataclass(frozen=True)
class Repair:
    """A change of one rule that helps in our plan and in XLA's program.

    Attributes:
      text: the change, as "('mlp', 'x') instead of ('mlp', None)".
      rules: all rules with the change.
      step_s: seconds of a step by the plan, before and after.
      peak_bytes: peak memory of a device by the plan, before and after.
      sent_bytes: bytes that a device sends per step by the plan, before and after.
      xla_step_s, xla_sent_bytes: seconds and bytes sent of XLA's own program, before and after.
    """

    text: str
    rules: LogicalRules
    step_s: tuple[float, float]
    peak_bytes: tuple[float, float]
    sent_bytes: tuple[float, float]
    xla_step_s: tuple[float, float]
    xla_sent_bytes: tuple[float, float]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Finding:
    """One fault of logical-axis rules.

    Attributes:
      kind: see the table of this module.
      rule: the index of the rule; None if there is none for a name.
      rule_text: the rule as text.
      name: the dimension's name, or "".
      meant: the name of a dimension without a rule that is spelt almost so, or "".
      array: the first array that has the fault, or "".
      num_arrays: the number of arrays that have it.
      axis: the mesh axes, separated by commas.
      by: indices of the rules that win, or that the rule differs from.
      bytes: bytes of a device that a sharding along the axis would save, over all arrays; None if
        no array is larger for it, or if sizes are not known.
      why: the reason as text.
      repair: None if no change is known that helps in our plan and in XLA's program, or if no
        function was given to try it on.
    """

    kind: str
    rule: int | None
    rule_text: str
    name: str = ""
    array: str = ""
    num_arrays: int = 0
    axis: str = ""
    by: tuple[int, ...] = ()
    bytes: int | None = None
    why: str = ""
    meant: str = ""
    repair: Repair | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.why}"


@dataclass(frozen=True, repr=False)
class Findings:
    """The findings about logical-axis rules, in the order of the rules; false if there are none.

    Attributes:
      rules: the rules with their mesh.
      found: the findings.
      num_arrays: the number of arrays that the rules were applied to.
    """

    rules: LogicalRules
    found: tuple[Finding, ...]
    num_arrays: int

    def __len__(self) -> int:
        return len(self.found)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.found)

    @overload
    def __getitem__(self, at: int) -> Finding: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Finding, ...]: ...
    def __getitem__(self, at: Any) -> Any:
        """Return the finding with a number, or a tuple of those in a slice.

        A negative number counts from the end, as in a list.

        Raises:
          TableError: there is no such number; the error says how many findings there are.
        """
        if isinstance(at, slice):
            return self.found[at]
        if not hasattr(at, "__index__") or not -len(self) <= at < len(self):
            listed = f"they are numbered 0 to {len(self) - 1}" if self else "there are none"
            raise TableError(
                f"there is no finding {at!r:.40}: {listed}. `of_kind(kind)` returns those of one "
                "kind."
            )
        return self.found[at]

    def of_kind(self, kind: str) -> tuple[Finding, ...]:
        """Return the findings of one kind.

        Raises:
          TableError: there is no such kind.
        """
        if kind not in KINDS:
            near = get_close_matches(str(kind), KINDS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"the kinds are {', '.join(KINDS)}."
            raise TableError(f"no finding is of kind {kind!r:.40}: {hint}")
        return tuple(one for one in self.found if one.kind == kind)

    def table(self) -> DataFrame:
        """Return a row per finding: kind, rule, array, axis, bytes, repair, why."""
        return self.rows().df

    def __repr__(self) -> str:
        return f"{self._head()}\n{repr_part(self.rows())}" if self.found else self._head()

    def _repr_html_(self) -> str:
        parts: Parts = (self._head(), self.rows()) if self.found else (self._head(),)
        return "\n".join(map(html_part, parts))

    def _head(self) -> str:
        """Return the first line: the numbers of findings, rules and arrays, and the mesh."""
        n, rules, arrays = len(self.found), len(self.rules.rules), self.num_arrays
        return (
            f"{n or 'no'} finding{'s' * (n != 1)} in {rules} rule{'s' * (rules != 1)} for "
            f"{arrays} array{'s' * (arrays != 1)} on {self.rules.mesh!r}."
        )

    def rows(self) -> Table:
        """Return the rows of `table` as a plain table."""
        rows = (
            (f.kind, f.rule_text, f.array, f.axis, f.bytes, f.repair and str(f.repair), f.why)
            for f in self.found
        )
        return Table(COLUMNS, tuple(rows))
