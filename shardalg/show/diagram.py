"""A program as a graph of boxes on a grid, which `figures.draw_programs` paints."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shardalg.costs.collectives import axis_names, is_collective, wire_bytes
from shardalg.costs.compute import contracts, signature_flops
from shardalg.costs.walk import sent_bytes, walk
from shardalg.graph.ir import Graph
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import Apply, Control
from shardalg.spmd.local import Local
from shardalg.spmd.program import SpmdProgram

SHORT_KINDS = {
    "all_gather": "AG",
    "all_reduce": "AR",
    "reduce_scatter": "RS",
    "all_to_all": "A2A",
    "collective_permute": "CP",
}


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a box's text, drawn with mesh axes as its subscript."""

    text: str
    axes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Box:
    """An operator, a collective or an incoming value.

    Attributes:
      index: number of the box; boxes are numbered in order of execution.
      kind: a kind of collective, "einsum", "local" or "value" (an incoming value).
      label: text inside the box.
      value: text below the box: the local value that the instruction makes.
      inputs: indices of the boxes whose values the instruction reads.
      wire_bytes: bytes that each device sends, for a collective; otherwise 0.
      column, lane: place on the grid: from left to right, and distance from the main path.
    """

    index: int
    kind: str
    label: tuple[Token, ...]
    value: tuple[Token, ...]
    inputs: tuple[int, ...] = ()
    wire_bytes: int = 0
    column: int = 0
    lane: int = 0


def boxes(
    program: SpmdProgram,
    graph: Graph,
    *,
    nodes: Collection[int] | None = None,
    dim_names: Mapping[int, str] | None = None,
) -> tuple[Box, ...]:
    """Return the instructions of a program as boxes on a grid.

    Operators that only rename or convert a single value are left out. Constants are left out too.

    Args:
      nodes: the graph nodes to draw, also in loop bodies; None draws the top level.
      dim_names: letters of global dimension sizes, such as `{1024: "S"}`.
    """
    reader = _DiagramReader(program, graph, dict(dim_names or {}))
    chosen: Iterable[Instruction] = program.block.instructions
    if nodes is not None:
        wanted = frozenset(nodes)
        chosen = (s.instruction for s in walk(program) if s.instruction.node in wanted)
    drawn = [s for s in chosen if not isinstance(s.attributes, Control)]
    found = tuple(reader.read(drawn))
    columns = _columns(found)
    lanes = _Lanes(found, columns).assign()
    return tuple(replace(b, column=columns[b.index], lane=lanes[b.index]) for b in found)


@dataclass(frozen=True)
class _DiagramReader:
    """A maker of the boxes of a program.

    Attributes:
      graph: the graph that the program computes.
      dim_names: letters of dimensions by their size, such as `{1024: "S"}`.
    """

    program: SpmdProgram
    graph: Graph
    dim_names: dict[int, str]

    def read(self, instructions: Sequence[Instruction]) -> Iterator[Box]:
        """Yield boxes in order of execution; an incoming value has a box before each reader."""
        # A hidden instruction has no box, so the arrow of its reader starts at its operand's box
        # (`maker`). An operand that comes in from outside has no box yet, only a name (`renamed`).
        maker: dict[int, int] = {}
        renamed: dict[int, int] = {}
        constants = {local.index for local in self.program.locals if self.constant(local)}
        count = 0
        for instruction in instructions:
            operands = [v for v in dict.fromkeys(instruction.operands) if v not in constants]
            if not operands:
                # The results depend on constants only. They are constants too, and constants are
                # not drawn, because a figure is about data that moves.
                constants.update(instruction.results)
                continue
            if self.hidden(instruction, operands):
                (value,) = operands
                drawn = value in maker
                mark = maker[value] if drawn else renamed.get(value, value)
                # Without this entry, the readers of a hidden instruction would have no arrow.
                (maker if drawn else renamed).update(dict.fromkeys(instruction.results, mark))
                continue
            # `count` numbers the boxes in the order in which they are yielded. A value from outside
            # gets a new box for each reader, which keeps its arrow short.
            inputs = []
            for value in operands:
                if value not in maker:
                    yield self.incoming(count, renamed.get(value, value))
                    count += 1
                inputs.append(maker.get(value, count - 1))
            yield self.box(count, instruction, tuple(inputs))
            maker.update(dict.fromkeys(instruction.results, count))
            count += 1

    def constant(self, local: Local) -> bool:
        """Return whether a local value is a constant of the function, or a scalar."""
        made = None if local.origin is None else self.graph.values[local.origin].kind
        return not local.shape or made == "constant"

    def hidden(self, instruction: Instruction, operands: list[int]) -> bool:
        """Return whether an instruction only changes the type or shape of one value."""
        attributes = instruction.attributes
        if type(attributes) is not Apply or instruction.node is None or len(operands) != 1:
            return False
        # A conversion, reshape or transpose computes nothing and keeps the number of elements. A
        # slice or a broadcast changes this number, so it is drawn.
        flops = signature_flops(self.graph.nodes[instruction.node].signature)
        held = self.program.locals
        sizes = {math.prod(held[v].shape) for v in (operands[0], *instruction.results)}
        return not flops and len(sizes) == 1

    def incoming(self, index: int, value: int) -> Box:
        """Return the box of a value that no drawn instruction makes.

        Args:
          index: number of the box.
          value: number of the local value.
        """
        local = self.program.locals[value]
        name = "" if local.origin is None else self.graph.values[local.origin].name
        # A whole path is too wide for a box: of `params['layers'][0]['w_in']` it shows `w_in`.
        if name.endswith("]"):
            name = name.rstrip("]").split("[")[-1].strip("'\"")
        return Box(index, "value", (Token(name),), self.shape(local))

    def box(self, index: int, instruction: Instruction, inputs: tuple[int, ...]) -> Box:
        """Return the box of an instruction: a collective, a product ("Einsum"), or a local step.

        A collective has its mesh axes and the bytes that a device sends.

        Args:
          index: number of the box.
          inputs: indices of the boxes that it reads.
        """
        attributes = instruction.attributes
        made = self.program.locals[instruction.results[0]]
        if is_collective(attributes):
            kind = attributes.sent_as
            moved = wire_bytes(attributes, sent_bytes(self.program, instruction))
            axes = axis_names(self.program.mesh, attributes.digits)
            label = (Token(SHORT_KINDS[kind], axes),)
            return Box(index, kind, label, self.shape(made), inputs, int(moved))
        node = None if instruction.node is None else self.graph.nodes[instruction.node]
        if type(attributes) is not Apply:
            kind, text = "local", type(attributes).__name__
        elif node is not None and contracts(node.signature):
            kind, text = "einsum", "Einsum"
        else:
            kind, text = "local", attributes.primitive
        return Box(index, kind, (Token(text),), self.shape(made), inputs)

    def shape(self, local: Local) -> tuple[Token, ...]:
        """Return a value's shape as tokens: a letter per dimension, or its size without a letter.

        A sharded dimension is lower case. A pending sum is a last token `Σ` with its axes.
        """
        sharding = local.sharding
        mesh = self.program.mesh
        tokens = []
        for size, digits in zip(sharding.shape, sharding.dims, strict=True):
            name, axes = self.dim_names.get(size, str(size)), axis_names(mesh, digits)
            tokens.append(Token(name.lower() if axes else name, axes))
        pending = axis_names(mesh, sharding.unreduced)
        return (*tokens, *((Token("Σ", pending),) if pending else ()))


