"""Rows of operators that need all elements along a loop (sort, fft, factorisations).

Such a loop is whole: its dimension is gathered before the operator runs. Docstrings show a row as
`operand indices -> result indices`, one loop per dimension. Whole loops have upper-case names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from shardalg.graph.ir import Signature
from shardalg.graph.ops.families.building import Builder, access, indices, names
from shardalg.graph.ops.rule import TOP, Rule

LINEAR_ALGEBRA = """
cholesky cholesky_update eig eigh geqp3 geqrf hessenberg householder_product
lu lu_pivots_to_permutation ormqr qr schur svd symmetric_product tridiagonal tridiagonal_solve
"""
RANDOM = """
from_edtype random_bits random_gamma random_seed rng_bit_generator to_edtype
"""
KEYS = "random_clone random_fold_in random_split random_unwrap random_wrap"
EACH_ON_ITS_OWN = ("key<fry>", "key<rbg>")
"""Key types of which JAX splits and folds each key separately.

For other types it draws bits from the first key only.
"""
VECTORS = ("tridiagonal_solve", "lu_pivots_to_permutation")


Maps = Sequence[Sequence[str]]


def blocks(signature: Signature, reads: Maps, writes: Maps, flops: int) -> Rule:
    """Return a row in which every dimension is indexed by one loop.

    Loops with an upper-case name are whole: they are never sharded. For a sort along dimension 1,
    reads and writes are (("d0", "N"),).

    Args:
      reads, writes: for each operand and each result, the loop of each dimension.
      flops: operations per iteration.
    """
    extents: dict[str, int] = {}
    values = (*signature.operands, *signature.results)
    for value, loops in zip(values, (*reads, *writes), strict=True):
        extents.update(zip(loops, value.shape, strict=True))
    return Rule(
        signature.primitive,
        loops=tuple(extents.items()),
        terms=(tuple(access(k, loops) for k, loops in enumerate(reads)),),
        results=tuple(indices(loops) for loops in writes),
        whole=frozenset(name for name in extents if name[0].isupper()),
        flops=flops,
    )


def levels(size: int) -> int:
    """Return `ceil(log2(size))`, at least 1.

    This is the number of rounds of a sort or a Fourier transform. A named size is only compared
    with powers of two, so that a plan is valid for all sizes between two of them.

    >>> [levels(size) for size in (1, 2, 3, 8, 9)]
    [1, 1, 2, 3, 4]
    """
    num_levels = 1
    while size > 1 << num_levels:
        num_levels += 1
    return num_levels


def sort(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a sort along L, which needs log2(L) comparisons per element.

    For two operands it is `[d0, L], [d0, L] -> [d0, L], [d0, L] whole [L]`.
    """
    shape = signature.operands[0].shape
    axis = signature.param("dimension")
    loops = ["L" if d == axis else f"d{d}" for d in range(len(shape))]
    loops_of_operands = [loops] * len(signature.operands)
    return (blocks(signature, loops_of_operands, loops_of_operands, levels(shape[axis])),)


