"""Control flow: inlined calls, and region arguments of calls with bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardalg.graph.ir import RegionArgument

INDEXED = ("gather", *(f"scatter{how}" for how in ("", "-add", "-sub", "-mul", "-min", "-max")))
"""Primitives that read or write at indices, their second operand."""
ATTENTION = ("dot_product_attention_fwd_wrapper", "dot_product_attention_bwd_wrapper")
"""cuDNN's attention, forward and backward (`attention.py`)."""
RAGGED_DOT = "ragged_dot_general"
"""Products whose matrix depends on the group of a row (`grouped.py`)."""
INLINED = frozenset(
    """
    call closed_call composite custom_jvp_call custom_partitioning custom_vjp_call custom_vmap_call
    eval_jaxpr jit linear_call program_order remat_opt xla_metadata_call
    """.split()
)
"""These calls only name, compile or differentiate their body, so the body's nodes replace them."""
BODY_PARAMS = ("jaxpr", "call_jaxpr", "call", "callee", "fwd_jaxpr")
"""Names of the parameter with the body, in different primitives and versions of JAX."""

KERNELS = frozenset({"mosaic"})
"""Platforms of branches that are lowered only inside of kernels."""


@dataclass(frozen=True, slots=True)
class RegionCall:
    """Values at the border of a call with bodies (scan, while, cond, shard_map).

    All fields except `node` and `counts` are value indices.

    Attributes:
      node: index of the call's node.
      counts: numbers of (constants, carries) of a scan; numbers of constants of (the condition, the
        body) of a while loop.
      operands, results: of the call.
      arguments, body_results: the arguments and results of each body.
    """

    node: int
    counts: tuple[int, ...]
    operands: Sequence[int]
    arguments: Sequence[Sequence[int]]
    body_results: Sequence[Sequence[int]]
    results: Sequence[int]


def scan_arguments(call: RegionCall) -> Iterator[RegionArgument]:
    """Yield the pairs of values outside and inside a scan that have the same sharding.

    They are constants, carries (three pairs for each), scanned operands "xs" and stacked results
    "ys".

    >>> call = RegionCall(9, (1, 1), (0, 1, 2), [(3, 4, 5)], [(6, 7)], (8, 9))
    >>> [(argument.kind, argument.source, argument.target) for argument in scan_arguments(call)]
    [('const', 0, 3), ('init', 1, 4), ('carry', 6, 4), ('result', 6, 8), ('xs', 2, 5), ('ys', 7, 9)]
    """
    num_consts, num_carry = call.counts
    ins = list(zip(call.operands, call.arguments[0], strict=True))
    outs = list(zip(call.body_results[0], call.results, strict=True))
    for outer, inner in ins[:num_consts]:
        yield RegionArgument(call.node, "const", outer, inner)
    # The next iteration reads the new carry as its argument; the last one is a result.
    for (outer, inner), (new, result) in zip(ins[num_consts:], outs[:num_carry], strict=False):
        yield RegionArgument(call.node, "init", outer, inner)
        yield RegionArgument(call.node, "carry", new, inner)
        yield RegionArgument(call.node, "result", new, result)
    for outer, inner in ins[num_consts + num_carry :]:
        yield RegionArgument(call.node, "xs", outer, inner)
    for new, result in outs[num_carry:]:
        yield RegionArgument(call.node, "ys", new, result)


def while_arguments(call: RegionCall) -> Iterator[RegionArgument]:
    """Yield the pairs of values outside and inside a while loop that have the same sharding.

    Its regions are the condition and the body. The condition reads the carry of the body as
    constants.

    >>> call = RegionCall(9, (1, 0), (0, 1), [(2, 3), (4,)], [(5,), (6,)], (7,))
    >>> [(argument.kind, argument.source, argument.target) for argument in while_arguments(call)]
    [('const', 0, 2), ('init', 1, 4), ('const', 4, 3), ('carry', 6, 4), ('result', 6, 7)]
    """
    cond_consts, body_consts = call.counts
    condition, body = call.arguments
    carry = body[body_consts:]
    constants = (*condition[:cond_consts], *body[:body_consts])
    num_consts = cond_consts + body_consts
    for outer, inner in zip(call.operands[:num_consts], constants, strict=True):
        yield RegionArgument(call.node, "const", outer, inner)
    for outer, inner in zip(call.operands[num_consts:], carry, strict=True):
        yield RegionArgument(call.node, "init", outer, inner)
    for outer, inner in zip(carry, condition[cond_consts:], strict=True):
        yield RegionArgument(call.node, "const", outer, inner)
    for inner, new, result in zip(carry, call.body_results[1], call.results, strict=True):
        yield RegionArgument(call.node, "carry", new, inner)
        yield RegionArgument(call.node, "result", new, result)


