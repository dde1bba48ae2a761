"""Faults of logical-axis rules that the rules and the arrays show, without a function.

A rule is applied as flax does (`LogicalRules.applied`). An axis is *live* if its size is not 1.

Rules that are written for many models and meshes have rules without effect on purpose. These tests
keep them apart from faults:
- A later rule of the same name with fewer axes is a fallback, for arrays where an axis is taken.
- Rules are *shared* if there are many, or if more than half of those with axes have no array or no
  live axis. Then an unused name is a finding only if it is a misspelt name that has no rule.
- Two dimensions that want one axis are a fault if the array then lacks a live axis that its own
  rules name. Of weights they are also a fault if the rule that loses applies nowhere. Names of
  activations may be alternatives: of heads and their elements, the first that occurs is sharded.
- A small array may be whole on every device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING

from shardalg.plan.rules.findings import Finding

if TYPE_CHECKING:
    from shardalg.plan.rules.logical_rules import Axes, LogicalRules
    from shardalg.plan.rules.named_arrays import NamedArray

SMALL = 0.01
"""Smaller arrays, by their share of all bytes, may be whole on every device: norms, biases."""
MANY = 16
"""A list of more rules than these serves more than one model."""
_NEAR = 0.65


@dataclass(frozen=True)
class Group:
    """Arrays with the same names and shape, and the rule of each dimension.

    Attributes:
      applied: per dimension with a rule, the index of the rule.
      num_bytes: bytes of all arrays of the group; None if their shape is not known.
    """

    arrays: tuple[NamedArray, ...]
    applied: dict[int, int]
    num_bytes: int | None

    @property
    def names(self) -> tuple[str | None, ...]:
        """The logical name of each dimension, None for a dimension without a name."""
        return self.arrays[0].names or ()

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape that all arrays of the group have; None if it is not known."""
        return self.arrays[0].shape

    @property
    def has_batch(self) -> bool:
        """True if the name of a dimension contains "batch", as in activations and data."""
        return any("batch" in name for name in self.names if name)


