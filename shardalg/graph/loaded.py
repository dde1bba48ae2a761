"""A graph that was read from a file: what tracing guarantees is checked, what follows is made."""

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
    Site,
    ValueType,
)
from shardalg.graph.tracing.control_flow import CALLS, RegionCall

_AXES = tuple[tuple[tuple[str, ...], ...], ...]
# Per call with bodies: its parameters, and how many bodies it has (None: at least one).
_CALLS: Mapping[str, tuple[Mapping[str, Any], int | None]] = {
    "scan": ({"length": int, "num_carry": int, "num_consts": int, "reverse": bool}, 1),
    "while": ({"body_nconsts": int, "cond_nconsts": int}, 2),
    "cond": ({}, None),
    "shard_map": ({"axes": tuple[tuple[str, int], ...], "in_axes": _AXES, "out_axes": _AXES}, 1),
}
# Parameters that no rule for types looks at.
_UNSEEN: Mapping[str, Any] = {
    **dict.fromkeys(
        ("indices_are_sorted", "is_stable", "reverse", "tiled", "unique_indices"), bool
    ),
    "mode": str,
}
_COUNTS = {"scan": ("num_consts", "num_carry"), "while": ("cond_nconsts", "body_nconsts")}


def loaded(graph: Graph) -> Graph:
    """The graph with its calls' region arguments, if a trace could have made the graph.

    What `Graph.check` looks at is not looked at here.

    Raises:
      PlanFileError: a number of a value, node or region that there is not, a region that is not its
        call's, a value that nothing or two things make, a site that no node is, a call whose border
        does not fit, a type that is none.
    """
    for check in (_wrong_ranges, _wrong_tree, _wrong_values, _wrong_calls):
        _refuse(check(graph))
    return replace(graph, region_arguments=tuple(_region_arguments(graph)))


