"""Warnings about memory: padding of uneven dimensions, unused donations, replicated state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from math import gcd, prod
from typing import Any, NamedTuple

from shardalg.algebra.digits import Digit, Digits, parts
from shardalg.algebra.sharding import Sharding
from shardalg.costs.analyses.scaling import reused_arguments
from shardalg.graph.ir import Value, ValueType
from shardalg.plan.explain.changes import filled
from shardalg.plan.explain.why_not import annotated_as
from shardalg.planner.propagate.strategy import Annotations
from shardalg.planner.stages import Stages
from shardalg.planner.trials import Trials
from shardalg.sizes.amounts import number
from shardalg.tables import bytes_text, counted, seconds_text

Row = tuple[object, ...]
PADDED_SHARE, REPLICATED_SHARE = 0.1, 0.1
"""Smaller shares have no warning: padding of a dimension, and replicated state of the peak."""
NOTHING = "no sharding that was tried needs less memory or sends less"
MOST_TRIED = 3
"""Trials plan the function again, so only the groups with the most padding get them."""
STATE = ("parameters", "optimizer_state")


def held_rows(trials: Trials) -> tuple[Row, ...]:
    """Return the rows for uneven dimensions, unused donations and replicated state.

    There are none with named sizes. A donation has a row if no result reuses its memory. A remedy
    is an annotation that was planned, with its effect on bytes sent and peak memory.
    """
    if trials.stages.is_named:
        return ()
    return (*_uneven(trials), *_donated(trials), *_replicated(trials))


def _uneven(trials: Trials) -> Iterator[Row]:
    """Yield a warning per group of dimensions of equal size whose axes do not divide this size."""
    stages = trials.stages
    alike: defaultdict[tuple[int, Digits], list[Value]] = defaultdict(list)
    for value, layout in zip(stages.graph.values, stages.sharded.shardings, strict=True):
        for size, digits in zip(layout.shape, layout.dims, strict=True):
            block = -(-size // parts(digits))
            if size and block * parts(digits) - size > PADDED_SHARE * size:
                alike[size, digits].append(value)
    # Padding that the user asked for by an annotation is reported even without a remedy.
    annotated = stages.annotations
    given = [*annotated.arguments, *annotated.results, *annotated.sites]
    asked = {pair for a in given if a is not None for pair in zip(a.shape, a.dims, strict=True)}
    groups = [
        _Uneven(size, digits, values, sum(_padding(stages, v, digits, size) for v in values))
        for (size, digits), values in alike.items()
    ]
    # The groups with the most padding come first, because only these get trials.
    for place, group in enumerate(sorted(groups, key=lambda group: -group.padding)):
        is_asked = (group.size, group.digits) in asked
        even = [*_even_remedies(trials, group, equal=is_asked)] if place < MOST_TRIED else []
        # Padding that no annotation asks for is worth a row if another layout is cheaper.
        if even or is_asked:
            yield _uneven_row(trials, group, even)


class _Uneven(NamedTuple):
    """Values with a dimension of one size along axes that do not divide it.

    Attributes:
      padding: the average bytes of padding of all values, per device.
    """

    size: int
    digits: Digits
    values: Sequence[Value]
    padding: float


def _uneven_row(trials: Trials, group: _Uneven, even: Sequence[str]) -> Row:
    """Return the warning about the padding of values with an uneven dimension.

    Args:
      group: the values, with the size and the axes of their uneven dimension.
      even: texts of the remedies that were planned: shardings that divide the dimension.
    """
    size, digits, values, padding = group
    stages, devices = trials.stages, parts(digits)
    # Blocks have the size ceil(size / devices), so the last devices can have nothing but padding.
    block = -(-size // devices)
    filled = -(-size // block)
    first, axes = values[0], ",".join(stages.mesh.texts(digits))
    text = (
        f"uneven: {size} elements over {devices} devices along {axes} in blocks of {block}, "
        f"{devices * block / size - 1:.0%} padding"
    )
    text += f", {devices - filled} devices hold only padding" if filled < devices else ""
    text += f"; {counted(len(values), 'value')}, {bytes_text(padding)} of padding per device"
    remedy = ", or ".join((f"make it a multiple of {devices} (not tried)", *even))
    return ("uneven", _source(stages, first), len(values), 0, text, remedy, 0)


def _padding(stages: Stages, value: Value, digits: Digits, size: int) -> float:
    """Return the average bytes of padding in a device's block of a value."""
    layout = stages.sharded.shardings[value.index]
    held = prod(layout.shard_shape) * value.type.itemsize
    true = size / (-(-size // parts(digits)) * parts(digits))
    return held * (1 - true)


def _even_remedies(trials: Trials, group: _Uneven, *, equal: bool) -> Iterator[str]:
    """Yield remedies: shardings without padding that were planned and save memory or bytes sent.

    The uneven dimension keeps the axes that divide it, and the largest sub-axis of the next axis
    that still divides it. The remaining axes split another dimension, or nothing.

    Args:
      equal: whether a sharding at an equal price is offered if none is cheaper.
    """
    size, digits, (value, *_), _ = group
    # Minor axes split the blocks of major ones, so axes are dropped from the minor end only.
    kept = digits
    while kept and size % parts(kept):
        kept = kept[:-1]
    # `cut` is the first axis that does not divide the rest of the dimension. It is split into two
    # sub-axes: a major one of size gcd, which divides, and a minor one with the remaining factor.
    cut, *others = digits[len(kept) :]
    part = gcd(size // parts(kept), cut.size)
    major = Digit(cut.stride * cut.size // part, part)
    minor = Digit(cut.stride, cut.size // part)
    split, left = (*kept, *([major] if part > 1 else [])), (minor, *others)
    # A choice is (digits that the uneven dimension keeps, digits that split another dimension).
    # At an equal price only the first remedy is offered, so the fewest replicas come first.
    choices = dict.fromkeys(((split, left), (split, ()), (kept, ())))
    found = [each for over in choices if (each := _evened(trials, value, (size, digits), over))]
    cheaper = [text for is_less, text in found if is_less]
    # A sharding along a part of the axis has no padding: it is offered at an equal price, too.
    yield from cheaper or [text for _, text in found[: int(equal)]]


def _evened(
    trials: Trials, value: Value, uneven: tuple[int, Digits], over: tuple[Digits, Digits]
) -> tuple[bool, str] | None:
    """Plan with unevenly sharded dimensions along other axes; None if it costs memory or bytes.

    Args:
      uneven: size and digits of the dimensions. over: the digits that replace them, and the digits
        that shard another dimension.

    Returns:
      Whether memory or bytes are saved, and the annotation with its effect, as text.
    """
    stages, now = trials.stages, trials.now
    layout = _with_even(stages.sharded.shardings[value.index], uneven, over)
    if layout is None:
        return None
    # Other annotations with the same uneven dimension have the same padding. Changing only one of
    # them would add reshards, so all are changed likewise.
    sides = {side: list(getattr(stages.annotations, side)) for side in _SIDES}
    changed = 0
    for given in sides.values():
        for at, before in enumerate(given):
            after = None if before is None else _with_even(before, uneven, over)
            if after is not None:
                given[at], changed = after, changed + 1
    asked: Any = {side: tuple(given) for side, given in sides.items()}
    annotations = (
        replace(stages.annotations, **asked)
        if changed
        else annotated_as(stages, value.index, layout)
    )
    then = trials.outcome(annotations)
    saved = now.peak_memory_bytes - then.peak_memory_bytes, now.wire_bytes - then.wire_bytes
    # A sharding without padding may still cost more elsewhere.
    if min(saved) < 0:
        return None
    alike = f" and {counted(changed - 1, 'more annotation')} likewise" if changed > 1 else ""
    return max(saved) > 0, (
        f"annotate {value.name} as {layout.text()}{alike}: no padding, peak memory "
        f"{_change(now.peak_memory_bytes, then.peak_memory_bytes)}, sent "
        f"{_change(now.wire_bytes, then.wire_bytes)}"
    )


_SIDES = ("arguments", "results", "sites")


def _with_even(
    layout: Sharding, uneven: tuple[int, Digits], over: tuple[Digits, Digits]
) -> Sharding | None:
    """Return a sharding whose uneven dimension is on axes that divide it, or None if that fails.

    Args:
      layout: the sharding to change.
      uneven: (size, digits) of the uneven dimension. None is returned if no dimension has them.
      over: the digits that replace these, and the digits that move to another dimension.
    """
    (split, left), dims = over, list(layout.dims)
    if uneven not in zip(layout.shape, layout.dims, strict=True):
        return None
    at = list(zip(layout.shape, layout.dims, strict=True)).index(uneven)
    dims[at] = split
    # Without a place for the digits `left`, each device would hold more of the tensor. They move to
    # the first other dimension that they divide evenly.
    if left:
        extents = enumerate(zip(layout.shape, dims, strict=True))
        room = (
            dim
            for dim, (extent, given) in extents
            if dim != at and extent and extent % parts((*given, *left)) == 0
        )
        dim = next(room, None)
        if dim is None:
            return None
        dims[dim] = (*dims[dim], *left)
    return replace(layout, dims=tuple(dims), priorities=())


def _donated(trials: Trials) -> Iterator[Row]:
    """Yield a row per donated argument whose memory no result reuses."""
    stages, held = trials.stages, trials.stages.program.locals
    graph, block, donated = stages.graph, stages.program.block, stages.traced.donated
    taken = reused_arguments(stages.program, donated)
    kept = set(taken.values())
    # Results that reuse no donated memory could still take an argument's place.
    free = [place for place, local in enumerate(block.results) if local not in taken]
    for position in donated:
        argument, value = held[block.arguments[position]], graph.arguments[position]
        # Reused memory needs no warning, and an empty block wastes nothing.
        if argument.index in kept or not argument.bytes:
            continue
        path, layout = graph.argument_paths[position], stages.sharded.shardings[value]
        text = (
            f"donated argument {path} is not reused: no free result has its block "
            f"{ValueType(argument.shape, argument.dtype)}, so {bytes_text(argument.bytes)} per "
            "device stay allocated to the end of the step"
        )
        # XLA reuses the memory for a result of the same global shape if the sharding is the same.
        kind = graph.values[value].type
        alike = [place for place in free if graph.values[graph.results[place]].type == kind]
        remedy = "do not donate it (not tried): no other result has its shape and type"
        if alike:
            # A result takes the memory of one argument, so no other row may propose it.
            free.remove(alike[0])
            result = f"result {graph.result_paths[alike[0]]} as {layout.text()}"
            text += f"; {result} would allow reuse"
            asked = filled(stages.annotations, (("results", alike[0]),), layout)
            found = _effect(trials, asked)
            remedy = (
                "do not donate it (not tried)"
                if found == NOTHING
                else f"annotate {result}: {found}"
            )
        yield ("donation", path, 1, 0, text, remedy, 0)


def _replicated(trials: Trials) -> Iterator[Row]:
    """Yield a row per set of axes along which much of the state is replicated."""
    stages, peak = trials.stages, trials.now.peak_memory_bytes
    alike: defaultdict[Digits, list[int]] = defaultdict(list)
    for value, role in zip(stages.graph.arguments, stages.traced.argument_roles, strict=True):
        layout = stages.sharded.shardings[value]
        # Along an axis that shards no dimension, all devices hold equal blocks. Axes of size 1
        # replicate nothing.
        used = {digit for dim in layout.dims for digit in dim}
        free = tuple(d for d in map(stages.mesh.digit, stages.mesh.axis_names) if d not in used)
        free = tuple(digit for digit in free if digit.size > 1)
        if role in STATE and free:
            alike[free].append(value)
    for digits, found in alike.items():
        values = sorted(found, key=lambda value: -_held(stages, value))
        held = sum(_held(stages, value) for value in values)
        # Sharding along these axes would leave one part per device: compare what it saves.
        if held * (1 - 1 / parts(digits)) > REPLICATED_SHARE * peak:
            yield _replicated_row(trials, digits, values, held)


def _replicated_row(trials: Trials, digits: Digits, values: Sequence[int], held: int) -> Row:
    """Return the warning about state that is replicated along some axes.

    Args:
      digits: the axes. values: the arrays, the largest first. held: their bytes on a device.
    """
    stages, peak = trials.stages, trials.now.peak_memory_bytes
    axes = ",".join(stages.mesh.texts(digits))
    text = (
        f"replicated: all {parts(digits)} devices along {axes} hold the same "
        f"{counted(len(values), 'array')} of state: {bytes_text(held)} per device, "
        f"{held / peak:.0%} of the peak memory"
    )
    split = tuple(
        (value, layout) for value in values if (layout := _along(stages, value, digits)) is not None
    )
    remedy = _tried(trials, split) if split else NOTHING
    first = stages.graph.values[values[0]]
    return ("argument", _source(stages, first), len(values), 0, text, remedy, 0)


def _along(stages: Stages, value: int, digits: Digits) -> Sharding | None:
    """Return a value's sharding with its largest dimension sharded along `digits`, too.

    It is the largest dimension that the digits divide; None if they divide none.
    """
    layout = stages.sharded.shardings[value]
    for dim in sorted(range(len(layout.shape)), key=lambda dim: -layout.shape[dim]):
        longer = (*layout.dims[dim], *digits)
        if layout.shape[dim] and layout.shape[dim] % parts(longer) == 0:
            return layout.with_dims((*layout.dims[:dim], longer, *layout.dims[dim + 1 :]))
    return None


def _tried(trials: Trials, wanted: Sequence[tuple[int, Sharding]]) -> str:
    """Plan with other shardings of some values, and return the effect as text, or `NOTHING`.

    The text names the first value and its sharding, and counts the other values.
    """
    stages = trials.stages
    value, layout = wanted[0]
    # All annotations are tried together, so each one is added to those before it.
    asked = reduce(
        lambda given, one: annotated_as(replace(stages, annotations=given), *one),
        wanted,
        stages.annotations,
    )
    found = _effect(trials, asked)
    if found == NOTHING:
        return NOTHING
    more = f" and {len(wanted) - 1} more likewise" if len(wanted) > 1 else ""
    return f"annotate {stages.graph.values[value].name} as {layout.text()}{more}: {found}"


def _effect(trials: Trials, asked: Annotations) -> str:
    """Return the effect of annotations on peak memory and bytes sent as text, or `NOTHING`.

    The seconds of a step are added if they increase.
    """
    now, then = trials.now, trials.outcome(asked)
    if then.peak_memory_bytes >= now.peak_memory_bytes and then.wire_bytes >= now.wire_bytes:
        return NOTHING
    slower = (
        f", step {seconds_text(now.step_time_s)} to {seconds_text(then.step_time_s)}"
        if then.step_time_s > now.step_time_s
        else ""
    )
    return (
        f"peak memory {_change(now.peak_memory_bytes, then.peak_memory_bytes)}, sent "
        f"{_change(now.wire_bytes, then.wire_bytes)}{slower}"
    )


def _change(before: Any, after: Any) -> str:
    return f"{bytes_text(number(before))} to {bytes_text(number(after))}"


def _held(stages: Stages, value: int) -> int:
    layout, kind = stages.sharded.shardings[value], stages.graph.values[value].type
    return prod(layout.shard_shape) * kind.itemsize


def _source(stages: Stages, value: Value) -> str:
    made = next((n for n in stages.graph.nodes if value.index in n.results), None)
    return value.name if made is None else made.source
