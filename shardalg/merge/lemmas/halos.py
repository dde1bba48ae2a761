"""Lemmas of halos and of exchanges.

Halos: output o of a window reads input (stride*o + dilation*tap - low) / base. Partition i owns
input `[i*s, (i + 1)*s)`. `x` is the numerator of its first window, and `b` the base dilation. Its
windows read elements of `[start, limit)`.

Exchanges: the interval that a device reads, and the rounds that deliver its blocks.
"""

from shardalg.merge.lemmas.lemma import Lemma

READS = (
    "n >= 1, size >= 1, s == ceil(size, n), 0 <= p < n, 0 <= x < s, 0 <= tap < taps, "
    "stride >= 1, dilation >= 1"
)
"""Output x of partition p, which has s outputs, and one tap of its window."""

EXCHANGES = (
    Lemma(
        "interval_reads",
        "from its start stride*s*p - low, the s windows of a device read within "
        "(s - 1)*stride + (taps - 1)*dilation + 1 elements",
        used="algebra/halos/halo.py: interval",
        given=f"{READS}, start == stride*s*p - low",
        shows="0 <= stride*(s*p + x) + dilation*tap - low - start, "
        "stride*(s*p + x) + dilation*tap - low - start < (s - 1)*stride + (taps - 1)*dilation + 1",
        mutants=(("dilation + 1", "dilation"), ("- low - start <", "- start <")),
    ),
    Lemma(
        "interval_exact",
        "numerators in [v, v + span] that m divides have quotients from first = ceil(v / m) on, "
        "(span - phase) // m + 1 of them, the phase being (-v) % m",
        used="algebra/halos/intervals.py: touched, exact division",
        given="m >= 1, v <= m*q <= v + span, first == ceil(v, m), phase == first*m - v",
        shows="0 <= q - first < (span - phase) // m + 1",
        mutants=(
            ("first == ceil(v, m)", "first - 1 == ceil(v, m)"),
            ("(span - phase) // m + 1", "(span - phase) // m"),
        ),
    ),
    Lemma(
        "interval_floor",
        "numerators in [v, v + span] have rounded quotients from v // m on, "
        "(span + v % m) // m + 1 of them",
        used="algebra/halos/intervals.py: touched, division rounded down",
        given="m >= 1, v <= w <= v + span",
        shows="0 <= w // m - v // m < (span + v % m) // m + 1",
        mutants=(("(span + v % m) // m + 1", "span // m + 1"),),
    ),
    Lemma(
        "exchange_contents",
        "element g, y places after the start of an interval, is in the block f + j that round "
        "j brings, and its distance from the start of block f is the one that the slice uses",
        used="algebra/halos/exchange.py: the slice after the rounds",
        given="n >= 1, s >= 1, n*s >= D, 0 <= g < D, y >= 0, f == (g - y) // s, k == g // s",
        shows="f <= k, 0 <= k < n, (k - f)*s + (g - k*s) == (g - y - f*s) + y",
        mutants=(("k < n", "k < n - 1"), ("f <= k", "f < k")),
    ),
    Lemma(
        "exchange_rounds",
        "the rounds from the block of the start to the block of the end contain the interval, "
        "start % s places in",
        used="algebra/halos/exchange.py: rounds and shift",
        given="s >= 1, length >= 1, rounds == (start + length - 1) // s - start // s + 1",
        shows="start % s + length <= rounds*s, (rounds - 1)*s < start % s + length",
        mutants=(("- start // s + 1", "- start // s"),),
    ),
    Lemma(
        "once",
        "every iteration l is computed, by the partition l // s, and by no other one",
        used="planner/partition/choose/assign.py: iterations",
        given="n >= 1, s >= 1, n*s >= E, 0 <= l < E",
        shows="0 <= l // s < n, (l // s)*s <= l < (l // s + 1)*s, "
        "implies(p*s <= l < (p + 1)*s, p == l // s)",
        mutants=(("n*s >= E", "n*s >= E - 1"), ("l < (p + 1)*s", "l <= (p + 1)*s")),
    ),
    Lemma(
        "interleaving_owner",
        "in a dimension e*minor + j the blocks nest if e is split to single elements and minor "
        "evenly: position e*minor + (s*p + x) is element x of block e*n + p",
        used="planner/partition/choose/assign.py: reshaped dimensions",
        given="n >= 1, minor == s*n",
        shows="minor*e + (s*p + x) == (e*n + p)*s + x",
        mutants=(("minor == s*n", "minor == s*n - 1"),),
    ),
    Lemma(
        "selected_shift",
        "an index k = $t + w into block p is found in the block at $t - p*s + w",
        used="graph/ops/local_parameters.py: gather, scatter and dynamic slices",
        given="s >= 1, k == t + w, p*s <= k < (p + 1)*s",
        shows="0 <= t - p*s + w < s",
        mutants=(("t - p*s + w", "t - p*s"),),
    ),
    Lemma(
        "reverse_shift",
        "a reversed block p is the interval of s elements before D - p*s: the block n - 1 - p, "
        "moved by the padding n*s - D",
        used="algebra/halos/intervals.py: reverse_interval",
        given="s >= 1, 0 <= x < s, o == p*s + x, start == D - s - p*s",
        shows="start + (s - 1 - x) == D - 1 - o, start == (n - 1 - p)*s - (n*s - D), "
        "0 <= s - 1 - x < s",
        mutants=(("(n - 1 - p)*s", "(n - p)*s"), ("- (n*s - D)", "")),
    ),
    Lemma(
        "rotate_shift",
        "a rotation by k reads two intervals, at o + k before the wrap and at o + k - D after it",
        used="graph/ops/canonicalize/boxes.py: rotations",
        given="0 <= k < D, 0 <= o < D",
        shows="(o + k) % D == (o + k if o + k < D else o + k - D)",
        mutants=(("o + k < D", "o + k <= D"),),
    ),
    Lemma(
        "reshape_realignment",
        "flat blocks of a elements become blocks of c: partition i reads (a - c)*i before its "
        "own block and (c - a)*(i + 1) after it",
        used="algebra/halos/intervals.py: reshape_interval",
        given="a >= 1, c >= 1, i >= 0, i*c <= x < (i + 1)*c, left == (a - c)*i, "
        "right == (c - a)*(i + 1)",
        shows="i*a - left <= x < (i + 1)*a + right",
        mutants=(("right == (c - a)*(i + 1)", "right == (c - a)*i"),),
    ),
    Lemma(
        "slice_window",
        "x[start:limit:stride] is a window of one tap with low padding -start: its outputs are "
        "the elements start + stride*o below limit",
        used="algebra/halos/window.py: slice_window",
        given="stride >= 1, 0 <= start < limit, count == (limit - start - 1) // stride + 1",
        shows="(0 <= o < count) == (start <= start + stride*o < limit)",
        mutants=(("limit - start - 1", "limit - start"),),
    ),
    Lemma(
        "pipeline_shift",
        "each stage passes its value to the next one: the block of stages "
        "[i*s, (i + 1)*s) reads one element on its left and none on its right",
        used="algebra/halos/halo.py: pipelines, left 1 and right -1",
        given="s >= 1, i*s <= stage < (i + 1)*s",
        shows="i*s - 1 <= stage - 1 < (i + 1)*s - 1",
        mutants=(("i*s - 1 <=", "i*s <="),),
    ),
)


