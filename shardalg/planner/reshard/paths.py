"""The cheapest chain of collectives from one sharding of a tensor to another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from operator import index
from typing import TYPE_CHECKING, Any

from shardalg.algebra.derived_layouts import interned
from shardalg.algebra.digits import Digit, Digits, canonical, complement, partition_ids, parts
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.costs.collectives import axis_names
from shardalg.errors import MeshError
from shardalg.planner.reshard import uneven
from shardalg.planner.reshard.closed_forms import nearest_dims
from shardalg.planner.reshard.even import (
    Dims,
    Ends,
    Move,
    Shape,
    State,
    bound,
    cheaper,
    is_direct,
    local_elements,
    plain,
    search,
)
from shardalg.planner.reshard.even import SearchStep as Hop
from shardalg.planner.reshard.exchanges import Retile
from shardalg.planner.reshard.links import Links
from shardalg.planner.reshard.padded import gather_path
from shardalg.sizes.decided import decided
from shardalg.sizes.recorded import are_numbers
from shardalg.spmd.instructions import (
    AllGather,
    AllGathers,
    AllReduce,
    AllToAll,
    AllToAlls,
    CollectivePermute,
    DynamicSlice,
    ReduceScatter,
    ReduceScatters,
)

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class ReshardStep:
    """One move and the sharding after it.

    Attributes:
      attributes: the instruction, or a `Retile`, which becomes several instructions.
      layout: the sharding after the step; of a longer tensor if blocks are padded.
      wire_elements: elements that a device sends (bytes divided by the item size).
    """

    attributes: Move
    layout: Sharding
    wire_elements: Any


@dataclass(frozen=True)
class Path:
    """A chain of resharding steps.

    Attributes:
      steps: the steps, each with the elements that a device sends for it.
      wire_elements: the elements that a device sends for all steps.
    """

    steps: tuple[ReshardStep, ...]
    wire_elements: Any

    def seconds(self, source: Sharding, links: Links) -> float:
        """Return the seconds that all collectives of the path take, one after the other.

        Args:
          source: the sharding before the first step.
          links: the speeds of the mesh axes' links.
        """
        total, block_elements = 0.0, math.prod(source.shard_shape)
        for step in self.steps:
            if step.wire_elements:
                # `links.seconds` expects the elements of a device's block before the collective. A
                # `Retile` instead permutes only the margin of the block, its wire elements.
                is_retile = isinstance(step.attributes, Retile)
                sent = step.wire_elements if is_retile else block_elements
                total += links.seconds(step.attributes, sent)
            block_elements = math.prod(step.layout.shard_shape)
        return total


@decided(1 << 16, lambda source, target, *_: source.numbers)
def reshard_path(
    source: Sharding,
    target: Sharding,
    links: Links | None = None,
    padded: bool = True,
    joined: bool = True,
) -> Path:
    """Return the path of the fewest wire bytes, then of the fewest communicating steps.

    On unequal links (`links_on`) it is the path of the fewest seconds. It is the cheapest of all
    chains of all-gather, slice, all-to-all, permute, reduce-scatter and all-reduce over sub-axes of
    prime size, priced by `costs/collectives.py`. No local block on the path is larger than both at
    the ends. If a size does not divide, blocks are padded until it does, and a `Retile` brings them
    to `ceil(D/n)` in the end. If that is not possible, such dimensions are gathered.

    Args:
      padded: whether blocks may be padded on the path, see `Switches.pad_blocks`.
      joined: whether gathers of several dimensions are one collective, see `Switches.join_gathers`.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh = Mesh({"x": 2, "y": 4})
    >>> x, y = mesh.digits("x"), mesh.digits("y")
    >>> path = reshard_path(Sharding(mesh, (8, 8), (x, y)), Sharding(mesh, (8, 8), (x + y, ())))
    >>> [type(step.attributes).__name__ for step in path.steps], path.wire_elements
    (['AllToAll'], 6)
    """
    if source.dims == target.dims and source.unreduced == target.unreduced:
        return Path((), 0)
    if not (_on_mesh(source) and _on_mesh(target)):
        return _path_over_meshes(source, target, links, padded=padded, joined=joined)
    # The search moves prime pieces of digits. Merged moves are named by axes afterwards, so that
    # all pieces of an axis are that axis.
    before = _common_states(source, target)[0][0]
    found = _merge_hops(path_moves(source, target, links, padded), links)
    if joined and len(found) > 1 and source.is_even and target.is_even:
        found = _join_gathers(found, source, before, links)
    mesh_digits = _MeshDigits(source, target)
    steps, total = [], 0
    for number, (move, (dims, pending), price, shape) in enumerate(found, 1):
        move = mesh_digits.move(move, before, dims)
        shape = source.shape if shape is None else shape
        # The last step has the target as it is written, not as it was searched.
        layout = target if number == len(found) else mesh_digits.layout(shape, dims, pending)
        steps.append(ReshardStep(move, layout, price))
        total, before = total + price, dims
    return Path(tuple(steps), total)


@decided(1 << 16, lambda source, target, *_: source.numbers)
def path_moves(
    source: Sharding, target: Sharding, links: Links | None, padded: bool
) -> tuple[Hop, ...]:
    """Return the moves of the cheapest path, from which it is priced.

    `reshard_path` makes the instructions from them. Digits are pieces common to both shardings.
    """
    start, goal = _common_states(source, target)
    axes = _axes(source.mesh)
    if 0 in source.shape:
        # A tensor without elements: all paths cost the same.
        return tuple(gather_path(source.shape, start, goal))
    if source.is_even and target.is_even:
        found = search(source.shape, start, goal, axes)
        if links is not None:
            # The path on equal links is the one to beat.
            found = cheaper(found, Ends(source.shape, start, goal), axes, links)
    else:
        found = uneven.search(source.shape, start, goal, axes, padded=padded)
    return tuple(found)


def _path_over_meshes(
    source: Sharding, target: Sharding, links: Links | None, *, padded: bool, joined: bool
) -> Path:
    """Return a path for shardings with digits that are no parts of their mesh's own axes.

    Such digits come from another mesh over the same devices. A permute of the
    source, of the target, or of both replaces them by axes of the mesh. The path between the
    permutes is an ordinary one: source -> first -> last -> target.
    """
    if source.parts == target.parts and not source.unreduced:
        # With equally many parts per dimension, blocks only change devices: one permute does it.
        return _permute_path(source, target)
    # `first` and `last` have the same blocks as source and target, on axes of the mesh.
    first = source if _on_mesh(source) else _on_own_mesh(source, target)
    last = target if _on_mesh(target) else _on_own_mesh(target, first)
    # A side that is on axes already needs no permute.
    paths = [_permute_path(source, first)] if first is not source else []
    paths.append(reshard_path(first, last, links, padded, joined))
    paths += [_permute_path(last, target)] if last is not target else []
    steps = tuple(step for path in paths for step in path.steps)
    return Path(steps, sum([path.wire_elements for path in paths]))


def _on_own_mesh(sharding: Sharding, like: Sharding) -> Sharding:
    """Return a sharding with the same number of parts, written in axes of its own mesh.

    Of the possible axes, those of `like` are preferred. The blocks may be on other devices.
    """
    mesh = sharding.mesh
    held = like.dims if _on_mesh(like) else ((),) * len(like.dims)
    dims = nearest_dims(held, sharding.parts, _axes(mesh))
    return Sharding(mesh, sharding.shape, dims, unreduced=sharding.unreduced)


def _permute_path(source: Sharding, target: Sharding) -> Path:
    """Return the path of one collective permute."""
    axes, elements = _axes(source.mesh), math.prod(source.shard_shape)
    pairs = _permutation(source.dims, target.dims, source.mesh.size)
    return Path((ReshardStep(CollectivePermute(axes, pairs), target, elements),), elements)


def _axes(mesh: Mesh) -> Digits:
    return tuple([mesh.digit(name) for name in mesh.axis_names])


def _on_mesh(sharding: Sharding) -> bool:
    """Return whether all digits are parts of axes of the sharding's own mesh."""
    return all(_is_of_axes(sharding.mesh, digit) for digits in sharding.dims for digit in digits)


