"""Local values that a compiler never writes to memory, because it fuses the operators around them.

A compiler such as XLA runs a chain of pointwise operators as one kernel, which writes only its last
result. A cast of a product's operand or result is part of the product's kernel (`casts`).
`annotate(scores, "on_chip")` says that the operators around a value are one kernel that computes it
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
APART = frozenset({*kinds(Collective), *kinds(Control)})
"""Instructions that no compiler fuses: their operands and results are in memory."""
VIEWS = frozenset(("annotate", "name", "optimization_barrier", "reshape", "squeeze", "transpose"))
"""Operators that move no bytes in XLA: it only chooses another layout, or does nothing."""
READS_PART = frozenset(("dynamic_slice", "gather", "slice"))
CAST = "convert_element_type"
PRODUCTS = frozenset(("conv_general_dilated", "dot_general"))
"""Only the kernels of these products convert the type of operands and results while they run."""


_CHAINED = VIEWS | PRODUCTS | {CAST}


class Casts(NamedTuple):
    """Casts that the kernel of a product carries out; all values are numbers of local values.

    Attributes:
      read: for each cast operand of a product (or a view of it), the value before the cast. Only
        that value is in memory.
      written: for each product's result that is cast (or a view of it), the value after the cast.
        Only that value is in memory.
      free: results of casts that move no bytes of their own, because all readers or the producer
        are products.
    """

    read: Mapping[int, int]
    written: Mapping[int, int]
    free: frozenset[int]

    def stored(self, value: int) -> int:
        """Return the local value that is in memory in place of an operand or a result of a product.

        It is the operand before its cast, or the result after its cast. Without a cast, it is the
        value itself.
        """
        return self.read.get(value, self.written.get(value, value))


NO_CASTS = Casts({}, {}, frozenset())


class Update(NamedTuple):
    """Memory traffic of an operator that overwrites a part of its first operand.

    Attributes:
      position: the position of the operand that has the new elements.
      times: the number of times that the bytes of the new elements move.
    """

    position: int
    times: int


UPDATES = {
    "dynamic_update_slice": Update(1, 1),
    "scatter": Update(2, 1),
    "scatter-add": Update(2, 2),
}
"""Operators that XLA carries out in place (`xla/service/copy_insertion.h`)."""
SAME_BUFFER = frozenset({"annotate", "name", "optimization_barrier"})
"""Operators whose result is their operand in the same memory, so that it takes none itself."""
BARRIER = "optimization_barrier"
ON_CHIP = "on_chip"
"""The name of the sites that mark values which a kernel keeps on the chip."""


# Bits of `traits`. One byte per instruction holds all four answers, because several passes of
# a price ask for them: see `fuses`, `reduces`, `_expands` and `compute.contracts`.
FUSES, REDUCES, EXPANDS, CONTRACTS = 1, 2, 4, 8


def traits(block: Block, graph: Graph) -> bytes:
    """Return one byte per instruction of a block, in which bits tell how it can be fused.

    The bits are `FUSES`, `REDUCES`, `EXPANDS` (repeats its operand, as a broadcast does) and
    `CONTRACTS` (a sum of products).
    """
    # Several passes of a price ask for the traits, so the block caches them with their graph.
    cached = vars(block).get("_traits")
    if cached is None or cached[0] is not graph:
        of_node = _traits_of_nodes(graph)
        found = []
        for instruction in block.instructions:
            kind = type(instruction.attributes)
            if kind is not Apply:
                found.append(0 if kind in APART else FUSES)
            else:
                node = instruction.node
                # The partitioning adds operators that belong to no graph node, to cut or pad
                # blocks. Compilers fuse these.
                found.append(FUSES if node is None else of_node[node])
        cached = vars(block)["_traits"] = (graph, bytes(found))
    return cached[1]


@once_per_graph
def _traits_of_nodes(graph: Graph) -> bytes:
    """Return one byte per node of a graph, in which bits tell how it can be fused (`traits`)."""
    of_signature: dict[int, int] = {}
    for node in graph.nodes:
        signature = node.signature
        # The graph keeps its signatures alive, so an `id` is a safe key, and cheaper than a hash.
        if id(signature) not in of_signature:
            bits = CONTRACTS if contracts(signature) else FUSES
            # A call of an opaque kernel (Pallas, FFI) reads and writes memory, because a compiler
            # cannot fuse other operators into code that it does not see.
            bits = 0 if is_kernel(signature) else bits
            # A contraction sums too, but as a product in a kernel of its own: it is no reduction
            # here.
            sums = REDUCES if bits == FUSES and _reduces(signature) else 0
            of_signature[id(signature)] = bits | sums | (EXPANDS if _expands(signature) else 0)
    return bytes([of_signature[id(node.signature)] for node in graph.nodes])


def fuses(instruction: Instruction, graph: Graph) -> bool:
    """Return whether a compiler can fuse an instruction with its neighbours.

    It can fuse all instructions except contractions, opaque kernels, collectives, loops and
    branches.
    """
    attributes = instruction.attributes
    if type(attributes) is not Apply:
        return type(attributes) not in APART
    if instruction.node is None:
        return True
    signature = graph.nodes[instruction.node].signature
    return not contracts(signature) and not is_kernel(signature)


def reduces(instruction: Instruction, graph: Graph) -> bool:
    """Return whether an instruction is a reduction, such as `reduce_sum`, but no contraction."""
    if type(instruction.attributes) is not Apply or instruction.node is None:
        return False
    signature = graph.nodes[instruction.node].signature
    return not contracts(signature) and _reduces(signature)


def without_aliases(block: Block) -> tuple[Block, dict[int, int]]:
    """Return a block in which every operand that is an alias is replaced by its original value.

    An alias is a result that shares the memory of an operand, such as that of a barrier.

    Returns:
      The block, in which operators that only produce aliases have no operands and results; and
      a dictionary from each alias to its original value.
    """
    original_of: dict[int, int] = {}
    instructions = []
    for instruction in block.instructions:
        operands = instruction.operands
        if not original_of.keys().isdisjoint(operands):
            # Operands come before their readers, so `original_of` never leads to another alias.
            operands = tuple(original_of.get(v, v) for v in operands)
        if getattr(instruction.attributes, "primitive", None) in SAME_BUFFER:
            original_of.update(zip(instruction.results, operands, strict=True))
            # The instruction stays, because lifetimes are positions in the original block.
            instruction = replace(instruction, operands=(), results=())
        elif operands is not instruction.operands:
            instruction = replace(instruction, operands=operands)
        instructions.append(instruction)
    results = tuple(original_of.get(v, v) for v in block.results)
    return replace(block, instructions=tuple(instructions), results=results), original_of


def held_back(block: Block) -> frozenset[int]:
    """Return the operands of the optimization barriers in a block.

    A compiler does not fuse across a barrier, so these values are in memory.
    """
    return frozenset(
        value
        for instruction in block.instructions
        if getattr(instruction.attributes, "primitive", None) == BARRIER
        for value in instruction.operands
    )


def inside_kernels(block: Block, graph: Graph) -> frozenset[int]:
    """Return the values of a block whose producer and readers are all fusing instructions.

    Such a value can stay inside of one kernel.
    """
    made, read = _made_and_read(block, graph)
    return frozenset(made - read)


@lru_cache(maxsize=65536)
def _reduces(signature: Signature) -> bool:
    """Return whether an operator combines several elements of its operand into one."""
    return any(rule.reduced and not rule.guards for rule in rules(signature) or ())


@lru_cache(maxsize=65536)
def _expands(signature: Signature) -> bool:
    """Return whether an operator repeats elements of its operand, as a broadcast does."""
    return any(r.result_loops - r.operand_loops and not r.guards for r in rules(signature) or ())


def values_in_memory(block: Block, graph: Graph) -> frozenset[int]:
    """Return the values of a block that must be in memory because of their readers.

    The readers are contractions, kernels, collectives, loops, and the results of the block. Values
    that are only constants of a loop are excluded, because the loop's body can recompute them.
    """
    return frozenset(_made_and_read(block, graph)[1])


def _made_and_read(block: Block, graph: Graph) -> tuple[set[int], set[int]]:
    """Return two sets: results of fusing instructions, and values that other instructions read."""
    made: set[int] = set()
    # Results are read from outside of the block, so they are in memory.
    read: set[int] = set(block.results)
    for instruction, bits in zip(block.instructions, traits(block, graph), strict=True):
        if bits & FUSES:
            made.update(instruction.results)
        else:
            # A loop's constants come first. They need not be in memory because of the loop: if
            # they are cheap, its body computes them again.
            loop = instruction.attributes
            read.update(instruction.operands[loop.num_consts if type(loop) is Loop else 0 :])
    return made, read


def fused(program: SpmdProgram, graph: Graph) -> frozenset[int]:
    """Return the values of a program whose producer and readers are all fusing instructions.

    A compiler with fusion never writes them to memory.
    """
    found = [_made_and_read(block, graph) for block in blocks(program.block)]
    made, read = (set().union(*sets) for sets in zip(*found, strict=True))
    return frozenset(made - read)


def casts(program: SpmdProgram, graph: Graph) -> Casts:
    """Return the casts that the kernels of products carry out.

    A cast of an operand: if all readers of the cast's result are products and fusing operators,
    each reader casts the value itself, so that the result is never in memory. A cast of a product's
    result: if nothing else reads the product and the cast's result has no more bytes, the product
    writes the cast's result. Layout operators may be between the cast and the product, but no
    barrier, collective or loop.

    Source: the compiler of TPU v5e (libtpu 0.0.42), which compiles these casts into the fusion of
    the product, also those with several readers; XLA for GPUs,
    `xla/service/gpu/triton_tiling_propagation.cc`, IsInputWorthFusing: it accepts every widening
    cast, and a narrowing cast with one reader. A multiplication by a scale after the cast is not
    part of the product there, so it is none here.
    """
    # The program caches the casts, because the time and the memory of a price both read them.
    cached = vars(program).get("_casts")
    if cached is None or cached[0] is not graph:
        found = NO_CASTS
        for block in blocks(program.block):
            inner = _casts_of_block(program, graph, block)
            free = found.free | inner.free
            found = Casts({**found.read, **inner.read}, {**found.written, **inner.written}, free)
        cached = vars(program)["_casts"] = (graph, found)
    return cached[1]


class _Step(NamedTuple):
    """An instruction of a block, with two of its properties that the search reads repeatedly.

    Attributes:
      instruction: the instruction.
      fuses: whether a compiler can fuse it with its neighbours.
      primitive: name of its JAX primitive; None if it is no operator.
    """

    instruction: Instruction
    fuses: bool
    primitive: str | None


def _casts_of_block(program: SpmdProgram, graph: Graph, block: Block) -> Casts:
    """Return the casts in one block that the kernels of products carry out; see `casts`.

    One pass over the instructions follows two kinds of paths. From a product forwards: its result,
    through views, to a cast; the product then writes the cast's result (`written`). From a cast
    forwards, through views, to products: these read the value before the cast (`read`). The result
    of a cast whose bytes nobody moves is `free`.
    """
    steps = [
        _Step(i, bool(bits & FUSES), getattr(i.attributes, "primitive", None))
        for i, bits in zip(block.instructions, traits(block, graph), strict=True)
    ]
    if all(step.primitive != CAST for step in steps):
        return NO_CASTS
    # Only results of casts, views and products can be between a cast and a product, so that the
    # readers of all other values are not needed.
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
    in_memory = values_in_memory(block, graph)
    fused = {v for s in steps if s.fuses for v in s.instruction.results if v not in in_memory}
    # For a product's result, or a view of it: the result and all views up to this value. There is
    # an entry only if nothing else reads them, since then nobody misses them in memory.
    chains: dict[int, tuple[int, ...]] = {}
    for instruction, fuses_here, primitive in steps:
        if primitive in PRODUCTS and not fuses_here:
            chains |= {v: (v,) for v in instruction.results}
        if not fuses_here or (primitive not in VIEWS and primitive != CAST):
            continue
        for value, result in view_pairs(instruction):
            # A barrier, a second reader, or the end of the block ends a chain: the value before it
            # is needed in memory.
            chain = chains.get(value, ()) if primitive != BARRIER else ()
            if chain and (len(readers[value]) > 1 or value in block.results):
                chain = ()
            # A view moves no bytes, so it continues the chain from a product, or the way from a
            # cast to a product.
            if primitive != CAST:
                if chain:
                    chains[result] = (*chain, result)
                if value in read and result in multiplied:
                    read[result] = read[value]
                elif value not in fused:
                    # A view shares the memory of its operand, so it is in memory as well.
                    fused.discard(result)
            # A product writes the cast of its result instead of the result, unless the cast would
            # make it write more bytes.
            elif chain and _itemsize(program, result) <= _itemsize(program, value):
                written |= dict.fromkeys(chain, result)
                free.add(result)
                fused.discard(result)
            # Products can cast what they read, so they read the value before the cast from memory.
            elif value not in fused and result in multiplied:
                read[result] = value
                free.update({result} & only)
    return Casts(read, written, frozenset(free))


def _itemsize(program: SpmdProgram, value: int) -> int:
    """Return the bytes of one element of a local value."""
    return ITEM_SIZES.get(program.locals[value].dtype, 4)


def _read_by_products(
    steps: Sequence[_Step], readers: Mapping[int, Sequence[_Step]], results: tuple[int, ...]
) -> tuple[set[int], set[int]]:
    """Return the results of casts and views that products read: with other readers, and without.

    A value in the first set is read by a product, and perhaps by fusing operators. A value in the
    second set is read by products only. A view's readers count as readers of its operand too.

    Args:
      readers: for each result of a cast, view or product, the instructions that read it.
      results: values that the block returns; they are in neither set.
    """
    inside: set[int] = set()
    read: set[int] = set()
    only: set[int] = set()
    # Backwards, so that the readers of a view's result are known before those of its operand.
    for step in reversed(steps):
        # Products are in `_CHAINED` too, but they do not fuse: only casts and views are wanted.
        is_chained = step.fuses and step.primitive in _CHAINED
        for value in step.instruction.results if is_chained else ():
            views = [r.instruction.results[0] for r in readers[value] if r.primitive in VIEWS]
            direct = [r for r in readers[value] if r.primitive not in VIEWS]
            # Any other reader than a product or a fusing operator needs the value in memory.
            if (
                value in results
                or any(r.primitive == BARRIER for r in readers[value])
                or not inside.issuperset(views)
                or not all(r.fuses or r.primitive in PRODUCTS for r in direct)
            ):
                continue
            inside.add(value)
            multiplied = [r for r in direct if r.primitive in PRODUCTS]
            if multiplied or not read.isdisjoint(views):
                read.add(value)
                if len(multiplied) == len(direct) and only.issuperset(views):
                    only.add(value)
    return read, only


def on_chip(program: SpmdProgram, graph: Graph) -> frozenset[int]:
    """Return the local values that kernels compute block by block and never write to memory.

    They are values with the annotation "on_chip", and results of fusing operators that have the
    shape of such an operand. Operands and results of collectives and loops, and the results of
    blocks, are in memory nevertheless. The scores of fused attention (`fused_attention`) are on the
    chip too, also as arguments and results of loops, unless a collective moves them.
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
    # Scores that a collective sends are in memory, and so are all values that are equal to them.
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
            # The annotation "on_chip" returns its operand, so both have no memory.
            found.update((*instruction.operands, *instruction.results))
        elif fuses(instruction, graph):
            shapes = {program.locals[v].shape for v in instruction.operands if v in found}
            found.update(v for v in instruction.results if program.locals[v].shape in shapes)
    # If an alias is in memory, so is its original value, which has the same buffer. Reversed,
    # because an alias may have an alias.
    for value in reversed(same):
        if value in read:
            read.add(same[value])
    return frozenset(found - read).union(never)


