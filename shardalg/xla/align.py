"""Alignment of a graph's values with instructions of XLA's dump, and their shardings.

Anchors are the operators that survive compilation: dots, convolutions, reductions, constraints,
gathers, scatters, sorts. An anchor's signature is its kind, its shape, and the signatures of the
nearest anchors above each operand. An argument's signature is its number, and a constraint's
includes the sharding that it demands. Values with equal signatures are the same value.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding, replicated
from shardalg.lower.xla_dump.hlo_collectives import layout
from shardalg.lower.xla_dump.hlo_text import HloInstruction, HloModule, split_top
from shardalg.planner.propagate.sharded import ShardedGraph
from shardalg.xla.signatures import POSITIONS, GraphSide, HloSide, graph_kind

TARGETS = ("argument", "result", "dot", "conv", "reduce", "constraint")
"""Kinds of values whose layouts decide what a program computes and sends."""


@dataclass(frozen=True)
class Match:
    """The sharding of one value in our completion and in XLA's.

    Attributes:
      value: index of the value in the graph; for a result, of the returned value.
      kind: "argument", "result", or the kind of the anchor ("dot", "conv", "reduce", "constraint",
        "gather", "scatter", "sort").
      name: the name and source line that `plan.shardings()` prints.
      ours, theirs: the completed shardings.
      instruction: name of the instruction in XLA's dump; "" for a result.
    """

    value: int
    kind: str
    name: str
    ours: Sharding
    theirs: Sharding
    instruction: str = ""

    @property
    def agrees(self) -> bool:
        """True if both shardings are equal.

        >>> mesh = Mesh({"x": 2, "y": 4})
        >>> rows, none = Sharding(mesh, (8,), (mesh.digits("x"),)), replicated((8,), mesh)
        >>> Match(0, "dot", "y", rows, rows).agrees, Match(0, "dot", "y", rows, none).agrees
        (True, False)
        """
        return self.ours.canonical_dims == self.theirs.canonical_dims


def matches(
    done: ShardedGraph, module: HloModule, results: tuple[Sharding | None, ...] = ()
) -> tuple[Match, ...]:
    """Return each value that no annotation fixes and that XLA's dump has, with both shardings.

    Args:
      done: our completion.
      module: XLA's program as it enters partitioning, shardings completed.
      results: XLA's shardings of the results; None if the mesh has no such digits.
    """
    return (*_inside(done, module), *_arguments(done, module), *_results(done, results))


def _inside(done: ShardedGraph, module: HloModule) -> Iterator[Match]:
    """Yield a match for each value inside of the function that both programs have.

    They are results of operators that survive XLA's compilation, such as dots. Values with an
    annotation that leaves no dimension open are left out.
    """
    for value, instruction in aligned(done, module):
        producer = done.graph.producer[value]
        assert producer is not None  # an anchor is made by a node
        node = done.graph.nodes[producer]
        # XLA reduces values and positions in one instruction of two results; argmax is the second.
        theirs = layout_of(instruction, done.mesh, leaf=int(node.primitive in POSITIONS))
        if theirs is not None and _is_free(done, value):
            kind = graph_kind(node)
            assert kind is not None  # aligned values are anchors, which have a kind
            name, ours = done.graph.values[value].name, done.shardings[value]
            yield Match(value, kind, name, ours, theirs, instruction.name)


def _arguments(done: ShardedGraph, module: HloModule) -> Iterator[Match]:
    """Yield a match per argument whose sharding completion decides.

    A match has both shardings of the argument: the one of this library, and XLA's. Arguments that
    the user shards, and those whose sharding in XLA is no layout on the mesh, are left out.
    """
    # The literal of a parameter is its number, by which arguments of the two programs correspond.
    entry = module.computations[module.entry].values()
    numbered = {int(i.literal): i for i in entry if i.opcode == "parameter"}
    for number, value in enumerate(done.graph.arguments):
        if number not in numbered or not _is_free(done, value):
            continue
        instruction = numbered[number]
        xla_layout = layout_of(instruction, done.mesh)
        if xla_layout is not None:
            name = done.graph.values[value].name
            yield Match(
                value, "argument", name, done.shardings[value], xla_layout, instruction.name
            )


def _results(done: ShardedGraph, results: tuple[Sharding | None, ...]) -> Iterator[Match]:
    """Yield a match per result without annotation; `results` are XLA's shardings."""
    given = done.annotations.results
    rows = zip(done.graph.results, given, done.results, results, strict=False)
    for path, (value, annotated, ours, theirs) in zip(done.graph.result_paths, rows, strict=False):
        if annotated is None and theirs is not None and ours.shape:
            yield Match(value, "result", path, ours, theirs)


