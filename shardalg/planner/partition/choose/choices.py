"""All candidates of a node under policy "cost": each mesh axis shards any loop, or none."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from shardalg.algebra.derived_layouts import interned
from shardalg.algebra.digits import Digits, overlap, parts
from shardalg.algebra.sharding import Sharding
from shardalg.costs.compute import operand_type
from shardalg.costs.topology import Machine
from shardalg.graph.ir import Signature
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import SUM
from shardalg.planner.partition.choose.assign import allowed_choices
from shardalg.planner.partition.choose.component import Assigned, Component, components, major_first
from shardalg.planner.partition.choose.key import Choice, NodeKey


@dataclass(frozen=True)
class ComponentCandidate:
    """One way to compute a component of a node.

    Attributes:
      loops: the sharded loops with their digits.
      required_shardings: (operand number, the sharding in which the operand is read).
      produced: (result number, the sharding in which the result is computed).
    """

    loops: tuple[tuple[str, Digits], ...]
    required_shardings: tuple[tuple[int, Sharding], ...]
    produced: tuple[tuple[int, Sharding], ...]


@lru_cache(maxsize=1 << 12)
def candidates(
    signature: Signature,
    value_shardings: tuple[Sharding, ...],
    place: int,
    hardware: Machine,
    *,
    finite: bool = False,
) -> tuple[ComponentCandidate, ...]:
    """Return all ways to compute one component: each mesh axis shards one loop, or none.

    Blocks are even, except in shardings that operands and results have already. A linear operator
    may also compute on partial sums of its operands, along axes that shard none of its loops.

    Args:
      value_shardings: completed shardings of the operands, then of the results.
      place: the number of the component.
      finite: whether sums are deferred behind products too (`Switches.finite_sums`).
    """
    component = components(rules(signature))[place]
    count = len(signature.operands)
    available, results = tuple((h,) for h in value_shardings[:count]), value_shardings[count:]
    rates = hardware.chip.rates(operand_type(signature))
    key = NodeKey(signature, tuple(range(count)), available, results, rates, finite=finite)
    # Different choices may agree on the operands and results of this component.
    found: dict[ComponentCandidate, None] = {}
    for choice in allowed_choices(key, component, list(_assignments(key, component))):
        for made in (choice, *_with_pending_operands(choice, component, key)):
            found[_candidate(component, made)] = None
    return tuple(found)


def _assignments(key: NodeKey, component: Component) -> Iterator[Assigned]:
    """Yield every assignment of whole mesh axes to loops under which all blocks are even.

    An assignment is a dictionary from the sharded loops to their digits. An axis shards one loop at
    most.
    """
    mesh = key.value_shardings[0].mesh
    digits = [mesh.digit(name) for name, size in mesh.axes if size > 1]
    extents = {name: extent for rule in component.rules for name, extent in rule.loops}
    # All (loops + 1)**axes assignments are tried, because the price of an axis on one loop depends
    # on the loops of the other axes. None leaves an axis unused, which may save communication.
    # `loop_of_axes` has the loop of each axis.
    for loop_of_axes in itertools.product((None, *component.loops), repeat=len(digits)):
        assigned: dict[str, Digits] = {}
        for digit, loop in zip(digits, loop_of_axes, strict=True):
            if loop is not None:
                assigned[loop] = (*assigned.get(loop, ()), digit)
        if all(extents[loop] % parts(loop_digits) == 0 for loop, loop_digits in assigned.items()):
            yield assigned


def _with_pending_operands(choice: Choice, component: Component, key: NodeKey) -> Iterator[Choice]:
    """Yield variants of a choice in which operands, and therefore the result, are partial sums.

    The sums are partial along mesh axes that the choice does not use. Yields nothing for an
    operator that cannot compute on partial sums.
    """
    # The operator is linear in these operands: the sum of its results for the parts is its result
    # for the sum.
    rule, linear = component.rule, component.rule.passes(finite=key.finite)
    if rule.combine != SUM or not component.is_whole or not linear:
        return
    # The digits of the shardings, not of `choice.loops`: an owner select shards no loop.
    layouts = (*choice.required_shardings, *choice.produced)
    used = [d for layout in layouts for digits in (*layout.dims, layout.unreduced) for d in digits]
    mesh = key.value_shardings[0].mesh
    axes = [mesh.digit(n) for n, size in mesh.axes if size > 1]
    free = [axis for axis in axes if not any(overlap(axis, d) for d in used)]
    # With a complete addend beside partial ones, the later sum would add it once per device. With
    # two partial factors, it would lack the products of parts on different devices.
    # So a group of operands that are partial together is all addends, or one factor.
    groups = [rule.addends] if rule.addends else []
    groups += [frozenset({k}) for k in linear - rule.addends]
    for size in range(1, len(free) + 1):
        for digits in itertools.combinations(free, size):
            for group in groups:
                required_shardings = tuple(
                    _pending(layout, digits) if k in group else layout
                    for k, layout in enumerate(choice.required_shardings)
                )
                produced = tuple(_pending(layout, digits) for layout in choice.produced)
                yield Choice(choice.loops, required_shardings, produced, choice.devices)


def _pending(layout: Sharding, digits: Digits) -> Sharding:
    pending = major_first((*layout.unreduced, *digits))
    return interned(layout.mesh, layout.shape, layout.dims, pending)


def _candidate(component: Component, choice: Choice) -> ComponentCandidate:
    """Return the part of a choice that belongs to a component: its loops, operands and results.

    Operands and results are pairs (number, sharding).
    """
    # An operand with several dimensions in the component's rules occurs once.
    tensors = component.tensors
    operands = dict.fromkeys(t.operand for t in tensors if t.operand is not None)
    results = dict.fromkeys(t.number for t in tensors if t.operand is None)
    required_shardings = tuple((k, choice.required_shardings[k]) for k in operands)
    produced = tuple((k, choice.produced[k]) for k in results)
    return ComponentCandidate(choice.loops, required_shardings, produced)
