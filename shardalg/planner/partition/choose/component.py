"""Components of a node: groups of rows of RULES that share loops or operands.

A component knows which of its loops may be sharded, and which dimensions of which tensors they
index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from shardalg.algebra.digits import Digit, Digits, parts
from shardalg.graph.ops.local_parameters import unsupported_loops
from shardalg.graph.ops.loops import dim_loops
from shardalg.graph.ops.rule import (
    AND,
    ARGMAX,
    ARGMIN,
    MAX,
    MIN,
    OR,
    PICK,
    PRODUCT,
    SUM,
    TOP,
    USER,
    XOR,
    Rule,
)
from shardalg.graph.ops.windows import is_windowed
from shardalg.planner.partition.choose.windows import owner

Dims = tuple[Digits, ...]
Assigned = Mapping[str, Digits]
Loops = tuple[tuple[str, int], ...]
COMBINABLE = frozenset({SUM, PRODUCT, MAX, MIN, AND, OR, XOR, ARGMAX, ARGMIN, TOP, USER})


@dataclass(frozen=True)
class Tensor:
    """An operand or a result of one row of RULES.

    Attributes:
      rule: the row.
      operand: the number of the operand in the node; None for a result.
      number: the number among the node's operands, or among its results.
      dims: per dimension, the loops that index it with their extents, major first.
      windows: dimensions that are read through a window.
    """

    rule: Rule
    operand: int | None
    number: int
    dims: tuple[Loops, ...]
    windows: tuple[int, ...] = ()

    def digits(self, assigned: Assigned, *, gathered: bool = False) -> Dims:
        """Return the digits of each dimension of the tensor, given the digits of each loop.

        Digits are parts of mesh axes. For example, with loop `b` along X and `d` along nothing, a
        tensor of dimensions (b, d) has the digits (X, ()).

        Args:
          assigned: the digits of each sharded loop, by name.
          gathered: whether windowed dimensions are not sharded, so that no halo is exchanged.
        """
        # By far most dimensions are one loop, whose digits need no new tuple. A dimension of
        # several loops (a reshape) has the digits of all, the major loop first.
        found = [
            assigned.get(loops[0][0], ())
            if len(loops) == 1
            else tuple(d for name, _ in loops for d in assigned.get(name, ()))
            for loops in self.dims
        ]
        # A dimension that is read through a window has the digits of the loop that owns its blocks.
        for dim in self.windows if not gathered else ():
            found[dim] = owner(self.rule, (self.number, dim), assigned)
        return tuple(found)

    @cached_property
    def suggested(self) -> tuple[Loops, ...]:
        """Per dimension, the loops (with extents) that its sharding suggests to shard.

        They are the dimension's loops. For a dimension that is read through a window, it is the
        loop that spans most of it.
        """
        found = list(self.dims)
        for dim in self.windows:
            index = self.rule.indices(self.number)[dim]
            extents = self.rule.extents
            # A term is (loop, factor): the loop moves through |factor| * extent elements. In
            # `2*o + r` with 100 outputs and a window of 3, `o` spans 200 elements, `r` only 3.
            name = max(index.terms, key=lambda term: abs(term[1]) * extents[term[0]])[0]
            found[dim] = ((name, extents[name]),)
        return tuple(found)


@dataclass(frozen=True)
class Component:
    """Rows that share a loop or an operand, which are therefore decided together.

    Attributes:
      rules: the rows of RULES.
      tensors: the operands and results of all rows, operands of a row before its results.
      loops: the loops that may be sharded.
      even: reduced loops whose padding cannot be masked, with their extents. Only even splits of
        these are allowed.
      nests: dimensions of several loops, major first. All sharded loops of such a dimension except
        the last are split to single elements.
      is_whole: whether the component is the whole node, and has one row.
    """

    rules: tuple[Rule, ...]
    tensors: tuple[Tensor, ...]
    loops: tuple[str, ...]
    even: Loops
    nests: tuple[Loops, ...]
    is_whole: bool

    @property
    def rule(self) -> Rule:
        """The first rule of the component; for most operators the only one."""
        return self.rules[0]

    def reads_windows(self, assigned: Assigned) -> bool:
        """Return whether an operand is read through a window along one of the assigned loops."""
        return not self.window_loops.isdisjoint(assigned)

    @cached_property
    def window_loops(self) -> frozenset[str]:
        """The loops that index some operand dimension through a window, as `2*o + r` does."""
        # Both loops of a window count, the output position `o` and the window position `r`.
        return frozenset(
            name
            for t in self.tensors
            for dim in t.windows
            for name in t.rule.indices(t.number)[dim].variables
        )

    def local_assignment(
        self, operands: Sequence[Dims], results: Sequence[Dims]
    ) -> Assigned | None:
        """Return the assignment under which tensors with these digits need no communication.

        None if there is no such assignment: dimensions of one loop have different digits, or a
        reduced loop, a dimension of several loops or an unshardable loop has digits.

        Args:
          operands: per operand, the digits of each dimension.
          results: per result, the digits of each dimension.
        """
        found: dict[str, Digits] = {}
        for operand, number, names in self.single_loops:
            dims = results[number] if operand is None else operands[operand]
            for name, own in zip(names, dims, strict=True):
                # Different digits on one loop would need a move. Digits on a dimension without a
                # single loop (`name` is None) cannot be compared with those of other tensors.
                has_conflict = bool(own) if name is None else found.setdefault(name, own) != own
                if has_conflict:
                    return None
        if any(found.get(name) for loops in self.nests for name, _ in loops):
            # Another tensor has this loop in a dimension of several loops. That dimension is whole,
            # so the tensor's block does not have the same part of the loop.
            return None
        return {name: found[name] for name in self.loops if found.get(name)}

    @cached_property
    def single_loops(self) -> tuple[tuple[int | None, int, tuple[str | None, ...]], ...]:
        """Per tensor: its `operand`, its `number`, and a tuple with the loop of each dimension.

        The entry of a dimension is None if it has several loops, or if its loop is reduced or may
        not be sharded.
        """
        # Digits on a reduced loop would leave partial sums, which is communication later.
        reduced = {name for rule in self.rules for name in rule.reduced}
        shardable = frozenset(self.loops) - reduced
        # An entry of `dims` lists the (loop, extent) pairs of a dimension.
        loop_names = [
            [loops[0][0] if len(loops) == 1 else None for loops in t.dims] for t in self.tensors
        ]
        return tuple(
            (t.operand, t.number, tuple([n if n in shardable else None for n in names]))
            for t, names in zip(self.tensors, loop_names, strict=True)
        )

    def loops_of_extent(self, count: int) -> tuple[str, ...]:
        """Return the loops that have at least `count` iterations."""
        extents = {n: extent for rule in self.rules for n, extent in rule.loops}
        return tuple(name for name in self.loops if extents[name] >= count)

    def allows(self, assigned: Assigned) -> bool:
        """Return whether an operator can be computed under an assignment of digits to loops.

        Every device must get one block of each tensor, and it must be possible to combine partial
        results.
        """
        # Padding in the last block of these loops would be included in a reduction.
        for name, extent in self.even:
            if name in assigned and extent % parts(assigned[name]):
                return False
        for rule in self.rules:
            if rule.combine != TOP:
                continue
            # A block with fewer elements than `top_k` keeps would send as much as a gather.
            most = max(rule.extents[name] for name in rule.whole)
            split = [name for name in rule.reduced if name in assigned]
            if any(-(-rule.extents[name] // parts(assigned[name])) < most for name in split):
                return False
        # A block of the dimension `4*i + j` is a block of j only if a device has one value of i.
        return all(_splits_to_elements(loops, assigned) for loops in self.nests)


def _splits_to_elements(loops: Loops, assigned: Assigned) -> bool:
    """Return whether a device's iterations of several loops index one block of their dimension.

    That is so if all sharded loops of the dimension, except the last, are split to single elements.
    """
    # For the dimension 4*i + j, blocks of one i hold i's four values of j, or a block of them. With
    # two values of i per device, a block of j would be two separate runs of the dimension.
    open_end = False
    for name, extent in loops:
        count = parts(assigned.get(name, ()))
        if count > 1 and (open_end or extent % count):
            return False
        # Loops minor to one with several elements per block must stay whole.
        open_end = open_end or count != extent
    return True


@lru_cache(maxsize=1 << 14)
def components(rows: tuple[Rule, ...]) -> tuple[Component, ...]:
    """Return the groups of an operator's rules that are decided separately, in order of results.

    A rule (a row of the table RULES) has the loops of one or more results. Rules that share a loop
    or an operand, also through a third rule, are in one group (component).

    Args:
      rows: the rules of the operator.
    """
    # A group is (its loops and operands, the numbers of its rules).
    groups: list[tuple[set[object], list[int]]] = []
    for number, rule in enumerate(rows):
        # Rows with a common loop or operand must agree on its sharding, also through a third row:
        # all groups that this row shares one with become one group.
        marks: set[object] = set(rule.extents) | set(rule.operands)
        joined = [group for group in groups if group[0] & marks]
        groups = [group for group in groups if not group[0] & marks]
        numbers = sorted([n for _, members in joined for n in members] + [number])
        groups.append((marks.union(*(group_marks for group_marks, _ in joined)), numbers))
    return tuple(
        _component(rows, numbers) for _, numbers in sorted(groups, key=lambda group: group[1])
    )


def _component(rows: tuple[Rule, ...], numbers: list[int]) -> Component:
    """Return the component that consists of the rows with these numbers.

    A component is a group of rules that share loops or operands, so that their loops are sharded
    together.

    Args:
      rows: all rows of RULES of the node.
      numbers: the positions of the component's rows in `rows`.
    """
    rules = tuple(rows[n] for n in numbers)
    tensors = tuple(t for n in numbers for t in _tensors(rows[n], None if len(rows) == 1 else n))
    # A loop may be sharded only if every row of the component allows it, because rows share loops.
    supported = [n for rule in rules for n, _ in rule.loops if n not in unsupported_loops(rule)]
    unshardable = {name for rule in rules for name in _unshardable(rule)}
    # The last block of an uneven split has padding, which a reduction would include. Loops whose
    # padding cannot be masked may be split evenly only.
    even = [
        (name, rule.extents[name])
        for rule in rules
        for name in rule.reduced
        if not _is_maskable(rule, name)
    ]
    # Rows share loops and operands, so a loop or a dimension may occur several times.
    nests = dict.fromkeys(loops for t in tensors for loops in t.dims if len(loops) > 1)
    return Component(
        rules=rules,
        tensors=tensors,
        loops=tuple(dict.fromkeys(name for name in supported if name not in unshardable)),
        even=tuple(even),
        nests=tuple(nests),
        is_whole=len(rows) == 1,
    )


def _tensors(rule: Rule, number: int | None) -> Iterator[Tensor]:
    """Yield the operands and results of a rule.

    Args:
      number: the number of the result that the rule computes; None if the node has one rule.
    """
    # A row numbers its operands 0, 1, ... and its results ~0, ~1, ...
    for tensor in rule.tensors:
        dims = tuple(dim_loops(rule, tensor, d) for d in range(len(rule.indices(tensor))))
        if tensor >= 0:
            # Results are never read through windows.
            through = tuple(d for d in range(len(dims)) if is_windowed(rule, tensor, d))
            yield Tensor(rule, tensor, tensor, dims, through)
        else:
            yield Tensor(rule, None, ~tensor if number is None else number, dims)


def _unshardable(rule: Rule) -> Iterator[str]:
    """Yield the names of the loops that may not be sharded.

    There are three kinds: loops whose blocks are not blocks of a dimension that they index; reduced
    loops whose partial results no collective combines; reduced loops without iterations.
    """
    # A window may be read from neighbours by an exchange, so windowed dimensions exclude no loop.
    for tensor in rule.tensors:
        for dim, index in enumerate(rule.indices(tensor)):
            if is_windowed(rule, tensor, dim):
                continue
            # `dim_loops` has the loops of which a block is a block of the dimension. A loop that
            # only shifts the index, for example, is none of them.
            names = {name for name, _ in dim_loops(rule, tensor, dim)}
            yield from (name for name in index.variables if name not in names)
    # A sum over no iterations is 0 on every device; there is nothing to divide.
    yield from (n for n in rule.reduced if not rule.extents[n])
    # A selected element (`PICK`) is combined as a sum if a guard makes it 0 on all other devices.
    is_guarded_pick = rule.combine == PICK and bool(rule.guards)
    if not (rule.combine in COMBINABLE or is_guarded_pick):
        yield from rule.reduced


def _is_maskable(rule: Rule, loop: str) -> bool:
    """Return whether a reduced loop may be sharded unevenly, with masks of its padding.

    It must index a dimension of an operand alone, which is masked. Loops over the taps of a window
    are excluded. A masked tap is 0, but its product with an infinite element that another window
    reads is NaN. Of two loops that share an index, the shorter one counts as the taps. The other
    one, over windows, may be sharded unevenly, as in XLA, for the gradient of the taps.
    """
    indices = [index for dims in rule.operands.values() for index in dims]
    through = {n for i in indices if i.loop is None and loop in i.variables for n in i.variables}
    taps = any(rule.extents[n] >= rule.extents[loop] for n in through - {loop})
    return not taps and any(index.loop == loop for index in indices)


def reduced_digits(rule: Rule, assigned: Assigned) -> Digits:
    """Return the digits of an assignment that shard reduced loops, sorted major first.

    The results are partial along these digits.
    """
    return major_first(d for name in rule.reduced for d in assigned.get(name, ()))


def major_first(digits: Iterable[Digit]) -> Digits:
    """Return digits as a sorted tuple, major (largest stride) first: equal sets compare equal."""
    return tuple(sorted(digits, reverse=True))
