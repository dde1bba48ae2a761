"""One step of completion: the shardings that an operator's tensors offer to its other tensors.

A forward step offers the operands' shardings to the results, a backward step the results' to the
operands. Steps are pure functions of (operator class, layout numbers, merging); `fixpoint.py`
remembers their outcomes.

The module also classifies operators as the policies "gspmd" and "shardy" need it: by the
instruction that XLA has for the operator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shardalg.algebra.digits import parts
from shardalg.graph.ir import Graph, Node
from shardalg.planner.propagate.gspmd import image
from shardalg.planner.propagate.gspmd.index import Rules
from shardalg.planner.propagate.layouts import Layouts, extends
from shardalg.planner.propagate.operator_classes import Dims, OperatorClass, operator_class

PASSING = (image.POINTWISE, image.LAYOUT)
LATER = frozenset(
    ("slice", "pad", "rev", "concatenate", "gather", "reduce_sum", "reduce_max", "reduce_min",
     "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin", "cumsum", "sort")
)  # fmt: skip
"""Operators through which XLA propagates from level 1 on, whatever their loops are."""
BOXES = {
    ("slice", "dynamic_slice"): image.DYNAMIC_SLICE,
    ("pad", "dynamic_update_slice"): image.STACK,
    ("slice", "gather"): image.WINDOW,
    ("pad", "scatter"): image.WINDOW,
}
"""Roles of slices and pads that were traced as another primitive, such as `dynamic_slice`.

The keys are (primitive of the graph, primitive that was traced).
"""


def source_primitive(graph: Graph, node: Node) -> str:
    """Return the primitive from which a node was traced, as in its first result's name."""
    return graph.values[node.results[0]].name.partition(":")[0] if node.results else ""


def is_constant_update(graph: Graph, node: Node) -> bool:
    """Return whether a pad was traced as an update of a tensor that is full of one number."""
    return node.primitive == "pad" and ("pad", source_primitive(graph, node)) in BOXES


def hlo_class(node: Node, rules: Rules, source: str = "") -> OperatorClass | None:
    """Return an operator's class by XLA's levels, or None if nothing propagates through it.

    Args:
      source: the primitive that was traced; the graph may have a slice or a pad in its place.
    """
    signature = node.signature
    rows = rules(signature) if signature.operands else None
    kind = operator_class(signature, rows, (False,) * len(node.results)) if rows else None
    if kind is None or kind.is_closed:
        return None
    # The graph's slices and pads of this kind are dynamic slices and updates in XLA's module, which
    # act at other levels.
    if (node.primitive, source) in BOXES:
        return replace(box_class(node, kind), role=BOXES[node.primitive, source])
    if node.primitive == "dynamic_update_slice":
        # XLA offers the sharding of the update, operand 1, before that of the updated tensor.
        others = [k for k in range(kind.num_operands) if k != 1]
        return replace(kind, role=image.STACK, first=(1, *others))
    # By their loops these operators would pass shardings on like pointwise ones, from level 0 on.
    # XLA propagates through them from level 1 on.
    if node.primitive in LATER and kind.role in PASSING:
        return replace(kind, role=image.WINDOW)
    return kind


def box_class(node: Node, kind: OperatorClass) -> OperatorClass:
    """Return the class of a slice or an update of a box, without the dimensions that are cut.

    XLA and Shardy propagate nothing along a dimension of which the box has only a part.
    Source: `sharding_propagation.cc`, kDynamicSlice and kDynamicUpdateSlice, and Shardy's
    `op_sharding_rule_registry.cc`, DynamicSliceOp and DynamicUpdateSliceOp.
    """
    # A slice cuts a dimension whose size differs. An update is a pad in the graph, and its box is
    # only a part of each padded dimension.
    whole = zip(kind.shapes[0], kind.shapes[-1], strict=True)
    ends = node.signature.param("padding_config", [(a - b,) for a, b in whole])
    parts = {d for d, sizes in enumerate(ends) if any(sizes)}
    maps = [
        tuple(() if d in parts else entry for d, entry in enumerate(dims)) for dims in kind.maps
    ]
    return replace(kind, maps=tuple(maps))