@dataclass(frozen=True)
class AppliedRules:
    """Logical-axis rules with the arrays to which they are applied.

    Attributes:
      groups: the arrays, grouped by equal names and shapes of their dimensions.
    """

    rules: LogicalRules
    groups: tuple[Group, ...]

    @staticmethod
    def of(rules: LogicalRules, arrays: Sequence[NamedArray]) -> AppliedRules:
        """Apply logical-axis rules to arrays; arrays without names of dimensions are left out.

        Raises:
          StrategyError: an array has a name twice.
        """
        # Rules see only names and shapes, so arrays with equal ones share their faults: a model
        # with 32 equal layers has one finding per array of a layer.
        arrays_by_names: dict[object, list[NamedArray]] = {}
        for array in arrays:
            if array.names is not None:
                arrays_by_names.setdefault((array.names, array.shape), []).append(array)
        groups = []
        for members in arrays_by_names.values():
            sizes = [array.num_bytes for array in members]
            num_bytes = None if None in sizes else sum(n for n in sizes if n is not None)
            rule_by_dim = rules.applied(members[0].names or ())
            groups.append(Group(tuple(members), rule_by_dim, num_bytes))
        return AppliedRules(rules, tuple(groups))

    def live(self, rule: int) -> Axes:
        """Return the axes of a rule that the mesh has with a size above 1.

        Args:
          rule: the number of the rule.
        """
        shape = self.rules.mesh.shape
        return tuple(a for a in self.rules.present(self.rules.rules[rule]) if shape[a] != 1)

    def axes_of(self, group: Group) -> set[str]:
        """Return the mesh axes of size above 1 along which rules shard the arrays of a group."""
        return {axis for rule in group.applied.values() for axis in self.live(rule)}

    @cached_property
    def having(self) -> dict[str, list[Group]]:
        """A dictionary from a logical name to the groups with a dimension of that name."""
        groups_by_name: dict[str, list[Group]] = {}
        for group in self.groups:
            for name in group.names:
                # A dimension without a name has no rule.
                if name is not None:
                    groups_by_name.setdefault(name, []).append(group)
        return groups_by_name

    @cached_property
    def in_use(self) -> frozenset[int]:
        """The positions (in the list of rules) of all rules that apply to an array."""
        return frozenset(rule for group in self.groups for rule in group.applied.values())

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of all arrays whose shape is known."""
        return sum(group.num_bytes or 0 for group in self.groups)

    @cached_property
    def is_shared(self) -> bool:
        """True if the list serves several models: it is long, or most rules have no effect here."""
        # A rule without axes asks for no sharding, and says nothing about the list.
        with_axes = [i for i, rule in enumerate(self.rules.rules) if rule.axes]
        # A rule has no effect if no array has its name, or if the mesh has none of its axes with a
        # size above 1.
        inert = [
            i for i in with_axes if self.rules.rules[i].name not in self.having or not self.live(i)
        ]
        return len(with_axes) > MANY or 2 * len(inert) > len(with_axes)

    def is_fallback(self, rule: int) -> bool:
        """Return whether a rule has fewer axes than an earlier one of the same name."""
        mine = self.rules.rules[rule]
        return any(
            earlier.name == mine.name and set(mine.axes) < set(earlier.axes)
            for earlier in self.rules.rules[:rule]
        )

    def is_large(self, group: Group) -> bool:
        """Return whether a group has at least the share `SMALL` of all bytes (or no known size)."""
        return group.num_bytes is None or group.num_bytes >= SMALL * self.total_bytes

    def lost_axes(self, group: Group) -> set[str]:
        """Return the axes that stay unused because rules for unsharded dimensions lost them.

        Rules name these axes for unsharded dimensions of the group's arrays, and no other dimension
        of the arrays is sharded along them. Axes of size 1 or missing in the mesh do not count.
        """
        unsharded_names = {n for d, n in enumerate(group.names) if n and d not in group.applied}
        # All axes of size above 1 that some rule names for these dimensions.
        requested_axes = {
            axis
            for i, rule in enumerate(self.rules.rules)
            if rule.name in unsharded_names
            for axis in self.live(i)
        }
        return requested_axes - self.axes_of(group)

    def finding(self, kind: str, rule: int | None, why: str, **more: object) -> Finding:
        """Return a finding about the rule at a position, or about no rule (None).

        Args:
          why: the explanation. more: further fields of `Finding`.
        """
        text = "" if rule is None else str(self.rules.rules[rule])
        return Finding(kind, rule, text, why=why, **more)  # type: ignore[arg-type]


def is_misspelt(given: str, meant: str) -> bool:
    """Return whether two names differ in the spelling of one word, or in underscores.

    >>> is_misspelt("mpl", "mlp"), is_misspelt("kvheads", "kv_heads"), is_misspelt("kv", "heads")
    (True, True, False)
    >>> is_misspelt("activation_mlp_moe", "activation_length_moe")
    False
    """
    given_words, meant_words = given.split("_"), meant.split("_")
    # With another number of words, only the underscores may differ.
    if len(given_words) != len(meant_words):
        return "".join(given_words) == "".join(meant_words)
    # Rules of a model have similar names, so that two different words are another name.
    pairs = zip(given_words, meant_words, strict=True)
    different_pairs = [(word, other) for word, other in pairs if word != other]
    if len(different_pairs) != 1:
        return False
    # Exchanged letters of a short word ("mpl", "mlp") are too far apart for difflib.
    ((word, other),) = different_pairs
    return sorted(word) == sorted(other) or bool(get_close_matches(word, [other], 1, _NEAR))


def check_rules(laid: AppliedRules) -> Iterator[Finding]:
    """Yield the faults of single rules: they apply to no array, or their axes have no effect.

    An axis has no effect if the mesh does not have it, or if its size is 1.

    Args:
      laid: the rules with the arrays to which they are applied.
    """
    mesh = laid.rules.mesh
    for i, rule in enumerate(laid.rules.rules):
        for axis in rule.axes:
            if axis not in mesh.shape:
                near = get_close_matches(axis, mesh.axis_names, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                why = f"the mesh has no axis {axis!r}, only {', '.join(mesh.axis_names)}{hint}"
                yield laid.finding("unknown_axis", i, why, name=rule.name, axis=axis)
        # At most one of these faults is reported per rule, the most basic one first.
        if rule.name not in laid.having:
            yield from _without_arrays(laid, i)
        elif i not in laid.in_use:
            yield from _unused(laid, i)
        elif laid.rules.present(rule) and not laid.live(i):
            yield from _of_size_one(laid, i)


def _without_arrays(laid: AppliedRules, i: int) -> Iterator[Finding]:
    """Yield a finding if no array has the name of rule `i`, except for rules of other models."""
    rule = laid.rules.rules[i]
    ruled = {one.name for one in laid.rules.rules}
    near = [name for name in laid.having if name not in ruled and is_misspelt(rule.name, name)]
    # Without axes, a rule means the same as no rule. A list for several models has names of other
    # models, so an unknown name is a fault only if it is nearly the name of an array's dimension.
    if not rule.axes or (laid.is_shared and not near):
        return
    hint = f"; did you mean {near[0]!r}?" if near else ""
    why = f"no array has a dimension {rule.name!r}{hint}"
    axes, meant = ", ".join(rule.axes), near[0] if near else ""
    yield laid.finding("no_array", i, why, name=rule.name, axis=axes, meant=meant)


def _unused(laid: AppliedRules, i: int) -> Iterator[Finding]:
    """Yield the finding about rule `i`, which applies to no array although arrays have its name.

    The fault is "shadowed" if one earlier rule always applies instead, and "never_applies" if other
    dimensions of the arrays already have its axes. Fallbacks and inert rules have none.
    """
    rule, groups = laid.rules.rules[i], laid.having[laid.rules.rules[i].name]
    live = laid.live(i)
    # A fallback is written for arrays in which the earlier rule does not apply; there may be none.
    if not live or laid.is_fallback(i):
        return
    more = {
        "name": rule.name,
        "array": groups[0].arrays[0].key,
        "num_arrays": sum(len(group.arrays) for group in groups),
    }
    # Per group, the rule that applies to the dimension. If it is one and the same earlier rule, no
    # array can ever get this rule.
    winners = {group.applied.get(group.names.index(rule.name)) for group in groups}
    winner = next(iter(winners))
    if len(winners) == 1 and winner is not None and winner < i:
        why = f"{laid.rules.rules[winner]} before it applies to every dimension {rule.name!r}"
        yield laid.finding("shadowed", i, why, axis=", ".join(live), by=(winner,), **more)
        return
    # Otherwise the rule lost its axes to earlier rules for other dimensions of the same arrays.
    takers = sorted(
        {
            j
            for group in groups
            for j in group.applied.values()
            if j < i and set(laid.rules.present(laid.rules.rules[j])) & set(rule.axes)
        }
    )
    # An activation may give an axis up on purpose, as long as another dimension has the axis.
    if not any(laid.lost_axes(group) & set(live) or not group.has_batch for group in groups):
        return
    axes_of = {a for j in takers for a in laid.rules.present(laid.rules.rules[j])}
    taken = [axis for axis in rule.axes if axis in axes_of]
    by = ", ".join(str(laid.rules.rules[j]) for j in takers)
    why = f"wherever {rule.name!r} occurs, another dimension has {', '.join(taken)} by {by}"
    yield laid.finding("never_applies", i, why, axis=", ".join(taken), by=tuple(takers), **more)


def _of_size_one(laid: AppliedRules, i: int) -> Iterator[Finding]:
    """Yield the finding about rule `i`, whose axes have size 1, if it leaves an array whole.

    Small arrays, and arrays that other rules shard, do not count.
    """
    rule = laid.rules.rules[i]
    groups = [
        group
        for group in laid.having[rule.name]
        if i in group.applied.values() and not laid.axes_of(group) and laid.is_large(group)
    ]
    if not groups:
        return
    axes = laid.rules.present(rule)
    # One finding for all arrays, with the first one as an example.
    example = groups[0].arrays[0]
    subject = " and ".join(axes) + (" has" if len(axes) == 1 else " have")
    yield laid.finding(
        "size_one",
        i,
        f"{subject} size 1, so every device has all of {example.key}",
        name=rule.name,
        array=example.key,
        num_arrays=sum(len(group.arrays) for group in groups),
        axis=", ".join(axes),
        bytes=_sum(groups),
    )


def check_arrays(laid: AppliedRules) -> Iterator[Finding]:
    """Yield the faults of rules on single arrays: collisions, sizes, arrays that stay whole."""
    for group in laid.groups:
        yield from _collisions(laid, group)
        yield from _uneven(laid, group)
    yield from _replicated(laid)


def _collisions(laid: AppliedRules, group: Group) -> Iterator[Finding]:
    """Yield a finding per axis that rules name for two dimensions of an array.

    A tensor can be sharded along an axis in one dimension only. The earlier rule gets the axis, and
    the finding is about the later one.
    """
    lost = laid.lost_axes(group)
    for i, rule in enumerate(laid.rules.rules):
        # Only rules for a dimension of the array that no rule shards.
        if rule.name not in group.names or group.names.index(rule.name) in group.applied:
            continue
        # Losing an axis is normal for activations and fallbacks. It is a fault if the rule then has
        # no effect at all, or if a large array stays whole along an axis that the rule names.
        is_dead = i not in laid.in_use and not group.has_batch and not laid.is_fallback(i)
        if not laid.live(i) or not (is_dead or (lost and laid.is_large(group))):
            continue
        # The rules that took its axes are earlier ones, for other dimensions of the array.
        for j in sorted(group.applied.values()):
            winner = laid.rules.rules[j]
            for axis in rule.axes:
                if j < i and axis in laid.rules.present(winner):
                    first = group.arrays[0]
                    words = f"both {winner.name!r} and {rule.name!r} of {first.key} want {axis}: "
                    words += f"{winner} is first, and {rule.name!r} is not sharded"
                    # Other axes of the losing rule are lost with it, although they are free.
                    free_axes = [a for a in laid.live(i) if a in lost]
                    if free_axes:
                        words += f", not along {', '.join(free_axes)} either"
                    yield laid.finding(
                        "collision", i, words, name=rule.name, array=first.key, axis=axis, by=(j,),
                        num_arrays=len(group.arrays), bytes=_saved(laid, group, free_axes),
                    )  # fmt: skip


def _uneven(laid: AppliedRules, group: Group) -> Iterator[Finding]:
    """Yield a finding per dimension whose size is no multiple of the devices on its rule's axes.

    E.g. 6 elements along an axis of 4 devices. Nothing is yielded if the shape is not known.
    """
    if group.shape is None:
        return
    for dim, i in sorted(group.applied.items()):
        axes, size = laid.live(i), group.shape[dim]
        # Without live axes the product is 1, which divides every size.
        num_devices = math.prod(laid.rules.mesh.shape[axis] for axis in axes)
        if size % num_devices:
            first, rule = group.arrays[0], laid.rules.rules[i]
            why = f"{rule.name!r} of {first.key} has {size} elements, which {num_devices} devices "
            why += f"along {', '.join(axes)} do not divide: jax refuses it as an argument"
            yield laid.finding(
                "not_divisible", i, why, name=rule.name, array=first.key, axis=", ".join(axes),
                num_arrays=len(group.arrays),
            )  # fmt: skip


def _replicated(laid: AppliedRules) -> Iterator[Finding]:
    """Yield a finding per large array that is whole along an axis because a name has no rule.

    Most bytes of the other arrays are sharded along that axis. Arrays with a batch dimension do not
    count: they are sharded otherwise than weights on purpose.
    """
    ruled = {rule.name for rule in laid.rules.rules}
    sized = [group for group in laid.groups if group.num_bytes and not group.has_batch]
    for group in sized:
        peers = [g for g in sized if g is not group]
        peer_bytes = sum(g.num_bytes or 0 for g in peers)
        used_axes = laid.axes_of(group)
        for axis, size in laid.rules.mesh.shape.items():
            if size == 1 or axis in used_axes or not laid.is_large(group) or not group.shape:
                continue
            # If most other bytes are whole along the axis, too, then the rules do not mean to shard
            # weights along it, and this array is no exception.
            sharded_bytes = sum(g.num_bytes or 0 for g in peers if axis in laid.axes_of(g))
            # Names without a rule (None: no name) of dimensions that the axis divides evenly. If
            # there is none, a missing rule is not the reason.
            names_without_rule = [
                name
                for name, length in zip(group.names, group.shape, strict=True)
                if name not in ruled and length % size == 0
            ]
            if not names_without_rule or not peers or 2 * sharded_bytes <= peer_bytes:
                continue
            first, name = group.arrays[0], next((n for n in names_without_rule if n), "")
            named = f"no rule has the name {name!r}" if name else "a dimension has no name"
            why = f"{first.key} is whole along {axis}, which splits most other arrays: {named}"
            yield laid.finding(
                "replicated", None, why, name=name, array=first.key, axis=axis,
                num_arrays=len(group.arrays), bytes=_saved(laid, group, [axis]),
            )  # fmt: skip


def _saved(laid: AppliedRules, group: Group, axes: Sequence[str]) -> int | None:
    """Return the bytes that each device saves if a group is also sharded along `axes`, or None.

    None if the shape is not known, or if there are no axes. E.g. 64 bytes that are sharded over 2
    devices, and also over 4 others: 32 - 32 // 4 = 24.
    """
    if group.num_bytes is None or not axes:
        return None
    shape = laid.rules.mesh.shape
    device_bytes = group.num_bytes // math.prod(shape[axis] for axis in laid.axes_of(group))
    return device_bytes - device_bytes // math.prod(shape[axis] for axis in axes)


def _sum(groups: Sequence[Group]) -> int | None:
    """Return the bytes of all arrays of the groups; None if a shape is not known."""
    sizes = [group.num_bytes for group in groups]
    return None if None in sizes else sum(n for n in sizes if n is not None)
