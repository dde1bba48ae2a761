"""Operators on blocks, matched with the operators of the program before partitioning.

Each computing operator before partitioning is an entry of a table: its opcode, attributes and
operands, and a base for its result. An operator on a device is proved if an entry has indices per
loop at which all its operands hold the elements of the device's operands.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardalg.lower.xla_dump.hlo_text import HloInstruction, HloModule
from shardalg.xla.audit.element_views import (
    ANYTHING,
    LOW,
    MIXED,
    VOID,
    Known,
    Pending,
    Value,
    View,
    find_places,
    numbers_differ,
    placed,
    shares,
)
from shardalg.xla.audit.hlo_attributes import (
    INTEGERS,
    WindowDim,
    combination,
    combination_of,
    integers,
    signature,
    window_of,
)
from shardalg.xla.audit.operator_loops import COMMUTATIVE, OperatorLoops, loops_of
from shardalg.xla.audit.per_device import (
    ArrayPool,
    AuditFinding,
    ClassError,
    PerDevice,
    RefutedError,
    UnknownError,
)
from shardalg.xla.audit.window_matching import WindowSizes, scattered_places, window_places

_LARGEST = {"bf16": 3.3895e38, "f16": 65504.0, "f32": 3.4028e38, "f64": 1.7976e308}
_LINEAR = ("add", "subtract", "negate", "copy")
_WIDTH = {"bf16": 8, "f16": 11, "f32": 24, "f64": 53}


@dataclass(frozen=True)
class Entry:
    """An operator of the program before partitioning.

    Attributes:
      base: number of the base of its first result; the others follow.
    """

    instruction: HloInstruction
    operands: tuple[Value, ...]
    base: int
    loops: OperatorLoops


@dataclass(frozen=True)
class Base:
    """A tensor whose elements views name: its shape, item type and the text for messages."""

    shape: tuple[int, ...]
    dtype: str
    text: str


@dataclass(eq=False)
class OperatorTable:
    """The bases and operators of the program before partitioning."""

    pool: ArrayPool
    bases: list[Base] = field(default_factory=list)
    entries: dict[Hashable, list[Entry]] = field(default_factory=dict)
    alike: dict[Hashable, list[Entry]] = field(default_factory=dict)

    def new_base(self, shape: Sequence[int], dtype: str, text: str) -> int:
        """Return the number of a new base."""
        self.bases.append(Base(tuple(shape), dtype, text))
        return len(self.bases) - 1

    def record(
        self, module: HloModule, instruction: HloInstruction, operands: Sequence[Value]
    ) -> tuple[View, ...]:
        """Return the results of an operator before partitioning, and keep the operator.

        The partitioner merges equal operators, so equal ones share their bases.
        """
        operands = _ordered(instruction, operands)
        key = _key(module, instruction, operands, exact=True)
        found = self.entries.setdefault(key, [])
        shapes = tuple(shape for _, shape in instruction.leaves)
        for entry in found:
            if tuple(s for _, s in entry.instruction.leaves) == shapes and all(
                map(identical, entry.operands, operands)
            ):
                return self.results(entry, self._own_places(entry), None)
        first = len(self.bases)
        for dtype, shape in instruction.leaves:
            self.new_base(shape, dtype, f"{instruction.opcode} {instruction.name}")
        loops = loops_of(instruction, [x.shape for x in operands])
        entry = Entry(instruction, tuple(operands), first, loops)
        found.append(entry)
        self.alike.setdefault(_key(module, instruction, operands, exact=False), []).append(entry)
        return self.results(entry, self._own_places(entry), None)

    def _own_places(self, entry: Entry) -> dict[int, PerDevice | int]:
        """Return the indices of an operator's own loops: all of them, in order."""
        places: dict[int, PerDevice | int] = {}
        for loop, (size, varies) in _extents(entry).items():
            places[loop] = self.pool.same(np.arange(size)) if varies else size
        return places

    def match(
        self, module: HloModule, instruction: HloInstruction, operands: Sequence[Value]
    ) -> tuple[View, ...]:
        """Return the results of an operator on devices, as elements of an operator's results.

        Raises:
          RefutedError: an operator before partitioning has these operands, but reads other
            elements.
          UnknownError: no operator before partitioning has these operands.
        """
        operands = _ordered(instruction, operands)
        if any(isinstance(x, View) and x.change is not None for x in operands):
            raise UnknownError("shifted indices, or a mask of them, in another operator")
        pending = _pending_of(instruction, operands)
        failures: list[AuditFinding] = []
        for entry, given in self._alike(module, instruction, operands):
            try:
                return self._matched(module, entry, instruction, given, pending)
            except AuditFinding as finding:
                failures.append(finding)
        if not failures:
            raise UnknownError(
                f"no {instruction.opcode} before partitioning has these operands and attributes"
            )
        # One entry that is not understood may be the right one, so it is no refutation.
        unknown = [f for f in failures if isinstance(f, UnknownError)]
        raise (unknown or failures)[0]

    def _alike(
        self, module: HloModule, instruction: HloInstruction, operands: list[Value]
    ) -> Iterator[tuple[Entry, list[Value]]]:
        """Yield the operators that may be an instruction's, each with the operands in its order."""
        for exact in (True, False):
            key = _key(module, instruction, operands, exact=exact)
            for entry in (self.entries if exact else self.alike).get(key, ()):
                yield entry, operands
                if instruction.opcode in COMMUTATIVE and len(operands) == 2:
                    yield entry, operands[::-1]

    def candidates(
        self, module: HloModule, instruction: HloInstruction, operands: list[Value]
    ) -> Iterator[tuple[Entry, dict[int, PerDevice | int]]]:
        """Yield the operators with the same operands, and the indices of their loops on devices.

        Only loops that need no offset are checked to be whole.

        Raises:
          AuditFinding: no operator fits; the reason is the first one's.
        """
        failure: AuditFinding | None = None
        found = False
        for entry, given in self._alike(module, instruction, operands):
            try:
                loops = loops_of(instruction, [x.shape for x in given])
                if loops.operands != entry.loops.operands:
                    raise UnknownError(f"{instruction.opcode} of blocks with other loops")
                places = self.loop_places(entry, loops, instruction, given)
                self.check_known(entry, loops, given, places)
                indexed = {entry.loops.operands[0][dim] for dim in _indexed_dims(instruction)}
                self._check_whole(entry, loops, instruction, places, without=indexed)
            except AuditFinding as finding:
                failure = failure or finding
                continue
            found = True
            yield entry, places
        if not found and failure is not None:
            raise failure

    def _matched(
        self,
        module: HloModule,
        entry: Entry,
        instruction: HloInstruction,
        operands: Sequence[Value],
        pending: Pending | None,
    ) -> tuple[View, ...]:
        loops = loops_of(instruction, [x.shape for x in operands])
        if replace(loops, whole=()) != replace(entry.loops, whole=()):
            raise UnknownError(f"{instruction.opcode} of blocks with other loops")
        places = self.loop_places(entry, loops, instruction, operands)
        self.check_known(entry, loops, operands, places)
        origin = self._windowed(module, entry, instruction, operands, places)
        self._check_whole(entry, loops, instruction, places)
        fresh = self.covered(module, instruction, entry, operands, places)
        if fresh is not None and pending is not None:
            if fresh.combine != pending.combine:
                raise RefutedError(f"{fresh.combine} of a pending {pending.combine}")
            fresh = Pending(fresh.combine, (*pending.covers, *fresh.covers))
        results = self.results(entry, places, fresh or pending)
        alone = [
            (x, theirs)
            for x, theirs in zip(operands, entry.operands, strict=True)
            if not (isinstance(x, View) and isinstance(theirs, View) and shares(theirs, x))
        ]
        return tuple(self._with_fills(view, alone, origin) for view in results)

    def _check_whole(
        self,
        entry: Entry,
        loops: OperatorLoops,
        instruction: HloInstruction,
        places: dict[int, PerDevice | int],
        *,
        without: Collection[int] = (),
    ) -> None:
        """Raise an error unless the loops that need all indices have them, in order.

        Args:
          without: loops that are not checked.
        """
        for loop in set(loops.whole) - set(without):
            size, _ = _extents(entry)[loop]
            place = places[loop]
            ordered = (
                place == size
                if isinstance(place, int)
                else place.is_equal and np.array_equal(place.rows[0], np.arange(size))
            )
            if not ordered:
                raise UnknownError(f"{instruction.opcode} along a dimension that is not whole")

    def _windowed(
        self,
        module: HloModule,
        entry: Entry,
        instruction: HloInstruction,
        operands: Sequence[Value],
        places: dict[int, PerDevice | int],
    ) -> str:
        """Add the indices of the outputs of windows, and the taps that each device has.

        Returns:
          The reason why an output is no output of the operator; "" if all are.

        Raises:
          RefutedError: padding that is not the identity is in a window.
        """
        loops = entry.loops
        if not loops.windows:
            return ""
        windows = _windows_by_loop(instruction, loops), _windows_by_loop(entry.instruction, loops)
        sizes = _extents(entry)
        reason, dtype = "", instruction.leaves[0][0]
        for image, kernel, output in loops.windows:
            given = []
            for loop in (image, kernel):
                place = places.get(loop, windows[0][image].size)
                if isinstance(place, int):
                    if loop >= 0 and place != sizes[loop][0]:
                        raise UnknownError("a block of equal elements in a window")
                    place = self.pool.same(np.arange(place))
                elif (place.rows < 0).any():
                    if instruction.opcode != "select-and-scatter":
                        is_sum = instruction.opcode == "convolution"
                        combine = "add" if is_sum else combination(module, instruction)
                        self.check_fills(combine, dtype, entry, operands, loop)
                    elif loop == kernel:
                        self.check_fills("add", dtype, entry, operands, loop)
                given.append(place)
            length = next(
                leaf[1][dims.index(output)]
                for leaf, dims in zip(instruction.leaves, loops.results, strict=True)
                if output in dims
            )
            if instruction.opcode == "select-and-scatter":
                # The roles are exchanged: windows are of the operand, their values are scattered.
                if combination_of(module, instruction, "scatter") != "add":
                    raise UnknownError("select-and-scatter by another combination than a sum")
                count = given[1].rows.shape[1]
                places[output] = scattered_places(
                    self.pool,
                    *given,
                    WindowSizes(length, count, windows[0][image]),
                    WindowSizes(sizes[image][0], sizes[kernel][0], windows[1][image]),
                )
                if (places[output].rows < 0).any():
                    reason = reason or "lacks elements"
                continue
            found = window_places(
                self.pool,
                *given,
                WindowSizes(given[0].rows.shape[1], length, windows[0][image]),
                WindowSizes(sizes[image][0], sizes[output][0], windows[1][image]),
            )
            places[output] = found.outputs
            if kernel >= 0:
                places[kernel] = found.cover
            elif not found.cover.rows.all():
                raise UnknownError("a part of a window")
            worst = int(found.faults.rows.max(initial=0))
            reason = reason or ("", "joins elements of other windows", "lacks elements")[worst]
        return f"{instruction.opcode} {instruction.name} {reason}" if reason else ""

    def loop_places(
        self,
        entry: Entry,
        loops: OperatorLoops,
        instruction: HloInstruction,
        operands: Sequence[Value],
    ) -> dict[int, PerDevice | int]:
        """Return the indices that each loop runs over on each device.

        A loop along which no operand varies has its number of iterations instead.

        Raises:
          RefutedError: two operands run over different indices.
        """
        found: dict[int, list[tuple[PerDevice, np.ndarray | None]]] = {}
        sizes: dict[int, int] = {}
        for mine, theirs, dims in zip(operands, entry.operands, loops.operands, strict=True):
            for dim, loop in enumerate(dims):
                sizes[loop] = mine.shape[dim]
            if isinstance(mine, View) and isinstance(theirs, View):
                for dim, place in enumerate(find_places(self.pool, theirs, mine)):
                    if place is not None:
                        line = theirs.lines[dim].rows[0]
                        void = line < LOW if (place.rows == -2).any() else None
                        found.setdefault(dims[dim], []).append((place, void))
            elif isinstance(mine, View) or isinstance(theirs, View):
                raise UnknownError("a known number against a computed one")
        for mine, theirs, dims in zip(operands, entry.operands, loops.operands, strict=True):
            if isinstance(mine, Known) and isinstance(theirs, Known):
                for dim, loop in enumerate(dims):
                    if loop not in found and theirs.varies(dim):
                        place = self._known_places(theirs, mine, dim)
                        found[loop] = [(place, None)]
        for leaf, dims in zip(instruction.leaves, loops.results, strict=True):
            for dim, loop in enumerate(dims):
                sizes.setdefault(loop, leaf[1][dim])
        places: dict[int, PerDevice | int] = dict(sizes)
        for loop, parts in found.items():
            places[loop] = self._one_place(loop, parts)
        return places

    def _one_place(
        self, loop: int, parts: Sequence[tuple[PerDevice, np.ndarray | None]]
    ) -> PerDevice:
        """Return the indices of a loop on which all operands agree."""
        plain = all(void is None and place.rows.min(initial=0) >= -1 for place, void in parts)
        if len({place for place, _ in parts}) == 1 and plain:
            return parts[0][0]
        voids = [void for _, void in parts]

        def merge(*rows: np.ndarray) -> np.ndarray:
            best = np.maximum.reduce(rows)
            missing = np.zeros(best.shape, bool)
            for row, void in zip(rows, voids, strict=True):
                wrong = (row != best) & (row >= 0)
                if wrong.any():
                    at, place = map(int, np.argwhere(wrong)[0])
                    why = f"the operands are at different places along loop {loop}"
                    raise ClassError(RefutedError, why, at, (place,))
                missing |= row == -1
                if void is not None:
                    # The fill of the device must be one before partitioning at the same index.
                    first = int(np.argmax(void))
                    best = np.where((row == -2) & (best < 0) & ~missing, first, best)
                    missing |= (row == -2) & ~void[np.maximum(best, 0)]
            return np.where(missing | (best < 0), -1, best)

        key = ("merge", loop, *(None if v is None else v.tobytes() for v in voids))
        return self.pool.applied(key, merge, *(place for place, _ in parts))

    def _known_places(self, theirs: Known, mine: Known, dim: int) -> PerDevice:
        """Return the indices of known numbers along a dimension, found by their values."""
        only = [d for d in range(len(theirs.shape)) if theirs.varies(d)] == [dim]
        line = theirs.cells.rows.reshape(-1)
        if only and len(np.unique(line)) == len(line) and mine.varies(dim):

            def search(line: np.ndarray, cells: np.ndarray) -> np.ndarray:
                flat = cells.reshape(len(cells), -1)
                line = line.reshape(-1)
                order = np.argsort(line, kind="stable")
                at = order[np.minimum(np.searchsorted(line[order], flat), len(line) - 1)]
                return np.where(line[at] == flat, at, 0)

            if mine.cells.rows[0].size == mine.shape[dim]:
                return self.pool.applied("search", search, theirs.cells, mine.cells)
        if mine.shape[dim] != theirs.shape[dim]:
            raise UnknownError("a block of known numbers whose place is not known")
        return self.pool.same(np.arange(mine.shape[dim]))

    def check_known(
        self,
        entry: Entry,
        loops: OperatorLoops,
        operands: Sequence[Value],
        places: dict[int, PerDevice | int],
    ) -> None:
        """Raise an error unless known operands are the entry's at the same indices.

        Raises:
          RefutedError: a mask or another known number differs.
        """
        for mine, theirs, dims in zip(operands, entry.operands, loops.operands, strict=True):
            if not (isinstance(mine, Known) and isinstance(theirs, Known)):
                continue
            vary = [d for d in range(len(dims)) if theirs.varies(d)]
            at = [places[dims[d]] for d in vary]

            def compare(
                mine_cells: np.ndarray, cells: np.ndarray, *rows: np.ndarray, vary: list[int] = vary
            ) -> np.ndarray:
                rank = cells.ndim - 1
                exists = np.ones((1,) * (1 + rank), bool)
                for d, row in zip(vary, rows, strict=True):
                    row = row.reshape(len(row), *(-1 if k == d else 1 for k in range(rank)))
                    exists = exists & (row >= 0)
                    cells = np.take_along_axis(cells, np.maximum(row, 0), 1 + d)
                wrong = numbers_differ(cells, mine_cells) & exists
                if wrong.any():
                    at_class, *place = map(int, np.argwhere(wrong)[0])
                    why = "a mask or another known number differs from the operator's"
                    raise ClassError(RefutedError, why, at_class, tuple(place))
                return np.zeros(len(wrong), bool)

            parts = [p for p in at if isinstance(p, PerDevice)]
            if len(parts) < len(at):
                raise UnknownError("known numbers at places that are not known")
            self.pool.applied(("known", *vary), compare, mine.cells, theirs.cells, *parts)

    def covered(
        self,
        module: HloModule,
        instruction: HloInstruction,
        entry: Entry,
        operands: Sequence[Value],
        places: dict[int, PerDevice | int],
    ) -> Pending | None:
        """Return the reduction that is pending after the reduced loops, or None if it is complete.

        Raises:
          RefutedError: padding that is not the identity enters the reduction, or an element enters
            it twice.
        """
        loops = entry.loops
        is_product = entry.instruction.opcode == "convolution"
        kernels = [kernel for _, kernel, _ in loops.windows if is_product]
        if not loops.reduced and not kernels:
            return None
        opcode = entry.instruction.opcode
        combine = combination(module, instruction) if opcode in ("reduce", "scatter") else "add"
        covers = []
        for loop in loops.reduced:
            place, (size, varies) = places[loop], _extents(entry)[loop]
            if isinstance(place, int) or not varies:
                lengths = place if isinstance(place, int) else (place.rows >= 0).sum(1)
                if np.any(lengths != size):
                    raise UnknownError("a partial sum of equal elements")
                covers.append(self.pool.same(np.ones(size, bool)))
                continue
            if (place.rows < 0).any():
                self.check_fills(combine, instruction.leaves[0][0], entry, operands, loop)
            covers.append(
                self.pool.applied(("count", size, combine), _counted(size, combine), place)
            )
        for loop in kernels:
            place = places[loop]
            assert isinstance(place, PerDevice)
            covers.append(place)
        if all(cover.rows.all() for cover in covers):
            return None
        if opcode == "reduce":
            start = operands[1]
            number = start.number if isinstance(start, Known) else None
            if combine not in ("add", "maximum", "minimum", "and", "or"):
                raise UnknownError(f"a partial reduction by {combine or 'a program'}")
            if not is_identity(combine, instruction.leaves[0][0], number):
                raise RefutedError("a partial reduction begins with a number that is added again")
        if opcode == "scatter":
            start = operands[0]
            if combine != "add":
                raise UnknownError(f"a partial scatter by {combine or 'a program'}")
            if not isinstance(start, Known) or start.number != 0:
                raise UnknownError("a partial scatter into values that may be added again")
        return Pending(combine, tuple(covers))

    def results(
        self, entry: Entry, places: dict[int, PerDevice | int], pending: Pending | None
    ) -> tuple[View, ...]:
        """Return the views of an entry's results at indices per loop."""
        found = []
        for number, dims in enumerate(entry.loops.results):
            base = entry.base + number
            shape = self.bases[base].shape
            at = []
            for loop in dims:
                place = places[loop]
                if not isinstance(place, int):
                    at.append(place)
                elif loop in entry.loops.whole:
                    at.append(self.pool.same(np.arange(place)))
                else:
                    at.append(self.pool.same(np.zeros(place, np.int64)))
            like = View(base, self.pool.same(0), (), None, pending)
            found.append(placed(self.pool, like, at, shape))
        return tuple(found)

    def _with_fills(self, made: View, pairs: Sequence[tuple[Value, Value]], origin: str) -> View:
        """Return a result that marks devices on which an operand has no element.

        Args:
          pairs: operands of the device and of the operator, without those whose fill both have.
        """
        shift, fill = made.shift, ANYTHING
        origins = [origin]
        for mine, theirs in pairs:
            if not isinstance(mine, View) or not isinstance(theirs, View):
                continue
            origins.append(mine.origin)
            if (mine.shift.rows < LOW).any():
                hide = lambda s, t: np.where(t < LOW, VOID, s)  # noqa: E731
                shift = self.pool.applied("hide dead", hide, shift, mine.shift)
            if mine.fill == MIXED or (mine.is_partly_void and theirs.is_partly_void):
                fill = MIXED
        made = replace(made, shift=shift)
        if not made.is_partly_void:
            return made
        return replace(made, fill=fill, origin=next(filter(None, origins), ""))

    def check_fills(
        self, combine: str, dtype: str, entry: Entry, operands: Sequence[Value], loop: int
    ) -> None:
        """Raise an error unless padding that enters a reduction is its identity.

        Raises:
          RefutedError: it is another number. UnknownError: its content is not known.
        """
        pairs = zip(operands, entry.operands, entry.loops.operands, strict=True)
        fills, places = [], []
        for mine, theirs, dims in pairs:
            if isinstance(mine, View) and isinstance(theirs, View) and loop in dims:
                place = find_places(self.pool, theirs, mine)[dims.index(loop)]
                if place is not None and (place.rows < 0).any():
                    fills.append(mine)
                    places.append(place)
        good = [is_identity(combine, dtype, x.fill) for x in fills]

        def wrong(*rows: np.ndarray) -> np.ndarray:
            # In a product, one factor that is 0 is enough if the other one is a number.
            hidden = np.zeros(np.broadcast_shapes(*(r.shape for r in rows)), bool)
            for row, is_good in zip(rows, good, strict=True):
                hidden = hidden | ((row < 0) if is_good else False)
            bad = np.zeros(hidden.shape, bool)
            for row, is_good, x in zip(rows, good, fills, strict=True):
                if not is_good:
                    number = isinstance(x.fill, float)
                    bad = bad | ((row < 0) & ~(hidden if number else False))
            return bad.any(1)

        if all(good):
            return
        found = self.pool.applied(("wrong fill", *good, *(x.fill for x in fills)), wrong, *places)
        if found.rows.any():
            device = found.device(int(np.argmax(found.rows)))
            worst = next(x for x, is_good in zip(fills, good, strict=True) if not is_good)
            at = f" ({worst.origin})" if worst.origin else ""
            if worst.origin or isinstance(worst.fill, float):
                why = f"padding that is not the identity of {combine} enters a reduction{at}"
                raise RefutedError(why, device)
            raise UnknownError("padding that may not be 0 enters a reduction", device)