Numbers = tuple[int, ...]
Offer = tuple[Dims, Numbers]
"""A sharding that is offered to a tensor, and the positions of the tensors that it comes from."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The new shardings of a step's targets: its results (forward) or its operands (backward).

    Shardings are given by their layout numbers.

    Attributes:
      layouts: for each target, its layout number after the step.
      sources: for each target, the tensors whose shardings it took; () if it did not change.
      changed: positions of the changed targets.
      retry: whether the step would change more if it could merge shardings, which completion allows
        only at a later level (`fixpoint.py`).
      other: the outcome with two operands in the other order. It is set if both operands want one
        axis on different dimensions of the result, so that later nodes may decide.
      wanted: for each operand, the sharding of the result that this operand alone would give, in
        the order tried.
    """

    layouts: Numbers
    sources: tuple[Numbers, ...]
    changed: tuple[int, ...]
    retry: bool = False
    other: StepOutcome | None = None
    wanted: tuple[Dims, ...] = ()


def step(
    kind: OperatorClass, numbers: Numbers, layouts: Layouts, *, direction: str, merging: bool
) -> StepOutcome | None:
    """Return the outcome of one node for which `cannot_change` is False; None if nothing changes.

    Args:
      numbers: layout numbers of its tensors, operands first.
    """
    return DIRECTIONS[direction](kind, numbers, layouts, merging)


def cannot_change(kind: OperatorClass, numbers: Numbers, layouts: Layouts, direction: str) -> bool:
    """Return whether a cheap test shows that a step changes nothing, with or without merging.

    The step changes nothing in three cases. No tensor is partitioned. All tensors have the same
    loops and the same sharding. All tensors that could change (results if `direction` is forward,
    else operands) have annotations without open dimensions.
    """
    # These tests compare numbers that are known already, while a step would project shardings.
    tiles, dims, n = layouts.tiles, layouts.dims, kind.num_operands
    if all(tiles[number] == 1 for number in numbers):
        return True
    if kind.has_equal_maps and len({dims[number] for number in numbers}) == 1:
        return True
    fixed, free = layouts.fixed, layouts.open
    targets = numbers[n:] if direction == image.FORWARD else numbers[:n]
    return all(fixed[number] and not free[number] for number in targets)


def forward(
    kind: OperatorClass, numbers: Numbers, layouts: Layouts, merging: bool
) -> StepOutcome | None:
    """Return the new layouts of an operator's results, or None if nothing changes.

    An offer is the sharding that one operand proposes for a result. With merging, the offers are
    applied in turn; otherwise only the offer with the most tiles.
    """
    if kind.role in image.MATRIX:
        return _matrix_forward(kind, numbers, layouts, merging)
    after = []
    # XLA takes the user's sharding of a tuple as a whole, so elements do not merge.
    merging = merging and kind.role != image.TUPLE
    for target, single in zip(kind.results, kind.single, strict=True):
        found = result_offers(kind, numbers, layouts, target)
        # Without merging only one offer can win. A write into a stack keeps all of them in order.
        if not merging and len(found) > 1 and kind.role != image.STACK:
            found = [max(found, key=lambda offer: _tiles(offer[0]))]
        # XLA replaces a sharding by one that does not refine it only if the value has one reader
        # (allow_aggressive_resharding), and, at the merging levels, one operand.
        may_replace = single and (not merging or kind.num_operands == 1)
        after.append(_apply_offers(numbers[target], found, layouts, (merging, may_replace)))
    return _outcome(numbers[kind.num_operands :], after)


