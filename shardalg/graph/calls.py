"""Control flow: what is inlined, and which values on the two sides of a body share a sharding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shardalg.graph.ir import Tie

# Calls that are their body.
INLINED = frozenset(
    """
    call closed_call composite custom_jvp_call custom_partitioning custom_vjp_call custom_vmap_call
    eval_jaxpr jit linear_call program_order remat_opt xla_metadata_call
    """.split()
)
# What the parameter that holds it is called, by one primitive and version or another.
BODY_PARAMS = ("jaxpr", "call_jaxpr", "call", "callee", "fwd_jaxpr")


@dataclass(frozen=True, slots=True)
class Call:
    """One call with one body, as value indices.

    Attributes:
      node: index of the call's node.
      counts: (constants, carried values) of a scan.
      operands, results: outside; arguments, body_results: inside.
    """

    node: int
    counts: tuple[int, int]
    operands: Sequence[int]
    arguments: Sequence[int]
    body_results: Sequence[int]
    results: Sequence[int]


def scan_ties(call: Call) -> Iterator[Tie]:
    """The ties of a scan, in the order constants, carries (each with its three), xs, ys.

    >>> call = Call(9, (1, 1), (0, 1, 2), (3, 4, 5), (6, 7), (8, 9))
    >>> [(tie.kind, tie.source, tie.target) for tie in scan_ties(call)]
    [('const', 0, 3), ('init', 1, 4), ('carry', 6, 4), ('result', 6, 8), ('xs', 2, 5), ('ys', 7, 9)]
    """
    constants, carried = call.counts
    pairs = list(zip(call.operands, call.arguments, strict=True))
    outs = list(zip(call.body_results, call.results, strict=True))
    for outer, inner in pairs[:constants]:
        yield Tie(call.node, "const", outer, inner)
    for (outer, inner), (made, result) in zip(pairs[constants:], outs[:carried], strict=False):
        yield Tie(call.node, "init", outer, inner)
        yield Tie(call.node, "carry", made, inner)
        yield Tie(call.node, "result", made, result)
    for outer, inner in pairs[constants + carried :]:
        yield Tie(call.node, "xs", outer, inner)
    for made, result in outs[carried:]:
        yield Tie(call.node, "ys", made, result)


# A call with bodies, and its ties. Calls that are not listed stay opaque nodes without bodies.
CALLS: dict[str, Callable[[Call], Iterator[Tie]]] = {"scan": scan_ties}
