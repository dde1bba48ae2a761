"""Every kind of instruction, one file per family: attributes, text, shapes, bytes on the wire.

`spmd.instruction.Attributes` lists the members that a kind may define.
"""

from collections.abc import Iterator
from dataclasses import is_dataclass

from shardalg.spmd.instruction import Attributes
from shardalg.spmd.instructions.collective_matmul import CollectiveMatmul, Direction
from shardalg.spmd.instructions.collectives import (
    GATHERS,
    AllGather,
    AllGathers,
    AllReduce,
    AllToAll,
    AllToAlls,
    CollectivePermute,
    HaloExchange,
    Pairs,
    RaggedAllToAll,
    Reading,
    ReduceScatter,
    ReduceScatters,
)
from shardalg.spmd.instructions.control import Apply, Branches, Control, Loop, Manual, While
from shardalg.spmd.instructions.joins import ArgReduce, ExclusiveScan, Fold, Join, Top, ValueAt
from shardalg.spmd.instructions.masks import Choose, FirstMember, Mask, MaskAt, MaskIndexed, Offset
from shardalg.spmd.instructions.pads import Concatenate, Dilate, Regroup, Resize, leading
from shardalg.spmd.instructions.slices import (
    DynamicSlice,
    Extract,
    Insert,
    OwnerSelect,
    Places,
    Slice,
    SliceAt,
)

__all__ = [
    "GATHERS", "AllGather", "AllGathers", "AllReduce", "AllToAll", "AllToAlls", "Apply",
    "ArgReduce", "Branches", "Choose",
    "CollectiveMatmul", "CollectivePermute", "Concatenate", "Control", "Dilate", "Direction",
    "DynamicSlice", "ExclusiveScan",
    "Extract", "FirstMember", "Fold", "HaloExchange", "Insert", "Join", "Loop", "Manual", "Mask",
    "MaskAt", "MaskIndexed", "Offset", "OwnerSelect", "Pairs", "Places", "RaggedAllToAll",
    "Reading",
    "ReduceScatter", "ReduceScatters", "Regroup", "Resize", "Slice", "SliceAt", "Top", "ValueAt",
    "While", "kinds", "leading",
]  # fmt: skip


def kinds(base: type[Attributes] = Attributes) -> tuple[type[Attributes], ...]:
    """Return every class of instructions, or those that are subclasses of `base`.

    They are found through their base classes, so that a new kind needs no entry in a list.

    >>> [kind.__name__ for kind in kinds(Control)]
    ['Loop', 'While', 'Branches', 'Manual', 'CollectiveMatmul']
    """
    # `dataclass(slots=True)` creates a second class, and the first one may exist for a while.
    return tuple({f"{one.__module__}.{one.__qualname__}": one for one in _below(base)}.values())


def _below(base: type[Attributes]) -> Iterator[type[Attributes]]:
    """Yield all dataclasses that are derived from a class, also through other classes."""
    for one in base.__subclasses__():
        if is_dataclass(one):
            yield one
        yield from _below(one)
