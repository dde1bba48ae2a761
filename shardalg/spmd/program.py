"""The single program that every device runs: local shapes, explicit collectives, masks."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digits, partition_id
from shardalg.algebra.halos.classes import Runs
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import ITEM_SIZES, SHORT, Params
from shardalg.spmd.boxes import Extract, Insert, Pick
from shardalg.spmd.joins import Best, Carry, Fold, Join, Top, ValueAt
from shardalg.spmd.regroup import Regroup
from shardalg.spmd.why import UNSTATED, Why

Pairs = tuple[tuple[int, int], ...]
"""(source, target) positions."""


@dataclass(frozen=True, slots=True)
class Local:
    """One value as a device holds it.

    Attributes:
      shape: local shape, padding included.
      sharding: global shape and layout; `sharding.unreduced` are pending partial sums.
      origin: the graph value it is a layout of; None for an intermediate of an emission.
    """

    index: int
    shape: tuple[int, ...]
    dtype: str
    sharding: Sharding
    origin: int | None = None

    @property
    def bytes(self) -> int:
        """Bytes on one device."""
        return _bytes(self.shape, self.dtype)

    def __repr__(self) -> str:
        return f"{SHORT.get(self.dtype, self.dtype)}[{','.join(map(str, self.shape))}]"


# Few shapes make up a program, and a product of formulas is dear.
@lru_cache(maxsize=1 << 16)
def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape, start=ITEM_SIZES.get(dtype, 4))


@dataclass(frozen=True, slots=True)
class Start:
    """An element number that depends on the device: `index` in partition ids.

    Attributes:
      index: affine in the names of `digits`, perhaps divided (rounding down) and taken modulo.
      digits: (name, digits) of every partition id in it.
      more: added to the index at last.

    >>> from shardalg.algebra.digits import Digit
    >>> start = Start((Index.of("o") * 6 - 1) // 4, (("o", (Digit(1, 4),)),))
    >>> [start.at(position) for position in range(4)]
    [-1, 1, 2, 4]
    """

    index: Index
    digits: tuple[tuple[str, Digits], ...] = ()
    more: int = 0

    def at(self, position: int) -> int:
        """The number on the device at a position."""
        return self.of({name: partition_id(digits, position) for name, digits in self.digits})

    def of(self, ids: Mapping[str, Any]) -> Any:
        """The number for partition ids by name: ints, or numbers of a traced program."""
        return self.index.at(ids) + self.more

    @property
    def all_digits(self) -> Digits:
        """Everything that the number depends on."""
        return tuple(digit for _, digits in self.digits for digit in digits)


# Attributes of an instruction, one frozen class per kind; `Instruction.attributes` is one of them.


@dataclass(frozen=True, slots=True)
class Apply:
    """Run a JAX primitive on local operands.

    Attributes:
      primitive: differs from the node's own where an emission needs another.
      params: the parameters that differ from the node's own (local shapes, dropped hints).
      loops: the digits on each sharded loop of the node's rule.
    """

    primitive: str
    params: Params = ()
    loops: tuple[tuple[str, Digits], ...] = ()


@dataclass(frozen=True, slots=True)
class AllGather:
    """Concatenate the blocks of the devices along `digits` (minor on `dim`)."""

    dim: int
    digits: Digits


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Combine over the devices along `digits`."""

    digits: Digits
    combine: str = "sum"


@dataclass(frozen=True, slots=True)
class ReduceScatter:
    """Combine over `digits` and keep the own block along `dim`."""

    dim: int
    digits: Digits
    combine: str = "sum"


@dataclass(frozen=True, slots=True)
class AllToAll:
    """Split `split_dim` and concatenate along `concat_dim` over `digits`.

    They leave the minor end of the one in this order and reach that of the other in the order
    `arriving`; () is the same.
    """

    split_dim: int
    concat_dim: int
    digits: Digits
    arriving: Digits = ()


@dataclass(frozen=True, slots=True)
class CollectivePermute:
    """The device at position `source` sends its block to position `target`, for each pair.

    `digits` are those in which the two layouts differ.
    """

    digits: Digits
    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """The block of the device whose partition id is `source(p)`: a result of a `Fetch`.

    What arrives counts only at `places`, lower and upper of the block, and as far as it is among
    the `length` elements from `wanted(p)` on; the rest is garbage.

    Attributes:
      operand: which operand of the fetch it is a block of.
      permutes: of each permute of the fetch the (source, target) positions that serve this result;
        a device that is no target keeps its own block.
    """

    operand: int
    source: Start
    permutes: tuple[Pairs | Runs, ...]
    wanted: Start
    length: int
    places: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Blocks along `dim` of devices that differ along `digits`: one result per reading.

    The operands are as long as each other. In a permute a device sends the block of one operand,
    for all readings of it; it names no position twice on one side.
    """

    dim: int
    digits: Digits
    readings: tuple[Reading, ...]

    @property
    def permutes(self) -> tuple[tuple[tuple[int, int, int], ...], ...]:
        """What is sent: per permute (source, target, operand), for all readings together."""
        permutes = zip(*(reading.permutes for reading in self.readings), strict=True)
        return tuple(
            tuple(
                dict.fromkeys(
                    (*pair, reading.operand)
                    for reading, pairs in zip(self.readings, permute, strict=True)
                    for pair in pairs
                )
            )
            for permute in permutes
        )

    @property
    def sends(self) -> int:
        """How many permutes there are: all readings have the same ones."""
        return len(self.readings[0].permutes)

    @property
    def operands(self) -> int:
        """How many operands it has."""
        return 1 + max(reading.operand for reading in self.readings)


@dataclass(frozen=True, slots=True)
class DynamicSlice:
    """The own block `[p*block, (p+1)*block)` along `dim`, `p` the partition id of `digits`."""

    dim: int
    digits: Digits
    block: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Elements `[start, start + size)` of `dim`, the same on every device."""

    dim: int
    start: int
    size: int

    @property
    def stop(self) -> int:
        """The first element behind it."""
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class SliceAt:
    """Elements `[start(p), start(p) + size)` of `dim`; they lie inside on every device."""

    dim: int
    start: Start
    size: int

    @property
    def digits(self) -> Digits:
        """What its start depends on."""
        return self.start.all_digits


@dataclass(frozen=True, slots=True)
class Concatenate:
    """The operands one after the other along `dim`."""

    dim: int


@dataclass(frozen=True, slots=True)
class Resize:
    """Pad `dim` with zeros at its end, or strip it, to `size` elements."""

    dim: int
    size: int


@dataclass(frozen=True, slots=True)
class Dilate:
    """`factor - 1` places between neighbours of `dim`, `low` before the first, `high` at the end.

    They hold the identity of `fill`; the second operand, a number, where `fill` is None.
    """

    dim: int
    factor: int
    low: int
    high: int
    fill: str | None = "sum"

    def length(self, before: int) -> int:
        """Places that `before` places become."""
        return self.low + max((before - 1) * self.factor + 1, 0) + self.high


@dataclass(frozen=True, slots=True)
class Mask:
    """Along `dim`, places `x` with `p*block + x >= size` become the identity of `fill`.

    `fill` names a way to combine: "sum" fills with 0, "max" with the lowest number.
    """

    dim: int
    digits: Digits
    block: int
    size: int
    fill: str = "sum"


@dataclass(frozen=True, slots=True)
class MaskAt:
    """Along `dim`, places `x` with `start(p) + x` outside `[0, size)` are filled.

    With the identity of `fill`, a way to combine; with the second operand, a number, where `fill`
    is None.
    """

    dim: int
    start: Start
    size: int
    fill: str | None = "sum"

    @property
    def digits(self) -> Digits:
        """What its start depends on."""
        return self.start.all_digits


@dataclass(frozen=True, slots=True)
class Choose:
    """A block of the operands' tensors side by side along `dim`, from a piece of each.

    All pieces are as long as the block; place `x` is that of the operand in whose elements
    `start(p) + x` lies when the tensors, `sizes` elements long, follow one another. Behind all of
    them it is garbage.

    Attributes:
      loops: the digits on each sharded loop of the node's rule.
    """

    dim: int
    start: Start
    sizes: tuple[int, ...]
    loops: tuple[tuple[str, Digits], ...] = ()

    @property
    def digits(self) -> Digits:
        """What its start depends on."""
        return self.start.all_digits

    @property
    def ends(self) -> tuple[int, ...]:
        """Where each tensor ends."""
        return tuple(accumulate(self.sizes))


@dataclass(frozen=True, slots=True)
class Offset:
    """Add `p*scale + more` to an integer value, which is clamped to `clamp` first.

    To all of it, or, with `component`, to the slice of the last dimension with that number (gather
    and scatter indices). Where the value was outside of `within` it becomes -1: no index.
    """

    digits: Digits
    scale: int
    component: int | None = None
    clamp: tuple[int, int] | None = None
    more: int = 0
    within: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class MaskIndexed:
    """Keep of a gathered value what the own block holds; operands are the value and its indices.

    Zero where a component of the shifted indices misses `[0, block)`; on the first member, `fill`
    where the global index misses `[0, size)`.

    Attributes:
      components: (component, digits, block, size).
      margins: places before the block from which each component counts, none if it is empty.
      batch_dims: the value's dimensions that the indices span.
      fill: None where nothing is filled in.
    """

    components: tuple[tuple[int, Digits, int, int], ...]
    batch_dims: tuple[int, ...]
    fill: float | None = None
    margins: tuple[int, ...] = ()

    @property
    def counted(self) -> tuple[tuple[tuple[int, Digits, int, int], int], ...]:
        """Every component with its margin."""
        margins = self.margins or (0,) * len(self.components)
        return tuple(zip(self.components, margins, strict=True))

    @property
    def digits(self) -> Digits:
        """What the blocks of all components are cut by."""
        return tuple(digit for _, digits, _, _ in self.components for digit in digits)


@dataclass(frozen=True, slots=True)
class FirstMember:
    """The value where the partition id along `digits` is 0, the identity of `combine` elsewhere."""

    digits: Digits
    combine: str = "sum"


@dataclass(frozen=True, slots=True)
class Loop:
    """A scan: operands are (constants, initial carry, xs), results (carry, ys).

    Attributes:
      body: arguments (constants, carry, one of each xs), results (carry, one of each ys).
      length: number of iterations; `reverse`: from the last to the first.
    """

    body: Block
    num_consts: int
    num_carry: int
    length: int
    reverse: bool


@dataclass(frozen=True, slots=True)
class While:
    """Iterations while a predicate holds: operands are (constants, initial carry), results (carry).

    Attributes:
      condition: arguments (its constants, carry); its result, the same on all devices, says
        whether to go on.
      body: arguments (its constants, carry), results (carry).
      num_consts: how many constants are the condition's, and how many the body's.
    """

    condition: Block
    body: Block
    num_consts: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Branches:
    """One of several blocks: operands are (its number, the arguments of every block).

    The number is the same on all devices, so that they meet in the collectives of one block.
    """

    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Manual:
    """What every device runs on its own blocks: a region of the user's, with his collectives.

    Operands and results are blocks in the layouts of the region's border; inside, each device's
    values are its own.

    Attributes:
      digits: of the axes that are manual.
    """

    body: Block
    digits: Digits


Attributes = (
    Apply | AllGather | AllReduce | ReduceScatter | AllToAll | CollectivePermute | Fetch
    | Carry | Best | DynamicSlice | Slice | SliceAt | Concatenate | Resize | Dilate | Mask | MaskAt
    | Choose | Regroup | Join | ValueAt | Offset | MaskIndexed | FirstMember | Extract | Insert
    | Pick | Top | Fold | Loop | While | Branches | Manual
)  # fmt: skip
COLLECTIVES = (
    AllGather, AllReduce, ReduceScatter, AllToAll, CollectivePermute, Fetch, Carry, Best, Top, Fold,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Instruction:
    """One step of a block.

    Attributes:
      operands, results: indices of `Local`s.
      node: the graph node it was emitted for; None at the program's border.
      phase: "forward", "backward" or "update".
      role: of the value that moves: "activation", "weight", "gradient", "constant",
        "optimizer_state" or "unknown".
      why: what it is there for; of a step between two layouts, which chain of moves it is part of.
    """

    attributes: Attributes
    operands: tuple[int, ...]
    results: tuple[int, ...]
    node: int | None
    phase: str = "forward"
    role: str = "unknown"
    why: Why = UNSTATED


@dataclass(frozen=True)
class Block:
    """A list of instructions with arguments and results (indices of `Local`s)."""

    arguments: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    results: tuple[int, ...]


@dataclass(frozen=True, repr=False)
class SpmdProgram:
    """What every device of `mesh` runs; `print` shows it instruction by instruction.

    Attributes:
      locals: every local value, `locals[i].index == i`; those of loop bodies included.
      block: the whole program; its arguments are the function's flattened arguments.
      argument_shardings, result_shardings: the layout at the border, one per flattened argument
        and result.
    """

    mesh: Mesh
    locals: tuple[Local, ...]
    block: Block
    argument_shardings: tuple[Sharding, ...]
    result_shardings: tuple[Sharding, ...]
    constants: tuple[tuple[int, int], ...] = field(default=())
    """(local, graph value) of the constants that the program starts with."""

    def __str__(self) -> str:
        # The text form reads programs, so it is looked up when one is printed.
        return importlib.import_module("shardalg.spmd.text").program_text(self)

    def __repr__(self) -> str:
        return (
            f"SpmdProgram({len(self.block.arguments)} arguments, {len(self.block.instructions)} "
            f"instructions, {len(self.block.results)} results on {self.mesh!r})"
        )