def values_not_in_memory(program: SpmdProgram, graph: Graph) -> frozenset[int]:
    """Return the local values of a program that are never in memory.

    They are the values inside of fused kernels, the values that products cast (`casts`), and the
    values that attention kernels keep on the chip. A view of a value in memory is in memory too.
    """
    cast = casts(program, graph)
    # A product writes the cast of its result, so that the cast's result is in memory.
    inside = {*fused(program, graph)}.difference(cast.written.values())
    inside |= rebuilt_stacks(program, graph)
    for step in walk(program):
        if is_view(step.instruction):
            for value, made in view_pairs(step.instruction):
                if value not in inside:
                    inside.discard(made)
    return on_chip(program, graph).union(inside, cast.read, cast.written)


def kernel_bytes(program: SpmdProgram, graph: Graph, instruction: Instruction) -> Any:
    """Return the bytes that an opaque kernel moves, as its price says.

    The result is None if the instruction calls no kernel, or if the price gives no bytes.
    """
    if type(instruction.attributes) is not Apply or instruction.node is None:
        return None
    signature = graph.nodes[instruction.node].signature
    price = price_of(signature)
    if price is None or price.bytes is None:
        return None
    values = (*instruction.operands, *instruction.results)
    return at_shapes(price.bytes, signature, tuple(program.locals[v].shape for v in values))


