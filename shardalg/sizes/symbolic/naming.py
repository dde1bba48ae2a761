"""Search for formulas of a graph's dimensions: sets of equal sizes, and a formula for each set.

A slot is one dimension of one value, or the trip count of one loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache

import sympy

from shardalg.algebra.dims import Expr, SymbolError, evaluate, sizes_of
from shardalg.graph.ir import Graph, Node
from shardalg.sizes.symbolic.extents import PRODUCT, SUM, Shift, extents
from shardalg.sizes.symbolic.retrace import Alignment, Retrace

ONE = sympy.Integer(1)


class Names:
    """Sets of dimensions of equal size (union-find), and the formula of each set once it is known.

    Attributes:
      second: the function traced at other sizes, or None.
      base: the first slot of each value; a slot is a dimension of a value, or a loop's trip count.
      number: the size of each slot at the hints.
      other: the size of each slot in the second trace, or None.
      trip: the slot of each loop's trip count, by region.
      parent: the union-find forest over slots.
      name: the formula of each set, stored at its representative; None if it is not known.
      fixed: representatives of sets whose formula is a number that no argument determines.
      equations: equal products or sums of slots: (node, kind, (left slots, right slots)).
      shifts: slots related by a slice, padding or window: (node, source, target, shift).
    """

    def __init__(self, graph: Graph, second: Retrace | None) -> None:
        """Give each dimension of each value, and each loop length, a slot of its own.

        Args:
          second: a trace of the same function at other sizes; None if there is none.
        """
        self.graph, self.second = graph, second
        # `base` has the first slot of each value. `number` and `other` have the size of each slot
        # in the two traces.
        self.base = [0]
        self.number: list[int] = []
        for value in graph.values:
            self.number.extend(value.type.shape)
            self.base.append(len(self.number))
        self.aligned = Alignment(graph, second.graph) if second else None
        self.other = self._second_numbers()
        # The length of a loop is the leading size of its stacked values. It needs a slot too,
        # because a loop may have no stacked values.
        self.trip: dict[int, int] = {}
        for region in graph.regions:
            if region.kind == "scan":
                self.trip[region.index] = len(self.number)
                self.number.append(_length(graph, region.index))
                self.other.append(_length(second.graph, region.index) if second else None)
        # Slots of equal size are united later: at first each is a set by itself, without a formula.
        # Equations and shifts then relate the sizes of different sets.
        self.parent = list(range(len(self.number)))
        self.name: list[sympy.Expr | None] = [None] * len(self.number)
        self.fixed: set[int] = set()
        self.equations: list[tuple[Node, str, tuple[list[int], list[int]]]] = []
        self.shifts: list[tuple[Node, int, int, Shift]] = []

    def _second_numbers(self) -> list[int | None]:
        """Return the size of each slot in the second trace, or None where it has no counterpart.

        Raises:
          SymbolError: the second trace is another program.
        """
        if self.aligned is None:
            return [None] * len(self.number)
        difference = self.aligned.difference
        if difference is not None:
            raise SymbolError(
                f"the function is another program at {self.second}: {difference}. Python code "
                "decided on a size (or two hints are equal by accident): plan with numbers, or "
                "decide outside the function."
            )
        # A slot is one dimension of one value, in the order of the values. `partner` has, for each
        # value, the number of its counterpart in the second trace, or a negative number.
        numbers: list[int | None] = []
        values = self.aligned.second.values
        for value, other in zip(self.graph.values, self.aligned.partner, strict=True):
            rank = len(value.type.shape)
            numbers += values[other].type.shape if other >= 0 else [None] * rank
        return numbers

    def root(self, slot: int) -> int:
        """Return the representative of a slot's set, in which all slots have equal sizes.

        A slot is a dimension of a value, or the trip count of a loop.
        """
        parent = self.parent
        # Each step halves the path to the representative, so that later calls take fewer steps.
        while parent[slot] != slot:
            parent[slot] = slot = parent[parent[slot]]
        return slot

    def span(self, value: int) -> tuple[int, int]:
        """Return (first slot, last slot + 1) of a value; it has one slot per dimension."""
        return self.base[value], self.base[value + 1]

    def loop_result(self, region: int) -> int:
        """Return the index of the first result of a loop.

        Args:
          region: the index of the loop's body.
        """
        owner = self.graph.regions[region].node
        assert owner is not None, "a loop's body has a call"
        return self.graph.nodes[owner].results[0]

    def declare(self, slot: int, size: sympy.Expr) -> None:
        """Store the declared size of an argument's dimension as the formula of its slot."""
        self.name[slot] = size

    def join_loops(self) -> None:
        """Record that all dimensions which one loop of an operator indexes have equal sizes.

        Dimension d of value v has the number `base[v] + d`. Numbers of equal sizes are joined in a
        union-find, of which `parent` is the table.

        Relations that are no equalities, such as products of a reshape, go to `equations` and
        `shifts`.
        """
        base, parent = self.base, self.parent
        for node in self.graph.nodes:
            if node.bodies:
                continue
            # `extents` is cached, so that equal operators cost one lookup.
            relations = extents(node.signature)
            values = (*node.operands, *node.results)
            # A pair: dimension d of tensor i and dimension e of tensor j, operands before results.
            for (i, d), (j, e) in relations.equal:
                first, second = base[values[i]] + d, base[values[j]] + e
                if parent[first] != parent[second]:
                    self._join(first, second, node)
            if relations.equations or relations.shifts:
                self._add_relations(node, values)
        self._join_pieces()

    def _add_relations(self, node: Node, at: tuple[int, ...]) -> None:
        """Store the equations and the shifts of an operator's dimensions, as relations of slots.

        A slot is the number of a dimension. Equations are equal products or sums of sizes. Shifts
        are slices, padding and windows.

        Args:
          at: the values that the node reads, then the values that it computes.
        """
        relations = extents(node.signature)
        first = len(self.number)
        # Equations may contain a loop that no dimension runs over alone, so it needs a slot too.
        for size in relations.inner:
            # A new slot is a class of its own (`parent`). It has the loop's size (`number`), and
            # neither a size in the second trace (`other`) nor a formula (`name`) yet.
            self.parent.append(len(self.number))
            self.number.append(size)
            self.other.append(None)
            self.name.append(None)

        def slot(place: tuple[int, int]) -> int:
            """Return the slot of (tensor, dimension); a negative tensor means an inner loop."""
            return first + place[1] if place[0] < 0 else self.base[at[place[0]]] + place[1]

        for equation in relations.equations:
            sides = [slot(p) for p in equation.left], [slot(p) for p in equation.right]
            self.equations.append((node, equation.kind, sides))
        for shift in relations.shifts:
            self.shifts.append((node, slot(shift.source), slot(shift.target), shift))

    def _join_pieces(self) -> None:
        """Add an equation for each dimension that slices of a value cover without a gap.

        The size of the dimension is the sum of the sizes of the slices. For example, slices [0:2]
        and [2:6] of a size 6 give the equation 6 = 2 + 4 between their slots (dimensions).
        """
        # Per size, the slices of its dimension: from a slice's first element to its size and node.
        pieces: dict[int, dict[int, tuple[int, Node]]] = {}
        for node, source, target, shift in self.shifts:
            if shift.start is not None and shift.start >= 0:
                pieces.setdefault(source, {})[shift.start] = target, node
        for source, slice_at in pieces.items():
            # Each slice must begin where the one before it ends, from 0 to the size of the value.
            starts = sorted(slice_at)
            targets = [slice_at[start][0] for start in starts]
            slice_ends = [start + self.number[t] for start, t in zip(starts, targets, strict=True)]
            if len(slice_at) > 1 and [*starts, self.number[source]] == [0, *slice_ends]:
                self.equations.append((slice_at[0][1], SUM, ([source], targets)))

    def join_regions(self) -> None:
        """Record that values at the border of a loop have the same sizes as the values in its body.

        A stacked value (`xs` or `ys` of a scan) has one more dimension outside, whose size equals
        the trip count of the loop.

        Raises:
          SymbolError: the graph has a `shard_map`, or two sizes must be equal.
        """
        graph, base = self.graph, self.base
        for tie in graph.region_arguments:
            node = graph.nodes[tie.call]
            if tie.is_manual:
                raise SymbolError(
                    f"the shard_map at {node.source or 'an unknown line'} is traced for blocks of "
                    "given sizes, which no formula follows. Plan the function at numbers."
                )
            # `source_drop` and `target_drop` are the leading dimensions that only this end has (0
            # or 1).
            num_shared = len(graph.values[tie.source].type.shape) - tie.source_drop
            source, target = base[tie.source] + tie.source_drop, base[tie.target] + tie.target_drop
            for d in range(num_shared):
                self._join(source + d, target + d, node)
            for body in node.bodies:
                if tie.source_drop or tie.target_drop:
                    stacked = tie.source if tie.source_drop else tie.target
                    self._join(self.trip[body], base[stacked], node)

    def _join(self, first: int, second: int, node: Node) -> None:
        """Declare two slots equal: unite the sets of equal slots that contain them.

        A slot is a dimension of a value, or the trip count of a loop.

        Args:
          node: the operator that needs equal sizes, for the message.

        Raises:
          SymbolError: the two sets have different formulas already.
        """
        a, b = self.root(first), self.root(second)
        if a == b:
            return
        # The formula is stored at the representative, so the set with a formula provides it.
        name, other = self.name[a], self.name[b]
        if name is None:
            a, b = b, a
        elif other is not None and name != other and not _same_formula(name, other):
            raise self._clash(node, (name, other), self.number[a])
        self.parent[b] = a

    def _clash(self, node: Node, pair: tuple[sympy.Expr, sympy.Expr], number: int) -> SymbolError:
        """Return the error that a size has two different formulas.

        Args:
          node: the operator that needs the two sizes to be equal.
          pair: the formulas. number: the value of both at the hints.
        """
        value = self.graph.values[node.results[0]].name
        return SymbolError(
            f"two sizes meet on one loop of {value} ({node.source or 'unknown line'}): {pair[0]} "
            f"and {pair[1]}, both {number} at the hints. If the function needs them equal, declare "
            "one in terms of the other; if they are equal by accident, give them other hints."
        )

    def solve(self) -> None:
        """Find the formulas of all sizes, by repeated steps until no step finds another one."""
        # A size that is the same in both traces is a number; 1 may also be a broadcast dimension.
        pairs = enumerate(zip(self.number, self.other, strict=True))
        self._fix(slot for slot, (ours, theirs) in pairs if ours == theirs != 1)
        steps = (self._solve_equations, self._read_shifts, self._match_pairs, self._fix_leaves)
        while any(step() for step in steps):
            pass

    def _fix(self, slots: Iterator[int]) -> bool:
        """Give sizes without a formula their numbers as formulas; return whether there was one.

        Such a size does not depend on a named size, as far as the function shows. For example, a
        size 128 without a formula gets the formula 128.

        Args:
          slots: dimensions of values, as numbers of slots.
        """
        num_before = len(self.fixed)
        for slot in slots:
            # All slots of a set have one formula, which is stored at its representative.
            root = self.root(slot)
            if self.name[root] is None:
                self.name[root] = sympy.Integer(self.number[root])
                self.fixed.add(root)
        return len(self.fixed) > num_before

    def _known(self, slot: int) -> sympy.Expr | None:
        """Return the formula of a dimension (a slot); 1 for a size of 1; None if it is unknown."""
        root = self.root(slot)
        return self.name[root] or (ONE if self._is_one(root) else None)

    def _is_one(self, root: int) -> bool:
        """Return whether a set of equal sizes has size 1, wherever the function was traced.

        The traces are at the hints and, if there is one, at other sizes.

        Args:
          root: the slot of a dimension that represents the set.
        """
        return self.number[root] == 1 and self.other[root] in (None, 1)

    def _solve_equations(self) -> bool:
        """Solve the equations that have one unknown size, and remove them from `equations`.

        Return whether an equation was solved, or checked because it has no unknown size.
        """
        before = len(self.equations)
        self.equations = [e for e in self.equations if not self._solve_equation(*e)]
        return len(self.equations) < before

    def _solve_equation(self, node: Node, kind: str, sides: tuple[list[int], list[int]]) -> bool:
        """Solve an equation for its only unknown size, and return True.

        For example, `B * x = S * B` for a reshape gives x = S. An equation without an unknown size
        is only checked. One with several, or with a size of 0, is not solved, and the result is
        False.

        Args:
          kind: `PRODUCT` or `SUM`: the operation on the sizes of each side.
          sides: the slots of the left and of the right side.

        Raises:
          SymbolError: the equation has no unknown size, and is false.
        """
        unknown = [s for side in sides for s in side if self._known(s) is None]
        # A size of 0 makes a product useless for a division.
        if len(unknown) > 1 or not all(self.number[s] for side in sides for s in side):
            return False
        left, right = ([self._known(s) for s in side if s not in unknown] for side in sides)
        # From `x * a = b`, x is b/a (`x + a = b`: b - a): the other side, without x's own side.
        if unknown:
            more, less = (right, left) if unknown[0] in sides[0] else (left, right)
            self.name[self.root(unknown[0])] = _solve_for(kind, tuple(more), tuple(less))
            return True
        # Nothing is unknown: both sides must be the same formula, not only the same number.
        side_formulas = _solve_for(kind, tuple(left), ()), _solve_for(kind, tuple(right), ())
        if side_formulas[0] != side_formulas[1] and not _same_formula(*side_formulas):
            raise self._clash(node, side_formulas, _at_hints(side_formulas[0]))
        return True

    def _read_shifts(self) -> bool:
        """Compute the size of each shift's target whose source has a known size.

        A shift relates two dimensions, source and target, by a slice, padding or window
        (`extents.Shift`). For example, a padding by 2 relates S to S + 2. Return whether some
        source was known.
        """
        open_shifts, num_before = [], len(self.shifts)
        for node, source, target, shift in self.shifts:
            source_formula = self._known(source)
            if source_formula is None:
                open_shifts.append((node, source, target, shift))
            elif self._known(target) is None:
                self.name[self.root(target)] = self._reading(
                    source_formula, (source, target), shift
                )
        # Shifts with an unknown source are tried again after other sizes are found.
        self.shifts = open_shifts
        return len(open_shifts) < num_before

    def _reading(self, known: sympy.Expr, at: tuple[int, int], shift: Shift) -> sympy.Expr | None:
        """Return the formula of the target size of a shift, from the formula of its source size.

        None if no candidate formula gives the target's size in the second trace. Without a second
        trace, the likeliest candidate is returned.

        Args:
          known: the formula of the source size.
          at: the numbers (slots) of the source and the target dimension.
          shift: the slice, padding or window that relates the two.
        """
        s, n = (self.number[slot] for slot in at)
        if known.is_Integer:
            return sympy.Integer(n)
        readings = _readings(known, (s, n), shift)
        if self.second is None:
            return _reading_from_hints(readings, (s, n), shift)
        actual = self.other[self.root(at[1])]
        for reading in readings:
            # A reading that is no integer at the second trace's sizes, such as S/2, is wrong.
            with suppress(SymbolError):
                if evaluate(reading, self.second.values) == actual:
                    return reading
        return None

    def _match_pairs(self) -> bool:
        """Give a size the only known formula with the same numbers in both traces.

        For example, the traces have B = 8 and B = 24. A size that is 16 in the first and 48 in the
        second trace gets 2*B, if an argument's dimension has this formula and no other one has
        these numbers. Return whether there was such a size.
        """
        if self.second is None:
            return False
        formulas_of_pair: dict[tuple[int, int | None], set[sympy.Expr]] = {}
        open_slots = []
        for slot, pair in enumerate(zip(self.number, self.other, strict=True)):
            # Equal sizes form a class (union-find), of which one slot, the root, has the formula.
            if self.parent[slot] == slot and None not in pair:
                name = self.name[slot]
                if name is not None:
                    formulas_of_pair.setdefault(pair, set()).add(name)
                elif not self._is_one(slot):
                    open_slots.append((slot, pair))
        # Sizes of the second trace are unrelated to each other, so equal numbers in both traces are
        # hardly a coincidence. If two formulas have these numbers, the size stays open.
        matches = [
            (slot, formulas_of_pair[pair])
            for slot, pair in open_slots
            if len(formulas_of_pair.get(pair, ())) == 1
        ]
        for slot, (name,) in matches:
            self.name[slot] = name
        return bool(matches)

    def _fix_leaves(self) -> bool:
        """Give the sizes of values without array operands their numbers as formulas.

        Python code chose such a size, for example of an iota. This is done only without a second
        trace, which would show whether the size depends on an argument. Return whether there was
        such a size.
        """
        if self.second is not None:
            return False
        values = self.graph.values
        leaf_values = [i for i, _ in self.graph.constants]
        # Nodes without array operands, such as an iota. A call's results come from its bodies.
        for node in self.graph.nodes:
            if not node.bodies and not any(values[v].type.shape for v in node.operands):
                leaf_values.extend(node.results)
        # A size of 1 may be a broadcast dimension, so it is no number that the code chose.
        slots = (s for v in leaf_values for s in range(self.base[v], self.base[v + 1]))
        return self._fix(s for s in slots if self.number[s] != 1)

    def formula(self, slot: int) -> Expr:
        """Return the size of a dimension (a slot): its formula, or its number if it has none."""
        root = self.root(slot)
        name = self.name[root]
        return self.number[root] if name is None or name.is_Integer else name

    def is_constant(self, slot: int) -> bool:
        """Return whether a size other than 1 is a number that no argument determines."""
        root = self.root(slot)
        return not self._is_one(root) and (self.name[root] is None or root in self.fixed)

    def varies(self, slot: int) -> bool | None:
        """Return whether a size differs in the second trace; None without a second trace."""
        root = self.root(slot)
        other = self.other[root]
        return None if other is None else other != self.number[root]


