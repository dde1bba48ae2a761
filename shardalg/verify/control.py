"""Instructions that hold blocks: what goes in, around and out is one value in one layout.

Rings of products: the body is proved as any block, and the ring to be what the body says.

An all-gather is the blocks of all members side by side, and a product of plain loops is, block by
block of one loop, the products of the blocks: written side by side where the result has the loop,
added up where it is summed. So the ring is right where each product is of the block that came by,
every block comes by once, and the directions together are whole blocks. A reduce-scatter leaves
each member the sum of all members' products of its own block: the sum that comes by is of the block
whose product is added to it, the last one is the device's own, and every member adds to it once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from shardalg.algebra.sharding import Sharding
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import SUM, Rule
from shardalg.merge.proofs.integers import IntegerClaim, Not, Number, equal, implies
from shardalg.spmd.bound import node_of
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.instructions import (
    Branches,
    CollectiveMatmul,
    Direction,
    Loop,
    Manual,
    ReduceScatter,
    While,
)
from shardalg.spmd.manual import manual_layouts
from shardalg.verify import contents
from shardalg.verify.contents import Contents, at_border, laid_out, partition_number
from shardalg.verify.report import MANUAL, TRUSTED, Claim, Decided, Statement
from shardalg.verify.verifier import Held, Verifier, claims

T, U = Number.of("t"), Number.of("u")


@claims(CollectiveMatmul)
def _collective_matmul(
    verifier: Verifier, instruction: Instruction[CollectiveMatmul], held: Held
) -> Iterator[Claim]:
    ring, name = instruction.attributes, verifier.name(instruction)
    yield verifier.judged(name, "ring", _one_for_another(instruction))
    inner = {local: held[local] for local in instruction.operands}
    yield from verifier.block(ring.body, inner)
    held.update((local, inner[local]) for local in instruction.results)
    for statement in (
        _splits(verifier, ring),
        _whole(verifier, ring),
        *_goes_round(verifier, ring),
    ):
        yield verifier.judged(name, "ring", statement)


def _one_for_another(instruction: Instruction[CollectiveMatmul]) -> Decided:
    """The body hands nothing on but from one instruction to the other, once, and its result."""
    ring = instruction.attributes
    body = ring.body
    first, second = body.instructions
    border = (body.arguments, body.results) == (instruction.operands, instruction.results)
    handed = len(first.results) == 1 and second.operands.count(first.results[0]) == 1
    alone = second.results == body.results and len(body.results) == 1
    inside = first.results != body.results and first.results[0] not in body.arguments
    words = "the two read what the ring reads, one hands its result to the other, once"
    return Decided(words, border and handed and alone and inside)


def _splits(verifier: Verifier, ring: CollectiveMatmul) -> Decided:
    """What is cut of operands and result is one plain loop of the product, and all it has of it."""
    product, collective = ring.product, ring.collective
    dim, words = collective.attributes.dim, "blocks are cut along one loop of the product"
    node = node_of(verifier.graph, product)
    (rule,) = rules(node.signature) or ()
    if ring.gathers:
        (number,) = [
            k for k, local in enumerate(product.operands) if local == collective.results[0]
        ]
    else:
        number = -1
        sums = collective.attributes
        if not isinstance(sums, ReduceScatter) or sums.combine != SUM:
            return Decided(f"{words}, whose sums are scattered", holds=False)
    where = ring.along[number] if len(ring.along) == len(product.operands) + 1 else None
    found = [cut for name in rule.extents if (cut := _cut(rule, name)) == ring.along]
    plain = product.attributes.primitive == node.signature.primitive == "dot_general"
    dtype = verifier.program.locals[product.results[0]].dtype
    return Decided(words, plain and where == dim and bool(found) and dtype != "bool")


def _cut(rule: Rule, name: str) -> tuple[int | None, ...] | None:
    """Per operand and result of a product the dimension that is a loop; None of a whole loop."""
    tensors = [*(rule.operands[k] for k in sorted(rule.operands)), *rule.results]
    if name in rule.whole | rule.local or rule.combine != SUM:
        return None
    dims = [[d for d, index in enumerate(indices) if index.loop == name] for indices in tensors]
    return tuple(found[0] if found else None for found in dims)


def _whole(verifier: Verifier, ring: CollectiveMatmul) -> Decided:
    """Directions lie side by side in a block, and blocks in what they are cut from."""
    held, n = verifier.program.locals, ring.members
    moving = ring.collective.operands if ring.gathers else ring.collective.results
    block = held[moving[0]].shape[ring.collective.attributes.dim]
    values = (*ring.product.operands, *ring.product.results)
    lengths = {
        held[local].shape[dim]
        for local, dim in zip(values, ring.along, strict=True)
        if dim is not None
    }
    ends = sorted((d.first, d.first + d.size) for d in ring.directions)
    borders = [0, *(end for _, end in ends)]
    side_by_side = all(first == end for (first, _), end in zip(ends, borders, strict=False))
    some = bool(ring.directions) and all(d.size > 0 for d in ring.directions)
    words = f"the directions are blocks of {block}, of which there are {n}"
    return Decided(words, side_by_side and some and borders[-1] == block and lengths == {n * block})


def _goes_round(verifier: Verifier, ring: CollectiveMatmul) -> Iterator[Statement]:
    n, mesh = ring.members, verifier.program.mesh
    for direction in ring.directions:
        words = f"products of [{direction.first}, {direction.first + direction.size}) of a block"
        count = direction.products
        yield Decided(f"{words}: one per member", count == n)
        low = all(abs(k) < max(n, 2) for k in (direction.hop, direction.start, direction.step))
        yield Decided(f"{words}: counted as members are", low)
        apart = implies(
            Not(equal(T, U)), Not(equal(T * direction.step % n, U * direction.step % n))
        )
        yield IntegerClaim(
            f"{words}: every member's once", mesh, apart, (("t", count), ("u", count))
        )
        yield from _meets(verifier, ring, direction)


def _meets(
    verifier: Verifier, ring: CollectiveMatmul, direction: Direction
) -> Iterator[IntegerClaim]:
    """What came by, and what it is multiplied with or added to, are of one block."""
    n, own, mesh = ring.members, partition_number(ring.ring), verifier.program.mesh
    hop, last = direction.hop, direction.products - 1

    def block(p: Number, t: Number) -> Number:
        return (p + t * direction.step + direction.start) % n

    if ring.gathers:
        words = "product t is of the block that came t permutes far"
        goal = equal(block(own, T), (own + T * hop) % n)
        yield IntegerClaim(words, mesh, goal, (("t", direction.products),))
        return
    words = "the sum that comes by is of the block of product t + 1"
    goal = equal(block((own + hop) % n, T), block(own, T + 1))
    yield IntegerClaim(words, mesh, goal, (("t", max(last, 1)),))
    words = "the last product is of the device's own block"
    yield IntegerClaim(words, mesh, equal(block(own, Number.of(last)), own))


WHILE_PARAMS = ("cond_nconsts", "body_nconsts")
LOOP_PARAMS = ("num_consts", "num_carry", "length", "reverse")


@claims(Loop)
def _loop(verifier: Verifier, instruction: Instruction[Loop], held: Held) -> Iterator[Claim]:
    """A scan: what goes in, around and out has one layout on both sides of each border."""
    loop, graph = instruction.attributes, verifier.graph
    node = node_of(graph, instruction)
    region = graph.regions[node.bodies[0]]
    name, fixed = verifier.name(instruction), loop.num_consts + loop.num_carry
    inner = verifier.constants()
    said = tuple(node.signature.param(n) for n in LOOP_PARAMS)
    runs = (loop.num_consts, loop.num_carry, loop.length, loop.reverse)
    words = f"the loop runs {loop.length} times over what the scan carries"
    yield verifier.judged(name, "carry", Decided(words, tuple(map(int, said)) == runs))
    pairs = zip(loop.body.arguments, region.arguments, strict=True)
    for number, (local, value) in enumerate(pairs):
        inner[local] = verifier.said(local)
        yield verifier.named("carry", local, value)
        outer = held[instruction.operands[number]]
        wanted = _around(inner[local], node.operands[number], loop, number >= fixed)
        yield _alike(verifier, name, outer, wanted)
    outside = verifier.finite
    verifier.finite = outside or verifier.finite_in_loops
    yield from verifier.block(loop.body, inner)
    verifier.finite = outside
    pairs = zip(loop.body.results, region.results, strict=True)
    for number, (local, value) in enumerate(pairs):
        carry = number < loop.num_carry
        layout = (
            _carried(verifier, loop, number) if carry else verifier.program.locals[local].sharding
        )
        yield from verifier.handed("carry", inner[local], value, layout)
        made = verifier.said(instruction.results[number])
        body = laid_out(layout, layout.shard_shape, value)
        held[instruction.results[number]] = made
        yield _alike(verifier, name, made, _around(body, node.results[number], loop, not carry))


@claims(While)
def _while(verifier: Verifier, instruction: Instruction[While], held: Held) -> Iterator[Claim]:
    """A while loop: its condition and its body read one carry, laid out alike."""
    loop, name = instruction.attributes, verifier.name(instruction)
    node = node_of(verifier.graph, instruction)
    counts = tuple(node.signature.param(n) for n in WHILE_PARAMS)
    words = f"{counts} constants stand before what the loop carries"
    yield verifier.judged(name, "carry", Decided(words, counts == loop.num_consts))
    first, both = loop.num_consts[0], sum(loop.num_consts)
    pairs = list(zip(instruction.operands, node.operands, strict=True))
    condition = _Body(loop.condition, node.bodies[0], [*pairs[:first], *pairs[both:]])
    body = _Body(loop.body, node.bodies[1], pairs[first:])
    carried = [verifier.layout(local) for local in loop.body.arguments[loop.num_consts[1] :]]
    says = [verifier.layout(local) for local in loop.condition.results]
    yield _same_everywhere(verifier, instruction, says)
    yield from _inside(verifier, instruction, condition, held, says)
    yield from _inside(verifier, instruction, body, held, carried)
    reads = [verifier.layout(local) for local in loop.condition.arguments[first:]]
    words = "the condition reads the carry as the body does"
    yield verifier.judged(name, "carry", Decided(words, reads == carried))
    yield from _outside(verifier, instruction, held, carried)


@claims(Branches)
def _branches(
    verifier: Verifier, instruction: Instruction[Branches], held: Held
) -> Iterator[Claim]:
    """Branches: all read the same operands and hand on their results in one layout."""
    blocks, name = instruction.attributes.blocks, verifier.name(instruction)
    node = node_of(verifier.graph, instruction)
    words = f"the blocks are the {len(node.bodies)} branches"
    yield verifier.judged(name, "carry", Decided(words, len(blocks) == len(node.bodies)))
    number = instruction.operands[0]
    yield _same_everywhere(verifier, instruction, [verifier.layout(number)])
    yield from verifier.handed("carry", held[number], node.operands[0], verifier.layout(number))
    pairs = list(zip(instruction.operands[1:], node.operands[1:], strict=True))
    results = [verifier.layout(local) for local in instruction.results]
    for block, region in zip(blocks, node.bodies, strict=True):
        yield from _inside(verifier, instruction, _Body(block, region, pairs), held, results)
    yield from _outside(verifier, instruction, held, results)


@claims(Manual)
def _manual(verifier: Verifier, instruction: Instruction[Manual], held: Held) -> Iterator[Claim]:
    """A manual region: blocks go in and out as its specs say, and it runs as it is written."""
    name, body = verifier.name(instruction), instruction.attributes.body
    node = node_of(verifier.graph, instruction)
    operands, results = manual_layouts(node, verifier.program.mesh)
    for local, value, layout in zip(instruction.operands, node.operands, operands, strict=True):
        yield from verifier.handed("manual", held[local], value, layout)
    region = verifier.graph.regions[node.bodies[0]]
    inner = verifier.constants()
    inner |= {local: verifier.own_block(local) for local in body.arguments}
    for local, value in zip(body.arguments, region.arguments, strict=True):
        yield verifier.named("manual", local, value)
    own = verifier.program.mesh.digits(axis for axis, _ in node.signature.param("axes"))
    words = f"{node.primitive} is manual along its own axes"
    yield verifier.judged(name, "manual", Decided(words, instruction.attributes.digits == own))
    outside = verifier.manual_digits
    verifier.manual_digits = (*outside, *own)
    yield from verifier.block(body, inner)
    verifier.manual_digits = outside
    for local, value in zip(body.results, region.results, strict=True):
        yield from verifier.handed("manual", inner[local], value, verifier.whole(local))
    yield from _outside(verifier, instruction, held, list(results))
    yield Claim(name, "manual", TRUSTED, words=MANUAL)


class _Body(NamedTuple):
    """A block with the region that it stands for, and (local, value) of what it reads outside."""

    block: Block
    region: int
    outside: list[tuple[int, int]]


def _inside(
    verifier: Verifier,
    instruction: Instruction,
    body: _Body,
    held: Held,
    layouts: list[Sharding],
) -> Iterator[Claim]:
    """A body on (locals, values) from outside, its results in these layouts."""
    block, pairs = body.block, body.outside
    region, name = verifier.graph.regions[body.region], verifier.name(instruction)
    inner = verifier.constants()
    for local, value, (outer, read) in zip(block.arguments, region.arguments, pairs, strict=True):
        inner[local] = verifier.said(local)
        yield verifier.named("carry", local, value)
        yield _alike(verifier, name, held[outer], replace(inner[local], value=read))
    yield from verifier.block(block, inner)
    for local, value, layout in zip(block.results, region.results, layouts, strict=True):
        yield from verifier.handed("carry", inner[local], value, layout)


def _outside(
    verifier: Verifier, instruction: Instruction, held: Held, layouts: list[Sharding]
) -> Iterator[Claim]:
    """Results are the node's own, in the layouts in which the bodies hand them on."""
    node, name = node_of(verifier.graph, instruction), verifier.name(instruction)
    for local, value, layout in zip(instruction.results, node.results, layouts, strict=True):
        held[local] = verifier.said(local)
        yield _alike(verifier, name, held[local], laid_out(layout, layout.shard_shape, value))


