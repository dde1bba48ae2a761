"""Layouts of what is left: `fsdp` and `zero`, optimizer state, and the data."""

from __future__ import annotations

from shardalg.errors import StrategyError
from shardalg.graph.ops.roles import DATA, OPTIMIZER_STATE, PARAMETERS
from shardalg.graph.weights import unwrapped, words
from shardalg.plan.strategies.derive.parallel_products import refusal
from shardalg.plan.strategies.derive.placing import Placing
from shardalg.plan.strategies.derive.recipe_parts import ArrayLayout, Axes, Part

Owners = dict[tuple[str, ...], ArrayLayout]
"""Parameters by the words of their paths, or by an ending of these."""
_SHARDED = {"data": DATA, "sequence": DATA, "zero": OPTIMIZER_STATE}
"""The role of the arrays that a part shards, if they are not the parameters."""
_NOTHING = {
    "data": "no argument is data with a batch dimension (give roles=)",
    "fsdp": "no parameter has two dimensions and one that divides (give roles=)",
    "tensor": "no product of a parameter has a dimension that divides",
    "expert": "no parameter of experts is an argument",
    "two_d": "no product of a parameter has a dimension that divides",
    "sequence": "no data argument has a dimension after the batch that divides",
    "zero": "no argument is optimizer state with a dimension that divides (give roles=)",
}


def place_parameters(at: Placing) -> None:
    """Shard the parameters along the axes of the recipe's `fsdp` parts.

    Parts of kind `zero` with level 1 or 2 (ZeRO stages) keep parameters whole. Parameters that an
    earlier step sharded along these axes, such as experts, are not open any more.
    """
    for part in (*at.of_kind("fsdp"), *at.of_kind("zero")):
        axes = at.divided(part.axes)
        for layout in at.open(PARAMETERS) if axes else ():
            axes_text = ", ".join(axes)
            # A vector, such as a bias, stays whole: gathering it costs more than it saves.
            if part.kind == "zero":
                layout.reasons.append(f"whole along {axes_text}: zero {part.level}")
            elif not at.is_vector(layout):
                _shard(at, part, layout)
            elif not layout.axes:
                layout.reasons.append(f"whole along {axes_text}: small, and no product reads it")


def _shard(at: Placing, part: Part, layout: ArrayLayout) -> None:
    """Shard the largest dimension of an array along the axes of a part that do not shard it yet.

    Args:
      part: one part of the recipe, such as `fsdp`, with its mesh axes.
    """
    # Experts may be on the axes already; only what is left is sharded further.
    allowed = at.allowed(layout, at.divided(part.axes))
    free = tuple(axis for axis in allowed if axis not in layout.axes)
    if free:
        at.shard_largest(layout, free, f"{part.kind}: the largest that divides and is free")


def place_state(at: Placing) -> None:
    """Shard optimizer state as its parameters, then along the axes of `zero`."""
    owners = _owners(at)
    for layout in at.open(OPTIMIZER_STATE):
        owner = _owner(layout, owners)
        if owner is not None:
            _follow(at, layout, owner)
        # With `fsdp`, only state that belongs to no parameter is left.
        alone = [] if owner is not None else at.of_kind("fsdp")
        for part in (*alone, *at.of_kind("zero")):
            # Gathering a vector, such as a bias, takes the time of a collective and saves little.
            if not at.is_vector(layout):
                _shard(at, part, layout)


def _owners(at: Placing) -> Owners:
    """Return the parameters by their paths and by all endings of these; whole paths come first.

    The parameter `params['layer']['w']` has the keys ("layer", "w") and ("w",). A parameter that is
    an argument by itself has the argument's name. An ending that several parameters share belongs
    to the first one.
    """
    owners: Owners = {}
    parameters = [(layout, *words(layout.path)) for layout in at.layouts]
    parameters = [parameter for parameter in parameters if parameter[0].role == PARAMETERS]
    # A whole path must not lose its key to the ending of a longer one, so it comes first.
    for layout, root, below in parameters:
        owners.setdefault(unwrapped(below) or (root,), layout)
    for layout, _, below in parameters:
        for start in range(len(below)):
            owners.setdefault(below[start:], layout)
    return owners


def _owner(layout: ArrayLayout, owners: Owners) -> ArrayLayout | None:
    """Return the parameter that an array of optimizer state belongs to, by its path."""
    root, below = words(layout.path)
    steps = (root, *below)
    # `moments/w_in/row` ends with a word of its own: endings of the path without it count too.
    for end in (len(steps), len(steps) - 1):
        for start in range(end):
            found = owners.get(steps[start:end])
            if found is not None:
                return found
    return None


