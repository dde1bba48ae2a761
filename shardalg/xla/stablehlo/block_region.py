"""Readings of the StableHLO and Shardy operators that have regions or communicate.

`sdy.manual_computation` becomes `jax.shard_map`. Collectives on blocks become JAX's collectives
along the mesh axes of their replica groups. Loops and branches become `jax.lax` control flow.
Shardy's own collectives, such as `sdy.all_gather`, keep the global value and change its sharding,
so they become sharding constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.mlir.dialects import sdy
from jax.sharding import PartitionSpec

from shardalg.xla.stablehlo.text_layouts import constrained, named, per_value
from shardalg.xla.stablehlo.text_step import TextStep


def _manual(step: TextStep, *operands: Any) -> Any:
    """Run a manual computation as `jax.shard_map` over its manual axes."""
    # The mesh here has the parts of an axis ("x.0", "x.1") if some sharding needs them. The text
    # may still name the whole axis "x", so that a part is also manual through its axis.
    manual: Any = sdy.ManualAxesAttr(step.op.attributes["manual_axes"])
    parts = [name for name in step.mesh if "." in name]
    stated = {str(axis) for axis in manual}
    axes = {name for name in step.mesh if name in stated}
    axes |= {name for name in parts if name.rpartition(".")[0] in stated - axes}
    block = step.op.regions[0].blocks[0]
    ends = [tuple(value.type.shape) for value in step.op.results]
    sides = [("in_shardings", [np.shape(x) for x in operands]), ("out_shardings", ends)]
    shardings = [
        [
            step.layout(each, shape)
            for each, shape in zip(per_value(step.op.attributes[name]), shapes, strict=True)
        ]
        for name, shapes in sides
    ]
    inputs, outputs = shardings
    # The specs of a `shard_map` name manual axes only. The planner decides about all other axes.
    specs = [tuple(_on(named(each).spec, axes) for each in side) for side in shardings]
    layouts = [*inputs, *outputs]
    if not layouts or not block.arguments:
        raise step.refused(" without operands")
    if not axes:  # `jax.shard_map` takes no names as all axes, so the region is inlined
        inside = map(constrained, operands, inputs)
        return tuple(map(constrained, step.region(0)(*inside), outputs))
    pending = [[_pending(layout, axes) for layout in side] for side in shardings]
    if any(pending[0]):
        names = ", ".join(sorted({name for each in pending[0] for name in each}))
        raise step.refused(
            f" with an operand unreduced along {names}, whose summands are not stated,"
        )

    def body(*blocks: Any) -> tuple[Any, ...]:
        # A result that is unreduced along manual axes is the sum of the blocks along them.
        results = step.region(0)(*blocks)
        summed = zip(results, pending[1], strict=True)
        return tuple(lax.psum(x, names) if names else x for x, names in summed)

    run = jax.shard_map(
        body,
        mesh=named(layouts[0]).mesh,
        in_specs=specs[0],
        out_specs=specs[1],
        axis_names=axes,
        check_vma=False,
    )
    return tuple(run(*operands))


def _pending(layout: Any, axes: set[str]) -> tuple[str, ...]:
    """Return the manual axes along which a value has partial sums."""
    if layout is None:
        return ()
    names = (layout.mesh.axis_ref(digit).name for digit in layout.unreduced)
    return tuple(name for name in names if name in axes)


def _on(spec: Any, axes: set[str]) -> PartitionSpec:
    """Return a spec without the mesh axes that are not in `axes`."""
    entries = [() if e is None or e is PartitionSpec.UNCONSTRAINED else e for e in spec]
    tuples = [(e,) if isinstance(e, str) else e for e in entries]
    kept = [tuple(axis for axis in e if axis in axes) for e in tuples]
    return PartitionSpec(*(k or None for k in kept))


def _groups(axes: Sequence[str], sizes: Mapping[str, int]) -> Any:
    """Return the numbers of the devices of each group along these axes, a row per group."""
    # Devices are numbered in an array with one dimension per axis of the mesh. With the given axes
    # as its last dimensions, a row has the devices that differ along these axes only.
    names = list(sizes)
    devices = np.arange(np.prod(list(sizes.values()))).reshape(tuple(sizes.values()))
    inner = [names.index(axis) for axis in axes]
    order = [*(d for d in range(len(names)) if d not in inner), *inner]
    count = int(np.prod([sizes[axis] for axis in axes]))
    return devices.transpose(order).reshape(-1, count)


def _choices(step: TextStep) -> Iterator[tuple[str, ...]]:
    """Yield every set of the mesh's axes; sets with fewer axes first."""
    axes = tuple(step.mesh)
    for count in range(1, len(axes) + 1):
        yield from combinations(axes, count)


