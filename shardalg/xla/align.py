"""Matching values of a graph with instructions of XLA's dump, and differences of their shardings.

Anchors are the operators that survive compilation: dots, convolutions, reductions, constraints,
gathers, scatters, sorts. The signature of one is its kind, its shape, and the signatures of the
nearest anchors above each operand, through everything else; arguments count by number, a constraint
by the layout that it demands. Equal signatures are the same value.
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

# Kinds of values whose layouts decide what a program computes and sends.
TARGETS = ("argument", "result", "dot", "conv", "reduce", "constraint")


@dataclass(frozen=True)
class Match:
    """One value in both completions.

    Attributes:
      value: of the graph; of a result the value that is returned.
      kind: "argument", "result", or the kind of the anchor ("dot", "conv", "reduce", "constraint",
        "gather", "scatter", "sort").
      name: as `plan.shardings()` prints it, with its source line.
      ours, theirs: the completed layouts.
      instruction: its name in XLA's dump; "" of a result.
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
    """Every value that no annotation fixes and that XLA's dump shows, with both layouts.

    Args:
      done: our completion.
      module: XLA's program as it enters partitioning, shardings completed.
      results: XLA's layouts of the results; None where no digits say it.
    """
    found = [*_inside(done, module), *_arguments(done, module), *_results(done, results)]
    return tuple(found)


def _inside(done: ShardedGraph, module: HloModule) -> Iterator[Match]:
    for value, instruction in aligned(done, module):
        producer = done.graph.producer[value]
        assert producer is not None  # an anchor is made by a node
        node = done.graph.nodes[producer]
        # JAX takes the positions of what XLA reduces together.
        theirs = layout_of(instruction, done.mesh, leaf=int(node.primitive in POSITIONS))
        if theirs is not None and _is_free(done, value):
            kind = graph_kind(node)
            assert kind is not None  # of an anchor it is some kind
            name, ours = done.graph.values[value].name, done.shardings[value]
            yield Match(value, kind, name, ours, theirs, instruction.name)


def _arguments(done: ShardedGraph, module: HloModule) -> Iterator[Match]:
    entry = module.computations[module.entry].values()
    numbered = {int(i.literal): i for i in entry if i.opcode == "parameter"}
    for number, value in enumerate(done.graph.arguments):
        if number not in numbered or not _is_free(done, value):
            continue
        instruction = numbered[number]
        theirs = layout_of(instruction, done.mesh)
        if theirs is not None:
            name = done.graph.values[value].name
            yield Match(value, "argument", name, done.shardings[value], theirs, instruction.name)


def _results(done: ShardedGraph, results: tuple[Sharding | None, ...]) -> Iterator[Match]:
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
    """(value, instruction) of every anchor that is found on both sides.

    Several instructions of one signature are taken in order, unless all have one layout; an anchor
    without an equal signature is taken for one of its kind and shape under the same conditions.
    """
    demanded = _demanded(done)
    numbers: dict[object, int] = {}
    ours = GraphSide(done.graph, demanded, numbers)
    theirs = HloSide(module, _told_apart(module, demanded, done.mesh), numbers)
    pairs, rest = _paired(ours.signatures(), theirs.signatures())
    left = _paired(ours.shapes(rest), theirs.shapes(None))[0]
    return sorted([*pairs, *left], key=lambda pair: pair[0])


def _demanded(done: ShardedGraph) -> dict[int, object]:
    """Annotation node to the layout that it demands; None where dimensions are open."""
    pairs = zip(done.graph.sites, done.annotations.sites, strict=True)
    return {
        site.node: None if sharding.unspecified_dims else sharding.canonical_dims
        for site, sharding in pairs
        if sharding is not None
    }


def _told_apart(
    module: HloModule, demanded: Mapping[int, object], mesh: Mesh
) -> dict[tuple[str, str], object]:
    """Constraint instruction to its layout, where some annotation demands that one."""
    wanted = set(demanded.values()) - {None}
    found: dict[tuple[str, str], object] = {}
    for name, computation in module.computations.items():
        for instruction in computation.values():
            if instruction.op_name.endswith("sharding_constraint"):
                layout = layout_of(instruction, mesh)
                key = None if layout is None else layout.canonical_dims
                found[name, instruction.name] = key if key in wanted else None
    return found


def _paired(
    ours: Mapping[int, object], theirs: Iterable[tuple[HloInstruction, object]]
) -> tuple[list[tuple[int, HloInstruction]], list[int]]:
    """Values and instructions of equal signatures, and the values without."""
    rows: dict[object, list[HloInstruction]] = defaultdict(list)
    for instruction, signature in theirs:
        rows[signature].append(instruction)
    counts = Counter(ours.values())
    turn: Counter[object] = Counter()
    pairs, rest = [], []
    for value, signature in ours.items():
        here = rows.get(signature, [])
        alike = len({i.attributes.get("sharding") for i in here}) == 1
        if alike or len(here) == counts[signature]:
            pairs.append((value, here[0 if alike else turn[signature]]))
            turn[signature] += 1
        elif not here:
            rest.append(value)
    return pairs, rest
