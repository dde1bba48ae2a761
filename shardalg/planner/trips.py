"""The number of iterations of `while` loops, which prices need.

It follows from a counter with a constant bound, or is given by the user (`Options.trips`).

A graph records in its regions how often each one runs per step. A loop whose number of iterations
is unknown counts as one iteration of its condition and one of its body. A loop of `n` known
iterations runs its condition `n + 1` times, as XLA's loops do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardalg.errors import StrategyError
from shardalg.graph.ir import Graph, Node, Region
from shardalg.spmd.instruction import Instruction

Trips = Mapping[str, int]


@dataclass(frozen=True)
class WhileLoop:
    """A `while` loop of a function.

    Attributes:
      node: the loop's node.
      name: "trips_1", "trips_2", ... in the order of the function: the symbol for its iterations.
      key: the key by which `Options.trips` identifies it: its source line, or its name if another
        loop has the same line.
      iterations: iterations per execution of the loop; None if the number is unknown.
    """

    node: Node
    name: str
    key: str
    iterations: int | None

    @property
    def text(self) -> str:
        """The loop's name in messages, for example "the while loop at model.py:7"."""
        at = f" at {self.node.source}" if self.node.source else ""
        return f"the while loop{at}"

    @property
    def remedy(self) -> str:
        """The remedy in messages: the option by which the user gives the number of iterations."""
        return f"pass Options(trips={{{self.key!r}: number of iterations}})"


def while_loops(graph: Graph) -> tuple[WhileLoop, ...]:
    """Return every `while` loop of a graph, with its number of iterations per execution.

    The names of the loops are "trips_1", "trips_2", ... Each also has a key by which the user can
    give its iterations: its source line, or its name.
    """
    nodes = [node for node in graph.nodes_of(("while",)) if node.bodies]
    loops_on_line = Counter(node.source for node in nodes)
    loops = []
    for number, node in enumerate(nodes, 1):
        name = f"trips_{number}"
        # The source line is preferred, because the numbers in "trips_1", "trips_2" shift if another
        # loop is traced before. If two loops are on one line, only the name tells them apart.
        key = node.source if node.source and loops_on_line[node.source] == 1 else name
        loops.append(WhileLoop(node, name, key, graph.iterations(node)))
    return tuple(loops)


def executions_text(graph: Graph, loops: Iterable[Instruction], count: Any) -> str:
    """Return a text that says how often an instruction runs in a step, for reports.

    Examples are "3 times a step" and, in a loop of unknown length, "once per iteration of the while
    loop at model.py:7 (trips_1 iterations, an unknown number)".

    Args:
      loops: the instructions of the loops that contain the instruction.
      count: its executions per step, if each loop of unknown length runs one iteration.
    """
    around = {instruction.node for instruction in loops}
    whiles = [loop for loop in while_loops(graph) if loop.node.index in around]
    unknown = [loop for loop in whiles if loop.iterations is None]
    if not unknown:
        counted = ", ".join(f"{loop.iterations} iterations of {loop.text}" for loop in whiles)
        return f"{_times(count)} a step" + (f" ({counted})" if counted else "")
    # `count` is a multiple of the executions of the outermost unknown loop. The text names this
    # factor separately, because "per iteration" counts within one execution.
    outer = min(graph.trip_count(loop.node) for loop in unknown)
    per_loop = " and ".join(f"per iteration of {loop.text}" for loop in unknown)
    names = " x ".join(loop.name for loop in unknown)
    each = f" in each of {outer} executions of the loop" if outer > 1 else ""
    return (
        f"{_times(count // max(outer, 1))} {per_loop} ({names} iterations{each}, an unknown number)"
    )


def _times(count: Any) -> str:
    return "once" if count == 1 else f"{count} times"


