"""The guards of a plan with named sizes as a table, those with the smallest margin first.

Planning records every question that it puts to a size (`planner.guards`). Each question whose
answer may differ at other sizes has a row, with the decision and its alternative.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
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
from shardalg.spmd.instruction import Collective
from shardalg.tables import Table

COLUMNS = ("kind", "condition", "margin", "place", "source", "decides", "rests_on", "flips")
NO_CONDITIONS = Table(COLUMNS, ())
CHOICE, DIVIDES, PART = "choice", "divides", "part"


class AskedFact(NamedTuple):
    """A fact about sizes, such as `B - 8 > 0`, that answered a question of planning.

    Attributes:
      asked: the part of planning that asked.
      call: the memoised function call that asked; None if planning asked outside of such calls.
      about: the two choices that were compared; None for other questions.
    """

    fact: Fact
    asked: RunQuestion
    call: DecidedCall | None = None
    about: Weighed | None = None


def conditions(named: Symbolised, guards: Guards | None, options: Options) -> Table:
    """Return the conditions on named sizes under which planning decides the same, a row each.

    Comparisons come first, those with the smallest margin before others.

    Args:
      named: the program with formulas for its sizes.
      guards: the questions about sizes that planning asked. If they are None (not known), the rows
        are only the conditions of the formulas.
    """
    graph, hints = named.graph, named.sizes.hints
    assumed = {one.fact: (one.kind, one.decides) for one in named.conditions}
    facts = (
        [*_asked_facts(guards)]
        if guards
        else [AskedFact(fact, RunQuestion("")) for fact in assumed]
    )
    shardings = [pair for one in named.conditions for pair in one.divided]
    # A choice between ways to compute a node also decides which gathered copies exist for the nodes
    # after it. Conditions of other kinds decide nothing for later nodes.
    nodes = (one.asked.node for one in facts if one.about)
    compared = {graph.nodes[node].signature for node in nodes if node is not None}
    earlier = _EarlierChoices(graph, options, compared)
    rows: dict[str, tuple] = {}
    for one in _nearest(facts, hints):
        # A fact that holds at all sizes, given these shardings, cannot fail, so it is no condition.
        if not is_open(one.fact, shardings=shardings):
            continue
        # An assumption of the formulas already has a kind and words; others get them from their
        # question.
        kind, decides = assumed.get(one.fact) or (_kind(one), _decides(one))
        node = one.asked.node
        where = ("", "") if node is None else place(graph, node)
        rests = earlier.names(node) if kind == CHOICE else ""
        text, near = words(one.fact), margin(one.fact, hints)
        # Facts come in ascending order of their margins, so that `setdefault` keeps, of facts with
        # equal words, the one that fails first when sizes change.
        rows.setdefault(text, (kind, text, near, *where, decides, rests, _flips(one.fact, hints)))
    return Table(COLUMNS, tuple(rows.values()))


def reasons(graph: Graph, guards: Guards) -> dict[Fact, tuple[str, str]]:
    """Return, for each recorded fact, the decision that depends on it and the source line.

    Args:
      graph: the planned function.
      guards: the questions about sizes that planning asked.
    """
    found = {}
    for one in _asked_facts(guards):
        source = "" if one.asked.node is None else place(graph, one.asked.node)[1]
        found[one.fact] = _decides(one), source
    return found


def _asked_facts(guards: Guards) -> Iterator[AskedFact]:
    """Yield each recorded fact about sizes once, with one decision of planning that depends on it.

    If several decisions depend on a fact, a comparison of two choices is preferred.
    """
    # The run asks some facts directly, outside of every memoised call. Their question is kept
    # unless a call asks the same fact to compare two choices, which tells the user more.
    run_facts = {**dict.fromkeys(guards.traced), **guards.whole.facts}
    asked_by_fact = {f: AskedFact(f, part or RunQuestion("")) for f, part in run_facts.items()}
    for call, part in _parts_that_needed(guards.whole).items():
        for fact, about in call.facts.items():
            # "A is cheaper than B if N > 8" tells the user more than "N > 8", so a comparison of
            # two choices replaces a fact without one.
            if fact not in asked_by_fact or (about and not asked_by_fact[fact].about):
                asked_by_fact[fact] = AskedFact(fact, part, call, about)
    yield from asked_by_fact.values()


def _parts_that_needed(
    call: DecidedCall, part: RunQuestion | None = None
) -> dict[DecidedCall, RunQuestion]:
    """Return, for each memoised call inside `call`, the part of planning that needed its result.

    A part is for example the choice for node 7. It is the outermost one: if that choice calls f,
    and f calls g, both f and g belong to the choice. Calls inside the choice of an operator are
    left out, because they only price alternatives.

    Args:
      call: the record of the whole run of planning, or of a memoised call inside it.
      part: the part of planning that needed `call`; None for the whole run, whose own calls name
        their parts (`call.uses`).
    """
    found: dict[DecidedCall, RunQuestion] = {}
    for used, named_part in call.uses.items():
        outermost = part or named_part
        found.setdefault(used, outermost)
        # A choice records its own comparisons, so the calls inside it are not needed.
        is_choice = type(used.result) is NodePlan
        if not is_choice:
            # Several parts may need a call. The part that was found first stays.
            found = {**_parts_that_needed(used, outermost), **found}
    return found


def _nearest(facts: Sequence[AskedFact], hints: Mapping[str, int]) -> list[AskedFact]:
    """Return the facts that no other fact implies.

    Comparisons come first, ordered by how close they are to failing at the hints (`margin`).

    Args:
      hints: the numbers of the named sizes at which the plan was made.
    """
    # A fact about sizes that must all equal their hints holds whenever they do, so it needs no row.
    fixed = {name for one in facts if _fixes_size(one) for name in one.fact.formula.names}
    signs: dict[Formula, set[str]] = defaultdict(set)
    for one in facts:
        signs[one.fact.formula].add(one.fact.relation)
    found = []
    for one in facts:
        # None if another fact about the same formula implies this one.
        fact = _strictest(one.fact, signs)
        # A memoised call that relied on an equality is repeated at sizes where this equality fails,
        # and can return the same result. Such an equality is therefore no condition of the plan.
        again = one.call is not None and one.fact.relation == ZERO
        implied = not _fixes_size(one) and one.fact.formula.names <= fixed
        if not (fact is None or again or implied):
            found.append(one._replace(fact=fact))
    # The margin is None for facts that are no comparisons, such as divisibility; these come last.
    near = [margin(one.fact, hints) for one in found]
    order = sorted(range(len(found)), key=lambda i: (near[i] is None, near[i] or 0, i))
    return [found[i] for i in order]


def _fixes_size(asked: AskedFact) -> bool:
    """Return whether a fact allows only one number of a named size, which is its hint."""
    fact, formula = asked.fact, asked.fact.formula
    alone = len(formula.names) == 1 and not formula.atoms
    return asked.call is None and fact.relation == ZERO and alone


def _strictest(fact: Fact, signs: Mapping[Formula, Set[str]]) -> Fact | None:
    """Return a fact, or the stricter fact `> 0` for `>= 0` if `!= 0` holds for the formula, too.

    None means that another fact implies this one, so that it needs no row.

    Args:
      signs: by formula, the relations of all facts about it, such as {">= 0", "!= 0"}.
    """
    relations, opposite_relations = (
        signs.get(formula, frozenset()) for formula in (fact.formula, -fact.formula)
    )
    all_relations = relations | opposite_relations
    # With a fact about the sign, `!= 0` is part of that fact: `> 0` implies it, and `>= 0` becomes
    # `> 0` below.
    if fact.relation == NONZERO:
        return None if all_relations & {POSITIVE, NONNEGATIVE} else fact
    if fact.relation == NONNEGATIVE and all_relations & {POSITIVE, NONZERO}:
        return None if POSITIVE in relations else Fact(fact.formula, POSITIVE)
    return fact


def _kind(asked: AskedFact) -> str:
    """Return the kind of decision that depends on a fact, such as "choice" or "divides".

    It is the entry `kind` of the row that `Plan.changes` gets if the fact fails.
    """
    # From the most specific kind to the most general one: a size that must divide, a size that must
    # equal its hint, a question of a whole stage, and a question of a memoised call.
    if split_of(asked.fact) is not None:
        return DIVIDES
    if _fixes_size(asked):
        return PART
    if asked.call is None:
        return asked.asked.kind
    return CHOICE if type(asked.call.result) is NodePlan else "collectives"


def _decides(asked: AskedFact) -> str:
    """Return the decision that depends on a fact, with the rejected alternative if it is known.

    E.g. "i over X rather than j over X (time)", or "[X, None] to [None, X]: all_to_all".
    """
    # A comparison of two choices: the fact decides which one is better.
    if asked.about:
        choice, rejected, reason = asked.about
        return f"{_loops(choice)} rather than {_loops(rejected)} ({reason})"
    # Facts outside of memoised calls belong to a whole stage of planning, which `_RUN` names.
    if asked.call is None:
        return _RUN[asked.asked.kind]
    result = asked.call.result
    # The memoised call chose the loops of an operator.
    if type(result) is NodePlan:
        return _loops(result.choice)
    # All other memoised calls find the moves from one sharding to another.
    source, target = asked.call.args[:2]
    moves: Iterable[object]
    if isinstance(result, Path):
        moves = (step.attributes for step in result.steps)
    else:
        moves = (step.move for step in result)
    kinds_of_moves = ", ".join(move.sent_as for move in moves if isinstance(move, Collective))
    return f"{source.text()} to {target.text()}: {kinds_of_moves or 'slices'}"


_RUN = {
    "": "sizes that Python makes",
    "sharding": "how shardings are completed",
    "collectives": "what is moved",
}


def _loops(choice: Choice) -> str:
    """Return how a choice partitions an operator, as text: its loops with their mesh axes.

    Axes along which an operand is a pending sum are added.
    """
    mesh = (*choice.produced, *choice.required_shardings)[0].mesh
    # A dict in place of a set keeps the order of the axes, so that texts are the same in every run.
    pending = {
        axis: None
        for required in choice.required_shardings
        for axis in mesh.texts(required.unreduced)
    }
    sums = f" of partial sums along {','.join(pending)}" if pending else ""
    return (loops_over(mesh, choice.loops) or "the whole") + sums


def _flips(fact: Fact, hints: Mapping[str, int]) -> str:
    """Return the sizes nearest to the hints at which a fact changes, as "B <= 32, X >= 8"."""
    found = ((name, size) for name, sizes in flips(fact, hints).items() for size in sizes)
    return ", ".join(f"{n} {'<=' if size < hints[n] else '>='} {size}" for n, size in found)


class _EarlierChoices:
    """A search for earlier nodes whose choices affect the choice of a node.

    If an earlier node gathers an operand, the node can use this copy without communication.
    """

    def __init__(self, graph: Graph, options: Options, compared: Set[Signature]) -> None:
        self.graph, self.compared = graph, compared
        self.keeps = options.keep_gathers is not False
        self.deferrable = kinds(graph).deferrable[options.switches.finite_sums]

    def names(self, node: int | None) -> str:
        """Return, as text, the nearest earlier nodes whose choices affect the choice of `node`.

        If one of them chooses otherwise at other sizes, the conditions of `node` say nothing.
        """
        # `compared` has the operators of which planning compared two ways to compute them.
        nodes, earlier, pending = self.graph.nodes, set[int](), set() if node is None else {node}
        # A node without a compared choice only passes on the shardings of its operands, so the
        # choice that matters is further back.
        while pending:
            direct = {n for index in pending for n in self._providers(nodes[index])} - earlier
            earlier |= direct
            pending = {n for n in direct if nodes[n].signature not in self.compared}
        compared_nodes = (n for n in sorted(earlier) if nodes[n].signature in self.compared)
        return ", ".join(place(self.graph, n)[0] for n in compared_nodes)

    def _providers(self, node: Node) -> Iterator[int]:
        """Yield the earlier nodes that may leave a copy of an operand of `node`.

        Such a node reads the same operand, or returns it as a pending sum. The numbers of the nodes
        are yielded.
        """
        graph = self.graph
        for value in node.operands:
            # Unless copies are kept, the backward pass cannot use a copy of the forward pass.
            for n in graph.users[value]:
                if n < node.index and (self.keeps or graph.nodes[n].phase == node.phase):
                    yield n
            # The producer decides whether its sum is reduced at once or stays pending.
            producer = graph.producer[value]
            if value in self.deferrable and producer is not None:
                yield producer
