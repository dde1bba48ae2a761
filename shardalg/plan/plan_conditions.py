"""What ties a plan with named sizes to its hints: the facts of its planning, the nearest first.

Planning noted every question that it put to a size (`planner.guards`). Here each that may have
another answer at other sizes is a row: what it decided, and what else could have been.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import NamedTuple

from shardalg.costs.symbolic import Symbolised
from shardalg.graph.ir import Graph, Node, Signature
from shardalg.plan.explain.decisions import loops_over, place
from shardalg.planner.guards import RunQuestion
from shardalg.planner.partition.choose.key import Choice, Weighed
from shardalg.planner.partition.choose.node_classes import kinds
from shardalg.planner.partition.emit.node import NodePlan
from shardalg.planner.propagate.options import Options
from shardalg.planner.reshard.paths import Path
from shardalg.sizes.conditions import flips, is_open, margin, split_of, words
from shardalg.sizes.decided import DecidedCall, Guards
from shardalg.sizes.facts import NONNEGATIVE, NONZERO, POSITIVE, ZERO, Fact
from shardalg.sizes.formula import Formula
from shardalg.sizes.growth import Shardings
from shardalg.spmd.instruction import Collective
from shardalg.tables import Table

COLUMNS = ("kind", "condition", "margin", "place", "source", "decides", "rests_on", "flips")
NO_CONDITIONS = Table(COLUMNS, ())
CHOICE, DIVIDES, PART = "choice", "divides", "part"


class AskedFact(NamedTuple):
    """A fact, and who asked it.

    Attributes:
      asked: what the run was about. call: inside of which it was asked; None in the run itself.
      about: what was weighed against what; None where it was another question.
    """

    fact: Fact
    asked: RunQuestion
    call: DecidedCall | None = None
    about: Weighed | None = None


def conditions(named: Symbolised, guards: Guards | None, options: Options) -> Table:
    """Every fact that may fail at other sizes: comparisons by margin, then what is split or held.

    Args:
      guards: None where they are not known: then what the formulas rest on is listed alone.
    """
    graph, hints = named.graph, named.sizes.hints
    assumed = {one.fact: (one.kind, one.decides) for one in named.conditions}
    region_arguments = (
        [*_region_arguments(guards)]
        if guards
        else [AskedFact(fact, RunQuestion("")) for fact in assumed]
    )
    shardings = [pair for one in named.conditions for pair in one.divided]
    nodes = (tie.asked.node for tie in region_arguments if tie.about)
    weighed = {graph.nodes[node].signature for node in nodes if node is not None}
    before = _Before(graph, options, weighed)
    rows: dict[str, tuple] = {}
    for tie in _open(_nearest(region_arguments, hints), shardings):
        kind, decides = assumed.get(tie.fact) or (_kind(tie), _decides(tie))
        where = _place(graph, tie.asked.node)
        near, turns = margin(tie.fact, hints), _turns(tie.fact, hints)
        rests = before.names(tie.asked.node) if kind == CHOICE else ""
        text = words(tie.fact)
        rows.setdefault(text, (kind, text, near, *where, decides, rests, turns))
    return Table(COLUMNS, tuple(rows.values()))


def _region_arguments(guards: Guards) -> Iterator[AskedFact]:
    """Every fact once: as what a choice was held against, else as the run or a call asked it."""
    own = {**dict.fromkeys(guards.traced), **guards.whole.facts}
    found = {f: AskedFact(f, asked or RunQuestion("")) for f, asked in own.items()}
    for call, asked in _askers(guards.whole).items():
        for fact, about in call.facts.items():
            if fact not in found or (about and not found[fact].about):
                found[fact] = AskedFact(fact, asked, call, about)
    yield from found.values()


def _open(region_arguments: Iterable[AskedFact], shardings: Shardings) -> Iterator[AskedFact]:
    """Those that may fail at some sizes."""
    return (tie for tie in region_arguments if is_open(tie.fact, shardings=shardings))


def _askers(call: DecidedCall, asked: RunQuestion | None = None) -> dict[DecidedCall, RunQuestion]:
    """What the run was about when it first made each call.

    Not those inside of a choice: they price what else could have been.
    """
    found: dict[DecidedCall, RunQuestion] = {}
    for used, about in call.uses.items():
        found.setdefault(used, asked or about)
        if type(used.result) is not NodePlan:
            found = {**_askers(used, asked or about), **found}
    return found


def _nearest(region_arguments: Iterable[AskedFact], hints: Mapping[str, int]) -> list[AskedFact]:
    """Comparisons by margin, then the rest; what follows from another fact is left out.

    So is an equality inside of a call: it says that the call is asked again at all other sizes.
    """
    held = {name for tie in region_arguments if _is_held(tie) for name in tie.fact.formula.names}
    signs: dict[Formula, set[str]] = defaultdict(set)
    for tie in region_arguments:
        signs[tie.fact.formula].add(tie.fact.relation)
    found = []
    for tie in region_arguments:
        fact = _joined(tie.fact, signs)
        again = tie.call is not None and tie.fact.relation == ZERO
        implied = not _is_held(tie) and tie.fact.formula.names <= held
        if not (fact is None or again or implied):
            found.append(tie._replace(fact=fact))
    near = [margin(tie.fact, hints) for tie in found]
    order = sorted(range(len(found)), key=lambda i: (near[i] is None, near[i] or 0, i))
    return [found[i] for i in order]


def _is_held(tie: AskedFact) -> bool:
    """Whether the run rests on one size being a number."""
    fact, formula = tie.fact, tie.fact.formula
    alone = len(formula.names) == 1 and not formula.atoms
    return tie.call is None and fact.relation == ZERO and alone


def _joined(fact: Fact, signs: Mapping[Formula, Set[str]]) -> Fact | None:
    """The strict form of a comparison where both of `>= 0` and `!= 0` were asked; None of others.

    One of them is enough.
    """
    here, opposite = (signs.get(f, frozenset()) for f in (fact.formula, -fact.formula))
    both = here | opposite
    if fact.relation == NONZERO:
        return None if both & {POSITIVE, NONNEGATIVE} else fact
    if fact.relation == NONNEGATIVE and both & {POSITIVE, NONZERO}:
        return None if POSITIVE in here else Fact(fact.formula, POSITIVE)
    return fact


def _kind(tie: AskedFact) -> str:
    """The part of `Plan.changes` in which another answer would show first."""
    if split_of(tie.fact) is not None:
        return DIVIDES
    if _is_held(tie):
        return PART
    if tie.call is None:
        return tie.asked.kind
    return CHOICE if type(tie.call.result) is NodePlan else "collectives"


def _decides(tie: AskedFact) -> str:
    """What was chosen, and what else could have been where that is known."""
    if tie.about:
        chosen, other, by = tie.about
        return f"{_loops(chosen)} rather than {_loops(other)} ({by})"
    if tie.call is None:
        return _RUN[tie.asked.kind]
    result = tie.call.result
    if type(result) is NodePlan:
        return _loops(result.choice)
    source, target = tie.call.args[:2]
    moves: Iterable[object]
    if isinstance(result, Path):
        moves = (step.attributes for step in result.steps)
    else:
        moves = (step.move for step in result)
    made = ", ".join(move.sent_as for move in moves if isinstance(move, Collective))
    return f"{source.text()} to {target.text()}: {made or 'slices'}"


_RUN = {
    "": "sizes that Python makes",
    "sharding": "how shardings are completed",
    "collectives": "what is moved",
}


def _loops(choice: Choice) -> str:
    """The axes on the loops, and those along which operands are partial sums."""
    mesh = (*choice.produced, *choice.required_shardings)[0].mesh
    pending = {
        axis: None
        for required in choice.required_shardings
        for axis in mesh.texts(required.unreduced)
    }
    sums = f" of partial sums along {','.join(pending)}" if pending else ""
    return (loops_over(mesh, choice.loops) or "the whole") + sums


def _place(graph: Graph, node: int | None) -> tuple[str, str]:
    return ("", "") if node is None else place(graph, node)


def _turns(fact: Fact, hints: Mapping[str, int]) -> str:
    found = ((name, size) for name, sizes in flips(fact, hints).items() for size in sizes)
    return ", ".join(f"{n} {'<=' if size < hints[n] else '>='} {size}" for n, size in found)


class _Before:
    """Earlier nodes with a choice that decide what is at hand at a node, the nearest of them."""

    def __init__(self, graph: Graph, options: Options, weighed: Set[Signature]) -> None:
        self.graph, self.weighed = graph, weighed
        self.keeps = options.keep_gathers is not False
        self.deferrable = kinds(graph).deferrable[options.switches.finite_sums]

    def names(self, node: int | None) -> str:
        """Their names: where one of them chooses otherwise, a condition here says nothing."""
        nodes, found, left = self.graph.nodes, set[int](), set() if node is None else {node}
        while left:
            direct = {n for index in left for n in self.leaving(nodes[index])} - found
            found |= direct
            left = {n for n in direct if nodes[n].signature not in self.weighed}
        kept = (n for n in sorted(found) if nodes[n].signature in self.weighed)
        return ", ".join(place(self.graph, n)[0] for n in kept)

    def leaving(self, node: Node) -> Iterator[int]:
        """Earlier nodes that decide what is at hand of a node's operands.

        They read one too, so that their copy of it may serve again, or hand on a pending sum.
        """
        graph = self.graph
        for value in node.operands:
            for n in graph.users[value]:
                if n < node.index and (self.keeps or graph.nodes[n].phase == node.phase):
                    yield n
            producer = graph.producer[value]
            if value in self.deferrable and producer is not None:
                yield producer