def backward(
    kind: OperatorClass, numbers: Numbers, layouts: Layouts, merging: bool
) -> StepOutcome | None:
    """Return the new layouts of an operator's operands, or None if nothing changes.

    Each operand takes the offers of the results. An operand of a contraction also takes those of
    the other operand.
    """
    # Both sides of a tuple's border are one value, so more tiles suffice there to replace.
    how = (merging, kind.role in (image.WHILE, image.BRANCH, image.ELEMENT))
    after = [
        _apply_offers(numbers[k], operand_offers(kind, numbers, layouts, k), layouts, how)
        for k in kind.operands
    ]
    return _outcome(numbers[: kind.num_operands], after)


DIRECTIONS = {image.FORWARD: forward, image.BACKWARD: backward}


def _outcome(before: Numbers, after: Sequence[tuple[int, Numbers]]) -> StepOutcome | None:
    """Return a `StepOutcome` from the layouts that a step computed; None if none changed.

    Args:
      before: for each tensor that the step may change (target), its layout number before the step.
      after: per target, its layout number after the step, and the tensors whose offers it took.
    """
    changed = tuple([k for k, (new, _) in enumerate(after) if new != before[k]])
    if not changed:
        return None
    layouts, sources = zip(*after, strict=True)
    return StepOutcome(layouts, sources, changed)


def _apply_offers(
    number: int, found: Sequence[Offer], layouts: Layouts, how: tuple[bool, bool]
) -> tuple[int, Numbers]:
    """Return the layout number of a value after some offers, and the tensors that made them.

    An offer is a sharding that another tensor of the operator proposes. Offers that do not change
    the value do not count.

    Args:
      number: the layout number of the value before. found: the offers, in order.
      how: (merging, replace). With merging, the common refinement of two shardings is taken. With
        replace, an offer with more tiles is taken even if it does not refine the value's sharding.
    """
    # The order matters: an offer that is merged first may make the next one incompatible.
    sources: Numbers = ()
    for dims, origin in found:
        new = number if dims == layouts.dims[number] else layouts.improve(number, dims, *how)
        if new != number:
            number, sources = new, (*sources, *origin)
    return number, tuple(dict.fromkeys(sources))


def _tiles(dims: Dims) -> int:
    """Return the number of blocks into which a sharding divides its tensor."""
    return math.prod(parts(digits) for digits in dims)


def result_offers(
    kind: OperatorClass, numbers: Numbers, layouts: Layouts, target: int
) -> list[Offer]:
    """Return the shardings that operands offer to the result `target`, in the operator's order.

    An offer is (digits of each dimension of the result, numbers of the operands that offer it).

    Args:
      kind: the class of the operator, which has the loops of each tensor.
      numbers: the layout number of each tensor, operands first.
      target: the number of the result among the tensors.
    """
    found: list[Offer] = []
    # `kind.first` has the operands in the order in which XLA asks them.
    for source in kind.first:
        # A replicated operand offers nothing.
        if layouts.tiles[numbers[source]] > 1:
            dims = _project_operand(kind, source, target, numbers, layouts)
            if any(dims):
                found.append((dims, (source,)))
    return found


def _project_operand(
    kind: OperatorClass, source: int, target: int, numbers: Numbers, layouts: Layouts
) -> Dims:
    """Return the sharding that one operand offers to the result `target`.

    If a window slides, the kernel offers nothing, and the image offers as in `Image.project`. A
    sort along a sharded dimension offers its sharding only if another dimension could take the
    tiles (`sharding_propagation.cc`, kSort).
    """
    dims, convolution = layouts.dims[numbers[source]], kind.image
    # Only operators such as a sort have loops that cannot be split (`kind.blocks`).
    if kind.blocks and not _is_movable(kind, source, dims):
        return ()
    if convolution is not None:
        both_dims = [layouts.dims[numbers[k]] for k in (convolution.operand, convolution.kernel)]
        # While a window slides, XLA infers the result's sharding from the image alone
        # (InferConvolutionShardingFromOperands).
        if convolution.slides(*both_dims):
            if source != convolution.operand:
                return ()
            return convolution.project(dims, lambda dims: kind.project(source, target, dims))
    return kind.project(source, target, dims)


