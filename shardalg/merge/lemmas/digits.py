"""Lemmas of digits, of blocks and of quotients.

Digits: partition ids as mixed-radix numbers, and digits of two meshes.

Blocks: offsets, valid sizes and padding of D elements in n parts.

Quotients: maps a*p + (r*p + b) // m, the closed form of halos and interval starts.
"""

from shardalg.merge.lemmas.lemma import Lemma

BLOCK = "D >= 1, n >= 1, s == ceil(D, n), 0 <= i < n"
"""Hypotheses of many lemmas: D elements in n blocks of s elements, and the number i of a block."""

# A lemma whose hypotheses contradict each other would be true of everything. Each mutant, the lemma
# with one part of its text changed, must therefore be refuted.
BLOCKS = (
    Lemma(
        "offset_zero",
        "only the first block has offset 0",
        used="merge/compatible.py: equal offsets mean equally many parts",
        given="D >= 1, n >= 1, s == ceil(D, n), i >= 0, i*s == 0",
        shows="i == 0",
        mutants=(("D >= 1", "D >= 0"),),
    ),
    Lemma(
        "valid_telescopes",
        "the valid parts of the blocks follow each other without gap and end at D",
        used="algebra/offset.py: valid_size",
        given=BLOCK,
        shows="min(i*s, D) + clip(D - i*s, 0, s) == min((i + 1)*s, D), min(n*s, D) == D",
        mutants=(("clip(D - i*s, 0, s)", "clip(D - i*s, 1, s)"), ("min(n*s, D)", "n*s")),
    ),
    Lemma(
        "padding_total",
        "valid size and padding make up the block; all padding together is below n",
        used="algebra/offset.py: padding_expr",
        given=BLOCK,
        shows="clip(D - i*s, 0, s) + clip((i + 1)*s - D, 0, s) == s, n*s - D <= n - 1",
        mutants=(("<= n - 1", "< n - 1"), ("(i + 1)*s - D", "i*s - D")),
    ),
    Lemma(
        "padding_piecewise",
        "with q = D // s, blocks before q have no padding, block q has (q + 1)*s - D, later ones s",
        used="algebra/offset.py: padding_expr",
        given=f"{BLOCK}, q == D // s",
        shows="clip((i + 1)*s - D, 0, s) == (0 if i < q else (q + 1)*s - D if i == q else s)",
        mutants=(("i < q", "i <= q"),),
    ),
    Lemma(
        "even_blocks",
        "if n divides D, there is no padding",
        used="algebra/sharding.py: is_even",
        given=f"{BLOCK}, D == n*k",
        shows="s == k, clip((i + 1)*s - D, 0, s) == 0",
        mutants=(("D == n*k", "D == n*k - 1"),),
    ),
    Lemma(
        "clamped_offsets",
        "two blocks with one clamped offset are the same block, or both are empty",
        used="algebra/sharding.py: shard_slices",
        given=f"{BLOCK}, 0 <= j < n, min(i*s, D) == min(j*s, D)",
        shows="i == j or (i*s >= D and j*s >= D)",
        mutants=(("or (i*s >= D and j*s >= D)", "or i*s > D"),),
    ),
    Lemma(
        "nonempty_count",
        "exactly the first ceil(D / s) blocks have elements",
        used="algebra/offset.py: valid_size",
        given=BLOCK,
        shows="(clip(D - i*s, 0, s) > 0) == (i < ceil(D, s))",
        mutants=(("i < ceil(D, s)", "i <= ceil(D, s)"), ("i < ceil(D, s)", "i < D // s")),
    ),
    Lemma(
        "mask_exact",
        "i*s + x < D holds exactly for the positions x of a block that exist",
        used="planner/partition/choose/node_plan.py: masks of padded loops",
        given=f"{BLOCK}, 0 <= x < s",
        shows="(i*s + x < D) == (x < clip(D - i*s, 0, s))",
        mutants=(("i*s + x < D", "i*s + x <= D"), ("i*s + x < D", "i*s < D")),
    ),
    Lemma(
        "owner_unique",
        "every element is in exactly one block, element // s",
        used="planner/partition/emit/context.py: who computes an iteration",
        given="D >= 1, n >= 1, s == ceil(D, n), 0 <= x < D, i*s <= x < (i + 1)*s",
        shows="i == x // s, 0 <= i < n",
        mutants=(("x < (i + 1)*s", "x <= (i + 1)*s"), ("i < n", "i < n - 1")),
    ),
    # A fine split of a dimension refines a coarse one if each coarse block of s elements is exactly
    # m fine blocks of f elements. The lemmas below also say what goes wrong for uneven blocks.
    Lemma(
        "refine_if",
        "where a coarse block is m fine blocks, ceil(D/n) = m*ceil(D/(n*m)), fine block q*m + r "
        "is inside coarse block q",
        used="merge/compatible.py: refines; planner/reshard/paths.py: pieces that move",
        given="f >= 0, s == m*f, q >= 0, 0 <= r < m",
        shows="q*s <= (q*m + r)*f, (q*m + r)*f + f <= (q + 1)*s",
        mutants=(("r < m", "r <= m"), ("s == m*f", "s >= m*f")),
    ),
    Lemma(
        "refine_rounding",
        "m fine blocks are at least a coarse one; with D and n at least 2 that ends before D",
        used="merge/compatible.py: refines",
        given="D >= 2, n >= 2, m >= 1, s == ceil(D, n), f == ceil(D, n*m)",
        shows="s <= m*f, 1 <= s < D, f >= 1",
        mutants=(("s <= m*f", "s == m*f"), ("n >= 2", "n >= 1")),
    ),
    Lemma(
        "refine_only_if",
        "where m fine blocks are more than a coarse one of s < D elements, fine block s // f holds "
        "element s, and its device the coarse block before it",
        used="merge/compatible.py: refines",
        given="f >= 1, m >= 1, 1 <= s < m*f, j == s // f",
        shows="j*f <= s < (j + 1)*f, 0 <= j < m",
        mutants=(("s < m*f", "s <= m*f"),),
    ),
    Lemma(
        "refine_minor",
        "block 1 of at least 2 elements in at least 2 parts holds element f",
        used="merge/refinement.py: the device at 1 on the most minor axis has elements",
        given="D >= 2, N >= 2, f == ceil(D, N)",
        shows="1 <= f < D",
        mutants=(("D >= 2", "D >= 1"), ("N >= 2", "N >= 1")),
    ),
    Lemma(
        "refine_apart",
        "element 0 is in block 0 alone: a device with block 0 of one sharding and block q >= 1 of "
        "another one has elements outside",
        used="merge/refinement.py: case 2, an axis that the fine sharding lacks",
        given="D >= 1, n >= 1, s == ceil(D, n), q >= 1",
        shows="0 < q*s",
        mutants=(("q >= 1", "q >= 0"), ("D >= 1", "D >= 0")),
    ),
    Lemma(
        "refine_ahead",
        "with no more coarse parts than fine ones, fine block 1 begins before coarse block q >= 2",
        used="merge/refinement.py: case 2, an axis that is more major in the coarse sharding",
        given="D >= 1, n >= 1, N >= n, f == ceil(D, N), s == ceil(D, n), q >= 2",
        shows="f < q*s",
        mutants=(("q >= 2", "q >= 1"), ("N >= n", "N >= 1")),
    ),
)


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


