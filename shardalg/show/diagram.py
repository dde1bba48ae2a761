"""A program as a graph of boxes on a grid: what `figures.draw_programs` paints."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
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
    """A piece of a label; `axes` are the mesh axes written below it."""

    text: str
    axes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Box:
    """An operator, a collective or an incoming value.

    Attributes:
      kind: a kind of collective, "einsum", "local" or "value" (one that comes in).
      label: what stands in the box; value: the local value it makes, written below it.
      inputs: indices of the boxes whose values it reads.
      column, lane: place on the grid, left to right and away from the main path.
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
    """The instructions of a program as boxes on a grid.

    Operators that only rename or convert one value are left out, and so are constants.

    Args:
      nodes: the graph nodes to draw, in loop bodies too; None draws the top level.
      dim_names: global dimension size to the letter that stands for it, such as `{1024: "S"}`.
    """
    reader = _DiagramReader(program, graph, dict(dim_names or {}))
    drawn = [s for s in _chosen(program, nodes) if not isinstance(s.attributes, Control)]
    return _placed(tuple(reader.read(drawn)))


def _chosen(program: SpmdProgram, nodes: Collection[int] | None) -> Iterator[Instruction]:
    if nodes is None:
        yield from program.block.instructions
        return
    wanted = frozenset(nodes)
    yield from (s.instruction for s in walk(program) if s.instruction.node in wanted)


@dataclass(frozen=True)
class _DiagramReader:
    program: SpmdProgram
    graph: Graph
    dim_names: dict[int, str]

    def read(self, instructions: Sequence[Instruction]) -> Iterator[Box]:
        """Boxes in order of execution; an incoming value stands before each of its readers."""
        maker: dict[int, int] = {}
        stands_for: dict[int, int] = {}
        constants = {local.index for local in self.program.locals if self.constant(local)}
        count = 0
        for instruction in instructions:
            operands = [v for v in dict.fromkeys(instruction.operands) if v not in constants]
            if not operands:
                constants.update(instruction.results)
                continue
            if self.hidden(instruction, operands):
                (value,) = operands
                drawn = value in maker
                mark = maker[value] if drawn else stands_for.get(value, value)
                (maker if drawn else stands_for).update(dict.fromkeys(instruction.results, mark))
                continue
            inputs = []
            for value in operands:
                if value not in maker:
                    yield self.incoming(count, stands_for.get(value, value))
                    count += 1
                inputs.append(maker.get(value, count - 1))
            yield self.box(count, instruction, tuple(inputs))
            maker.update(dict.fromkeys(instruction.results, count))
            count += 1

    def constant(self, local: Local) -> bool:
        """Whether a local value is a constant of the function, or a number."""
        made = None if local.origin is None else self.graph.values[local.origin].kind
        return not local.shape or made == "constant"

    def hidden(self, instruction: Instruction, operands: list[int]) -> bool:
        """Whether an instruction neither computes, moves nor cuts: one value in, as large out."""
        attributes = instruction.attributes
        if type(attributes) is not Apply or instruction.node is None or len(operands) != 1:
            return False
        flops = signature_flops(self.graph.nodes[instruction.node].signature)
        held = self.program.locals
        sizes = {_elements(held[v]) for v in (operands[0], *instruction.results)}
        return not flops and len(sizes) == 1

    def incoming(self, index: int, value: int) -> Box:
        """The box of a value that no drawn instruction makes."""
        local = self.program.locals[value]
        name = "" if local.origin is None else self.graph.values[local.origin].name
        return Box(index, "value", (Token(_last_key(name)),), self.shape(local))

    def box(self, index: int, instruction: Instruction, inputs: tuple[int, ...]) -> Box:
        """The box of an instruction."""
        attributes = instruction.attributes
        made = self.program.locals[instruction.results[0]]
        if is_collective(attributes):
            kind = attributes.sent_as
            moved = wire_bytes(attributes, sent_bytes(self.program, instruction))
            axes = axis_names(self.program.mesh, attributes.digits)
            label = (Token(SHORT_KINDS[kind], axes),)
            return Box(index, kind, label, self.shape(made), inputs, int(moved))
        kind, text = self.local_label(instruction)
        return Box(index, kind, (Token(text),), self.shape(made), inputs)

    def local_label(self, instruction: Instruction) -> tuple[str, str]:
        """Kind and text of the box of a local instruction."""
        attributes = instruction.attributes
        if type(attributes) is not Apply:
            return "local", type(attributes).__name__
        node = None if instruction.node is None else self.graph.nodes[instruction.node]
        if node is not None and contracts(node.signature):
            return "einsum", "Einsum"
        return "local", attributes.primitive

    def shape(self, local: Local) -> tuple[Token, ...]:
        """Dimensions in letters, lower case with axes where partitioned; pending sums last."""
        sharding = local.sharding
        mesh = self.program.mesh
        pairs = zip(sharding.shape, sharding.dims, strict=True)
        tokens = tuple(self.dim(mesh, size, digits) for size, digits in pairs)
        pending = axis_names(mesh, sharding.unreduced)
        return (*tokens, *((Token("Σ", pending),) if pending else ()))

    def dim(self, mesh: Mesh, size: int, digits: Digits) -> Token:
        """A dimension by its name, with the axes that split it."""
        name, axes = self.dim_names.get(size, str(size)), axis_names(mesh, digits)
        return Token(name.lower() if axes else name, axes)