def is_identity(combine: str, dtype: str, number: object) -> bool:
    """Return whether a number is the identity of a reduction of an item type.

    The lowest number of the type is one of a maximum, and minus infinity is one, too.

    >>> is_identity("add", "f32", 0.0), is_identity("maximum", "s8", -128.0)
    (True, True)
    """
    if not isinstance(number, int | float):
        return False
    if combine in ("add", "or", "and"):
        return number == (1 if combine == "and" else 0)
    if combine not in ("maximum", "minimum"):
        return False
    low = number if combine == "maximum" else -number
    if dtype in INTEGERS:
        bits = INTEGERS[dtype]
        if bits < 0:
            return number == (0 if combine == "maximum" else (1 << -bits) - 1)
        half = 1 << (bits - 1)
        return number == (-half if combine == "maximum" else half - 1)
    return low == -np.inf or low <= -_LARGEST.get(dtype, np.inf)


def _counted(size: int, combine: str) -> Callable[[np.ndarray], np.ndarray]:
    def count(place: np.ndarray) -> np.ndarray:
        found = np.zeros((len(place), size), np.int64)
        for row, line in enumerate(place):
            found[row] = np.bincount(line[line >= 0], minlength=size)
        if combine == "add" and (found > 1).any():
            row, at = map(int, np.argwhere(found > 1)[0])
            raise ClassError(RefutedError, "an element enters the sum twice", row, (at,))
        return found > 0

    return count


