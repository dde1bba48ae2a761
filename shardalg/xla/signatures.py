"""Signatures of the anchors of a graph and of HLO text.

`align.py` defines anchors and signatures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from shardalg.graph.ir import Graph, Node
from shardalg.lower.xla_dump.hlo_text import HloInstruction, HloModule
from shardalg.planner.propagate.gspmd.index import post_order

Above = frozenset[int]
"""Numbers of the signatures of the nearest anchors from which a value is computed."""
AnchorKey = tuple[str, str]
"""Computation and name of an instruction."""
NOTHING: Above = frozenset()

HLO_KINDS = {
    "dot": "dot", "convolution": "conv", "reduce": "reduce", "gather": "gather",
    "scatter": "scatter", "sort": "sort", "topk": "sort",
}  # fmt: skip
GRAPH_KINDS = {
    "dot_general": "dot", "conv_general_dilated": "conv", "gather": "gather",
    "scatter": "scatter", "scatter-add": "scatter", "sort": "sort", "top_k": "sort",
    "annotate": "constraint", "argmax": "reduce", "argmin": "reduce", "reduce_sum": "reduce",
    "reduce_max": "reduce", "reduce_min": "reduce", "reduce_prod": "reduce", "reduce_and": "reduce",
    "reduce_or": "reduce", "reduce_xor": "reduce",
}  # fmt: skip


def graph_kind(node: Node) -> str | None:
    """Return the kind by which a node is compared with XLA's instructions, such as "dot".

    None if XLA's compilation may change or remove the operator, so that it is no anchor.
    """
    return GRAPH_KINDS.get(node.primitive)


POSITIONS = ("argmax", "argmin")
"""XLA reduces values and positions together, in one instruction of two results."""


def _reduced(node: Node) -> int:
    """Return the number of results of XLA's reduction for this node."""
    return 1 + (node.primitive in POSITIONS)


def _hlo_reduced(instruction: HloInstruction) -> int:
    return len(instruction.leaves) if instruction.opcode == "reduce" else 1


def hlo_kind(instruction: HloInstruction) -> str | None:
    """Return the kind by which an instruction is compared with nodes of the graph, such as "dot".

    None for instructions that compilation may add or change, which are no anchors.
    """
    # A sharding constraint has no opcode of its own: it is a copy or a custom call with its name.
    moved = instruction.opcode in ("copy", "custom-call")
    if moved and instruction.op_name.endswith("sharding_constraint"):
        return "constraint"
    if instruction.opcode == "custom-call" and "TopK" in instruction.attributes.get(
        "custom_call_target", ""
    ):
        return "sort"
    return HLO_KINDS.get(instruction.opcode)


def _numbered(signature: object, numbers: dict[object, int]) -> int:
    """Return the number of a signature; a new signature gets the next number in `numbers`."""
    return numbers.setdefault(signature, len(numbers))


def _anchor(what: tuple[object, ...], above: Iterable[Above], numbers: dict[object, int]) -> int:
    """Return the number of the signature of an anchor, an operator that both programs have.

    Compilers swap operands, so their order does not count.

    Args:
      what: kind, shape and other properties.
      above: per operand, the signatures of the nearest anchors from which it is computed.
      numbers: number of each known signature; a new one is added.
    """
    return _numbered((*what, tuple(sorted(tuple(sorted(a)) for a in above))), numbers)


