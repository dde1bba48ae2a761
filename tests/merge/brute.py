"""The definitions themselves, by enumeration: the judges of the closed forms."""

import itertools
from collections import Counter
from functools import cache

from shardalg.algebra.digits import Digit
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding


@cache
def tables(size, rank=2):
    """Every valid sharding of a rank-2 tensor over `size` devices: balanced partition ids."""
    found = []
    for counts in itertools.product(range(1, size + 1), repeat=rank):
        tiles = list(itertools.product(*(range(n) for n in counts)))
        if size % len(tiles) == 0:
            found += [(counts, held) for held in _placements(tiles, size)]
    return found


def _placements(tiles, size):
    """Every way to give each tile to equally many devices."""
    share = size // len(tiles)
    return sorted(set(itertools.permutations([t for t in tiles for _ in range(share)])))


def sharding_of(table, shape):
    """Return a table as a sharding, on a mesh whose device order makes it digits."""
    counts, held = table
    size, dims = len(held), []
    order = sorted(range(size), key=lambda device: (held[device], device))
    stride = size
    for n in counts:
        stride //= n
        dims.append((Digit(stride, n),) if n > 1 else ())
    return Sharding(Mesh.unnamed(size, order), shape, tuple(dims))


def digit_shardings(mesh, shape):
    """Every sharding by axes of the mesh."""
    names = mesh.axis_names
    entries = [p for n in range(len(names) + 1) for p in itertools.permutations(names, n)]
    return [
        Sharding.from_axes(row, mesh, shape)
        for row in itertools.product(entries, repeat=len(shape))
        if len({a for e in row for a in e}) == sum(map(len, row))
    ]


def offsets(sharding):
    """Per dimension that is split, the offset on each device."""
    size = sharding.mesh.size
    return {
        dim: [sharding.shard_offset(device, dim) for device in range(size)]
        for dim, n in enumerate(sharding.parts)
        if n > 1
    }


def agrees(table, given, shape):
    """Return True if a table has all offsets of a sharding's split dimensions."""
    counts, held = table
    return all(
        [tile[dim] * -(-shape[dim] // counts[dim]) for tile in held] == wanted
        for dim, wanted in given.items()
    )


def compatible(first, second):
    """Return True by the definition: some valid sharding has the offsets of both."""
    given = [offsets(first), offsets(second)]
    return any(
        all(agrees(table, g, first.shape) for g in given) for table in tables(first.mesh.size)
    )


def balanced(sharding):
    size, rank = sharding.mesh.size, len(sharding.shape)
    tiles = Counter(
        tuple(sharding.partition_id(device, dim) for dim in range(rank)) for device in range(size)
    )
    return len(set(tiles.values())) == 1


def is_merge(result, first, second):
    """Return True if it has both operands' offsets, no other split dimension, and is balanced."""
    held, given = offsets(result), offsets(first) | offsets(second)
    return held == given and balanced(result)


def contained(fine, coarse):
    """Return True by the definition of refinement, element by element."""
    for device in fine.mesh.order:
        blocks = [s.shard_slices(device) for s in (fine, coarse)]
        cells = [
            set(itertools.product(*(range(s.start, s.stop) for s in block))) for block in blocks
        ]
        if not cells[0] <= cells[1]:
            return False
    return True


def place_id(sharding, place, device):
    """Partition id of a dimension or a class on a device, digit by digit."""
    position, number = sharding.mesh.order.index(device), 0
    for digit in _digits(sharding, place):
        number = number * digit.size + position // digit.stride % digit.size
    return number


def _digits(sharding, place):
    if isinstance(place, int):
        return sharding.dims[place]
    return sorted(getattr(sharding, place), reverse=True)


def check_witness(verdict):
    """Compute the numbers of a refusal again from its shardings."""
    witness, pair = verdict.witness, verdict.pair
    if not witness.tile:
        rows = [_offset(s, witness.dim, witness.device) for s in pair]
        assert tuple(rows) == witness.offsets
        if verdict.failure.kind == "contained":
            a, b = (s.shard_slices(witness.device)[witness.dim] for s in pair)
            assert a.start < a.stop
            assert a.start < b.start or a.stop > b.stop
        else:
            assert rows[0] != rows[1]
        return
    owners = [[s for s in pair if _digits(s, place)] for place in witness.dims]
    assert any(_miscounted(witness, chosen) for chosen in itertools.product(*owners))


def _offset(sharding, place, device):
    number = place_id(sharding, place, device)
    return number * max(1, sharding.shard_shape[place]) if isinstance(place, int) else number


def _miscounted(witness, owners):
    """Return True unless the tile is on the witness's number of devices, not its share."""
    held, devices, tiles = 0, owners[0].mesh.order, 1
    for owner, place in zip(owners, witness.dims, strict=True):
        tiles *= len({place_id(owner, place, device) for device in devices})
    for device in devices:
        ids = (place_id(s, p, device) for s, p in zip(owners, witness.dims, strict=True))
        held += tuple(ids) == witness.tile
    return held == witness.count and held * tiles != len(devices)
