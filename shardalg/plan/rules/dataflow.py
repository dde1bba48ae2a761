"""Faults of logical-axis rules that only the function shows: values that change their rules.

Each dimension of a value carries the name under which it was last sharded: by an argument, or by a
site. Names pass through operators that compute element by element, where a result dimension and an
operand dimension are one loop of the operator's row. They end at reductions and products.

- A site may rename a dimension of its operand. If the new name's rule lacks a live axis of the old
  one, and no other dimension of the site has the axis, all devices along it compute the same.
- Two operands may meet in one loop with different live axes. Then the smaller one is gathered along
  its own axes, and cut along those of the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from shardalg.graph.ops.rows import rules as rows_of
from shardalg.plan.rules.findings import Finding

if TYPE_CHECKING:
    from shardalg.graph.ir import Graph, Node
    from shardalg.plan.rules.checks import AppliedRules, Group


class Label(NamedTuple):
    """The mark of a value's dimension: the user's array and the dimension that it comes from."""

    array: str
    dim: int


Labels = tuple[Label | None, ...]


class NamedValues(NamedTuple):
    """The user's arrays that are arguments or sites of a graph, by their keys.

    The key of an array is its path in the user's pytree, such as "params/up/kernel"
    (`NamedArray.key`).

    Attributes:
      arguments: per argument of the graph, the key of its array.
      sites: per site of the graph, its name, which is the key of an array; None if no array has
        this key.
    """

    arguments: tuple[str, ...]
    sites: tuple[str | None, ...]


def check_flow(laid: AppliedRules, graph: Graph, named: NamedValues) -> Iterator[Finding]:
    """Yield the faults of rules that show only in the function, one per pair of rules.

    Each dimension of a value gets a label: the array and the dimension from which it comes. Labels
    pass through elementwise operators, and two different labels that meet show a fault.

    Args:
      laid: the rules with the arrays to which they are applied.
      named: the keys of the arrays that are arguments or sites of the graph.
    """
    groups = {one.key: group for group in laid.groups for one in group.arrays}
    # Per value, a label or None for each dimension. Values without any label are absent.
    labels: dict[int, Labels] = {}
    for value, key in zip(graph.arguments, named.arguments, strict=True):
        labels[value] = _own(groups, key)
    sites = {site.node: key for site, key in zip(graph.sites, named.sites, strict=True)}
    found: dict[tuple[object, ...], Finding] = {}
    for node in graph.nodes:
        # A site gives its value the names of its own array; these may differ from the labels.
        if node.index in sites:
            operand = labels.get(node.operands[0], ())
            site = sites[node.index]
            faults = _at_site(laid, groups, site, operand) if site else iter(())
            labels[node.results[0]] = _own(groups, site) if site else operand
        else:
            faults = _where_operands_meet(laid, groups, graph, node, labels)
            passed = _passed(graph, node, labels)
            if any(passed):
                labels[node.results[0]] = passed
        # Every layer of a model repeats the same fault, so only the first one of each pair of rules
        # and axis is kept.
        for one in faults:
            found.setdefault((one.kind, one.rule, one.by, one.axis), one)
    yield from found.values()


def _own(groups: Mapping[str, Group], key: str) -> Labels:
    """Return a label per dimension of the array `key`: the array and the dimension's number.

    Empty if no group has the array.
    """
    return tuple(Label(key, dim) for dim in range(len(groups[key].names))) if key in groups else ()


def _loops(graph: Graph, node: Node) -> tuple[list[str | None], list[list[str | None]]] | None:
    """Return the loop of each result dimension and of each operand dimension.

    None if the node does not compute element by element. The entry of a dimension is None if no
    single loop indexes it, or if an operand has one element there. E.g. `x + b` of shapes (8, 4)
    and (1, 4) with loops i, j -> ([i, j], [[i, j], [None, j]]).
    """
    # A row declares the loops of an operator, and how they index the operands and the result.
    rows = rows_of(node.signature)
    if rows is None or len(rows) != 1 or len(rows[0].terms) != 1 or len(node.results) != 1:
        return None
    row = rows[0]
    result = [index.loop for index in row.results[0]]
    # A loop that the result lacks is a sum. A row with whole loops or guards computes otherwise.
    if {name for name, _ in row.loops} != set(result) or row.whole or row.guards:
        return None
    operands: list[list[str | None]] = [[] for _ in node.operands]
    for access in row.terms[0]:
        shape = graph.values[node.operands[access.operand]].type.shape
        # A dimension of one element is repeated along the loop, and has no sharding.
        operands[access.operand] = [
            index.loop if n > 1 else None for index, n in zip(access.dims, shape, strict=True)
        ]
    return result, operands


def _passed(graph: Graph, node: Node, labels: Mapping[int, Labels]) -> Labels:
    """Return the labels that an elementwise operator passes from its operands to its result.

    The result has a label, or None, per dimension; () for other operators. A label names the array
    and the dimension that a dimension comes from. It passes from an operand's dimension to the
    result's dimension on the same loop. If several operands have a label on one loop, the label of
    the operand with the most dimensions is taken.

    Args:
      labels: per value, its labels; a value without any label is absent.
    """
    loops = _loops(graph, node)
    if loops is None:
        return ()
    result_loops, operand_loops = loops
    label_of_loop: dict[str | None, Label] = {}
    # The operand with the most dimensions is the main value; smaller operands, such as scales and
    # masks, only modify it. So it comes first, and later labels of a loop do not replace its label.
    by_rank = sorted(range(len(operand_loops)), key=lambda k: -len(operand_loops[k]))
    for k in by_rank:
        # An operand without labels has (), and `zip` then has no pairs: hence not strict.
        operand_labels = labels.get(node.operands[k], ())
        for loop, label in zip(operand_loops[k], operand_labels, strict=False):
            if loop is not None and label is not None:
                label_of_loop.setdefault(loop, label)
    # A loop on which no operand has a label gives None.
    return tuple(label_of_loop.get(loop) for loop in result_loops)


def _at_site(
    laid: AppliedRules, groups: Mapping[str, Group], key: str, operand: Labels
) -> Iterator[Finding]:
    """Yield a finding per axis that a dimension loses at a site because its new rule omits it.

    Args:
      key: the name of the site, which is the key of an array with names.
      operand: per dimension of the value before the site, the array and dimension that it comes
        from.
    """
    site = groups.get(key)
    if site is None:
        return
    site_axes = laid.axes_of(site)
    for dim, label in enumerate(operand):
        rule = site.applied.get(dim)
        if label is None or rule is None or label.array == key:
            continue
        # The same rule on both sides gives the same axes, so nothing can be lost.
        before = groups[label.array].applied.get(label.dim)
        if before is None or before == rule:
            continue
        # An axis that the site has in another dimension still divides the work.
        for axis in laid.live(before):
            if axis not in site_axes:
                rules = laid.rules.rules
                why = (
                    f"a dimension of {key} is sharded along {axis} by {rules[before]} before it, "
                    f"and by {rules[rule]} it is not: {laid.rules.mesh.shape[axis]} devices "
                    "compute the same"
                )
                yield laid.finding(
                    "replicated_by_omission", rule, why, name=rules[rule].name, array=key,
                    axis=axis, by=(before,), num_arrays=1, bytes=_copies(laid, site, axis),
                )  # fmt: skip


def _copies(laid: AppliedRules, group: Group, axis: str) -> int | None:
    """Return the bytes that each device saves if the group's first array is sharded along an axis.

    None if the array's shape is not known.
    """
    whole = group.arrays[0].num_bytes
    if whole is None:
        return None
    held = whole // math.prod(laid.rules.mesh.shape[a] for a in laid.axes_of(group))
    return held - held // laid.rules.mesh.shape[axis]


def _where_operands_meet(
    laid: AppliedRules,
    groups: Mapping[str, Group],
    graph: Graph,
    node: Node,
    labels: Mapping[int, Labels],
) -> Iterator[Finding]:
    """Yield a finding per pair of operands of an elementwise operator with different shardings.

    Args:
      labels: per value, the array and the dimension from which each of its dimensions comes.
    """
    # Two operands with labels are needed, and an operator that computes element by element.
    labelled = [(k, labels[v]) for k, v in enumerate(node.operands) if any(labels.get(v, ()))]
    loops = _loops(graph, node) if len(labelled) > 1 else None
    if loops is None:
        return
    # Dimensions of operands meet if one loop indexes them.
    labels_by_loop: dict[str, list[Label]] = {}
    for k, operand_labels in labelled:
        for loop, label in zip(loops[1][k], operand_labels, strict=False):
            if loop is not None and label is not None:
                labels_by_loop.setdefault(loop, []).append(label)
    for met in labels_by_loop.values():
        # The array with fewer dimensions, such as a scale, is the cheaper one to reshard. So the
        # finding is about it, and not about the value that it multiplies.
        ordered = sorted(dict.fromkeys(met), key=lambda one: len(groups[one.array].names))
        for one, other in pairwise(ordered):
            yield from _differ(laid, groups, one, other)


def _differ(
    laid: AppliedRules, groups: Mapping[str, Group], one: Label, other: Label
) -> Iterator[Finding]:
    """Yield a finding if two dimensions that an operator combines are sharded along other axes.

    Args:
      one: the label of a dimension of the array with fewer dimensions. This array has to be
        resharded.
      other: the label of the dimension of the larger array.
    """
    small, large = groups[one.array], groups[other.array]
    mine, theirs = small.applied.get(one.dim), large.applied.get(other.dim)
    # Without a rule, completion chooses the sharding. Arrays of equal rank are reported nowhere,
    # because neither is the cheaper one to reshard.
    if mine is None or theirs is None or len(small.names) >= len(large.names):
        return
    axes, other_axes = laid.live(mine), laid.live(theirs)
    # A weight that is sharded where the value is whole is gathered on demand, as in FSDP.
    if not axes or not other_axes or set(axes) & set(other_axes):
        return
    rules = laid.rules.rules
    why = (
        f"{one.array} is sharded along {', '.join(axes)} by {rules[mine]}, and meets "
        f"{rules[theirs].name!r}, which is along {', '.join(other_axes)}"
    )
    axes_in_large = [axis for axis in axes if axis in laid.axes_of(large)]
    if axes_in_large:
        why += f"; another dimension has {', '.join(axes_in_large)}"
    yield laid.finding(
        "axes_differ_from_what_it_meets", mine, why, name=rules[mine].name, array=one.array,
        axis=", ".join(axes), by=(theirs,), num_arrays=len(small.arrays), bytes=small.num_bytes,
    )  # fmt: skip
