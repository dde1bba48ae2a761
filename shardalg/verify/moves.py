"""Instructions that move, cut or join: what each makes of what its operands hold.

A collective is claimed from its definition: which member's block arrives at which place. The claim
compares, at every place, the element that arrives with the one that the result's layout puts there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from shardalg.algebra.digits import Digits, canonical, partition_ids, parts
from shardalg.algebra.mesh import Mesh
from shardalg.merge.proofs.integers import (
    All,
    Compare,
    Number,
    PartitionId,
    equal,
    implies,
    less,
    within,
)
from shardalg.ops.rule import SUM
from shardalg.spmd import instructions as p
from shardalg.verify.contents import (
    Contents,
    Held,
    Selected,
    at_member,
    fill_number,
    partition_number,
    start_number,
    without,
)
from shardalg.verify.masks import dilate, mask, mask_at, pick
from shardalg.verify.move import (
    MEMBER,
    Result,
    Stated,
    Step,
    X,
    bare,
    filled_with,
    members_agree,
    positions,
    undisturbed,
    with_dim,
)
from shardalg.verify.operators.combines import best, carry, join, together, value_at
from shardalg.verify.report import Decided
from shardalg.verify.views import regroup


def agreement(step: Step, held: Held, said: Held, words: str) -> Iterator[Stated]:
    """`held` has every element that `said` puts somewhere, there; nothing to show if alike."""
    if (held.start, held.length, held.wanted) == (said.start, said.length, ()):
        return
    here = within(said.start + X, 0, said.size)
    shown = All((equal(held.start, said.start), less(X, held.length), held.exists(said.start + X)))
    yield "delivers", step.claim(words, implies(here, shown), unknowns=(("x", said.length),))


def _inside(step: Step, start: Number, size: int) -> Stated:
    length = step.given.dims[step.attributes.dim].length
    goal = All((Compare(start, ">="), Compare(Number.of(length - size) - start, ">=")))
    return "delivers", step.claim(f"[{start}, +{size}) lies inside {length} places", goal)


def _cut(step: Step, start: Number, size: int) -> Result:
    held = step.given.dims[step.attributes.dim]
    made = with_dim(step.given, step.attributes.dim, held.part(start, size))
    return made, [_inside(step, start, size)]


def _dynamic_slice(step: Step) -> Result:
    a = step.attributes
    return _cut(step, partition_number(a.digits) * a.block, a.block)


def _resize(step: Step) -> Result:
    a, held = step.attributes, step.given.dims[step.attributes.dim]
    if a.size <= held.length:
        return with_dim(step.given, a.dim, replace(held, length=a.size)), []
    whole = held.start == Number() and held.length == held.size and not held.wanted
    zeros = SUM if whole or fill_number(held.fill, step.made.dtype) == 0 else None
    made = with_dim(step.given, a.dim, replace(held, length=a.size, fill=zeros))
    beyond = held.start + held.length + X
    goal = implies(held.exists(beyond), Compare(Number.of(-1), ">="))
    words = f"padding from {held.length} to {a.size} places covers no element that is held"
    return made, [("delivers", step.claim(words, goal, unknowns=(("x", a.size - held.length),)))]


def _concatenate(step: Step) -> Result:
    dim = step.attributes.dim
    first, stated = step.given.dims[dim], []
    length = first.length
    asked = {found.dims[dim].wanted for found in step.operands} - {()}
    stated.append(("delivers", Decided("the pieces were fetched for one window", len(asked) <= 1)))
    for other in step.operands[1:]:
        held = other.dims[dim]
        at = first.start + length
        wanted = held.wanted or first.wanted
        first = replace(first, wanted=wanted)
        goal = implies(first.exists(at + X), equal(held.start, at))
        words = f"the piece from place {length} on follows the one before it"
        stated.append(("delivers", step.claim(words, goal, unknowns=(("x", held.length),))))
        same = replace(other, dims=step.given.dims) == replace(step.given, dims=step.given.dims)
        alike = all(replace(a, fill=b.fill) == b for i, (a, b) in enumerate(
            zip(other.dims, step.given.dims, strict=True)) if i != dim)  # fmt: skip
        stated.append(("delivers", Decided("the pieces are of one value", same and alike)))
        length += held.length
    fills = zip(*([held.fill for held in found.dims] for found in step.operands), strict=True)
    dims = tuple(
        replace(held, fill=held.fill if len(set(each)) == 1 else None)
        for held, each in zip(step.given.dims, fills, strict=True)
    )
    made = replace(step.given, dims=dims)
    return with_dim(made, dim, replace(first, length=length, fill=None)), stated


def _arrives(step: Step, arriving: Number, said: Held, length: int, place: Number) -> Stated:
    """The element at place `x` of what a member sends stands at `place` of the result."""
    digits = step.attributes.digits
    here = within(said.start + place, 0, said.size)
    goal = implies(here, equal(arriving + X, said.start + place))
    words = f"place {place} receives element {arriving}+x"
    more = {"unknowns": (("x", length),), "members": ((MEMBER, digits),)}
    return "delivers", step.claim(words, goal, **more)


def _member_id(digits: Digits) -> Number:
    own = partition_number(digits)
    return at_member(own, digits, MEMBER)


def _said(step: Step, dim: int) -> Held:
    """Where the result's layout begins; of a padded layout no more elements exist for that."""
    return replace(step.said.dims[dim], size=step.given.dims[dim].size)


