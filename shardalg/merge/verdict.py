"""What deciding two shardings gives: the answer, and for a refusal its reason and its witness."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from shardalg.algebra.digits import Digit, Digits, nested, partition_id, parts
from shardalg.algebra.sharding import Sharding

# Layout classes that stand beside the dimensions, in the order of `Sharding.classes`.
CLASSES = ("unreduced", "manual", "replicated")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why two shardings are refused.

    Attributes:
      kind: "offset" (a dimension lies differently), "order" (the same, of two device orders),
        "overlap" (two dimensions would share a digit), "joint" (several are unbalanced together),
        "closed" (a dimension that may not be refined), "class" (unreduced or manual digits
        differ), "contained" (a block is not inside the other one).
      dims: the dimensions at fault; a class stands as its name.
    """

    kind: str
    dims: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Witness:
    """A concrete case that shows a refusal.

    Attributes:
      device, dim: where the two shardings differ, with the offsets that they give.
      dims, tile: the tile that `count` devices would hold in place of `expected`.
    """

    device: int | None = None
    dim: int | str | None = None
    offsets: tuple[int, int] | None = None
    dims: tuple[int | str, ...] = ()
    tile: tuple[int, ...] = ()
    count: int | None = None
    expected: int | None = None


@dataclass(frozen=True)
class Verdict:
    """The answer to a question about two shardings; true or false as itself.

    Attributes:
      relation: "merge", "compatible" or "refines".
      operands: the two shardings, the second one written in positions of the first one's mesh.
      sharding: for a merge, the coarsest sharding that both agree with; None if refused.
      failure: what is wrong; None if nothing is.
    """

    relation: str
    operands: tuple[Sharding, Sharding]
    policy: str = "gspmd"
    sharding: Sharding | None = None
    failure: Failure | None = None

    def __bool__(self) -> bool:
        return self.failure is None

    @property
    def ok(self) -> bool:
        """Whether the relation holds."""
        return self.failure is None

    @cached_property
    def witness(self) -> Witness | None:
        """A device or a tile that shows the refusal; None where the relation holds."""
        return None if self.failure is None else _WITNESS[self.failure.kind](self)

    @cached_property
    def reason(self) -> str:
        """The answer in words, with the shardings and the witness."""
        return _reason(self)

    @cached_property
    def condition(self) -> str | None:
        """What must hold of the axis sizes where digits of different meshes meet, else None.

        Two digits of one mesh need no condition: their answer is the same for all sizes.
        """
        digits = [[d for _, held in placed(s) for d in held] for s in self.operands]
        facts = (_fact(a, b) for a in digits[0] for b in digits[1] if not nested(a, b) and a != b)
        return " and ".join(dict.fromkeys(f for f in facts if f)) or None

    def __repr__(self) -> str:
        answer = repr(self.sharding) if self.sharding is not None and self else self.reason
        return f"Verdict({'ok' if self else 'refused'}, {self.relation}: {answer})"


def placed(sharding: Sharding) -> Iterator[tuple[int | str, Digits]]:
    """The digits of every dimension and class that has some, canonical."""
    yield from ((i, d) for i, d in enumerate(sharding.canonical_dims) if d)
    yield from ((c, d) for c, d in zip(CLASSES, sharding.classes, strict=True) if d)


def digits_at(sharding: Sharding, place: int | str) -> Digits:
    """The canonical digits of a dimension or a class."""
    if isinstance(place, int):
        return sharding.canonical_dims[place]
    return sharding.classes[CLASSES.index(place)]


def _fact(first: Digit, second: Digit) -> str | None:
    """The condition of the gcd theorem for two digits, whether or not it holds."""
    if first.stride == second.stride == 1:
        return f"gcd({first.size}, {second.size}) = 1"
    tops = f"gcd({first.stride * first.size}, {second.stride * second.size})"
    return f"{tops} divides {first.stride} or {second.stride}"


def block_of(sharding: Sharding, place: int | str) -> int:
    """What one step of the partition id is worth: the block size; 1 for a class.

    A dimension of size 0 has no offsets to compare, so its partition ids are compared.
    """
    return max(1, sharding.shard_shape[place]) if isinstance(place, int) else 1


def offset_at(sharding: Sharding, place: int | str, position: int) -> int:
    """Offset of a dimension, or partition id of a class, on the device at a position."""
    return partition_id(digits_at(sharding, place), position) * block_of(sharding, place)


def _offset_witness(verdict: Verdict) -> Witness:
    """A device on which the operands put the dimension at different offsets."""
    assert verdict.failure is not None
    place, (first, second) = verdict.failure.dims[0], verdict.operands
    mesh = first.mesh
    split = (*digits_at(first, place), *digits_at(second, place))
    for position in (*(d.stride for d in split if d.stride < mesh.size), *range(mesh.size)):
        a, b = (offset_at(s, place, position) for s in verdict.operands)
        if a != b:
            return Witness(mesh.order[position], place, (a, b))
    raise AssertionError("a refused dimension lies alike on every device")


