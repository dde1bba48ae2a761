"""Lemmas of exchanges: the interval that a device reads, and the blocks that bring it."""

from shardalg.merge.lemmas.lemma import Lemma

READS = (
    "n >= 1, size >= 1, s == ceil(size, n), 0 <= p < n, 0 <= x < s, 0 <= tap < taps, "
    "stride >= 1, dilation >= 1"
)

EXCHANGES = (
    Lemma(
        "interval_reads",
        "from its start stride*s*p - low, the s windows of a device read within "
        "(s - 1)*stride + (taps - 1)*dilation + 1 elements",
        used="intervals: start and length",
        given=f"{READS}, start == stride*s*p - low",
        shows="0 <= stride*(s*p + x) + dilation*tap - low - start, "
        "stride*(s*p + x) + dilation*tap - low - start < (s - 1)*stride + (taps - 1)*dilation + 1",
        mutants=(("dilation + 1", "dilation"), ("- low - start <", "- start <")),
    ),
    Lemma(
        "interval_reads_dilated",
        "with base dilation b the numerators are divided: start and length are rounded up",
        used="intervals: start and length",
        given="b >= 1, first <= b*q < first + length, start == ceil(first, b)",
        shows="start <= q < start + ceil(length, b)",
        mutants=(
            ("start == ceil(first, b)", "start == first // b"),
            ("ceil(length, b)", "length // b"),
        ),
    ),
    Lemma(
        "exchange_contents",
        "element g, y places after the start of an interval, lies in the block f + j that round "
        "j brings, and from the start of block f it stands where the slice takes it",
        used="exchanges: rounds and the slice after them",
        given="n >= 1, s >= 1, n*s >= D, 0 <= g < D, y >= 0, f == (g - y) // s, k == g // s",
        shows="f <= k, 0 <= k < n, (k - f)*s + (g - k*s) == (g - y - f*s) + y",
        mutants=(("k < n", "k < n - 1"), ("f <= k", "f < k")),
    ),
    Lemma(
        "exchange_rounds",
        "an interval of length elements starts in block f and ends before block "
        "f + (length + 2*s - 2) // s",
        used="exchanges: number of rounds",
        given="s >= 1, length >= 1, f == start // s, 0 <= y < length",
        shows="f <= (start + y) // s, (start + y) // s < f + (length + 2*s - 2) // s",
        mutants=(("length + 2*s - 2", "length + s - 1"),),
    ),
    Lemma(
        "once",
        "every iteration l is computed, by the partition l // s, and by no other one",
        used="partition/assign.py: iterations",
        given="n >= 1, s >= 1, n*s >= E, 0 <= l < E",
        shows="0 <= l // s < n, (l // s)*s <= l < (l // s + 1)*s, "
        "implies(p*s <= l < (p + 1)*s, p == l // s)",
        mutants=(("n*s >= E", "n*s >= E - 1"), ("l < (p + 1)*s", "l <= (p + 1)*s")),
    ),
    Lemma(
        "interleaving_owner",
        "in a dimension e*minor + j the blocks nest if e is split to single elements and minor "
        "evenly: position e*minor + (s*p + x) is element x of block e*n + p",
        used="partition/assign.py: reshaped dimensions",
        given="n >= 1, minor == s*n",
        shows="minor*e + (s*p + x) == (e*n + p)*s + x",
        mutants=(("minor == s*n", "minor == s*n - 1"),),
    ),
    Lemma(
        "selected_shift",
        "an index k = $t + w into block p is found in the block at $t - p*s + w",
        used="ops/emit.py: gather, scatter and dynamic slices",
        given="s >= 1, k == t + w, p*s <= k < (p + 1)*s",
        shows="0 <= t - p*s + w < s",
        mutants=(("t - p*s + w", "t - p*s"),),
    ),
    Lemma(
        "reverse_shift",
        "reversed blocks in reversed order hold the reversed tensor, n*s - D places late",
        used="reversal: a permutation and one constant shift",
        given="n >= 1, s >= 1, 0 <= i < n, 0 <= x < s, o == i*s + x",
        shows="((n - 1 - i)*s + (s - 1 - x)) - (n*s - D) == D - 1 - o",
        mutants=(("(n - 1 - i)*s", "(n - i)*s"), ("(n*s - D)", "n*s")),
    ),
    Lemma(
        "rotate_shift",
        "a rotation by k is two constant shifts: o - k, or o - k + D where that is negative",
        used="rotation: two slices that are joined",
        given="0 <= k <= D, 0 <= o < D",
        shows="(o - k) % D == (o - k if o >= k else o - k + D)",
        mutants=(("o >= k", "o > k"),),
    ),
    Lemma(
        "reshape_realignment",
        "flat blocks of a elements become blocks of c: partition i reads (a - c)*i before its "
        "own block and (c - a)*(i + 1) after it",
        used="reshapes of uneven dimensions",
        given="a >= 1, c >= 1, i >= 0, i*c <= x < (i + 1)*c, left == (a - c)*i, "
        "right == (c - a)*(i + 1)",
        shows="i*a - left <= x < (i + 1)*a + right",
        mutants=(("right == (c - a)*(i + 1)", "right == (c - a)*i"),),
    ),
    Lemma(
        "slice_window",
        "a slice is a window of one tap: partition i of the result reads within (s - 1)*step + 1 "
        "elements from step*s*i + first on",
        used="slices: realignment",
        given="step >= 1, s >= 1, 0 <= x < s, start == step*s*i + first",
        shows="start <= step*(s*i + x) + first, step*(s*i + x) + first <= start + (s - 1)*step",
        mutants=(("(s - 1)*step", "(s - 1)"),),
    ),
    Lemma(
        "pipeline_shift",
        "stages hand on by one: the block of stages [i*s, (i + 1)*s) reads one element on its left "
        "and none on its right",
        used="pipelines: one permute",
        given="s >= 1, i*s <= stage < (i + 1)*s",
        shows="i*s - 1 <= stage - 1 < (i + 1)*s - 1",
        mutants=(("i*s - 1 <=", "i*s <="),),
    ),
)
