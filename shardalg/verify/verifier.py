"""Claims of a program, instruction by instruction: contents are followed from the arguments on."""

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
from shardalg.spmd.fields import field_fault
from shardalg.spmd.instruction import Attributes, Block, Instruction, Operator, is_a
from shardalg.spmd.instructions import (
    Apply,
    Fold,
    HaloExchange,
    MaskIndexed,
    RaggedAllToAll,
    Regroup,
    Top,
)
from shardalg.spmd.local import Local
from shardalg.spmd.manual import USER_COLLECTIVES, user_collective
from shardalg.spmd.program import SpmdProgram
from shardalg.verify import derived_types as types
from shardalg.verify.annotated import SiteLayouts, border_claims
from shardalg.verify.contents import (
    Contents,
    DeclaredLocal,
    border_contents,
    layout_contents,
    operand_names,
    with_value,
    without_value,
)
from shardalg.verify.move import CheckedInstruction, crosses, int32_claims, reads_own_values
from shardalg.verify.moves.moved import check_move
from shardalg.verify.operators.apply import CheckedOperator, check_operator
from shardalg.verify.report import Claim, Decided, Statement

Locals = dict[int, Contents]


@lru_cache(maxsize=1 << 14)
def cached_proof(statement: IntegerClaim | MergeClaim) -> Proof:
    """Return z3's proof of a statement, for all mesh sizes if it is about a merge.

    Plans of similar functions share many statements, so proofs are kept.
    """
    return prove(statement, sizes="all" if isinstance(statement, MergeClaim) else "concrete")