HALOS = (
    Lemma(
        "halo_start",
        "the first element at or after place x of an input dilated by b is ceil(x / b)",
        used="algebra/halos/halo.py: start",
        given="b >= 1, start == ceil(x, b)",
        shows="start*b >= x, implies(k*b >= x, k >= start)",
        mutants=(("start*b >= x", "start*b > x"), ("k >= start", "k > start")),
    ),
    Lemma(
        "halo_last_window",
        "of `count` windows `stride` apart the last one starts furthest on",
        used="algebra/halos/halo.py: limit",
        given="stride >= 1, 0 <= o < count",
        shows="0 <= stride*o <= stride*(count - 1)",
        mutants=(("o < count", "o <= count"),),
    ),
    Lemma(
        "halo_reads",
        "every element that a tap of a window reads is in [start, limit)",
        used="algebra/halos/halo.py: start and limit",
        given="b >= 1, extent >= 1, 0 <= w <= last, 0 <= t < extent, "
        "start == ceil(x, b), limit == ceil(x + last + extent, b), x + w + t == k*b",
        shows="start <= k < limit",
        mutants=(("ceil(x + last + extent, b)", "ceil(x + last + extent - 1, b)"),),
    ),
    Lemma(
        "halo_tight",
        "without base dilation the first tap of the first window reads `start` and the last tap "
        "of the last window `limit - 1`: no halo is too wide",
        used="algebra/halos/halo.py: exchanged sizes",
        given="start == ceil(x, 1), limit == ceil(x + last + extent, 1)",
        shows="start == x, limit - 1 == x + last + (extent - 1)",
        mutants=(("limit - 1", "limit"),),
    ),
    Lemma(
        "halo_left_right",
        "with left = i*s - start and right = limit - (i + 1)*s, the elements that are read are "
        "between left elements before the own block and right elements after it",
        used="algebra/halos/halo.py: left and right",
        given="left == i*s - start, right == limit - (i + 1)*s, start <= k < limit",
        shows="i*s - left <= k < (i + 1)*s + right",
        mutants=(("right == limit", "right + 1 == limit"), ("left == i*s", "left + 1 == i*s")),
    ),
    Lemma(
        "halo_hops",
        "a halo of left elements needs the ceil(left / s) blocks before the own one, no fewer",
        used="algebra/halos/halo.py: hops",
        given="s >= 1, left >= 1, h == ceil(left, s)",
        shows="(i - h)*s <= i*s - left, i*s - left < (i - h + 1)*s",
        mutants=(("h == ceil", "h + 1 == ceil"), ("h == ceil", "h - 1 == ceil")),
    ),
    Lemma(
        "halo_case_1",
        "if the base dilation divides the step of the windows, b*j with j = q*i on partition i, "
        "the start is affine in i and the padding in front of it constant",
        used="algebra/halos/halo.py: case 1",
        given="b >= 1, start == ceil(b*j - low, b), first == ceil(-low, b)",
        shows="start == j + first, start*b - (b*j - low) == first*b + low",
        mutants=(("first == ceil(-low, b)", "first == (-low) // b"),),
    ),
    Lemma(
        "halo_phase",
        "the padding in front of the first element, start*b - x, is at least 0 and below b",
        used="algebra/halos/halo.py: padding_low",
        given="b >= 1, start == ceil(x, b)",
        shows="0 <= start*b - x < b, start*b - x == (-x) % b",
        mutants=(("start*b - x < b", "start*b - x < b - 1"), ("(-x) % b", "x % b")),
    ),
    Lemma(
        "halo_case_2",
        "stride 1: in a buffer that begins `most` places before the first element, the windows of "
        "partition i begin most - pad places in: computed from place 0 on, their outputs are "
        "sliced there",
        used="algebra/halos/halo.py: case 2",
        given="start*b == x + pad, 0 <= pad <= most, begin == start*b - most",
        shows="(x + o) - begin == (most - pad) + o, 0 <= most - pad <= most",
        mutants=(("begin == start*b - most", "begin == start*b"),),
    ),
    Lemma(
        "halo_case_3",
        "any stride: windows widened by `most` places, with the kernel placed most - pad in, read "
        "at the places of the unpartitioned windows",
        used="algebra/halos/halo.py: case 3",
        given="start*b == x + pad, 0 <= pad <= most, begin == start*b - most, 0 <= t < extent",
        shows="begin + stride*o + (most - pad) + t == x + stride*o + t, "
        "0 <= (most - pad) + t < extent + most",
        mutants=(("(most - pad) + t", "pad + t"), ("t < extent + most", "t < extent + most - 1")),
    ),
    Lemma(
        "halo_local_length",
        "places [x, x + length) of an input dilated by b hold ceil((length - pad) / b) elements",
        used="algebra/halos/halo.py: length",
        given="b >= 1, start == ceil(x, b), pad == start*b - x",
        shows="ceil(x + length, b) - start == ceil(length - pad, b)",
        mutants=(("length - pad", "length"),),
    ),
    Lemma(
        "halo_largest_length",
        "the number of elements in places [x, x + length) is at most ceil(length / b), and at "
        "least length // b",
        used="algebra/halos/halo.py: length",
        given="b >= 1",
        shows="length // b <= ceil(x + length, b) - ceil(x, b) <= ceil(length, b)",
        mutants=(("<= ceil(length, b)", "<= length // b"),),
    ),
    Lemma(
        "halo_largest_phase",
        "a phase l + g*t with l < g, below b = g*c, is at most l + b - g",
        used="algebra/halos/halo.py: max_padding_low",
        given="g >= 1, c >= 1, 0 <= l < g, l + g*t < g*c",
        shows="l + g*t <= l + g*c - g",
        mutants=(("<= l + g*c - g", "<= l + g*c - 2*g"),),
    ),
    Lemma(
        "halo_tap",
        "if a tap of output o reads an element of [0, size), o is between two quotients",
        used="algebra/halos/halo.py: reads",
        given="stride >= 1, b >= 1, 0 <= k < size, b*k == stride*o - low",
        shows="ceil(low, stride) <= o, o <= ((size - 1)*b + low) // stride",
        mutants=(
            ("ceil(low, stride) <= o", "ceil(low, stride) < o"),
            ("(size - 1)*b", "(size - 2)*b"),
        ),
    ),
)
