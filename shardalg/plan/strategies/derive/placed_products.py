"""Layouts of parameters by the products that read them: `tensor`, `expert` and `two_d`."""

from __future__ import annotations

from shardalg.errors import StrategyError
from shardalg.graph.ops.roles import PARAMETERS
from shardalg.plan.strategies.derive.parallel_products import refusal
from shardalg.plan.strategies.derive.placing import Placing
from shardalg.plan.strategies.derive.product_uses import BATCH, COLUMN, LOOKUP, ROW
from shardalg.plan.strategies.derive.recipe_parts import ArrayLayout, Axes, matches

_RESIDUAL = "features of the residual (GSPMD, Table 1)"


def place_pins(at: Placing) -> None:
    """Give each pinned array the sharding that the user demands for it (a pin).

    Of several pins that match an array, the first one counts; others are equal to it. Dimensions
    without an entry stay whole.

    Raises:
      StrategyError: a pin with more entries than its array has dimensions.
    """
    for layout in at.layouts:
        for pattern, dims in at.wishes.pins:
            if layout.pinned or not matches(pattern, layout.path):
                continue
            rank = len(layout.dims)
            # As in a PartitionSpec, entries at the end may be missing, but there may not be more.
            if len(dims) > rank:
                raise StrategyError(
                    f"the pin of {pattern!r} has {len(dims)} entries, and {layout.path} "
                    f"{layout.type} has {rank} dimensions."
                )
            layout.dims = [*dims, *[()] * (rank - len(dims))]
            layout.pinned = True
            layout.reasons.append(f"pinned by {pattern!r}")


def place_experts(at: Placing) -> None:
    """Shard the parameters of experts along their dimension of experts; a router stays whole.

    A dimension of experts has a class (a set of dimensions that operators identify) that a batch
    loop of a product of parameters has.
    """
    axes, classes = at.parts_axes("expert"), at.named.expert_classes
    for layout in at.open(PARAMETERS) if axes else ():
        value = at.value(layout)
        names, shape = at.named.classes.of(value), at.named.shape(value)
        free = at.allowed(layout, axes)
        dims = [dim for dim, name in enumerate(names) if name in classes]
        # An array of nothing but experts, such as a bias per expert, is as small as a router.
        if not dims or not free or set(names) <= classes or at.named.is_router(value):
            continue
        dim = dims[0]
        if shape[dim] % at.count(free):
            layout.refuse(free, f"{shape[dim]} experts, which {at.count(free)} does not divide")
            continue
        is_product = BATCH in _kinds(at, value, dim)
        reason = "experts: batch loop of its product" if is_product else "follows its experts"
        layout.put(dim, free, reason)


def place_tensor(at: Placing) -> None:
    """Shard parameters by tensor parallelism, along the axes of the recipe's `tensor` parts.

    The sharded dimensions are columns and rows of products, vocabularies, and other dimensions of
    the same classes (sets of dimensions that operators identify), as in biases. A parameter without
    such a dimension notes the reason.
    """
    axes = at.parts_axes("tensor")
    for layout in at.open(PARAMETERS) if axes else ():
        free = tuple(axis for axis in at.allowed(layout, axes) if axis not in layout.axes)
        value = at.value(layout)
        names = at.named.classes.of(value)
        # Dimensions of the chosen classes that no earlier step has sharded.
        dims = [dim for dim, name in enumerate(names) if name in at.tensor_classes]
        dims = [dim for dim in dims if not layout.dims[dim]]
        # A square matrix has a class twice: its columns come first, because they need no sum.
        dims.sort(key=lambda dim: COLUMN not in _kinds(at, value, dim))
        reasons = {dim: refusal(at.named, value, dim, at.count(free)) for dim in dims}
        dim = next((dim for dim in dims if not reasons[dim]), None)
        if free and dim is not None:
            layout.put(dim, free, _tensor_reason(at, value, dim))
        elif free and not _place_table(at, layout, free):
            why = next(filter(None, reasons.values()), "") or _why_not(at, value, free)
            if why:
                layout.refuse(free, why)


def _kinds(at: Placing, value: int, dim: int) -> frozenset[str]:
    return at.named.uses.kinds.get((value, dim), frozenset())


def _tensor_reason(at: Placing, value: int, dim: int) -> str:
    """Return why tensor parallelism shards a dimension of a parameter, as text."""
    # The uses of the dimension in products: rows are summed, columns are the result's features.
    kinds = _kinds(at, value, dim)
    if LOOKUP in kinds:
        tied = ", and the logits are its columns" if COLUMN in kinds else ""
        return f"vocabulary: rows are looked up{tied}"
    if COLUMN in kinds:
        return "column-parallel: no sum follows its product"
    if ROW in kinds:
        return "row-parallel: its product sums over the axis"
    return "follows the product whose features it has"


def _why_not(at: Placing, value: int, axes: Axes) -> str:
    """Return why tensor parallelism shards no dimension of a parameter that a product reads."""
    dims = [dim for dim in range(len(at.named.shape(value))) if _kinds(at, value, dim)]
    refused = [why for dim in dims if (why := refusal(at.named, value, dim, at.count(axes)))]
    if refused:
        return refused[0]
    return "its dimensions would sum in most products" if dims else ""


def _place_table(at: Placing, layout: ArrayLayout, axes: Axes) -> bool:
    """Shard the features of a parameter that is used only as a table of look-ups.

    This is the fallback for a table (such as an embedding) whose number of rows the axes do not
    divide.

    Args:
      axes: the mesh axes.

    Returns:
      Whether a dimension was sharded.
    """
    value = at.value(layout)
    shape = at.named.shape(value)
    kinds = [_kinds(at, value, dim) for dim in range(len(shape))]
    if {LOOKUP} != {kind for each in kinds for kind in each}:
        return False
    # Sharded features need no sum after a look-up, but the gathered rows are then sharded along
    # them.
    features = [dim for dim, each in enumerate(kinds) if LOOKUP not in each]
    dims = at.dividing(layout, features, axes)
    if not dims:
        return False
    dim = max(dims, key=lambda d: shape[d])
    layout.put(dim, axes, "features of a table whose rows do not divide")
    return True


def place_residual(at: Placing) -> None:
    """Shard the features of the residual stream in parameters along the first axis of `two_d`.

    `two_d` is the recipe's part with two axes. Scales and biases are sharded along its second axis,
    as the activations that they meet. A parameter without such features has its largest dimension
    sharded.
    """
    for part in at.of_kind("two_d"):
        for layout in at.open(PARAMETERS):
            # The scale of a norm is sharded as the activations that it multiplies; along the
            # other axis, each norm would gather it again (MaxText, issue 623).
            is_vector = at.is_vector(layout)
            axis = part.axes[1] if is_vector else part.axes[0]
            if axis in layout.axes:
                continue
            free = at.allowed(layout, at.divided((axis,)))
            names = at.named.classes.of(at.value(layout))
            dims = [dim for dim, name in enumerate(names) if name in at.residual]
            dims = at.dividing(layout, dims, free)
            if free and dims:
                layout.put(dims[0], free, _RESIDUAL)
            elif free and not is_vector:
                at.shard_largest(layout, free, "no feature of the residual divides; the largest")