@lru_cache(maxsize=1 << 12)
def _is_of_axes(mesh: Mesh, digit: Digit) -> bool:
    """Return whether a digit of device positions consists of axes or sub-axes of the mesh."""
    try:
        return bool(mesh.axis_refs(digit))
    except MeshError:
        return False


class _MeshDigits:
    """The digits of a path in the terms of the mesh: axes, or sub-axes, each in one piece.

    Attributes:
      known: a dictionary from a digit in numbers to the same digit with named sizes. The search
        computes with numbers; the result has the named sizes again.
      borders: the strides of the mesh axes. Two neighbouring pieces are not joined to one digit if
        a new axis begins between them.
    """

    def __init__(self, source: Sharding, target: Sharding) -> None:
        """Find the named sizes and the ends of mesh axes in the digits of two shardings.

        They become the attributes `known` and `borders` (see the class).
        """
        self.source, mesh = source, source.mesh
        axes = _axes(mesh)
        sized = [
            digit
            for digits in (*source.dims, *target.dims, axes)
            for digit in digits
            if not are_numbers((digit.size, digit.stride))
        ]
        # Digits of named sizes get their formulas back after the search. A digit that has its
        # formulas already stays as it is.
        self.known = dict(zip(*_plain_digits((tuple(sized),)), sized, strict=True))
        self.known.update(zip(sized, sized, strict=True))
        self.borders = {d.stride for digits in _plain_digits((axes,)) for d in digits}

    def digits(self, digits: Digits) -> Digits:
        """Return digits in terms of the mesh: pieces that the search split are merged again.

        Neighbouring digits are pieces of one axis if the stride between them is not in `borders`,
        the strides at which axes begin.
        """
        out: list[Digit] = []
        for digit in digits:
            if out and out[-1].stride == digit.stride * digit.size:
                # Pieces of two axes stay two digits, because a sharding names its axes.
                if index(out[-1].stride) not in self.borders:
                    digit = Digit(digit.stride, out.pop().size * digit.size)
            out.append(digit)
        # The search works on plain numbers, so digits with named sizes are put back here.
        return tuple([self.known.get(digit, digit) for digit in out])

    def layout(self, shape: Shape, dims: Dims, pending: Digits) -> Sharding:
        """Return the sharding of digits of the search, in terms of the mesh.

        Args:
          pending: the digits along which sums are pending.
        """
        return interned(self.source.mesh, shape, tuple(map(self.digits, dims)), pending)

    def move(self, move: Move, before: Dims, after: Dims) -> Move:
        """Return the move with each digit written as an axis or sub-axis of the mesh.

        The search uses smaller digits than the axes. A permute also gets its (source, target)
        pairs here, because the search does not need them.

        Args:
          before, after: the digits of each dimension before and after the move.
        """
        if isinstance(move, AllToAlls):
            # No two of the exchanges share a dimension, so each is rewritten alone.
            return AllToAlls(tuple([self.exchange(one) for one in move.exchanges]))
        if isinstance(move, AllToAll):
            return self.exchange(move)
        if isinstance(move, AllGathers | ReduceScatters):
            along = tuple([(dim, self.digits(digits)) for dim, digits in move.along])
            return replace(move, along=along)
        # All other moves run along one tuple of digits.
        digits = self.digits(move.digits)
        if isinstance(move, CollectivePermute):
            pairs = _permutation(before, after, self.source.mesh.size)
            return CollectivePermute(digits, pairs)
        return move if digits == move.digits else replace(move, digits=digits)

    def exchange(self, move: AllToAll) -> AllToAll:
        """Return the all-to-all with each digit written as an axis or sub-axis of the mesh."""
        if move.arriving:
            # Pieces of an axis are not merged here: they may be neighbours in one order only, and
            # both orders must have the same pieces.
            sides = (tuple([self.known.get(d, d) for d in s]) for s in (move.digits, move.arriving))
            return AllToAll(move.split_dim, move.concat_dim, *sides)
        return replace(move, digits=self.digits(move.digits))


