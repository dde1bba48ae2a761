"""One node: what its tensors' layouts ask of its results (forward) and operands (backward).

Pure functions of (kind, layouts, merging); `fixpoint.py` looks their outcomes up.

What the faithful policies know of an operator: its class, as XLA has its instruction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shardalg.algebra.digits import parts
from shardalg.graph.ir import Graph, Node
from shardalg.planner.propagate.gspmd import image
from shardalg.planner.propagate.gspmd import image as priority
from shardalg.planner.propagate.gspmd.index import Rules
from shardalg.planner.propagate.layouts import Layouts, extends
from shardalg.planner.propagate.operator_classes import Dims, OperatorClass, kind_of

PASSING = (image.POINTWISE, image.LAYOUT)
LATER = frozenset(
    ("slice", "pad", "rev", "concatenate", "gather", "reduce_sum", "reduce_max", "reduce_min",
     "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin", "cumsum", "sort")
)  # fmt: skip
"""Operators that XLA passes layouts through from the second level on, whatever their loops are."""
BOXES = {
    ("slice", "dynamic_slice"): image.DYNAMIC_SLICE,
    ("pad", "dynamic_update_slice"): image.STACK,
    ("slice", "gather"): image.WINDOW,
    ("pad", "scatter"): image.WINDOW,
}
"""(primitive, what is written there) of boxes at known starts, which are slices and pads here."""


def written(graph: Graph, node: Node) -> str:
    """The primitive that the program has where a node stands: its result is named after it."""
    return graph.values[node.results[0]].name.partition(":")[0] if node.results else ""


def is_written_over(graph: Graph, node: Node) -> bool:
    """Whether a pad is written as a box that is put into a tensor full of one number."""
    return node.primitive == "pad" and ("pad", written(graph, node)) in BOXES


def hlo_class(node: Node, rules: Rules, written: str = "") -> OperatorClass | None:
    """The class of a node, as XLA's levels have it; None where nothing is inferred.

    Args:
      written: the primitive that the program has there.
    """
    signature = node.signature
    rows = rules(signature) if signature.operands else None
    kind = kind_of(signature, rows, (False,) * len(node.results)) if rows else None
    if kind is None or kind.is_closed:
        return None
    if (node.primitive, written) in BOXES:
        return replace(boxed(node, kind), role=BOXES[node.primitive, written])
    if node.primitive == "dynamic_update_slice":
        others = [k for k in range(kind.num_operands) if k != 1]
        return replace(kind, role=image.STACK, first=(1, *others))
    if node.primitive in LATER and kind.role in PASSING:
        return replace(kind, role=image.WINDOW)
    return kind


def boxed(node: Node, kind: OperatorClass) -> OperatorClass:
    """Of a box neither side says where the other is cut along a dimension that it has a part of.

    Source: `sharding_propagation.cc`, kDynamicSlice and kDynamicUpdateSlice, and Shardy's
    `op_sharding_rule_registry.cc`, DynamicSliceOp and DynamicUpdateSliceOp.
    """
    whole = zip(kind.shapes[0], kind.shapes[-1], strict=True)
    ends = node.signature.param("padding_config", [(a - b,) for a, b in whole])
    parts = {d for d, sizes in enumerate(ends) if any(sizes)}
    maps = [
        tuple(() if d in parts else entry for d, entry in enumerate(dims)) for dims in kind.maps
    ]
    return replace(kind, maps=tuple(maps))


Numbers = tuple[int, ...]
Offer = tuple[Dims, Numbers]
"""A layout that a step asks of a tensor, and the tensors (of the step) whose layouts ask for it."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """New layouts of a step's targets: its results, or its operands.

    Attributes:
      layouts: per target, its layout after the step.
      sources: per target, the tensors whose layouts it took; () where nothing changed.
      changed: positions of the changed targets.
      retry: whether merging would change more, where it is not on yet; see `fixpoint.py`.
      other: what the other order of two operands gives, where both want one axis on different
        dimensions of the result, so that the layout that later nodes want may decide.
      wanted: what each operand alone would make of the result, in the order tried.
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
    """The outcome of one node that is not `settled`; None where nothing changes.

    Args:
      numbers: layouts of its tensors, operands first.
    """
    return DIRECTIONS[direction](kind, numbers, layouts, merging)


