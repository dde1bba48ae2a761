"""Formulas as data that a script evaluates in a browser, exactly and in double precision.

Formulas are added to one program (`array_steps.Code`), in which equal steps are one. Its numbers
stay fractions, so that `formulas.js` can also evaluate it exactly with integers of any length.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from shardalg.sizes.array_steps import NAME, NUMBER, Code
from shardalg.sizes.facts import BROKEN, WHOLE, Fact
from shardalg.sizes.formula import Formula


class FormulaProgram(Code):
    """Program of the formulas of a page; each formula is the number of its last step.

    >>> from shardalg.sizes.formula import symbols, ceiling
    >>> B, X = symbols("B X")
    >>> program = FormulaProgram()
    >>> program.formula(ceiling(B / X) * 3)
    6
    >>> program.data()["steps"]
    [['name', 'B'], ['name', 'X'], ['number', '1', '1'], ['divide', 0, 1], ['ceil', 3], ...]
    """

    def number(self, number: Any) -> int:
        """Return the number of the step with a constant, as an exact fraction."""
        return self.step(NUMBER, Fraction(number))

    def formula(self, amount: Any) -> int:
        """Return the number of the step whose result is an amount, a number or a formula."""
        return self.polynomial(Formula.of(amount).terms)

    def largest(self, amounts: Iterable[Any]) -> int:
        """Return the number of the step whose result is the largest of some amounts."""
        first, *others = map(self.formula, amounts)
        for other in others:
            first = self.step("max", first, other)
        return first

    def fact(self, fact: Fact) -> tuple[int, str]:
        """Return a step and a relation: the fact is true if the step's result has the relation.

        Comparisons with 0 read the numerator alone, because denominators are positive. All of
        its steps are whole numbers.
        """
        is_division = fact.relation in (WHOLE, BROKEN)
        part = fact.formula if is_division else fact.formula.fraction[0]
        return part.steps(self), fact.relation

    def data(self) -> dict[str, Any]:
        """Return the program for `formulas.js`; long numbers are texts."""
        steps = []
        for what, *operands in self.steps:
            if what == NUMBER:
                # Numbers that no double has are given as text, and so are numerators of fractions.
                value = Fraction(operands[0])
                steps.append([NUMBER, str(value.numerator), str(value.denominator)])
            elif what == NAME:
                steps.append([NAME, operands[0]])
            else:
                steps.append([what, *operands])
        return {"steps": steps}