def _all_gather(step: Step) -> Result:
    a = step.attributes
    held, said = step.given.dims[a.dim], _said(step, a.dim)
    count = parts(a.digits)
    arriving = at_member(held.start, a.digits, MEMBER)
    place = _member_id(a.digits) * held.length + X
    stated = [
        _arrives(step, arriving, said, held.length, place),
        ("delivers", Decided("blocks of all members", said.length == held.length * count)),
        *members_agree(step, a.digits, (a.dim,)),
        undisturbed(step),
    ]
    return with_dim(step.given, a.dim, said), stated


def _summed(step: Step) -> tuple[Contents, list[Stated]]:
    """The digits of the collective are pending, and joined as they should be; they are then not."""
    a, given = step.attributes, step.given
    rest = without(given.unreduced, a.digits)
    words = f"{a.combine} joins what is pending: {given.combine}"
    stated = [
        ("combine", Decided(words, rest is not None and a.combine == given.combine)),
        bare(given),
        *members_agree(step, a.digits, ()),
    ]
    neutral = filled_with(step, fill_number(a.combine, step.made.dtype))
    return replace(neutral, unreduced=given.unreduced if rest is None else rest), stated


def _reduce_scatter(step: Step) -> Result:
    a = step.attributes
    made, stated = _summed(step)
    size = made.dims[a.dim].length // parts(a.digits)
    cut, more = _cut(step, partition_number(a.digits) * size, size)
    return replace(made, dims=cut.dims), [*stated, *more]


def _all_to_all(step: Step) -> Result:
    a = step.attributes
    said = {dim: _said(step, dim) for dim in (a.split_dim, a.concat_dim)}
    split, joined = step.given.dims[a.split_dim], step.given.dims[a.concat_dim]
    piece = split.length // parts(a.digits)
    piece_number = partition_number(a.arriving or a.digits)
    sent = at_member(split.start, a.digits, MEMBER) + piece_number * piece
    place = _member_id(a.digits) * joined.length + X
    arriving = at_member(joined.start, a.digits, MEMBER)
    stated = [
        _arrives(step, sent, said[a.split_dim], piece, X),
        _arrives(step, arriving, said[a.concat_dim], joined.length, place),
        *members_agree(step, a.digits, (a.split_dim, a.concat_dim)),
        undisturbed(step),
    ]
    fill = split.fill if split.start == Number() and said[a.split_dim].start == sent else None
    made = with_dim(step.given, a.split_dim, replace(said[a.split_dim], fill=fill))
    return with_dim(made, a.concat_dim, said[a.concat_dim]), stated


def _permute(step: Step) -> Result:
    """Each device receives once, from a device that held what it should hold."""
    said, devices = step.said, np.arange(step.mesh.size)
    sources, targets = positions(step.attributes.pairs)
    before, after = (_places(step.mesh, contents) for contents in (step.given, said))
    once = all(np.array_equal(np.sort(side), devices) for side in (sources, targets))
    lies = once and all(
        np.array_equal(
            _numbers_at(have.start, before[sources]), _numbers_at(want.start, after[targets])
        )
        for have, want in zip(step.given.dims, said.dims, strict=True)
    )
    words = "every device receives the block of its new place, once"
    stated = [
        ("delivers", Decided(words, bool(lies))),
        ("combine", Decided("partial sums stay where they are", not step.given.unreduced)),
        undisturbed(step),
    ]
    dims = tuple(_said(step, dim) for dim in range(len(said.dims)))
    return replace(step.given, dims=dims, order=said.order), stated