def is_view(instruction: Instruction) -> bool:
    """Return whether an instruction moves no bytes in XLA: it only changes shape or layout."""
    attributes = instruction.attributes
    return type(attributes) is Apply and attributes.primitive in VIEWS


def view_pairs(instruction: Instruction) -> Iterator[tuple[int, int]]:
    """Return pairs (operand, result) of an operator that only views memory, such as a reshape."""
    return zip(instruction.operands, instruction.results, strict=False)


def traffic(instruction: Instruction, inside: frozenset[int], cast: Casts = NO_CASTS) -> list[int]:
    """Return the values whose bytes an instruction moves from or to memory.

    A value whose bytes move twice is in the list twice. A slice or gather reads as many bytes as
    its result has, not its whole operand. An update writes only the new part. A view of a value in
    memory moves nothing.

    Args:
      inside: values that are never in memory (the result of `values_not_in_memory`).
      cast: the casts that the kernels of products carry out.
    """
    if not cast.free.isdisjoint(instruction.results):
        return []
    attributes = instruction.attributes
    primitive = attributes.primitive if type(attributes) is Apply else None
    if is_view(instruction):
        # Two values in memory share it, and two values outside of memory stay in one kernel. So
        # bytes move only if one of them is in memory and the other is not.
        pairs = [
            pair for pair in view_pairs(instruction) if (pair[0] in inside) != (pair[1] in inside)
        ]
        return [made if value in inside else value for value, made in pairs]
    if type(attributes) in SLICES or primitive in READS_PART:
        # The part is read from the operand and written as the result: each end in memory costs
        # once.
        ends = (*instruction.operands[:1], *instruction.results)
        moved = [instruction.results[0] for value in ends if value not in inside]
        return moved + [v for v in instruction.operands[1:] if v not in inside]
    # A kernel reads a value from memory once, even if the value is two of its operands.
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
    """Return the values in loop bodies that move no bytes, because another body recomputes them.

    The forward loop of a scanned model writes values for the backward loop into stacks:

        forward loop:  x -> v = f(x) -> stack v          backward loop:  v of the stack -> g(v)

    If f and g are pointwise, an unrolled program keeps only x and runs f again in front of g,
    because fused operators have no results in memory. To give the scanned program the same time,
    both v in the forward body and its slice in the backward body are returned. So are arguments of
    a body that are loop constants which fused instructions compute, such as a mask. The stack still
    counts in the memory of a device (`costs.memory`).
    """
    found: set[int] = set()
    for block in blocks(program.block):
        found.update(_of_block(block, graph))
    return frozenset(found)