@dataclass(eq=False)
class GraphSide:
    """The anchors of a graph: its operators that XLA's compilation keeps, such as dots.

    Attributes:
      demanded: per annotation node, the sharding that it demands; a node without one is no anchor.
      numbers: number of each signature, shared with the anchors of XLA's program.
    """

    graph: Graph
    demanded: Mapping[int, object]
    numbers: dict[object, int]
    _above: dict[int, Above] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Set two tables: the values that a region's border renames, and the first anchors.

        An anchor is a value with a signature of its own, by which both programs are compared. The
        anchors above a value are the nearest ones from which it is computed. `_sources` gives, for
        each value at the border of a region, the values from which it comes. `_above` begins with
        the function's arguments, each of which is an anchor of its own.
        """
        graph = self.graph
        self._sources: dict[int, list[int]] = defaultdict(list)
        # A value that enters a region has the anchors above its source outside. Carries are left
        # out, because a loop's value would be above itself. The result of a carry has the anchors
        # above its initial value, too: a loop without iterations returns it.
        starts = {t.target: t.source for t in graph.region_arguments if t.kind == "init"}
        carried = {
            (t.call, t.source): t.target for t in graph.region_arguments if t.kind == "carry"
        }
        for tie in graph.region_arguments:
            if tie.kind != "carry":
                self._sources[tie.target].append(tie.source)
            target = carried.get((tie.call, tie.source), -1)
            if tie.kind == "result" and target in starts:
                self._sources[tie.target].append(starts[target])
        for number, value in enumerate(graph.arguments):
            self._above[value] = frozenset([_numbered(("argument", number), self.numbers)])

    def signatures(self) -> dict[int, int]:
        """Return a dictionary from the value of each anchor to the number of its signature."""
        # In XLA's post-order, because anchors with equal signatures are paired in order.
        anchors = [node for node in self._walk(0) if self._kind(node)]
        return {node.results[0]: self._signature(node) for node in anchors}

    def _walk(self, region: int) -> Iterator[Node]:
        for position in post_order(self.graph, region):
            for body in self.graph.nodes[position].bodies:
                yield from self._walk(body)
            yield self.graph.nodes[position]

    def shapes(self, values: list[int]) -> dict[int, tuple[object, ...]]:
        """Return the kind, the shape and the number of results of the node that makes each value.

        They identify a value less precisely than its signature.
        """
        graph = self.graph
        made = {v: graph.nodes[p] for v in values if (p := graph.producer[v]) is not None}
        return {
            v: (graph_kind(node), graph.values[v].type.shape, _reduced(node))
            for v, node in made.items()
        }

    def _kind(self, node: Node) -> str | None:
        kind = graph_kind(node)
        return None if kind == "constraint" and node.index not in self.demanded else kind

    def above(self, value: int) -> Above:
        """Return the signatures of the nearest anchors from which a value is computed.

        Anchors are the operators that XLA keeps, such as products.
        """
        if value not in self._above:
            self._above[value] = self._found(value)
        return self._above[value]

    def _found(self, value: int) -> Above:
        """Compute the result of `above`: the nearest anchors from which a value is computed."""
        # At the border of a loop or branch, a value comes from values on the other side.
        if self._sources[value]:
            return NOTHING.union(*map(self.above, self._sources[value]))
        producer = self.graph.producer[value]
        if producer is None:
            return NOTHING
        node = self.graph.nodes[producer]
        if self._kind(node):
            return frozenset([self._signature(node)])
        # XLA may remove or replace any other operator, so the search goes on to its operands.
        return NOTHING.union(*map(self.above, node.operands))

    def _signature(self, node: Node) -> int:
        """Return the number of an anchor's signature, by which it is found in XLA's program.

        A signature has the kind and the shape of the node, and the signatures of the nearest
        anchors from which its operands are computed.
        """
        graph = self.graph
        # XLA may fold a constant operand away, so constants are no part of a signature.
        data = [v for v in node.operands if graph.values[v].kind != "constant"]
        shape = graph.values[node.results[0]].type.shape
        what = (self._kind(node), shape, self.demanded.get(node.index), _reduced(node))
        return _anchor(what, map(self.above, data), self.numbers)


@dataclass(eq=False)
class HloSide:
    """The anchors of XLA's program: the instructions that correspond to operators of the graph.

    Attributes:
      demanded: per constraint instruction, the sharding that an annotation demands, or None.
      numbers: number of each signature, shared with the graph's anchors.
    """

    module: HloModule
    demanded: Mapping[AnchorKey, object]
    numbers: dict[object, int]
    _above: dict[tuple[AnchorKey, int | None], Above] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Record, for each called computation, the instruction that returns its results."""
        self._caller: dict[str, HloInstruction] = {}
        for computation in self.module.computations.values():
            for instruction in computation.values():
                for name in _callees(instruction):
                    self._caller[name] = instruction

    def signatures(self) -> list[tuple[HloInstruction, int]]:
        """Return (instruction, number of its signature) of each anchor, in the program's order.

        An anchor is an instruction of XLA's program that corresponds to an operator of the graph.
        """
        return [(i, self._signature(i)) for i in self._walk(self.module.entry) if hlo_kind(i)]

    def shapes(self, _: None) -> list[tuple[HloInstruction, object]]:
        """Return (instruction, (kind, shape, number of results)) of each anchor.

        An anchor is an instruction that is compared with a node of the graph (`hlo_kind` knows it).
        Instructions of all computations are listed, also of those that nothing calls. The argument
        is unused; the method of the same name for graphs takes the values to describe.
        """
        found = [i for here in self.module.computations.values() for i in here.values()]
        return [(i, (hlo_kind(i), i.leaves[0][1], _hlo_reduced(i))) for i in found if hlo_kind(i)]

    def _walk(self, computation: str) -> Iterator[HloInstruction]:
        for instruction in self.module.computations.get(computation, {}).values():
            for name in _callees(instruction):
                yield from self._walk(name)
            yield instruction

    def above(self, instruction: HloInstruction, element: int | None = None) -> Above:
        """Return the signatures of the nearest anchors from which an instruction is computed.

        An anchor is an instruction that XLA keeps from the graph, such as a dot. The search goes
        from operand to operand and stops at anchors.

        Args:
          element: the element of the instruction's result, if this is a tuple; None for all
            elements.
        """
        key = ((instruction.computation, instruction.name), element)
        if key not in self._above:
            self._above[key] = self._found(instruction, element)
        return self._above[key]

    def _found(self, instruction: HloInstruction, element: int | None) -> Above:
        """Compute the result of `above` for an instruction; `above` caches it.

        It has the signatures of the nearest anchors (operators such as products) from which the
        instruction is computed.

        Args:
          element: the element of the instruction's tuple; None for all elements.
        """
        through = _THROUGH.get(instruction.opcode)
        if through is not None:
            return through(self, instruction, element)
        if hlo_kind(instruction):
            return frozenset([self._signature(instruction)])
        kept = element if instruction.opcode in ("optimization-barrier", "copy") else None
        return NOTHING.union(*(self.above(o, kept) for o in self._operands(instruction)))

    def _operands(self, instruction: HloInstruction) -> list[HloInstruction]:
        here = self.module.computations[instruction.computation]
        return [here[name] for name in instruction.operands if name in here]

    def _signature(self, instruction: HloInstruction) -> int:
        """Return the number of an instruction's signature, which equal anchors share.

        Anchors are instructions that are compared with operators of our graph. The signature
        consists of the kind, the shape, and the nearest anchors from which the operands are
        computed.
        """
        operands = self._operands(instruction)
        # A reduction of XLA has its initial values as operands; one of the graph has only data.
        if instruction.opcode == "reduce":
            operands = operands[: max(1, len(operands) // 2)]
        data = [self.above(o) for o in operands if o.opcode != "constant"]
        place = (instruction.computation, instruction.name)
        shape, demanded = instruction.leaves[0][1], self.demanded.get(place)
        what = (hlo_kind(instruction), shape, demanded, _hlo_reduced(instruction))
        return _anchor(what, data, self.numbers)

    def _parameter(self, instruction: HloInstruction, element: int | None) -> Above:
        """Return the signatures of the nearest anchors from which a parameter is computed.

        Anchors are instructions that are compared with operators of our graph. The parameter of a
        called computation has the anchors of the operand that the caller passes. A parameter of the
        whole program is an anchor itself, named by its number.

        Args:
          instruction: the parameter.
          element: the index in the tuple, if the parameter is a tuple.
        """
        number = int(instruction.literal)
        if instruction.computation == self.module.entry:
            return frozenset([_numbered(("argument", number), self.numbers)])
        caller = self._caller.get(instruction.computation)
        if caller is None:
            return NOTHING
        # A loop has one tuple operand. A conditional has its predicate first, and then one operand
        # per branch computation.
        branches, own = _callees(caller), instruction.computation
        first = {"while": 0, "conditional": 1 + (branches.index(own) if own in branches else 0)}
        operands = self._operands(caller)
        position = first.get(caller.opcode, number)
        return self.above(operands[position], element) if position < len(operands) else NOTHING

    def _element(self, instruction: HloInstruction, _: int | None) -> Above:
        index = int(instruction.attributes["index"])
        return NOTHING.union(*(self.above(o, index) for o in self._operands(instruction)))

    def _tuple(self, instruction: HloInstruction, element: int | None) -> Above:
        operands = self._operands(instruction)
        chosen = operands if element is None else operands[element : element + 1]
        return NOTHING.union(*map(self.above, chosen))

    def _call(self, instruction: HloInstruction, element: int | None) -> Above:
        """Return the signatures of the nearest anchors above the results of a call.

        A call is a loop, a branch or a called computation. An anchor is an instruction that is
        compared with operators of our graph. A loop may have no iterations, so the anchors of its
        initial values are included.

        Args:
          element: the number of the result; None for all results.
        """
        roots = [self.module.roots[n] for n in _callees(instruction) if n in self.module.roots]
        if instruction.opcode == "while":
            roots += self._operands(instruction)
        return NOTHING.union(*(self.above(root, element) for root in roots))


_THROUGH = {
    "parameter": HloSide._parameter,
    "constant": lambda *_: NOTHING,
    "get-tuple-element": HloSide._element,
    "tuple": HloSide._tuple,
    "while": HloSide._call,
    "call": HloSide._call,
    "conditional": HloSide._call,
}
_CALLS = {
    "while": ("body",),
    "call": ("to_apply",),
    "conditional": ("true_computation", "false_computation", "branch_computations"),
}


def _callees(instruction: HloInstruction) -> list[str]:
    """Return the computations that an instruction runs and whose results it returns."""
    # A loop's condition is left out, because its result is not a result of the loop.
    keys, attributes = _CALLS.get(instruction.opcode, ()), instruction.attributes
    listed = ",".join(attributes[key].strip("{}") for key in keys if key in attributes)
    return [name.strip().lstrip("%") for name in listed.split(",") if name.strip()]
