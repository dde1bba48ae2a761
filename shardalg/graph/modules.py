"""The module of every node, and the values of a backward pass that become one weight's gradient.

A module is a path such as `layers/0/mlp`: the user's named scopes, or the path of a weight in the
tree of parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from shardalg.graph.ir import Graph, Node, once_per_graph
from shardalg.graph.weights import ArgumentModules, argument_modules, common


def gradients(
    graph: Graph, arguments: ArgumentModules, walked: Sequence[Node]
) -> Mapping[int, str]:
    """Return, per value that becomes one weight's gradient or update, the weight's module.

    Keys are value indices. The search starts at results, and at updates that read a weight or its
    state. It goes back through operators that keep the order of elements. Values of one element are
    left out: a clipping factor is part of all gradients.

    Args:
      arguments: the modules of the function's arguments and results.
      walked: the nodes in order of execution.
    """
    ends = _Ends(graph, arguments)
    module_of: dict[int, str] = {}
    for node in reversed(walked):
        for value in node.results:
            reached = ends.of_value(value)
            # A scalar, such as a norm, belongs to no weight even if it reaches only one.
            if len(reached) == 1 and node.phase != "forward" and ends.sizes[value] > 1:
                module_of[value] = next(iter(reached))
    return module_of


class _Ends:
    """Search for the weights whose gradient or update a value is part of.

    `of_value` returns the modules of these weights for one value. It follows the readers of the
    value to the results of the function. It must be called for values in reversed order of
    execution.

    Attributes:
      results: for each result that is the gradient or update of a weight, the weight's module.
      named: for each argument of the function that belongs to a module, this module.
      sizes: number of elements of each value.
      inner: for each value that enters or leaves a loop or branch, the values that equal it on
        the other side. Carries are left out.
      through: for each pair (barrier, operand), the result that equals the operand.
      known: for each value that was examined already, the modules that were found.
    """

    def __init__(self, graph: Graph, arguments: ArgumentModules) -> None:
        """Prepare the tables; `arguments` has the modules of the graph's arguments and results."""
        # `results` and `named` are the ends of the search: modules of results, and of arguments.
        # The search remembers in `known` what it found for a value.
        self.graph = graph
        self.results = arguments.results
        self.named = {**arguments.weights, **{v: m for v, m in arguments.others.items() if m}}
        self.sizes = [prod(value.type.shape) for value in graph.values]
        self.inner: dict[int, list[int]] = {}
        # A carry would lead back into the loop body, and recursion would not end.
        for tie in graph.region_arguments:
            if tie.kind != "carry":
                self.inner.setdefault(tie.source, []).append(tie.target)
        # Each result of a barrier is its operand of the same position. A barrier can have thousands
        # of operands, so that a search in each step would be slow.
        self.through = {
            (node.index, operand): [result]
            for node in graph.nodes_of(["optimization_barrier"])
            for operand, result in zip(node.operands, node.results, strict=True)
        }
        self.known: dict[int, frozenset[str]] = {}

    def of_value(self, value: int) -> frozenset[str]:
        """Return the modules of the weights whose gradient or update the value becomes.

        The value may be such a result of the function itself (`results`), or become one through a
        reader (`_through`), or under another name inside or outside of a loop (`inner`). The
        results of the value's readers must have been examined before.
        """
        if value not in self.known:
            reached = set(filter(None, [self.results.get(value)]))
            for reader in self.graph.users[value]:
                reached.update(self._through(self.graph.nodes[reader], value))
            for target in self.inner.get(value, ()):
                reached |= self.of_value(target)
            self.known[value] = frozenset(reached)
        return self.known[value]

    def _through(self, reader: Node, value: int) -> Iterable[str]:
        """Return the modules of the weights whose gradient a value becomes through one reader.

        Args:
          reader: a node with `value` as an operand.
        """
        # A call passes the value on to its bodies, which `of_value` follows.
        if reader.bodies:
            return ()
        # In `w - rate * g`, the value is the update of the weight w, so that the search ends here.
        if reader.phase == "update":
            shape = self.graph.values[value].type.shape
            weights_read = [v for v in reader.operands if v in self.named]
            updated = [
                self.named[v] for v in weights_read if self.graph.values[v].type.shape == shape
            ]
            if updated:
                return updated
        # After another operator, such as a matrix product, an element of the result no longer
        # belongs to one element of one weight.
        if reader.primitive not in _IN_PLACE:
            return ()
        next_values = self.through.get((reader.index, value)) or self._kept(reader, value)
        return frozenset().union(*map(self.of_value, next_values))

    def _kept(self, reader: Node, value: int) -> Sequence[int]:
        """Return the results of a node that contain the elements of its operand `value`.

        The node is an operator that changes a value in place, such as a `scatter-add`
        (`_IN_PLACE`).
        """
        # The result of a `concatenate` or a `pad` is larger than the operand, and contains it.
        if reader.primitive in _PLACED:
            return reader.results
        # The updates are cotangents of activations, for example of the rows of an embedding.
        if reader.primitive == "scatter-add" and value not in reader.operands[:1]:
            return ()
        return [result for result in reader.results if self.sizes[result] == self.sizes[value]]