def with_trips(graph: Graph, given: Trips) -> Graph:
    """Return the graph in which the trip counts of regions include iterations of `while` loops.

    Args:
      given: the number of iterations by source line (`model.py:41`) or symbol ("trips_1"); it
        replaces the number that the loop's own counter gives.

    Raises:
      StrategyError: no `while` loop has this line or symbol.

    >>> from jax import lax
    >>> from shardalg.graph.tracing.trace import trace
    >>> def f(x):
    ...     return lax.while_loop(lambda s: s[0] < 7, lambda s: (s[0] + 2, s[1] * 2), (0, x))
    >>> [region.trip_count for region in with_trips(trace(f, 1.0), {}).regions]
    [1, 5, 4]
    """
    loops = while_loops(graph)
    _check_known(loops, given)
    if not loops:
        return graph
    counts: dict[int, int] = {}
    for loop in loops:
        number = given.get(loop.name, given.get(loop.node.source, _counted(graph, loop.node)))
        # The condition is evaluated once more than the body, when it ends the loop.
        condition, body = loop.node.bodies
        counts[condition], counts[body] = (1, 1) if number is None else (number + 1, number)
    # Parents come before their regions, so each trip count is the parent's times a ratio.
    regions: list[Region] = []
    for region in graph.regions:
        outer, before = 1, 1
        if region.parent is not None:
            outer, before = (r[region.parent].trip_count for r in (regions, graph.regions))
        ratio = counts.get(region.index, region.trip_count // max(before, 1))
        regions.append(replace(region, trip_count=outer * ratio))
    made = tuple(regions)
    return graph if made == graph.regions else replace(graph, regions=made)


def without_trips(graph: Graph) -> Graph:
    """Return the graph in which each `while` loop counts as one iteration, as it was traced.

    The iterations of scans, which tracing knows, are kept.
    """
    loops = while_loops(graph)
    if all(loop.iterations is None for loop in loops):
        return graph
    # A trip count contains the counts of all loops around it, so regions inside these loops change,
    # too: each keeps its ratio to its parent. For example, a scan of 5 in a `while` of 10 has the
    # trip count 50, and 5 afterwards. A parent comes before its regions in the list.
    inside = {body for loop in loops for body in loop.node.bodies}
    regions: list[Region] = []
    for region in graph.regions:
        if region.parent is None:
            regions.append(region)
            continue
        outer, before = (r[region.parent].trip_count for r in (regions, graph.regions))
        ratio = 1 if region.index in inside else region.trip_count // max(before, 1)
        regions.append(replace(region, trip_count=outer * ratio))
    return replace(graph, regions=tuple(regions))


def _check_known(loops: tuple[WhileLoop, ...], given: Trips) -> None:
    """Raise unless each key of `given` is the symbol or the source line of a `while` loop.

    Raises:
      StrategyError: a key identifies no loop.
    """
    # A line with several loops is a valid key, too: it then means all of them.
    known = {name for loop in loops for name in (loop.name, loop.node.source)}
    wrong = [name for name in given if name not in known]
    if wrong:
        listed = ", ".join(f"{loop.name} ({loop.node.source})" for loop in loops) or "none"
        raise StrategyError(
            f"trips names {', '.join(map(repr, wrong))}, where the function has no while loop. "
            f"Its while loops are: {listed}."
        )


def _counted(graph: Graph, node: Node) -> int | None:
    """Return the iterations of a `while` loop that counts in constant steps to a constant bound.

    None for any other loop, and if the counter would overflow. The bound is a literal, a constant
    of the condition, or a carried value that the body returns unchanged (`fori_loop` of bounds that
    are arrays).
    """
    loop = _CountedLoop(graph, node)
    # The condition must be a comparison, such as `i < n`.
    condition = graph.regions[node.bodies[0]]
    test_index = graph.producer[condition.results[0]]
    if test_index is None or graph.nodes[test_index].primitive not in _TESTS:
        return None
    test = graph.nodes[test_index]
    # The counter may be either operand of the comparison: `i < n` is also written `n > i`.
    readings = (
        (test.operands, _TESTS[test.primitive]),
        (test.operands[::-1], _TURNED[test.primitive]),
    )
    for (counter, bound), passes in readings:
        # The loop counts if the start, the step and the bound of the counter are all constant.
        step, limit = loop.step(counter), loop.fixed(bound)
        start = None if step is None else loop.start(counter)
        if step is None or limit is None or start is None:
            continue
        count, dtype = _iterations(start, step, limit, passes), graph.values[counter].type.dtype
        # A counter that leaves the range of its integer type starts again at the other end, so that
        # the loop runs on: "uint8" has [0, 255], "int8" has [-128, 127].
        bits = int(dtype.lstrip("uint"))
        least = 0 if dtype.startswith("u") else -(2 ** (bits - 1))
        most = least + 2**bits - 1
        return count if count is not None and least <= start + count * step <= most else None
    return None


Test = Callable[[int, int], bool]
_TESTS: dict[str, Test] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "ne": lambda a, b: a != b,
}
_TURNED = {name: (lambda a, b, test=test: test(b, a)) for name, test in _TESTS.items()}


