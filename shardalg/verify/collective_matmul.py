"""Rings of products: the body is proved as any block, and the ring to be what the body says.

An all-gather is the blocks of all members side by side, and a product of plain loops is, block by
block of one loop, the products of the blocks: written side by side where the result has the loop,
added up where it is summed. So the ring is right where each product is of the block that came by,
every block comes by once, and the directions together are whole blocks. A reduce-scatter leaves
each member the sum of all members' products of its own block: the sum that comes by is of the block
whose product is added to it, the last one is the device's own, and every member adds to it once.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardalg.merge.proofs.integers import IntegerClaim, Not, Number, equal, implies
from shardalg.ops.rows import rules
from shardalg.ops.rule import SUM, Rule
from shardalg.spmd.bound import node_of
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import CollectiveMatmul, Direction, ReduceScatter
from shardalg.verify.contents import partition_number
from shardalg.verify.report import Claim, Decided, Statement
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
