"""The minimum number of devices that a contraction uses.

Digits match on a loop if the tensors that the loop indexes are sharded along them already. A
contraction is divided at least along all its matches.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from math import prod

from shardalg.algebra.digits import Digit, Digits, overlap, parts
from shardalg.costs.compute import contracts
from shardalg.planner.partition.choose.component import Assigned, Component, Tensor
from shardalg.planner.partition.choose.key import NodeKey, available, num_parts

# Per loop, a set of digits. It is a set, because matches do not depend on the order of digits.
LoopSets = dict[str, set[Digit]]


def required_devices(key: NodeKey, component: Component, assignments: list[Assigned]) -> int:
    """Return the minimum number of devices among which a contraction is divided; 1 for others.

    With fewer devices, a choice could send fewer bytes, but each device would compute more than in
    XLA. XLA's partitioner divides a product among the devices of its matches (`dot_handler.cc`,
    PartitionDotGroupOn*): digits that operands and result have on the same loop. The number is that
    of the largest assignment that uses all matches (`_matches`), and no digits that only one
    operand has.
    """
    if not (component.is_whole and contracts(key.signature)):
        return 1
    # Per loop: digits that shard it in all its tensors, and digits that it can use.
    matched, usable = _matches(key, component)
    most = 1
    for assigned in assignments:
        count = num_parts(assigned)
        if count <= most:
            continue
        # The assignment must have all matched digits, and none that only one operand has.
        has_all = all(digits.issubset(assigned.get(name, ())) for name, digits in matched.items())
        if has_all and all(usable.get(n, set()).issuperset(d) for n, d in assigned.items()):
            most = count
    # The result may be sharded along digits that a contracting loop takes. If idle axes are as
    # large, XLA splits the result along those and permutes it into place.
    contracted = set().union(*(matched.get(name, ()) for name in component.rule.reduced))
    results = [tensor for tensor in component.tensors if tensor.operand is None]
    # The number of parts of the result along digits that the contracting loop takes from it.
    displaced = _parts(contracted & {d for tensor in results for d in _digits(key, tensor)})
    if _parts(set(_idle_axes(key, component))) % displaced:
        return most
    # The larger number is required only if some assignment reaches it.
    with_idle_axes = most * displaced
    is_reached = any(num_parts(assigned) >= with_idle_axes for assigned in assignments)
    return with_idle_axes if is_reached else most


def idle_axes_of_equal_size(key: NodeKey, component: Component) -> dict[str, Digits]:
    """Return idle mesh axes that can replace digits of a contraction's loops, by loop.

    The axes become further candidates for the loops. An axis is idle if no operand and no result is
    sharded along it. For example, in `[-, X] @ [X, -] -> [X, -]` on the mesh X=2, Y=2, the rows of
    the result and the contracting loop both have X, and Y is idle. The contracting loop can get Y.

    A contracting loop gets an idle axis of the same size as the digits of its operands: a permute
    moves their blocks there. If another loop uses these digits already, the contracting loop may
    get all idle axes, if the number of devices along them is a multiple. XLA does this within a
    group of devices. A loop of the result gets an idle axis if a contracting loop uses its digits.
    The result is empty for other operators.
    """
    if not (component.is_whole and contracts(key.signature)):
        return {}
    # Without these axes, a contraction whose digits conflict would repeat its work on all of them.
    idle = _idle_axes(key, component)
    found: dict[str, Digits] = {}
    for name, sides in _contracting_digits(key, component).items() if idle else ():
        # An idle axis as large as the digits of the operands is preferred: one permute per operand
        # moves its blocks there. All idle axes are taken only if another loop has the digits.
        split = [tuple(own) for _, own in sides if own]
        alike = [axis for axis in idle if split and all(axis.size == parts(own) for own in split)]
        count, extent = parts(tuple(idle)), component.rule.extents[name]
        taken = not _digits_of_other_loops(key, component, name).isdisjoint(
            d for own in split for d in own
        )
        if alike:
            found[name] = (alike[0],)
        elif taken and extent % count == 0 and all(count % parts(own) == 0 for own in split):
            found[name] = tuple(idle)
    return found | _idle_axes_for_result(key, component, idle)


def contracted_then_idle(
    key: NodeKey, component: Component, name: str, idle: Digits
) -> Iterator[Digits]:
    """Yield the operands' digits on a contracting loop followed by idle axes, if that is useful.

    All operands must have the same digits on the loop: slicing them further along the idle axes
    sends nothing. The result's sharding must have these digits, too: a reduce-scatter produces it.

    Args:
      name: the loop.
      idle: the idle axes.
    """
    # Only a contracting loop leaves a partial sum, which a reduce-scatter then moves to the
    # result's digits.
    result_digits = {d for layout in key.value_shardings for digits in layout.dims for d in digits}
    if name not in component.rule.reduced:
        return
    # The digits of every operand dimension that is this loop alone.
    found = {
        digits
        for tensor in component.tensors
        if tensor.operand is not None
        for loops, digits in zip(tensor.suggested, available(key, tensor)[0].dims, strict=True)
        if [loop for loop, _ in loops] == [name]
    }
    if len(found) == 1:
        (digits,) = found
        is_even = component.rule.extents[name] % parts((*digits, *idle)) == 0
        if digits and result_digits.issuperset(digits) and is_even:
            yield (*digits, *idle)


def _digits_of_other_loops(key: NodeKey, component: Component, name: str) -> set[Digit]:
    """Return all digits that shard dimensions which the loop `name` does not index.

    The operands' shardings are those of their first available copies, the results' the completed
    ones.
    """
    # `suggested` has per dimension the loops that its digits can shard, as (loop, extent).
    return {
        digit
        for tensor in component.tensors
        for loops, digits in zip(tensor.suggested, available(key, tensor)[0].dims, strict=True)
        for digit in digits
        if all(loop != name for loop, _ in loops)
    }


def _idle_axes_for_result(
    key: NodeKey, component: Component, idle: list[Digit]
) -> dict[str, Digits]:
    """Return an idle axis for each loop of the result that needs another axis than it has.

    A digit that shards a contracting loop in both operands divides the sum, so the result cannot be
    sharded along it, too. The keys are the loops of the result that have only such digits; the
    values are idle axes with as many devices.

    Args:
      idle: the mesh axes along which no tensor of the operator is sharded.
    """
    # A digit that both operands have on a contracting loop divides the sum: each device would have
    # a part of every element of the result instead of a block of it.
    contracted = _contracting_digits(key, component).values() if idle else ()
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


def _idle_axes(key: NodeKey, component: Component) -> list[Digit]:
    """Return the mesh axes, as digits, along which no operand and no result is sharded."""
    used = {digit for tensor in component.tensors for digit in _digits(key, tensor)}
    mesh = key.value_shardings[0].mesh
    # An axis that overlaps a used digit is not idle, even if a part of it is.
    axes = [mesh.digit(name) for name, size in mesh.axes if size > 1]
    return [axis for axis in axes if not any(overlap(axis, digit) for digit in used)]


def _matches(key: NodeKey, component: Component) -> tuple[LoopSets, LoopSets]:
    """Return two dictionaries from loops to digits: the matched ones, and the usable ones.

    Matched digits shard a loop in all its tensors, so that each device can compute its part without
    communication. A batch or non-contracting loop matches by digits that the result and an operand
    have on it; a contracting loop by digits that all operands have on it. Usable digits are those
    of the result that no contracting loop uses, and the matched digits of contracting loops.
    """
    result_digits = _suggested_digits(key, component, of_result=True)
    operand_digits = _suggested_digits(key, component, of_result=False)
    of_result = {name: set().union(*found) for name, found in result_digits.items()}
    matched = {
        name: own & set().union(*operand_digits.get(name, ())) for name, own in of_result.items()
    }
    used = {digit for digits in matched.values() for digit in digits}
    # Contracting loops match if all operands have the same digits there, or begin with the same
    # digits and the result has none of them. Digits that another loop has matched (`used`) do not
    # count, because one digit cannot divide two loops.
    contracting = _contracting_digits(key, component)
    unmatched = {
        name: [digits - used for _, digits in readers] for name, readers in contracting.items()
    }
    common = {name: set.intersection(*digits) for name, digits in unmatched.items()}
    common_majors, all_of_result = _first_digits(key, component), set().union(*of_result.values())
    summed = {
        name: own
        if all(digits == unmatched[name][0] for digits in unmatched[name])
        or own == common_majors.get(name, set()) - all_of_result
        else set()
        for name, own in common.items()
    }
    # One operand's digits count too, if reducing the result sends less than gathering the operand.
    summed |= _aligned_digits(key, component, matched)
    # A result cannot be sharded along digits of which a contracting loop needs all partial sums.
    contracted = {digit for digits in (*common.values(), *summed.values()) for digit in digits}
    usable = {name: own - contracted for name, own in of_result.items()}
    return matched | summed, usable | summed


def _aligned_digits(key: NodeKey, component: Component, matched: LoopSets) -> LoopSets:
    """Return, for each contracting loop that becomes sharded, the digits along which it is.

    A contracting loop can be sharded if both operands have the same digits along it. If only one
    operand has them, the other operand is moved to them. XLA does this in two cases
    (`dot_handler.cc`, should_partition_contracting_dim): the move is a permute; or nothing else can
    be sharded, and the other operand has to be moved anyway, or this one is larger than the result.

    Args:
      matched: the digits of batch and non-contracting loops that shard a loop in all its tensors.
    """
    used, found = set().union(*matched.values()), {}
    others = idle_axes_of_equal_size(key, component)
    for name, readers in _contracting_digits(key, component).items():
        # Each proposal is (operand, its digits on the loop) to which the other operand would move.
        # Digits that a batch or non-contracting loop uses cannot shard this loop, too.
        proposed = [(operand, own - used) for operand, own in readers if own - used]
        digits_of = dict(readers)
        # If neither operand has a free digit on the loop, both can move to one idle axis as large.
        if not proposed and name in others:
            proposed = [(operand, set(others[name])) for operand, own in readers if own]
            digits_of = dict(proposed)
        if len(readers) != 2 or not proposed:
            continue
        for operand, own in proposed:
            ((other, other_digits),) = (reader for reader in readers if reader[0] != operand)
            # Both are split into equally many parts, so a permute moves the other one.
            on_other = {d for t in component.tensors if t.operand == other for d in _digits(key, t)}
            permutes = _parts(own) == _parts(other_digits) and not own & on_other
            # Nothing else is left to split and no axis is idle. The other operand is moved if it
            # has to be moved anyway, or if this operand is larger than the result.
            is_alone = len(proposed) == 1 and _is_free(
                key, component, operand, (used, digits_of[operand])
            )
            if permutes or (
                is_alone and (other_digits & used or _outweighs(key, component, operand, matched))
            ):
                found[name] = own
                break
    return found


def _parts(digits: set[Digit]) -> int:
    return parts(tuple(digits))


def _is_free(
    key: NodeKey, component: Component, operand: int, digits: tuple[set[Digit], set[Digit]]
) -> bool:
    """Return whether nothing can be sharded in addition to a contracting loop.

    This is true if no mesh axis is unused, and all tensors except `operand` have only matched
    digits (digits that shard a loop in all its tensors).

    Args:
      digits: the matched digits, and all digits of `operand` on the contracting loop.
    """
    used, own = digits
    # No axis is idle if matched and own digits together have as many parts as there are devices.
    # A digit in both sets would count twice, so that the product says nothing.
    if own & used or _parts(used) * _parts(own) != key.value_shardings[0].mesh.size:
        return False
    return all(_digits(key, t) <= used for t in component.tensors if t.operand != operand)


def _outweighs(key: NodeKey, component: Component, operand: int, matched: LoopSets) -> bool:
    """Return whether an operand's block has more elements than the result's block.

    Both tensors count as sharded along matched digits only, which are digits that shard a loop in
    all its tensors.
    """
    (one,) = (t for t in component.tensors if t.operand == operand)
    (made,) = (t for t in component.tensors if t.operand is None)
    return _block_elements(key, one, matched) > _block_elements(key, made, matched)


def _block_elements(key: NodeKey, tensor: Tensor, matched: LoopSets) -> int:
    """Return the number of elements of a tensor's block, if only matched digits shard it.

    For example, a tensor (8, 8) along X=2 and Y=4, of which only Y is matched -> 16.

    Args:
      matched: per loop, the digits that shard it in all its tensors.
    """
    layout = available(key, tensor)[0]
    matched_digits = {
        digit
        for loops, digits in zip(tensor.suggested, layout.dims, strict=True)
        for digit in digits
        if any(digit in matched.get(name, ()) for name, _ in loops)
    }
    return prod(layout.shape) // parts(tuple(matched_digits))


def _digits(key: NodeKey, tensor: Tensor) -> set[Digit]:
    """Return the digits of all dimensions in the first available sharding of a tensor."""
    return {digit for digits in available(key, tensor)[0].dims for digit in digits}


def _contracting_digits(
    key: NodeKey, component: Component
) -> dict[str, list[tuple[int, set[Digit]]]]:
    """Return per contracting loop a list of (operand number, digits that shard this loop in it).

    A loop that some operand reads through a window is excluded, unless it spans most of the window.
    """
    held = _suggested_digits(key, component, of_result=False)
    found = {}
    for name in component.loops:
        readers = _readers(component, name)
        # A window counts in `held` for the loop that spans most of it, in `readers` for all loops.
        if name in component.rule.reduced and len(held.get(name, ())) == len(readers):
            found[name] = list(zip(readers, held[name], strict=True))
    return found


def _readers(component: Component, loop: str) -> list[int]:
    """Return the operand numbers of all dimensions that a loop indexes, also through a window.

    An operand occurs once for each of its dimensions with the loop. Results are left out.
    """
    return [
        tensor.operand
        for tensor in component.tensors
        if tensor.operand is not None
        for index in tensor.rule.indices(tensor.operand)
        if loop in index.variables
    ]


def _first_digits(key: NodeKey, component: Component) -> LoopSets:
    """Return per loop the major digits that all operands share on it.

    For example, if loop `k` has the digits (X, Y) in one operand and (X, Z) in the other -> {X}.
    Dimensions that several loops index are ignored.
    """
    # Per loop, the digits of each operand dimension that is this loop.
    found: dict[str, list[Digits]] = {}
    for tensor in component.tensors:
        if tensor.operand is not None:
            # The first copy of an operand is the one that was computed or placed, not a moved one.
            dims = zip(tensor.suggested, available(key, tensor)[0].dims, strict=True)
            for ((name, _), *_), digits in (pair for pair in dims if len(pair[0]) == 1):
                found.setdefault(name, []).append(digits)
    # Column k of the rows has the k-th digit of every operand: the shared digits end before the
    # first column with two different digits.
    heads = {
        name: takewhile(lambda column: len(set(column)) == 1, zip(*rows, strict=False))
        for name, rows in found.items()
    }
    return {name: {digit for digit, *_ in head} for name, head in heads.items()}


def _suggested_digits(
    key: NodeKey, component: Component, *, of_result: bool
) -> dict[str, list[set[Digit]]]:
    """Return per loop a list with the digits of each dimension that it indexes.

    A pending sum can be scattered to any dimension, so its digits count for all of them.

    Args:
      of_result: whether dimensions of the result are listed, or those of the operands.
    """
    # Only the first available copy counts, as in XLA, where a value has one sharding. `suggested`
    # has the loops of each dimension; of the loops of a window only the one that spans most of it.
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
