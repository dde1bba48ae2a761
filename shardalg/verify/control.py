"""Instructions with bodies: each value has one sharding on both sides of a body's border.

For a ring of products the body is proved as any block, and then the ring is proved to equal it.

An all-gather puts the blocks of all members next to each other. A product with plain loops can then
be computed block by block along one loop: the products are put next to each other if the result has
the loop, and added up if it is summed. So the ring is right if each product uses the block that has
just arrived, every block arrives once, and the directions together cover whole blocks. After a
reduce-scatter, each member has the sum of all members' products for its own block. So the arriving
sum must be of the block whose product is added to it, the last one must be the device's own, and
every member must add to it once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from shardalg.algebra.sharding import Sharding
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import SUM
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
from shardalg.verify.contents import Contents, border_contents, layout_contents, partition_number
from shardalg.verify.report import MANUAL, TRUSTED, Claim, Decided, Statement
from shardalg.verify.verifier import Locals, Verifier, claims

T, U = Number.of("t"), Number.of("u")


@claims(CollectiveMatmul)
def _collective_matmul(
    verifier: Verifier, instruction: Instruction[CollectiveMatmul], known: Locals
) -> Iterator[Claim]:
    """Yield the claims of a collective matmul, which runs its body as a ring over the devices.

    The claims are that the body (a collective and a product) computes the value, and that the ring
    computes the same as the body.
    """
    ring, name = instruction.attributes, verifier.value_name(instruction)
    # The body, a collective and a product, defines the result, so it is proved as any other block.
    yield verifier.decide(name, "ring", _body_is_a_pair(instruction))
    inner = {local: known[local] for local in instruction.operands}
    yield from verifier.block(ring.body, inner)
    known.update((local, inner[local]) for local in instruction.results)
    for statement in (
        _cut_claim(verifier, ring),
        _coverage_claim(verifier, ring),
        *_ring_claims(verifier, ring),
    ):
        yield verifier.decide(name, "ring", statement)


def _body_is_a_pair(instruction: Instruction[CollectiveMatmul]) -> Decided:
    """Return the claim that the body is two instructions, the first of which feeds the second.

    They are an all-gather and a product, or a product and a reduce-scatter.
    """
    ring = instruction.attributes
    body = ring.body
    first, second = body.instructions
    # The body defines the result, so it must read and make exactly what the ring does.
    border = (body.arguments, body.results) == (instruction.operands, instruction.results)
    # The ring never holds the value between the two instructions as a whole. So the second one must
    # read it exactly once, it must be no argument, and nothing outside may read it.
    passes_once = len(first.results) == 1 and second.operands.count(first.results[0]) == 1
    alone = second.results == body.results and len(body.results) == 1
    inside = first.results != body.results and first.results[0] not in body.arguments
    words = "the body is two instructions, of which one passes its result to the other, once"
    return Decided(words, border and passes_once and alone and inside)


def _cut_claim(verifier: Verifier, ring: CollectiveMatmul) -> Decided:
    """Return the claim that the ring cuts the product into blocks along one loop of it.

    Every dimension of an operand or a result that is this loop must be cut (`ring.along`).
    """
    product, collective = ring.product, ring.collective
    dim, words = collective.attributes.dim, "blocks are cut along one loop of the product"
    node = node_of(verifier.graph, product)
    (rule,) = rules(node.signature) or ()
    # `ring.along` has an entry per operand of the product, then one for the result. The collective
    # works on one of these tensors, whose cut dimension must be the collective's.
    if ring.gathers:
        (number,) = [
            k for k, local in enumerate(product.operands) if local == collective.results[0]
        ]
    else:
        number = -1
        sums = collective.attributes
        if not isinstance(sums, ReduceScatter) or sums.combine != SUM:
            return Decided(f"{words}, and the sums are scattered", holds=False)
    where = ring.along[number] if len(ring.along) == len(product.operands) + 1 else None
    # Products of blocks are blocks of the product only if all blocks are of the same iterations. So
    # the cut dimensions must be exactly the dimensions of one loop, which need not be whole.
    tensors = [*(rule.operands[k] for k in sorted(rule.operands)), *rule.results]
    loops = rule.extents.keys() - rule.whole - rule.local if rule.combine == SUM else ()
    is_one_loop = False
    for name in loops:
        # The dimension of each tensor that is this loop alone, or None if it has none.
        dims_of_loop = [
            next((d for d, index in enumerate(indices) if index.loop == name), None)
            for indices in tensors
        ]
        is_one_loop |= tuple(dims_of_loop) == ring.along
    plain = product.attributes.primitive == node.signature.primitive == "dot_general"
    # A ring adds products of blocks, and `lax.add` does not accept booleans.
    dtype = verifier.program.locals[product.results[0]].dtype
    return Decided(words, plain and where == dim and is_one_loop and dtype != "bool")


def _coverage_claim(verifier: Verifier, ring: CollectiveMatmul) -> Decided:
    """Return the claim that the ring multiplies every element of the cut dimensions.

    A collective matmul sends blocks around a ring of devices. A direction is the part of each block
    that travels one way around the ring. The parts of all directions must make up a whole block. A
    cut dimension must be as long as the blocks of all members together.
    """
    locals_, num_members = verifier.program.locals, ring.members
    moving_locals = ring.collective.operands if ring.gathers else ring.collective.results
    # Only these have the size of a block: a gather's result and a scatter's operand are whole.
    block = locals_[moving_locals[0]].shape[ring.collective.attributes.dim]
    values = (*ring.product.operands, *ring.product.results)
    # `ring.along` has the cut dimension of each operand and result of the product, or None.
    lengths = {
        locals_[local].shape[dim]
        for local, dim in zip(values, ring.along, strict=True)
        if dim is not None
    }
    # A gap between two parts would leave rows of the block out, an overlap would add rows twice.
    parts_of_block = sorted((d.first, d.first + d.size) for d in ring.directions)
    borders = [0, *(end for _, end in parts_of_block)]
    side_by_side = all(
        first == end for (first, _), end in zip(parts_of_block, borders, strict=False)
    )
    has_parts = bool(ring.directions) and all(d.size > 0 for d in ring.directions)
    words = f"the directions are blocks of {block}, of which there are {num_members}"
    return Decided(
        words,
        side_by_side and has_parts and borders[-1] == block and lengths == {num_members * block},
    )


def _ring_claims(verifier: Verifier, ring: CollectiveMatmul) -> Iterator[Statement]:
    """Yield the claims that each direction of the ring multiplies the block of every member once.

    A direction is the part of each block that travels one way around the ring.
    """
    n, mesh = ring.members, verifier.program.mesh
    for direction in ring.directions:
        words = f"products of [{direction.first}, {direction.first + direction.size}) of a block"
        count = direction.products
        yield Decided(f"{words}: one per member", count == n)
        low = all(abs(k) < max(n, 2) for k in (direction.hop, direction.start, direction.step))
        yield Decided(f"{words}: hop, start and step are smaller than the ring", low)
        # Product t uses block (p + start + step*t) mod n. If two products t and u used one block,
        # their numbers t*step and u*step would be equal modulo n.
        numbers = T * direction.step % n, U * direction.step % n
        distinct = implies(Not(equal(T, U)), Not(equal(*numbers)))
        unknowns = (("t", count), ("u", count))
        yield IntegerClaim(f"{words}: each member's exactly once", mesh, distinct, unknowns)
        yield from _matching_blocks(verifier, ring, direction)


def _matching_blocks(
    verifier: Verifier, ring: CollectiveMatmul, direction: Direction
) -> Iterator[IntegerClaim]:
    """Yield the claims that data arrive at the product for which they are meant.

    In a ring with an all-gather, blocks of the operand travel: product `t` must use the block that
    has arrived by then. In a ring with a reduce-scatter, sums travel: each must be of the block to
    which the next product is added, and the last sum must be of the device's own block.
    """
    n, own, mesh = ring.members, partition_number(ring.ring), verifier.program.mesh
    hop, last = direction.hop, direction.products - 1

    def block(p: Number, t: Number) -> Number:
        """Return the number of the block of which partition `p` computes product `t`."""
        return (p + t * direction.step + direction.start) % n

    if ring.gathers:
        words = "product t uses the block that arrives after t permutes"
        # After t permutes a device has the block of the member t hops away.
        goal = equal(block(own, T), (own + T * hop) % n)
        yield IntegerClaim(words, mesh, goal, (("t", direction.products),))
        return
    words = "the arriving sum is of the block of product t + 1"
    goal = equal(block((own + hop) % n, T), block(own, T + 1))
    yield IntegerClaim(words, mesh, goal, (("t", max(last, 1)),))
    words = "the last product is of the device's own block"
    yield IntegerClaim(words, mesh, equal(block(own, Number.of(last)), own))


WHILE_PARAMS = ("cond_nconsts", "body_nconsts")
LOOP_PARAMS = ("num_consts", "num_carry", "length", "reverse")


@claims(Loop)
def _loop(verifier: Verifier, instruction: Instruction[Loop], known: Locals) -> Iterator[Claim]:
    """Yield the claims of a scan.

    Each value must have the same sharding outside of the loop and in its body, and a carry the same
    at the start and at the end of an iteration.
    """
    loop, graph = instruction.attributes, verifier.graph
    node = node_of(graph, instruction)
    region = graph.regions[node.bodies[0]]
    name, num_fixed = verifier.value_name(instruction), loop.num_consts + loop.num_carry
    # A body reads its arguments and the constants of the program; values around it are not visible.
    inner = verifier.constant_contents()
    params = tuple(int(node.signature.param(n)) for n in LOOP_PARAMS)
    loop_params = (loop.num_consts, loop.num_carry, loop.length, loop.reverse)
    words = f"the loop runs {loop.length} times with the constants and carries of the scan"
    yield verifier.decide(name, "carry", Decided(words, params == loop_params))
    # A scan stacks its inputs and outputs over the iterations, but not its constants and carries:
    #   outside:  (consts, carry, xs[length, ..])  ->  (carry, ys[length, ..])
    #   body:     (consts, carry, x[..])           ->  (carry, y[..])
    pairs = zip(loop.body.arguments, region.arguments, strict=True)
    for number, (local, value) in enumerate(pairs):
        inner[local] = verifier.declared(local)
        yield verifier.naming_claim("carry", local, value)
        outer = known[instruction.operands[number]]
        wanted_contents = _outside_loop(
            inner[local], node.operands[number], loop, number >= num_fixed
        )
        yield _border_claim(verifier, name, outer, wanted_contents)
    # The option `defer_in_loops` assumes finite numbers in the bodies of scans only, so the
    # assumption is withdrawn behind the body.
    outside = verifier.finite
    verifier.finite = outside or verifier.finite_in_loops
    yield from verifier.block(loop.body, inner)
    verifier.finite = outside
    pairs = zip(loop.body.results, region.results, strict=True)
    for number, (local, value) in enumerate(pairs):
        carry = number < loop.num_carry
        # A carry has to leave the body in the sharding in which it enters, or the next iteration
        # would read another block.
        entry = loop.body.arguments[loop.num_consts + number] if carry else local
        layout = verifier.sharding(entry)
        yield from verifier.output_claim("carry", inner[local], value, layout)
        declared = verifier.declared(instruction.results[number])
        body = layout_contents(layout, layout.shard_shape, value)
        known[instruction.results[number]] = declared
        yield _border_claim(
            verifier, name, declared, _outside_loop(body, node.results[number], loop, not carry)
        )


@claims(While)
def _while(verifier: Verifier, instruction: Instruction[While], known: Locals) -> Iterator[Claim]:
    """Yield the claims of a while loop.

    The condition and the body must read the carry in the same shardings, and all devices must
    decide equally whether to go on.
    """
    loop, name = instruction.attributes, verifier.value_name(instruction)
    node = node_of(verifier.graph, instruction)
    counts = tuple(node.signature.param(n) for n in WHILE_PARAMS)
    words = f"{counts} constants come before the carry"
    yield verifier.decide(name, "carry", Decided(words, counts == loop.num_consts))
    num_condition_consts, num_consts = loop.num_consts[0], sum(loop.num_consts)
    pairs = list(zip(instruction.operands, node.operands, strict=True))
    # The operands are the condition's constants, the body's constants and the carry. Each of the
    # two bodies reads its own constants and the carry.
    condition = _Body(
        loop.condition, node.bodies[0], [*pairs[:num_condition_consts], *pairs[num_consts:]]
    )
    body = _Body(loop.body, node.bodies[1], pairs[num_condition_consts:])
    carried = [verifier.sharding(local) for local in loop.body.arguments[loop.num_consts[1] :]]
    decisions = [verifier.sharding(local) for local in loop.condition.results]
    yield _uniform_claim(verifier, instruction, decisions)
    yield from _body_claims(verifier, instruction, condition, known, decisions)
    yield from _body_claims(verifier, instruction, body, known, carried)
    reads = [verifier.sharding(local) for local in loop.condition.arguments[num_condition_consts:]]
    words = "the condition reads the carry as the body does"
    yield verifier.decide(name, "carry", Decided(words, reads == carried))
    yield from _result_claims(verifier, instruction, known, carried)


@claims(Branches)
def _branches(
    verifier: Verifier, instruction: Instruction[Branches], known: Locals
) -> Iterator[Claim]:
    """Yield the claims of a conditional.

    All devices must take the same branch, and all branches must have the same shardings of their
    operands and results.
    """
    blocks, name = instruction.attributes.blocks, verifier.value_name(instruction)
    node = node_of(verifier.graph, instruction)
    words = f"there is a block for each of the {len(node.bodies)} branches"
    yield verifier.decide(name, "carry", Decided(words, len(blocks) == len(node.bodies)))
    # Operand 0 is the number of the branch. The branches read the other operands.
    number = instruction.operands[0]
    yield _uniform_claim(verifier, instruction, [verifier.sharding(number)])
    yield from verifier.output_claim(
        "carry", known[number], node.operands[0], verifier.sharding(number)
    )
    pairs = list(zip(instruction.operands[1:], node.operands[1:], strict=True))
    results = [verifier.sharding(local) for local in instruction.results]
    for block, region in zip(blocks, node.bodies, strict=True):
        yield from _body_claims(verifier, instruction, _Body(block, region, pairs), known, results)
    yield from _result_claims(verifier, instruction, known, results)


@claims(Manual)
def _manual(verifier: Verifier, instruction: Instruction[Manual], known: Locals) -> Iterator[Claim]:
    """Yield the claims of a manual region (`shard_map`).

    Its operands and results must have the shardings of the region's specs, and inside it only the
    function's own collectives may move data along its axes.
    """
    name, body = verifier.value_name(instruction), instruction.attributes.body
    node = node_of(verifier.graph, instruction)
    operands, results = manual_layouts(node, verifier.program.mesh)
    for local, value, layout in zip(instruction.operands, node.operands, operands, strict=True):
        yield from verifier.output_claim("manual", known[local], value, layout)
    region = verifier.graph.regions[node.bodies[0]]
    inner = verifier.constant_contents()
    # In the body, an argument is the whole block of the device, sharded along no manual axis.
    inner |= {local: verifier.own_block(local) for local in body.arguments}
    for local, value in zip(body.arguments, region.arguments, strict=True):
        yield verifier.naming_claim("manual", local, value)
    region_digits = verifier.program.mesh.digits(axis for axis, _ in node.signature.param("axes"))
    words = f"{node.primitive} is manual along its own axes"
    yield verifier.decide(
        name, "manual", Decided(words, instruction.attributes.digits == region_digits)
    )
    # Inside, each device has values of its own along these axes. Any move except the user's own
    # collectives would mix them, so the checks of the body's instructions must know the axes.
    outer_digits = verifier.manual_digits
    verifier.manual_digits = (*outer_digits, *region_digits)
    yield from verifier.block(body, inner)
    verifier.manual_digits = outer_digits
    for local, value in zip(body.results, region.results, strict=True):
        yield from verifier.output_claim(
            "manual", inner[local], value, verifier.replicated_sharding(local)
        )
    yield from _result_claims(verifier, instruction, known, list(results))
    yield Claim(name, "manual", TRUSTED, words=MANUAL)


class _Body(NamedTuple):
    """The body of a call, as the verifier reads it.

    Attributes:
      block: the instructions of the body; region: the number of its region in the graph.
      outside: per argument of the body, the (local, graph value) outside that it receives.
    """

    block: Block
    region: int
    outside: list[tuple[int, int]]


def _body_claims(
    verifier: Verifier,
    instruction: Instruction,
    body: _Body,
    known: Locals,
    layouts: list[Sharding],
) -> Iterator[Claim]:
    """Yield the claims of the body of a loop, branch or region.

    Its arguments must be the values outside that it receives, its results must have the given
    shardings, and each of its instructions has claims of its own.

    Args:
      known: the contents of the locals outside of the body.
      layouts: the sharding that each result of the body must have.
    """
    block, pairs = body.block, body.outside
    region, name = verifier.graph.regions[body.region], verifier.value_name(instruction)
    inner = verifier.constant_contents()
    # A body has graph values of its own: an argument is `value` inside and `read` outside. Both are
    # the same elements, so the contents are compared under the name of the outer value.
    for local, value, (outer, read) in zip(block.arguments, region.arguments, pairs, strict=True):
        inner[local] = verifier.declared(local)
        yield verifier.naming_claim("carry", local, value)
        yield _border_claim(verifier, name, known[outer], replace(inner[local], value=read))
    yield from verifier.block(block, inner)
    for local, value, layout in zip(block.results, region.results, layouts, strict=True):
        yield from verifier.output_claim("carry", inner[local], value, layout)


def _result_claims(
    verifier: Verifier, instruction: Instruction, known: Locals, layouts: list[Sharding]
) -> Iterator[Claim]:
    """Yield the claims that the instruction's results are the node's values in given shardings.

    Args:
      known: the contents of locals, to which the results are added.
      layouts: the shardings in which the bodies return the results.
    """
    node, name = node_of(verifier.graph, instruction), verifier.value_name(instruction)
    for local, value, layout in zip(instruction.results, node.results, layouts, strict=True):
        known[local] = verifier.declared(local)
        yield _border_claim(
            verifier, name, known[local], layout_contents(layout, layout.shard_shape, value)
        )


def _uniform_claim(verifier: Verifier, instruction: Instruction, layouts: list[Sharding]) -> Claim:
    """Return the claim that all devices have the same condition, so that they take the same path.

    Args:
      layouts: the shardings of the results of the condition, or of the branch number.
    """
    # A scalar without a pending sum is the same on every device. Devices on different paths would
    # wait for each other in different collectives, without end.
    name = verifier.value_name(instruction)
    right = all(not layout.shape and not layout.unreduced for layout in layouts)
    # In a manual region each device computes the condition on its own data. Only the user's
    # function can make it equal on all devices, as in JAX, so the claim is trusted.
    if right and verifier.graph.manual_axes(node_of(verifier.graph, instruction).region):
        return Claim(name, "manual", TRUSTED, words=MANUAL)
    return verifier.decide(name, "carry", Decided("all devices take the same path", right))


def _outside_loop(inner: Contents, value: int, loop: Loop, stacked: bool) -> Contents:
    """Return the contents outside of a scan of a value that its body receives or returns.

    Args:
      inner: the contents inside; value: the graph value outside.
      stacked: whether the value outside is a stack, with the iterations as its leading dimension.
    """
    leading = (contents.DimensionContents(Number(), loop.length, loop.length),) if stacked else ()
    return replace(inner, value=value, dims=(*leading, *inner.dims))


def _border_claim(verifier: Verifier, name: str, found: Contents, wanted: Contents) -> Claim:
    """Return the claim that the contents `found` at a body's border are the `wanted` ones."""
    words = "both sides of the border agree"
    return verifier.decide(name, "carry", Decided(words, border_contents(found) == wanted))