def _length(graph: Graph, region: int) -> int:
    """Return the trip count of a loop per execution, without the loops around it."""
    body = graph.regions[region]
    return body.trip_count // max(graph.regions[body.parent or 0].trip_count, 1)


def _readings(known: sympy.Expr, sizes: tuple[int, int], shift: Shift) -> Iterator[sympy.Expr]:
    """Yield formulas that the target size of a shift may have; each is right at the hints.

    Args:
      known: the formula of the source size.
      sizes: source size and target size at the hints.
    """
    s, n = sizes
    stride, base = shift.stride, shift.base
    if not shift.repeats:
        # floor((base*s + c)/stride) = n holds for these constants c only.
        low = stride * n - base * s
        offsets = range(low, low + stride)
        for c in (*(c for c in shift.slack if c in offsets), *offsets):
            yield sympy.floor((base * known + c) / stride)
    yield known * sympy.Rational(n, s)


def _reading_from_hints(
    readings: Iterator[sympy.Expr], sizes: tuple[int, int], shift: Shift
) -> sympy.Expr | None:
    """Return the likeliest formula of the size of a slice, pad or window, from the operand's size.

    For example, from size S = 64 to 63 the formula is `S - 1`, and to 32 it is `S/2`. Return None
    if several formulas are equally likely. This is a guess for functions that were traced only
    once: the sizes of a second trace would decide.

    Args:
      readings: formulas that have the right value at the hints. First are differences and floors
        with a constant, the likeliest first. The last one is the quotient `known * n / s`.
      sizes: the pair (s, n) of the operand's and the result's size at the hints.
      shift: the relation of the two dimensions.
    """
    s, n = sizes
    formulas = list(readings)
    # The row does not relate the two sizes of a free shift, so no formula is likely.
    if shift.free:
        return None
    # `Shift.slack` lists the constants of common paddings first, so that the first formula is the
    # likeliest one for a window or padding.
    if n >= s or not shift.stride == shift.base == 1:
        return formulas[0]
    # A slice `x[:n]`: an exact share of at most 8 parts is a quotient, such as `S/2` of a split.
    if s % n == 0 and s // n <= 8:
        return formulas[-1]
    # A slice that cuts off at most a fifth is a difference, such as `S - 1` of shifted labels.
    return formulas[0] if 4 * (s - n) <= n else None