def _follow(at: Placing, layout: ArrayLayout, owner: ArrayLayout) -> None:
    """Shard optimizer state along the axes of its parameter `owner`, dimension by dimension.

    Dimensions correspond if their classes and sizes are equal (factored moments have fewer).
    """
    state, parameter = at.value(layout), at.value(owner)
    state_shape, parameter_shape = at.named.shape(state), at.named.shape(parameter)
    if state_shape == parameter_shape:
        # A pair is (dimension of the state, dimension of the parameter).
        pairs = [(dim, dim) for dim in range(len(state_shape))]
    else:
        # Factored moments (Adafactor) lack dimensions of the parameter. The classes tell which of
        # its dimensions they have.
        parameter_classes = at.named.classes.fine_of(parameter)
        classes = enumerate(at.named.classes.fine_of(state))
        pairs = [
            (dim, parameter_classes.index(name))
            for dim, name in classes
            if name in parameter_classes
        ]
    for dim, source in pairs:
        axes = tuple(a for a in owner.dims[source] if a not in layout.axes)
        if axes and state_shape[dim] == parameter_shape[source]:
            layout.dims[dim] = at.allowed(layout, axes)
    if layout.axes:
        layout.reasons.append(f"as its parameter {owner.path}")
    elif owner.axes:
        layout.reasons.append(f"no dimension along which {owner.path} is sharded")


def place_data(at: Placing) -> None:
    """Shard data arguments: batch, sequence, products' features, and for `two_d` the residual's.

    Each of these shards at most one dimension of an array: the first one of its classes. A class
    has the dimensions of all tensors that operators identify with each other.

    Raises:
      StrategyError: the batch does not divide.
    """
    for layout in at.open(DATA):
        names = at.named.classes.of(at.value(layout))
        if at.named.batch_class in names:
            _place_batch(at, layout, names.index(at.named.batch_class))
        elif at.batch_axes:
            layout.refuse(at.batch_axes, "it has no batch dimension")
        sequence, features = at.parts_axes("sequence"), at.residual_axes
        positions = [dim for dim, name in enumerate(names) if name in at.named.sequence_classes]
        for dim in positions[:1]:
            _place_if_divided(at, layout, dim, (sequence, "positions of the sequence"))
        # Caches of keys and values have heads, and targets may have the features of a product.
        products = at.parts_axes("tensor")
        heads = [dim for dim, name in enumerate(names) if name in at.tensor_classes]
        for dim in heads[:1] if layout.axes.isdisjoint(products) else ():
            why = refusal(at.named, at.value(layout), dim, at.count(products))
            if not why:
                reason = "follows the product whose features it has"
                _place_if_divided(at, layout, dim, (products, reason))
        residual = [dim for dim, name in enumerate(names) if name in at.residual]
        for dim in residual[:1] if layout.axes.isdisjoint(features) else ():
            reason = "features of the residual (GSPMD, Table 1)"
            _place_if_divided(at, layout, dim, (features, reason))


def _place_batch(at: Placing, layout: ArrayLayout, dim: int) -> None:
    """Shard the batch dimension `dim` of a data argument along the recipe's batch axes.

    Raises:
      StrategyError: the axes do not divide the dimension.
    """
    free = at.allowed(layout, at.batch_axes)
    size, count = at.named.shape(at.value(layout))[dim], at.count(free)
    if size % count:
        raise StrategyError(
            f"the batch, dimension {dim} of {layout.path} {layout.type}, has {size} elements, "
            f"which {', '.join(free)} with {count} devices does not divide. Take another batch or "
            "mesh."
        )
    if free:
        layout.put(dim, free, "the batch of the data")


def _place_if_divided(at: Placing, layout: ArrayLayout, dim: int, wanted: tuple[Axes, str]) -> None:
    """Shard a dimension if the axes divide it; if not, note this as a refusal.

    Args:
      wanted: the axes, and the reason.
    """
    axes, reason = wanted
    # Bans and axes that the array already has leave only some of the axes.
    free = at.allowed(layout, axes)
    size = at.named.shape(at.value(layout))[dim]
    if free and size % at.count(free):
        layout.refuse(free, f"dimension {dim} has {size} elements, not a multiple")
    elif free:
        layout.put(dim, free, reason)


def check_used(at: Placing) -> None:
    """Check that each part of the recipe shards an argument along all of its axes.

    Raises:
      StrategyError: a part shards nothing along an axis; the message has the reasons.
    """
    # A pin may take the place of a part on purpose.
    if any(layout.pinned for layout in at.layouts):
        return
    has_sites = any(site.name is not None for site in at.named.graph.sites)
    for part in at.parts:
        axes = at.divided(part.axes)
        if part.kind == "expert" and axes and not at.named.expert_classes:
            raise StrategyError(
                f"{part!r} finds no experts: no parameter has a loop that its product shares with "
                "the tokens and the result."
            )
        # `zero` 2 shards returned gradients, and `sequence` shards sites. Both can have an effect
        # that the arguments do not show.
        if part.level == 2 or (part.kind == "sequence" and has_sites):
            continue
        role = _SHARDED.get(part.kind, PARAMETERS)
        arrays = [layout for layout in at.layouts if layout.role == role]
        placed = {axis for layout in arrays for axis in layout.axes}
        unused = [axis for axis in axes if axis not in placed]
        if unused:
            refused = [f"{a.path}: {text}" for a in arrays for text in dict.fromkeys(a.refused)]
            # Only refusals that name an unused axis; the first three of them.
            reasons = [text for text in refused if any(axis in text for axis in unused)]
            why = "; ".join(reasons[:3]) or _NOTHING[part.kind]
            raise StrategyError(f"{part!r} shards nothing along {', '.join(unused)}: {why}.")
