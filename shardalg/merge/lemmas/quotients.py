"""Lemmas of quotients a*p + (r*p + b) // m, the closed form of halos and interval starts."""

from shardalg.merge.lemmas.lemma import Lemma

QUOTIENTS = (
    Lemma(
        "ceil_is_floor",
        "rounding up is rounding x + m - 1 down, and rounding -x down the other way round",
        used="algebra/offset.py: block_size; algebra/quotient.py: up=True",
        given="m >= 1",
        shows="ceil(x, m) == (x + m - 1) // m, ceil(x, m) == -((-x) // m)",
        mutants=(("x + m - 1", "x + m"), ("(-x) // m", "(1 - x) // m")),
    ),
    Lemma(
        "quotient_whole_part",
        "whole multiples of m leave the quotient as a factor of p",
        used="algebra/quotient.py: Quotient.of",
        given="m >= 1",
        shows="((a*m + r)*p + b) // m == a*p + (r*p + b) // m",
        mutants=(("== a*p", "== a*p + 1"), ("(a*m + r)*p", "(a*m + r)*(p + 1)")),
    ),
    Lemma(
        "quotient_gcd",
        "a common factor g of slope and divisor is divided out, the constant rounded down",
        used="algebra/quotient.py: Quotient.of",
        given="g >= 1, m >= 1",
        shows="(g*x + b) // (g*m) == (x + b // g) // m",
        mutants=(("x + b // g", "x + ceil(b, g)"),),
    ),
    Lemma(
        "quotient_step",
        "from p to p + 1 a quotient with 0 <= r < m stays or grows by one",
        used="algebra/quotient.py: a quotient is monotone in p",
        given="m >= 1, 0 <= r < m",
        shows="0 <= (r*(p + 1) + b) // m - (r*p + b) // m <= 1",
        mutants=(("r < m", "r <= 2*m"), ("<= 1", "<= 0")),
    ),
    Lemma(
        "quotient_endpoint",
        "over a range of p a quotient is largest, and smallest, at an end of the range",
        used="algebra/quotient.py: max and min; algebra/halos/halo.py: max_left",
        given="m >= 1, low <= p <= high",
        shows="(a*p + b) // m <= max((a*low + b) // m, (a*high + b) // m), "
        "(a*p + b) // m >= min((a*low + b) // m, (a*high + b) // m)",
        mutants=(("p <= high", "p <= high + 1"), ("max((a*low", "min((a*low")),
    ),
)