def reshard_price(source: Sharding, target: Sharding, padded: bool = True) -> Any:
    """Return the elements that a device sends to reshard a value, along the cheapest path.

    All links count as equally fast. The cheapest path is that of `reshard_path`; the search for it
    is avoided if a formula gives the same number.

    Args:
      padded: whether blocks may be padded on the path.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh = Mesh({"x": 2, "y": 4})
    >>> x, y = mesh.digits("x"), mesh.digits("y")
    >>> reshard_price(Sharding(mesh, (8, 8), (x, y)), Sharding(mesh, (8, 8), (x, ())))
    24
    """
    if source.dims == target.dims and source.unreduced == target.unreduced:
        return 0
    # For a direct chain of moves, the lower bound of the elements sent is exact: no search.
    if is_direct(source.shape, *_common_states(source, target)):
        return reshard_bound(source, target)
    # Digits of another mesh need permutes, which only `reshard_path` adds.
    if not (_on_mesh(source) and _on_mesh(target)):
        return reshard_path(source, target, None, padded).wire_elements
    # The price needs the moves only, not their instructions and shardings.
    return sum([hop.sent for hop in path_moves(source, target, None, padded)])


@lru_cache(maxsize=1 << 16)
def reshard_bound(source: Sharding, target: Sharding) -> Any:
    """Return a lower bound of the elements that a device sends from one sharding to the other."""
    if source.dims == target.dims and source.unreduced == target.unreduced:
        return 0
    return bound(source.shape, *_common_states(source, target))