def top_k(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a `top_k`: `[d0, l] -> [d0, K], [d0, K] top [l] whole [K]`.

    The results are the largest elements and their positions. The loop l may be sharded, because the
    k largest elements of all are among the k largest elements of each block.
    """
    rank = len(signature.operands[0].shape)
    axis = signature.param("axis", -1) % rank
    read_loops = ["l" if d == axis else f"d{d}" for d in range(rank)]
    result_loops = ["K" if d == axis else f"d{d}" for d in range(rank)]
    row = blocks(signature, [read_loops], [result_loops] * len(signature.results), 1)
    return (replace(row, combine=TOP),)


def approx_top_k(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of an `approx_top_k`: `[d0, L] -> [d0, K], [d0, K] whole [K, L]`.

    L is whole because XLA distributes all elements to bins and keeps the largest one of each.
    """
    rank = len(signature.operands[0].shape)
    axis = signature.param("reduction_dimension") % rank
    read_loops = ["L" if d == axis else f"d{d}" for d in range(rank)]
    result_loops = ["K" if d == axis else f"d{d}" for d in range(rank)]
    row = blocks(signature, [read_loops], [result_loops] * len(signature.results), 1)
    return (replace(row, batched=True),)


def fft(signature: Signature) -> tuple[Rule, ...]:
    """Return the row `[d0, F1] -> [d0, H1]` of a Fourier transform along the last dimensions.

    It has 5 log2(n) operations per element.
    """
    shape, sizes = signature.operands[0].shape, signature.param("fft_lengths")
    kept = names("d", len(shape) - len(sizes))
    # The transformed dimensions may differ in size between operand and result (real transforms).
    around = range(len(kept), len(shape))
    read, write = ([*kept, *(f"{letter}{d}" for d in around)] for letter in "FH")
    return (blocks(signature, [read], [write], 5 * levels(math.prod(sizes))),)


def triangular_solve(signature: Signature) -> tuple[Rule, ...]:
    """Return the row `[d0, I, J], [d0, I, c] -> [d0, I, c]` of a `triangular_solve`.

    The columns c of the right side are independent, so that this loop may be sharded.
    """
    batch = names("d", len(signature.operands[0].shape) - 2)
    right = ["I", "c"] if signature.param("left_side") else ["c", "I"]
    row = blocks(signature, [[*batch, "I", "J"], [*batch, *right]], [[*batch, *right]], 1)
    return (row,)


def linear_algebra(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of an operator of linear algebra, such as a Cholesky factorisation.

    The leading dimensions of the first operand are batch loops; all other dimensions are whole.
    Each batch element takes O(n^3) operations.
    """
    # One call factorises a matrix, the last two dimensions, or works on a vector, the last one. All
    # dimensions in front of it are independent calls.
    core = 1 if signature.primitive in VECTORS else 2
    shape = signature.operands[0].shape
    row = _batched_row(signature, max(len(shape) - core, 0), shape[-1] if core == 2 else 1)
    return (replace(row, batched=True),)


def opaque(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of an operator in which no dimension may be sharded.

    Each device computes the whole result from whole operands.
    """
    return (_batched_row(signature, 0, 1),)


def keys(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of an operator on random keys, such as `[d0] -> [d0, W0]`.

    The keys of an array are independent, so d0 may be sharded. The words of a key and the new keys
    that are made from it are whole.
    """
    values = (*signature.operands, *signature.results)
    # Each key is independent of the others. The dimensions that all values share are the array of
    # keys; further ones are the words of a key, or the new keys made from it.
    count = min(len(value.shape) for value in values)
    alike = len({value.shape[:count] for value in values}) == 1
    drawn = signature.primitive in ("random_fold_in", "random_split")
    if not alike or (drawn and signature.operands[0].dtype not in EACH_ON_ITS_OWN):
        return opaque(signature)
    return (replace(_batched_row(signature, count, 1), batched=True),)


def _batched_row(signature: Signature, count: int, flops: int) -> Rule:
    """Return a row with `count` leading batch dimensions; all other dimensions are whole.

    Args:
      flops: operations per iteration.
    """
    # Whole dimensions of different values may differ in size, so each has a loop of its own.
    numbered = 0
    maps = []
    for value in (*signature.operands, *signature.results):
        extra = max(len(value.shape) - count, 0)
        whole_loops = [f"W{numbered + k}" for k in range(extra)]
        maps.append([*names("d", len(value.shape) - extra), *whole_loops])
        numbered += extra
    split = len(signature.operands)
    return blocks(signature, maps[:split], maps[split:], flops)


ROWS: dict[str, Builder] = {
    "sort": sort,
    "top_k": top_k,
    "approx_top_k": approx_top_k,
    "fft": fft,
    "triangular_solve": triangular_solve,
    **dict.fromkeys(LINEAR_ALGEBRA.split(), linear_algebra),
    **dict.fromkeys(RANDOM.split(), opaque),
    **dict.fromkeys(KEYS.split(), keys),
}
