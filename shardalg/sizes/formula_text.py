"""Conversion of formulas to a line of text, and to sympy expressions.

`Terms` are the coefficients of a formula by monomial (`Formula.terms`). Factors that are no names,
such as ceilings and maxima, are called atoms.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sympy

Terms = Mapping[frozenset[tuple[Any, int]], Any]


def text(terms: Terms, *, within: str = "") -> str:
    """Return a formula as text in Python's notation, terms of highest degree first.

    Args:
      within: "/" puts a sum in brackets; "**" puts a sum or a product in brackets, as a divisor
        needs; "" adds no brackets.

    >>> text({frozenset({("B", 1), ("X", -1)}): Fraction(-3, 2), frozenset(): 1})
    '-3*B/(2*X) + 1'
    """
    # Equal formulas must have equal text, although their dictionaries differ in order. The highest
    # degree comes first and the number last, as polynomials are usually written.
    ordered = sorted(
        terms.items(),
        key=lambda term: (not term[0], -sum(e for _, e in term[0]), _product(term[0])),
    )
    lines = [_term(monomial, Fraction(coefficient)) for monomial, coefficient in ordered]
    line = " + ".join(lines).replace("+ -", "- ") or "0"
    unbracketed = len(lines) < 2 and not (within == "**" and _is_product(line))
    return line if unbracketed or not within else f"({line})"


def _term(monomial: frozenset[tuple[Any, int]], coefficient: Fraction) -> str:
    """Return one term as text, such as `-3*B/(2*X)`.

    Args:
      monomial: pairs (factor, exponent); a negative exponent is a divisor.
      coefficient: the number before them.
    """
    numerator = _product((f, e) for f, e in monomial if e > 0)
    # Python reads `3*B/2*X` as `(3*B/2)*X`, so all divisors are one product, in brackets.
    denominator = _product((f, -e) for f, e in monomial if e < 0)
    if coefficient.denominator > 1:
        denominator = "*".join(filter(None, [str(coefficient.denominator), denominator]))
    sign = "-" if coefficient < 0 else ""
    number = abs(coefficient.numerator)
    # The number 1 is written only if it is alone in the numerator, as in `1/X`.
    numerator = "*".join(
        filter(None, [str(number) if number > 1 or not numerator else "", numerator])
    )
    return (
        sign
        + numerator
        + (
            f"/({denominator})"
            if _is_product(denominator)
            else f"/{denominator}"
            if denominator
            else ""
        )
    )


def _is_product(line: str) -> bool:
    """Return whether a text needs brackets after `/`: it has a product, a quotient or a sign."""
    if line.startswith("(") and line.find(")") == len(line) - 1:
        return False
    return bool(set(line.replace("**", "")) & set("*/-"))


def _product(powers: Iterable[tuple[Any, int]]) -> str:
    """Return a product of factors with exponents as text, such as "B*M**2", sorted by text."""
    ordered = sorted((_name(factor), exponent) for factor, exponent in powers)
    return "*".join(name if e == 1 else f"{name}**{e}" for name, e in ordered)


def _name(factor: Any) -> str:
    """Return the text of a factor: the name itself, or for example "ceil(B/X)"."""
    return factor if type(factor) is str else _text_of(factor)


# Many prices share few atoms, and terms are sorted by their text.
@lru_cache(maxsize=1 << 14)
def _text_of(atom: Any) -> str:
    """Return the text of a factor that is no name, such as a ceiling; cached."""
    return str(atom)


def to_sympy(terms: Terms, symbols: Mapping[Any, sympy.Symbol]) -> sympy.Expr:
    """Return a formula as an expanded sum in sympy.

    Args:
      symbols: sympy symbols for some factors: names, or atoms. Any other name becomes a positive
        integer symbol, any other atom its own expression.
    """
    import sympy

    def factor(f: Any) -> sympy.Expr:
        """Return the sympy expression of a factor."""
        if f in symbols:
            return symbols[f]
        return _symbol(f) if type(f) is str else _in_sympy(f, symbols)

    powers = ({factor(f): e for f, e in monomial} for monomial in terms)
    products = map(_term_in_sympy, powers, terms.values())
    return sympy.Add(*products)


def _term_in_sympy(powers: Mapping[sympy.Expr, int], coefficient: Any) -> sympy.Expr:
    """Return a coefficient times powers as a sympy product, without sympy's slow sorting.

    Args:
      powers: the exponent of each factor.
    """
    import sympy

    number = _number_in_sympy(coefficient, alone=not powers)
    by_name = {f.name: f for f in powers if f.is_Symbol}
    # Only products of names have the cached order; any other product is sorted by sympy.
    if len(by_name) < len(powers):
        return sympy.Mul(number, *(f**e for f, e in powers.items()))
    # The order depends on names, exponents and types only, so it is cached without hints.
    order = _order(frozenset((f.name, e, type(f)) for f, e in powers.items()))
    factors = [by_name[name] if e == 1 else by_name[name] ** e for name, e in order]
    if number != 1 or not factors:
        factors.insert(0, number)
    # `evaluate=False` keeps the given order, which is the one that sympy would find.
    return factors[0] if len(factors) == 1 else sympy.Mul(*factors, evaluate=False)


# A divisor from here on must be a rate of a chip, because products of mesh axes are smaller.
_RATE = 10**9
# A float prints up to 15 digits exactly. A fraction with a numerator of 12 digits is hard to read.
_SHOWN = 10**15
_READABLE = 10**12


def _number_in_sympy(number: Any, *, alone: bool) -> sympy.Rational | sympy.Float:
    """Return a coefficient as an exact number in sympy, or as a float if a chip's rate divides it.

    Only seconds are divided by a rate. Their fractions are hard to read, and a float is more exact
    than a chip's rates are. Bytes and flops stay exact.

    Args:
      alone: whether the term has no size. Then a large fraction with few decimals is also a float,
        such as 157334834951.875 for `1258678679615/8`.
    """
    import sympy

    # A power of 2 that divides 1000 is 2, 4 or 8: such a fraction has at most three decimals.
    p, q = number.numerator, number.denominator
    is_decimal = alone and abs(p) >= _READABLE and 1000 % q == 0 and abs(p) * 1000 < _SHOWN * q
    if q >= _RATE or (q > 1 and is_decimal and not q & (q - 1)):
        return sympy.Float(p / q)
    return sympy.Rational(p, q)


@lru_cache(maxsize=1 << 14)
def _order(powers: frozenset[tuple[str, int, type]]) -> tuple[tuple[str, int], ...]:
    """Return pairs (name, exponent) of a product of symbols, in the order in which sympy sorts it.

    Args:
      powers: (name, exponent, class of the symbol) for each factor.
    """
    import sympy

    from shardalg.algebra.dims import Size

    # The order does not depend on hints, so the hint 2 stands for any.
    made = (Size(name, 2) if kind is Size else _symbol(name) for name, _, kind in powers)
    product = sympy.Mul(*(f**e for f, (_, e, _) in zip(made, powers, strict=True)))
    pairs = (part.as_base_exp() for part in sympy.Mul.make_args(product) if part != 1)
    return tuple((base.name, int(e)) for base, e in pairs)


@lru_cache(maxsize=4096)
def _symbol(name: str) -> sympy.Symbol:
    """Return the positive integer symbol of a name."""
    import sympy

    return sympy.Symbol(name, positive=True, integer=True)


_PRODUCT_TERMS = 12
"""Readers expect no product in a sum of more terms, and factoring it is slow."""


def factored_sum(terms: Terms, symbols: Mapping[str, sympy.Symbol]) -> sympy.Expr:
    """Return a formula in sympy with common factors in front of brackets, such as `B*(X - 1)/X`.

    The result is one product, or a sum of few products. Terms that differ only in sizes that divide
    some term (the mesh axes) are factored together, because they are the price of one collective,
    or of several on one tensor.

    Args:
      symbols: sympy symbols for some of the names; the others get new symbols.
    """
    # Symbols replace ceilings, maxima and sums during factoring, because sympy would expand their
    # arguments.
    atoms = {f for monomial in terms for f, _ in monomial if type(f) is not str}
    hidden = {atom: _symbol(_name(atom)) for atom in atoms}
    shown = _products(terms, {**symbols, **hidden})
    return shown.xreplace({stand_in: _in_sympy(a, symbols) for a, stand_in in hidden.items()})


def _in_sympy(atom: Any, symbols: Mapping[Any, sympy.Symbol]) -> sympy.Expr:
    """Return the sympy expression of an atom, with the given symbols for its names."""
    # Only the symbols that the atom uses are part of the cache's key.
    return _atom_once(atom, frozenset((n, symbols[n]) for n in atom.names if n in symbols))


@lru_cache(maxsize=4096)
def _atom_once(atom: Any, used: frozenset[Any]) -> sympy.Expr:
    """Return the sympy expression of an atom, cached; `used` has (name, symbol) pairs."""
    return atom.sympy(dict(used))


def _products(terms: Terms, symbols: Mapping[Any, sympy.Symbol]) -> sympy.Expr:
    """Return a formula as one product if its brackets are short, else as a sum of products.

    For example, B*X - B becomes `B*(X - 1)`. In a sum, each product is for one group of terms
    (`_groups`).

    Args:
      symbols: sympy symbols for some factors, as in `to_sympy`.
    """
    import sympy

    if len(terms) <= _PRODUCT_TERMS:
        # A product is shown only if its brackets are short, as in `B*(X - 1)`.
        product = _factored(terms, symbols)
        brackets = (f.base if f.is_Pow else f for f in sympy.Mul.make_args(product))
        if all(len(bracket.args) <= 2 for bracket in brackets if bracket.is_Add):
            return product
    return sympy.Add(*(_factored(group, symbols) for group in _groups(terms)))


def _factored(terms: Terms, symbols: Mapping[Any, sympy.Symbol]) -> sympy.Expr:
    """Return a formula as one product: the common factor of all terms, times the factored rest."""
    used = ((f, symbols[f]) for f in {f for m in terms for f, _ in m} if f in symbols)
    return _factored_once(frozenset(terms.items()), frozenset(used))


# Prices share sums: classes of memory occur in the peak again, and compute in the step time.
@lru_cache(maxsize=4096)
def _factored_once(items: frozenset[Any], used: frozenset[Any]) -> sympy.Expr:
    """Return a formula as a product of factors in sympy; `_factored` caches this by the arguments.

    Args:
      items: the terms of the formula: (monomial, coefficient).
      used: (name, symbol) pairs of the sympy symbols.
    """
    import sympy

    terms, symbols = dict(items), dict(used)
    if len(terms) < 2:
        return to_sympy(terms, symbols)
    shared, rest = _common_factor(terms)
    number, bracket = _factors(frozenset(rest.items()))
    bracket = bracket.xreplace({_symbol(_name(f)): symbol for f, symbol in used})
    outside = to_sympy(shared, symbols) * number
    # sympy would distribute a number over the bracket.
    kept = outside.is_Number and outside != 1 and bracket.is_Add
    return sympy.Mul(outside, bracket, evaluate=not kept)


def _common_factor(terms: Terms) -> tuple[Terms, Terms]:
    """Return (the largest product that divides all terms, the remaining polynomial).

    For example, 4*B*X - 6*B is 2*B times 2*X - 3. The coefficients of the polynomial are coprime
    integers.
    """
    powers = [dict(monomial) for monomial in terms]
    names = {factor for exponents in powers for factor in exponents}
    # The least power of each factor divides all terms. The greatest common divisor of fractions is
    # that of their numerators over the least common multiple of their denominators.
    least = {f: min(exponents.get(f, 0) for exponents in powers) for f in names}
    coefficients = [Fraction(c) for c in terms.values()]
    common_number = Fraction(
        math.gcd(*(n.numerator for n in coefficients)),
        math.lcm(*(n.denominator for n in coefficients)),
    )
    # Subtract the common exponents; a factor whose exponent becomes 0 is left out.
    remainder = {
        frozenset(
            (f, exponents.get(f, 0) - e) for f, e in least.items() if exponents.get(f, 0) != e
        ): Fraction(coefficient) / common_number
        for exponents, coefficient in zip(powers, terms.values(), strict=True)
    }
    return {frozenset((f, e) for f, e in least.items() if e): common_number}, remainder


# All prices consist of few brackets, such as X - 1; sympy takes milliseconds for each.
@lru_cache(maxsize=4096)
def _factors(terms: frozenset[Any]) -> tuple[sympy.Expr, sympy.Expr]:
    """Return a number and a product of factors, whose product is a given polynomial.

    For example, B**2 - B gives 1 and `B*(B - 1)`. A polynomial that cannot be factored is returned
    as a sum.

    Args:
      terms: items of the polynomial's terms, which have no common factor.
    """
    import sympy

    symbol_of = {f: _symbol(_name(f)) for monomial, _ in terms for f, _ in monomial}
    polynomial = to_sympy(dict(terms), symbol_of)
    # A size v that occurs in one term only, with exponent 1, makes the polynomial `a*v + b`. The
    # terms have no common factor, so a and b are coprime, and the polynomial is irreducible.
    counts = Counter(f for monomial, _ in terms for f, _ in monomial)
    if any(e == 1 and counts[f] == 1 for monomial, _ in terms for f, e in monomial):
        return sympy.Integer(1), polynomial
    # A sum that cannot be factored is shorter without parentheses.
    number, factors = sympy.Poly(polynomial).factor_list()
    if sum(power for _, power in factors) == 1:
        return sympy.Integer(1), polynomial
    return number, sympy.Mul(*(factor.as_expr() ** power for factor, power in factors))


def _groups(terms: Terms) -> list[Terms]:
    """Return the terms of a formula in groups; each group is factored alone when it is printed.

    The terms of a group have equal factors, except for coefficients and for sizes that are in the
    denominator of some term of the formula.
    """
    dividing = {f for monomial in terms for f, e in monomial if e < 0}
    groups: dict[frozenset[Any], dict[frozenset[tuple[Any, int]], Any]] = {}
    for monomial, coefficient in terms.items():
        key = frozenset((f, e) for f, e in monomial if f not in dividing)
        groups.setdefault(key, {})[monomial] = coefficient
    return list(groups.values())