def _windows_by_loop(instruction: HloInstruction, loops: OperatorLoops) -> dict[int, WindowDim]:
    """Return the window of each image loop."""
    found = window_of(instruction)
    if instruction.opcode == "convolution":
        return {loop: w for (loop, _, _), w in zip(loops.windows, found, strict=True)}
    return {loop: found[loop] for loop, _, _ in loops.windows}


def _indexed_dims(instruction: HloInstruction) -> list[int]:
    """Return the dimensions of the first operand that run-time indices choose from."""
    name = "start_index_map" if instruction.opcode == "gather" else "scatter_dims_to_operand_dims"
    return integers(instruction.attributes.get(name))


def identical(first: Value, second: Value) -> bool:
    """Return whether two values are the same elements or numbers at the same places."""
    if isinstance(first, Known) or isinstance(second, Known):
        return first == second
    return first.same_places(second)


def _extents(entry: Entry) -> dict[int, tuple[int, bool]]:
    """Return the size of each loop of an entry, and whether its elements vary along it."""
    found: dict[int, tuple[int, bool]] = {}
    for x, dims in zip(entry.operands, entry.loops.operands, strict=True):
        for dim, loop in enumerate(dims):
            size, varies = found.get(loop, (x.shape[dim], False))
            found[loop] = (size, varies or x.varies(dim))
    for leaf, dims in zip(entry.instruction.leaves, entry.loops.results, strict=True):
        for dim, loop in enumerate(dims):
            is_window = any(loop == output for _, _, output in entry.loops.windows)
            found.setdefault(loop, (leaf[1][dim], is_window))
    return found