def _iterations(start: int, step: int, limit: int, passes: Test) -> int | None:
    """Return the number of iterations: the first n for which the loop's test fails.

    None if it never fails.

    Args:
      passes: the test, a function of the counter `start + n * step` and of `limit`.
    """
    if not passes(start, limit):
        return 0
    # The first failure is within one step of the limit, if the counter moves towards it.
    if not step or (limit - start) // step < 0:
        return None
    near = (limit - start) // step
    return next((n for n in range(near, near + 3) if not passes(start + n * step, limit)), None)


@dataclass(frozen=True, eq=False)
class _CountedLoop:
    """Queries about a `while` loop's carried values: their start numbers, steps and constancy."""

    graph: Graph
    node: Node

    @property
    def carried(self) -> dict[int, int]:
        """A dictionary from each carried argument of condition or body to its place in the carry.

        Arguments that are constants of the loop are absent.
        """
        params = self.node.signature.param
        num_constants = params("cond_nconsts"), params("body_nconsts")
        place_of: dict[int, int] = {}
        # The arguments of the condition and of the body are constants first, and then the carry.
        for region, count in zip(self.node.bodies, num_constants, strict=True):
            arguments = self.graph.regions[region].arguments[count:]
            place_of.update((value, place) for place, value in enumerate(arguments))
        return place_of

    def start(self, value: int) -> int | None:
        """Return the integer with which a carried value enters the loop, or None.

        None if it is not a known integer, or if `value` is not carried.
        """
        place, params = self.carried.get(value), self.node.signature.param
        count = params("cond_nconsts") + params("body_nconsts")
        return None if place is None else self.number(self.node.operands[count + place])

    def step(self, value: int) -> int | None:
        """Return the integer that the body adds to a carried value in each iteration, or None.

        None if the body computes it otherwise, or if `value` is not carried.
        """
        place, body = self.carried.get(value), self.graph.regions[self.node.bodies[1]]
        if place is None:
            return None
        # The body returns the next value of the counter at the counter's place in the carry.
        update = self.graph.producer[body.results[place]]
        if update is None or self.graph.nodes[update].primitive not in ("add", "sub"):
            return None
        # The counter is the first operand of a difference, and either operand of a sum.
        node, sign = self.graph.nodes[update], 1
        counter, added = node.operands
        if node.primitive == "sub":
            sign = -1
        elif self.carried.get(added) == place:
            counter, added = added, counter
        number = self.number(added)
        return None if self.carried.get(counter) != place or number is None else sign * number

    def fixed(self, value: int) -> int | None:
        """Return the integer that a value of the condition has in every iteration, or None.

        None if the value changes or is not a known integer.
        """
        place, body = self.carried.get(value), self.graph.regions[self.node.bodies[1]]
        if place is None:
            return self.number(value)
        # A carried value is the same in every iteration if the body returns it unchanged.
        is_kept = self.carried.get(body.results[place]) == place
        return self.start(value) if is_kept else None

    def number(self, value: int) -> int | None:
        """Return the integer to which a value is always equal, or None if there is no such integer.

        The value may be a constant, or an argument of a body to which a constant is passed.
        """
        if value in self.graph.numbers:
            number = self.graph.numbers[value]
            return number if type(number) is int else None
        # Only a constant of a loop is the same value in every iteration; a carry changes.
        ties = [t for t in self.graph.region_arguments if t.target == value]
        if len(ties) == 1 and ties[0].kind == "const":
            return self.number(ties[0].source)
        return None
