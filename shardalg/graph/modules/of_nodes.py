"""The module of every node."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from shardalg.graph.ir import Graph, Node
from shardalg.graph.modules.gradients import gradients
from shardalg.graph.modules.module_paths import common
from shardalg.graph.modules.weights import argument_modules
from shardalg.graph.once import once_per_graph


@once_per_graph
def modules(graph: Graph) -> tuple[str, ...]:
    """Return the module of every node, "" where it has none.

    A node inside the user's named scopes, or inside a module of a framework, has that module. Any
    other belongs where the weights that it reads belong; what makes a gradient, to the module of
    the gradient's weight. A node that does neither continues the module of the operand that was
    made last. In an update it has the path that all its operands share.

    >>> import jax
    >>> from shardalg.graph.tracing.trace import trace
    >>> def loss(p, x):
    ...     return jax.numpy.sin(jax.numpy.sin(x @ p["layers"][0]["up"]) @ p["head"]).sum()
    >>> w, x = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((4, 4), (8, 4)))
    >>> graph = trace(loss, {"layers": [{"up": w}], "head": w}, x)
    >>> [(node.primitive, module) for node, module in zip(graph.nodes, modules(graph))][:4]
    [('dot_general', 'layers/0'), ('sin', 'layers/0'), ('dot_general', 'head'), ('sin', 'head')]
    """
    return _Namer(graph).run()


class _Namer:
    """Names nodes in order of execution; `made` is what the values before belong to."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.arguments = argument_modules(graph)
        self.outer = {t.target: t.source for t in graph.region_arguments if t.kind != "carry"}
        self.walked = list(graph.walk())
        self.gradients = gradients(graph, self.arguments, self.walked)
        self.per_node = [""] * len(graph.nodes)
        self.made: dict[int, str] = {}
        self.order: dict[int, int] = {}
        self.of_all: set[int] = set()  # values of an update that modules without a common path made

    def run(self) -> tuple[str, ...]:
        """Return the module of every node."""
        inner = {t.target: t.source for t in self.graph.region_arguments}
        for place, node in enumerate(self.walked):
            module = node.module or self._module(node)
            self.per_node[node.index] = module
            for value in node.results:
                # What a loop hands on belongs to the part of its body that made it.
                body = self.made.get(inner[value], "") if value in inner else ""
                self.made[value] = self.gradients.get(value) or body or module
                self.order[value] = place
        self._name_preparations()
        for node in self.walked:
            self.per_node[node.index] = self.per_node[node.index] or self._data(node)
        return tuple(self.per_node)

    def _module(self, node: Node) -> str:
        if node.bodies:
            inside = (self.per_node[n] for b in node.bodies for n in self.graph.regions[b].nodes)
            found = common(dict.fromkeys(filter(None, inside)))
            return found or self._made_last(node)
        gradient = next((self.gradients[v] for v in node.results if v in self.gradients), "")
        if node.phase == "update":
            return gradient or self._updated(node)
        return self._weights(node) or gradient or self._made_last(node)

    def _weights(self, node: Node) -> str:
        """Return the module of the weights among the operands.

        A cast, a transpose or a slice of a weight is one: it depends on no other argument.
        """
        known = self.arguments.weights
        operands = [self._entered(v) for v in node.operands]
        direct = dict.fromkeys(known[v] for v in operands if v in known)
        if direct:
            return common(direct) or next(iter(direct))
        return self._last(v for v in operands if v in self.made and not self.arguments.given[v])

    def _made_last(self, node: Node) -> str:
        return self._last(v for v in map(self._entered, node.operands) if v in self.made)

    def _last(self, values: Iterable[int]) -> str:
        named = [v for v in values if self.made[v]]
        return self.made[max(named, key=self.order.__getitem__)] if named else ""

    def _data(self, node: Node) -> str:
        others = (self.arguments.others.get(self._entered(v), "") for v in node.operands)
        return next(filter(None, others), "")

    def _updated(self, node: Node) -> str:
        """Return the path that all operands share, except smaller ones such as a step's scale."""
        operands = [self._entered(v) for v in node.operands]
        sizes = [prod(self.graph.values[v].type.shape) for v in operands]
        large = [v for v, size in zip(operands, sizes, strict=True) if size == max(sizes)]
        known = self.arguments
        found = dict.fromkeys(
            known.weights.get(v) or known.others.get(v) or self.made.get(v, "") for v in large
        )
        found.pop("", None)
        module = "" if self.of_all.intersection(large) else common(found)
        if not module and (found or self.of_all.intersection(large)):
            self.of_all.update(node.results)
        return module

    def _entered(self, value: int) -> int:
        """Return the value outside of the bodies that this one is an argument of."""
        while value not in self.made and value in self.outer:
            value = self.outer[value]
        return value

    def _name_preparations(self) -> None:
        """Name the nodes without a module whose readers all have one: indices, masks."""
        entered: dict[int, list[int]] = {}
        for tie in self.graph.region_arguments:
            entered.setdefault(tie.source, []).append(tie.target)
        for node in reversed(self.walked):
            if self.per_node[node.index] or node.phase == "update" or node.bodies:
                continue
            values = list(node.results)
            for value in values:  # a value that a loop carries on unchanged enters itself
                values += [v for v in entered.get(value, ()) if v not in values]
            readers = {self.graph.nodes[n] for v in values for n in self.graph.users[v]}
            found = {self.per_node[reader.index] for reader in readers if not reader.bodies}
            if len(found) == 1:
                self.per_node[node.index] = found.pop()