def _places(mesh: Mesh, contents: Contents) -> np.ndarray:
    """Where each device, by position, stands in the order in which contents are said."""
    if contents.order == mesh.device_ids:
        return np.arange(mesh.size)
    return mesh.places(Mesh(mesh.axes, contents.order))


def _numbers_at(number: Number, positions: np.ndarray) -> np.ndarray:
    """A number on the devices at some positions."""
    ids = (atom for atom in number.atoms() if isinstance(atom, PartitionId))
    found = number.at({atom: partition_ids(atom.digits, positions) for atom in ids})
    return np.broadcast_to(found, positions.shape)


def _fetch(step: Step, reading: p.Reading) -> Result:
    """The permutes bring every device what a reading wants of the block that it names."""
    a, held = step.attributes, step.given.dims[step.attributes.dim]
    source, wanted = start_number(reading.source), start_number(reading.wanted)
    own = PartitionId(canonical(a.digits))
    arriving = held.start.replaced(lambda atom: source if atom == own else None)
    if not own.digits:  # one block, number 0: what is before or behind it does not exist
        arriving = held.start + source * held.size
    here = np.arange(step.mesh.size)
    served, edges = here.copy(), [positions(pairs) for pairs in reading.permutes]
    inside = all(bool(((0 <= side) & (side < len(here))).all()) for side in edges)
    for sources, targets in edges if inside else ():
        served[targets] = sources
    lies = inside and _serves(step, (served, here), reading, (arriving, wanted))
    others = all(
        np.array_equal(_numbers_at(other.start, served), _numbers_at(other.start, here))
        for dim, other in enumerate(step.given.dims)
        if dim != a.dim
    )
    words = "every device receives what it wants of the block that it names"
    lower, upper = reading.places
    asked = ((wanted, reading.length), (arriving + lower, upper - lower))
    made = replace(held, start=arriving, wanted=asked, fill=None).part(Number(), held.length)
    stated = [("delivers", Decided(words, bool(lies and others))), undisturbed(step)]
    return with_dim(step.given, a.dim, made), stated


def _serves(
    step: Step,
    pair: tuple[np.ndarray, np.ndarray],
    reading: p.Reading,
    forms: tuple[Number, Number],
) -> bool:
    """Whether every source's block begins where it should, if any of it is wanted."""
    sources, here = pair
    held = step.given.dims[step.attributes.dim]
    start, wanted = (_numbers_at(form, here) for form in forms)
    lower, upper = reading.places
    low = np.maximum(np.maximum(start + lower, wanted), 0)
    high = np.minimum(np.minimum(start + upper, wanted + reading.length), held.size)
    return bool(((low >= high) | (_numbers_at(held.start, sources) == start)).all())


def _sent_once(step: Step) -> Stated:
    """For all readings together a permute takes one block of a device, and brings it one."""
    readings = step.attributes.readings
    operands = [reading.operand for reading in readings]
    permutes = zip(*(reading.permutes for reading in readings), strict=True)
    once = all(_once(permute, operands, step.mesh.size) for permute in permutes)
    return "delivers", Decided("in a permute every device sends and receives once at most", once)


def _once(
    permute: Sequence[Iterable[tuple[int, int]]], operands: Sequence[int], devices: int
) -> bool:
    """Whether the edges of all readings, each counted once, share no source and no target."""
    codes = []
    for pairs, operand in zip(map(positions, permute), operands, strict=True):
        sources, targets = pairs
        if not ((pairs >= 0) & (pairs < devices)).all():
            return False
        codes.append((operand * devices + sources) * devices + targets)
    found = np.sort(np.concatenate(codes))
    found = found[np.append(True, found[1:] != found[:-1])[: len(found)]]
    sides = found // devices % devices, found % devices
    return all(np.bincount(side, minlength=1).max() <= 1 for side in sides)


def _changed(step: Step) -> Result:
    """A change of numbers, which is what the value waits for, or what its reader expects."""
    given, a = step.given, step.attributes
    task = Selected(a, step.operands[1].changes) if isinstance(a, p.MaskIndexed) else a
    made = _refilled(step)
    if given.awaits and given.awaits[0] == task:
        return replace(made, awaits=given.awaits[1:]), list(_by_same_indices(step))
    if given.awaits:
        return given, [("combine", Decided(f"{given.awaits[0]} comes first", holds=False))]
    return replace(made, changes=(*given.changes, task)), []


