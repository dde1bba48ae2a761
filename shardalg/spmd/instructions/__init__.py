"""Every kind of instruction, one file per kind or family: attributes, text, shapes, what it sends.

What a file here may say is listed by `spmd.instruction.Attributes`.
"""

from collections.abc import Iterator
from dataclasses import is_dataclass

from shardalg.spmd.instruction import Attributes
from shardalg.spmd.instructions.all_gather import AllGather
from shardalg.spmd.instructions.all_reduce import AllReduce, ReduceScatter
from shardalg.spmd.instructions.all_to_all import AllToAll, AllToAlls
from shardalg.spmd.instructions.apply import Apply
from shardalg.spmd.instructions.boxes import Extract, Insert, Places
from shardalg.spmd.instructions.collective_matmul import CollectiveMatmul, Direction
from shardalg.spmd.instructions.control import Branches, Control, Loop, Manual, While
from shardalg.spmd.instructions.indices import MaskIndexed, Offset
from shardalg.spmd.instructions.joins import ArgReduce, ExclusiveScan, Fold, Join, Top, ValueAt
from shardalg.spmd.instructions.masks import Choose, FirstMember, Mask, MaskAt
from shardalg.spmd.instructions.pads import Concatenate, Dilate, Resize
from shardalg.spmd.instructions.permute import CollectivePermute, HaloExchange, Pairs, Reading
from shardalg.spmd.instructions.regroup import Regroup, leading
from shardalg.spmd.instructions.slices import DynamicSlice, OwnerSelect, Slice, SliceAt

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