def _axes(step: TextStep) -> tuple[str, ...]:
    """Return the axes along which the groups of a collective run."""
    groups = np.asarray(step.op.attributes["replica_groups"]).tolist()
    for axes in _choices(step):
        # The order of the groups does not matter, but the order inside of a group does.
        if {*map(tuple, _groups(axes, step.mesh).tolist())} == {*map(tuple, groups)}:
            return axes
    raise step.refused(f" among groups {groups}, which are no axes of the mesh,")


def _permute(step: TextStep, x: Any) -> Any:
    """Run a permute as `lax.ppermute` along mesh axes.

    The pairs of StableHLO are devices. Axes are searched for along which all groups of devices have
    the same pairs of positions.
    """
    pairs = {*map(tuple, step.pairs("source_target_pairs", 0))}
    for axes in _choices(step):
        groups = _groups(axes, step.mesh)
        # The first group gives the pairs as positions in a group. The comparison below checks that
        # all other groups have the same pairs.
        place = {device: i for i, device in enumerate(groups[0].tolist())}
        steps = [(place[a], place[b]) for a, b in sorted(pairs) if a in place and b in place]
        if pairs == {(int(group[a]), int(group[b])) for group in groups for a, b in steps}:
            return lax.ppermute(x, axes if len(axes) > 1 else axes[0], steps)
    raise step.refused(f" along {sorted(pairs)}, which are no axes of the mesh,")


_SUMS = {"add": lax.psum, "maximum": lax.pmax, "minimum": lax.pmin}


def _all_reduce(step: TextStep, *operands: Any) -> Any:
    how = step.only()
    if how not in _SUMS:
        raise step.refused(f" with a computation other than {', '.join(_SUMS)}")
    return tuple(_SUMS[how](x, _axes(step)) for x in operands)


def _reduce_scatter(step: TextStep, x: Any) -> Any:
    if step.only() != "add":
        raise step.refused(" with a computation other than add")
    dim = step.number("scatter_dimension")
    return lax.psum_scatter(x, _axes(step), scatter_dimension=dim, tiled=True)


def _all_to_all(step: TextStep, *operands: Any) -> Any:
    split, concat = step.number("split_dimension"), step.number("concat_dimension")
    return tuple(lax.all_to_all(x, _axes(step), split, concat, tiled=True) for x in operands)


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "sdy.manual_computation": _manual,
    "stablehlo.collective_permute": _permute,
    "stablehlo.all_reduce": _all_reduce,
    # StableHLO concatenates the blocks, and `lax.all_gather` stacks them unless it is tiled.
    "stablehlo.all_gather": lambda s, *xs: tuple(
        lax.all_gather(x, _axes(s), axis=s.number("all_gather_dim"), tiled=True) for x in xs
    ),
    "stablehlo.reduce_scatter": _reduce_scatter,
    "stablehlo.all_to_all": _all_to_all,
}


def _while(step: TextStep, *carry: Any) -> Any:
    """Run a loop: as `jax.lax.scan` if the trip count is known, else as `jax.lax.while_loop`."""
    condition, body = step.region(0), step.region(1)
    turns = _turns(step, carry)
    if turns is None:
        return lax.while_loop(lambda c: condition(*c)[0], lambda c: body(*c), carry)
    return lax.scan(lambda c, _: (body(*c), None), carry, None, length=turns)[0]