def _is_movable(kind: OperatorClass, source: int, dims: Dims) -> bool:
    """Return whether some unsorted dimension can be sharded by the tiles of the sorted one, evenly.

    XLA moves the tiles of a sorted dimension to another dimension instead of gathering them.

    Args:
      kind: the class of the sort.
      source: the number of the tensor.
      dims: the digits of each dimension of the tensor.
    """
    # A row is (size, digits, loops) of a dimension. The loop of the sorted one is in `blocks`.
    rows = [*zip(kind.shapes[source], dims, kind.maps[source], strict=True)]
    tiles = math.prod(parts(d) for _, d, entry in rows if entry and entry[0][0] in kind.blocks)
    others = [(n, d) for n, d, entry in rows if not (entry and entry[0][0] in kind.blocks)]
    return tiles == 1 or any(n % (tiles * parts(d)) == 0 for n, d in others)


def _matrix_forward(
    kind: OperatorClass, numbers: Numbers, layouts: Layouts, merging: bool
) -> StepOutcome | None:
    """Return the outcome of a forward step of a matrix product, for both orders of its operands.

    If both operands would improve the result's sharding, the larger one is applied first. If the
    order makes a difference, the outcome also has the result of the other order.
    """
    (target,) = kind.results
    # `how` is (merging, replace) of `Layouts.improve`.
    number, how = numbers[target], (merging, False)
    # The order of the operands matters only if both of them improve the result.
    useful = [
        offer
        for offer in result_offers(kind, numbers, layouts, target)
        if layouts.improve(number, offer[0], *how) != number
    ]
    useful = _larger_first(kind, useful)
    first = _apply_offers(number, useful, layouts, how)
    outcome = _outcome((number,), [first])
    second = _apply_offers(number, useful[::-1], layouts, how)
    if outcome is None or len(useful) != 2 or first[0] == second[0]:
        return outcome
    # The order decides: both results are kept, so that later nodes may choose (`fixpoint.py`).
    alone = [layouts.improve(number, dims, *how) for dims, _ in useful]
    return replace(
        outcome,
        other=_outcome((number,), [second]),
        wanted=tuple(layouts.dims[new] for new in alone),
    )


def _larger_first(kind: OperatorClass, found: list[Offer]) -> list[Offer]:
    """Return a product's offers; the offer of the operand with more bytes is first, as in XLA."""
    return sorted(found, key=lambda offer: -kind.bytes[offer[1][0]])


def all_offers(
    kind: OperatorClass, numbers: Numbers, layouts: Layouts
) -> Iterator[tuple[int, str, Dims, Numbers]]:
    """Yield (target, direction, sharding, sources) for every offer to a result or an operand.

    Target and sources are numbers of the operator's tensors, operands first. The direction is
    forward (to a result) or backward (to an operand).

    Args:
      numbers: the layout number of each tensor.
    """
    for targets, direction in (
        (kind.results, image.FORWARD),
        (kind.operands, image.BACKWARD),
    ):
        find = result_offers if direction == image.FORWARD else _operand_claims
        for target in targets:
            for dims, sources in find(kind, numbers, layouts, target):
                yield target, direction, dims, sources


def _operand_claims(
    kind: OperatorClass, numbers: Numbers, layouts: Layouts, target: int
) -> list[Offer]:
    """Return the offers to an operand, including offers that another tensor's offer displaced.

    If a result and the other operand disagree, `operand_offers` has only one of the two offers.
    Which one it has may depend on the order of visits.
    """
    found = operand_offers(kind, numbers, layouts, target)
    # In a combination, one offer may displace another. So each tensor's offer is added alone, too.
    single = [*_offers_from_results(kind, numbers, layouts, target)]
    single += [*_offers_from_operands(kind, numbers, layouts, target)]
    return found + [
        claim for claim in single if not any(extends(dims, claim[0]) for dims, _ in found)
    ]