def _same_everywhere(
    verifier: Verifier, instruction: Instruction, layouts: list[Sharding]
) -> Claim:
    """All devices hold one number, so that they go the same way."""
    name = verifier.name(instruction)
    right = all(not layout.shape and not layout.unreduced for layout in layouts)
    if right and verifier.graph.manual_axes(node_of(verifier.graph, instruction).region):
        return Claim(name, "manual", TRUSTED, words=MANUAL)
    return verifier.judged(name, "carry", Decided("all devices go the same way", right))


def _carried(verifier: Verifier, loop: Loop, number: int) -> Sharding:
    """The layout in which a carry enters the body."""
    return verifier.program.locals[loop.body.arguments[loop.num_consts + number]].sharding


def _around(inner: Contents, value: int, loop: Loop, stacked: bool) -> Contents:
    """What stands outside a loop for a value inside: itself, or all iterations' stacked."""
    leading = (contents.DimensionContents(Number(), loop.length, loop.length),) if stacked else ()
    return replace(inner, value=value, dims=(*leading, *inner.dims))


def _alike(verifier: Verifier, name: str, found: Contents, wanted: Contents) -> Claim:
    """Both sides of a loop's border hold the same elements."""
    words = "both sides of the border agree"
    return verifier.judged(name, "carry", Decided(words, at_border(found) == wanted))
