"""Claims of a program, instruction by instruction: locals are followed from the arguments on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph
from shardalg.merge.proofs.integers import IntegerClaim
from shardalg.merge.proofs.prove import MergeClaim, Proof, prove
from shardalg.planner.propagate.sharded import ShardedGraph
from shardalg.spmd.bound import node_of
from shardalg.spmd.check import check
from shardalg.spmd.fields import misfit
from shardalg.spmd.instruction import Attributes, Block, Instruction, Operator, is_a
from shardalg.spmd.instructions import Apply, Fold, HaloExchange, MaskIndexed, Regroup, Top
from shardalg.spmd.local import Local
from shardalg.spmd.manual import WRITTEN, written
from shardalg.spmd.program import SpmdProgram
from shardalg.verify import derived_types as types
from shardalg.verify.annotated import Seen, asked
from shardalg.verify.contents import (
    Contents,
    DeclaredLocal,
    anonymous,
    at_border,
    laid_out,
    of_value,
    operand_names,
)
from shardalg.verify.move import CheckedInstruction, counted, crosses, of_its_own
from shardalg.verify.moves.moved import moved
from shardalg.verify.operators.apply import Applied, applied
from shardalg.verify.report import Claim, Decided, Statement

Held = dict[int, Contents]


@lru_cache(maxsize=1 << 14)
def proved(statement: IntegerClaim | MergeClaim) -> Proof:
    """What z3 says of a statement; the same one stands in many plans."""
    return prove(statement, sizes="all" if isinstance(statement, MergeClaim) else "concrete")


class Verifier:
    """Claims of one program; each distinct one is proved once."""

    def __init__(
        self,
        graph: Graph,
        program: SpmdProgram,
        *,
        finite: bool = False,
        finite_in_loops: bool = False,
    ) -> None:
        self.graph, self.program, self.finite = graph, program, finite
        self.finite_in_loops = finite_in_loops
        self.seen = Seen(program)
        self.proofs: dict[IntegerClaim | MergeClaim, Proof] = {}
        self.outcomes: dict[
            Applied | CheckedInstruction, tuple[tuple[Contents, ...], list[Claim]]
        ] = {}
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
        self.seen = Seen(self.program, sharded)
        try:
            fault = misfit(self.program, mesh)
            if not fault:
                check(self.program)
                for name, statement in asked(sharded, self.program) if sharded else ():
                    yield self.judged(name, "border", statement)
                yield from self.run()
        except TimeoutError:  # whoever set a limit wants to know
            raise
        except Exception as error:
            # of what no claim can be stated, none is proved: that is a verdict, and says why
            fault = f"{self.place}: {type(error).__name__}: {error}"
        if fault:
            words = f"the program is well formed (it is not well formed: {fault})"
            yield Claim("program", "well formed", "refuted", words=words)

    def run(self) -> Iterator[Claim]:
        """The claims of a program whose structure is sound."""
        program, graph = self.program, self.graph
        yield from self.partly()
        held, known = self.constants(), {value for value, _ in graph.constants}
        for local, value in program.constants:
            yield self.named("border", local, value)
            words = "it is a constant of the function, no partial sum, in the order of the devices"
            layout = self.layout(local)
            right = value in known and not layout.unreduced and layout.mesh == program.mesh
            yield self.judged(graph.values[value].name, "border", Decided(words, right))
        arguments = dict(zip(program.block.arguments, graph.arguments, strict=True))
        yield from self.opened(held, arguments, program.argument_shardings)
        yield from self.block(program.block, held)
        results = zip(program.block.results, graph.results, program.result_shardings, strict=True)
        for local, value, layout in results:
            yield from self.handed("border", held[local], value, layout)

    def partly(self) -> Iterator[Claim]:
        """Every local that is named for a value is a part of it: no shape of its own follows."""
        for local in self.program.locals:
            if local.origin is not None:
                value = self.graph.values[local.origin]
                if (local.sharding.shape, local.dtype) != (value.type.shape, value.type.dtype):
                    words = f"{local.dtype}{[*local.sharding.shape]} is laid out as {value.type}"
                    yield self.judged(value.name, "types", Decided(words, holds=False))

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
        self, kind: str, contents: Contents, value: int, layout: Sharding
    ) -> Iterator[Claim]:
        """What is handed out is a value in a layout, with nothing left to be done."""
        said = laid_out(layout, layout.shard_shape, value)
        words = f"the value is handed out as {layout.text()}"
        right = at_border(contents) == said
        yield self.judged(self.graph.values[value].name, kind, Decided(words, right))

    def block(self, block: Block, held: Held) -> Iterator[Claim]:
        """Claims of every instruction, loop bodies included; `held` grows by what they make."""
        for instruction in block.instructions:
            self.place = _place(instruction)
            claim = CLAIMS.get(type(instruction.attributes), Verifier.instruction)
            if self.is_written(instruction):
                claim = Verifier.written
            yield from claim(self, instruction, held)
        self.seen.add(held.items())

    def instruction(self, instruction: Instruction, held: Held) -> Iterator[Claim]:
        """Claims of one instruction; what does not depend on its values is stated once."""
        key, values = self.keyed(instruction, held)
        if key not in self.outcomes:
            results, stated = applied(key) if isinstance(key, Applied) else moved(key)
            self.outcomes[key] = results, [self.judged("", kind, s) for kind, s in stated]
        results, claims = self.outcomes[key]
        for local, result, value in zip(instruction.results, results, values, strict=True):
            held[local] = of_value(result, value, self.reads(instruction))
        name = self.name(instruction)
        more = [self.own(instruction, held, values), *self.typed(instruction)]
        more += [self.judged("", "delivers", c) for c in counted(instruction.attributes)]
        more += [self.judged("", "types", c) for c in self.unlike(instruction)]
        for claim in (*claims, *more, *self.in_region(instruction)):
            yield claim.of(name)

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
        if isinstance(instruction.attributes, Operator):
            read = [self.program.locals[operand] for operand in instruction.operands]
            made = [self.program.locals[result] for result in instruction.results]
            signature = node_of(self.graph, instruction).signature
            yield self.judged("", "types", types.of_node(signature, read, made))
            if is_a(instruction, Apply):
                yield self.judged("", "types", self.derived(instruction, read, made))

    def unlike(self, instruction: Instruction) -> Iterator[Decided]:
        """What equal parameters do not tell apart, and so no claim that is stated once."""
        if is_a(instruction, Apply) or is_a(instruction, Fold):
            yield from types.unlike(
                node_of(self.graph, instruction).signature, instruction.attributes
            )
        elif is_a(instruction, MaskIndexed):
            dtype = self.program.locals[instruction.results[0]].dtype
            yield from types.unfit(dtype, instruction.attributes.fill)

    def derived(
        self, instruction: Instruction[Apply], read: list[Local], made: list[Local]
    ) -> Decided:
        """Types as JAX derives them; what is run alike is derived once."""
        signature = node_of(self.graph, instruction).signature
        sides = (tuple((x.shape, x.dtype) for x in side) for side in (read, made))
        key = (signature, instruction.attributes.params, *sides)
        if key not in self.types:
            self.types[key] = types.derived(self.graph, instruction, read, made)
        return self.types[key]

    def reads(self, instruction: Instruction) -> tuple[int, ...]:
        """The graph values that an instruction's node reads."""
        return () if instruction.node is None else self.graph.nodes[instruction.node].operands

    def keyed(
        self, instruction: Instruction, held: Held
    ) -> tuple[Applied | CheckedInstruction, tuple[int | None, ...]]:
        """The instruction without its values, and the values that its results are."""
        reads = self.reads(instruction)
        operands = tuple(anonymous(held[operand], reads) for operand in instruction.operands)
        locals_ = [self.program.locals[result] for result in instruction.results]
        made = tuple(
            DeclaredLocal(x.dtype, x.shape, x.sharding, x.origin is not None) for x in locals_
        )
        mesh, attributes = self.program.mesh, instruction.attributes
        if isinstance(attributes, Operator):
            node = node_of(self.graph, instruction)
            firsts = tuple(map(reads.index, reads))
            what = Applied(mesh, node.signature, attributes, operands, made, self.finite, firsts)
            return what, node.results
        given = tuple(held[operand].value for operand in instruction.operands)
        filler = operand_names(reads).get(f"value {given[-1]}", f"value {given[-1]}")
        step = CheckedInstruction(mesh, attributes, operands, made[0], str(filler), count=len(made))
        if isinstance(attributes, Top | Fold):
            return step, given[: len(made)]
        if isinstance(attributes, HaloExchange):
            return step, tuple(given[reading.operand] for reading in attributes.readings)
        if isinstance(attributes, Regroup) and made[0].named:
            return step, node_of(self.graph, instruction).results[:1]
        return step, given[:1] * len(made)

    def written(self, instruction: Instruction, held: Held) -> Iterator[Claim]:
        """A collective of the user's is what the function says, on what the node reads."""
        node = node_of(self.graph, instruction)
        (operand,), (result,) = instruction.operands, instruction.results
        asked = written(node.signature, self.program.mesh)
        words = f"{node.primitive} is {asked}"
        as_asked = Decided(words, instruction.attributes == asked)
        yield self.judged(self.name(instruction), "manual", as_asked)
        held[result] = self.said(result)
        for local, value in ((operand, node.operands[0]), (result, node.results[0])):
            yield from self.handed("manual", held[local], value, self.whole(local))

    def is_written(self, instruction: Instruction) -> bool:
        """Whether it is a collective of the user's, or said to be one, and no move around one."""
        if instruction.node is None:
            return False
        node = self.graph.nodes[instruction.node]
        if node.primitive in WRITTEN and isinstance(instruction.attributes, Operator):
            return True
        made = [self.program.locals[result].origin for result in instruction.results]
        read = [self.program.locals[operand].origin for operand in instruction.operands]
        return node.primitive in WRITTEN and made == list(node.results) and made != read

    def layout(self, local: int) -> Sharding:
        """The layout that the program declares of a local."""
        return self.program.locals[local].sharding

    def whole(self, local: int) -> Sharding:
        """The layout in which a device holds all of the local's value."""
        said = self.layout(local)
        return Sharding(said.mesh, said.shape, ((),) * len(said.shape))

    def own_block(self, local: int) -> Contents:
        """All of the local's value, whatever layout the program declares: a manual argument."""
        made = self.program.locals[local]
        return laid_out(self.whole(local), made.shape, made.origin)

    def name(self, instruction: Instruction) -> str:
        """The graph value that the instruction serves."""
        if instruction.node is None:
            return "border"
        return self.graph.values[self.graph.nodes[instruction.node].results[0]].name


def _place(instruction: Instruction) -> str:
    """The instruction in words: what it is, and what it makes."""
    results = ", ".join(f"%{local}" for local in instruction.results)
    return f"{type(instruction.attributes).__name__} ({results})"


CLAIMS: dict[type[Attributes], Callable[[Verifier, Any, Held], Iterator[Claim]]] = {}
"""Per kind of instruction that holds blocks, what is claimed of it."""
A = TypeVar("A", bound=Attributes)
Claims = Callable[[Verifier, Instruction[A], Held], Iterator[Claim]]


def claims(kind: type[A]) -> Callable[[Claims[A]], Claims[A]]:
    """Register what is claimed of a kind of instruction that holds blocks."""

    def register(claim: Claims[A]) -> Claims[A]:
        CLAIMS[kind] = claim
        return claim

    return register
