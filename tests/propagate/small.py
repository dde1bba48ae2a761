"""Graphs made by hand, node by node, so that completion is tested without tracing."""

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph, Node, Region, RegionArgument, Signature, Site, Value, ValueType
from shardalg.planner.propagate.strategy import Annotations

MESH = Mesh({"x": 2, "y": 4})


def layout(shape, *entries, mesh=MESH, open_dims=()):
    """`layout((8, 4), "x", None)`: a sharding from axis names per dimension."""
    names = [() if e is None else (e,) if isinstance(e, str) else e for e in entries]
    names += [()] * (len(shape) - len(names))
    return Sharding(mesh, shape, tuple(mesh.digits(n) for n in names), tuple(open_dims))


def axes(sharding):
    """Return the axis names per dimension of a sharding."""
    return tuple(tuple(sharding.mesh.axis_ref(d).name for d in dim) for dim in sharding.dims)


class Builder:
    """Appends values and nodes; `graph()` freezes them."""

    def __init__(self):
        self.values, self.nodes, self.sites, self.region_arguments = [], [], [], []
        self.arguments, self.constants = [], []
        self.spans = [[]]
        self.regions = {0: ("root", None, None, (), (), 1)}
        self.region = 0

    def value(self, shape, kind="node", name=None, dtype="float32"):
        index = len(self.values)
        self.values.append(Value(index, ValueType(tuple(shape), dtype), kind, name or f"v{index}"))
        return index

    def argument(self, *shape, dtype="float32"):
        self.arguments.append(self.value(shape, "argument", dtype=dtype))
        return self.arguments[-1]

    def node(self, primitive, operands, result_shape, **params):
        result = self.value(result_shape)
        types = tuple(self.values[v].type for v in operands)
        signature = Signature(primitive, tuple(params.items()), types, (self.values[result].type,))
        self._append(signature, operands, (result,))
        return result

    def _append(self, signature, operands, results, bodies=()):
        index = len(self.nodes)
        node = Node(
            index, signature, tuple(operands), tuple(results), "", "forward", self.region, bodies
        )
        self.nodes.append(node)
        self.spans[self.region].append(index)
        return index

    def add(self, a, b):
        return self.node("add", (a, b), self.values[a].type.shape)

    def dot(self, a, b):
        """Return `a @ b` of matrices."""
        m, n = self.values[a].type.shape[0], self.values[b].type.shape[1]
        return self.node("dot_general", (a, b), (m, n), dimension_numbers=(((1,), (0,)), ((), ())))

    def broadcast(self, a, shape, dims):
        return self.node("broadcast_in_dim", (a,), shape, shape=shape, broadcast_dimensions=dims)

    def annotate(self, a, name=None, spec=None, open_dims=()):
        result = self.node("annotate", (a,), self.values[a].type.shape)
        self.sites.append(Site(len(self.nodes) - 1, name, spec, open_dims))
        return result

    def scan(self, inits, body, *, xs=(), consts=(), length=3):
        """Return the results of scanning `body(builder, consts, carries, slices)`."""
        number = len(self.spans)
        self.spans.append([])
        outer, self.region = self.region, number

        def shape(value):
            return self.values[value].type.shape

        inner = [self.value(shape(v), "region_argument") for v in (*consts, *inits)]
        slices = [self.value(shape(v)[1:], "region_argument") for v in xs]
        made, ys = body(self, inner[: len(consts)], inner[len(consts) :], slices)
        self.region = outer
        results = [self.value(shape(v)) for v in made]
        stacks = [self.value((length, *shape(v))) for v in ys]
        operands = (*consts, *inits, *xs)
        signature = Signature(
            "scan", (), tuple(self.values[v].type for v in operands),
            tuple(self.values[v].type for v in (*results, *stacks)),
        )  # fmt: skip
        call = self._append(signature, operands, (*results, *stacks), (number,))
        self.regions[number] = ("scan", outer, call, (*inner, *slices), (*made, *ys), length)
        carries = inner[len(consts) :]
        pairs = [("const", a, b) for a, b in zip(consts, inner, strict=False)]
        pairs += [("init", a, b) for a, b in zip(inits, carries, strict=True)]
        pairs += [("xs", a, b) for a, b in zip(xs, slices, strict=True)]
        pairs += [("carry", a, b) for a, b in zip(made, carries, strict=True)]
        pairs += [("result", a, b) for a, b in zip(made, results, strict=True)]
        pairs += [("ys", a, b) for a, b in zip(ys, stacks, strict=True)]
        self.region_arguments += [RegionArgument(call, *pair) for pair in pairs]
        return results, stacks, carries, made

    def graph(self, *results):
        regions = []
        for number, span in enumerate(self.spans):
            kind, parent, node, arguments, made, trips = self.regions[number]
            if number == 0:
                arguments, made = tuple(self.arguments), results
            regions.append(Region(number, kind, parent, node, arguments, made, tuple(span), trips))
        paths = tuple(f"a{i}" for i in range(len(self.arguments)))
        return Graph(
            tuple(self.values), tuple(self.nodes), tuple(regions), tuple(self.region_arguments),
            tuple(self.arguments), tuple(results), paths,
            tuple(f"[{i}]" for i in range(len(results))), tuple(self.sites),
            constants=tuple(self.constants),
        )  # fmt: skip


def annotations(graph, given=None, wanted=None, sites=None, mesh=MESH):
    """Annotations from tables of number to sharding, of arguments, results and sites."""

    def pick(table, count):
        return tuple((table or {}).get(i) for i in range(count))

    return Annotations(
        mesh,
        pick(given, len(graph.arguments)),
        pick(wanted, len(graph.results)),
        pick(sites, len(graph.sites)),
    )


def behind(value, *runs):
    """Return the values that a value's sharding depends on in some completions of one graph.

    They are the tensors of all operators through which its layout came, or those that a loop ties
    to it, and what is behind those.
    """
    graph = runs[0].graph
    seen, todo = {value}, [value]
    while todo:
        last = todo.pop()
        reasons = [reason for done in runs for _, reason in done.changes.get(last, ())]
        through = [graph.nodes[r.node] for r in reasons if r.node is not None]
        near = {v for reason in reasons for v in reason.sources}
        near |= {v for n in through if not n.bodies for v in n.operands + n.results}
        loops = {n.index for n in through if n.bodies}
        region_arguments = [{t.source, t.target} for t in graph.region_arguments if t.call in loops]
        near |= {v for tie in region_arguments if last in tie for v in tie}
        todo += near - seen
        seen |= near
    return seen
