"""Prices (flops and bytes) of opaque kernels: Pallas calls, `ffi_call`, callbacks.

A price is a parameter of the kernel's node. The user gives it by `Options(prices=...)`, or it is
read from the code of a Pallas call. A Pallas call with `cost_estimate=` has this price. Otherwise
its flops are those of its kernel,
times the number of grid steps, and its bytes are those of its blocks, each fetched or written when
its index changes. Pallas' pipeline (`jax._src.pallas.mosaic.pipeline`) skips the copy of a block
whose index is that of the step before, with the last grid axis as the fastest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardalg.costs.compute import contracts, signature_flops
from shardalg.costs.kernels.kernel_price import (
    OPAQUE,
    PRICE,
    KernelPrice,
    Price,
    price_of,
    with_price,
)
from shardalg.errors import StrategyError
from shardalg.graph.ir import ITEM_SIZES, Graph, Node, Signature, ValueType
from shardalg.graph.plain import plain_params

PALLAS = "pallas_call"
GIVEN = "options"


def with_pallas_prices(graph: Graph) -> Graph:
    """Return the graph in which every Pallas call has the price that its code gives.

    A graph that was loaded from a file has no code. Its calls keep the prices that they were saved
    with.
    """
    prices = {}
    for node in graph.nodes_of((PALLAS,)):
        binding = graph.bindings[node.index] if graph.bindings else None
        if binding is not None:
            prices[node.index] = _pallas_price(binding[1])
    return _with_prices(graph, prices)


def with_given_prices(graph: Graph, prices: Mapping[str, KernelPrice]) -> Graph:
    """Return the graph in which kernels have the prices that the user gave.

    A price is the flops and bytes of an operator that the planner cannot look into. Prices that the
    user gave for an earlier plan of the graph are removed.

    Args:
      prices: the price of each kernel, by the name that `target_of` returns. It may depend on the
        shapes of the operands.

    Raises:
      StrategyError: no operator of the function has the name of a target.
    """
    # A Pallas call whose given price is removed gets back the price of its code.
    before, graph = graph, without_given_prices(graph)
    if graph is not before:
        graph = with_pallas_prices(graph)
    if not prices:
        return graph
    found = {}
    unused = set(prices)
    for node in graph.nodes_of(OPAQUE):
        target = target_of(node)
        if target is not None and target in prices:
            unused.discard(target)
            # Several calls of one kernel may have operands of different shapes.
            price = prices[target].at(*(value.shape for value in node.signature.operands))
            found[node.index] = Price(price.flops, price.bytes, True, GIVEN)
    # A name without a kernel is probably misspelt, and its price would have no effect.
    if unused:
        known = sorted({*filter(None, map(target_of, graph.nodes_of(OPAQUE)))})
        raise StrategyError(
            f"Options(prices=...) names {sorted(unused)}, which the function does not call. "
            f"It calls {known or 'no kernel'}."
        )
    return _with_prices(graph, found)


def target_of(node: Node) -> str | None:
    """Return the name by which `Options(prices=...)` identifies a kernel; None for other operators.

    It is the target of an `ffi_call`, the function of a `pure_callback`, the name of a Pallas call.
    """
    signature = node.signature
    if node.primitive == "ffi_call":
        return str(signature.param("target_name"))
    if node.primitive == "pure_callback":
        return _callback_name(signature)
    if node.primitive == PALLAS:
        return str(signature.param("name") or PALLAS)
    return None


def _callback_name(signature: Signature) -> str:
    """Return the name of a callback's function, or "pure_callback"."""
    # A graph stores a function as ("opaque", "module.name"), because code cannot be saved.
    found = dict(signature.param("callback") or ()).get("callback_func")
    return str(found[1]).rpartition(".")[2] if found else "pure_callback"


def unpriced(graph: Graph) -> tuple[str, ...]:
    """Return a text for each kernel without a price, such as "ffi_call 'attention' at model.py:7".

    The planner counts no flops and bytes for these kernels.
    """
    # A dictionary keeps the order of the program, and has equal texts (calls in a loop) once.
    texts: dict[str, None] = {}
    for node in graph.nodes_of(OPAQUE):
        target = target_of(node)
        if target is not None and price_of(node.signature) is None:
            place = f" at {node.source}" if node.source else ""
            texts[f"{node.primitive} {target!r}{place}"] = None
    return tuple(texts)


def without_given_prices(graph: Graph) -> Graph:
    """Return the graph without the prices that the user gave; the same graph if it has none.

    A price is one of the parameters of a kernel's node.
    """
    nodes = list(graph.nodes)
    # An unchanged graph is returned itself, so that callers can compare by `is`.
    is_same = True
    for node in graph.nodes_of(OPAQUE):
        price = price_of(node.signature)
        # Prices from the code of a kernel stay; only those of `Options(prices=...)` are removed.
        if price is not None and price.source == GIVEN:
            old = node.signature
            params = tuple(pair for pair in old.params if pair[0] != PRICE)
            signature = Signature(old.primitive, params, old.operands, old.results)
            nodes[node.index] = replace(node, signature=signature)
            is_same = False
    return graph if is_same else replace(graph, nodes=tuple(nodes))


def _with_prices(graph: Graph, prices: Mapping[int, Price]) -> Graph:
    """Return the graph in which the nodes of kernels have these prices as a parameter.

    A price that a node already has is replaced.

    Args:
      prices: the price of each kernel, by node index.
    """
    # The same graph is returned if nothing changes.
    if not prices:
        return graph
    nodes = list(graph.nodes)
    for index, price in prices.items():
        old = nodes[index].signature
        params = with_price(old.params, price)
        signature = Signature(old.primitive, params, old.operands, old.results)
        nodes[index] = replace(nodes[index], signature=signature)
    return replace(graph, nodes=tuple(nodes))