def _ordered(instruction: HloInstruction, operands: Sequence[Value]) -> list[Value]:
    """Return the operands in an order that does not depend on how an operator is written."""
    if instruction.opcode not in COMMUTATIVE:
        return list(operands)
    return sorted(operands, key=lambda x: x.base if isinstance(x, View) else -1)


def _key(
    module: HloModule, instruction: HloInstruction, operands: Iterable[Value], *, exact: bool
) -> Hashable:
    """Return the key of an operator: opcode, attributes and bases.

    Args:
      exact: whether the number of a known operand is a part of the key.
    """
    marks: list[Hashable] = []
    for x in operands:
        if isinstance(x, View):
            marks.append(x.base)
        else:
            marks.append(("known", repr(x.number) if exact else ""))
    types = tuple(dtype for dtype, _ in instruction.leaves)
    if instruction.opcode in ("dynamic-slice", "dynamic-update-slice"):
        marks = _without_full_starts(instruction, list(operands), marks)
    return instruction.opcode, types, signature(module, instruction), tuple(marks)


def _without_full_starts(
    instruction: HloInstruction, operands: Sequence[Value], marks: list[Hashable]
) -> list[Hashable]:
    """Return the marks without the starts of dimensions that are taken whole."""
    moved = operands[0].shape
    part = instruction.leaves[0][1] if instruction.opcode == "dynamic-slice" else operands[1].shape
    first = len(operands) - len(moved)
    return [
        "whole" if k >= first and moved[k - first] == part[k - first] else mark
        for k, mark in enumerate(marks)
    ]


def _pending_of(instruction: HloInstruction, operands: Sequence[Value]) -> Pending | None:
    """Return the pending reduction that an operator keeps, or None if no operand is pending.

    Raises:
      RefutedError: the operator needs values that are complete.
    """
    waiting = [x for x in operands if isinstance(x, View) and x.pending is not None]
    if not waiting:
        return None
    pending, opcode = waiting[0].pending, instruction.opcode
    assert pending is not None
    if opcode == "convert":
        raise RefutedError("a pending sum is converted before it is complete")
    if opcode == "reduce" and len(waiting) == 1:
        return pending
    if opcode not in _LINEAR:
        raise RefutedError("reads a pending reduction that no all-reduce has completed")
    if len(waiting) < len(operands):
        raise RefutedError("joins a pending reduction with a complete value")
    if any(x.pending != pending for x in waiting) or pending.combine != "add":
        raise UnknownError("a sum of reductions that are pending differently")
    return pending
