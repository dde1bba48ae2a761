"""The claims on which "the program equals the function" rests, listed one by one and sent to z3."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING

from shardalg.algebra.digits import Digits, canonical, parts
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph
from shardalg.merge.compatible import merge
from shardalg.merge.prove import MaskClaim, MergeClaim, Proof, prove
from shardalg.propagate.sharded import ShardedGraph
from shardalg.spmd.program import (
    COLLECTIVES,
    Apply,
    Block,
    DynamicSlice,
    Instruction,
    Loop,
    Mask,
    SpmdProgram,
)
from shardalg.table import Table

if TYPE_CHECKING:
    from shardalg.table import DataFrame

NOT_CLAIMED, TRUSTED = "not_claimed", "trusted"
STATUSES = ("proved", "trusted", "not_claimed", "unknown", "refuted")
# What is to be shown of an operator before the program may be called right.
NODE_CLAIMS = ("reads", "writes", "combine", "emitted")


@dataclass(frozen=True)
class Claim:
    """One statement about the program and what became of it.

    Attributes:
      node: the value or instruction that it speaks of.
      claim: "merge", "iterations", "mask", "reads", "writes", "combine", "emitted", "delivers" or
        "carry".
      status: "proved", "refuted", "unknown", "trusted" (checked without z3) or "not_claimed".
    """

    node: str
    claim: str
    status: str
    ms: float = 0.0
    smt2: str = ""


@dataclass(frozen=True)
class Report:
    """All claims of a plan. `ok` only if each is proved or trusted.

    Attributes:
      hints: the sizes at which a plan of named sizes was verified, in words.
    """

    claims: tuple[Claim, ...]
    merges: tuple[Proof, ...] = ()
    hints: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing is open."""
        return all(claim.status in ("proved", TRUSTED) for claim in self.claims)

    @property
    def refuted(self) -> tuple[Claim, ...]:
        """Claims with a counter-example."""
        return tuple(claim for claim in self.claims if claim.status == "refuted")

    @cached_property
    def table(self) -> Table:
        """One row per claim."""
        columns = ("node", "claim", "status", "ms", "smt2")
        return Table(columns, tuple((c.node, c.claim, c.status, c.ms, c.smt2) for c in self.claims))

    @property
    def df(self) -> DataFrame:
        """The table as a DataFrame."""
        return self.table.df

    def summary(self) -> str:
        """`31 proved, 2 trusted, 120 not_claimed`."""
        counts = Counter(claim.status for claim in self.claims)
        return ", ".join(f"{counts[s]} {s}" for s in STATUSES if counts[s]) or "no claims"

    def __repr__(self) -> str:
        at = f", at the hints {self.hints}" if self.hints else ""
        return f"Report({'ok' if self.ok else 'open'}: {self.summary()}{at})"


class Verifier:
    """Claims of one program; each distinct one is proved once."""

    def __init__(self, graph: Graph, program: SpmdProgram) -> None:
        self.graph, self.program = graph, program
        self.proofs: dict[object, Proof] = {}

    def proved(self, node: str, kind: str, claim: MergeClaim | MaskClaim) -> Claim:
        """The claim after z3 has seen it."""
        if claim not in self.proofs:
            self.proofs[claim] = prove(
                claim, sizes="all" if isinstance(claim, MergeClaim) else "concrete"
            )
        proof = self.proofs[claim]
        return Claim(node, kind, proof.status, proof.ms, proof.smt2)

    def block(self, block: Block) -> Iterator[Claim]:
        """Claims of every instruction, loop bodies included."""
        for instruction in block.instructions:
            yield from self.instruction(instruction)
            if isinstance(instruction.attributes, Loop):
                yield from self.block(instruction.attributes.body)

    def instruction(self, instruction: Instruction) -> Iterator[Claim]:
        """Claims of one instruction."""
        attributes, name = instruction.attributes, self.name(instruction)
        if isinstance(attributes, Apply):
            yield self.iterations(name, attributes)
            yield from (Claim(name, kind, NOT_CLAIMED) for kind in NODE_CLAIMS)
        elif isinstance(attributes, Mask):
            yield self.mask(name, attributes, instruction.operands[0])
        elif isinstance(attributes, Loop):
            yield Claim(name, "carry", TRUSTED)
        elif isinstance(attributes, (*COLLECTIVES, DynamicSlice)):
            yield Claim(name, "delivers", NOT_CLAIMED)
        else:
            yield Claim(name, "emitted", NOT_CLAIMED)

    def mask(self, name: str, mask: Mask, operand: int) -> Claim:
        """The mask keeps just the elements that exist of the operand, where its blocks lie."""
        sharding = self.program.locals[operand].sharding
        digits = sharding.dims[mask.dim]
        if canonical(mask.digits) != canonical(digits):
            return Claim(name, "mask", "refuted")
        size = sharding.shape[mask.dim]
        return self.proved(name, "mask", MaskClaim(size, digits, mask.block, mask.size))

    def name(self, instruction: Instruction) -> str:
        """The graph value that the instruction serves."""
        if instruction.node is None:
            return "border"
        return self.graph.values[self.graph.nodes[instruction.node].results[0]].name

    def iterations(self, name: str, apply: Apply) -> Claim:
        """Every iteration has equally many executors: the loops' digits are jointly balanced."""
        claim = iteration_claim(self.program.mesh, apply.loops)
        if claim is None:
            return Claim(name, "iterations", TRUSTED)
        return self.proved(name, "iterations", claim)


def iteration_claim(mesh: Mesh, loops: tuple[tuple[str, Digits], ...]) -> MergeClaim | None:
    """The loops of a node as dimensions of a tensor, split one by one, merge into a joint split.

    None where fewer than two loops are split: then there is nothing to clash.
    """
    if len(loops) < 2:
        return None
    shape = tuple(parts(digits) for _, digits in loops)
    single = [
        Sharding(mesh, shape, tuple(d if i == k else () for i, (_, d) in enumerate(loops)))
        for k in range(len(loops))
    ]
    joint = Sharding(mesh, shape, tuple(d for _, d in loops))
    return MergeClaim(reduce(lambda a, b: merge(a, b).sharding, single[:-1]), single[-1], joint)


def verify(sharded: ShardedGraph, program: SpmdProgram) -> Report:
    """Prove what is claimed: merges and iterations for all mesh sizes, masks as planned.

    Claims of reads, writes, combines and collectives are listed as "not_claimed".
    """
    verifier = Verifier(sharded.graph, program)
    merges = [
        verifier.proved(sharded.graph.values[value].name, "merge", MergeClaim(first, second, both))
        for value, first, second, both in sharded.merges
    ]
    claims = (*merges, *verifier.block(program.block))
    merged = tuple(p for c, p in verifier.proofs.items() if isinstance(c, MergeClaim))
    return Report(claims, merged)