def taken_branches(params: Mapping[str, Any]) -> Sequence[Any]:
    """Return the branches of a `cond`, or the only branch that is not for kernels.

    `params` are the parameters of JAX's `cond`. The function `jnp.diagonal` has a branch for Pallas
    and a branch for all other platforms. JAX too lowers only the latter.

    >>> taken_branches({"branches": ("a", "b"), "branches_platforms": (("mosaic",), None)})
    ('b',)
    >>> taken_branches({"branches": ("a", "b"), "branches_platforms": (("tpu",), None)})
    ('a', 'b')
    """
    branches, platforms = params["branches"], params.get("branches_platforms")
    if platforms is None:
        return branches
    pairs = zip(branches, platforms, strict=True)
    taken = tuple([branch for branch, names in pairs if not names or not KERNELS.issuperset(names)])
    return taken if len(taken) == 1 else branches


def branch_arguments(call: RegionCall) -> Iterator[RegionArgument]:
    """Yield the pairs of values outside and inside the branches of a `cond` with the same sharding.

    Every branch reads the operands after the first one, which is the number of the branch.

    >>> call = RegionCall(9, (), (0, 1), [(2,), (3,)], [(4,), (5,)], (6,))
    >>> [(argument.kind, argument.source, argument.target) for argument in branch_arguments(call)]
    [('const', 1, 2), ('const', 1, 3), ('result', 4, 6), ('result', 5, 6)]
    """
    for arguments in call.arguments:
        for outer, inner in zip(call.operands[1:], arguments, strict=True):
            yield RegionArgument(call.node, "const", outer, inner)
    for made in call.body_results:
        for inner, outer in zip(made, call.results, strict=True):
            yield RegionArgument(call.node, "result", inner, outer)


def manual_arguments(call: RegionCall) -> Iterator[RegionArgument]:
    """Yield (outer value, block inside) for operands, and (block inside, outer value) for results.

    These are the region arguments of a `shard_map`, in which each device computes on its blocks.

    >>> call = RegionCall(9, (), (0,), [(1,)], [(2,)], (3,))
    >>> [(argument.kind, argument.source, argument.target) for argument in manual_arguments(call)]
    [('block', 0, 1), ('blocks', 2, 3)]
    """
    for outer, inner in zip(call.operands, call.arguments[0], strict=True):
        yield RegionArgument(call.node, "block", outer, inner)
    for made, result in zip(call.body_results[0], call.results, strict=True):
        yield RegionArgument(call.node, "blocks", made, result)


# Any other primitive whose parameters contain code is a node without bodies.
CALLS: dict[str, Callable[[RegionCall], Iterator[RegionArgument]]] = {
    "scan": scan_arguments,
    "while": while_arguments,
    "cond": branch_arguments,
    "shard_map": manual_arguments,
}


_KEPT = {
    "scan": ("length", "num_carry", "num_consts", "reverse"),
    "while": ("cond_nconsts", "body_nconsts"),
    "cond": (),
    "shard_map": ("axes", "in_axes", "out_axes"),
}
"""Parameters of a call that are stored in addition to its bodies."""


def call_params(name: str, params: Mapping[str, Any]) -> dict[str, object]:
    """Return the parameters of a loop, branch or other call that its graph node stores.

    A scan that JAX unrolls completely also has the parameter "unrolled" with the value True.

    Args:
      name: the name of the primitive.
      params: the parameters of JAX's equation.
    """
    kept_params = {k: params[k] for k in _KEPT[name]}
    if name == "scan" and 1 < params["length"] <= params.get("unroll", 1):
        kept_params["unrolled"] = True
    return kept_params