def operand_offers(
    kind: OperatorClass, numbers: Numbers, layouts: Layouts, target: int
) -> list[Offer]:
    """Return the shardings that the other tensors offer to the operand `target`.

    An offer is (digits of each dimension, numbers of the tensors that offer it). The list is empty
    for the operands in `kind.closed_operands`, and nothing passes through the window of a
    convolution.
    """
    if target in kind.closed_operands:
        return []
    offers = [*_offers_from_results(kind, numbers, layouts, target)]
    # A value that enters a tuple is read at several places, of which the finest sharding wins.
    if kind.role == image.TUPLE:
        return _finest(offers)
    # Offers of other operands are merged with the first offer of the results, one after the other.
    for side in _offers_from_operands(kind, numbers, layouts, target):
        both = layouts.merged(kind.shapes[target], offers[0][0], side[0]) if offers else None
        offers = _combine_offers(kind, offers, side, both)
    return offers


def _finest(found: list[Offer]) -> list[Offer]:
    """Return a list of only the offer with the most tiles.

    XLA takes this one if a tuple contains a value several times. Source: `sharding_propagation.cc`,
    GetShardingFromUser, kTuple.
    """
    return sorted(found, key=lambda offer: -_tiles(offer[0]))[:1]


def _offers_from_results(
    kind: OperatorClass, numbers: Numbers, layouts: Layouts, target: int
) -> Iterator[Offer]:
    """Yield the sharding that each result alone offers to an operand.

    Nothing is yielded for a convolution whose window slides along some dimension (`_is_slid`).
    """
    for source in () if _is_slid(kind) else kind.results:
        if layouts.tiles[numbers[source]] > 1:
            dims = kind.project(source, target, layouts.dims[numbers[source]])
            if any(dims):
                yield dims, (source,)


def _is_slid(kind: OperatorClass) -> bool:
    """Return whether the operator is a convolution whose window slides along some dimension."""
    return kind.image is not None and bool(kind.image.window_dims)


def _offers_from_operands(
    kind: OperatorClass, numbers: Numbers, layouts: Layouts, target: int
) -> Iterator[Offer]:
    """Yield the sharding that each other operand alone offers to an operand, along common loops.

    A contraction shares all loops. Indices and updates of a scatter share the loops that no result
    has. Source: `sharding_propagation.cc`, GetShardingFromUser.
    """
    is_matrix = kind.role in image.MATRIX and not _is_slid(kind) and kind.num_operands == 2
    for other in kind.operands if is_matrix or kind.needs_sharded_result else ():
        dims = layouts.dims[numbers[other]]
        # Along the result's loops, a scatter's operands take the result's offer. Between operands,
        # only the other loops pass (`lost`: dimensions whose loops index no result).
        if not is_matrix:
            dims = tuple(d if lost else () for d, lost in zip(dims, kind.lost[other], strict=True))
        side = kind.project(other, target, dims) if other != target and any(dims) else ()
        if any(side):
            yield side, (other,)


def _combine_offers(
    kind: OperatorClass, found: list[Offer], side: Offer, both: Dims | None
) -> list[Offer]:
    """Return an operand's offers, combined with the offer of another operand.

    The combination is the merge of the two offers. If they do not merge, a contraction keeps the
    offer with more tiles; other operators keep the results' offers.

    Args:
      found: the offers of the results. side: the offer of the other operand.
      both: the merged sharding of the first offer and `side`, or None if they do not merge.
    """
    if not found:
        return [side]
    ((dims, sources), *_), (side_dims, side_sources) = found, side
    # The merged offer comes from the tensors of both.
    if both is not None:
        return [(both, (*sources, *side_sources))]
    return [side] if kind.role in image.MATRIX and _tiles(side_dims) > _tiles(dims) else found
