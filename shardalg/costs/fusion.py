"""Local values that a compiler with fusion of pointwise operators never writes to memory.

A cast in front of a product, or of a product's result, is part of the product (`casts`).
`annotate(scores, "on_chip")` says that the operators around a value are one kernel that makes it
block by block and never writes it, as attention kernels do with scores (arXiv:2205.14135). Such
values take no memory and no traffic. The operations on them, forward and backward, still count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from shardalg.costs.compute import contracts
from shardalg.costs.kernels.fused_attention import fused_attention, handed_together
from shardalg.costs.kernels.kernel_price import at_shapes, is_kernel, price_of
from shardalg.costs.walk import walk
from shardalg.graph.ir import ITEM_SIZES, Graph, Signature, once_per_graph
from shardalg.graph.ops.rows import rules
from shardalg.spmd.instruction import Block, Collective, Instruction, is_a
from shardalg.spmd.instructions import (
    Apply,
    Control,
    DynamicSlice,
    Loop,
    OwnerSelect,
    Slice,
    SliceAt,
    kinds,
)
from shardalg.spmd.program import SpmdProgram
from shardalg.spmd.rewrite import blocks

SLICES = frozenset({DynamicSlice, OwnerSelect, Slice, SliceAt})
# Instructions that write their results to memory and read their operands from memory.
APART = frozenset({*kinds(Collective), *kinds(Control)})
# Operators that XLA makes by choosing a layout, or not at all (`optimization_barrier`).
VIEWS = frozenset(("annotate", "name", "optimization_barrier", "reshape", "squeeze", "transpose"))
READS_PART = frozenset(("dynamic_slice", "gather", "slice"))
CAST = "convert_element_type"
# Products that convert their operands and results themselves.
PRODUCTS = frozenset(("conv_general_dilated", "dot_general"))


_CHAINED = VIEWS | PRODUCTS | {CAST}


class Casts(NamedTuple):
    """Casts that are parts of products.

    Attributes:
      read: for each value that products cast when they read it, the value in memory.
      written: for each result that a product casts before it writes it, the value in memory.
      free: results of casts that move no bytes, because the products around them move all.
    """

    read: Mapping[int, int]
    written: Mapping[int, int]
    free: frozenset[int]

    def stored(self, value: int) -> int:
        """Return the value in memory that a product reads or writes in place of a value."""
        return self.read.get(value, self.written.get(value, value))


NO_CASTS = Casts({}, {}, frozenset())


class Update(NamedTuple):
    """An operand that is written into the first operand, and how often its bytes move."""

    position: int
    times: int


# Operators that XLA carries out in place (`xla/service/copy_insertion.h`).
UPDATES = {
    "dynamic_update_slice": Update(1, 1),
    "scatter": Update(2, 1),
    "scatter-add": Update(2, 2),
}
# Operators whose results are their operands, in the same memory.
SAME_BUFFER = frozenset({"annotate", "name", "optimization_barrier"})
BARRIER = "optimization_barrier"
# The name of the sites that mark values which a kernel keeps on the chip.
ON_CHIP = "on_chip"


# Bits of `traits`: the answers of `fuses`, `reduces`, `_expands` and `compute.contracts`.
FUSES, REDUCES, EXPANDS, CONTRACTS = 1, 2, 4, 8


def traits(block: Block, graph: Graph) -> bytes:
    """Return one byte per instruction of a block: the bits of its traits.

    Several passes of a price read the traits. They are computed once per node, and the block
    caches them together with their graph.
    """
    known = vars(block).get("_traits")
    if known is None or known[0] is not graph:
        of_node = _traits_of_nodes(graph)
        found = []
        for instruction in block.instructions:
            kind = type(instruction.attributes)
            if kind is not Apply:
                found.append(0 if kind in APART else FUSES)
            else:
                node = instruction.node
                # An operator without a node is formatting that only the partitioning needs; it
                # fuses.
                found.append(FUSES if node is None else of_node[node])
        known = vars(block)["_traits"] = (graph, bytes(found))
    return known[1]


@once_per_graph
def _traits_of_nodes(graph: Graph) -> bytes:
    known: dict[int, int] = {}
    for node in graph.nodes:
        signature = node.signature
        # The graph keeps its signatures alive, so an `id` is a safe key, and cheaper than a hash.
        if id(signature) not in known:
            kept = CONTRACTS if contracts(signature) else FUSES
            # A kernel reads and writes memory, and nothing is fused with it.
            kept = 0 if is_kernel(signature) else kept
            # A contraction sums too, but as a product in a kernel of its own: it is no reduction
            # here.
            sums = REDUCES if kept == FUSES and _reduces(signature) else 0
            known[id(signature)] = kept | sums | (EXPANDS if _expands(signature) else 0)
    return bytes([known[id(node.signature)] for node in graph.nodes])


def fuses(instruction: Instruction, graph: Graph) -> bool:
    """Return whether an instruction is no contraction, kernel, collective or loop."""
    attributes = instruction.attributes
    if type(attributes) is not Apply:
        return type(attributes) not in APART
    if instruction.node is None:
        return True
    signature = graph.nodes[instruction.node].signature
    return not contracts(signature) and not is_kernel(signature)


def reduces(instruction: Instruction, graph: Graph) -> bool:
    """Return whether an instruction is a reduction."""
    if type(instruction.attributes) is not Apply or instruction.node is None:
        return False
    signature = graph.nodes[instruction.node].signature
    return not contracts(signature) and _reduces(signature)


def unaliased(block: Block) -> tuple[Block, dict[int, int]]:
    """Return a block in which no instruction reads or makes an alias of another value.

    Returns:
      The block, in which operators that only make aliases have no operands and results; and a dict
      from each alias to the value that it is.
    """
    same: dict[int, int] = {}
    found = []
    for instruction in block.instructions:
        operands = instruction.operands
        if not same.keys().isdisjoint(operands):
            operands = tuple(same.get(v, v) for v in operands)
        if getattr(instruction.attributes, "primitive", None) in SAME_BUFFER:
            same.update(zip(instruction.results, operands, strict=True))
            # The instruction stays, because lifetimes are positions in the original block.
            instruction = replace(instruction, operands=(), results=())
        elif operands is not instruction.operands:
            instruction = replace(instruction, operands=operands)
        found.append(instruction)
    results = tuple(same.get(v, v) for v in block.results)
    return replace(block, instructions=tuple(found), results=results), same


def held_back(block: Block) -> frozenset[int]:
    """Return the operands of barriers. They are in memory before the barrier."""
    return frozenset(
        value
        for instruction in block.instructions
        if getattr(instruction.attributes, "primitive", None) == BARRIER
        for value in instruction.operands
    )


def inside_kernels(block: Block, graph: Graph) -> frozenset[int]:
    """Return the values of a block that only fusing instructions make and read."""
    made, read = _made_and_read(block, graph)
    return frozenset(made - read)


@lru_cache(maxsize=65536)
def _reduces(signature: Signature) -> bool:
    return any(rule.reduced and not rule.guards for rule in rules(signature) or ())


@lru_cache(maxsize=65536)
def _expands(signature: Signature) -> bool:
    """Return whether an operator repeats its operand along a result loop (broadcast, iota)."""
    return any(r.result_loops - r.operand_loops and not r.guards for r in rules(signature) or ())


def materialised(block: Block, graph: Graph) -> frozenset[int]:
    """Return the values of a block that a contraction, a collective, a loop or the outside reads.

    The constants of a loop are excluded: a broadcast is made again inside the loop.
    """
    return frozenset(_made_and_read(block, graph)[1])


def _made_and_read(block: Block, graph: Graph) -> tuple[set[int], set[int]]:
    """Return the results of fusing instructions, and the values that others read."""
    made: set[int] = set()
    # Results are read from outside of the block, so they are in memory.
    read: set[int] = set(block.results)
    for instruction, bits in zip(block.instructions, traits(block, graph), strict=True):
        if bits & FUSES:
            made.update(instruction.results)
        else:
            # The leading operands of a loop are its constants, which its body reads.
            loop = instruction.attributes
            read.update(instruction.operands[loop.num_consts if type(loop) is Loop else 0 :])
    return made, read


def fused(program: SpmdProgram, graph: Graph) -> frozenset[int]:
    """Return the values that only pointwise instructions make and read: never in memory."""
    found = [_made_and_read(block, graph) for block in blocks(program.block)]
    made, read = (set().union(*sets) for sets in zip(*found, strict=True))
    return frozenset(made - read)


def casts(program: SpmdProgram, graph: Graph) -> Casts:
    """Return the casts that are parts of products, so that one of their ends is never in memory.

    A cast of a value in memory whose readers are products and fusing operators is repeated in each
    reader: a product reads the value in its stored type. If a cast is the only reader of a product
    and its result has no more bytes, the product writes the cast's result. Layout operators may be
    between the cast and the product. A barrier, a collective or a loop ends the chain.

    Source: the compiler of TPU v5e (libtpu 0.0.42), which compiles these casts into the fusion of
    the product, also those with several readers; XLA for GPUs,
    `xla/service/gpu/triton_tiling_propagation.cc`, IsInputWorthFusing: it accepts every widening
    cast, and a narrowing cast with one reader. A multiplication by a scale after the cast is not
    part of the product there, so it is none here.
    """
    # The program caches the casts, because the time and the memory of a price both read them.
    known = vars(program).get("_casts")
    if known is None or known[0] is not graph:
        found = NO_CASTS
        for block in blocks(program.block):
            one = _casts_of_block(program, graph, block)
            free = found.free | one.free
            found = Casts({**found.read, **one.read}, {**found.written, **one.written}, free)
        known = vars(program)["_casts"] = (graph, found)
    return known[1]


class _Step(NamedTuple):
    """An instruction of a block, whether it fuses, and its primitive."""

    instruction: Instruction
    fuses: bool
    primitive: str | None


def _casts_of_block(program: SpmdProgram, graph: Graph, block: Block) -> Casts:
    """Return the casts of one block; see `casts`."""
    steps = [
        _Step(i, bool(bits & FUSES), getattr(i.attributes, "primitive", None))
        for i, bits in zip(block.instructions, traits(block, graph), strict=True)
    ]
    if all(step.primitive != CAST for step in steps):
        return NO_CASTS
    # The readers of the values between casts and products; all others have no part in a chain.
    readers: dict[int, list[_Step]] = {}
    for step in steps:
        for value in step.instruction.operands:
            if value in readers:
                readers[value].append(step)
        if step.primitive in _CHAINED:
            readers.update((value, []) for value in step.instruction.results)
    multiplied, only = _read_by_products(steps, readers, block.results)
    read: dict[int, int] = {}
    written: dict[int, int] = {}
    free: set[int] = set()
    in_memory = materialised(block, graph)
    fused = {v for s in steps if s.fuses for v in s.instruction.results if v not in in_memory}
    # From the result of a product through views to a value: these values, which nothing else reads.
    chains: dict[int, tuple[int, ...]] = {}
    for instruction, fuses_here, primitive in steps:
        if primitive in PRODUCTS and not fuses_here:
            chains |= {v: (v,) for v in instruction.results}
        if not fuses_here or (primitive not in VIEWS and primitive != CAST):
            continue
        for value, made in viewed(instruction):
            chain = chains.get(value, ()) if primitive != BARRIER else ()
            if chain and (len(readers[value]) > 1 or value in block.results):
                chain = ()
            if primitive != CAST:
                if chain:
                    chains[made] = (*chain, made)
                if value in read and made in multiplied:
                    read[made] = read[value]
                elif value not in fused:
                    # A view of a value in memory is in memory.
                    fused.discard(made)
            elif chain and _itemsize(program, made) <= _itemsize(program, value):
                written |= dict.fromkeys(chain, made)
                free.add(made)
                fused.discard(made)
            elif value not in fused and made in multiplied:
                read[made] = value
                free.update({made} & only)
    return Casts(read, written, frozenset(free))


def _itemsize(program: SpmdProgram, value: int) -> int:
    """Return the bytes of one element of a local value."""
    return ITEM_SIZES.get(program.locals[value].dtype, 4)


def _read_by_products(
    steps: Sequence[_Step], readers: Mapping[int, Sequence[_Step]], results: tuple[int, ...]
) -> tuple[set[int], set[int]]:
    """Return the values that products and perhaps fusing operators read, and those of products.

    A value that a view of it hands on is read by the readers of the view's result.
    """
    inside: set[int] = set()
    read: set[int] = set()
    only: set[int] = set()
    # Backwards, so that the readers of a view's result are known before those of its operand.
    for step in reversed(steps):
        # Only casts and views are asked for, and their readers are known.
        is_chained = step.fuses and step.primitive in _CHAINED
        for value in step.instruction.results if is_chained else ():
            by = readers[value]
            handed = [r.instruction.results[0] for r in by if r.primitive in VIEWS]
            direct = [r for r in by if r.primitive not in VIEWS]
            if (
                value in results
                or any(r.primitive == BARRIER for r in by)
                or not inside.issuperset(handed)
                or not all(r.fuses or r.primitive in PRODUCTS for r in direct)
            ):
                continue
            inside.add(value)
            multiplied = [r for r in direct if r.primitive in PRODUCTS]
            if multiplied or not read.isdisjoint(handed):
                read.add(value)
                if len(multiplied) == len(direct) and only.issuperset(handed):
                    only.add(value)
    return read, only


def on_chip(program: SpmdProgram, graph: Graph) -> frozenset[int]:
    """Return the marked local values, and values of their shape that pointwise operators derive.

    Operands and results of collectives and loops, and the results of blocks, are in memory anyway.
    The scores of an attention function that is one kernel (`costs.kernels.fused_attention`) are on
    the chip too, also where loops hand them on, unless a collective moves them.
    """
    marked = {site.node for site in graph.sites if site.name == ON_CHIP}
    scores = fused_attention(graph).on_chip
    if not marked and not scores:
        return frozenset()
    steps = [step.instruction for step in walk(program)]
    sent = {
        program.locals[value].origin
        for instruction in steps
        if isinstance(instruction.attributes, Collective)
        for value in (*instruction.operands, *instruction.results)
    }
    inner = scores - handed_together(graph, scores & sent) if scores & sent else scores
    never = {local.index for local in program.locals if local.origin in inner}
    found: set[int] = {*never}
    read = {value for block in blocks(program.block) for value in block.results}
    same: dict[int, int] = {}
    for instruction in steps:
        if getattr(instruction.attributes, "primitive", None) in SAME_BUFFER:
            same.update(zip(instruction.results, instruction.operands, strict=True))
        if type(instruction.attributes) in APART:
            read.update((*instruction.operands, *instruction.results))
        elif instruction.node in marked:
            # A mark is an annotation, whose operand and result are the same value.
            found.update((*instruction.operands, *instruction.results))
        elif fuses(instruction, graph):
            shapes = {program.locals[v].shape for v in instruction.operands if v in found}
            found.update(v for v in instruction.results if program.locals[v].shape in shapes)
    # An alias that is in memory is the value that it aliases. Reversed, because an alias may be one
    # of another alias.
    for value in reversed(same):
        if value in read:
            read.add(same[value])
    return frozenset(found - read).union(never)


def unwritten(program: SpmdProgram, graph: Graph) -> frozenset[int]:
    """Return the values that no instruction reads from or writes to memory.

    They are the fused values, the values that products cast (`casts`), and the values that stay on
    the chip. A view (`is_view`) of a value in memory is in memory too.
    """
    cast = casts(program, graph)
    # A product writes the cast of its result, so that the cast's result is in memory.
    inside = {*fused(program, graph)}.difference(cast.written.values())
    inside |= rebuilt_stacks(program, graph)
    for step in walk(program):
        if is_view(step.instruction):
            for value, made in viewed(step.instruction):
                if value not in inside:
                    inside.discard(made)
    return on_chip(program, graph).union(inside, cast.read, cast.written)


def kernel_bytes(program: SpmdProgram, graph: Graph, instruction: Instruction) -> Any:
    """Return the bytes that a kernel with a price moves; None for any other instruction."""
    if type(instruction.attributes) is not Apply or instruction.node is None:
        return None
    signature = graph.nodes[instruction.node].signature
    price = price_of(signature)
    if price is None or price.bytes is None:
        return None
    values = (*instruction.operands, *instruction.results)
    return at_shapes(price.bytes, signature, tuple(program.locals[v].shape for v in values))


def is_view(instruction: Instruction) -> bool:
    """Return whether an instruction only changes its operand's layout (a free operator in XLA)."""
    attributes = instruction.attributes
    return type(attributes) is Apply and attributes.primitive in VIEWS


