"""The plan of a node: its choice, and the instructions before and after the local operator.

All follow from the row of RULES: masks of padding along reduced loops, windows and margins, shifted
indices and masks of a local gather or scatter, and the collectives that finish the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Signature
from shardalg.graph.ops.local_parameters import Emission, IndexShift, boxes, emit, local_shape
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import ARGMAX, ARGMIN, PICK, SUM, TOP, USER, Access, Rule
from shardalg.planner.partition.choose.assign import choose
from shardalg.planner.partition.choose.component import reduced_digits
from shardalg.planner.partition.choose.key import Choice, NodeKey
from shardalg.planner.partition.choose.owner_select import ELEMENT, picks
from shardalg.planner.partition.choose.sent import through_windows
from shardalg.planner.partition.choose.windows import (
    Before,
    Kept,
    ShardedWindow,
    around,
    dims_with_margin,
    masks,
    spans,
    windows,
)
from shardalg.planner.reshard.even import tile
from shardalg.sizes.decided import decided
from shardalg.spmd.instruction import Attributes, Purpose, Why
from shardalg.spmd.instructions import (
    AllReduce,
    Apply,
    ArgReduce,
    Choose,
    ExclusiveScan,
    Extract,
    FirstMember,
    Fold,
    Insert,
    MaskIndexed,
    Offset,
    Slice,
    Top,
)
from shardalg.spmd.local import Start

Operator = Apply | Choose | Extract | Insert
"""A node has one of these, between the instructions that move and finish values.