class Verifier:
    """The verification of one program: yields its claims, and proves each distinct one once.

    Attributes:
      graph, program: the graph, and the program that must compute it.
      proofs: proof per distinct statement.
      outcomes: per instruction without its graph values, the elements that each device holds of the
        results, and the claims.
      manual_digits: digits of the manual axes around the current instruction.
      place: the current instruction in words, for errors.
    """

    def __init__(
        self,
        graph: Graph,
        program: SpmdProgram,
        *,
        finite: bool = False,
        finite_in_loops: bool = False,
    ) -> None:
        """Start without proofs.

        Args:
          finite, finite_in_loops: as in `verify`.
        """
        self.graph, self.program, self.finite = graph, program, finite
        self.finite_in_loops = finite_in_loops
        self.sites = SiteLayouts(program)
        self.proofs: dict[IntegerClaim | MergeClaim, Proof] = {}
        self.outcomes: dict[
            CheckedOperator | CheckedInstruction, tuple[tuple[Contents, ...], list[Claim]]
        ] = {}
        self.types: dict[object, Decided] = {}
        self.manual_digits: Digits = ()
        self.place = "the border"

    def decide(self, node: str, kind: str, statement: Statement) -> Claim:
        """Return a statement as a claim with its status, by comparison or by a proof of z3.

        Args:
          node: the value or the instruction that the claim is about; kind: the kind in reports.
        """
        if isinstance(statement, Decided):
            return Claim(node, kind, statement.status, words=statement.words)
        proof = self.proofs[statement] = cached_proof(statement)
        words = statement.text()
        return Claim(node, kind, proof.status, proof.ms, proof.smt2, words, proof.witness)

    def judge(self, mesh: Mesh, sharded: ShardedGraph | None = None) -> Iterator[Claim]:
        """Yield the claims of the whole program.

        A program that is not well formed gets one refuted claim.

        Args:
          mesh: the requested mesh; sharded: the graph with its annotations, if any.
        """
        self.sites = SiteLayouts(self.program, sharded)
        try:
            fault = field_fault(self.program, mesh)
            if not fault:
                check(self.program)
                for name, statement in border_claims(sharded, self.program) if sharded else ():
                    yield self.decide(name, "border", statement)
                yield from self.program_claims()
        except TimeoutError:  # the caller set this limit and handles it
            raise
        except Exception as error:
            # Claims about a malformed program cannot be stated, so they are not proved. That is a
            # verdict, too: report the place and the reason.
            fault = f"{self.place}: {type(error).__name__}: {error}"
        if fault:
            words = f"the program is well formed (it is not well formed: {fault})"
            yield Claim("program", "well formed", "refuted", words=words)

    def program_claims(self) -> Iterator[Claim]:
        """Yield the claims of a program that is well formed.

        They are about its constants, arguments, instructions and results, in this order. A claim
        about a constant says: the local has the type of the constant, and each device holds all of
        it.
        """
        program, graph = self.program, self.graph
        yield from self.local_type_claims()
        contents, known_constants = (
            self.constant_contents(),
            {value for value, _ in graph.constants},
        )
        for local, value in program.constants:
            yield self.naming_claim("border", local, value)
            words = "it is a constant of the function, complete, on the mesh of the program"
            layout = self.sharding(local)
            is_right = (
                value in known_constants and not layout.unreduced and layout.mesh == program.mesh
            )
            yield self.decide(graph.values[value].name, "border", Decided(words, is_right))
        # Contents are followed through the program: arguments, then instructions, then results.
        # Each step adds to `contents` the contents that the next step reads.
        arguments = dict(zip(program.block.arguments, graph.arguments, strict=True))
        yield from self.open_arguments(contents, arguments, program.argument_shardings)
        yield from self.block(program.block, contents)
        results = zip(program.block.results, graph.results, program.result_shardings, strict=True)
        for local, value, layout in results:
            yield from self.output_claim("border", contents[local], value, layout)

    def local_type_claims(self) -> Iterator[Claim]:
        """Yield a failing claim for each named local whose global type is not its value's.

        A named local holds a value of the graph (`origin`). No claim of an instruction would show
        this fault, because local shapes follow from the shardings.
        """
        for local in self.program.locals:
            if local.origin is not None:
                value = self.graph.values[local.origin]
                if (local.sharding.shape, local.dtype) != (value.type.shape, value.type.dtype):
                    words = f"{local.dtype}{[*local.sharding.shape]} has the type {value.type}"
                    yield self.decide(value.name, "types", Decided(words, holds=False))

    def declared(self, local: int) -> Contents:
        """Return the elements that each device holds of a local, as the program declares them."""
        declared_local = self.program.locals[local]
        return layout_contents(declared_local.sharding, declared_local.shape, declared_local.origin)

    def constant_contents(self) -> Locals:
        """Return the contents of the program's constants; a literal's number is known."""
        numbers = self.graph.numbers
        return {
            local: replace(self.declared(local), number=numbers.get(value))
            for local, value in self.program.constants
        }

    def naming_claim(self, kind: str, local: int, value: int) -> Claim:
        """Return the claim that a local value is a graph value's block in the declared sharding.

        The program declares the sharding and the global type of each local value. The type must be
        the graph value's, and the local shape must be the block shape of the sharding.
        Arguments and constants need this claim, because no instruction computes them.

        Args:
          kind: the kind of the claim in reports.
          local, value: the numbers of the local value and of the graph value.
        """
        declared_local, of = self.program.locals[local], self.graph.values[value].type
        words = f"{self.graph.values[value].name} enters in its declared sharding"
        is_right = (
            declared_local.origin == value
            and declared_local.shape == declared_local.sharding.shard_shape
        )
        is_right = is_right and (declared_local.sharding.shape, declared_local.dtype) == (
            of.shape,
            of.dtype,
        )
        return self.decide(self.graph.values[value].name, kind, Decided(words, is_right))

    def open_arguments(
        self, known: Locals, arguments: dict[int, int], layouts: tuple[Sharding, ...]
    ) -> Iterator[Claim]:
        """Yield the claims that the program's arguments have the shardings that it declares.

        Args:
          known: the contents of locals; the contents of the arguments are added.
          arguments: from locals to graph values; layouts: the declared shardings.
        """
        for (local, value), layout in zip(arguments.items(), layouts, strict=True):
            known[local] = self.declared(local)
            yield self.naming_claim("border", local, value)
            words = "the argument has the sharding of the border"
            is_right = known[local] == layout_contents(layout, layout.shard_shape, value)
            yield self.decide(self.graph.values[value].name, "border", Decided(words, is_right))

    def output_claim(
        self, kind: str, contents: Contents, value: int, layout: Sharding
    ) -> Iterator[Claim]:
        """Yield the claim that a result of a body, or of the program, is a value in a sharding.

        No change may be pending on it.

        Args:
          kind: the kind of the claim in reports; contents: the result's contents.
        """
        declared = layout_contents(layout, layout.shard_shape, value)
        words = f"the value leaves in the sharding {layout.text()}"
        # Contents behind the border start without known fills, so fills need not agree here.
        is_right = border_contents(contents) == declared
        yield self.decide(self.graph.values[value].name, kind, Decided(words, is_right))

    def block(self, block: Block, known: Locals) -> Iterator[Claim]:
        """Yield the claims of all instructions, loop bodies included.

        The contents of their results are added to `known`.
        """
        for instruction in block.instructions:
            self.place = _place(instruction)
            # Instructions with bodies have functions of their own, because their claims are about
            # several blocks. The outcomes of all others are cached by `instruction`.
            claim = CLAIMS.get(type(instruction.attributes), Verifier.instruction)
            if self.is_user_collective(instruction):
                claim = Verifier.user_collective
            yield from claim(self, instruction, known)
        self.sites.add(known.items())

    def instruction(self, instruction: Instruction, known: Locals) -> Iterator[Claim]:
        """Yield the claims of one instruction without a body, and add its results to `known`.

        Claims that do not depend on the graph values are decided once for equal instructions.

        Args:
          known: the contents of each local so far: the elements of the tensor that each device
            holds.
        """
        # The layers of a model repeat instructions on other values. Without the values, they are
        # equal keys of `outcomes`.
        key, values = self.without_values(instruction, known)
        if key not in self.outcomes:
            results, statements = (
                check_operator(key) if isinstance(key, CheckedOperator) else check_move(key)
            )
            self.outcomes[key] = results, [self.decide("", kind, s) for kind, s in statements]
        results, claims = self.outcomes[key]
        for local, result, value in zip(instruction.results, results, values, strict=True):
            known[local] = with_value(result, value, self.node_operands(instruction))
        # These claims depend on the values themselves or on Python types, which the key leaves out.
        name = self.value_name(instruction)
        value_claims = [
            self.ownership_claim(instruction, known, values),
            *self.type_claims(instruction),
        ]
        value_claims += [
            self.decide("", "delivers", c) for c in int32_claims(instruction.attributes)
        ]
        value_claims += [self.decide("", "types", c) for c in self.literal_type_claims(instruction)]
        for claim in (*claims, *value_claims, *self.manual_claims(instruction)):
            yield claim.of(name)

    def manual_claims(self, instruction: Instruction) -> Iterator[Claim]:
        """Yield the claim that an instruction in a `shard_map` moves nothing along its manual axes.

        Every device has values of its own along these axes. Only collectives that the function
        itself calls may move them.
        """
        if self.manual_digits:
            words = "nothing moves along manual axes except by the function's own collectives"
            stays = not crosses(instruction.attributes, self.manual_digits)
            yield self.decide("", "manual", Decided(words, stays))

    def ownership_claim(
        self, instruction: Instruction, known: Locals, values: tuple[int | None, ...]
    ) -> Claim:
        """Return the claim that an instruction reads and computes values of its own node.

        Args:
          known: the contents of locals; values: the graph values of the results.
        """
        values_read = tuple(known[operand].value for operand in instruction.operands)
        is_own = reads_own_values(self.graph, instruction, values_read)
        declared_values = [self.program.locals[result].origin for result in instruction.results]
        is_own = is_own and all(
            n in (None, v) for n, v in zip(declared_values, values, strict=True)
        )
        return self.decide("", "reads", Decided("operands and results are the node's own", is_own))

    def type_claims(self, instruction: Instruction) -> Iterator[Claim]:
        """Yield the claims about item types and shapes of an operator.

        Instructions that only move data have none here, because `spmd.check` has compared their
        types.
        """
        if isinstance(instruction.attributes, Operator):
            operand_locals = [self.program.locals[operand] for operand in instruction.operands]
            result_locals = [self.program.locals[result] for result in instruction.results]
            signature = node_of(self.graph, instruction).signature
            yield self.decide(
                "", "types", types.node_type_claim(signature, operand_locals, result_locals)
            )
            if is_a(instruction, Apply):
                yield self.decide(
                    "", "types", self.result_type_claim(instruction, operand_locals, result_locals)
                )

    def literal_type_claims(self, instruction: Instruction) -> Iterator[Decided]:
        """Yield the claims about the Python types of an instruction's parameters.

        `outcomes` cannot cache them: parameters 1 and 1.0 are one key there, but two types for JAX.
        """
        # Only these instructions contain numbers from the user's program: an operator's parameters,
        # and the fill value of a gather. The planner itself computes all other parameters.
        if is_a(instruction, Apply) or is_a(instruction, Fold):
            yield from types.literal_type_claims(
                node_of(self.graph, instruction).signature, instruction.attributes
            )
        elif is_a(instruction, MaskIndexed):
            dtype = self.program.locals[instruction.results[0]].dtype
            yield from types.fill_type_claims(dtype, instruction.attributes.fill)

    def result_type_claim(
        self, instruction: Instruction[Apply], read: list[Local], made: list[Local]
    ) -> Decided:
        """Return the claim that an operator declares the result types that JAX derives.

        Equal operators share one claim, because the derivation by JAX is slow.

        Args:
          read, made: the locals that the instruction reads, and its results.
        """
        signature = node_of(self.graph, instruction).signature
        sides = (tuple((x.shape, x.dtype) for x in side) for side in (read, made))
        key = (signature, instruction.attributes.params, *sides)
        if key not in self.types:
            self.types[key] = types.result_type_claim(self.graph, instruction, read, made)
        return self.types[key]

    def node_operands(self, instruction: Instruction) -> tuple[int, ...]:
        """Return the graph values that an instruction's node reads."""
        return () if instruction.node is None else self.graph.nodes[instruction.node].operands

    def without_values(
        self, instruction: Instruction, known: Locals
    ) -> tuple[CheckedOperator | CheckedInstruction, tuple[int | None, ...]]:
        """Return an instruction without the numbers of graph values, and the values of its results.

        The instruction without numbers is a key of a cache: layers of a model repeat it on other
        values, and its claims are proved once.

        Args:
          known: the contents of local values.
        """
        node_values = self.node_operands(instruction)
        operands = tuple(
            without_value(known[operand], node_values) for operand in instruction.operands
        )
        locals_ = [self.program.locals[result] for result in instruction.results]
        declared_results = tuple(
            DeclaredLocal(x.dtype, x.shape, x.sharding, x.origin is not None) for x in locals_
        )
        mesh, attributes = self.program.mesh, instruction.attributes
        if isinstance(attributes, Operator):
            node = node_of(self.graph, instruction)
            # A fill has the name of the first operand that is its value, so the key must tell
            # `max(x, x)` from `max(x, y)`.
            firsts = tuple(map(node_values.index, node_values))
            op = CheckedOperator(
                mesh, node.signature, attributes, operands, declared_results, self.finite, firsts
            )
            return op, node.results
        values_read = tuple(known[operand].value for operand in instruction.operands)
        # The last operand of a mask may be the number with which it fills. Like all values in the
        # key, it is named by its place among the node's operands.
        filler = operand_names(node_values).get(
            f"value {values_read[-1]}", f"value {values_read[-1]}"
        )
        step = CheckedInstruction(
            mesh,
            attributes,
            operands,
            declared_results[0],
            str(filler),
            count=len(declared_results),
        )
        # Most instructions move or change their first operand, and each result is that graph value.
        # The exceptions: result k of `Top` and `Fold` belongs to operand k, a reading of a halo
        # exchange names its operand, and a named `Regroup` makes its node's result.
        if isinstance(attributes, Top | Fold):
            return step, values_read[: len(declared_results)]
        if isinstance(attributes, HaloExchange):
            return step, tuple(values_read[reading.operand] for reading in attributes.readings)
        if isinstance(attributes, Regroup) and declared_results[0].named:
            return step, node_of(self.graph, instruction).results[:1]
        return step, values_read[:1] * len(declared_results)

    def user_collective(self, instruction: Instruction, known: Locals) -> Iterator[Claim]:
        """Yield the claims that a collective of the function is emitted as the function calls it.

        Its operands and its result must be values that each device holds whole.
        """
        node = node_of(self.graph, instruction)
        (result,) = instruction.results
        requested = user_collective(node.signature, self.program.mesh)
        words = f"{node.primitive} is {requested}"
        is_requested = Decided(words, instruction.attributes == requested)
        yield self.decide(self.value_name(instruction), "manual", is_requested)
        if isinstance(instruction.attributes, RaggedAllToAll):
            words = (
                "rows arrive where jax.lax.ragged_all_to_all says: tests/partition simulate it (no "
                "CPU device runs it)"
            )
            arrives = Decided(words, holds=True, trusted=True)
            yield self.decide(self.value_name(instruction), "manual", arrives)
        # Inside a `shard_map`, the graph's values have the shapes of blocks. So an operand is
        # complete if each device holds all of it, although devices hold different numbers.
        known[result] = self.declared(result)
        read = zip(instruction.operands, node.operands, strict=True)
        for local, value in (*read, (result, node.results[0])):
            yield from self.output_claim(
                "manual", known[local], value, self.replicated_sharding(local)
            )

    def is_user_collective(self, instruction: Instruction) -> bool:
        """Return whether the instruction computes a collective that the user's function calls.

        A reshard of this collective's operand or result has the same node, but computes nothing.
        """
        if instruction.node is None:
            return False
        node = self.graph.nodes[instruction.node]
        if node.primitive in USER_COLLECTIVES and isinstance(instruction.attributes, Operator):
            return True
        # `origin` is the graph value that a local is a block of. A collective reads one value and
        # computes another one, the node's result. A reshard has the same value at both ends.
        result_values = [self.program.locals[result].origin for result in instruction.results]
        operand_values = [self.program.locals[operand].origin for operand in instruction.operands]
        return (
            node.primitive in USER_COLLECTIVES
            and result_values == list(node.results)
            and result_values != operand_values
        )

    def sharding(self, local: int) -> Sharding:
        """Return the sharding that the program declares for a local."""
        return self.program.locals[local].sharding

    def replicated_sharding(self, local: int) -> Sharding:
        """Return the sharding in which every device holds all of the local's value."""
        declared = self.sharding(local)
        return Sharding(declared.mesh, declared.shape, ((),) * len(declared.shape))

    def own_block(self, local: int) -> Contents:
        """Return the contents of an argument of a `shard_map` region.

        Inside the region, each device's block is a whole value of its own.
        """
        declared_local = self.program.locals[local]
        return layout_contents(
            self.replicated_sharding(local), declared_local.shape, declared_local.origin
        )

    def value_name(self, instruction: Instruction) -> str:
        """Return the name of the graph value that the instruction computes or moves."""
        if instruction.node is None:
            return "border"
        return self.graph.values[self.graph.nodes[instruction.node].results[0]].name


def _place(instruction: Instruction) -> str:
    """Return the instruction in words: its kind and its results."""
    results = ", ".join(f"%{local}" for local in instruction.results)
    return f"{type(instruction.attributes).__name__} ({results})"


CLAIMS: dict[type[Attributes], Callable[[Verifier, Any, Locals], Iterator[Claim]]] = {}
"""Per kind of instruction with a body, the function that gives its claims."""
A = TypeVar("A", bound=Attributes)
Claims = Callable[[Verifier, Instruction[A], Locals], Iterator[Claim]]


def claims(kind: type[A]) -> Callable[[Claims[A]], Claims[A]]:
    """Register the function that yields the claims of a kind of instruction with a body."""

    def register(claim: Claims[A]) -> Claims[A]:
        CLAIMS[kind] = claim
        return claim

    return register
