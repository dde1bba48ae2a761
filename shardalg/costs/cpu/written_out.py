"""Instructions as the operations that XLA's CPU compiler runs: copies, one of what is equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardalg.costs.collectives import is_collective
from shardalg.costs.compute import contracts
from shardalg.costs.fusion import SAME_BUFFER, reduces
from shardalg.costs.occupancy import Held
from shardalg.graph.ir import Graph, Signature
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.instructions import (
    AllGather,
    AllReduce,
    AllToAll,
    AllToAlls,
    Apply,
    Control,
    HaloExchange,
    Loop,
    ReduceScatter,
)
from shardalg.spmd.program import SpmdProgram

FUSED, APART, REDUCTION, WRITTEN, VIEW = "fused", "apart", "reduction", "written", "view"
"""What fuses with its readers; what reads and writes memory; what reads through what is fused into
it, and writes: reductions, and the others; what is another shape of the same memory."""
SAME = SAME_BUFFER | {"stop_gradient"}
SHAPES = frozenset(("copy", "reshape", "squeeze"))
MOVES = frozenset(
    ("broadcast_in_dim", "concatenate", "dynamic_slice", "dynamic_update_slice", "gather", "pad")
) | frozenset(("rev", "slice", "transpose"))
"""Fused, but not written over what they read."""
OWN_LOOPS = frozenset(("cumsum", "reduce_window", "scatter", "scatter-add", "sort", "top_k"))
SLOW = frozenset(
    ("atan2", "cbrt", "cos", "div", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "log")
) | frozenset(
    ("log1p", "logistic", "integer_pow", "pow", "rem", "rsqrt", "sin", "sqrt", "tan", "tanh")
)
"""Not repeated in several readers (`InstructionFusion::IsExpensive`)."""
_INDEX_BYTES = 4
_HALVES = {"bfloat16", "float16"}


@dataclass(frozen=True)
class Operation:
    """What is run.

    Attributes:
      reads, makes: values, numbered as locals, copies after them.
      kind: one of those above. slow: to repeat. in_place: may write over what it reads.
    """

    reads: tuple[int, ...]
    makes: tuple[int, ...]
    kind: str
    instruction: Instruction
    slow: bool = False
    in_place: bool = False


@dataclass
class WrittenOut:
    """A program whose blocks are written out; its values grow by the copies.

    Attributes:
      held: per value its bytes; of copies, the locals whose bytes they are.
      made: copies that several operations read, by what they are.
    """

    program: SpmdProgram
    graph: Graph
    held: list[Held] = field(default_factory=list)
    made: dict[Any, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.held = [Held(v.bytes, (v.index,)) for v in self.program.locals]

    def block(self, block: Block) -> tuple[list[Operation], list[int]]:
        """The operations of a block, and its results."""
        self.made = {}  # a body has its own
        same: dict[int, int] = {}
        seen: dict[Any, tuple[int, ...]] = {}
        found: list[Operation] = []
        for instruction in _inlined(block):
            if isinstance(instruction, list):
                same.update({made: same.get(of, of) for of, made in instruction})
                continue
            reads = tuple(same.get(v, v) for v in instruction.operands)
            key = self._key(instruction, reads)
            if key is not None and key in seen:
                same.update(zip(instruction.results, seen[key], strict=True))
            elif getattr(instruction.attributes, "primitive", None) in SAME:
                same.update(zip(instruction.results, reads, strict=True))
            elif instruction.results:
                seen[key] = instruction.results
                found += self._written(instruction, reads)
        return found, [same.get(v, v) for v in block.results]

    def _key(self, instruction: Instruction, reads: tuple[int, ...]) -> Any:
        """Of what is done, alike of equal operators; None of what holds blocks."""
        if isinstance(instruction.attributes, Control):
            return None
        signature = self._signature(instruction)
        return (
            instruction.attributes,
            signature and signature.params,
            reads,
            self._types(instruction),
        )

    def _types(self, instruction: Instruction) -> tuple[Any, ...]:
        held = self.program.locals
        return tuple((held[v].shape, held[v].dtype) for v in instruction.results)

    def _signature(self, instruction: Instruction) -> Signature | None:
        if type(instruction.attributes) is not Apply or instruction.node is None:
            return None
        return self.graph.nodes[instruction.node].signature

    def new(self, *of: int) -> int:
        """A value as large as some locals together."""
        self.held.append(
            Held(sum(self.held[v].bytes for v in of), tuple(o for v in of for o in self.held[v].of))
        )
        return len(self.held) - 1

    def _written(self, instruction: Instruction, reads: tuple[int, ...]) -> Iterator[Operation]:
        signature = self._signature(instruction)
        if signature is not None:
            yield from self._applied(instruction, reads, signature)
        elif not self._sends(instruction):
            kind = APART if isinstance(instruction.attributes, Control) else FUSED
            yield Operation(reads, instruction.results, kind, instruction)
        elif type(instruction.attributes) in _MOVED:
            yield from _MOVED[type(instruction.attributes)](self, instruction, reads)
        else:
            yield Operation(reads, instruction.results, APART, instruction)

    @staticmethod
    def _sends(instruction: Instruction) -> bool:
        attributes = instruction.attributes
        return is_collective(attributes) and not attributes.stays

    def _applied(
        self, instruction: Instruction, reads: tuple[int, ...], signature: Signature
    ) -> Iterator[Operation]:
        name, results = signature.primitive, instruction.results
        if name in SHAPES or (name == "broadcast_in_dim" and self._keeps_size(reads, results)):
            yield Operation(reads[:1], results, VIEW, instruction)
        elif name in ORDERED:
            yield from self._ordered(instruction, reads, ORDERED[name](signature))
        elif name == "select_and_scatter_add":
            yield from self._scattered_to_largest(instruction, reads)
        elif contracts(signature) or name in OWN_LOOPS:
            yield Operation(reads, results, APART, instruction)
        elif reduces(instruction, self.graph):
            yield Operation(reads, results, REDUCTION, instruction)
        else:
            yield Operation(
                reads, results, FUSED, instruction, slow=name in SLOW, in_place=name not in MOVES
            )

    def _keeps_size(self, reads: tuple[int, ...], results: tuple[int, ...]) -> bool:
        held = self.held
        shaped = bool(reads) and bool(self.program.locals[results[0]].shape)
        return shaped and held[reads[0]].bytes == held[results[0]].bytes

    def _ordered(
        self, instruction: Instruction, reads: tuple[int, ...], fits: Sequence[bool]
    ) -> Iterator[Operation]:
        """A product, whose operands and result are copied where dimensions lie in another order."""
        given, times = list(reads), self._times(instruction)
        for place, fit in enumerate(fits[:2]):
            if not fit or times > 1:
                given[place], copies = self._copied(instruction, reads[place], times, fit=fit)
                yield from copies
        made = self._as_large(instruction.results[0], times, moved=not fits[2])
        yield from self._moved_into(instruction, tuple(given), made)

    def _times(self, instruction: Instruction) -> int:
        """Halves are multiplied and summed as float32, twice as large (`FloatNormalization`)."""
        dtypes = {self.program.locals[v].dtype for v in instruction.operands}
        return 2 if dtypes & _HALVES else 1

    def _copied(
        self, instruction: Instruction, value: int, times: int, *, fit: bool
    ) -> tuple[int, list[Operation]]:
        """A copy of a value, one for all readers where it only has another item type."""
        key = value, times
        if fit and key in self.made:
            return self.made[key], []
        copy = self.new(*[value] * times)
        if fit:
            self.made[key] = copy
        return copy, [Operation((value,), (copy,), FUSED, instruction)]

    def _as_large(self, value: int, times: int, *, moved: bool) -> int:
        """What is made before it becomes a value, or that value."""
        return self.new(*[value] * times) if moved or times > 1 else value

    @staticmethod
    def _moved_into(
        instruction: Instruction, reads: tuple[int, ...], made: int
    ) -> Iterator[Operation]:
        """What is made, and moved into the result by what fuses."""
        yield Operation(reads, (made,), APART, instruction)
        if made != instruction.results[0]:
            yield Operation((made,), instruction.results[:1], FUSED, instruction)

    def gathered(
        self, instruction: Instruction[AllGather], reads: tuple[int, ...]
    ) -> Iterator[Operation]:
        """An all-gather: on a new leading dimension, and moved."""
        made = self._as_large(instruction.results[0], 1, moved=instruction.attributes.dim != 0)
        return self._moved_into(instruction, reads, made)

    def summed(
        self, instruction: Instruction[AllReduce], reads: tuple[int, ...]
    ) -> Iterator[Operation]:
        """An all-reduce."""
        return self._reduced(instruction, reads, instruction.results[0], moved=False)

    def scattered(
        self, instruction: Instruction[ReduceScatter], reads: tuple[int, ...]
    ) -> Iterator[Operation]:
        """A reduce-scatter: its pieces are moved to a new leading dimension before it."""
        if instruction.attributes.dim != 0:
            cut = self.new(reads[0])
            yield Operation(reads, (cut,), FUSED, instruction)
            reads = (cut,)
        yield from self._reduced(instruction, reads, instruction.results[0], moved=False)

    def _reduced(
        self, instruction: Instruction, reads: tuple[int, ...], whole: int, *, moved: bool
    ) -> Iterator[Operation]:
        times = self._times(instruction)
        if times > 1:
            copy, copies = self._copied(instruction, reads[0], times, fit=True)
            reads = (copy,)
            yield from copies
        made = self._as_large(whole, times, moved=moved)
        yield from self._moved_into(instruction, reads, made)

    def exchanged(self, instruction: Instruction, reads: tuple[int, ...]) -> Iterator[Operation]:
        """An all-to-all of pieces, which are cut before it and joined behind it."""
        cut = self.new(reads[0])
        yield Operation(reads, (cut,), FUSED, instruction)
        made = self._as_large(instruction.results[0], 1, moved=True)
        yield from self._moved_into(instruction, (cut,), made)

    def joined(self, instruction: Instruction, reads: tuple[int, ...]) -> Iterator[Operation]:
        """A halo exchange: what arrives, which is little, is concatenated with the block."""
        yield Operation(reads, instruction.results, WRITTEN, instruction)

    def _scattered_to_largest(
        self, instruction: Instruction, reads: tuple[int, ...]
    ) -> Iterator[Operation]:
        """The gradient of a maximum over windows: positions of all elements are reduced with them.

        A position per dimension (`SelectAndScatterExpander`), and a scatter of what they select.
        """
        source, operand = reads[:2]
        local = self.program.locals[operand]
        times = max(1, _INDEX_BYTES * math.prod(local.shape) // max(1, local.bytes))
        found = []
        for dim in range(len(local.shape)):
            key = local.shape, dim
            if key not in self.made:
                self.made[key] = self.new(*[operand] * times)
                yield Operation((), (self.made[key],), WRITTEN, instruction)
            found.append(self.made[key])
        chosen = tuple(self.new(*[source] * times) for _ in found)
        yield Operation((operand, *found), (self.new(source), *chosen), APART, instruction)
        index = self.new(*chosen)
        yield Operation(chosen, (index,), FUSED, instruction)
        yield Operation((source, index), instruction.results, APART, instruction)


def _inlined(block: Block) -> Iterator[Instruction | list[tuple[int, int]]]:
    """Instructions, loops of one iteration opened; or pairs of values, the second is the first."""
    for instruction in block.instructions:
        loop = instruction.attributes
        if type(loop) is not Loop or loop.length != 1:
            yield instruction
            continue
        yield list(zip(instruction.operands, loop.body.arguments, strict=True))
        yield from _inlined(loop.body)
        yield list(zip(loop.body.results, instruction.results, strict=True))


def _of_products(signature: Signature) -> tuple[bool, bool, bool]:
    """Whether operands and result of a product lie as it takes and makes them.

    Batch first; of the left operand the contracted dimensions last, of the right one behind the
    batch. Of a matrix, and of a batch of them, either order will do (`DotDecomposer`).
    """
    (left, right), (left_batch, right_batch) = dict(signature.params)["dimension_numbers"]
    ranks = [len(operand.shape) for operand in signature.operands]
    batch, sums = len(left_batch), len(left)
    first = tuple(range(batch))
    last = tuple(range(ranks[0] - sums, ranks[0]))
    fits = (
        tuple(left_batch) == first and (ranks[0] <= batch + 2 or tuple(left) == last),
        tuple(right_batch) == first
        and (ranks[1] <= batch + 2 or tuple(right) == tuple(range(batch, batch + sums))),
    )
    return *fits, True


def _of_convolutions(signature: Signature) -> tuple[bool, bool, bool]:
    """The same of a convolution: batch, space, features; space, features in, features out."""
    rank = len(signature.operands[0].shape)
    plain = (0, rank - 1, *range(1, rank - 1))
    wanted = (plain, (rank - 1, rank - 2, *range(rank - 2)), plain)
    found = tuple(dict(signature.params)["dimension_numbers"])
    lhs, rhs, out = (tuple(a) == b for a, b in zip(found, wanted, strict=True))
    return lhs, rhs, out


ORDERED: dict[str, Callable[[Signature], tuple[bool, bool, bool]]] = {
    "dot_general": _of_products,
    "conv_general_dilated": _of_convolutions,
}
_MOVED: dict[type, Callable[..., Iterator[Operation]]] = {
    AllGather: WrittenOut.gathered,
    AllReduce: WrittenOut.summed,
    ReduceScatter: WrittenOut.scattered,
    AllToAll: WrittenOut.exchanged,
    AllToAlls: WrittenOut.exchanged,
    HaloExchange: WrittenOut.joined,
}
