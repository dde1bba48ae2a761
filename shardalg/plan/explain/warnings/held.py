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
    """Yield a warning per group of dimensions of equal size whose axes do not divide this size.

    E.g. 10 elements over 4 devices are blocks of 3, so that 2 of 12 elements are padding. Only
    padding of more than `PADDED_SHARE` counts.
    """
    stages = trials.stages
    values_by_split: defaultdict[tuple[int, Digits], list[Value]] = defaultdict(list)
    for value, layout in zip(stages.graph.values, stages.sharded.shardings, strict=True):
        for size, digits in zip(layout.shape, layout.dims, strict=True):
            # The last blocks are filled up: a block has ceil(size / devices) elements.
            block = -(-size // parts(digits))
            if size and block * parts(digits) - size > PADDED_SHARE * size:
                values_by_split[size, digits].append(value)
    # Padding that the user asked for by an annotation is reported even without a remedy.
    annotated = stages.annotations
    annotations = [*annotated.arguments, *annotated.results, *annotated.sites]
    requested_splits = {
        pair for a in annotations if a is not None for pair in zip(a.shape, a.dims, strict=True)
    }
    groups = [
        _Uneven(size, digits, values, sum(_padding(stages, v, digits, size) for v in values))
        for (size, digits), values in values_by_split.items()
    ]
    # The groups with the most padding come first, because only these get trials.
    for place, group in enumerate(sorted(groups, key=lambda group: -group.padding)):
        is_requested = (group.size, group.digits) in requested_splits
        remedies = (
            [*_even_remedies(trials, group, equal=is_requested)] if place < MOST_TRIED else []
        )
        # Padding that no annotation asks for is worth a row if another layout is cheaper.
        if remedies or is_requested:
            yield _uneven_row(trials, group, remedies)


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
    block_bytes = prod(layout.shard_shape) * value.type.itemsize
    # E.g. 10 elements in 4 blocks of 3: a share of 10/12 is no padding.
    valid_share = size / (-(-size // parts(digits)) * parts(digits))
    return block_bytes * (1 - valid_share)


def _even_remedies(trials: Trials, group: _Uneven, *, equal: bool) -> Iterator[str]:
    """Yield remedies: shardings without padding that were planned and save memory or bytes sent.

    The uneven dimension keeps the axes that divide it, and the largest sub-axis of the next axis
    that still divides it. The remaining axes split another dimension, or nothing.

    Args:
      equal: whether a sharding at an equal price is offered if none is cheaper.
    """
    size, digits, (value, *_), _ = group
    # Minor axes split the blocks of major ones, so axes are dropped from the minor end only.
    kept_digits = digits
    while kept_digits and size % parts(kept_digits):
        kept_digits = kept_digits[:-1]
    # `cut` is the first axis that does not divide the rest of the dimension. It is split into two
    # sub-axes: a major one of size gcd, which divides, and a minor one with the remaining factor.
    cut_axis, *later_axes = digits[len(kept_digits) :]
    divisor = gcd(size // parts(kept_digits), cut_axis.size)
    major = Digit(cut_axis.stride * cut_axis.size // divisor, divisor)
    minor = Digit(cut_axis.stride, cut_axis.size // divisor)
    new_digits, moved_digits = (
        (*kept_digits, *([major] if divisor > 1 else [])),
        (minor, *later_axes),
    )
    # A choice is (digits that the uneven dimension keeps, digits that split another dimension).
    # At an equal price only the first remedy is offered, so the fewest replicas come first.
    choices = dict.fromkeys(((new_digits, moved_digits), (new_digits, ()), (kept_digits, ())))
    remedies = [each for over in choices if (each := _evened(trials, value, (size, digits), over))]
    cheaper = [text for is_less, text in remedies if is_less]
    # A sharding along a part of the axis has no padding: it is offered at an equal price, too.
    yield from cheaper or [text for _, text in remedies[: int(equal)]]


def _evened(
    trials: Trials, value: Value, uneven: tuple[int, Digits], over: tuple[Digits, Digits]
) -> tuple[bool, str] | None:
    """Plan with unevenly sharded dimensions along other axes; None if it costs memory or bytes.

    None also if no other dimension has room for the digits (axes or sub-axes) that move.

    Args:
      value: an example of the values with the uneven dimension, which the text names.
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
    num_changed = 0
    for given in sides.values():
        for position, before in enumerate(given):
            after = None if before is None else _with_even(before, uneven, over)
            if after is not None:
                given[position], num_changed = after, num_changed + 1
    changed_sides: Any = {side: tuple(given) for side, given in sides.items()}
    # If completion chose the sharding, no annotation has it: the value gets a new one.
    annotations = (
        replace(stages.annotations, **changed_sides)
        if num_changed
        else annotated_as(stages, value.index, layout)
    )
    then = trials.outcome(annotations)
    saved = now.peak_memory_bytes - then.peak_memory_bytes, now.wire_bytes - then.wire_bytes
    # A sharding without padding may still cost more elsewhere.
    if min(saved) < 0:
        return None
    more = num_changed - 1
    more_text = f" and {counted(more, 'more annotation')} likewise" if more > 0 else ""
    return max(saved) > 0, (
        f"annotate {value.name} as {layout.text()}{more_text}: no padding, peak memory "
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
    (new_digits, moved_digits), dims = over, list(layout.dims)
    if uneven not in zip(layout.shape, layout.dims, strict=True):
        return None
    uneven_dim = list(zip(layout.shape, layout.dims, strict=True)).index(uneven)
    dims[uneven_dim] = new_digits
    # Without a place for the digits `left`, each device would hold more of the tensor. They move to
    # the first other dimension that they divide evenly.
    if moved_digits:
        extents = enumerate(zip(layout.shape, dims, strict=True))
        free_dims = (
            dim
            for dim, (extent, dim_digits) in extents
            if dim != uneven_dim and extent and extent % parts((*dim_digits, *moved_digits)) == 0
        )
        dim = next(free_dims, None)
        if dim is None:
            return None
        dims[dim] = (*dims[dim], *moved_digits)
    return replace(layout, dims=tuple(dims), priorities=())


def _donated(trials: Trials) -> Iterator[Row]:
    """Yield a row per donated argument whose memory no result reuses.

    The remedy is to annotate a free result of the same shape and type with the argument's
    sharding, or else not to donate.
    """
    stages, locals_ = trials.stages, trials.stages.program.locals
    graph, block, donated = stages.graph, stages.program.block, stages.traced.donated
    reused = reused_arguments(stages.program, donated)
    reused_locals = set(reused.values())
    # Results that reuse no donated memory could still take an argument's place.
    free_results = [place for place, local in enumerate(block.results) if local not in reused]
    for position in donated:
        argument, value = locals_[block.arguments[position]], graph.arguments[position]
        # Reused memory needs no warning, and an empty block wastes nothing.
        if argument.index in reused_locals or not argument.bytes:
            continue
        path, layout = graph.argument_paths[position], stages.sharded.shardings[value]
        text = (
            f"donated argument {path} is not reused: no free result has its block "
            f"{ValueType(argument.shape, argument.dtype)}, so {bytes_text(argument.bytes)} per "
            "device stay allocated to the end of the step"
        )
        # XLA reuses the memory for a result of the same global shape if the sharding is the same.
        kind = graph.values[value].type
        same_type = [
            place for place in free_results if graph.values[graph.results[place]].type == kind
        ]
        remedy = "do not donate it (not tried): no other result has its shape and type"
        if same_type:
            # A result takes the memory of one argument, so no other row may propose it.
            free_results.remove(same_type[0])
            result = f"result {graph.result_paths[same_type[0]]} as {layout.text()}"
            text += f"; {result} would allow reuse"
            annotations = filled(stages.annotations, (("results", same_type[0]),), layout)
            effect = _effect(trials, annotations)
            remedy = (
                "do not donate it (not tried)"
                if effect == NOTHING
                else f"annotate {result}: {effect}"
            )
        yield ("donation", path, 1, 0, text, remedy, 0)


def _replicated(trials: Trials) -> Iterator[Row]:
    """Yield a row per set of axes along which much of the state is replicated.

    State is parameters and optimizer state. It is much if sharding it along these axes would save
    more than `REPLICATED_SHARE` of the peak memory.
    """
    stages, peak = trials.stages, trials.now.peak_memory_bytes
    values_by_axes: defaultdict[Digits, list[int]] = defaultdict(list)
    for value, role in zip(stages.graph.arguments, stages.traced.argument_roles, strict=True):
        layout = stages.sharded.shardings[value]
        # Along an axis that shards no dimension, all devices hold equal blocks. Axes of size 1
        # replicate nothing.
        used_digits = {digit for dim in layout.dims for digit in dim}
        free_digits = tuple(
            d for d in map(stages.mesh.digit, stages.mesh.axis_names) if d not in used_digits
        )
        free_digits = tuple(digit for digit in free_digits if digit.size > 1)
        if role in STATE and free_digits:
            values_by_axes[free_digits].append(value)
    for digits, members in values_by_axes.items():
        values = sorted(members, key=lambda value: -_held(stages, value))
        state_bytes = sum(_held(stages, value) for value in values)
        # Sharding along these axes would leave one part per device: compare what it saves.
        if state_bytes * (1 - 1 / parts(digits)) > REPLICATED_SHARE * peak:
            yield _replicated_row(trials, digits, values, state_bytes)


def _replicated_row(trials: Trials, digits: Digits, values: Sequence[int], held: int) -> Row:
    """Return the warning about state that is replicated along some axes.

    Args:
      digits: the axes.
      values: numbers of the arrays in the graph, the largest first.
      held: their bytes on a device.
    """
    stages, peak = trials.stages, trials.now.peak_memory_bytes
    axes = ",".join(stages.mesh.texts(digits))
    text = (
        f"replicated: all {parts(digits)} devices along {axes} hold the same "
        f"{counted(len(values), 'array')} of state: {bytes_text(held)} per device, "
        f"{held / peak:.0%} of the peak memory"
    )
    # The remedy that is tried shards all arrays along these axes that have a dimension for it.
    layouts = tuple(
        (value, layout) for value in values if (layout := _along(stages, value, digits)) is not None
    )
    remedy = _tried(trials, layouts) if layouts else NOTHING
    first = stages.graph.values[values[0]]
    return ("argument", _source(stages, first), len(values), 0, text, remedy, 0)


def _along(stages: Stages, value: int, digits: Digits) -> Sharding | None:
    """Return a value's sharding with its largest dimension sharded along `digits`, too.

    It is the largest dimension that the digits divide together with its own axes; None if they
    divide none. E.g. shape (8, 6) as [X, None] with Y=2 -> [(X, Y), None], if X has size 4.
    """
    layout = stages.sharded.shardings[value]
    # Dimensions from the largest to the smallest.
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
    """Plan with annotations, and return the effect on peak memory and bytes sent as text.

    The seconds of a step are added if they increase. `NOTHING` if neither memory nor bytes are
    saved.
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