def item_type(name: str) -> np.dtype | None:
    """The item type of that name that numpy has; None for keys, `float0`, and what is no type.

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


def _refuse(faults: Iterable[str]) -> None:
    found = list(islice(faults, 5))
    if found:
        raise PlanFileError(
            f"the saved graph is damaged: {'; '.join(found)}. Plan the function again."
        )


def _wrong_ranges(graph: Graph) -> Iterator[str]:
    """Numbers beyond their tables, and entries that are not what they may be."""
    values, nodes, regions = len(graph.values), len(graph.nodes), len(graph.regions)
    yield from _beyond("values", values, _value_numbers(graph))
    yield from _beyond("nodes", nodes, [i for r in graph.regions for i in r.nodes])
    yield from _beyond("nodes", nodes, [s.node for s in graph.sites])
    inside = [i for n in graph.nodes for i in (n.region, *n.bodies)]
    yield from _beyond("regions", regions, inside)
    for paths, ends in (
        (graph.argument_paths, graph.arguments),
        (graph.result_paths, graph.results),
    ):
        if len(paths) != len(ends):
            yield f"{len(paths)} paths for {len(ends)} values"
    yield from (f"{t.dtype!r}{list(t.shape)} is no type" for t in _types(graph) if not _is_type(t))
    for signature in {node.signature for node in graph.nodes}:
        names = [name for name, _ in signature.params]
        if any(first >= second for first, second in pairwise(names)):
            yield f"{signature.primitive} has the parameters {names}: each once, in order"
        _check_params(signature.params, _UNSEEN)


def _value_numbers(graph: Graph) -> Iterator[int]:
    yield from (*graph.arguments, *graph.results, *(i for i, _ in graph.constants))
    for node in graph.nodes:
        yield from (*node.operands, *node.results)
    for region in graph.regions:
        yield from (*region.arguments, *region.results)


def _beyond(what: str, size: int, numbers: Iterable[int]) -> Iterator[str]:
    wrong = sorted({i for i in numbers if not 0 <= i < size})
    if wrong:
        yield f"{what} {wrong[:5]} of {size}"


def _types(graph: Graph) -> set[ValueType]:
    return {value.type for value in graph.values}


def _is_type(kind: ValueType) -> bool:
    extended = kind.dtype == "float0" or kind.dtype.startswith("key<")
    return all(n >= 0 for n in kind.shape) and (extended or item_type(kind.dtype) is not None)


def _wrong_tree(graph: Graph) -> Iterator[str]:
    """Regions that are no tree of bodies and remat spans, each with the nodes that stand in it."""
    inside: list[list[int]] = [[] for _ in graph.regions]
    for region in graph.regions:
        fault = _wrong_region(graph, region)
        if fault:
            yield f"region {region.index} ({region.kind!r}) {fault}"
            return
    for node in graph.nodes:
        here = graph.regions[node.region]
        inside[here.index].append(node.index)
        while (
            here.kind == "remat" and here.parent is not None
        ):  # its nodes stand in the list of the region around it as well
            here = graph.regions[here.parent]
            inside[here.index].append(node.index)
    for region, nodes in zip(graph.regions, inside, strict=True):
        if tuple(nodes) != region.nodes:
            yield f"region {region.index} lists {list(region.nodes)[:8]}, it has {nodes[:8]}"
    owned = Counter(body for node in graph.nodes for body in node.bodies)
    if any(count > 1 for count in owned.values()):
        yield "a region is the body of two calls"


def _wrong_region(graph: Graph, region: Region) -> str:
    """What is wrong with a region's place in the tree; "" if nothing."""
    if region.index == 0:
        told = (region.kind, region.parent, region.node, region.trip_count)
        return "" if told == ("root", None, None, 1) else "is not the program"
    if region.parent is None or not 0 <= region.parent < region.index:
        return f"stands in {region.parent}"
    if region.kind == "remat":
        alone = region.node is None and not region.arguments and not region.results
        same = region.trip_count == graph.regions[region.parent].trip_count
        return "" if alone and same else "has a call, a border or trips of its own"
    if region.kind not in _CALLS or region.node is None or not 0 <= region.node < len(graph.nodes):
        return f"is the body of {region.node}"
    node = graph.nodes[region.node]
    mine = region.index in node.bodies and node.primitive == region.kind
    # A file holds the graph as it was traced: the iterations of a `while` are counted in planning.
    once = region.trip_count == graph.regions[region.parent].trip_count
    if region.kind == "while" and not once:
        return "has trips of its own"
    return "" if mine and node.region == region.parent else f"is no body of node {region.node}"


def _wrong_values(graph: Graph) -> Iterator[str]:
    """Values that are made by nothing, twice, or by something else than they say."""
    made = Counter(
        [
            *((i, "constant") for i, _ in graph.constants),
            *((i, "argument") for i in graph.arguments),
            *((i, "region_argument") for r in graph.regions[1:] for i in r.arguments),
            *((i, "node") for n in graph.nodes for i in n.results),
        ]
    )
    told = {(value.index, value.kind) for value in graph.values}
    wrong = sorted((told ^ made.keys()) | {key for key, count in made.items() if count > 1})
    yield from (f"{graph.values[i].name!r} is not made once, by a {kind}" for i, kind in wrong)
    for index, array in graph.constants:
        kind = graph.values[index].type
        if not isinstance(array, Missing) and (array.shape, array.dtype.name) != (
            kind.shape,
            kind.dtype,
        ):
            yield f"constant {graph.values[index].name!r} is no {kind}"
    sites = {site.node: _said(site) for site in graph.sites}
    said = {n.index: dict(n.signature.params) for n in graph.nodes if n.primitive == "annotate"}
    for params in said.values():
        params.pop("added", None)
    if sites != said or list(sites) != [site.node for site in graph.sites]:
        yield "sites are not what the annotations in the graph say"


def _said(site: Site) -> dict[str, Plain]:
    return {"name": site.name, "spec": site.spec, "unspecified_dims": site.unspecified_dims}


