"""One element of a dimension that is cut: its holder hands it on as the only partial sum but 0.

    x[k] = sum over partitions p of (x[k] where p has it, else 0)
A last token, or a first row, is then sent as what it is made for wants it: added up where all
devices want it, or scattered. It is joined as bits
(`planner/partition/passes/unread.py`): in a sum a zero would lose its sign, as in XLA's own owner
selects.
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
from shardalg.graph.ops.windows import WindowBlock, reach, windowed
from shardalg.planner.partition.choose.component import as_set
from shardalg.planner.partition.choose.key import Choice
from shardalg.planner.reshard.even import tile
from shardalg.spmd.instructions import OwnerSelect

ELEMENT = WindowBlock(1)
"""What a device then has of the dimension."""


def elements(signature: Signature, rule: Rule) -> tuple[int, ...]:
    """Dimensions of the only operand of which one element is read, whatever the result's size.

    >>> from shardalg.graph.ir import ValueType
    >>> from shardalg.graph.ops.rows import rules
    >>> cut = (("start_indices", (7, 0)), ("limit_indices", (8, 4)), ("strides", None))
    >>> types = ValueType((8, 4), "float32"), ValueType((1, 4), "float32")
    >>> last = Signature("slice", cut, types[:1], types[1:])
    >>> elements(last, *rules(last))
    (0,)
    """
    moved = rule.combine == SUM and rule.linear == {0} == {*rule.operands} and not rule.reduced
    if not moved or rule.init is not None or not is_number(signature.operands[0].dtype):
        return ()
    dims = rule.operands[0]
    return tuple(
        dim
        for dim, index in enumerate(dims)
        if windowed(rule, 0, dim) and reach(index, rule.extents) == index.div == 1
    )


def picked(
    dims: tuple[int, ...], sources: Sequence[Sharding], layouts: tuple[Sharding, Sharding]
) -> Iterator[tuple[Sharding, Sharding]]:
    """Layouts of operand and result where elements are picked from blocks as they lie.

    Args:
      dims: of `elements`; sources: layouts of the operand at hand.
      layouts: of operand and result where those dimensions are held whole.
    """
    required, made = layouts
    used = [d for dim in (*required.dims, *made.dims) for d in dim]
    for source in sources:
        held = {dim: source.dims[dim] for dim in dims if not required.dims[dim]}
        digits = tuple(d for own in held.values() for d in own)
        if digits and not any(overlap(*pair) for pair in product(digits, used)):
            blocks = tuple(held.get(dim, own) for dim, own in enumerate(required.dims))
            pending = as_set(made.unreduced + digits)
            yield (
                interned(required.mesh, required.shape, blocks, required.unreduced),
                interned(made.mesh, made.shape, made.dims, pending),
            )


def picks(signature: Signature, rule: Rule, choice: Choice) -> tuple[OwnerSelect, ...]:
    """What takes the elements out of the blocks of the operand."""
    split = dict(choice.loops)
    found = []
    for dim in elements(signature, rule):
        digits, index = choice.required_shardings[0].dims[dim], rule.operands[0][dim]
        if digits and not any(name in split for name in index.variables):
            size = rule.operand_shapes[0][dim]
            found.append(OwnerSelect(dim, index.constant, tile(size, parts(digits)), digits))
    return tuple(found)
