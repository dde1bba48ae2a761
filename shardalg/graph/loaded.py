"""Checks of a graph that was read from a file, and reconstruction of its region arguments.

The checks cover properties that tracing guarantees, but a damaged file does not. Files do not store
region arguments, because they follow from the operands and bodies of the calls.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import ml_dtypes
import numpy as np

from shardalg.errors import PlanFileError
from shardalg.files import read
from shardalg.graph.ir import (
    ITEM_SIZES,
    Graph,
    Missing,
    Node,
    Params,
    Plain,
    Region,
    RegionArgument,
    ValueType,
)
from shardalg.graph.tracing.control_flow import CALLS, RegionCall

_AXES = tuple[tuple[tuple[str, ...], ...], ...]
_CALLS: Mapping[str, tuple[Mapping[str, Any], int | None]] = {
    "scan": ({"length": int, "num_carry": int, "num_consts": int, "reverse": bool}, 1),
    "while": ({"body_nconsts": int, "cond_nconsts": int}, 2),
    "cond": ({}, None),
    "shard_map": ({"axes": tuple[tuple[str, int], ...], "in_axes": _AXES, "out_axes": _AXES}, 1),
}
"""For each call with bodies: its parameters, and its number of bodies (None: at least one)."""
_UNSEEN: Mapping[str, Any] = {
    **dict.fromkeys(
        ("indices_are_sorted", "is_stable", "reverse", "tiled", "unique_indices"), bool
    ),
    "mode": str,
}
"""Types of parameters that have no influence on result types, so JAX's type rules ignore them."""
_COUNTS = {"scan": ("num_consts", "num_carry"), "while": ("cond_nconsts", "body_nconsts")}


def loaded(graph: Graph) -> Graph:
    """Return a graph that was read from a file with its region arguments, after checks.

    The checks find a graph that tracing cannot produce. `well_formed.check` covers further
    properties.

    Raises:
      PlanFileError: an index is out of range, a region does not belong to its call, a value is
        computed by no node or by two, a site has no node, the border of a call does not match its
        bodies, or a type does not exist.
    """
    # In this order, because later checks rely on the ranges and the tree.
    for check in (_wrong_ranges, _wrong_tree, _wrong_values, _wrong_calls):
        # A damaged table can have thousands of faults; the message names the first few.
        faults = list(islice(check(graph), 5))
        if faults:
            raise PlanFileError(
                f"the saved graph is damaged: {'; '.join(faults)}. Plan the function again."
            )
    # Tracing adds the region arguments of inner calls before those of outer calls. Nodes have the
    # same order, so that a graph read from a file is equal to the traced one.
    calls = [node for node in graph.nodes if node.bodies]
    ties = [tie for node in calls for tie in CALLS[node.primitive](_region_call(graph, node))]
    return replace(graph, region_arguments=tuple(ties))


def item_type(name: str) -> np.dtype | None:
    """Return the numpy dtype with this name; None for keys, `float0` and unknown names.

    >>> item_type("bfloat16"), item_type("int32"), item_type("object"), item_type("key<fry>")
    (dtype(bfloat16), dtype('int32'), None, None)
    """
    return _ITEM_TYPES.get(name)


_ITEM_TYPES = {
    name: np.dtype(getattr(ml_dtypes, name, name))
    for name in (
        *ITEM_SIZES,
        *(n for n in vars(ml_dtypes) if n.startswith(("float", "int", "uint"))),
    )
}


