"""Every claim on which "the program equals the function" rests, stated and sent to z3.

A local value is followed from the arguments on: which elements of which graph value it holds at
which place (`contents`). Moves are claimed from the definition of each instruction (`moves`),
operators by comparing their row with that of the operator which a device runs (`operators`).
Nothing is taken from the planner: only the program, the graph and the rows are read.
What is taken on trust, and tested instead, is listed in `report.FACTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph
from shardalg.merge.proofs.integers import IntegerClaim, Number
from shardalg.merge.proofs.prove import MergeClaim, Proof, prove
from shardalg.propagate.sharded import ShardedGraph
from shardalg.spmd.check import check
from shardalg.spmd.fields import misfit
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.instructions import (
    Apply,
    Branches,
    Fetch,
    Fold,
    Loop,
    Manual,
    Regroup,
    Top,
    While,
)
from shardalg.spmd.local import Local
from shardalg.spmd.manual import WRITTEN, manual_layouts, written
from shardalg.spmd.program import SpmdProgram
from shardalg.verify import contents
from shardalg.verify import derived_types as types
from shardalg.verify.asked import asked
from shardalg.verify.contents import Contents, Made, anonymous, laid_out
from shardalg.verify.move import Step, crosses
from shardalg.verify.moves import moved
from shardalg.verify.operators.apply import Applied, applied
from shardalg.verify.own import OPERATORS, of_its_own
from shardalg.verify.report import FACTS, MANUAL, TRUSTED, Claim, Decided, Report, Statement

Held = dict[int, Contents]
WHILE_PARAMS = ("cond_nconsts", "body_nconsts")
LOOP_PARAMS = ("num_consts", "num_carry", "length", "reverse")


@lru_cache(maxsize=1 << 14)
def proved(statement: IntegerClaim | MergeClaim) -> Proof:
    """What z3 says of a statement; the same one stands in many plans."""
    return prove(statement, sizes="all" if isinstance(statement, MergeClaim) else "concrete")


class Verifier:
    """Claims of one program; each distinct one is proved once."""

    def __init__(self, graph: Graph, program: SpmdProgram, *, finite: bool = False) -> None:
        self.graph, self.program, self.finite = graph, program, finite
        self.proofs: dict[IntegerClaim | MergeClaim, Proof] = {}
        self.outcomes: dict[Applied | Step, tuple[tuple[Contents, ...], list[Claim]]] = {}
        self.types: dict[object, Decided] = {}
        self.manual_digits: Digits = ()
        self.place = "the border"

    def judged(self, node: str, kind: str, statement: Statement) -> Claim:
        """The claim after it was decided, or z3 has seen it."""
        if isinstance(statement, Decided):
            return Claim(node, kind, statement.status, words=statement.words)
        proof = self.proofs[statement] = proved(statement)
        words = statement.text()
        return Claim(node, kind, proof.status, proof.ms, proof.smt2, words, proof.witness)

    def judge(self, mesh: Mesh, sharded: ShardedGraph | None = None) -> Iterator[Claim]:
        """The claims of the whole program; of one that is not well formed, what is wrong of it.

        Args:
          mesh: that was asked for; sharded: with the annotations, if there are any.
        """
        try:
            fault = misfit(self.program, mesh)
            if not fault:
                check(self.program)
                for name, statement in asked(sharded, self.program) if sharded else ():
                    yield self.judged(name, "border", statement)
                yield from self.run()
        except Exception as error:
            # of what no claim can be stated, none is proved: that is a verdict, and says why
            fault = f"{self.place}: {type(error).__name__}: {error}"
        if fault:
            words = f"the program is well formed (it is not well formed: {fault})"
            yield Claim("program", "well formed", "refuted", words=words)

    def run(self) -> Iterator[Claim]:
        """The claims of a program whose structure is sound."""
        program, graph = self.program, self.graph
        held = self.constants()
        for local, value in program.constants:
            yield self.named("border", local, value)
        arguments = dict(zip(program.block.arguments, graph.arguments, strict=True))
        yield from self.opened(held, arguments, program.argument_shardings)
        yield from self.block(program.block, held)
        results = zip(program.block.results, graph.results, program.result_shardings, strict=True)
        for local, value, layout in results:
            yield from self.handed("border", held[local], (value, layout))

    def said(self, local: int) -> Contents:
        """What the program says that a local holds."""
        made = self.program.locals[local]
        return laid_out(made.sharding, made.shape, made.origin)

    def constants(self) -> Held:
        """What the program starts with; literals are known as numbers."""
        numbers = self.graph.numbers
        return {
            local: replace(self.said(local), number=numbers.get(value))
            for local, value in self.program.constants
        }

    def named(self, kind: str, local: int, value: int) -> Claim:
        """The local is named for the value that it starts with, and holds it entirely."""
        made, of = self.program.locals[local], self.graph.values[value].type
        words = f"{self.graph.values[value].name} is handed in as it is laid out"
        right = made.origin == value and made.shape == made.sharding.shard_shape
        right = right and (made.sharding.shape, made.dtype) == (of.shape, of.dtype)
        return self.judged(self.graph.values[value].name, kind, Decided(words, right))

    def opened(
        self, held: Held, arguments: dict[int, int], layouts: tuple[Sharding, ...]
    ) -> Iterator[Claim]:
        """Arguments hold their values, in the layouts of the border."""
        for (local, value), layout in zip(arguments.items(), layouts, strict=True):
            held[local] = self.said(local)
            yield self.named("border", local, value)
            words = "the argument has the layout of the border"
            right = held[local] == laid_out(layout, layout.shard_shape, value)
            yield self.judged(self.graph.values[value].name, "border", Decided(words, right))

    def handed(
        self, kind: str, contents: Contents, wanted: tuple[int, Sharding]
    ) -> Iterator[Claim]:
        """What is handed out is a value in a layout, with nothing left to be done."""
        value, layout = wanted
        said = laid_out(layout, layout.shard_shape, value)
        dims = tuple(replace(d, fill=None) for d in contents.dims)
        # what is pending is summed on the other side; of what is not, nothing is joined
        combine = contents.combine if contents.unreduced else said.combine
        bare = replace(contents, dims=dims, number=None, combine=combine)
        words = f"the value is handed out as {layout.text()}"
        right = bare == said
        yield self.judged(self.graph.values[value].name, kind, Decided(words, right))

    def block(self, block: Block, held: Held) -> Iterator[Claim]:
        """Claims of every instruction, loop bodies included; `held` grows by what they make."""
        for instruction in block.instructions:
            self.place = _place(instruction)
            claims = _CLAIMS.get(type(instruction.attributes), Verifier.instruction)
            if self.is_written(instruction):
                claims = Verifier.written
            yield from claims(self, instruction, held)

    def instruction(self, instruction: Instruction, held: Held) -> Iterator[Claim]:
        """Claims of one instruction; what does not depend on its values is stated once."""
        key, values = self.keyed(instruction, held)
        if key not in self.outcomes:
            results, stated = applied(key) if isinstance(key, Applied) else moved(key)
            self.outcomes[key] = results, [self.judged("", kind, s) for kind, s in stated]
        results, claims = self.outcomes[key]
        for local, result, value in zip(instruction.results, results, values, strict=True):
            held[local] = replace(result, value=value)
        name = self.name(instruction)
        more = (self.own(instruction, held, values), *self.typed(instruction))
        for claim in (*claims, *more, *self.in_region(instruction)):
            yield replace(claim, node=name)

    def in_region(self, instruction: Instruction) -> Iterator[Claim]:
        """Along manual axes every device has values of its own: only the user moves them there."""
        if self.manual_digits:
            words = "nothing moves along manual axes but what the function sends"
            stays = not crosses(instruction.attributes, self.manual_digits)
            yield self.judged("", "manual", Decided(words, stays))

    def own(self, instruction: Instruction, held: Held, values: tuple[int | None, ...]) -> Claim:
        """An operator reads the node's operands, and results are named for what they are."""
        given = tuple(held[operand].value for operand in instruction.operands)
        right = of_its_own(self.graph, instruction, given)
        named = [self.program.locals[result].origin for result in instruction.results]
        right = right and all(n in (None, v) for n, v in zip(named, values, strict=True))
        return self.judged("", "reads", Decided("operands and results are the node's own", right))

    def typed(self, instruction: Instruction) -> Iterator[Claim]:
        """Item types and shapes of what an operator reads and makes; `check` has those of moves."""
        if isinstance(instruction.attributes, OPERATORS):
            read = [self.program.locals[operand] for operand in instruction.operands]
            made = [self.program.locals[result] for result in instruction.results]
            signature = self.graph.nodes[instruction.node].signature
            yield self.judged("", "types", types.of_node(signature, read, made))
            if isinstance(instruction.attributes, Apply):
                yield self.judged("", "types", self.derived(instruction, read, made))

    def derived(self, instruction: Instruction, read: list[Local], made: list[Local]) -> Decided:
        """Types as JAX derives them; what is run alike is derived once."""
        signature = self.graph.nodes[instruction.node].signature
        sides = (tuple((x.shape, x.dtype) for x in side) for side in (read, made))
        key = (signature, instruction.attributes.params, *sides)
        if key not in self.types:
            self.types[key] = types.derived(self.graph, instruction, read, made)
        return self.types[key]

    def keyed(
        self, instruction: Instruction, held: Held
    ) -> tuple[Applied | Step, tuple[int | None, ...]]:
        """The instruction without its values, and the values that its results are."""
        node = None if instruction.node is None else self.graph.nodes[instruction.node]
        reads = node.operands if node is not None else ()
        operands = tuple(anonymous(held[operand], reads) for operand in instruction.operands)
        locals_ = [self.program.locals[result] for result in instruction.results]
        made = tuple(Made(x.dtype, x.shape, x.sharding, x.origin is not None) for x in locals_)
        mesh, attributes = self.program.mesh, instruction.attributes
        if isinstance(attributes, OPERATORS):
            what = Applied(mesh, node.signature, attributes, operands, made, self.finite)
            return what, node.results
        given = tuple(held[operand].value for operand in instruction.operands)
        step = Step(mesh, attributes, operands, made[0], f"value {given[-1]}", count=len(made))
        if isinstance(attributes, Top | Fold):
            return step, given[: len(made)]
        if isinstance(attributes, Fetch):
            return step, tuple(given[reading.operand] for reading in attributes.readings)
        named = isinstance(attributes, Regroup) and made[0].named
        return step, (node.results[0] if named else given[0],) * len(made)

    def loop(self, instruction: Instruction, held: Held) -> Iterator[Claim]:
        """A scan: what goes in, around and out has one layout on both sides of each border."""
        loop, graph = instruction.attributes, self.graph
        node = graph.nodes[instruction.node]
        region = graph.regions[node.bodies[0]]
        name, fixed = self.name(instruction), loop.num_consts + loop.num_carry
        inner = self.constants()
        said = tuple(node.signature.param(n) for n in LOOP_PARAMS)
        runs = (loop.num_consts, loop.num_carry, loop.length, loop.reverse)
        words = f"the loop runs {loop.length} times over what the scan carries"
        yield self.judged(name, "carry", Decided(words, tuple(map(int, said)) == runs))
        pairs = zip(loop.body.arguments, region.arguments, strict=True)
        for number, (local, value) in enumerate(pairs):
            inner[local] = self.said(local)
            yield self.named("carry", local, value)
            outer = held[instruction.operands[number]]
            wanted = self.around(inner[local], node.operands[number], loop, number >= fixed)
            yield self.alike(name, outer, wanted)
        yield from self.block(loop.body, inner)
        pairs = zip(loop.body.results, region.results, strict=True)
        for number, (local, value) in enumerate(pairs):
            carry = number < loop.num_carry
            layout = self.carried(loop, number) if carry else self.program.locals[local].sharding
            yield from self.handed("carry", inner[local], (value, layout))
            made = self.said(instruction.results[number])
            body = laid_out(layout, layout.shard_shape, value)
            held[instruction.results[number]] = made
            yield self.alike(name, made, self.around(body, node.results[number], loop, not carry))

    def repeated(self, instruction: Instruction, held: Held) -> Iterator[Claim]:
        """A while loop: its condition and its body read one carry, laid out alike."""
        loop, name = instruction.attributes, self.name(instruction)
        node = self.graph.nodes[instruction.node]
        counts = tuple(node.signature.param(n) for n in WHILE_PARAMS)
        words = f"{counts} constants stand before what the loop carries"
        yield self.judged(name, "carry", Decided(words, counts == loop.num_consts))
        first, both = loop.num_consts[0], sum(loop.num_consts)
        pairs = list(zip(instruction.operands, node.operands, strict=True))
        condition = (loop.condition, node.bodies[0], [*pairs[:first], *pairs[both:]])
        body = (loop.body, node.bodies[1], pairs[first:])
        carried = [self.layout(local) for local in loop.body.arguments[loop.num_consts[1] :]]
        says = [self.layout(local) for local in loop.condition.results]
        yield self.same_everywhere(instruction, says)
        yield from self.inside(instruction, condition, held, says)
        yield from self.inside(instruction, body, held, carried)
        reads = [self.layout(local) for local in loop.condition.arguments[first:]]
        words = "the condition reads the carry as the body does"
        yield self.judged(name, "carry", Decided(words, reads == carried))
        yield from self.outside(instruction, held, carried)

    def chosen(self, instruction: Instruction, held: Held) -> Iterator[Claim]:
        """Branches: all read the same operands and hand on their results in one layout."""
        blocks, name = instruction.attributes.blocks, self.name(instruction)
        node = self.graph.nodes[instruction.node]
        words = f"the blocks are the {len(node.bodies)} branches"
        yield self.judged(name, "carry", Decided(words, len(blocks) == len(node.bodies)))
        number = instruction.operands[0]
        yield self.same_everywhere(instruction, [self.layout(number)])
        yield from self.handed("carry", held[number], (node.operands[0], self.layout(number)))
        pairs = list(zip(instruction.operands[1:], node.operands[1:], strict=True))
        results = [self.layout(local) for local in instruction.results]
        for block, region in zip(blocks, node.bodies, strict=True):
            yield from self.inside(instruction, (block, region, pairs), held, results)
        yield from self.outside(instruction, held, results)

    def manual(self, instruction: Instruction, held: Held) -> Iterator[Claim]:
        """A manual region: blocks go in and out as its specs say, and it runs as it is written."""
        name, body = self.name(instruction), instruction.attributes.body
        node = self.graph.nodes[instruction.node]
        operands, results = manual_layouts(node, self.program.mesh)
        for local, value, layout in zip(instruction.operands, node.operands, operands, strict=True):
            yield from self.handed("manual", held[local], (value, layout))
        region = self.graph.regions[node.bodies[0]]
        inner = self.constants()
        inner |= {local: self.said(local) for local in body.arguments}
        for local, value in zip(body.arguments, region.arguments, strict=True):
            yield self.named("manual", local, value)
        own = self.program.mesh.digits(axis for axis, _ in node.signature.param("axes"))
        words = f"{node.primitive} is manual along its own axes"
        yield self.judged(name, "manual", Decided(words, instruction.attributes.digits == own))
        outside, self.manual_digits = self.manual_digits, own
        yield from self.block(body, inner)
        self.manual_digits = outside
        for local, value in zip(body.results, region.results, strict=True):
            yield from self.handed("manual", inner[local], (value, self.whole(local)))
        yield from self.outside(instruction, held, list(results))
        yield Claim(name, "manual", TRUSTED, words=MANUAL)

    def written(self, instruction: Instruction, held: Held) -> Iterator[Claim]:
        """A collective of the user's is what the function says, on what the node reads."""
        node = self.graph.nodes[instruction.node]
        (operand,), (result,) = instruction.operands, instruction.results
        asked = written(node.signature, self.program.mesh)
        words = f"{node.primitive} is {asked}"
        as_asked = Decided(words, instruction.attributes == asked)
        yield self.judged(self.name(instruction), "manual", as_asked)
        held[result] = self.said(result)
        for local, value in ((operand, node.operands[0]), (result, node.results[0])):
            yield from self.handed("manual", held[local], (value, self.whole(local)))

    def is_written(self, instruction: Instruction) -> bool:
        """Whether it is a collective of the user's, and no move around one."""
        if instruction.node is None:
            return False
        node = self.graph.nodes[instruction.node]
        made = [self.program.locals[result].origin for result in instruction.results]
        read = [self.program.locals[operand].origin for operand in instruction.operands]
        return node.primitive in WRITTEN and made == list(node.results) and made != read

    def inside(
        self,
        instruction: Instruction,
        body: tuple[Block, int, list[tuple[int, int]]],
        held: Held,
        layouts: list[Sharding],
    ) -> Iterator[Claim]:
        """A body on (locals, values) from outside, its results in these layouts."""
        block, index, pairs = body
        region, name = self.graph.regions[index], self.name(instruction)
        inner = self.constants()
        for local, value, (outer, read) in zip(
            block.arguments, region.arguments, pairs, strict=True
        ):
            inner[local] = self.said(local)
            yield self.named("carry", local, value)
            yield self.alike(name, held[outer], replace(inner[local], value=read))
        yield from self.block(block, inner)
        for local, *wanted in zip(block.results, region.results, layouts, strict=True):
            yield from self.handed("carry", inner[local], tuple(wanted))

    def outside(
        self, instruction: Instruction, held: Held, layouts: list[Sharding]
    ) -> Iterator[Claim]:
        """Results are the node's own, in the layouts in which the bodies hand them on."""
        node, name = self.graph.nodes[instruction.node], self.name(instruction)
        for local, value, layout in zip(instruction.results, node.results, layouts, strict=True):
            held[local] = self.said(local)
            yield self.alike(name, held[local], laid_out(layout, layout.shard_shape, value))

    def layout(self, local: int) -> Sharding:
        """The layout that the program declares of a local."""
        return self.program.locals[local].sharding

    def whole(self, local: int) -> Sharding:
        """The layout in which a device holds all of the local's value."""
        said = self.layout(local)
        return Sharding(said.mesh, said.shape, ((),) * len(said.shape))

    def same_everywhere(self, instruction: Instruction, layouts: list[Sharding]) -> Claim:
        """All devices hold one number, so that they go the same way."""
        name = self.name(instruction)
        if self.graph.manual_axes(self.graph.nodes[instruction.node].region):
            return Claim(name, "manual", TRUSTED, words=MANUAL)
        right = all(not layout.shape and not layout.unreduced for layout in layouts)
        return self.judged(name, "carry", Decided("all devices go the same way", right))

    def carried(self, loop: Loop, number: int) -> Sharding:
        """The layout in which a carry enters the body."""
        return self.program.locals[loop.body.arguments[loop.num_consts + number]].sharding

    def around(self, inner: Contents, value: int, loop: Loop, stacked: bool) -> Contents:
        """What stands outside a loop for a value inside: itself, or all iterations' stacked."""
        leading = (contents.Held(Number(), loop.length, loop.length),) if stacked else ()
        return replace(inner, value=value, dims=(*leading, *inner.dims))

    def alike(self, name: str, found: Contents, wanted: Contents) -> Claim:
        """Both sides of a loop's border hold the same elements."""
        bare = replace(
            found,
            dims=tuple(replace(d, fill=None) for d in found.dims),
            combine=found.combine if found.unreduced else wanted.combine,
            number=None,
        )
        return self.judged(name, "carry", Decided("both sides of the border agree", bare == wanted))

    def name(self, instruction: Instruction) -> str:
        """The graph value that the instruction serves."""
        if instruction.node is None:
            return "border"
        return self.graph.values[self.graph.nodes[instruction.node].results[0]].name