def _columns(found: Sequence[Box]) -> list[int]:
    """Return the column of each box: the length of the longest path from an incoming value.

    A box with at most one input then moves right, next to its first reader, so that its arrow is
    short.
    """
    # A box has a larger number than its inputs, so their columns are known.
    columns = [0] * len(found)
    readers: dict[int, list[int]] = {}
    for box in found:
        columns[box.index] = 1 + max((columns[i] for i in box.inputs), default=-1)
        for i in box.inputs:
            readers.setdefault(i, []).append(box.index)
    # Backwards, because a box's column depends on the final columns of its readers.
    for box in reversed(found):
        if box.index in readers and len(box.inputs) <= 1:
            columns[box.index] = min(columns[r] for r in readers[box.index]) - 1
    return columns


@dataclass(frozen=True)
class _Lanes:
    """The layout of boxes: assigns a lane (a horizontal line) to each box, without overlaps."""

    boxes: tuple[Box, ...]
    columns: list[int]

    def assign(self) -> list[int]:
        """Return the lane of each box: the longest path to each result is in a single lane.

        `taken` has the occupied cells, as (lane, column). Results are boxes that no box reads.
        """
        lanes: dict[int, int] = {}
        taken: set[tuple[int, int]] = set()
        read = {i for box in self.boxes for i in box.inputs}
        ends = [box.index for box in self.boxes if box.index not in read]
        # The longest path is placed first, so that it becomes the main path in lane 0.
        for end in sorted(ends, key=lambda i: -self.columns[i]):
            self.place(end, 0, lanes, taken)
        return [lanes[box.index] for box in self.boxes]

    def place(
        self, end: int, near: int, lanes: dict[int, int], taken: set[tuple[int, int]]
    ) -> None:
        """Assign a lane to each box on the path that ends at `end`, then to the paths that join it.

        A path takes the free lane that is nearest to the wished one. The paths that lead into a
        placed path wish for its lane.

        Args:
          end: the number of the last box of the first path.
          near: the lane that the first path wishes for.
          lanes: the lane of each box that has one; extended here.
          taken: the occupied cells, as (lane, column); extended here.
        """
        # Branches wait in order of the path, so that the nearest lanes go to the branches near its
        # end.
        waiting = [(end, near)]
        while waiting:
            at, wish = waiting.pop(0)
            if at in lanes:
                continue
            path = self.path(at, lanes)
            span = range(self.columns[path[-1]], self.columns[path[0]] + 1)
            # Two boxes in one cell would cover each other, so every cell along the path must be
            # free. The nearest lane on either side keeps the arrows short.
            nearest = (wish + way * step for step in itertools.count() for way in (1, -1))
            lane = next(n for n in nearest if not taken & {(n, c) for c in span})
            taken.update((lane, c) for c in span)
            lanes.update(dict.fromkeys(path, lane))
            waiting += [(i, lane) for box in path for i in self.boxes[box].inputs]

    def path(self, at: int, lanes: dict[int, int]) -> list[int]:
        """Return the boxes of a path to the left, each the rightmost input of the one before.

        Boxes that have a lane are not part of the path.
        """
        path = [at]
        while inputs := [i for i in self.boxes[path[-1]].inputs if i not in lanes]:
            path.append(max(inputs, key=lambda i: self.columns[i]))
        return path