# These operators write their operand's elements into a larger array: operand and result differ in
# size although the result contains the operand.
_PLACED = frozenset({"concatenate", "dynamic_update_slice", "pad"})

_IN_PLACE = _PLACED | frozenset(
    "abs add add_any annotate broadcast_in_dim clamp convert_element_type copy copy_p div exp "
    "integer_pow log max min mul neg optimization_barrier pow psum psum_invariant "
    "reduce_precision reshape rsqrt scatter-add select_n sharding_constraint sign sqrt square "
    "squeeze stop_gradient sub tanh transpose".split()
)
"""Operators that keep the order of an operand's elements, and change each by itself at most.

A gradient that passes through them is still the gradient of the same weight.
"""


@once_per_graph
def modules(graph: Graph) -> tuple[str, ...]:
    """Return the module of every node, such as `layers/0/mlp`, or "" if a node has none.

    The first rule that applies determines the module:
    - a node in the user's named scopes, or in a module of a framework, has this module;
    - a node in an update has the common path of its operands' modules;
    - a node that reads weights has the module of the weights;
    - a node that computes a gradient has the module of the gradient's weight;
    - any other node has the module of its most recently computed operand.

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
    """Assignment of modules to nodes, in order of execution.

    Attributes:
      arguments: the modules of the function's arguments and results.
      outer: by argument of a body, the value outside that it receives.
      walked: the nodes in order of execution.
      gradients: the module of the weight of each value that becomes a gradient or an update.
      per_node: the module of each node so far, or "".
      made: the module of each value that a visited node computed, or "".
      order: the position in `walked` of the node that computed a value.
      of_all: values of an update that are computed from modules without a common path.
    """

    def __init__(self, graph: Graph) -> None:
        """Find the modules of arguments and gradients, and start without modules of nodes."""
        self.graph = graph
        self.arguments = argument_modules(graph)
        self.outer = {t.target: t.source for t in graph.region_arguments if t.kind != "carry"}
        self.walked = list(graph.walk())
        self.gradients = gradients(graph, self.arguments, self.walked)
        self.per_node = [""] * len(graph.nodes)
        self.made: dict[int, str] = {}
        self.order: dict[int, int] = {}
        self.of_all: set[int] = set()

    def run(self) -> tuple[str, ...]:
        """Return the module of every node, or "".

        The nodes are visited in order of execution, because the rules of `modules` use the modules
        of the operands. Nodes without a module are named afterwards: after their readers, if they
        prepare an operand, or after a data argument that they read.
        """
        # Unlike `outer`, this table has carries: a loop's result is a carry of its body.
        inner = {t.target: t.source for t in self.graph.region_arguments}
        for place, node in enumerate(self.walked):
            module = node.module or self._module(node)
            self.per_node[node.index] = module
            for value in node.results:
                # A loop's result belongs to the part of the body that computes it.
                body = self.made.get(inner[value], "") if value in inner else ""
                self.made[value] = self.gradients.get(value) or body or module
                self.order[value] = place
        # After all nodes, because preparations take the name of the nodes that read them.
        self._name_preparations()
        # Data arguments come last, so that they never win over the rules of `modules`.
        for node in self.walked:
            modules_read = (self.arguments.others.get(self._entered(v), "") for v in node.operands)
            data = next(filter(None, modules_read), "")
            self.per_node[node.index] = self.per_node[node.index] or data
        return tuple(self.per_node)

    def _module(self, node: Node) -> str:
        """Return the module of a node without a named scope, such as `layers/0/mlp`, or "".

        The rules are those of `modules`. Forward and backward nodes take the module of a weight
        that they read, or of the gradient that they compute, or of an operand. Updates take that of
        their gradient, or of their operands.
        """
        # A call has the common path of the nodes in its bodies.
        if node.bodies:
            inside = (self.per_node[n] for b in node.bodies for n in self.graph.regions[b].nodes)
            common_path = common(dict.fromkeys(filter(None, inside)))
            return common_path or self._made_last(node)
        # In the update, a weight is only read to be changed, so its gradient decides first.
        gradient = next((self.gradients[v] for v in node.results if v in self.gradients), "")
        if node.phase == "update":
            return gradient or self._updated(node)
        return self._weights(node) or gradient or self._made_last(node)

    def _weights(self, node: Node) -> str:
        """Return the module of the weights among a node's operands, or "".

        A cast, a transpose or a slice of a weight counts as a weight: it depends on no other
        argument. For weights of several modules, return the modules' common path. Without a common
        path, return the first weight's module.
        """
        known = self.arguments.weights
        operands = [self._entered(v) for v in node.operands]
        direct = dict.fromkeys(known[v] for v in operands if v in known)
        if direct:
            return common(direct) or next(iter(direct))
        # `given` marks values that depend on an argument that is no weight. Of the others, the
        # value that was computed last decides.
        return self._last(v for v in operands if v in self.made and not self.arguments.given[v])

    def _made_last(self, node: Node) -> str:
        """Return the module, such as `layers/0`, of the node's most recently computed operand.

        Operands without a module do not count; return "" if no operand has one.
        """
        return self._last(v for v in map(self._entered, node.operands) if v in self.made)

    def _last(self, values: Iterable[int]) -> str:
        """Return the module of the value among `values` that was computed last.

        Values without a module do not count; return "" if no value has one.
        """
        values_with_module = [v for v in values if self.made[v]]
        return (
            self.made[max(values_with_module, key=self.order.__getitem__)]
            if values_with_module
            else ""
        )

    def _updated(self, node: Node) -> str:
        """Return the common path of the modules of an update's largest operands, or "".

        Smaller operands, such as the learning rate, do not count. If the modules have no common
        path, the node's results are added to `of_all`, so that later updates of them have none
        either.
        """
        operands = [self._entered(v) for v in node.operands]
        sizes = [prod(self.graph.values[v].type.shape) for v in operands]
        large_operands = [v for v, size in zip(operands, sizes, strict=True) if size == max(sizes)]
        argument_modules = self.arguments
        # A value is a weight, another argument, or computed: each kind has a table of modules.
        modules = dict.fromkeys(
            argument_modules.weights.get(v)
            or argument_modules.others.get(v)
            or self.made.get(v, "")
            for v in large_operands
        )
        modules.pop("", None)
        module = "" if self.of_all.intersection(large_operands) else common(modules)
        if not module and (modules or self.of_all.intersection(large_operands)):
            self.of_all.update(node.results)
        return module

    def _entered(self, value: int) -> int:
        """Return the value outside of a loop or branch that a body argument receives.

        For nested bodies this is the outermost value. Return any other value unchanged.
        """
        while value not in self.made and value in self.outer:
            value = self.outer[value]
        return value

    def _name_preparations(self) -> None:
        """Give each node without a module the module of its readers, if they have the same one.

        Such nodes prepare an operand, for example indices or a mask.
        """
        body_arguments: dict[int, list[int]] = {}
        for tie in self.graph.region_arguments:
            body_arguments.setdefault(tie.source, []).append(tie.target)
        # In reverse order, so that in a chain of such nodes the last one has its module first.
        for node in reversed(self.walked):
            if self.per_node[node.index] or node.phase == "update" or node.bodies:
                continue
            values = list(node.results)
            # The list grows while it is read. A carry that a loop does not change enters itself.
            for value in values:
                values += [v for v in body_arguments.get(value, ()) if v not in values]
            readers = {self.graph.nodes[n] for v in values for n in self.graph.users[v]}
            reader_modules = {
                self.per_node[reader.index] for reader in readers if not reader.bodies
            }
            if len(reader_modules) == 1:
                self.per_node[node.index] = reader_modules.pop()
