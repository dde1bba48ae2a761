"""Index expressions: integer maps, affine in named variables, with division and modulo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sympy


@dataclass(frozen=True)
class Index:
    """`(sum coefficient * variable + constant) [/ div exactly, or // div] [% mod]`.

    A variable is a loop of an operator, or a run-time symbol `$t`. An exact division voids the
    iterations where `div` does not divide.

    >>> print(Index.of("o") * 2 + Index.of("r") - 1)
    2*o+r-1
    >>> print((Index.of("d") - 2).over(3)), print(Index.of("d") % 4)
    (d-2)/3
    (d)%4
    (None, None)
    """

    terms: tuple[tuple[str, int], ...] = ()
    constant: int = 0
    div: int = 1
    exact: bool = False
    mod: int = 0

    @staticmethod
    def of(value: str | int | Index) -> Index:
        """A loop's name, a number or an index as an index."""
        if isinstance(value, Index):
            return value
        return Index(((value, 1),)) if isinstance(value, str) else Index((), value)

    def _linear(self) -> dict[str, int]:
        assert self.div == 1 and not self.mod, f"{self} is divided: it cannot be added to"
        return dict(self.terms)

    def __add__(self, other: str | int | Index) -> Index:
        other = Index.of(other)
        total = self._linear()
        for name, coefficient in other._linear().items():
            total[name] = total.get(name, 0) + coefficient
        terms = tuple(sorted((n, c) for n, c in total.items() if c))
        return Index(terms, self.constant + other.constant)

    def __mul__(self, factor: int) -> Index:
        self._linear()
        terms = tuple((n, c * factor) for n, c in self.terms if factor)
        return Index(terms, self.constant * factor)

    def __sub__(self, other: str | int | Index) -> Index:
        return self + Index.of(other) * -1

    def over(self, divisor: int) -> Index:
        """Exact division: the iteration does not exist where `divisor` leaves a rest."""
        return self if divisor == 1 else Index(self.terms, self.constant, divisor, True)

    def __floordiv__(self, divisor: int) -> Index:
        return self if divisor == 1 else Index(self.terms, self.constant, divisor)

    def __mod__(self, modulus: int) -> Index:
        return Index(self.terms, self.constant, self.div, self.exact, modulus)

    @property
    def variables(self) -> tuple[str, ...]:
        """Names in the expression."""
        return tuple(name for name, _ in self.terms)

    @property
    def loop(self) -> str | None:
        """The loop that this expression is, unchanged; None otherwise."""
        if self.constant or self.div > 1 or self.mod or len(self.terms) != 1:
            return None
        name, coefficient = self.terms[0]
        return name if coefficient == 1 else None

    def at(self, values: Mapping[str, Any]) -> Any:
        """Value at a point; None where an exact division does not come out.

        An array of values at arrays of numbers, which an index without exact division takes.
        """
        number = sum(c * values[n] for n, c in self.terms) + self.constant
        if self.exact and number % self.div:
            return None
        number //= self.div
        return number % self.mod if self.mod else number

    @property
    def expr(self) -> sympy.Expr:
        """The same in sympy, in integer symbols of the variables' names.

        >>> (Index.of("o") * 2 - 1).expr, (Index.of("p") // 4 % 2).expr
        (2*o - 1, Mod(floor(p/4), 2))
        """
        import sympy

        number = sympy.Integer(self.constant)
        for name, coefficient in self.terms:
            number += coefficient * sympy.Symbol(name, integer=True)
        number = number / self.div if self.exact else sympy.floor(number / self.div)
        return sympy.Mod(number, self.mod) if self.mod else number

    def __str__(self) -> str:
        ordered = sorted(self.terms, key=lambda term: -abs(term[1]))
        text = "".join(
            ("+" if c > 0 else "-") + ("" if abs(c) == 1 else f"{abs(c)}*") + n for n, c in ordered
        )
        text = (text + (f"{self.constant:+d}" if self.constant or not text else "")).lstrip("+")
        if self.div > 1:
            text = f"({text}){'/' if self.exact else '//'}{self.div}"
        return f"({text})%{self.mod}" if self.mod else text