def viewed(instruction: Instruction) -> Iterator[tuple[int, int]]:
    """Return pairs of an operand of a view and the result that is a view of the operand."""
    return zip(instruction.operands, instruction.results, strict=False)


def traffic(instruction: Instruction, inside: frozenset[int], cast: Casts = NO_CASTS) -> list[int]:
    """Return the values whose bytes an instruction moves, repeated if the bytes move repeatedly.

    A slice or gather reads as many bytes as it makes, not its whole operand. An update writes only
    the new part into the updated value. A view of a value in memory moves nothing.

    Args:
      inside: values that are never in memory, as `unwritten` gives them.
      cast: the casts that products carry out.
    """
    if not cast.free.isdisjoint(instruction.results):
        return []
    attributes = instruction.attributes
    primitive = attributes.primitive if type(attributes) is Apply else None
    if is_view(instruction):
        # Bytes move only if one end is in memory and the other is not.
        pairs = [pair for pair in viewed(instruction) if (pair[0] in inside) != (pair[1] in inside)]
        return [made if value in inside else value for value, made in pairs]
    if type(attributes) in SLICES or primitive in READS_PART:
        # The part is read from the operand and written as the result: each end in memory costs
        # once.
        ends = (*instruction.operands[:1], *instruction.results)
        moved = [instruction.results[0] for value in ends if value not in inside]
        return moved + [v for v in instruction.operands[1:] if v not in inside]
    # A value that is read twice moves once.
    values = dict.fromkeys((*instruction.operands, *instruction.results))
    if primitive in PRODUCTS:
        values = dict.fromkeys(map(cast.stored, values))
    update = UPDATES.get(primitive or "")
    if update is not None and inside.isdisjoint((instruction.operands[0], *instruction.results)):
        # An accumulating scatter reads the old numbers before it writes, so their bytes move twice.
        written = [instruction.operands[update.position]] * update.times
        return written + [v for v in instruction.operands[1:] if v not in inside]
    return [value for value in values if value not in inside]


