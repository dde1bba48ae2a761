"""What an instruction makes of its operands: local shapes and item types, by its definition.

One entry per kind. An `Apply` makes what its JAX primitive makes (`graph.evaluate.result_types`),
and what holds blocks makes what its blocks hand on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from shardalg.algebra.digits import Digits, canonical, parts
from shardalg.errors import ProgramError
from shardalg.spmd.identity import identity
from shardalg.spmd.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Attributes,
    Best,
    Carry,
    Choose,
    CollectivePermute,
    Concatenate,
    Dilate,
    DynamicSlice,
    Extract,
    Fetch,
    FirstMember,
    Fold,
    Insert,
    Join,
    Mask,
    MaskAt,
    MaskIndexed,
    Offset,
    Pick,
    ReduceScatter,
    Resize,
    Slice,
    SliceAt,
    Top,
    ValueAt,
)
from shardalg.spmd.regroup import Regroup

Shape = tuple[int, ...]
Type = tuple[Shape, str]
"""Local shape and item type."""


def _scaled(shape: Shape, dim: int, *, times: int = 1, over: int = 1) -> Shape:
    return (*shape[:dim], shape[dim] * times // over, *shape[dim + 1 :])


def _all_to_all(a: AllToAll, shape: Shape) -> Shape:
    n, arriving = parts(a.digits), a.arriving or a.digits
    # the order of digits says in which order pieces stand; which devices take part is one set
    if len({canonical(tuple(sorted(x, reverse=True))) for x in (a.digits, arriving)}) > 1:
        raise ProgramError(f" sends along {a.digits} what arrives along {arriving}.")
    return _scaled(_scaled(shape, a.split_dim, over=n), a.concat_dim, times=n)


def _sized(shape: Shape, dim: int, size: int) -> Shape:
    return (*shape[:dim], size, *shape[dim + 1 :])


def _one(shape: Shape, dim: int) -> Shape:
    """The shape with a dimension of one place more."""
    return (*shape[:dim], 1, *shape[dim:])


def _alike(shapes: Sequence[Shape]) -> Shape | None:
    return shapes[0] if len(set(shapes)) == 1 else None


def _side_by_side(a: Concatenate, *shapes: Shape) -> Shape | None:
    if _alike([_sized(shape, a.dim, 1) for shape in shapes]) is None:
        return None
    return _sized(shapes[0], a.dim, sum(shape[a.dim] for shape in shapes))


def _regrouped(a: Regroup, shape: Shape) -> Shape | None:
    counts = [count for count, _ in a.groups]
    if min(counts, default=1) < 1 or sum(counts) != len(shape) or not all(s for _, s in a.groups):
        return None
    made = a.shape(shape)
    return made if prod(made) == prod(shape) else None


# Shape of each result, from the operands'; None where these do not belong together.
_SHAPES: dict[type, Callable[..., Shape | None]] = {
    AllGather: lambda a, s: _scaled(s, a.dim, times=parts(a.digits)),
    AllReduce: lambda a, s: s,
    ReduceScatter: lambda a, s: _scaled(s, a.dim, over=parts(a.digits)),
    AllToAll: _all_to_all,
    CollectivePermute: lambda a, s: s,
    Fetch: lambda a, *s: _alike(s),
    Carry: lambda a, s: s,
    Best: lambda a, *s: _alike(s),
    Top: lambda a, *s: _alike(s),
    Fold: lambda a, *s: _alike(s[: len(s) // 2]),
    DynamicSlice: lambda a, s: _sized(s, a.dim, a.block),
    Slice: lambda a, s: _sized(s, a.dim, a.size),
    SliceAt: lambda a, s: _sized(s, a.dim, a.size),
    Concatenate: _side_by_side,
    Resize: lambda a, s: _sized(s, a.dim, a.size),
    Regroup: _regrouped,
    Dilate: lambda a, s, *fill: _sized(s, a.dim, a.length(s[a.dim])) if not any(fill) else None,
    Mask: lambda a, s: s,
    MaskAt: lambda a, s, *fill: s if not any(fill) else None,
    Choose: lambda a, *s: _alike(s),
    Join: lambda a, s, one: s if _sized(s, a.dim, 1) == one else None,
    ValueAt: lambda a, place, s: place if _sized(s, a.dim, 1) == _one(place, a.dim) else None,
    Offset: lambda a, s: s,
    MaskIndexed: lambda a, s, indices: s,
    FirstMember: lambda a, s: s,
    Extract: lambda a, s, *starts: a.sizes if not any(starts) else None,
    Insert: lambda a, s, new, *starts: s if not any(starts) and len(new) == len(s) else None,
    Pick: lambda a, s: _sized(s, a.dim, 1) if s[a.dim] == a.block else None,
}
# (dimension, digits) that must divide the operand.
_CUTS: dict[type, Callable[..., tuple[int, Digits]]] = {
    ReduceScatter: lambda a: (a.dim, a.digits),
    AllToAll: lambda a: (a.split_dim, a.digits),
    DynamicSlice: lambda a: (a.dim, a.digits),
}
# How many operands, given the rank of the first and how many there are; else one.
_OPERANDS: dict[type, Callable[..., int]] = {
    Best: lambda a, rank, count: 2,
    Choose: lambda a, rank, count: len(a.sizes),
    Concatenate: lambda a, rank, count: max(count, 1),
    Dilate: lambda a, rank, count: 1 + (a.fill is None),
    Extract: lambda a, rank, count: 1 + rank,
    Fetch: lambda a, rank, count: a.operands,
    Fold: lambda a, rank, count: max(count // 2, 1) * 2,
    Insert: lambda a, rank, count: 2 + rank,
    Join: lambda a, rank, count: 2,
    MaskAt: lambda a, rank, count: 1 + (a.fill is None),
    MaskIndexed: lambda a, rank, count: 2,
    Top: lambda a, rank, count: 2,
    ValueAt: lambda a, rank, count: 2,
}
# The operand whose item type each result has; else there is one result, of the first one's.
_FOLLOWED: dict[type, Callable[..., Sequence[int]]] = {
    Best: lambda a, count: (1,),
    Fetch: lambda a, count: [reading.operand for reading in a.readings],
    Fold: lambda a, count: range(count // 2),
    Top: lambda a, count: (0, 1),
    ValueAt: lambda a, count: (1,),
}
_OF_ONE_TYPE = (Choose, Concatenate, Dilate, Fetch, Join, MaskAt)
_FILLING = (Dilate, Mask, MaskAt)
_LACKING = (Best, ValueAt)
"""Kinds whose first operand lacks the dimension that they speak of."""


def derived(attributes: Attributes, operands: Sequence[Type]) -> list[Type]:
    """The type of every result.

    >>> derived(Slice(0, 1, 4), [((8, 3), "int8")])
    [((4, 3), 'int8')]

    Raises:
      ProgramError: operands that such an instruction cannot have.
    """
    kind, count, shapes = type(attributes), len(operands), [shape for shape, _ in operands]
    rank = len(shapes[0]) if shapes else 0
    wanted = _OPERANDS[kind](attributes, rank, count) if kind in _OPERANDS else 1
    if count != wanted:
        raise ProgramError(f" takes {wanted} operands, has {count}.")
    _check_dims(attributes, shapes[0])
    shape = _SHAPES[kind](attributes, *shapes)
    types = [dtype for _, dtype in operands]
    if shape is None or (kind in _OF_ONE_TYPE and len(set(types)) > 1):
        raise ProgramError(f" joins {[*map(list, operands)]}, which are not alike.")
    if kind in _FILLING and attributes.fill is not None:
        identity(attributes.fill, types[0])
    followed = _FOLLOWED[kind](attributes, count) if kind in _FOLLOWED else (0,)
    return [(shape, types[number]) for number in followed]


def _check_dims(attributes: Attributes, shape: Shape) -> None:
    kind, rank = type(attributes), len(shape) + (type(attributes) in _LACKING)
    for name in ("dim", "split_dim", "concat_dim"):
        dim = getattr(attributes, name, None)
        if dim is not None and not 0 <= dim < rank:
            raise ProgramError(f" speaks of dimension {dim} of {rank}.")
    if kind in _CUTS:
        dim, digits = _CUTS[kind](attributes)
        count, size = parts(digits), shape[dim]
        if size % count:
            what = f" cuts dimension {dim} of size {size} into {count} blocks: pad it first."
            raise ProgramError(what)
    if kind is Slice and attributes.start + attributes.size > shape[attributes.dim]:
        raise ProgramError(f" reads {attributes} of {shape[attributes.dim]} elements.")