QUOTIENTS = (
    Lemma(
        "ceil_is_floor",
        "rounding up is rounding x + m - 1 down, and rounding -x down the other way round",
        used="algebra/offset.py: block_size; algebra/affine.py: up=True",
        given="m >= 1",
        shows="ceil(x, m) == (x + m - 1) // m, ceil(x, m) == -((-x) // m)",
        mutants=(("x + m - 1", "x + m"), ("(-x) // m", "(1 - x) // m")),
    ),
    Lemma(
        "quotient_whole_part",
        "whole multiples of m leave the quotient as a factor of p",
        used="algebra/affine.py: Quotient.of",
        given="m >= 1",
        shows="((a*m + r)*p + b) // m == a*p + (r*p + b) // m",
        mutants=(("== a*p", "== a*p + 1"), ("(a*m + r)*p", "(a*m + r)*(p + 1)")),
    ),
    Lemma(
        "quotient_gcd",
        "a common factor g of slope and divisor is divided out, the constant rounded down",
        used="algebra/affine.py: Quotient.of",
        given="g >= 1, m >= 1",
        shows="(g*x + b) // (g*m) == (x + b // g) // m",
        mutants=(("x + b // g", "x + ceil(b, g)"),),
    ),
    Lemma(
        "quotient_step",
        "from p to p + 1 a quotient with 0 <= r < m stays or grows by one",
        used="algebra/affine.py: a quotient is monotone in p",
        given="m >= 1, 0 <= r < m",
        shows="0 <= (r*(p + 1) + b) // m - (r*p + b) // m <= 1",
        mutants=(("r < m", "r <= 2*m"), ("<= 1", "<= 0")),
    ),
    Lemma(
        "quotient_endpoint",
        "over a range of p a quotient is largest, and smallest, at an end of the range",
        used="algebra/affine.py: max and min; algebra/halos/halo.py: max_left",
        given="m >= 1, low <= p <= high",
        shows="(a*p + b) // m <= max((a*low + b) // m, (a*high + b) // m), "
        "(a*p + b) // m >= min((a*low + b) // m, (a*high + b) // m)",
        mutants=(("p <= high", "p <= high + 1"), ("max((a*low", "min((a*low")),
    ),
)
