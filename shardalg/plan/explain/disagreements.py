"""The two shardings behind a collective: the one that a value has, and the one that is needed.

The program has both: they are the first and the last sharding of the chain of moves that the
collective is part of. On either side, the collective's axes are followed back through completion
(`explained.py`) to the annotations that they come from. A listing shows both sides per value.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digits, overlap
from shardalg.algebra.sharding import Sharding
from shardalg.costs.collectives import MOVES, MovedValue, Traffic
from shardalg.graph.ir import Graph, Node
from shardalg.graph.ops.rows import rules
from shardalg.plan.explain.explained import Annotated, annotations_of, chain, dims_of, held
from shardalg.planner.propagate.sharded import ShardedGraph
from shardalg.show.html import Listing
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import Apply, Control
from shardalg.spmd.local import Local
from shardalg.spmd.manual import USER_COLLECTIVES
from shardalg.spmd.program import SpmdProgram

_PARTS = {"sum": "a sum", "max": "a maximum", "min": "a minimum", "prod": "a product"}


def _operator(node: Node) -> str:
    """Return an operator with its line, as "dot_general (model.py:41)"."""
    return f"{node.primitive} ({node.source})" if node.source else node.primitive


@dataclass(frozen=True)
class Side:
    """One of the two shardings that differ at a collective.

    Attributes:
      layout: the sharding of the value. words: the operator or value that has or needs it.
      annotations: the origins of the collective's axes (or of their absence) on this side.
    """

    layout: Sharding
    words: str
    annotations: tuple[Annotated, ...]


def disagreement(sharded: ShardedGraph, traffic: Traffic, moved: MovedValue) -> tuple[Side, Side]:
    """Return the two shardings between which a collective moves a value: before and after.

    Each of the two has the annotations from which it comes.

    Args:
      traffic: all collectives of the program.
      moved: the collective, with the value that it moves.
    """
    reading = _Reading(sharded, traffic, moved)
    has, needs = reading.has(), reading.needs()
    # No completed sharding caused the move: name the nearest annotations instead.
    if has.annotations or needs.annotations:
        return has, needs
    return replace(has, annotations=reading.nearest()), needs


Cause = tuple[int, Digits | None]
"""A value and the digits of its sharding that cause a move; None for its whole sharding.

