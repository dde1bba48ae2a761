"""Owner select: one element of a sharded dimension becomes a partial sum, 0 except on its owner.

    x[k] = sum over partitions p of (x[k] if p owns it, else 0)
A last token, or a first row, is then moved in the sharding that its reader requires: all-reduced or
reduce-scattered. The sum is taken over bits (`planner/partition/passes/unread.py`). A sum of floats
would lose the sign of -0, as XLA's own owner selects do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from shardalg.algebra.derived_layouts import interned
from shardalg.algebra.digits import overlap, parts
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Signature
from shardalg.graph.ops.families.building import is_number
from shardalg.graph.ops.rule import SUM, Rule
from shardalg.graph.ops.windows import WindowBlock, is_windowed, reach
from shardalg.planner.partition.choose.component import major_first
from shardalg.planner.partition.choose.key import Choice
from shardalg.planner.reshard.even import tile
from shardalg.spmd.instructions import OwnerSelect

# Whatever the blocks were, each device has one element of the dimension after an owner select: the
# selected one, or 0.
ELEMENT = WindowBlock(1)


def elements(signature: Signature, rule: Rule) -> tuple[int, ...]:
    """Return the operand's dimensions of which one element is read.

    Empty unless the operator only copies the elements of its single operand.

    >>> from shardalg.graph.ir import ValueType
    >>> from shardalg.graph.ops.rows import rules
    >>> cut = (("start_indices", (7, 0)), ("limit_indices", (8, 4)), ("strides", None))
    >>> types = ValueType((8, 4), "float32"), ValueType((1, 4), "float32")
    >>> last = Signature("slice", cut, types[:1], types[1:])
    >>> elements(last, *rules(last))
    (0,)
    """
    # The row must only copy elements of operand 0, and their type must have a 0 for the devices
    # that are not the owner.
    moved = rule.combine == SUM and rule.linear == {0} == {*rule.operands} and not rule.reduced
    if not moved or rule.init is not None or not is_number(signature.operands[0].dtype):
        return ()
    dims = rule.operands[0]
    return tuple(
        dim
        for dim, index in enumerate(dims)
        if is_windowed(rule, 0, dim) and reach(index, rule.extents) == index.div == 1
    )


def owner_select_choices(
    dims: tuple[int, ...], sources: Sequence[Sharding], layouts: tuple[Sharding, Sharding]
) -> Iterator[tuple[Sharding, Sharding]]:
    """Yield (operand's sharding, result's sharding) for each way to read elements by owner selects.

    The operand stays sharded along the dimensions of which one element is read. The result is a
    partial sum along their digits.

    Args:
      dims: the operand's dimensions of which one element is read (`elements`).
      sources: shardings of the operand's available copies.
      layouts: the shardings of operand and result if these dimensions are whole.
    """
    required, made = layouts
    # Copies of the operand in different shardings have different owners: each gives one candidate.
    used = [d for dim in (*required.dims, *made.dims) for d in dim]
    for source in sources:
        held = {dim: source.dims[dim] for dim in dims if not required.dims[dim]}
        digits = tuple(d for own in held.values() for d in own)
        # The digits become axes of a pending sum, so nothing else may use them.
        if digits and not any(overlap(*pair) for pair in product(digits, used)):
            blocks = tuple(held.get(dim, own) for dim, own in enumerate(required.dims))
            pending = major_first(made.unreduced + digits)
            yield (
                interned(required.mesh, required.shape, blocks, required.unreduced),
                interned(made.mesh, made.shape, made.dims, pending),
            )


def picks(signature: Signature, rule: Rule, choice: Choice) -> tuple[OwnerSelect, ...]:
    """Return the owner select instructions of a choice.

    There is one for each sharded dimension of the operand of which one element is read, as in
    x[-1]: the device with this element returns it, and all others return 0.
    """
    sharded_loops = dict(choice.loops)
    selects = []
    # A dimension that is sharded although no sharded loop indexes it is read by an owner select.
    for dim in elements(signature, rule):
        digits, index = choice.required_shardings[0].dims[dim], rule.operands[0][dim]
        if digits and not any(name in sharded_loops for name in index.variables):
            # The constant of the index is the element's position; the block size tells its owner.
            size = rule.operand_shapes[0][dim]
            selects.append(OwnerSelect(dim, index.constant, tile(size, parts(digits)), digits))
    return tuple(selects)