def _order_witness(verdict: Verdict) -> Witness:
    """A device that two orders give different offsets."""
    assert verdict.failure is not None
    dim = verdict.failure.dims[0]
    assert isinstance(dim, int)
    for device in verdict.operands[0].mesh.order:
        first, second = (s.shard_offset(device, dim) for s in verdict.operands)
        if first != second:
            return Witness(device, dim, (first, second))
    raise AssertionError("two orders that differ agree on every device")


def _tile_witness(verdict: Verdict) -> Witness:
    """The tile that too few devices hold: one that none holds, if there is one."""
    assert verdict.failure is not None
    places, devices = verdict.failure.dims, verdict.operands[0].mesh.order
    owners = [owner(verdict, nth, place) for nth, place in enumerate(places)]
    split = [digits_at(s, place) for s, place in zip(owners, places, strict=True)]
    held = Counter(
        tuple(
            partition_id(digits, s.mesh.position(device))
            for s, digits in zip(owners, split, strict=True)
        )
        for device in devices
    )
    counts = [parts(digits) for digits in split]
    tiles = itertools.product(*(range(n) for n in counts))
    tile = next((t for t in tiles if t not in held), None) or min(held, key=lambda t: held[t])
    expected = -(-len(devices) // math.prod(counts))
    return Witness(dims=places, tile=tile, count=held[tile], expected=expected)


def owner(verdict: Verdict, nth: int, place: int | str) -> Sharding:
    """The operand that splits the place; of an overlapping pair the second one's is the second."""
    pair = verdict.operands if nth == 0 else verdict.operands[::-1]
    return next(s for s in pair if digits_at(s, place))


def _contained_witness(verdict: Verdict) -> Witness:
    """A device whose block of the first sharding leaves its block of the second one."""
    assert verdict.failure is not None
    fine, coarse = verdict.operands
    for device in fine.mesh.order:
        dim = escape(fine, coarse, device)
        if dim is not None:
            return Witness(
                device, dim, (fine.shard_offset(device, dim), coarse.shard_offset(device, dim))
            )
    raise AssertionError("a refused refinement holds on every device")


def escape(fine: Sharding, coarse: Sharding, device: int) -> int | None:
    """The first dimension on which the device's fine block leaves its coarse block."""
    if any(fine.valid_size(device, dim) == 0 for dim in range(len(fine.shape))):
        return None
    pairs = zip(fine.shard_slices(device), coarse.shard_slices(device), strict=True)
    for dim, (a, b) in enumerate(pairs):
        if a.start < b.start or a.stop > b.stop:
            return dim
    return None


_WITNESS = {
    "offset": _offset_witness,
    "class": _offset_witness,
    "closed": _offset_witness,
    "order": _order_witness,
    "overlap": _tile_witness,
    "joint": _tile_witness,
    "contained": _contained_witness,
}


def _reason(verdict: Verdict) -> str:
    first, second = verdict.operands
    if verdict.failure is None:
        return f"{first.text()} and {second.text()} {_HOLDS[verdict.relation]}"
    witness = verdict.witness
    assert witness is not None
    place = f"of shape {first.shape} on {first.mesh!r}"
    if witness.tile:
        places = " and ".join(_place(dim) for dim in witness.dims)
        held = f"{witness.count} device{'' if witness.count == 1 else 's'}"
        return (
            f"{first.text()} and {second.text()} {place} split {places} by the same devices: "
            f"{held if witness.count else 'no device'} would hold tile {witness.tile} where "
            f"{witness.expected} should. Reshard one of them off what they share."
        )
    lines = [
        f"  {s.text()}  {_fact_at(s, witness, value)}"
        for s, value in zip(verdict.operands, witness.offsets or (), strict=True)
    ]
    return (
        f"{_FAULT[verdict.failure.kind]} on {_place(witness.dim)} {place}:\n"
        + "\n".join(lines)
        + "\nReshard one of them there."
    )


def _fact_at(sharding: Sharding, witness: Witness, value: int) -> str:
    """What one operand gives the device of the witness: offset and end, or a class's id."""
    if not isinstance(witness.dim, int) or witness.device is None:
        return f"partition_id({witness.device}, {witness.dim}) = {value}"
    end = value + sharding.valid_size(witness.device, witness.dim)
    text = f"shard_offset({witness.device}, {witness.dim}) = {value}"
    return f"{text}, up to {end}" if end > value else f"{text}, empty"


def _place(place: int | str | None) -> str:
    return f"dimension {place}" if isinstance(place, int) else f"the {place} digits"


_HOLDS = {
    "merge": "agree on the dimensions that both split, and split the others independently",
    "compatible": "agree on the dimensions that both split, and split the others independently",
    "refines": "are nested: each block of the first lies in the device's block of the second",
}
_FAULT = {
    "offset": "the shardings place blocks differently",
    "class": "the shardings differ",
    "order": "the shardings place blocks differently",
    "closed": "the merged sharding would split a dimension that one of them holds closed,",
    "contained": "a block of the first sharding leaves the device's block of the second",
}