def _wrong_ranges(graph: Graph) -> Iterator[str]:
    """Yield a message for each index out of range, and for each impossible type or parameter.

    The indices are those of values, nodes and regions. Also yield a message if there are more or
    fewer paths than arguments, or than results.
    """
    # All places that refer to a value by its index: program, nodes and regions.
    value_indices = [*graph.arguments, *graph.results, *(i for i, _ in graph.constants)]
    value_indices += [i for n in graph.nodes for i in (*n.operands, *n.results)]
    value_indices += [i for r in graph.regions for i in (*r.arguments, *r.results)]
    yield from _out_of_range("values", len(graph.values), value_indices)
    num_nodes = len(graph.nodes)
    yield from _out_of_range("nodes", num_nodes, [i for r in graph.regions for i in r.nodes])
    yield from _out_of_range("nodes", num_nodes, [s.node for s in graph.sites])
    region_indices = [i for n in graph.nodes for i in (n.region, *n.bodies)]
    yield from _out_of_range("regions", len(graph.regions), region_indices)
    for paths, named_values in (
        (graph.argument_paths, graph.arguments),
        (graph.result_paths, graph.results),
    ):
        if len(paths) != len(named_values):
            yield f"{len(paths)} paths for {len(named_values)} values"
    for type_ in {value.type for value in graph.values}:
        # JAX's extended types, of random keys and of gradients of integers, have no numpy type.
        extended = type_.dtype == "float0" or type_.dtype.startswith("key<")
        is_known = extended or item_type(type_.dtype) is not None
        if not is_known or any(n < 0 for n in type_.shape):
            yield f"{type_.dtype!r}{list(type_.shape)} is no type"
    for signature in {node.signature for node in graph.nodes}:
        names = [name for name, _ in signature.params]
        # A signature is compared by its tuple of parameters, so their order must be canonical.
        if any(first >= second for first, second in pairwise(names)):
            yield f"{signature.primitive} has the parameters {names}: each once, in order"
        # JAX's type rules ignore some parameters, so a wrong type of one would show only later.
        _check_params(signature.params, _UNSEEN)


def _out_of_range(what: str, size: int, numbers: Iterable[int]) -> Iterator[str]:
    """Yield one message with the first indices that are not in `range(size)`, if there are any.

    Args:
      what: the plural noun of the indexed things, for the message, such as "nodes".
      size: how many there are.
      numbers: the indices to check.
    """
    wrong = sorted({i for i in numbers if not 0 <= i < size})
    if wrong:
        yield f"{what} {wrong[:5]} of {size}"


def _wrong_tree(graph: Graph) -> Iterator[str]:
    """Yield a message for each fault of the tree of regions.

    Faults are a wrong parent or call of a region, a wrong list of its nodes, and a region that is
    the body of two calls.
    """
    nodes_of_region: list[list[int]] = [[] for _ in graph.regions]
    for region in graph.regions:
        fault = _region_fault(graph, region)
        if fault:
            yield f"region {region.index} ({region.kind!r}) {fault}"
            # The checks below follow the parents, which a faulty region may not have.
            return
    for node in graph.nodes:
        region_of_node = graph.regions[node.region]
        nodes_of_region[region_of_node.index].append(node.index)
        # The parent of a remat region lists its nodes too.
        while region_of_node.kind == "remat" and region_of_node.parent is not None:
            region_of_node = graph.regions[region_of_node.parent]
            nodes_of_region[region_of_node.index].append(node.index)
    for region, nodes in zip(graph.regions, nodes_of_region, strict=True):
        # The list of a region repeats what each node says about its region; both must agree.
        if tuple(nodes) != region.nodes:
            yield f"region {region.index} lists {list(region.nodes)[:8]}, it has {nodes[:8]}"
    call_count = Counter(body for node in graph.nodes for body in node.bodies)
    if any(count > 1 for count in call_count.values()):
        yield "a region is the body of two calls"


def _region_fault(graph: Graph, region: Region) -> str:
    """Return a message about a region's wrong parent, call or trip count; "" if all are right."""
    if region.index == 0:
        root_fields = (region.kind, region.parent, region.node, region.trip_count)
        return "" if root_fields == ("root", None, None, 1) else "is not the program"
    # A parent comes before its bodies, so the tree has no cycle.
    if region.parent is None or not 0 <= region.parent < region.index:
        return f"has the parent {region.parent}"
    # A remat span (`jax.checkpoint`) only groups nodes: it has no call, and runs as often as its
    # parent.
    if region.kind == "remat":
        has_no_border = region.node is None and not region.arguments and not region.results
        has_same_trips = region.trip_count == graph.regions[region.parent].trip_count
        return (
            ""
            if has_no_border and has_same_trips
            else "has a call, arguments, results or trips of its own"
        )
    if region.kind not in _CALLS or region.node is None or not 0 <= region.node < len(graph.nodes):
        return f"is the body of {region.node}"
    node = graph.nodes[region.node]
    is_its_body = region.index in node.bodies and node.primitive == region.kind
    # Files store the traced graph. The planner determines the iterations of a `while` later.
    runs_once = region.trip_count == graph.regions[region.parent].trip_count
    if region.kind == "while" and not runs_once:
        return "has trips of its own"
    return (
        "" if is_its_body and node.region == region.parent else f"is no body of node {region.node}"
    )