def _place(instruction: Instruction) -> str:
    """The instruction in words: what it is, and what it makes."""
    results = ", ".join(f"%{local}" for local in instruction.results)
    return f"{type(instruction.attributes).__name__} ({results})"


_CLAIMS: dict[type, Callable[[Verifier, Instruction, Held], Iterator[Claim]]] = {
    Loop: Verifier.loop,
    While: Verifier.repeated,
    Branches: Verifier.chosen,
    Manual: Verifier.manual,
}


def verify(sharded: ShardedGraph, program: SpmdProgram, *, finite: bool = False) -> Report:
    """Prove that the program computes what the graph says: each claim of every instruction.

    Merges and iterations are proved for all mesh sizes, everything else for the sizes at hand.

    Args:
      finite: whether numbers are taken to be finite, and products of partial sums not to overflow
        (`Switches.finite_sums`); else a sum that waits behind a product is refuted.
    """
    verifier = Verifier(sharded.graph, program, finite=finite)
    merges = [
        verifier.judged(sharded.graph.values[value].name, "merge", MergeClaim(first, second, both))
        for value, first, second, both in sharded.merges
    ]
    claims = (*merges, *verifier.judge(sharded.mesh, sharded))
    merged = tuple(p for c, p in verifier.proofs.items() if isinstance(c, MergeClaim))
    return Report((*claims, *FACTS), merged)
