"""Roles of values in training (activation, gradient, ...), derived from the arguments' roles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from shardalg.errors import RoleError
from shardalg.graph.ir import Graph, Signature
from shardalg.graph.ops.loops import dim_loops
from shardalg.graph.ops.rows import rules
from shardalg.graph.union_find import UnionFind
from shardalg.graph.weights import dependencies, reachable

PARAMETERS, OPTIMIZER_STATE, DATA = "parameters", "optimizer_state", "data"
ARGUMENT_ROLES = (PARAMETERS, OPTIMIZER_STATE, DATA)
ACTIVATION, GRADIENT, LOSS, WEIGHT, CONSTANT, UNKNOWN = (
    "activation", "gradient", "loss", "weight", "constant", "unknown",
)  # fmt: skip


def roles(graph: Graph, argument_roles: Sequence[str | None] | None) -> tuple[str, ...]:
    """Return the role of every value in training, such as "activation" or "gradient".

    An argument has its given role. A derived value has the first matching role:
    constant: it depends on no argument, or has a data dimension and depends on no data (a mask);
    unknown: it depends on an argument whose role is not given;
    activation: it depends on data and has a data dimension;
    loss: it depends on data, has one element, is computed from no gradient (a loss, a metric), and
      no activation of the forward pass is computed from it;
    gradient: it depends on data (an update too); weight: all others.

    A data dimension is connected by loops to a dimension of a data argument, and to no dimension of
    a parameter. An activation [B, S, M] shares M with the weights, so its data dimensions are B, S.

    Args:
      argument_roles: "parameters", "optimizer_state", "data" or None for each flattened argument.
        None instead of a sequence means that every role is "unknown".

    Raises:
      RoleError: another word, or not one role per argument.
    """
    if argument_roles is None or not any(argument_roles):
        return (UNKNOWN,) * len(graph.values)
    check_roles(graph, argument_roles)
    given_roles = dict(zip(graph.arguments, argument_roles, strict=True))
    # `reachable` follows these edges from some values to all values that are computed from them.
    edges = dependencies(graph)
    of_data = reachable(edges, [v for v, role in given_roles.items() if role == DATA])
    of_unknown = reachable(edges, [v for v, role in given_roles.items() if role is None])
    of_arguments = reachable(edges, graph.arguments)
    has_data_dimension = _data_dimensions(graph, given_roles)
    role_of = []
    for i in range(len(graph.values)):
        # A mask such as [B, S] has the shape of the data, and is computed from no argument's data.
        is_mask = has_data_dimension[i] and not of_data[i] and not of_unknown[i]
        if not of_arguments[i] or is_mask:
            role_of.append(CONSTANT)
        elif of_unknown[i]:
            role_of.append(UNKNOWN)
        elif not of_data[i]:
            role_of.append(WEIGHT)
        else:
            role_of.append(ACTIVATION if has_data_dimension[i] else GRADIENT)
    # A scalar without a data dimension was taken as a gradient above, but may be a loss.
    for value, scalar_role in _scalar_roles(graph, role_of).items():
        role_of[value] = scalar_role
    for value, role in given_roles.items():
        role_of[value] = role or UNKNOWN
    return tuple(role_of)


def _scalar_roles(graph: Graph, roles: Sequence[str]) -> dict[int, str]:
    """Return the role of each scalar that depends on data and is computed from no gradient.

    The role is "activation" if activations of the forward pass are computed from the scalar (a
    scale for quantization), and "loss" otherwise.

    Args:
      roles: the role of every value, where these scalars still have the role "gradient".
    """
    # Through the carried parameters, an iteration's loss depends on gradients of the iteration
    # before it. Edges between iterations therefore do not count.
    edges = dependencies(graph, carried=False)
    operators = [n for n in graph.nodes if not n.bodies]
    backward = [v for n in operators if n.phase == "backward" for v in n.results]
    forward = [v for n in operators if n.phase == "forward" for v in n.results]
    of_gradients = reachable(edges, backward)
    sources: list[list[int]] = [[] for _ in edges]
    for source, targets in enumerate(edges):
        for target in targets:
            sources[target].append(source)
    # `sources` has the reversed edges, so this marks the values from which activations are
    # computed.
    is_needed = reachable(sources, [v for v in forward if roles[v] == ACTIVATION])
    scalars = {
        value.index: ACTIVATION if is_needed[value.index] else LOSS
        for value in graph.values
        if roles[value.index] == GRADIENT
        and prod(value.type.shape) == 1
        and not of_gradients[value.index]
    }
    # A loop over microbatches stacks their losses: the stack can share a dimension with the data.
    ties = [tie for tie in graph.region_arguments if tie.kind == "ys"]
    stacked = {tie.target: LOSS for tie in ties if scalars.get(tie.source) == LOSS}
    return scalars | stacked


def check_roles(graph: Graph, argument_roles: Sequence[str | None]) -> None:
    """Raise unless each argument has one known role or None.

    Raises:
      RoleError: another word, or not one role per argument.
    """
    if len(argument_roles) != len(graph.arguments):
        raise RoleError(
            f"{len(argument_roles)} roles for {len(graph.arguments)} arguments "
            f"({', '.join(graph.argument_paths[:8])}): give one role, or None, to each."
        )
    pairs = zip(graph.argument_paths, argument_roles, strict=True)
    faults = [f"{path}: {role!r}" for path, role in pairs if role not in (None, *ARGUMENT_ROLES)]
    if faults:
        role_names = ", ".join(map(repr, ARGUMENT_ROLES))
        raise RoleError(
            f"unknown roles {'; '.join(faults[:8])}. A role is one of {role_names}, or None."
        )


@lru_cache(maxsize=65536)
def joined_dims(signature: Signature) -> tuple[tuple[int, int, int, int], ...]:
    """Return pairs of dimensions with the same loop: (position, dimension, position, dimension).

    A position is the number of a tensor: operands first, then results. For `[i, k], [k, j] ->
    [i, j]` one pair is (0, 1, 1, 0), for k. A dimension of several nested loops counts as its most
    major loop.
    """
    first: dict[str, tuple[int, int]] = {}
    pairs = []
    for number, rule in enumerate(rules(signature) or ()):
        for tensor in rule.tensors:
            # A row numbers its results -1, -2, .... Of several rows, row k has only result k.
            result = len(signature.operands) + number + ~tensor
            position = tensor if tensor >= 0 else result
            for dim in range(len(rule.indices(tensor))):
                for loop, _ in dim_loops(rule, tensor, dim)[:1]:
                    at = first.setdefault(loop, (position, dim))
                    pairs.append((*at, position, dim))
    return tuple(pair for pair in pairs if pair[:2] != pair[2:])


def _data_dimensions(graph: Graph, given: dict[int, str | None]) -> bytearray:
    """Return 1 per value that has a data dimension, else 0.

    A data dimension, such as a batch, is connected by loops to a dimension of a data argument, and
    to no dimension of a parameter or an optimizer state.

    Args:
      given: the role of each argument, by its value.
    """
    # Dimension d of value v has the number base[v] + d: union-find then needs no tuples.
    base = [0]
    for value in graph.values:
        base.append(base[-1] + len(value.type.shape))
    classes = UnionFind(base[-1])
    parent, pairs_of = classes.parent, dict[Signature, tuple[tuple[int, int, int, int], ...]]()
    for node in graph.nodes:
        # Equal operators connect equal dimensions, so each signature is examined once.
        pairs = pairs_of.get(node.signature)
        if pairs is None:
            pairs = pairs_of[node.signature] = () if node.bodies else joined_dims(node.signature)
        # A pair (i, d, j, e): one loop runs over dimension d of value i and dimension e of value j.
        values_of_node = node.operands + node.results
        for i, d, j, e in pairs:
            # This is `classes.join`, inlined because the loop runs 100,000 times.
            first_root, second_root = (
                parent[base[values_of_node[i]] + d],
                parent[base[values_of_node[j]] + e],
            )
            if first_root == second_root:
                continue
            while parent[first_root] != first_root:
                parent[first_root] = first_root = parent[parent[first_root]]
            while parent[second_root] != second_root:
                parent[second_root] = second_root = parent[parent[second_root]]
            parent[second_root] = first_root
    # The leading dimension of a stacked value counts iterations, and its slice does not have it.
    for tie in graph.region_arguments:
        rank = len(graph.values[tie.source].type.shape) - tie.source_drop
        for d in range(rank):
            source = base[tie.source] + tie.source_drop + d
            classes.join(source, base[tie.target] + tie.target_drop + d)

    def dimensions_of(*argument_roles: str) -> set[int]:
        values = [v for v, role in given.items() if role in argument_roles]
        return {classes.root(i) for v in values for i in range(base[v], base[v + 1])}

    # A class with dimensions of data and of parameters, such as the features M, is no data.
    data = dimensions_of(DATA) - dimensions_of(PARAMETERS, OPTIMIZER_STATE)
    is_data = bytearray(base[-1])
    # A parent in `data` is the root of its class, so that no search for the root is needed.
    for i, parent_slot in enumerate(classes.parent):
        is_data[i] = parent_slot in data or classes.root(i) in data
    return bytearray([1 in is_data[base[v] : base[v + 1]] for v in range(len(graph.values))])