def _wrong_values(graph: Graph) -> Iterator[str]:
    """Yield a message for each value that is not defined exactly once, as its kind declares.

    For example, a value of the kind "node" must be the result of one node. Also yield a message for
    each constant of a wrong type, and one if sites and annotations differ.
    """
    # Each way in which a value can get its content, by value index.
    definition_count = Counter(
        [
            *((i, "constant") for i, _ in graph.constants),
            *((i, "argument") for i in graph.arguments),
            *((i, "region_argument") for r in graph.regions[1:] for i in r.arguments),
            *((i, "node") for n in graph.nodes for i in n.results),
        ]
    )
    declarations = {(value.index, value.kind) for value in graph.values}
    repeated = {key for key, count in definition_count.items() if count > 1}
    # A run reads each value from its only definition, so none may be missing or repeated.
    wrong = sorted((declarations ^ definition_count.keys()) | repeated)
    yield from (f"{graph.values[i].name!r} is not defined once, by a {kind}" for i, kind in wrong)
    for index, array in graph.constants:
        type_ = graph.values[index].type
        if not isinstance(array, Missing) and (array.shape, array.dtype.name) != (
            type_.shape,
            type_.dtype,
        ):
            yield f"constant {graph.values[index].name!r} is no {type_}"
    # The graph stores an annotation twice: as a site and as a node. Both must agree, also in order.
    sites: dict[int, dict[str, Plain]] = {
        site.node: {"name": site.name, "spec": site.spec, "unspecified_dims": site.unspecified_dims}
        for site in graph.sites
    }
    annotations = {
        node.index: {k: v for k, v in node.signature.params if k != "added"}
        for node in graph.nodes
        if node.primitive == "annotate"
    }
    if sites != annotations or list(sites) != [site.node for site in graph.sites]:
        yield "the sites differ from the annotations in the graph"


def _wrong_calls(graph: Graph) -> Iterator[str]:
    """Yield a message for each call whose parameters, bodies, operands and results do not match.

    Calls are the nodes with bodies: scan, while, cond and shard_map.
    """
    for node in graph.nodes:
        if node.bodies or node.primitive in _CALLS:
            fault = _call_fault(graph, node)
            if fault:
                yield f"{node.primitive} (node {node.index}) {fault}"


def _call_fault(graph: Graph, node: Node) -> str:
    """Return a message about the first fault of a call (scan, while, cond, shard_map), or ""."""
    if node.primitive not in _CALLS:
        return "has bodies"
    # The type of each parameter, and the number of bodies. It is None for `cond`, which has any
    # number of branches from 1 on.
    param_types, num_bodies = _CALLS[node.primitive]
    # Tracing adds this parameter only to some scans.
    if node.primitive == "scan" and "unrolled" in dict(node.signature.params):
        param_types = {**param_types, "unrolled": bool}
    if len(node.bodies) != num_bodies and (num_bodies is not None or not node.bodies):
        return f"has {len(node.bodies)} bodies"
    if [name for name, _ in node.signature.params] != sorted(param_types):
        return f"has other parameters than {sorted(param_types)}"
    _check_params(node.signature.params, param_types)
    # `counts` has the numbers of operands that are constants of the body, or carried.
    call = _region_call(graph, node)
    if sum(call.counts) > len(node.operands) or min(call.counts, default=0) < 0:
        return f"has {len(node.operands)} operands, {call.counts} of them are constants or carried"
    try:
        region_arguments = list(CALLS[node.primitive](call))
    except ValueError:  # a strict zip of operands and body arguments, or of results
        return "has another number of operands or results than its bodies"
    return _border_fault(graph, node, region_arguments)


