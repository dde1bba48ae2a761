"""Lemmas of halos: output o of a window reads input (stride*o + dilation*tap - low) / base.

Partition i owns input `[i*s, (i + 1)*s)`. `x` is the numerator of its first window, and `b` the
base dilation; `start` and `limit` bound what its windows read.
"""

from shardalg.merge.lemmas.lemma import Lemma

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
        "every element that a tap of a window reads lies in [start, limit)",
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
        "with left = i*s - start and right = limit - (i + 1)*s, what is read lies between left "
        "elements before the own block and right elements after it",
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
        "where the base dilation divides the step of the windows, b*j with j = q*i on partition i, "
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
        "that is at most ceil(length / b), and at least its floor",
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
        "an output o of which a tap reads an element of [0, size) lies between two quotients",
        used="algebra/halos/halo.py: reads",
        given="stride >= 1, b >= 1, 0 <= k < size, b*k == stride*o - low",
        shows="ceil(low, stride) <= o, o <= ((size - 1)*b + low) // stride",
        mutants=(
            ("ceil(low, stride) <= o", "ceil(low, stride) < o"),
            ("(size - 1)*b", "(size - 2)*b"),
        ),
    ),
)