def _turns(step: TextStep, carry: tuple[Any, ...]) -> int | None:
    """Return the trip count if a carried counter goes up by one to a constant, else None."""
    # JAX writes a scan as `while (i < stop) { ...; i = i + 1 }`. The number of its iterations is a
    # constant if start and stop are.
    condition, body = (region.blocks[0] for region in step.op.regions)
    *_, compare, end = condition.operations
    compare = compare.operation
    if compare.name != "stablehlo.compare" or list(end.operands) != list(compare.results):
        return None
    # Other comparisons count differently; such a loop stays a while loop.
    if "LT" not in str(compare.attributes["comparison_direction"]):
        return None
    counter = [i for i, arg in enumerate(condition.arguments) if arg == compare.operands[0]]
    stop = _number(compare.operands[1])
    if not counter or stop is None:
        return None
    at = counter[0]
    start = _number(step.op.operands[at])
    *_, end = body.operations
    added: Any = getattr(end.operands[at], "owner", None)
    up = getattr(added, "name", "") == "stablehlo.add"
    if not up or start is None or added.operands[0] != body.arguments[at]:
        return None
    return max(0, stop - start) if _number(added.operands[1]) == 1 else None


def _number(value: Any) -> int | None:
    """Return the number if the value is a constant of equal elements, else None."""
    owner = value.owner
    if getattr(owner, "name", "") != "stablehlo.constant":
        return None
    elements = owner.attributes["value"]
    return int(elements.get_splat_value().value) if elements.is_splat else None


def _case(step: TextStep, which: Any) -> Any:
    """Run the branch that an index selects."""
    # StableHLO runs the last branch if the index is out of range, and `lax.switch` clamps it.
    count = len(step.op.regions)
    index = lax.select((which < 0) | (which >= count), lax.full_like(which, count - 1), which)
    return tuple(lax.switch(index, [step.region(i) for i in range(count)]))


CONTROL_OPERATORS: Mapping[str, Callable[..., Any]] = {
    "stablehlo.while": _while,
    "stablehlo.if": lambda s, which: tuple(lax.cond(which, s.region(0), s.region(1))),
    "stablehlo.case": _case,
}


def _as_stated(name: str) -> Callable[..., Any]:
    """Return a function that constrains an operand to the sharding in attribute `name`."""
    return lambda step, x: constrained(x, step.layout(step.op.attributes[name], np.shape(x)))


def _reduced(step: TextStep, x: Any) -> Any:
    """Return the sum of an operand's blocks over the devices, in the sharding `out_sharding`.

    The operand must be a value with partial sums. It is represented by its global value, which is
    the sum already. Any other operand is refused: it would have one summand per device, which the
    program of all devices cannot express.
    """
    if not _is_partial(step.op.operands[0]):
        raise step.refused(" of a value that is no partial sum")
    return _as_stated("out_sharding")(step, x)


def _is_partial(value: Any) -> bool:
    """Return True if the blocks of a value may be partial sums."""
    owner = value.owner
    name = getattr(owner, "name", "")
    # Shardy's operators keep the global value, so the operator before them decides.
    if name.startswith("sdy.") and list(getattr(owner, "operands", ())):
        return _is_partial(owner.operands[0])
    # The owner of a block's argument is the block, which has no attributes.
    attributes = getattr(owner, "attributes", {})
    sharding = str(attributes["sdy.sharding"]) if "sdy.sharding" in attributes else ""
    return name in _SUMMING_REDUCTIONS or "unreduced" in sharding


_SUMMING = "convolution dot dot_general gather reduce reduce_window scatter select_and_scatter"
_SUMMING_REDUCTIONS = frozenset(f"stablehlo.{name}" for name in _SUMMING.split())
"""Operators whose blocks are partial sums if a summed dimension is sharded."""

SHARDY_OPERATORS: Mapping[str, Callable[..., Any]] = {
    "sdy.sharding_constraint": _as_stated("sharding"),
    "sdy.reshard": _as_stated("sharding"),
    "sdy.all_gather": _as_stated("out_sharding"),
    "sdy.all_slice": _as_stated("out_sharding"),
    "sdy.all_to_all": _as_stated("out_sharding"),
    "sdy.collective_permute": _as_stated("out_sharding"),
    "sdy.all_reduce": _reduced,
    "sdy.reduce_scatter": _reduced,
}