def _of_block(block: Block, graph: Graph) -> set[int]:
    """Return the values in the bodies of a block's loops that move no bytes to or from memory.

    The kinds of such values are described in `rebuilt_stacks`. Loops inside of these bodies are not
    visited.
    """
    loops = [one for one in block.instructions if is_a(one, Loop)]
    if not loops:
        return set()
    # Per loop, the values of its body that are in memory anyway, because an instruction that does
    # not fuse reads or computes them.
    kept = {id(loop): _read_outside(loop.attributes.body, graph) for loop in loops}
    # A stack moves no bytes only if all its readers are bodies of later loops. Such a reader is
    # recorded as (`id` of the loop, argument of its body), and any other reader as None.
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
    # A loop constant that fused instructions compute, such as a mask, is cheap. The body computes
    # it again instead of reading it from memory.
    made, read = _made_and_read(block, graph)
    for loop in loops:
        for place in range(loop.attributes.num_consts):
            argument = loop.attributes.body.arguments[place]
            is_fused = loop.operands[place] in made and loop.operands[place] not in read
            if is_fused and argument not in kept[id(loop)]:
                found.add(argument)
    # A body's results are its carry, then one value per stack that the loop returns.
    for loop in loops:
        body, carries = loop.attributes.body, loop.attributes.num_carry
        inner = {v for one in body.instructions for v in one.results}
        for place in range(carries, len(body.results)):
            value, taken = body.results[place], readers[loop.results[place]]
            # A value that the body returns twice is needed by another result, and an argument by
            # the code around the loop, so both stay in memory.
            is_alone = value in inner and body.results.count(value) == 1
            if not is_alone or value in kept[id(loop)] or not taken:
                continue
            arguments = [one for one in taken if one is not None and one[1] not in kept[one[0]]]
            if len(arguments) == len(taken):
                found.update((value, *(argument for _, argument in arguments)))
    return found


def _read_outside(body: Block, graph: Graph) -> frozenset[int]:
    """Return the values of a loop body that an instruction without fusion produces or reads."""
    # The results of the body do not count as read, because the caller decides about them.
    inner = Block(body.arguments, body.instructions, ())
    made_apart = {
        value for one in body.instructions if not fuses(one, graph) for value in one.results
    }
    return values_in_memory(inner, graph) | made_apart
