"""Lemmas of blocks: offsets, valid sizes and padding of D elements in n parts."""

from shardalg.merge.lemmas.lemma import Lemma

BLOCK = "D >= 1, n >= 1, s == ceil(D, n), 0 <= i < n"

BLOCKS = (
    Lemma(
        "offset_zero",
        "only the first block lies at offset 0",
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
        "where n divides D nothing is padded",
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
        "exactly the first ceil(D / s) blocks hold something",
        used="algebra/offset.py: valid_size",
        given=BLOCK,
        shows="(clip(D - i*s, 0, s) > 0) == (i < ceil(D, s))",
        mutants=(("i < ceil(D, s)", "i <= ceil(D, s)"), ("i < ceil(D, s)", "i < D // s")),
    ),
    Lemma(
        "mask_exact",
        "i*s + x < D holds exactly for the positions x of a block that exist",
        used="partition/choose/node_plan.py: masks of padded loops",
        given=f"{BLOCK}, 0 <= x < s",
        shows="(i*s + x < D) == (x < clip(D - i*s, 0, s))",
        mutants=(("i*s + x < D", "i*s + x <= D"), ("i*s + x < D", "i*s < D")),
    ),
    Lemma(
        "owner_unique",
        "every element lies in exactly one block, element // s",
        used="partition/emit/context.py: who computes an iteration",
        given="D >= 1, n >= 1, s == ceil(D, n), 0 <= x < D, i*s <= x < (i + 1)*s",
        shows="i == x // s, 0 <= i < n",
        mutants=(("x < (i + 1)*s", "x <= (i + 1)*s"), ("i < n", "i < n - 1")),
    ),
    Lemma(
        "refine_if",
        "where a coarse block is m fine blocks, ceil(D/n) = m*ceil(D/(n*m)), fine block q*m + r "
        "lies inside coarse block q",
        used="merge/compatible.py: refines; reshard/paths.py: pieces that move",
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