def _last_key(name: str) -> str:
    """`w_in` of `params['layers'][0]['w_in']`; a name without keys stays."""
    *_, last = name.rstrip("]").split("[")
    return last.strip("'\"") if name.endswith("]") else name


def _elements(local: Local) -> int:
    count = 1
    for n in local.shape:
        count *= n
    return count


def _placed(found: tuple[Box, ...]) -> tuple[Box, ...]:
    """The boxes with a column (longest way from an incoming value) and a lane."""
    columns = _columns(found)
    lanes = _Lanes(found, columns).assign()
    return tuple(replace(b, column=columns[b.index], lane=lanes[b.index]) for b in found)


def _columns(found: Sequence[Box]) -> list[int]:
    """Longest path from the left; then a branch moves right, up to its reader."""
    columns = [0] * len(found)
    readers: dict[int, list[int]] = {}
    for box in found:
        columns[box.index] = 1 + max((columns[i] for i in box.inputs), default=-1)
        for i in box.inputs:
            readers.setdefault(i, []).append(box.index)
    for box in reversed(found):
        if box.index in readers and len(box.inputs) <= 1:
            columns[box.index] = min(columns[r] for r in readers[box.index]) - 1
    return columns


@dataclass(frozen=True)
class _Lanes:
    boxes: tuple[Box, ...]
    columns: list[int]

    def assign(self) -> list[int]:
        """The longest way to each result in one lane, side branches in the nearest free one."""
        lanes: dict[int, int] = {}
        taken: set[tuple[int, int]] = set()
        read = {i for box in self.boxes for i in box.inputs}
        ends = [box.index for box in self.boxes if box.index not in read]
        for end in sorted(ends, key=lambda i: -self.columns[i]):
            self.place(end, 0, lanes, taken)
        return [lanes[box.index] for box in self.boxes]

    def place(
        self, end: int, near: int, lanes: dict[int, int], taken: set[tuple[int, int]]
    ) -> None:
        """Put the way to `end` into the free lane nearest to `near`, then its branches."""
        waiting = [(end, near)]
        while waiting:
            at, wish = waiting.pop(0)
            if at in lanes:
                continue
            way = self.way(at, lanes)
            span = range(self.columns[way[-1]], self.columns[way[0]] + 1)
            lane = next(n for n in _outward(wish) if not taken & {(n, c) for c in span})
            taken.update((lane, c) for c in span)
            lanes.update(dict.fromkeys(way, lane))
            waiting += [(i, lane) for box in way for i in self.boxes[box].inputs]

    def way(self, at: int, lanes: dict[int, int]) -> list[int]:
        """From a box back to the left, along the operand that took longest."""
        way = [at]
        while inputs := [i for i in self.boxes[way[-1]].inputs if i not in lanes]:
            way.append(max(inputs, key=lambda i: self.columns[i]))
        return way


def _outward(lane: int) -> Iterable[int]:
    """`lane`, then the lanes around it, nearest first."""
    yield lane
    for step in range(1, 1000):
        yield lane + step
        yield lane - step