`Apply` runs the node's own primitive; the others replace it where starts depend on the device.
"""


@dataclass(frozen=True)
class NodePlan:
    """How nodes with one `NodeKey` are computed: their choice and their instructions.

    Attributes:
      choice: the sharded loops and the shardings of operands and results.
      before: instructions on operands before the local operator.
      apply: the local operator; None if the node is a reshape that runs as an exchange.
      after: instructions that finish the results after the local operator.
      indexed: a pair for a gather whose indexed dimensions are sharded: the number of the operand
        with the indices (shifted to the device's block), and the mask that sets the result's
        elements of other blocks to 0. None for other nodes.
      raw: the sharding of each result directly after the local operator, before `after`.
      why: the purpose that reports show for the moves of operands.
      windows: dimensions of operands that are read through a window along sharded loops.
      kept: dimensions of the result along which the local operator computes more elements than the
        device's block; the additional elements are cut off.
    """

    choice: Choice
    before: tuple[Before, ...]
    apply: Operator | None
    after: tuple[Attributes, ...]
    indexed: tuple[int, MaskIndexed] | None
    raw: tuple[Sharding, ...]
    why: Why
    windows: tuple[ShardedWindow, ...] = ()
    kept: tuple[Kept, ...] = ()

    @cached_property
    def is_bare(self) -> bool:
        """True if the node needs only its local operator and moves of its operands and results.

        Masks, halo exchanges and combinations of partial results are then absent.
        """
        return self.apply is not None and not (
            self.before or self.windows or self.indexed or self.after
        )

    @cached_property
    def operator(self) -> Operator:
        """The local operator of nodes that have one.

        A reshape that runs as an exchange of elements has none.
        """
        assert self.apply is not None, "the node runs as an exchange"
        return self.apply

    @cached_property
    def along(self) -> tuple[list[ShardedWindow], ...]:
        """The entries of `windows`, grouped by the number of the dimension that they read."""
        dims = sorted({window.dim for window in self.windows})
        return tuple([window for window in self.windows if window.dim == dim] for dim in dims)

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The local shapes of the results directly after the local operator.

        They are the shapes of the device's blocks (`raw` has the shardings). The dimensions in
        `dims_with_margin` are longer: their additional elements are cut off afterwards.
        """
        lengths = {k.dim: k.length for k in self.kept}
        return tuple(
            tuple(lengths.get(dim, size) for dim, size in enumerate(layout.shard_shape))
            for layout in self.raw
        )


@decided(1 << 14, lambda key: key.numbers)
def node_plan(key: NodeKey) -> NodePlan:
    """Return the choice of all nodes with this key, and their instructions.

    A plan has the chosen shardings, the instructions before the operator (masks, shifts), the
    operator on a device's blocks (`apply`), the windows that read neighbours' elements, and the
    instructions after the operator (cuts, combinations of partial results).
    """
    choice = choose(key)
    rows = rules(key.signature)
    primitive = key.signature.primitive
    why = Why(Purpose.NEEDS, primitive)
    if rows is None:  # computed whole on every device
        return NodePlan(
            choice=choice,
            before=(),
            apply=Apply(primitive),
            after=(),
            indexed=None,
            raw=choice.produced,
            why=why,
        )
    if choice.regrouped:  # an exchange of blocks computes this reshape: no operator is applied
        return NodePlan(
            choice=choice,
            before=(),
            apply=None,
            after=(),
            indexed=None,
            raw=choice.produced,
            why=why,
        )
    # `blocks` has the iterations of each loop on one device.
    rule, loops = rows[0], dict(choice.loops)
    extents = {name: extent for each in rows for name, extent in each.loops}
    blocks = {n: tile(e, parts(loops.get(n, ()))) for n, e in extents.items()}
    # Windows, owner selects and local parameters exist only for nodes with one row.
    alone = len(rows) == 1
    found: tuple[ShardedWindow, ...] = ()
    if alone and choice.loops and through_windows(key.signature):
        held = tuple((k, choice.required_shardings[k].dims) for k in rule.operands)
        found = windows(rule, choice.loops, held, key.value_shardings[0].mesh.size)
    selects = picks(key.signature, rule, choice) if alone else ()
    read = spans(found) | {(0, pick.dim): ELEMENT for pick in selects}
    emission = emit(key.signature, rule, blocks, read) if alone else Emission()
    before = (
        *(Before(0, pick) for pick in selects),
        *masks(rows, loops),
        *around(rule, emission, loops),
        *_operand_shifts(emission, loops, blocks),
    )
    if emission.first_member is not None:
        # A start value enters a sum once: only the first member keeps it.
        pending = reduced_digits(rule, loops)
        if pending:
            first = FirstMember(pending, rule.combine)
            before = *before, Before(emission.first_member, first)
    cut = (*dims_with_margin(rule, found, blocks), *_within_margins(rule, emission, blocks))
    scans: tuple[ExclusiveScan, ...] = ()
    prefix, reverse = rule.prefix or ("", False)
    if loops.get(prefix):
        (dim,) = [d for d, index in enumerate(rule.results[0]) if index.loop == prefix]
        scans = (ExclusiveScan(dim, loops[prefix], rule.combine, reverse),)
    # Blocks are cut out first, so that collectives send no margins.
    after = (
        *[k.cut for k in cut],
        *_result_shifts(emission, loops, blocks),
        *_combines(rule, loops),
        *scans,
    )
    # A maximum, for example, is as partial as a sum until a collective in `after` combines it.
    raw, partial_ = choice.produced, reduced_digits(rule, loops)
    if partial_ and rule.combine not in (SUM, PICK):
        raw = tuple(replace(p, unreduced=p.unreduced + partial_) for p in choice.produced)
    apply = _local(key.signature, rule, emission, choice, blocks)
    mask = _mask_of_gathered(emission, loops, blocks)
    return NodePlan(
        choice=choice,
        before=before,
        apply=apply,
        after=after,
        indexed=mask,
        raw=raw,
        why=why,
        windows=found,
        kept=cut,
    )


def _local(
    signature: Signature, rule: Rule, emission: Emission, choice: Choice, blocks: dict[str, int]
) -> Operator:
    """Return the operator that each device runs on its blocks.

    Args:
      blocks: the iterations of each loop on one device.
    """
    loops = dict(choice.loops)
    if emission.boxed:
        # A box at run-time starts is read or written in the blocks that contain it. An operator
        # that writes a box starts from the array that it updates (`rule.init`).
        places = tuple((dim, loops[loop], high) for dim, loop, high in boxes(rule, loops))
        if rule.init is not None:
            return Insert(places, choice.loops)
        return Extract(local_shape(rule, 0, blocks), places, choice.loops)
    if emission.chosen is None:
        return Apply(signature.primitive, emission.params, choice.loops)
    # Each place of the dimension is an element of one operand, as in a concatenation. A device has
    # a piece of every operand, and chooses by the element numbers of its block.
    dim, sizes = emission.chosen
    loop = rule.results[0][dim].loop
    assert loop is not None, f"{rule.results[0][dim]} is no loop"
    start = Start(Index.of(loop) * blocks[loop], ((loop, loops[loop]),))
    return Choose(dim, start, sizes, choice.loops)


def _combines(rule: Rule, loops: dict[str, Digits]) -> tuple[Attributes, ...]:
    """Return the instruction that combines partial results of all devices, as a tuple.

    The tuple is empty if no result is partial, and for sums, which stay pending.

    Args:
      loops: the digits of each sharded loop.
    """
    digits = reduced_digits(rule, loops)
    # Sums and picks stay pending, so that several of them are reduced together.
    if not digits or rule.combine in (SUM, PICK):
        return ()
    if rule.combine not in (ARGMAX, ARGMIN, TOP):
        # A user's function is associative, as JAX asks, but may not commute: its partial results
        # are combined in the order of the loops.
        in_order = tuple(d for name in rule.reduced for d in loops.get(name, ()))
        return (Fold(in_order) if rule.combine == USER else AllReduce(digits, rule.combine),)
    # The index of a maximum, or of a largest element, counts from the start of the device's block
    # of the reduced dimension, so the instruction needs the block size.
    (loop,) = rule.reduced
    (dim,) = [d for d, index in enumerate(rule.operands[0]) if index.loop == loop]
    block = tile(rule.extents[loop], parts(loops[loop]))
    if rule.combine == TOP:
        return (Top(dim, loops[loop], block),)
    return (ArgReduce(dim, loops[loop], block, rule.combine),)


def _operand_shifts(
    emission: Emission, loops: dict[str, Digits], blocks: dict[str, int]
) -> tuple[Before, ...]:
    """Return instructions that shift run-time indices, so that they count from a device's block."""
    return tuple(
        Before(s.operand, _offset(s, loops[s.loop], blocks[s.loop]))
        for s in emission.shifts
        if s.operand is not None and loops.get(s.loop)
    )


def _result_shifts(
    emission: Emission, loops: dict[str, Digits], blocks: dict[str, int]
) -> tuple[Attributes, ...]:
    """Return instructions that turn positions within a block into global ones (for an iota)."""
    return tuple(
        _offset(s, loops[s.loop], blocks[s.loop])
        for s in emission.shifts
        if s.operand is None and loops.get(s.loop)
    )


def _offset(shift: IndexShift, digits: Digits, block: int) -> Offset:
    """Return the instruction that adds or subtracts the start of the device's block.

    Args:
      shift: the numbers to change and the direction.
      digits: the digits of the sharded loop.
      block: the loop's iterations per device.
    """
    scale = shift.sign * block
    return Offset(digits, scale, shift.component, shift.clamp, shift.more, shift.within)


def _within_margins(rule: Rule, emission: Emission, blocks: Mapping[str, int]) -> tuple[Kept, ...]:
    """Return, per dimension with margins, the cut that takes the device's block out of a result.

    A margin has the elements that a window beyond the end of the block may write. Empty unless the
    operator writes windows into its first operand (a scatter).
    """
    # The local operator writes [width | block | width] elements, of which the block is kept.
    found = []
    for _, loop, width in emission.margins if isinstance(rule.init, Access) else ():
        (dim,) = (d for d, made in enumerate(rule.results[0]) if made.loop == loop)
        block = blocks[loop]
        found.append(Kept(dim, block + 2 * width, Slice(dim, width, block)))
    return tuple(found)


def _mask_of_gathered(
    emission: Emission, loops: dict[str, Digits], blocks: dict[str, int]
) -> tuple[int, MaskIndexed] | None:
    """Return the number of the operand with the indices of a gather, and a mask of its result.

    The mask overwrites elements whose index is outside of the device's block. None if no indexed
    dimension is sharded.
    """
    owned = [one for one in emission.owned if not one[1] or loops.get(one[1])]
    # Without a sharded indexed dimension every index hits the block.
    if not any(loop for _, loop, _ in owned):
        return None
    widths = {loop: width for _, loop, width in emission.margins}
    # An entry of `owned` is (component c of an index, the loop o over the indexed dimension, the
    # number n of valid starts). A dimension without a loop is whole: its block has all n starts.
    components = tuple((c, loops.get(o, ()), blocks.get(o, n), n) for c, o, n in owned)
    margins = tuple(widths.get(loop, 0) for _, loop, _ in owned) if widths else ()
    operand = next(s.operand for s in emission.shifts if s.operand is not None)
    return operand, MaskIndexed(components, emission.batch_dims, emission.fill, margins)