def _wrong_calls(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if node.bodies or node.primitive in _CALLS:
            fault = _wrong_call(graph, node)
            if fault:
                yield f"{node.primitive} (node {node.index}) {fault}"


def _wrong_call(graph: Graph, node: Node) -> str:
    if node.primitive not in _CALLS:
        return "has bodies"
    kinds, count = _CALLS[node.primitive]
    if node.primitive == "scan" and "unrolled" in dict(node.signature.params):
        kinds = {**kinds, "unrolled": bool}
    if len(node.bodies) != count and (count is not None or not node.bodies):
        return f"has {len(node.bodies)} bodies"
    if [name for name, _ in node.signature.params] != sorted(kinds):
        return f"has other parameters than {sorted(kinds)}"
    _check_params(node.signature.params, kinds)
    call = _call(graph, node)
    if sum(call.counts) > len(node.operands) or min(call.counts, default=0) < 0:
        return f"has {len(node.operands)} operands, {call.counts} of them are constants or carried"
    try:
        region_arguments = list(CALLS[node.primitive](call))
    except ValueError:  # of a strict zip
        return "has another border than its bodies"
    return _wrong_border(graph, node, region_arguments)


def _check_params(params: Params, kinds: Mapping[str, Any]) -> None:
    for name, value in params:
        if name in kinds:
            read(kinds[name], value, name)


def _wrong_border(graph: Graph, node: Node, region_arguments: list[RegionArgument]) -> str:
    """Types on the two sides of a call that do not fit; `Graph.check` compares their shapes."""
    values, length = graph.values, node.signature.param("length")
    for tie in region_arguments:
        ends = values[tie.source].type, values[tie.target].type
        stacked = {"xs": ends[:1], "ys": ends[1:]}.get(tie.kind, ())
        if ends[0].dtype != ends[1].dtype or any(t.shape[:1] != (length,) for t in stacked):
            return f"ties {ends[0]} to {ends[1]} as {tie.kind}"
    if node.primitive == "shard_map":
        return _wrong_blocks(graph, node, region_arguments)
    if node.primitive == "while":
        said = [values[v].type for v in graph.regions[node.bodies[0]].results]
        return "" if said == [ValueType((), "bool")] else f"has the condition {said}"
    if node.primitive == "cond":
        chosen = [values[v].type for v in node.operands[:1]]
        return "" if chosen == [ValueType((), "int32")] else f"chooses by {chosen}"
    return ""


def _wrong_blocks(graph: Graph, node: Node, region_arguments: list[RegionArgument]) -> str:
    """Blocks of a manual region that are not what its axes cut from the values around it."""
    sizes = dict(node.signature.param("axes"))
    specs = (*node.signature.param("in_axes"), *node.signature.param("out_axes"))
    if (
        len(specs) != len(region_arguments)
        or len(sizes) != len(node.signature.param("axes"))
        or not {n for s in specs for d in s for n in d} <= sizes.keys()
    ):
        return f"has {len(specs)} specs of {sorted(sizes)} for {len(region_arguments)} values"
    for spec, tie in zip(specs, region_arguments, strict=True):
        ends = (tie.source, tie.target) if tie.kind == "block" else (tie.target, tie.source)
        whole, block = (graph.values[end].type.shape for end in ends)
        cut = [math.prod(sizes[name] for name in names) for names in spec]
        cut += [1] * (len(whole) - len(cut))
        if len(cut) != len(block) or whole != tuple(n * c for n, c in zip(block, cut, strict=True)):
            return f"cuts {whole} by {spec} into {block}"
    return ""


def _call(graph: Graph, node: Node) -> RegionCall:
    bodies = [graph.regions[body] for body in node.bodies]
    return RegionCall(
        node.index,
        tuple(node.signature.param(name) for name in _COUNTS.get(node.primitive, ())),
        node.operands,
        [body.arguments for body in bodies],
        [body.results for body in bodies],
        node.results,
    )


def _region_arguments(graph: Graph) -> Iterator[RegionArgument]:
    """The region arguments of all calls, inner ones first, as tracing meets them."""
    for node in graph.nodes:
        if node.bodies:
            yield from CALLS[node.primitive](_call(graph, node))