def settled(kind: OperatorClass, numbers: Numbers, layouts: Layouts, direction: str) -> bool:
    """Whether nothing can change, now or with merging, as seen at a glance.

    No tensor is partitioned; or all are alike in layout and loops; or all targets are annotated
    without open dimensions.
    """
    tiles, dims, n = layouts.tiles, layouts.dims, kind.num_operands
    if all(tiles[number] == 1 for number in numbers):
        return True
    if kind.is_alike and len({dims[number] for number in numbers}) == 1:
        return True
    fixed, free = layouts.fixed, layouts.open
    targets = numbers[n:] if direction == priority.FORWARD else numbers[:n]
    return all(fixed[number] and not free[number] for number in targets)


def forward(
    kind: OperatorClass, numbers: Numbers, layouts: Layouts, merging: bool
) -> StepOutcome | None:
    """Results from operands: with merging each in turn, else from the one with most tiles."""
    if kind.role in priority.MATRIX:
        return _matrix_forward(kind, numbers, layouts, merging)
    after = []
    merging = merging and kind.role != priority.TUPLE
    for target, single in zip(kind.results, kind.single, strict=True):
        found = offers(kind, numbers, layouts, target)
        if not merging and len(found) > 1 and kind.role != priority.STACK:
            found = [max(found, key=lambda offer: _tiles(offer[0]))]
        may_replace = single and (not merging or kind.num_operands == 1)
        after.append(_in_turn(numbers[target], found, layouts, (merging, may_replace)))
    return _outcome(numbers[kind.num_operands :], after)


def backward(
    kind: OperatorClass, numbers: Numbers, layouts: Layouts, merging: bool
) -> StepOutcome | None:
    """Operands from results, each by itself; for a contraction from the other operand too."""
    how = (merging, kind.role in (priority.WHILE, priority.BRANCH, priority.ELEMENT))
    after = [
        _in_turn(numbers[k], wishes(kind, numbers, layouts, k), layouts, how) for k in kind.operands
    ]
    return _outcome(numbers[: kind.num_operands], after)


DIRECTIONS = {priority.FORWARD: forward, priority.BACKWARD: backward}


def _outcome(before: Numbers, after: Sequence[tuple[int, Numbers]]) -> StepOutcome | None:
    changed = tuple([k for k, (new, _) in enumerate(after) if new != before[k]])
    if not changed:
        return None
    layouts, sources = zip(*after, strict=True)
    return StepOutcome(layouts, sources, changed)


def _in_turn(
    number: int, found: Sequence[Offer], layouts: Layouts, how: tuple[bool, bool]
) -> tuple[int, Numbers]:
    """A value's layout after some offers, and the tensors it took something from."""
    sources: Numbers = ()
    for dims, origin in found:
        new = number if dims == layouts.dims[number] else layouts.improve(number, dims, *how)
        if new != number:
            number, sources = new, (*sources, *origin)
    return number, tuple(dict.fromkeys(sources))


def _tiles(dims: Dims) -> int:
    return math.prod(parts(digits) for digits in dims)


def offers(kind: OperatorClass, numbers: Numbers, layouts: Layouts, target: int) -> list[Offer]:
    """What each operand asks of the result `target`, in the order of the kind."""
    found: list[Offer] = []
    for source in kind.first:
        if layouts.tiles[numbers[source]] > 1:
            dims = _followed(kind, source, target, numbers, layouts)
            if any(dims):
                found.append((dims, (source,)))
    return found


def _followed(
    kind: OperatorClass, source: int, target: int, numbers: Numbers, layouts: Layouts
) -> Dims:
    """What the result `target` takes of an operand: little where a window slides.

    A sort along a sharded dimension is followed where another dimension could take its tiles too
    (`sharding_propagation.cc`, kSort).
    """
    dims, image = layouts.dims[numbers[source]], kind.image
    if kind.blocks and not _is_movable(kind, source, dims):
        return ()
    if image is not None:
        seen = [layouts.dims[numbers[k]] for k in (image.operand, image.kernel)]
        if image.slides(*seen):
            if source != image.operand:
                return ()
            return image.followed(dims, lambda dims: kind.project(source, target, dims))
    return kind.project(source, target, dims)


def _is_movable(kind: OperatorClass, source: int, dims: Dims) -> bool:
    rows = [*zip(kind.shapes[source], dims, kind.maps[source], strict=True)]
    tiles = math.prod(parts(d) for _, d, entry in rows if entry and entry[0][0] in kind.blocks)
    others = [(n, d) for n, d, entry in rows if not (entry and entry[0][0] in kind.blocks)]
    return tiles == 1 or any(n % (tiles * parts(d)) == 0 for n, d in others)