def lacking(source: Sharding, target: Sharding) -> int:
    """Return the most elements that a device lacks of its target block.

    The meshes of both shardings may have different device orders.
    """
    import numpy as np

    place, here = source.mesh.places(target.mesh), np.arange(source.mesh.size)
    wanted = held = np.ones(source.mesh.size, int)
    rows = zip(source.dims, target.dims, source.shape, strict=True)
    # Per dimension, a device has the elements [a, b) and needs [c, d). The element counts of a
    # block are products over the dimensions, and so are those of the common part.
    for first, second, size in rows:
        (a, b), (c, d) = (
            _interval(digits, positions, size)
            for digits, positions in ((first, here), (second, place))
        )
        wanted, held = wanted * (d - c), held * np.maximum(np.minimum(b, d) - np.maximum(a, c), 0)
    return int((wanted - held).max())


def _interval(digits: Digits, positions: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first element and the end of each device's block in one dimension.

    Args:
      digits: the digits that shard the dimension.
      positions: the positions of the devices in the mesh.
      size: the size of the dimension.
    """
    block = -(-size // parts(digits))
    number = partition_ids(digits, positions)
    return (number * block).clip(max=size), ((number + 1) * block).clip(max=size)


def usable(sources: tuple[Sharding, ...], target: Sharding) -> tuple[Sharding, ...]:
    """Return the shardings from which the target can be reached: no move creates partial sums.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh = Mesh({"x": 2, "y": 4})
    >>> whole = Sharding(mesh, (8,), ((),))
    >>> pending = Sharding(mesh, (8,), ((),), unreduced=mesh.digits("y"))
    >>> usable((pending, whole), pending), usable((pending, whole), whole) == (pending, whole)
    ((Sharding([None]{U:y}, shape=(8,), Mesh(x=2, y=4)),), True)
    """
    # Moves can reduce partial sums, so a target without partial sums can be reached from any
    # sharding. A single source leaves nothing to select.
    if not target.unreduced or len(sources) == 1:
        return sources
    # No move makes a partial sum, so the target's pending digits (entry 1 of a state) must be
    # pending in the source. Both are first cut into digits that are equal or do not overlap.
    ends = ((source, *_common_states(source, target)) for source in sources)
    return tuple([source for source, start, goal in ends if set(goal[1]) <= set(start[1])])


def nearest(
    sources: tuple[Sharding, ...],
    target: Sharding,
    links: Links | None = None,
    *,
    padded: bool = True,
    joined: bool = True,
) -> Sharding:
    """Return the one of `sources` from which a reshard to `target` sends the fewest bytes.

    With `links`, it is the source of the fewest seconds. Ties go to the first source.

    Args:
      sources: shardings in which the devices hold the value.
      links: the speeds of the mesh axes, if they are unequal; None if all are equally fast.
      padded, joined: see `reshard_path`.
    """
    # Moves never create partial sums, so some sources cannot reach a target that has them.
    sources = usable(sources, target)
    if len(sources) == 1:
        return sources[0]
    if links is not None:
        paths = {source: reshard_path(source, target, links, padded, joined) for source in sources}
        return min(sources, key=lambda source: paths[source].seconds(source, links))
    return min(sources, key=lambda source: reshard_price(source, target, padded=padded))


def _common_states(source: Sharding, target: Sharding) -> tuple[State, State]:
    """Return two shardings as search states whose digits are either equal or do not overlap.

    For example, if one side has an axis and the other side only its half, both get two half axes.
    In the tuple of pending digits (of partial sums), the most major digit comes first.
    """
    held = [d for s in (source, target) for digits in (*s.dims, s.unreduced) for d in digits]
    pieces = _refinement(frozenset(held))
    return _search_state(source, pieces), _search_state(target, pieces)


def _search_state(sharding: Sharding, pieces: Mapping[Digit, Digits] | None) -> State:
    """Return a sharding as a state of the path search: (digits per dimension, pending digits).

    Args:
      pieces: the smaller digits that replace each digit; None to keep the digits.
    """
    pending = sharding.unreduced
    if pieces is None:
        # The order of pending digits has no meaning. One order makes equal states equal.
        return sharding.dims, tuple(sorted(pending, reverse=True)) if len(pending) > 1 else pending

    def cut(digits: Digits) -> Digits:
        """Return the pieces of the digits in order."""
        return tuple(piece for digit in digits for piece in pieces[digit])

    # The digits of a dimension keep their order: it decides which block a device holds.
    return tuple(map(cut, sharding.dims)), tuple(sorted(cut(pending), reverse=True))


@lru_cache(maxsize=1 << 12)
def _refinement(digits: frozenset[Digit]) -> Mapping[Digit, Digits] | None:
    """Return the pieces of each digit, cut where any other digit begins or ends.

    None if no digit is cut.
    """
    cuts = {cut for stride, size in digits for cut in (stride, stride * size)}
    pieces = {digit: _pieces(digit, sorted(cuts, reverse=True)) for digit in digits}
    return pieces if any(len(found) > 1 for found in pieces.values()) else None


def _pieces(digit: Digit, cuts: list[int]) -> Digits:
    """Return a digit split at the cuts inside it, major piece first.

    For example, the digit (stride 1, size 8) with a cut at 4 -> (4, 2) and (1, 4). The digit is
    returned whole if the cuts do not nest, as cuts at 2 and at 3 of a digit of size 6.

    Args:
      cuts: device strides, the largest first.
    """
    low, top = digit.stride, digit.stride * digit.size
    # A cut must leave whole digits on both sides.
    inner_cuts = [c for c in cuts if low < c < top and c % low == 0 and top % c == 0]
    # Between two neighbouring cuts, the lower one is a piece's stride and their ratio its size.
    bounds = list(pairwise([top, *inner_cuts, low]))
    if all(high % stride == 0 for high, stride in bounds):
        return tuple(Digit(stride, high // stride) for high, stride in bounds)
    return (digit,)


def _plain_digits(dims: Dims) -> Dims:
    """Return digits whose strides and sizes are plain integers instead of recorded sizes."""
    return tuple(tuple(Digit(index(d.stride), index(d.size)) for d in digits) for digits in dims)


def order_permute(source: Sharding, target: Sharding, mesh: Mesh) -> CollectivePermute:
    """Return the permute between equally many parts in two orders of the devices of `mesh`.

    Source: GSPMD (arXiv:2105.04663), section 4.5: if only device orders differ, resharding is one
    collective permute.

    >>> here, there = Mesh({"x": 4}), Mesh({"x": 4}, device_ids=[0, 1, 3, 2])
    >>> order_permute(*(Sharding.from_axes(("x",), m, (8,)) for m in (here, there)), here).pairs
    ((0, 0), (1, 1), (3, 2), (2, 3))
    """
    import numpy as np

    by_block = []
    for sharding in (source, target):
        # The holders of block 0, 1, ..., as positions in the sharding's own mesh.
        holders = _by_block(sum(_plain_digits(sharding.dims), ()), mesh.size)
        # The same devices have other positions in `mesh`, in which the permute is written.
        position = sharding.mesh.places(mesh)
        by_block.append(position[np.array(holders)].tolist())
    return CollectivePermute(_axes(mesh), _pairs(*by_block))


@lru_cache(maxsize=1 << 12)
def _permutation(source: Dims, target: Dims, positions: int) -> tuple[tuple[int, int], ...]:
    """Return the (source, target) positions: the r-th holder of a block sends to its r-th receiver.

    Both layouts have equally many blocks, and each block has several holders if some digits shard
    nothing. Digits that neither layout has are the major digits of r, so that no block is sent
    along them.

    Args:
      source, target: the digits of each dimension before and after the permute.
      positions: the number of devices.

    >>> _permutation(((Digit(4, 2),),), ((Digit(1, 2),),), 8)[:4]  # from X to Z of (X, Y, Z)
    ((0, 0), (4, 1), (2, 2), (6, 3))
    """
    block_digits = [sum(_plain_digits(dims), ()) for dims in (source, target)]
    # The free digits of a layout shard no dimension: devices that differ in them hold copies. They
    # are cut at the borders of all used digits, so that equal parts of both layouts are equal
    # digits.
    cuts = {cut for d in sum(block_digits, ()) for cut in (d.stride, d.stride * d.size)}
    cuts_down = sorted(cuts, reverse=True)
    free = [complement(canonical(digits), positions) or () for digits in block_digits]
    pieces = [[piece for digit in digits for piece in _pieces(digit, cuts_down)] for digits in free]
    # Devices that differ in these digits alone hold copies on both sides, and exchange nothing.
    shared = tuple([piece for piece in pieces[0] if piece in pieces[1]])
    return _pairs(*(_by_block(digits, positions, shared) for digits in block_digits))


def _pairs(senders: Sequence[int], receivers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return (sender, receiver) positions, sorted by receiver."""
    sender_of = dict(zip(receivers, senders, strict=True))
    return tuple((sender_of[target], target) for target in range(len(sender_of)))


@lru_cache(maxsize=1 << 12)
def _by_block(digits: Digits, positions: int, first: Digits = ()) -> tuple[int, ...]:
    """Return all positions in the mesh, sorted by the number of the block that they hold.

    `digits` are parts of a position, and together they number its block. All other digits of a
    position are free: positions that differ only in free digits hold copies of one block. They are
    sorted by the digits in `first`, and then by the other free digits.

    Args:
      digits: the digits of all sharded dimensions, one dimension after the other.
      positions: the number of devices in the mesh.
      first: some of the free digits, by which the holders of one block are sorted first.

    >>> _by_block((Digit(1, 2),), 8)  # position % 2 numbers the block
    (0, 2, 4, 6, 1, 3, 5, 7)
    >>> _by_block((Digit(1, 2),), 8, (Digit(2, 2),))  # in a block: position // 2 % 2 is major
    (0, 4, 2, 6, 1, 5, 3, 7)
    """
    import numpy as np

    digits = canonical(digits)
    free = complement(digits, positions)
    # Digits of several meshes need not be nested. They then have no common complement, so positions
    # are sorted by their partition ids instead.
    if free is None:
        ids = partition_ids(digits, np.arange(positions))
        return tuple(np.argsort(ids, kind="stable").tolist())
    # The free digits are cut where digits of `first` begin and end, so that `first` can be taken
    # out of them.
    cuts = sorted({cut for d in first for cut in (d.stride, d.stride * d.size)}, reverse=True)
    rest = [piece for digit in free for piece in _pieces(digit, cuts) if piece not in first]
    # A position is a mixed-radix number of all digits, the largest stride first. Moving the block's
    # digits to the front sorts the positions by their blocks.
    wanted_order = (*digits, *first, *rest)
    mesh_order = sorted(wanted_order, reverse=True)
    grid = np.arange(positions).reshape([size for _, size in mesh_order])
    return tuple(grid.transpose([mesh_order.index(d) for d in wanted_order]).ravel().tolist())


def _merge_hops(moves: Iterable[Hop], links: Links | None) -> list[Hop]:
    """Return the moves of a path; successive moves of one kind on one dimension become one move.

    For example, all-gathers of one dimension along Y and then X become one along both. Moves on
    unequally fast links stay separate. A `Hop` has a move, its sent elements, and the state after
    it.
    """
    out: list[Hop] = []
    for hop in moves:
        both = (out[-1].move, hop.move) if out else None
        # A merged collective runs at the speed of its slowest link.
        may_merge = both and (links is None or links.are_equally_slow(both))
        merged = _merge_moves(*both) if both and may_merge else None
        # Gathers of n and then m blocks send (n-1)*b + (m-1)*n*b = (n*m-1)*b, the price of one
        # gather of n*m blocks of b elements. Reduce-scatters add up in the same way.
        if merged is not None:
            out[-1] = hop._replace(move=merged, sent=out[-1].sent + hop.sent)
        else:
            out.append(hop)
    return out


def _merge_moves(first: Move, second: Move) -> Move | None:
    """Return one collective that has the effect of two successive moves; None if there is none.

    Only moves of one kind merge, and only on the same dimension.
    """
    match first, second:
        # A scatter or slice adds the minor digits of its dimension, so those of `second` are last.
        case ReduceScatter(), ReduceScatter() if first.dim == second.dim:
            return ReduceScatter(first.dim, first.digits + second.digits, first.combine)
        case DynamicSlice(), DynamicSlice() if first.dim == second.dim:
            return DynamicSlice(first.dim, first.digits + second.digits, second.block)
        case AllGather(), AllGather() if first.dim == second.dim:
            # The first gather removes the minor digits, so they come last in the merged one.
            return AllGather(first.dim, second.digits + first.digits)
        # An all-reduce has no dimension: partial sums are added in any order.
        case AllReduce(), AllReduce():
            return AllReduce(first.digits + second.digits, first.combine)
    return None


def _join_gathers(
    hops: Iterable[Hop], source: Sharding, dims: Dims, links: Links | None
) -> list[Hop]:
    """Return the moves, in which successive all-gathers of several dimensions are one all-gather.

    Reduce-scatters are joined in the same way. Blocks must be even. One gather of `n*m` blocks
    sends as many bytes as the gathers of `n` and of `m` blocks (see `_merge_hops`). Over axes with
    equally fast links, one collective is never slower, and on a torus it is faster, because it uses
    the links of all axes. Two parts of one axis stay apart: a line of four takes three hops, but
    two lines of two take one each. On unequal links, one collective must not take more seconds.

    Args:
      hops: the moves, as steps of the search.
      source: the sharding before the first move; `dims` are its digits in the search.
    """
    out: list[Hop] = []
    # On unequal links, the seconds of a move depend on the block before it. `first` has the digits
    # before the last move in `out`, `here` those before the next one.
    first, here = dims, dims
    for hop in hops:
        both = _join_moves(out[-1].move, hop.move) if out else None
        if both is not None and links is None:
            axes = [axis_names(source.mesh, move.digits) for move in (out[-1].move, hop.move)]
            both = both if set(axes[0]).isdisjoint(axes[1]) else None
        elif both is not None and links is not None:
            numbers = tuple(map(index, source.shape))
            held, later = (local_elements(numbers, plain(each)) for each in (first, here))
            separate = links.seconds(out[-1].move, held) + links.seconds(hop.move, later)
            both = both if links.seconds(both, held) <= separate else None
        if both is None:
            out.append(hop)
            first = here
        else:
            out[-1] = hop._replace(move=both, sent=out[-1].sent + hop.sent)
        here = hop.state[0]
    return out


def _join_moves(first: Move, second: Move) -> AllGathers | ReduceScatters | None:
    """Return one collective of several dimensions for two successive moves.

    None unless both are gathers or both are reduce-scatters. The first may be joined already.
    """
    match first, second:
        case AllGather() | AllGathers(), AllGather():
            digits_of_dim = _along(first)
            # The first gather of a dimension removes the minor digits, so they come last.
            digits_of_dim[second.dim] = second.digits + digits_of_dim.get(second.dim, ())
            return AllGathers(tuple(digits_of_dim.items()))
        case ReduceScatter() | ReduceScatters(), ReduceScatter():
            digits_of_dim = _along(first)
            # A reduce-scatter adds minor digits, so those of the second come last.
            digits_of_dim[second.dim] = digits_of_dim.get(second.dim, ()) + second.digits
            return ReduceScatters(tuple(digits_of_dim.items()), second.combine)
    return None


def _along(
    move: AllGather | AllGathers | ReduceScatter | ReduceScatters,
) -> dict[int, Digits]:
    """Return the digits by dimension of a gather or reduce-scatter."""
    if isinstance(move, AllGathers | ReduceScatters):
        return dict(move.along)
    return {move.dim: move.digits}