A replicated value has no digits that could be named.
"""


@dataclass(frozen=True, eq=False)
class _Reading:
    """A search for the causes of one collective: the shardings before and after it.

    Attributes:
      traffic: all collectives of the program. moved: the collective.
    """

    sharded: ShardedGraph
    traffic: Traffic
    moved: MovedValue

    @cached_property
    def ends(self) -> tuple[Local, Local]:
        """The local values before and after the chain of moves."""
        return self.traffic.ends(self.moved)

    @property
    def graph(self) -> Graph:
        """The graph of the plan."""
        return self.sharded.graph

    def has(self) -> Side:
        """Return the sharding that the value has before the move, with its origin.

        There are three cases: the value is a partial sum; it has the sharding that completion
        chose; or its operator computed it in another sharding.
        """
        first, digits, value = self.ends[0], self.moved.digits, self.moved.value
        name = self.graph.values[value].name
        pending = tuple([d for d in digits if d in first.sharding.unreduced])
        if pending:
            words, causes = self._in_parts(first.index), [*self._summed(first.index, pending)]
        else:
            words, own = f"{name} has this sharding", held(first.sharding, digits)
            home = self.sharded.shardings[value]
            # The operator can compute its result with an axis on another dimension than completion
            # chose. Then the operator's other tensors are the cause, not the value itself.
            at_result = tuple(d for d in own if dims_of(home, d) == dims_of(first.sharding, d))
            causes = [(value, at_result)] if at_result else [*self._made(first.index, own)]
        # If no annotation leads to these digits, those that lead to the value at all are given.
        found = self._annotations(causes) or self._annotations([(value, None)])
        return Side(first.sharding, words, found)

    def _in_parts(self, local: int) -> str:
        """Return text that a value is a pending sum, with the operator that computed its parts.

        Each device has a part of a pending sum: its value is the sum of the parts of all devices.

        Args:
          local: number of the local value that holds the parts.
        """
        # `made_by` has the instruction that makes a local value; arguments have none.
        made, program = self.traffic.made_by.get(local), self.traffic.program
        # A pending sum can pass through linear operators: go back to the one that made the parts.
        while made is not None and not isinstance(made.attributes, Control):
            pending = [o for o in made.operands if program.locals[o].sharding.unreduced]
            if not pending:
                break
            made = self.traffic.made_by.get(pending[0])
        attributes = self.moved.step.instruction.attributes
        what = _PARTS.get(getattr(attributes, "combine", "sum"), "a result")
        name = self.graph.values[self.moved.value].name
        node = None if made is None or made.node is None else self.graph.nodes[made.node]
        other = "" if node is None or self.moved.value in node.results else _operator(node)
        return f"{name} is {what} that is pending" + (f", made by {other}" if other else "")

    def needs(self) -> Side:
        """Return the sharding that the value has after the move, with the operator that needs it.

        A result of the function needs its sharding without an operator. The annotations are those
        from which the sharding comes.
        """
        # `ends` are the moved value before and after the move.
        layout, value = self.ends[1].sharding, self.moved.value
        number = self.moved.step.instruction.node
        # Only results of the function move without an operator.
        if number is None:
            return Side(layout, self._leaves(), self._results(value))
        node = self.graph.nodes[number]
        readers = self.traffic.readers.get(self.ends[1].index, ())
        readers_that_compute = [
            r for r in readers if type(r.attributes) is Apply and r.node == number
        ]
        # The operator itself reads the moved operand: its split loops need the sharding.
        if readers_that_compute and value not in node.results:
            loop_causes = [
                c
                for c in self._on_loops(readers_that_compute[0], self.moved.digits)
                if c[0] != value
            ]
            causes = loop_causes or [(result, None) for result in node.results]
            words = "needs this sharding"
        else:
            words = self._kept(node)
            causes = [(value, held(layout, self.moved.digits) or None)]
        # If no annotation leads to the causes, those of the operator's tensors are the next best.
        around = [(tensor, None) for tensor in (*node.results, *node.operands)]
        annotations_found = self._annotations(causes) or self._annotations(around)
        return Side(layout, f"{_operator(node)} {words}", annotations_found)

    def _kept(self, node: Node) -> str:
        """Return text: why an operator moves a value, if its instruction does not read the value.

        The text continues the operator's name: "is where the parts are combined", for example.

        Args:
          node: the operator for which the collective moves the value.
        """
        first, last = (end.sharding for end in self.ends)
        if node.primitive in USER_COLLECTIVES:
            return "is in the function's own shard_map"
        if first.unreduced:
            return "is where the parts are combined"
        # Equal dims without a pending sum: a halo exchange, or a shift.
        if first.dims == last.dims:
            return "reads blocks of neighbours"
        made_here = self.moved.value in node.results
        return "returns it with this sharding" if made_here else "takes it with this sharding"

    def _leaves(self) -> str:
        """Return text: the reason why a value must be moved to the sharding of a result."""
        value, first = self.moved.value, self.ends[0].sharding
        if self._results(value) or first.is_even:
            return "a result of the function has this sharding"
        return "a result of the function must be even, but its size does not divide"

    def nearest(self) -> tuple[Annotated, ...]:
        """Return the annotations of the nearest annotated value, counted in operators.

        Annotations that use an axis of the collective are preferred. They are the answer if no
        sharding from completion explains the collective: its loops were chosen by cost, or it is in
        a `shard_map`.
        """
        digits = self.moved.digits
        fallback: tuple[Annotated, ...] = ()
        for value in self._around():
            own = held(self.sharded.shardings[value], digits)
            found = annotations_of(self.sharded, value, own or None)
            # Annotations of the collective's own axes explain more than those that are only near.
            if found and own:
                return found
            fallback = fallback or found
        return fallback

    def _around(self) -> Iterator[int]:
        """Yield values by their distance from the moved value, counted in operators.

        A value in a loop body is as near as the value outside that enters it.
        """
        # Values on both sides of a region's border, such as a loop's argument and the value that
        # enters it, are one value: they are tied without an operator between them.
        graph, tied = self.graph, defaultdict(list)
        for tie in graph.region_arguments:
            tied[tie.source].append(tie.target)
            tied[tie.target].append(tie.source)
        # Breadth-first search, so that values come in the order of their distance.
        waiting, seen = deque([self.moved.value]), {self.moved.value}
        while waiting:
            value = waiting.popleft()
            yield value
            nodes = [n for n in (graph.producer[value], *graph.users[value]) if n is not None]
            beside = [v for n in nodes for v in (*graph.nodes[n].operands, *graph.nodes[n].results)]
            new_values = [v for v in dict.fromkeys((*tied[value], *beside)) if v not in seen]
            seen.update(new_values)
            waiting.extend(new_values)

    def _annotations(self, causes: Iterable[Cause]) -> tuple[Annotated, ...]:
        """Return the annotations from which completion took the axes in `causes`, each once.

        Args:
          causes: (value, digits) for values whose sharding along these digits led to the
            collective.
        """
        found = (annotations_of(self.sharded, *cause) for cause in causes)
        return tuple(dict.fromkeys(place for places in found for place in places))

    def _results(self, value: int) -> tuple[Annotated, ...]:
        """Return the annotated results of the function that are the value with this number.

        A function may return one value several times. Empty if completion chose their shardings.
        """
        graph, given = self.graph, self.sharded.annotations.results
        return tuple(
            Annotated("result", graph.result_paths[number], number)
            for number, result in enumerate(graph.results)
            if result == value and given[number] is not None
        )

    def _summed(self, local: int, digits: Digits) -> Iterator[Cause]:
        """Yield the operands whose digits made a sum partial, at its operator or at earlier ones.

        Args:
          local: number of the local value that is the partial sum.
          digits: the digits along which it is partial.
        """
        made = self.traffic.made_by.get(local)
        if made is None or isinstance(made.attributes, Control):
            return
        # A sum that this operator did not make came in with a pending operand.
        found = [*self._on_loops(made, digits)]
        yield from found
        for operand in () if found else made.operands:
            if set(digits) & set(self.traffic.program.locals[operand].sharding.unreduced):
                yield from self._summed(operand, digits)

    def _made(self, local: int, digits: Digits) -> Iterator[Cause]:
        """Yield the causes, at the operator that computed a value, of its sharding along digits.

        A cause is an operand or a result of this operator that is sharded along one of the digits.

        Args:
          local: number of the local value. Moves between it and its operator are skipped.
          digits: the digits to explain.
        """
        made = self.traffic.made_by.get(local)
        # Moves only change the sharding. The reason is at the operator that computed the value,
        # before the first move.
        while made is not None and isinstance(made.attributes, MOVES):
            made = self.traffic.made_by.get(made.operands[0])
        if made is not None:
            yield from self._on_loops(made, digits)

    def _on_loops(self, instruction: Instruction, digits: Digits) -> Iterator[Cause]:
        """Yield (value, digits) for the tensors of an operator that some of the digits shard.

        Only dimensions count whose loop the operator was partitioned along. A digit is a mesh axis
        or a part of one.
        """
        apply = instruction.attributes
        if not isinstance(apply, Apply) or instruction.node is None:
            return
        node = self.graph.nodes[instruction.node]
        for name, own in apply.loops:
            # The loop may be partitioned along the same axis or along a part of it (`overlap`).
            shared = tuple([d for d in own if any(d == o or overlap(d, o) for o in digits)])
            for value, dims in self._tensors(node) if shared else ():
                layout = self.sharded.shardings[value]
                # The row may name fewer dimensions than an index tensor (of a gather) has, so the
                # two tuples may differ in length.
                pairs = zip(layout.dims, dims, strict=False)
                on_loop = [o for o, index in pairs if name in index.variables]
                wanted = tuple([d for o in on_loop for d in o if d in shared])
                if wanted:
                    yield value, wanted

    def _tensors(self, node: Node) -> Iterator[tuple[int, tuple[Index, ...]]]:
        """Yield (value, index of each dimension) for each operand and result of a node."""
        rows = rules(node.signature) or ()
        for rule in rows:
            yield from ((node.operands[k], dims) for k, dims in rule.operands.items())
        yield from zip(node.results, (dims for rule in rows for dims in rule.results), strict=False)


MOST_STEPS = 8
"""A tooltip with more lines is hard to read."""


def program_listing(program: SpmdProgram, sharded: ShardedGraph) -> Listing:
    """Return the program as text, with an explanation of each value that opens as a tooltip.

    The explanation lists the steps of completion that gave the value its sharding. For the result
    of a collective, it also has the sharding before the collective and the sharding needed after.
    """
    # Each copy of a value in another sharding is a local value of its own with the same chain of
    # reasons, so the text is made once.
    chain_of = cache(lambda value: chain_text(sharded, value))
    titles = {v.index: chain_of(v.origin) for v in program.locals if v.origin is not None}
    traffic = Traffic(program, sharded.graph)
    for moved in traffic.collectives:
        # The chain explains the sharding after the move. The reader also needs the two shardings
        # that made the move necessary.
        words = sides_text(moved.number, disagreement(sharded, traffic, moved))
        for result in moved.step.instruction.results:
            titles[result] = "\n".join(filter(None, (titles.get(result), words)))
    named = ((f"%{index}", title) for index, title in titles.items())
    return Listing(program.text(sharded.graph), tuple(named))


def sides_text(number: int, sides: tuple[Side, Side]) -> str:
    """Return a collective's number and the shardings before and after it, as text.

    Each sharding has the annotations from which it comes.
    """
    lines = [f"collective {number}, see plan.explain({number}):"]
    for side in sides:
        said = ", ".join(map(str, side.annotations)) or "no annotation"
        lines.append(f"  {side.words}: {side.layout.text()} ({said})")
    return "\n".join(lines)


def chain_text(sharded: ShardedGraph, value: int) -> str:
    """Return the first steps that gave a value its sharding, a line each, indented by depth.

    A step says from which value the sharding came, through which operator, or that the value is
    annotated. At most `MOST_STEPS` steps are listed.

    >>> import jax
    >>> from shardalg.algebra.mesh import Mesh
    >>> from shardalg.graph.tracing.trace import trace
    >>> from shardalg.planner.propagate import Strategy, propagate, resolve
    >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
    >>> graph = trace(lambda x: -x, x)
    >>> strategy = Strategy(Mesh({"X": 2}), (jax.sharding.PartitionSpec("X"),))
    >>> print(chain_text(propagate(graph, resolve(graph, strategy)), graph.results[0]))
    neg:1... [X, None]
      from x through neg (pointwise, forward, level 0), ...
        x [X, None]: annotated
    """
    graph, links = sharded.graph, list(chain(sharded, value))
    lines = [f"{graph.values[value].name} {sharded.shardings[value].text()}"]
    for link in links[:MOST_STEPS]:
        source = "" if link.reason.node is None else graph.nodes[link.reason.node].source
        name, words = graph.values[link.reason.value].name, link.reason.text(graph)
        # The first line names the value itself, so its own step does not repeat it.
        subject = "" if not link.depth else f"{name} {link.reason.layout.text()}: "
        lines.append("  " * (link.depth + 1) + subject + words + (f", {source}" if source else ""))
    return "\n".join(lines + [f"... {len(links) - MOST_STEPS} more"] * (len(links) > MOST_STEPS))
