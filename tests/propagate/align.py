"""Which graph value is which HLO instruction of a recorded compile.

Anchors are the operators that survive compilation (dots, reduces, constraints, ...). An anchor's
signature is its kind, its shape and the signatures of the nearest anchors above each operand; equal
signatures are one value.
"""

import re
from collections import defaultdict

HLO_KINDS = {
    "dot": "dot", "convolution": "conv", "reduce": "reduce", "gather": "gather",
    "scatter": "scatter", "sort": "sort",
}  # fmt: skip
GRAPH_KINDS = {
    "dot_general": "dot", "conv_general_dilated": "conv", "gather": "gather",
    "scatter-add": "scatter", "sort": "sort", "top_k": "sort", "annotate": "constraint",
    "argmax": "reduce", "argmin": "reduce",
}  # fmt: skip
CUT = frozenset()


def graph_kind(node):
    name = node.primitive
    if name.startswith("reduce_") and not name.startswith(("reduce_window", "reduce_precision")):
        return "reduce"
    return GRAPH_KINDS.get(name)


class GraphSide:
    """Signatures of the anchors of a graph. `demanded`: node to the text of its constraint."""

    def __init__(self, graph, demanded):
        self.graph, self.demanded = graph, demanded
        self.above_of, self.signatures = {}, {}
        self.sources = defaultdict(list)
        starts = {t.target: t.source for t in graph.ties if t.kind == "init"}
        carried = {t.source: starts[t.target] for t in graph.ties if t.kind == "carry"}
        for tie in graph.ties:
            if tie.kind != "carry":
                self.sources[tie.target].append(tie.source)
            if tie.kind == "result":
                self.sources[tie.target].append(carried[tie.source])

    def above(self, value):
        if value in self.above_of:
            return self.above_of[value]
        if value in self.graph.arguments:
            return frozenset([("argument", self.graph.arguments.index(value))])
        self.above_of[value] = CUT
        producer = self.graph.producer[value]
        if self.sources[value]:
            found = CUT.union(*map(self.above, self.sources[value]))
        elif producer is None:
            found = CUT
        elif graph_kind(self.graph.nodes[producer]):
            found = frozenset([self.signature(producer)])
        else:
            found = CUT.union(*map(self.above, self.graph.nodes[producer].operands))
        self.above_of[value] = found
        return found

    def signature(self, index):
        if index not in self.signatures:
            node = self.graph.nodes[index]
            self.signatures[index] = "loop"
            above = sorted((self.above(v) for v in node.operands if self._counts(v)), key=hash)
            shape = self.graph.values[node.results[0]].type.shape
            kind = graph_kind(node)
            self.signatures[index] = hash((kind, shape, self.demanded.get(index), tuple(above)))
        return self.signatures[index]

    def _counts(self, value):
        return self.graph.values[value].kind != "constant"


class HloSide:
    """Signatures of the anchors of a compiled program. `given`: texts of constraints."""

    def __init__(self, rows, given):
        entry = rows[-1].get("computation")
        self.rows = {}
        self.root, self.caller = {}, {}
        for row in rows:
            computation = row.get("computation")
            computation = "ENTRY" if computation == entry else computation
            key = (computation, row["name"])
            self.rows[key] = row
            self.root[computation] = key
        for key, row in self.rows.items():
            target = (row.get("attributes") or {}).get("body") or (
                (row.get("attributes") or {}).get("to_apply") if row["op"] == "call" else None
            )
            if target:
                self.caller[target.lstrip("%")] = key
        self.given, self.above_of, self.signatures = given, {}, {}

    def kind(self, row):
        if row["op"] in ("copy", "custom-call") and str(row.get("op_name")).endswith(
            "sharding_constraint"
        ):
            return "constraint"
        return HLO_KINDS.get(row["op"])

    def above(self, key, element=None):
        memo = (key, element)
        if memo not in self.above_of:
            self.above_of[memo] = CUT
            row = self.rows.get(key)
            self.above_of[memo] = CUT if row is None else self._above(key, row, element)
        return self.above_of[memo]

    def _above(self, key, row, element):
        computation, attributes = key[0], row.get("attributes") or {}
        operands = [(computation, name) for name in row.get("operands") or []]
        match row["op"]:
            case "parameter" if computation == "ENTRY":
                return frozenset([("argument", int(attributes["number"]))])
            case "parameter":
                caller = self.caller.get(computation)
                if caller is None:
                    return CUT
                outer = [(caller[0], name) for name in self.rows[caller]["operands"]]
                is_loop = self.rows[caller]["op"] == "while"
                return self.above(
                    outer[0] if is_loop else outer[int(attributes["number"])], element
                )
            case "constant":
                return CUT
            case "get-tuple-element":
                return self.above(operands[0], int(attributes["index"]))
            case "tuple" if element is not None:
                return self.above(operands[element])
            case "while":
                body = self.root[attributes["body"].lstrip("%")]
                return self.above(operands[0], element) | self.above(body, element)
            case "call":
                return self.above(self.root[attributes["to_apply"].lstrip("%")], element)
        if self.kind(row):
            return frozenset([self.signature(key)])
        through = element if row["op"] in ("optimization-barrier", "copy") else None
        return CUT.union(*(self.above(o, through) for o in operands))

    def signature(self, key):
        if key not in self.signatures:
            row = self.rows[key]
            self.signatures[key] = "loop"
            operands = [(key[0], name) for name in row.get("operands") or []]
            if row["op"] == "reduce":
                operands = operands[: max(1, len(operands) // 2)]
            kind, spec = self.kind(row), text(row.get("spec"))
            demanded = spec if kind == "constraint" and spec in self.given else None
            above = sorted((self.above(o) for o in operands if self._counts(o)), key=hash)
            self.signatures[key] = hash((kind, shape(row), demanded, tuple(above)))
        return self.signatures[key]

    def _counts(self, key):
        return self.rows.get(key, {}).get("op") != "constant"


def shape(row):
    found = re.match(r"\w+\[([\d, ]*)\]", row["shape"][0])
    return tuple(int(n) for n in found[1].split(",") if n.strip())


def text(spec):
    return None if spec is None else str([list(d) if d is not None else d for d in spec])


def align(graph, rows, demanded):
    """(value, kind, axes that the compiler completed it to) of the anchors found on both sides."""
    ours = GraphSide(graph, demanded)
    theirs = HloSide(rows, set(demanded.values()))
    by_signature, counts = defaultdict(list), defaultdict(int)
    for key, row in theirs.rows.items():
        if theirs.kind(row):
            by_signature[theirs.signature(key)].append(row)
    anchors = [node for node in graph.nodes if graph_kind(node)]
    for node in anchors:
        counts[ours.signature(node.index)] += 1
    found, turn = [], defaultdict(int)
    for node in anchors:
        signature = ours.signature(node.index)
        rows_here = by_signature.get(signature, [])
        same = {text(row.get("spec")) for row in rows_here}
        number = turn[signature]
        turn[signature] += 1
        if not rows_here or (len(same) > 1 and len(rows_here) != counts[signature]):
            continue
        spec = rows_here[number if len(same) > 1 else 0].get("spec")
        if spec is None or any(d is None for d in spec):
            spec = [[] for _ in shape(rows_here[0])]
        found.append((node.results[0], graph_kind(node), tuple(map(tuple, spec))))
    return found