def _matrix_forward(
    kind: OperatorClass, numbers: Numbers, layouts: Layouts, merging: bool
) -> StepOutcome | None:
    """Of two operands that would each improve the result the larger goes first."""
    (target,) = kind.results
    number, how = numbers[target], (merging, False)
    useful = [
        offer
        for offer in offers(kind, numbers, layouts, target)
        if layouts.improve(number, offer[0], *how) != number
    ]
    useful = _larger_first(kind, useful)
    first = _in_turn(number, useful, layouts, how)
    outcome = _outcome((number,), [first])
    second = _in_turn(number, useful[::-1], layouts, how)
    if outcome is None or len(useful) != 2 or first[0] == second[0]:
        return outcome
    alone = [layouts.improve(number, dims, *how) for dims, _ in useful]
    return replace(
        outcome,
        other=_outcome((number,), [second]),
        wanted=tuple(layouts.dims[new] for new in alone),
    )


def _larger_first(kind: OperatorClass, found: list[Offer]) -> list[Offer]:
    return sorted(found, key=lambda offer: -kind.bytes[offer[1][0]])


def asks(
    kind: OperatorClass, numbers: Numbers, layouts: Layouts
) -> Iterator[tuple[int, str, Dims, Numbers]]:
    """(target, direction, layout, sources) of all that a node asks of its results and operands."""
    for targets, direction in (
        (kind.results, priority.FORWARD),
        (kind.operands, priority.BACKWARD),
    ):
        find = offers if direction == priority.FORWARD else _claims
        for target in targets:
            for dims, sources in find(kind, numbers, layouts, target):
                yield target, direction, dims, sources


def _claims(kind: OperatorClass, numbers: Numbers, layouts: Layouts, target: int) -> list[Offer]:
    """What a node wants for an operand, and what it would want if another tensor had not spoken.

    Of a result and another operand that disagree, one is heard: which, may be a matter of order.
    """
    found = wishes(kind, numbers, layouts, target)
    single = [*_of_results(kind, numbers, layouts, target)]
    single += [*_of_operands(kind, numbers, layouts, target)]
    return found + [
        claim for claim in single if not any(extends(dims, claim[0]) for dims, _ in found)
    ]


def wishes(kind: OperatorClass, numbers: Numbers, layouts: Layouts, target: int) -> list[Offer]:
    """What a node wants for its operand `target`: nothing through a convolution's window."""
    if target in kind.deaf:
        return []
    found = [*_of_results(kind, numbers, layouts, target)]
    if kind.role == priority.TUPLE:
        return _finest(found)
    for side in _of_operands(kind, numbers, layouts, target):
        both = layouts.merged(kind.shapes[target], found[0][0], side[0]) if found else None
        found = _with_side(kind, found, side, both)
    return found


def _finest(found: list[Offer]) -> list[Offer]:
    """Of the places that a value has in one tuple that of most tiles.

    Source: `sharding_propagation.cc`, GetShardingFromUser, kTuple.
    """
    return sorted(found, key=lambda offer: -_tiles(offer[0]))[:1]


def _of_results(
    kind: OperatorClass, numbers: Numbers, layouts: Layouts, target: int
) -> Iterator[Offer]:
    """What each result alone wants of an operand."""
    for source in () if _is_slid(kind) else kind.results:
        if layouts.tiles[numbers[source]] > 1:
            dims = kind.project(source, target, layouts.dims[numbers[source]])
            if any(dims):
                yield dims, (source,)


def _is_slid(kind: OperatorClass) -> bool:
    return kind.image is not None and bool(kind.image.window_dims)


def _of_operands(
    kind: OperatorClass, numbers: Numbers, layouts: Layouts, target: int
) -> Iterator[Offer]:
    """What each other operand alone wants of an operand, along loops that they share.

    Of a contraction all loops; of a scatter's indices and updates those that no result has.
    Source: `sharding_propagation.cc`, GetShardingFromUser.
    """
    is_matrix = kind.role in priority.MATRIX and not _is_slid(kind) and kind.num_operands == 2
    for other in kind.operands if is_matrix or kind.is_doubtful else ():
        dims = layouts.dims[numbers[other]]
        if not is_matrix:
            dims = tuple(d if lost else () for d, lost in zip(dims, kind.lost[other], strict=True))
        side = kind.project(other, target, dims) if other != target and any(dims) else ()
        if any(side):
            yield side, (other,)


def _with_side(
    kind: OperatorClass, found: list[Offer], side: Offer, both: Dims | None
) -> list[Offer]:
    """Wishes after another operand's: merged; else, of a contraction, the one of more tiles."""
    if not found:
        return [side]
    ((dims, origin), *_), (other, source) = found, side
    if both is not None:
        return [(both, (*origin, *source))]
    return [side] if kind.role in priority.MATRIX and _tiles(other) > _tiles(dims) else found