def _check_params(params: Params, kinds: Mapping[str, Any]) -> None:
    """Raise PlanFileError if a parameter does not have the type that `kinds` gives for its name.

    Parameters that `kinds` does not name are not checked.
    """
    for name, value in params:
        if name in kinds:
            read(kinds[name], value, name)


def _border_fault(graph: Graph, node: Node, region_arguments: list[RegionArgument]) -> str:
    """Return a message about values outside and inside a call whose types do not match, or "".

    For example, an argument of a scan's body has the dtype of the scan's operand.
    `well_formed.check` compares the shapes.
    """
    values, length = graph.values, node.signature.param("length")
    for tie in region_arguments:
        # A region argument connects a value outside (or inside) with its counterpart: source and
        # target.
        end_types = values[tie.source].type, values[tie.target].type
        # A scan cuts its `xs` along their leading dimension, and stacks its `ys` along a new one:
        # outside of the body, both have one element per iteration there.
        stacked_types = {"xs": end_types[:1], "ys": end_types[1:]}.get(tie.kind, ())
        if end_types[0].dtype != end_types[1].dtype or any(
            t.shape[:1] != (length,) for t in stacked_types
        ):
            return f"ties {end_types[0]} to {end_types[1]} as {tie.kind}"
    if node.primitive == "shard_map":
        return _block_fault(graph, node, region_arguments)
    # A loop continues while one boolean is true; a branch is chosen by one integer.
    if node.primitive == "while":
        condition_types = [values[v].type for v in graph.regions[node.bodies[0]].results]
        return (
            ""
            if condition_types == [ValueType((), "bool")]
            else f"has the condition {condition_types}"
        )
    if node.primitive == "cond":
        index_type = [values[v].type for v in node.operands[:1]]
        return "" if index_type == [ValueType((), "int32")] else f"chooses by {index_type}"
    return ""


def _block_fault(graph: Graph, node: Node, region_arguments: list[RegionArgument]) -> str:
    """Return a message if a `shard_map`'s specs do not give the shapes inside of it, or "".

    A value outside, divided by the sizes of the mesh axes in its spec, must have the shape of the
    block inside.
    """
    sizes = dict(node.signature.param("axes"))
    specs = (*node.signature.param("in_axes"), *node.signature.param("out_axes"))
    # Each operand and each result has one spec, and crosses the border in one region argument.
    if (
        len(specs) != len(region_arguments)
        or len(sizes) != len(node.signature.param("axes"))
        or not {n for s in specs for d in s for n in d} <= sizes.keys()
    ):
        return f"has {len(specs)} specs of {sorted(sizes)} for {len(region_arguments)} values"
    for spec, tie in zip(specs, region_arguments, strict=True):
        # An input is cut from outside to inside, a result is joined from inside to outside.
        outer_and_inner = (
            (tie.source, tie.target) if tie.kind == "block" else (tie.target, tie.source)
        )
        whole, block = (graph.values[end].type.shape for end in outer_and_inner)
        # A dimension is split into the product of the sizes of its axes.
        num_blocks = [math.prod(sizes[name] for name in names) for names in spec]
        # A spec may be shorter than the shape; the other dimensions are not cut.
        num_blocks += [1] * (len(whole) - len(num_blocks))
        if len(num_blocks) != len(block) or whole != tuple(
            n * c for n, c in zip(block, num_blocks, strict=True)
        ):
            return f"cuts {whole} by {spec} into {block}"
    return ""


def _region_call(graph: Graph, node: Node) -> RegionCall:
    """Return the operands and results of a call, and the arguments and results of its bodies.

    The second field has the numbers of leading operands with a role of their own: for a scan the
    constants and the carries, for a while loop the constants of the condition and of the body.
    """
    bodies = [graph.regions[body] for body in node.bodies]
    return RegionCall(
        node.index,
        tuple(node.signature.param(name) for name in _COUNTS.get(node.primitive, ())),
        node.operands,
        [body.arguments for body in bodies],
        [body.results for body in bodies],
        node.results,
    )