def _pallas_price(params: Mapping[str, Any]) -> Price:
    """Return the flops and bytes of a Pallas call, from the parameters of its jaxpr equation.

    The user's `cost_estimate=` is used if there is one. Otherwise the kernel's own operators count,
    once for each step of its grid. The price also says whether the kernel multiplies matrices.
    """
    operations = [*_operations(params["jaxpr"])]
    # Chips have another flops rate for products of matrices.
    multiplies = any(flops and is_product for flops, is_product in operations)
    estimate = params.get("cost_estimate")
    if estimate is not None:
        return Price(int(estimate.flops), int(estimate.bytes_accessed), multiplies, "cost_estimate")
    mapping = params["grid_mapping"]
    # A grid size may be an array whose value only the run knows. A price is a number, so such a
    # size counts as one step.
    grid = [size if isinstance(size, int) else 1 for size in mapping.grid]
    flops = sum(count for count, _ in operations) * math.prod(grid)
    # Bytes are those of the blocks that are copied between memory and the chip's cores.
    copied_bytes = sum(_block_bytes(block, grid) for block in mapping.block_mappings)
    return Price(flops, copied_bytes, multiplies, "kernel")


def _operations(jaxpr: Any, times: int = 1) -> Iterator[tuple[int, bool]]:
    """Yield (flops, whether it is a product of matrices) for each operator of a kernel.

    A conditional counts as its most expensive branch, and a loop of unknown length as one
    iteration.

    Args:
      times: how often the jaxpr runs; flops are multiplied by it.
    """
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        params = equation.params
        # One branch runs, and which one is known at run time only: the price is an upper bound.
        if equation.primitive.name == "cond":
            cases = [[*_operations(case, times)] for case in params["branches"]]
            yield from max(cases, key=lambda case: sum(flops for flops, _ in case))
            continue
        # Loops and calls have their bodies among the parameters, as jaxprs. A scan has its trip
        # count as `length`; for a `while` it is unknown.
        bodies = [p for p in params.values() if hasattr(p, "eqns") or hasattr(p, "jaxpr")]
        for body in bodies:
            yield from _operations(body, times * int(params.get("length") or 1))
        if not bodies:
            signature = _signature(equation)
            if signature is not None and (flops := signature_flops(signature)):
                yield flops * times, contracts(signature)


def _signature(equation: Any) -> Signature | None:
    """Return a jaxpr equation of a kernel as primitive, parameters, operand and result types.

    None if the equation reads or writes a reference to memory, which counts as no arithmetic.
    """
    # The two entries are the types of the operands and the types of the results.
    ends: list[list[ValueType]] = []
    for variables in (equation.invars, equation.outvars):
        types: list[Any] = [getattr(variable, "aval", None) for variable in variables]
        # A reference has another class. Names are compared, so that JAX need not be imported.
        if any(type(t).__name__ != "ShapedArray" for t in types):
            return None
        ends.append([ValueType(tuple(map(int, t.shape)), t.dtype.name) for t in types])
    name = equation.primitive.name
    return Signature(name, plain_params(name, equation.params), *map(tuple, ends))


def _block_bytes(block: Any, grid: Sequence[int]) -> int:
    """Return the bytes that one operand's (or result's) block copies move over the whole grid.

    A block is copied when its index changes. The last grid axis is the fastest. The index therefore
    changes at every step of the axes up to the last one that it depends on.

    Args:
      block: the block mapping of a Pallas call.
      grid: the number of steps of each grid axis.
    """
    read = _axes_read(block.index_map_jaxpr.jaxpr, len(grid))
    axes = [axis for axis in read if grid[axis] > 1]
    copies = math.prod(grid[: axes[-1] + 1]) if axes else 1
    aval = block.array_aval
    # Pallas gives a block's size per dimension as a number, as None for a dimension that the kernel
    # does not see (one element), or as an object with the attribute `block_size`.
    sizes = [
        int(getattr(size, "block_size", 1) if not isinstance(size, int) else size)
        for size in (one if one is not None else 1 for one in block.block_shape)
    ]
    return copies * math.prod(sizes) * ITEM_SIZES.get(aval.dtype.name, 4)


def _axes_read(jaxpr: Any, rank: int) -> list[int]:
    """Return the grid axes on which the results of a block's index map depend, in order.

    For example, the index map (i, j) -> (j, 0) -> [1]. A block is fetched again only if one of
    these axes advances.

    Args:
      jaxpr: the index map, from the position in the grid to the index of the block.
      rank: the number of grid axes, which are the first arguments of the index map.
    """
    axes_of_variable = {variable: {axis} for axis, variable in enumerate(jaxpr.invars[:rank])}

    def read_axes(atoms: Sequence[Any]) -> set[int]:
        """Return the grid axes on which any of these operands depends."""
        # A literal has the attribute `val` and no hash.
        variables = [atom for atom in atoms if not hasattr(atom, "val")]
        return set().union(*(axes_of_variable.get(variable, set()) for variable in variables))

    # Results of an equation depend on all axes of its operands. A jaxpr defines values before uses.
    for equation in jaxpr.eqns:
        axes = read_axes(equation.invars)
        axes_of_variable.update((variable, axes) for variable in equation.outvars)
    return sorted(read_axes(jaxpr.outvars))
