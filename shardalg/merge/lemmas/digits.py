"""Lemmas of digits: partition ids as mixed-radix numbers, and digits of two meshes."""

from shardalg.merge.lemmas.lemma import Lemma

DIGITS = (
    Lemma(
        "radix_injective",
        "q*m + r with 0 <= r < m determines q and r",
        used="merge/proofs/encode.py: partition ids for all sizes",
        given="m >= 1, 0 <= r < m, 0 <= t < m, q*m + r == p*m + t",
        shows="q == p, r == t",
        mutants=(("r < m", "r <= m"),),
    ),
    Lemma(
        "radix_range",
        "q*m + r with q < a and 0 <= r < m stays below a*m",
        used="merge/proofs/encode.py: partition ids are below the number of parts",
        given="m >= 1, 0 <= r < m, 0 <= q < a",
        shows="0 <= q*m + r < a*m",
        mutants=(("q < a", "q <= a"), ("< a*m", "< a*m - 1")),
    ),
    Lemma(
        "radix_decode",
        "division and remainder by m read q and r back from q*m + r",
        used="algebra/digits.py: Digit.at",
        given="m >= 1, 0 <= r < m",
        shows="(q*m + r) // m == q, (q*m + r) % m == r",
        mutants=(("r < m", "r <= m"),),
    ),
    Lemma(
        "radix_encode",
        "every d below a*m is q*m + r of its own quotient and remainder, which are in range",
        used="merge/proofs/encode.py: a device is its coordinates",
        given="m >= 1, 0 <= d < a*m",
        shows="(d // m)*m + d % m == d, 0 <= d % m < m, 0 <= d // m < a",
        mutants=(("d // m < a", "d // m < a - 1"),),
    ),
    Lemma(
        "quotient_nested",
        "dividing by t and then by m is dividing by t*m",
        used="algebra/digits.py: canonical",
        given="t >= 1, m >= 1",
        shows="(d // t) // m == d // (t*m)",
        mutants=(("d // (t*m)", "d // (t*m + 1)"),),
    ),
    Lemma(
        "digit_fusing",
        "two digits that touch, e = d // stride, are one digit: (e // m) % n * m + e % m is "
        "e % (n*m)",
        used="algebra/digits.py: canonical",
        given="m >= 1, n >= 1",
        shows="(e // m) % n * m + e % m == e % (n*m)",
        mutants=(("(e // m) % n * m", "(e // m) % m * n"),),
    ),
    Lemma(
        "digit_stride_unique",
        "if the digit of stride t is 1 on device s, and that of stride s on device t, then s = t",
        used="algebra/digits.py: canonical digits are compared as tuples",
        given="s >= 1, n >= 2, t >= 1, m >= 2, (s // t) % m == 1, (t // s) % n == 1",
        shows="s == t",
        mutants=((", (t // s) % n == 1", ""),),
    ),
    Lemma(
        "digit_size_unique",
        "digits of one stride that agree on all N devices have one size",
        used="algebra/digits.py: canonical digits are compared as tuples",
        given="s >= 1, n >= 2, m >= 2, s*n <= N, s*m <= N, "
        "implies(s*n < N, n % n == n % m), implies(s*m < N, m % n == m % m)",
        shows="n == m",
        mutants=(("s*n < N", "s*n < N - s"),),
    ),
    Lemma(
        "digits_disjoint",
        "of a digit of size m and one of k*m times its stride every pair of values b, a occurs: "
        "on device a*(k*m) + b, counted in the lower stride (with radix_decode for a)",
        used="merge/compatible.py: the coarsest merge is balanced",
        given="k >= 1, 0 <= b < m",
        shows="(a*(k*m) + b) % m == b, 0 <= b < k*m",
        mutants=(("b < m", "b <= m"), ("a*(k*m) + b", "a*(k*m - 1) + b")),
    ),
    Lemma(
        "digit_period",
        "positions j strides apart are j apart in e = d // s, and if j = n*k have the same digit",
        used="algebra/digits.py: overlap",
        given="s >= 1, n >= 1",
        shows="(d + s*j) // s == d // s + j, (e + n*k) % n == e % n",
        mutants=(("(e + n*k) % n", "(e + k) % n"),),
    ),
    Lemma(
        "digit_step",
        "one stride on, the digit e % n is one more, and 0 after its last value",
        used="algebra/digits.py: overlap",
        given="n >= 1",
        shows="implies(e % n < n - 1, (e + 1) % n == e % n + 1), "
        "implies(e % n == n - 1, (e + 1) % n == 0)",
        mutants=(("e % n < n - 1", "e % n < n"), ("e % n == n - 1", "e % n >= n - 2")),
    ),
    Lemma(
        "gcd_shift",
        "of digits (s, n) and (t, m): if g = u*(s*n) + v*(t*m) divides s, the shift k*v periods "
        "t*m is s less k*u periods s*n: it moves the first digit by one step and keeps the "
        "second, so every pair of values is equally frequent",
        used="algebra/digits.py: overlap, across meshes",
        given="s == k*(u*P + v*Q), shift == (k*v)*Q",
        shows="d + shift == d + s - (k*u)*P",
        mutants=(("s == k", "s == 2*k"),),
    ),
    Lemma(
        "gcd_clash",
        "no position has d % n == 0 and d % m == 1 if n and m have a common factor",
        used="merge/compatible.py: the condition gcd(n, m) = 1",
        given="g >= 2, n == g*a, m == g*b, a >= 1, b >= 1",
        shows="not (d % n == 0 and d % m == 1)",
        mutants=(("g >= 2", "g >= 1"),),
    ),
)
