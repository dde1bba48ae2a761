"""Causes of a step's time, each with the seconds that removing it would save.

The seconds of all causes add up to the step. The seconds of an instruction belong to the first
cause in this list that applies:

    pipeline bubbles: the trip of a pipeline loop has no microbatch
    recomputation: an operator of the backward pass repeats the forward pass
    idle devices along an axis: devices along a mesh axis compute the same result of a product, so
        that they could do other work
    padding: blocks are filled up with zeros
    memory traffic, matrix products: all other seconds of local operators

Seconds of communication that no computation hides are a cause of their own for each mesh axis.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from shardalg.costs.analyses.cause_bars import cause_bar, limit_color
from shardalg.costs.collectives import axis_names
from shardalg.costs.compute import multiplies, operand_type, shaped_flops, signature_flops
from shardalg.costs.hardware import Hardware
from shardalg.costs.pipelines.loops import pipeline_loops
from shardalg.costs.pipelines.overheads import recomputed_nodes
from shardalg.costs.step_time import Timed, timed
from shardalg.costs.topology import Topology
from shardalg.graph.ir import Graph
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import Apply
from shardalg.spmd.program import SpmdProgram
from shardalg.svg import draw_bars, drawing_card
from shardalg.tables import Table, seconds_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PRODUCTS, MEMORY = "matrix products", "memory traffic"
RECOMPUTED, BUBBLES, PADDING = "recomputation", "pipeline bubbles", "padding"
IDLE, EXPOSED = "idle devices", "exposed communication"


@dataclass(frozen=True)
class StepLimits:
    """Seconds of a step by cause, and its flops.

    Attributes:
      seconds: for each cause, such as "padding", its seconds; their sum is the step.
      model_flops: flops of the mathematical step on all devices: without recomputation, bubbles,
        padding and repeated work. Attention counts without its mask.
      model_s: seconds that one device at its peak needs for `model_flops`.
      executed_flops: flops that all devices carry out, everything included.
    """

    seconds: Mapping[str, float]
    model_flops: float
    model_s: float
    executed_flops: float

    @cached_property
    def step_s(self) -> float:
        """Seconds of the step."""
        return sum(self.seconds.values())

    def reaching(self, step_s: float, whole_s: Mapping[str, float]) -> StepLimits:
        """Return the causes of a step of another length, with exposed communication changed.

        The exposed communication becomes the rest of `step_s` after all other causes. The length
        differs if another overlap is assumed, or if computation is too short to hide its share of
        the communication. Additional exposed seconds are distributed over the axes in proportion to
        their hidden seconds.

        Args:
          step_s: seconds of the step.
          whole_s: seconds of all communication, hidden or not, by mesh axes.
        """
        names = {f"{EXPOSED} along {axes}": seconds for axes, seconds in whole_s.items()}
        exposed = {name: self.seconds.get(name, 0.0) for name in names}
        sent = sum(exposed.values())
        rest = max(0.0, step_s - (self.step_s - sent))
        # A rounding error of the sums must not change the causes.
        if math.isclose(rest, sent, rel_tol=1e-12, abs_tol=1e-12 * step_s):
            return self
        hidden = {name: max(0.0, names[name] - s) for name, s in exposed.items()}
        more, total = rest - sent, sum(hidden.values())
        # Without hidden seconds there is no such proportion, and fewer seconds need none: then all
        # exposed seconds are scaled alike.
        if more > 0 and total:
            exposed = {name: s + more * hidden[name] / total for name, s in exposed.items()}
        elif sent:
            exposed = {name: s * rest / sent for name, s in exposed.items()}
        return replace(self, seconds={**self.seconds, **exposed})

    def table(self) -> Table:
        """Return a table with a row per cause: seconds, and share of the step; the largest first.

        Removing a single cause saves its seconds. Examples are faster links, more memory bandwidth,
        no remat, more microbatches, sizes that divide, or a use for an idle mesh axis.
        """
        step = self.step_s
        ordered = sorted(self.seconds.items(), key=lambda part: -part[1])
        rows = ((name, s, s / step if step else 0.0) for name, s in ordered if s > 0)
        return Table(("part", "saves_s", "share_of_step"), tuple(rows))

    def draw(self) -> Figure:
        """Draw the seconds of each cause as a segment of one bar."""
        from shardalg.drawing import Drawing

        figure = Drawing(figsize=(7.2, 1.9), layout="constrained")
        axes, left = figure.subplots(), 0.0
        for name, seconds, share in self.table().rows:
            label = f"{name}: {seconds_text(seconds)} ({share:.0%})"
            axes.barh(0, 1e3 * seconds, left=left, height=0.6, label=label, color=limit_color(name))
            left += 1e3 * seconds
        axes.set(xlabel="ms of a step", yticks=(), xlim=(0, left or 1), ylim=(-0.5, 0.5))
        axes.spines[["top", "right", "left"]].set_visible(False)
        if left:  # matplotlib warns of a legend without entries
            axes.legend(
                frameon=False, fontsize=8, ncols=2, loc="upper left", bbox_to_anchor=(0, 1.9)
            )
        return figure

    def __add__(self, other: StepLimits) -> StepLimits:
        """Return the sum of two steps, cause by cause."""
        names = dict.fromkeys((*self.seconds, *other.seconds))
        seconds = {n: self.seconds.get(n, 0.0) + other.seconds.get(n, 0.0) for n in names}
        sums = (getattr(self, n) + getattr(other, n) for n in _FLOPS)
        return StepLimits(seconds, *sums)

    def __mul__(self, factor: float) -> StepLimits:
        """Return the step with all seconds and flops multiplied by a factor."""
        seconds = {name: factor * s for name, s in self.seconds.items()}
        return StepLimits(seconds, *(factor * getattr(self, n) for n in _FLOPS))

    @property
    def largest(self) -> str:
        """The largest part and its share, such as "idle devices along model 67%"."""
        return self._first(1)

    def _first(self, count: int) -> str:
        """Return the largest parts with their shares, as text."""
        parts = self.table().rows[:count]
        return ", ".join(f"{name} {share:.0%}" for name, _, share in parts)

    def __repr__(self) -> str:
        return self._first(4)

    def shown(self) -> Table:
        """Return the table of the causes with units that people say."""
        rows = ((name, seconds_text(s), f"{share:.0%}") for name, s, share in self.table().rows)
        return Table(("part", "saves", "share_of_step"), tuple(rows))

    def _repr_html_(self) -> str:
        canvas = draw_bars((cause_bar(self.seconds),))
        return drawing_card(f"Step {seconds_text(self.step_s)}: {self!r}.", canvas, self.shown())


_FLOPS = ("model_flops", "model_s", "executed_flops")


def step_limits(
    program: SpmdProgram,
    graph: Graph,
    hardware: Hardware | Topology,
    *,
    steps: Callable[[], Sequence[Timed]] | None = None,
) -> StepLimits:
    """Return the causes of the time of one call of a program in numbers.

    Args:
      steps: function that returns the result of `costs.step_time.timed`, if that exists already.
    """
    again = recomputed_nodes(graph)
    bubbles = _bubbles(graph)
    parts: dict[str, float] = defaultdict(float)
    executed = 0.0
    for each in timed(program, graph, hardware) if steps is None else steps():
        instruction, count = each.step.instruction, each.step.count
        if each.axes:
            parts[f"{EXPOSED} along {','.join(each.axes)}"] += each.exposed_s * count
            continue
        executed += _flops(program, graph, instruction) * count
        # The share of a pipeline loop's trips in which a stage has no microbatch. It takes its part
        # of every instruction in the loop; only the rest is work.
        idle = max((bubbles.get(i.node, 0.0) for i in each.step.loops), default=0.0)
        seconds = each.seconds * count
        parts[BUBBLES] += idle * seconds
        if instruction.node in again:
            parts[RECOMPUTED] += (1 - idle) * seconds
            continue
        for name, share in _shares(program, graph, each).items():
            parts[name] += (1 - idle) * share * seconds
    flops, seconds = _model(graph, hardware, again, bubbles)
    return StepLimits(dict(parts), flops, seconds, executed * program.mesh.size)


def _bubbles(graph: Graph) -> dict[int | None, float]:
    """Return, for the node of each pipeline loop, the share of trips without a microbatch."""
    found: dict[int | None, float] = {}
    for node, loop in pipeline_loops(graph).items():
        body = next(region for region in graph.regions if region.node == node)
        around = graph.trip_count(graph.nodes[node])
        trips = body.trip_count / around if around else 0
        # Each of L stages has no microbatch in L - 1 trips of the loop, with the GPipe schedule and
        # with the circular one (GSPMD section 3.3).
        found[node] = min(1.0, (loop.stages - 1) / trips) if trips else 0.0
    return found


def _flops(program: SpmdProgram, graph: Graph, instruction: Instruction) -> float:
    """Return the flops of one execution of an instruction on one device, padding included."""
    if type(instruction.attributes) is not Apply or instruction.node is None:
        return 0
    values = (*instruction.operands, *instruction.results)
    shapes = tuple(program.locals[v].shape for v in values)
    return float(shaped_flops(graph.nodes[instruction.node].signature, shapes))


def _shares(program: SpmdProgram, graph: Graph, each: Timed) -> dict[str, float]:
    """Return, for each cause, its share of the seconds of a local instruction.

    The causes are idle devices, padding, memory traffic and products; the shares add up to 1.
    """
    memory = each.memory_s / each.seconds if each.seconds else 0.0
    instruction = each.step.instruction
    if each.kind != "contraction" or instruction.node is None:
        return {MEMORY: memory, PRODUCTS: 1 - memory}
    # Devices along an axis that no operand and no result is sharded on compute the same product.
    mesh, held = program.mesh, program.locals
    used: set[str] = set()
    for value in (*instruction.operands, *instruction.results):
        sharding = held[value].sharding
        digits = (d for dim in (*sharding.dims, sharding.unreduced) for d in dim)
        used.update(axis_names(mesh, tuple(digits)))
    unused = {name: size for name, size in mesh.axes if size > 1 and name not in used}
    repeats = math.prod(unused.values())
    whole = signature_flops(graph.nodes[instruction.node].signature)
    local = _flops(program, graph, instruction)
    # The flops of all distinct blocks, divided by the flops of the unpartitioned product. Blocks of
    # equal size that do not divide a dimension exactly have padding, so the ratio exceeds 1.
    padded = local * mesh.size / repeats / whole if whole else 1.0
    busy = 1 / repeats
    useful = busy / max(1.0, padded)
    found = {
        PADDING: (busy - useful) * (1 - memory),
        MEMORY: busy * memory,
        PRODUCTS: useful * (1 - memory),
    }
    if unused:
        found[f"{IDLE} along {','.join(unused)}"] = 1 - busy
    return found


def _model(
    graph: Graph,
    hardware: Hardware | Topology,
    again: frozenset[int],
    bubbles: Mapping[int | None, float],
) -> tuple[float, float]:
    """Return the flops of the mathematical step, and their seconds on one device at its peak.

    Args:
      again: nodes that repeat the forward pass, which do not count.
      bubbles: for the node of each pipeline loop, the share of trips without a microbatch.
    """
    flops = seconds = 0.0
    for node in graph.walk():
        # As published utilisations do, only products count; a node that repeats the forward pass
        # does not.
        if node.index in again or not multiplies(node.signature):
            continue
        # Trips without a microbatch do no useful work, in any pipeline loop around the node.
        region, share = graph.regions[node.region], 1.0
        while region.parent is not None or region.node is not None:
            share *= 1 - bubbles.get(region.node, 0.0)
            parent = graph.nodes[region.node].region if region.node is not None else region.parent
            if parent is None:
                break
            region = graph.regions[parent]
        # Shapes in a manual region (`shard_map`) are those of one device, so an operator there
        # counts once per device of the region's axes.
        devices = math.prod(graph.manual_axes(node.region).values())
        found = share * signature_flops(node.signature) * graph.trip_count(node) * devices
        flops += found
        seconds += found / hardware.chip.peak(operand_type(node.signature))
    return flops, seconds