@lru_cache(maxsize=4096)
def _solve_for(kind: str, more: tuple[sympy.Expr, ...], less: tuple[sympy.Expr, ...]) -> sympy.Expr:
    """Return the product of `more` divided by that of `less`, or the difference of their sums.

    Args:
      kind: `PRODUCT` or `SUM`.
    """
    if kind == PRODUCT:
        return sympy.Mul(*more) / sympy.Mul(*less)
    return sympy.Add(*more) - sympy.Add(*less)


@lru_cache(maxsize=4096)
def _at_hints(expression: sympy.Expr) -> int:
    """Return the value of an expression if each size has its hint."""
    return evaluate(expression, {})


@lru_cache(maxsize=4096)
def _same_formula(first: sympy.Expr, second: sympy.Expr) -> bool:
    """Return whether two formulas are equal at all sizes.

    Formulas without floors are compared by algebra. Others are compared at 16 sample points,
    because sympy does not prove `floor((S - 1)/2) + 1 = ceil(S/2)`. So the answer True is not
    proved for them.
    """
    # Without floors, equal polynomials have an expanded difference of 0.
    difference = sympy.expand(first - second)
    if difference == 0 or not difference.has(sympy.floor, sympy.ceiling):
        return difference == 0
    sizes = sizes_of([difference]).values()
    # Multiples of the hints, shifted by different small numbers, so that floors round at most
    # points and no two sizes stay equal.
    return all(
        difference.xreplace({s: sympy.Integer(s.hint * p + k) for k, s in enumerate(sizes, r)}) == 0
        for p in (1, 2, 3, 5)
        for r in range(4)
    )