def rebuilt_stacks(program: SpmdProgram, graph: Graph) -> frozenset[int]:
    """Return the values in loop bodies that reach another loop through a stack, with arguments.

    Constants of loops that are made again inside are returned too. The forward loop of a scanned
    model writes what the backward loop reads into stacks:

        forward loop:  x -> v = f(x) -> stack v          backward loop:  v of the stack -> g(v)

    If f and g are pointwise, an unrolled program keeps x alone and runs f again in front of g,
    because fused operators have no results in memory. So it is here: the scanned and the unrolled
    program have one price. The stack still counts in the memory of a device (`costs.memory`).
    """
    found: set[int] = set()
    for block in blocks(program.block):
        found.update(_of_block(block, graph))
    return frozenset(found)


def _of_block(block: Block, graph: Graph) -> set[int]:
    """Return the values of the loops of one block that are rebuilt."""
    loops = [one for one in block.instructions if is_a(one, Loop)]
    if not loops:
        return set()
    kept = {id(loop): _read_outside(loop.attributes.body, graph) for loop in loops}
    # Readers of each stack: arguments of later bodies, or None for any other reader.
    readers: dict[int, list[tuple[int, int] | None]] = defaultdict(list)
    for instruction in block.instructions:
        for place, operand in enumerate(instruction.operands):
            reader: tuple[int, int] | None = None
            if is_a(instruction, Loop):
                attributes = instruction.attributes
                if place >= attributes.num_consts + attributes.num_carry:
                    reader = id(instruction), attributes.body.arguments[place]
            readers[operand].append(reader)
    for result in block.results:
        readers[result].append(None)
    found: set[int] = set()
    # A constant of a loop that fused instructions make, such as a mask, is made again in its body.
    made, read = _made_and_read(block, graph)
    for loop in loops:
        for place in range(loop.attributes.num_consts):
            argument = loop.attributes.body.arguments[place]
            is_fused = loop.operands[place] in made and loop.operands[place] not in read
            if is_fused and argument not in kept[id(loop)]:
                found.add(argument)
    for loop in loops:
        body, carries = loop.attributes.body, loop.attributes.num_carry
        inner = {v for one in body.instructions for v in one.results}
        for place in range(carries, len(body.results)):
            value, taken = body.results[place], readers[loop.results[place]]
            # A value that the body gives away twice, or that is an argument, stays in memory.
            is_alone = value in inner and body.results.count(value) == 1
            if not is_alone or value in kept[id(loop)] or not taken:
                continue
            arguments = [one for one in taken if one is not None and one[1] not in kept[one[0]]]
            if len(arguments) == len(taken):
                found.update((value, *(argument for _, argument in arguments)))
    return found


def _read_outside(body: Block, graph: Graph) -> frozenset[int]:
    """Return the values of a body that instructions which do not fuse make or read."""
    # The results of the body do not count: they are what this module asks about.
    inner = Block(body.arguments, body.instructions, ())
    made_apart = {
        value for one in body.instructions if not fuses(one, graph) for value in one.results
    }
    return materialised(inner, graph) | made_apart
