"""XLA's rule for containment of shardings, and pairs of shardings to compare it with ours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from shardalg.algebra.digits import Digit
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding


def xla_contains(fine: Sharding, coarse: Sharding) -> bool:
    """Return XLA's answer to `refines(fine, coarse)`, which is not exact on uneven sizes.

    XLA compares the starts of the blocks, for each device and dimension. It compares the ends only
    if the fine block ends inside the tensor: `p*f + f <= D and p*f + f > q*c + c` is a fault, but
    a block that reaches beyond the end is never one. Empty blocks count as if they had elements. If
    all blocks are full and divide each other, XLA compares the device lists instead. Unreduced and
    manual parts are left out here.

    Source: `IsSubTilingOrEqualSharding` in xla/hlo/utils/hlo_sharding_util.cc (openxla/xla at
    183fa00, 2026-08-22), restated from its source, not run.

    >>> order = Mesh({"x": 6}, device_ids=[0, 1, 3, 2, 4, 5])
    >>> six = Sharding.from_axes(["x"], order, (7,))
    >>> two = Sharding.from_axes(["x"], Mesh({"x": 2, "y": 3}), (7,))
    >>> xla_contains(six, two), six.shard_slices(2), two.shard_slices(2)
    (True, (slice(6, 7, None),), (slice(0, 4, None),))
    """
    # Each block of every sharding is inside the whole tensor, but not the other way round.
    if all(n == 1 for n in coarse.parts):
        return True
    if all(n == 1 for n in fine.parts):
        return False
    if any(n < m for n, m in zip(fine.parts, coarse.parts, strict=True)):
        return False
    if _all_full(fine, coarse):
        return _same_groups(fine, coarse)
    return all(_starts_inside(fine, coarse, device) for device in fine.mesh.order)


def _all_full(fine: Sharding, coarse: Sharding) -> bool:
    """Return whether fine blocks divide coarse blocks, and no block of either sharding is empty.

    Dimensions that `coarse` does not split are not checked.
    """
    # Per dimension: its size, the numbers of parts n and m, the block sizes f and c. The last block
    # is not empty if the blocks before it do not cover the dimension: size > (n - 1) * f.
    rows = zip(
        fine.shape, fine.parts, coarse.parts, fine.shard_shape, coarse.shard_shape, strict=True
    )
    return all(
        m == 1 or (n % m == 0 and c % f == 0 and size > (n - 1) * f and size > (m - 1) * c)
        for size, n, m, f, c in rows
    )


def _same_groups(fine: Sharding, coarse: Sharding) -> bool:
    """Return whether each coarse tile has the devices of the fine tiles that it consists of.

    E.g. 4 fine tiles and 2 coarse ones: a device with the fine tile 3 must have the coarse tile
    3 // 2 = 1.
    """
    # The number of fine tiles in a coarse one, per dimension.
    ratios = [n // m for n, m in zip(fine.parts, coarse.parts, strict=True)]
    # If each device has a coarse tile of its own, no tile can consist of the tiles of several
    # devices.
    if math.prod(coarse.parts) == coarse.mesh.size and math.prod(ratios) > 1:
        return False
    return all(
        fine.partition_id(device, dim) // ratio == coarse.partition_id(device, dim)
        for device in fine.mesh.order
        for dim, ratio in enumerate(ratios)
    )


def _starts_inside(fine: Sharding, coarse: Sharding, device: int) -> bool:
    """Return whether a device's block under `fine` is inside its block under `coarse`, as XLA says.

    XLA compares the starts of the blocks along each dimension. It compares the ends only if the
    fine block ends inside the tensor.
    """
    for dim, size in enumerate(fine.shape):
        start, outer = (s.shard_offset(device, dim) for s in (fine, coarse))
        end, outer_end = start + fine.shard_shape[dim], outer + coarse.shard_shape[dim]
        if start < outer or (end <= size and end > outer_end):
            return False
    return True


def small_containments(size: int, lengths: range) -> Iterator[tuple[Sharding, Sharding]]:
    """Yield pairs (fine, coarse) of shardings of one dimension on `size` devices.

    There is a pair for every two numbers of parts above 1 that divide `size`. The mesh of the first
    sharding has its devices in every order, the second in natural order. Containment is not
    checked, so the names say only which argument of `refines` each sharding is for.

    Args:
      size: the number of devices.
      lengths: the sizes of the tensor's only dimension, in elements.

    >>> pairs = list(small_containments(4, range(1, 13)))
    >>> len(pairs)  # 24 orders, 2- and 4-way both, 12 lengths
    1152
    """
    counts = [n for n in range(2, size + 1) if size % n == 0]
    natural = Mesh({"x": size})
    for order in itertools.permutations(range(size)):
        mesh = Mesh({"x": size}, order)
        for n, m, length in itertools.product(counts, counts, lengths):
            fine, coarse = ((Digit(size // k, k),) for k in (n, m))
            yield Sharding(mesh, (length,), (fine,)), Sharding(natural, (length,), (coarse,))
