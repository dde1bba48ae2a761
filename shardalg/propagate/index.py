"""A graph as completion sweeps it: steps in order of execution, who touches whom. Independent of mesh and annotations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter

from shardalg.graph.ir import Graph, Node, Signature, Tie
from shardalg.ops.rule import Rule
from shardalg.propagate.kinds import Kind, kind_of, pass_through

Rules = Callable[[Signature], tuple[Rule, ...] | None]


@dataclass(frozen=True, eq=False)
class Index:
    """Steps (nodes with a rule, and ties of control flow) in sweep order.

    Attributes:
      kinds, tensors: per step, its kind and its values (operands, then results).
      nodes: per step, the node it is (for a tie: the call).
      readers: per value, (step, operand position) of every read, in order.
      touching: per value, the steps that it is a tensor of.
      order: values by first appearance; `place` is its inverse.
    """

    kinds: list[Kind]
    tensors: list[tuple[int, ...]]
    nodes: list[int | None]
    pick: list[itemgetter]
    readers: list[list[tuple[int, int]]]
    touching: list[list[int]]
    order: list[int]
    place: list[int]


def index(graph: Graph, rules: Rules, exits: tuple[tuple[int, int], ...] = ()) -> Index:
    """Index of a graph. `exits` are (value, number) of extra values that stand for annotated results."""
    singles = _single_readers(graph)
    known: dict[object, Kind | None] = {}
    steps = [*_steps(graph, rules, singles, known), *_exits(graph, exits, known)]
    count = len(graph.values) + len(exits)
    readers: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    touching: list[list[int]] = [[] for _ in range(count)]
    order = dict.fromkeys(graph.arguments)
    for position, (kind, tensors, _) in enumerate(steps):
        for k in range(kind.num_operands):
            readers[tensors[k]].append((position, k))
        for value in set(tensors):
            touching[value].append(position)
        order.update(dict.fromkeys(tensors))
    place = [0] * count
    for position, value in enumerate(order):
        place[value] = position
    kinds, tensors, nodes = (
        (list(column) for column in zip(*steps, strict=True)) if steps else ([], [], [])
    )
    return Index(
        kinds,
        tensors,
        nodes,
        [itemgetter(*t) for t in tensors],
        readers,
        touching,
        list(order),
        place,
    )


def _single_readers(graph: Graph) -> list[bool]:
    """Per value, whether exactly one node or tie reads it."""
    counts = [len(users) for users in graph.users]
    for node in graph.nodes:
        if node.bodies:
            for value in set(node.operands):
                counts[value] -= 1
    for tie in graph.ties:
        counts[tie.source] += 1
    return [n == 1 for n in counts]


Step = tuple[Kind, tuple[int, ...], int | None]


def _steps(
    graph: Graph, rules: Rules, singles: list[bool], known: dict[object, Kind | None]
) -> Iterator[Step]:
    """Steps in order of execution: a call's incoming ties, its body, its outgoing ties."""
    ties: dict[int, list[Tie]] = {}
    for tie in graph.ties:
        ties.setdefault(tie.call, []).append(tie)

    def region(number: int) -> Iterator[Step]:
        for position in graph.regions[number].nodes:
            node = graph.nodes[position]
            if node.bodies:
                mine = ties.get(position, [])
                yield from (tied(t) for t in mine if t.kind in ENTER)
                for body in node.bodies:
                    yield from region(body)
                yield from (tied(t) for t in mine if t.kind not in ENTER)
                continue
            kind = _kind(node, rules, singles, known)
            if kind is not None:
                yield kind, node.operands + node.results, position

    def tied(tie: Tie) -> Step:
        drop = (tie.source_drop, tie.target_drop)
        shape = graph.values[tie.source].type.shape[drop[0] :]
        key = (shape, drop, singles[tie.target])
        if key not in known:
            known[key] = pass_through(shape, singles[tie.target], drop)
        return known[key], (tie.source, tie.target), tie.call

    return region(0)


ENTER = ("const", "init", "xs")


def _kind(
    node: Node, rules: Rules, singles: list[bool], known: dict[object, Kind | None]
) -> Kind | None:
    key = (node.signature, tuple([singles[v] for v in node.results]))
    if key not in known:
        rows = rules(node.signature) if node.operands else None
        known[key] = kind_of(node.signature, rows, key[1]) if rows else None
    return known[key]


def _exits(
    graph: Graph, exits: tuple[tuple[int, int], ...], known: dict[object, Kind | None]
) -> Iterator[Step]:
    for value, number in exits:
        shape = graph.values[value].type.shape
        key = (shape, (0, 0), False)
        if key not in known:
            known[key] = pass_through(shape, False)
        yield known[key], (value, number), None