def _is_free(done: ShardedGraph, value: int) -> bool:
    """Return True if completion decides the sharding of a value, or of some of its dimensions."""
    sharding = done.shardings[value]
    return bool(sharding.shape) and (value not in done.fixed or bool(sharding.unspecified_dims))


def layout_of(instruction: HloInstruction, mesh: Mesh, leaf: int = 0) -> Sharding | None:
    """Return the sharding of one result of an instruction; None if the mesh has no such digits."""
    text = instruction.attributes.get("sharding")
    shape = instruction.leaves[leaf][1]
    if text is None:
        return replicated(shape, mesh)
    return layout(split_top(text[1:-1])[leaf] if text.startswith("{{") else text, shape, mesh)


def aligned(done: ShardedGraph, module: HloModule) -> list[tuple[int, HloInstruction]]:
    """Return (value, instruction) of the operators that both programs have, in order of the values.

    Such an operator (an anchor) survives XLA's compilation, as a dot does. It is identified by its
    signature: its kind, its shape, and the signatures of the anchors above it. Several instructions
    with one signature are paired in order, unless all have one sharding. An anchor whose signature
    XLA's dump lacks is paired by kind and shape under the same conditions.
    """
    demanded = _demanded(done)
    numbers: dict[object, int] = {}
    ours = GraphSide(done.graph, demanded, numbers)
    theirs = HloSide(module, _demanded_by_instruction(module, demanded, done.mesh), numbers)
    # A signature identifies a value. XLA may have rewritten what a signature contains, so values
    # without a partner are paired again by kind and shape alone.
    pairs, rest = _paired(ours.signatures(), theirs.signatures())
    left = _paired(ours.shapes(rest), theirs.shapes(None))[0]
    return sorted([*pairs, *left], key=lambda pair: pair[0])


def _demanded(done: ShardedGraph) -> dict[int, object]:
    """Return the digits of each dimension that each sharding constraint (site) demands, by node.

    The entry is None if the constraint leaves dimensions open.
    """
    pairs = zip(done.graph.sites, done.annotations.sites, strict=True)
    return {
        site.node: None if sharding.unspecified_dims else sharding.canonical_dims
        for site, sharding in pairs
        if sharding is not None
    }


def _demanded_by_instruction(
    module: HloModule, demanded: Mapping[int, object], mesh: Mesh
) -> dict[tuple[str, str], object]:
    """Return a dictionary from each sharding constraint of XLA's program to its sharding.

    The sharding is None if no annotation demands it. A key is (computation, instruction).
    """
    demanded_keys = set(demanded.values()) - {None}
    demand_of: dict[tuple[str, str], object] = {}
    for name, computation in module.computations.items():
        for instruction in computation.values():
            if instruction.op_name.endswith("sharding_constraint"):
                layout = layout_of(instruction, mesh)
                key = None if layout is None else layout.canonical_dims
                demand_of[name, instruction.name] = key if key in demanded_keys else None
    return demand_of


def _paired(
    ours: Mapping[int, object], theirs: Iterable[tuple[HloInstruction, object]]
) -> tuple[list[tuple[int, HloInstruction]], list[int]]:
    """Return (value, instruction) pairs with equal signatures, and the values without a partner.

    A value is without a partner if XLA's dump lacks its signature. A value is in neither
    list if its pair would be a guess: XLA's instructions with its signature have several shardings,
    and their number is not that of the values.

    Args:
      ours: signature per value. theirs: pairs (instruction, signature).
    """
    instructions_by_signature: dict[object, list[HloInstruction]] = defaultdict(list)
    for instruction, signature in theirs:
        instructions_by_signature[signature].append(instruction)
    counts = Counter(ours.values())
    used_counts: Counter[object] = Counter()
    pairs, unpaired = [], []
    for value, signature in ours.items():
        instructions = instructions_by_signature.get(signature, [])
        # If all have one sharding, any of them will do. Otherwise pairing in order needs the same
        # number on both sides.
        same_sharding = len({i.attributes.get("sharding") for i in instructions}) == 1
        if same_sharding or len(instructions) == counts[signature]:
            pairs.append((value, instructions[0 if same_sharding else used_counts[signature]]))
            used_counts[signature] += 1
        elif not instructions:
            unpaired.append(value)
    return pairs, unpaired