def _refilled(step: Step) -> Contents:
    """What stands where there is no element is changed, too: only what it becomes may stay."""
    a, dtype = step.attributes, step.made.dtype
    stays = {p.MaskIndexed: 0, p.FirstMember: fill_number(getattr(a, "combine", None), dtype)}
    if type(a) in stays:
        return filled_with(step, stays[type(a)])
    return replace(step.given, dims=tuple(replace(held, fill=None) for held in step.given.dims))


def _by_same_indices(step: Step) -> Iterator[Stated]:
    """What selects places of a gathered value are whole indices, laid out as the value is."""
    for indices in step.operands[1:]:
        *spanned, components = indices.dims
        rows = list(zip(step.attributes.batch_dims, spanned, strict=True))
        alike = [_place(step.given.dims[dim]) == _place(held) for dim, held in rows]
        whole = components.start == Number() and components.length == components.size
        ready = not (indices.awaits or indices.unreduced or indices.viewed)
        words = "the indices are those of the gather, laid out as its value is"
        yield "selected", Decided(words, all(alike) and whole and ready)


def _place(held: Held) -> Held:
    return replace(held, fill=None, gap=None)


MOVES: dict[type, Callable[[Step], Result]] = {
    p.AllGather: _all_gather,
    p.AllReduce: _summed,
    p.ReduceScatter: _reduce_scatter,
    p.AllToAll: _all_to_all,
    p.CollectivePermute: _permute,
    p.Best: best,
    p.ValueAt: value_at,
    p.Carry: carry,
    p.Join: join,
    p.DynamicSlice: _dynamic_slice,
    p.Slice: lambda step: _cut(step, Number((), step.attributes.start), step.attributes.size),
    p.Pick: pick,
    p.SliceAt: lambda step: _cut(step, start_number(step.attributes.start), step.attributes.size),
    p.Concatenate: _concatenate,
    p.Regroup: regroup,
    p.Resize: _resize,
    p.Dilate: dilate,
    p.Mask: mask,
    p.MaskAt: mask_at,
    p.Offset: _changed,
    p.MaskIndexed: _changed,
    p.FirstMember: _changed,
}


# Pure, and the same instruction stands in many programs.
@lru_cache(maxsize=1 << 12)
def moved(step: Step) -> tuple[tuple[Contents, ...], list[Stated]]:
    """What the results hold, and the claims on which that rests.

    A local that a graph value is named for holds what its layout says; the claims show it.
    """
    if isinstance(step.attributes, p.Fetch):
        found = [
            _fetch(replace(step, operands=(step.operands[reading.operand],)), reading)
            for reading in step.attributes.readings
        ]
        stated = [_sent_once(step)]
    elif isinstance(step.attributes, p.Top | p.Fold):
        each = [replace(step, number=number) for number in range(step.count)]
        found, stated = [together(one) for one in each], []
    else:
        found, stated = [MOVES[type(step.attributes)](step)], []
    if step.made.named:
        found = [_settled(step, *result) for result in found]
    return tuple(replace(made, number=None) for made, _ in found), [
        *stated,
        *(s for _, more in found for s in more),
    ]


def _settled(step: Step, made: Contents, stated: list[Stated]) -> Result:
    """The result is what the program says of it: its layout, its partial sums, nothing to do."""
    said = step.said
    # only a regrouping itself ends a view, on the dimensions of the value that it makes
    alike = [held.size for held in made.dims] == [wanted.size for wanted in said.dims]
    alike = alike and (not made.viewed or isinstance(step.attributes, p.Regroup))
    if not alike:
        return said, [*stated, ("delivers", Decided("dimensions are the value's own", holds=False))]
    for dim, (held, wanted) in enumerate(zip(made.dims, said.dims, strict=True)):
        words = f"dimension {dim} holds the elements from {wanted.start} on"
        stated = [*stated, *agreement(step, held, wanted, words)]
    pending, done = made.unreduced == said.unreduced, not made.awaits and not made.changes
    stated = [
        *stated,
        ("combine", Decided("just these partial sums are pending", pending)),
        ("delivers", Decided("nothing is left to be done to the numbers", done)),
    ]
    fills = tuple(
        replace(w, fill=h.fill) if (h.start, h.length) == (w.start, w.length) else w
        for h, w in zip(made.dims, said.dims, strict=True)
    )
    return replace(said, dims=fills, combine=made.combine), stated
