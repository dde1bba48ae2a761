"""Every kind of instruction, one file per kind or family: attributes, text, shapes, what it sends.

What a file here may say is listed by `spmd.instruction.Attributes`.
"""

from collections.abc import Iterator
from dataclasses import is_dataclass

from shardalg.spmd.instruction import Attributes
from shardalg.spmd.instructions.collective_matmul import CollectiveMatmul, Direction
from shardalg.spmd.instructions.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    AllToAlls,
    CollectivePermute,
    HaloExchange,
    Pairs,
    Reading,
    ReduceScatter,
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
    "AllGather", "AllReduce", "AllToAll", "AllToAlls", "Apply", "ArgReduce", "Branches", "Choose",
    "CollectiveMatmul", "CollectivePermute", "Concatenate", "Control", "Dilate", "Direction",
    "DynamicSlice", "ExclusiveScan",
    "Extract", "FirstMember", "Fold", "HaloExchange", "Insert", "Join", "Loop", "Manual", "Mask",
    "MaskAt", "MaskIndexed", "Offset", "OwnerSelect", "Pairs", "Places", "Reading",
    "ReduceScatter", "Regroup", "Resize", "Slice", "SliceAt", "Top", "ValueAt", "While", "kinds",
    "leading",
]  # fmt: skip


def kinds(base: type[Attributes] = Attributes) -> tuple[type[Attributes], ...]:
    """Every kind of instruction, or those of one sort: none is listed, so that a new one counts.

    >>> [kind.__name__ for kind in kinds(Control)]
    ['Loop', 'While', 'Branches', 'Manual', 'CollectiveMatmul']
    """
    # `dataclass(slots=True)` makes a class anew; the one before it may live on for a while
    return tuple({f"{one.__module__}.{one.__qualname__}": one for one in _below(base)}.values())


def _below(base: type[Attributes]) -> Iterator[type[Attributes]]:
    for one in base.__subclasses__():
        if is_dataclass(one):
            yield one
        yield from _below(one)
