"""Checks of a graph's structure: indices, types, order of definitions and regions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from shardalg.errors import TraceError
from shardalg.graph.ir import Graph, Node, Region, Value


def check(graph: Graph) -> None:
    """Check that the parts of a graph agree, such as indices, types and order of definitions.

    Raises:
      TraceError: an index, a type, a definition, a border of a region or a name is wrong.
    """
    faults = list(islice(_problems(graph), 5))
    if faults:
        raise TraceError(f"the graph is broken: {'; '.join(faults)}. Trace the function again.")


def _problems(graph: Graph) -> Iterator[str]:
    """Yield one message per fault that the first failing check finds.

    Later checks rely on earlier ones, so they do not run after a fault.
    """
    checks = _wrong_numbers, _wrong_types, _wrong_order, _wrong_regions, _wrong_region_arguments
    for find_faults in checks:
        faults = list(find_faults(graph))
        yield from faults
        if faults:
            return


def _wrong_numbers(graph: Graph) -> Iterator[str]:
    """Yield a message for each wrong index of a value, node or region, and for repeated names.

    An index is right if it is the place of the object in its list.
    """
    items_of_kind: dict[str, Sequence[Value | Node | Region]]
    items_of_kind = {"value": graph.values, "node": graph.nodes, "region": graph.regions}
    for kind, items in items_of_kind.items():
        yield from (
            f"{kind} {i} says {item.index}" for i, item in enumerate(items) if item.index != i
        )
    size = len(graph.values)
    for node in graph.nodes:
        if not all(0 <= i < size for i in (*node.operands, *node.results)):
            yield f"node {node.index} names a value that does not exist"
    if len({value.name for value in graph.values}) != size:
        yield "two values have one name"


def _wrong_types(graph: Graph) -> Iterator[str]:
    """Yield a message for each node whose signature and values have different types.

    A signature repeats the types of the operands and results, so both must agree.
    """
    values = graph.values
    for node in graph.nodes:
        sides = ((node.signature.operands, node.operands), (node.signature.results, node.results))
        for types, indices in sides:
            if types != tuple([values[i].type for i in indices]):
                found_types = [values[i].type for i in indices]
                place = f"{node.primitive} (node {node.index})"
                yield f"{place} expects {list(types)}, has {found_types}"


def _wrong_order(graph: Graph) -> Iterator[str]:
    """Yield a message for each node that defines a value again, or reads one that it cannot see.

    A node can see constants, the arguments of its body, and earlier results in its body. Also yield
    a message for each region that returns a value that it does not contain.
    """
    # `defined` has all values that are defined so far. `visible` has, per region, the values that
    # its nodes may read. Every region may read the constants.
    constants = {i for i, _ in graph.constants}
    defined = {*constants, *(i for region in graph.regions for i in region.arguments)}
    visible = {region.index: {*constants, *region.arguments} for region in graph.regions}
    for node in graph.walk():
        # Nodes of a remat span read values of the body around it, and define values there.
        body = graph.regions[node.region]
        while body.kind == "remat" and body.parent is not None:
            body = graph.regions[body.parent]
        visible_here = visible[body.index]
        hidden = [graph.values[i].name for i in node.operands if i not in visible_here]
        again = [graph.values[i].name for i in node.results if i in defined]
        if hidden or again:
            fault = f"reads {hidden} before it is made" if hidden else f"makes {again} again"
            yield f"{node.primitive} (node {node.index}) {fault}"
        visible_here.update(node.results)
        defined.update(node.results)
    for region in (r for r in graph.regions if r.kind != "remat"):
        visible_here = visible[region.index]
        missing = [graph.values[i].name for i in region.results if i not in visible_here]
        if missing:
            yield f"region {region.index} hands on {missing}, which it does not have"


def _wrong_regions(graph: Graph) -> Iterator[str]:
    """Yield a message for each region whose list of nodes, call or trip count is wrong."""
    listed_nodes = [set(region.nodes) for region in graph.regions]
    for node in graph.nodes:
        if node.index not in listed_nodes[node.region]:
            yield f"node {node.index} is not in its region {node.region}"
        for body in (graph.regions[i] for i in node.bodies):
            # A body runs as often as its call does, times the iterations of the call.
            trips = graph.trip_count(node) * node.signature.param("length", 1)
            # A `while` has no length parameter; the planner sets the trip counts of its regions.
            if node.primitive == "while":
                trips = body.trip_count
            if (body.node, body.trip_count) != (node.index, trips):
                yield f"region {body.index} runs {body.trip_count} times for node {body.node}"
    if (graph.regions[0].arguments, graph.regions[0].results) != (graph.arguments, graph.results):
        yield "region 0 has other arguments or results than the graph"


def _wrong_region_arguments(graph: Graph) -> Iterator[str]:
    """Yield a message for each region argument (tie) between values of different shapes.

    Also yield a message for each argument of a body that no region argument connects to a value
    outside.
    """
    connected = {tie.target for tie in graph.region_arguments}
    # Blocks inside a `shard_map` have other shapes than the values outside.
    for tie in (t for t in graph.region_arguments if not t.is_manual):
        source, target = graph.values[tie.source], graph.values[tie.target]
        # A stack outside of a scan has one leading dimension more than the value inside.
        if source.type.shape[tie.source_drop :] != target.type.shape[tie.target_drop :]:
            sides = [(value.name, value.type) for value in (source, target)]
            yield f"the tie {tie.kind} joins {sides}"
    for region in graph.regions[1:]:
        unconnected = [graph.values[i].name for i in region.arguments if i not in connected]
        if unconnected:
            yield f"region {region.index} has arguments without a tie: {unconnected}"
