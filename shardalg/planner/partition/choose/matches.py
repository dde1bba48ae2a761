"""On how many devices a contraction is computed at least: as its layouts match."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from math import prod

from shardalg.algebra.digits import Digit, Digits, overlap, parts
from shardalg.costs.compute import contracts
from shardalg.planner.partition.choose.component import Assigned, Component, Tensor
from shardalg.planner.partition.choose.key import NodeKey, available, devices_of

Held = dict[str, set[Digit]]
"""Digits per loop."""


def required_devices(key: NodeKey, component: Component, assignments: list[Assigned]) -> int:
    """How many devices a contraction is computed on at least.

    Loops are matched by digits that an operand and the result both put on them, contracted ones
    where all operands put the same (a window's other operand has no digits on its taps) or begin
    with it, and the result has it nowhere, or where one does and adding up the result sends less
    than gathering it. What matches splits the work as it lies; besides, the result's digits may.
    The most devices of the assignments that use all matches and no digits of one operand alone,
    times the parts of the result on digits that a contraction takes, where idle axes can be so many
    (XLA splits the result along those and permutes it home): so that less traffic never means more
    arithmetic than in XLA's partitioner, which groups devices by the same matches
    (`dot_handler.cc`, PartitionDotGroupOn*).
    """
    if not (component.is_whole and contracts(key.signature)):
        return 1
    matched, usable = _matches(key, component)
    most = 1
    for assigned in assignments:
        count = devices_of(assigned)
        if count > most and _is_matched(assigned, matched, usable):
            most = count
    wanted = most * _displaced(key, component, matched)
    return wanted if any(devices_of(a) >= wanted for a in assignments) else most


def _displaced(key: NodeKey, component: Component, matched: Held) -> int:
    """In how many parts idle axes split what the result has on digits that a contraction takes."""
    contracted = set().union(*(matched.get(name, ()) for name in component.rule.reduced))
    made = [t for t in component.tensors if t.operand is None]
    count = _parts(contracted & {d for t in made for d in _digits(key, t)})
    return count if _parts(set(_idle(key, component))) % count == 0 else 1


def twins(key: NodeKey, component: Component) -> dict[str, Digits]:
    """Axes that no tensor lies on, as large as the digits of the operands on a contracted loop.

    Where those digits split another loop, operands may be brought onto such an axis instead, or
    onto all such axes where they are a multiple, as XLA does within a group of devices; and the
    result onto one where its own digits are contracted.
    """
    if not (component.is_whole and contracts(key.signature)):
        return {}
    idle = _idle(key, component)
    found: dict[str, Digits] = {}
    for name, sides in _contracted(key, component).items() if idle else ():
        split = [tuple(own) for _, own in sides if own]
        alike = [axis for axis in idle if split and all(axis.size == parts(own) for own in split)]
        count, extent = parts(tuple(idle)), component.rule.extents[name]
        taken = not _elsewhere(key, component, name).isdisjoint(d for own in split for d in own)
        if alike:
            found[name] = (alike[0],)
        elif taken and extent % count == 0 and all(count % parts(own) == 0 for own in split):
            found[name] = tuple(idle)
    return found | _twins_of_result(key, component, idle)


def behind_split(key: NodeKey, component: Component, name: str, idle: Digits) -> Iterator[Digits]:
    """Yield the digits of a contracted loop, followed by the idle axes.

    All operands are sharded along these digits, and slicing them along the idle axes sends nothing.
    The result's sharding has the digits, too, and a reduce-scatter delivers them.
    """
    wanted = {digit for layout in key.value_shardings for dim in layout.dims for digit in dim}
    if name not in component.rule.reduced:
        return
    found = {
        digits
        for tensor in component.tensors
        if tensor.operand is not None
        for loops, digits in zip(tensor.suggested, available(key, tensor)[0].dims, strict=True)
        if [loop for loop, _ in loops] == [name]
    }
    if len(found) == 1:
        (own,) = found
        fits = component.rule.extents[name] % parts((*own, *idle)) == 0
        if own and wanted.issuperset(own) and fits:
            yield (*own, *idle)


def _elsewhere(key: NodeKey, component: Component, name: str) -> set[Digit]:
    """What splits dimensions that are not along a loop."""
    return {
        digit
        for tensor in component.tensors
        for loops, digits in zip(tensor.suggested, available(key, tensor)[0].dims, strict=True)
        for digit in digits
        if all(loop != name for loop, _ in loops)
    }


def _twins_of_result(key: NodeKey, component: Component, idle: list[Digit]) -> dict[str, Digits]:
    """Idle axes as large as what the result has on digits that both operands are contracted by."""
    contracted = _contracted(key, component).values() if idle else ()
    taken = {d for sides in contracted for d in set.intersection(*(own for _, own in sides))}
    found: dict[str, Digits] = {}
    for tensor in component.tensors if taken else ():
        if tensor.operand is None:
            layout = available(key, tensor)[0]
            for loops, own in zip(tensor.suggested, layout.dims, strict=True):
                alike = [axis for axis in idle if axis.size == parts(own)]
                if len(loops) == 1 and alike and taken.issuperset(own):
                    found[loops[0][0]] = (alike[0],)
    return found


def _idle(key: NodeKey, component: Component) -> list[Digit]:
    """Axes that no tensor lies on."""
    lying = {digit for tensor in component.tensors for digit in _digits(key, tensor)}
    mesh = key.value_shardings[0].mesh
    axes = [mesh.digit(name) for name, size in mesh.axes if size > 1]
    return [axis for axis in axes if not any(overlap(axis, digit) for digit in lying)]


def _is_matched(assigned: Assigned, matched: Held, usable: Held) -> bool:
    """Whether it uses all matches, and nothing that one operand alone has."""
    if not all(digits.issubset(assigned.get(name, ())) for name, digits in matched.items()):
        return False
    return all(usable.get(name, set()).issuperset(own) for name, own in assigned.items())


def _matches(key: NodeKey, component: Component) -> tuple[Held, Held]:
    """Per loop the digits on which its tensors agree, and those that may split it besides."""
    asked, held = _held(key, component, of_result=True), _held(key, component, of_result=False)
    result_sharding = {name: set().union(*found) for name, found in asked.items()}
    matched = {
        name: own & set().union(*held.get(name, ())) for name, own in result_sharding.items()
    }
    used = {digit for digits in matched.values() for digit in digits}
    sides = _contracted(key, component)
    left = {name: [digits - used for _, digits in found] for name, found in sides.items()}
    shared = {name: set.intersection(*found) for name, found in left.items()}
    first, asked_for = _first_digits(key, component), set().union(*result_sharding.values())
    same = {
        name: own if _alike(left[name]) or own == first.get(name, set()) - asked_for else set()
        for name, own in shared.items()
    }
    same |= _aligned(key, component, matched)
    contracted = {digit for digits in (*shared.values(), *same.values()) for digit in digits}
    usable = {name: own - contracted for name, own in result_sharding.items()}
    return matched | same, usable | same


def _aligned(key: NodeKey, component: Component, matched: Held) -> Held:
    """Contracted loops along which one operand is split and the other one is then split too.

    Where both are, by as many, or where digits that the other has there split another loop already,
    one's take the place of the other's; else where nothing else is left to split, no axis is idle,
    and the other has to be moved anyway, as its digits there split another loop, or the operand is
    larger than the result (`dot_handler.cc`, should_partition_contracting_dim).
    """
    used, found = set().union(*matched.values()), {}
    others = twins(key, component)
    for name, sides in _contracted(key, component).items():
        split, lying = [(operand, own - used) for operand, own in sides if own - used], dict(sides)
        if not split and name in others:
            split = [(operand, set(others[name])) for operand, own in sides if own]
            lying = dict(split)
        if len(sides) != 2 or not split:
            continue
        for operand, own in split:
            ((other, taken),) = (side for side in sides if side[0] != operand)
            swapped = _parts(own) == _parts(taken) and not own & _digits_of(key, component, other)
            free = len(split) == 1 and _is_free(key, component, operand, (used, lying[operand]))
            displaced = taken & used
            if swapped or (free and (displaced or _outweighs(key, component, operand, matched))):
                found[name] = own
                break
    return found


def _parts(digits: set[Digit]) -> int:
    return parts(tuple(digits))


def _digits_of(key: NodeKey, component: Component, operand: int) -> set[Digit]:
    return {d for t in component.tensors if t.operand == operand for d in _digits(key, t)}


def _is_free(
    key: NodeKey, component: Component, operand: int, digits: tuple[set[Digit], set[Digit]]
) -> bool:
    """Whether all other tensors are split by what matches alone, and no axis is left idle.

    Args:
      digits: what matches, and all that one operand has on a contracted loop.
    """
    used, own = digits
    if own & used or _parts(used) * _parts(own) != key.value_shardings[0].mesh.size:
        return False
    return all(_digits(key, t) <= used for t in component.tensors if t.operand != operand)


def _outweighs(key: NodeKey, component: Component, operand: int, matched: Held) -> bool:
    """Whether an operand has more elements than the result, each split by what matches on it."""
    (one,) = (t for t in component.tensors if t.operand == operand)
    (made,) = (t for t in component.tensors if t.operand is None)
    return _elements(key, one, matched) > _elements(key, made, matched)


def _elements(key: NodeKey, tensor: Tensor, matched: Held) -> int:
    layout = available(key, tensor)[0]
    split = {
        digit
        for loops, digits in zip(tensor.suggested, layout.dims, strict=True)
        for digit in digits
        if any(digit in matched.get(name, ()) for name, _ in loops)
    }
    return prod(layout.shape) // parts(tuple(split))


def _digits(key: NodeKey, tensor: Tensor) -> set[Digit]:
    """All that splits a tensor as it lies."""
    return {digit for digits in available(key, tensor)[0].dims for digit in digits}


def _contracted(key: NodeKey, component: Component) -> dict[str, list[tuple[int, set[Digit]]]]:
    """Per contracted loop each operand with its digits there, but those read through a window."""
    held = _held(key, component, of_result=False)
    found = {}
    for name in component.loops:
        readers = _readers(component, name)
        if name in component.rule.reduced and len(held.get(name, ())) == len(readers):
            found[name] = list(zip(readers, held[name], strict=True))
    return found


def _readers(component: Component, loop: str) -> list[int]:
    """The operand of every dimension that is read along a loop, through a window too."""
    return [
        tensor.operand
        for tensor in component.tensors
        if tensor.operand is not None
        for index in tensor.rule.indices(tensor.operand)
        if loop in index.variables
    ]


def _first_digits(key: NodeKey, component: Component) -> Held:
    """Per loop, the major digits that all operands' dimensions of this loop alone begin with."""
    found: dict[str, list[Digits]] = {}
    for tensor in component.tensors:
        if tensor.operand is not None:
            dims = zip(tensor.suggested, available(key, tensor)[0].dims, strict=True)
            for ((name, _), *_), digits in (pair for pair in dims if len(pair[0]) == 1):
                found.setdefault(name, []).append(digits)
    heads = {name: takewhile(_same, zip(*held, strict=False)) for name, held in found.items()}
    return {name: {digit for digit, *_ in head} for name, head in heads.items()}


def _same(digits: tuple[Digit, ...]) -> bool:
    return len(set(digits)) == 1


def _alike(held: list[set[Digit]]) -> bool:
    return all(found == held[0] for found in held)


def _held(key: NodeKey, component: Component, *, of_result: bool) -> dict[str, list[set[Digit]]]:
    """Per loop, what each of its dimensions puts on it; of partial sums any dimension may get."""
    found: dict[str, list[set[Digit]]] = {}
    for tensor in component.tensors:
        if (tensor.operand is None) == of_result:
            layouts = available(key, tensor)[:1]
            pending = {d for layout in layouts for d in layout.unreduced}
            for dim, loops in enumerate(tensor.suggested):
                digits = pending.union(*(layout.dims[dim] for layout in layouts))
                for name, _ in loops:
                    found.setdefault(name, []).append(digits)
    return found
