"""Check whether planning gives the same result at other sizes, function call by function call.

Planning on recorded sizes stores facts (`sizes.recorded`), but more than its result needs. For
example, a search for the cheapest path also compares candidates that it then drops. Therefore each
call of a function with the decorator `decided` stores its own facts. If one of them is false at
other sizes, the function is called again with the numbers there. The plan is still valid if the
call returns the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from fractions import Fraction
from functools import cache, lru_cache, wraps
from operator import is_
from typing import Any, TypeVar

import numpy as np

from shardalg.algebra.mesh import Mesh
from shardalg.sizes.checked import Checked
from shardalg.sizes.exact import ExactPoints
from shardalg.sizes.facts import ZERO, Fact, Facts
from shardalg.sizes.formula import Formula, Number, symbol
from shardalg.sizes.recorded import Answers, Recorded, Recorder, formula_of, recorder_of

Result = TypeVar("Result")


@dataclass(eq=False)
class DecidedCall:
    """Record of one call of a `decided` function, or of the whole run of planning.

    Attributes:
      function, args, result: the function, its arguments and its result, in recorded sizes. For the
        whole run they are None, () and None.
      facts: the facts on which the result depends; each value is the decision that needed the fact
        (`Recorder.about`).
      uses: the inner calls whose results the call read; each value is the decision that needed it.
    """

    function: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    result: Any = None
    facts: Mapping[Fact, Any] = field(default_factory=dict)
    uses: dict[DecidedCall, Any] = field(default_factory=dict)


class Calls:
    """Records of all calls of `decided` functions in one run of planning.

    Each distinct call is recorded once, after the calls inside it.

    Attributes:
      keys: the recorder of the sizes in stored arguments and results.
      found: the record for each (function, arguments).
    """

    def __init__(self, hints: Mapping[str, int]) -> None:
        self.keys = Recorder(Answers(hints))
        self.found: dict[tuple[Any, ...], DecidedCall] = {}


@dataclass(frozen=True, eq=False)
class _Host:
    """The calls of decided functions inside which a recorder works.

    Attributes:
      call: the present call; the recorder stores its facts there.
      calls: the records of all calls in one run of planning.
    """

    call: DecidedCall
    calls: Calls


def recorder(hints: Mapping[str, int]) -> Recorder:
    """Return a new recorder for a run of planning at the hints, a number for each named size."""
    calls = Calls(hints)
    return Recorder(calls.keys.answers, host=_Host(DecidedCall(), calls))


def decided(
    maxsize: int, numbers: Callable[..., Iterable[Any]]
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Decorate a pure function whose result depends on comparisons of sizes.

    The decorator caches results like `lru_cache`. If the arguments have recorded sizes, it also
    records the call with its own facts (`DecidedCall`).

    Args:
      maxsize: number of cached results.
      numbers: function of the same arguments that returns some sizes in them. If an argument has
        recorded sizes, at least one must be among the returned sizes.
    """

    def decorator(function: Callable[..., Result]) -> Callable[..., Result]:
        """Return the function with a cache and a record of its calls."""

        @lru_cache(maxsize=maxsize)
        @wraps(function)
        def cached(*args: Any) -> Result:
            """Call the function, and record the call if a size is recorded."""
            active_recorder = recorder_of(numbers(*args))
            return (
                function(*args)
                if active_recorder is None
                else _record_call(active_recorder, (cached, function), args)
            )

        return cached

    return decorator


def _record_call(
    asks: Recorder, functions: tuple[Callable[..., Any], ...], args: tuple[Any, ...]
) -> Any:
    """Return the result of a call of a `decided` function, and record the call if it is new.

    Args:
      asks: the recorder of the sizes in `args` and in the result.
      functions: the function with its cache, which identifies the call, and the plain function.
    """
    calls, (function, plain) = asks.host.calls, functions
    args = rerecord(args, calls.keys)
    call = calls.found.get((function, args))
    if call is None:
        # A new recorder has an empty cache, so that every question of this call is noted.
        call = DecidedCall(function, args)
        inside = Recorder(asks.answers, host=_Host(call, calls))
        call.result = rerecord(plain(*rerecord(args, inside)), calls.keys)
        call.facts = dict(inside.facts)
        calls.found[function, args] = call
    # The caller depends on this result, for the decision that it is making now.
    asks.host.call.uses.setdefault(call, asks.about)
    return rerecord(call.result, asks)


def asked_again(
    whole: Recorder, work: Callable[[Recorder], None], found: Formula, there: Callable[..., Any]
) -> DecidedCall:
    """Return the record of a computation whose result is a formula, for use at other sizes.

    An example is the peak memory, which is computed after a run of planning. The record contains
    the facts about sizes that the computation asked for. At other sizes the record is valid if the
    computation on numbers returns the value that the formula has there.

    Args:
      whole: the recorder of the run of planning.
      work: a function that does the computation with recorded sizes, given a recorder.
      found: the formula of the result.
      there: a function that does the computation with numbers, given a number per named size.
    """
    host: _Host = whole.host
    names = tuple(whole.answers.hints)
    keys = host.calls.keys
    call = DecidedCall(
        lambda *sizes: there(dict(zip(names, sizes, strict=True))),
        tuple(keys.size(symbol(name)) for name in names),
        keys.size(found),
    )
    own_recorder = Recorder(whole.answers, host=_Host(call, host.calls))
    work(own_recorder)
    call.facts = dict(own_recorder.facts)
    return call


def rerecord(value: Any, target: Recorder) -> Any:
    """Return a copy of a nested value in which recorded sizes belong to the recorder `target`."""
    return Replaced(Recorded, lambda size: target.size(size.formula))(value)


class Replaced:
    """Function that copies a nested value of tuples and dataclasses and replaces numbers in it.

    Args:
      kind: the type of the numbers that are replaced, such as `Recorded`.
      number: function from such a number to its replacement.
    """

    def __init__(self, kind: type, number: Callable[[Any], Any]) -> None:
        self.kind, self.number = kind, number
        self.meshes: dict[Mesh, Mesh] = {}

    def __call__(self, value: Any) -> Any:
        """Return a copy of a nested value with its numbers replaced, or itself if it has none.

        Tuples, meshes and dataclasses are searched; all other values are returned as they are.
        """
        kind = type(value)
        if kind is self.kind:
            return self.number(value)
        if isinstance(value, tuple):
            return self.sequence(value)
        if kind is Mesh:
            return self.mesh(value)
        return self.record(value) if is_dataclass(kind) else value

    def sequence(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the tuple with the numbers in its items replaced; `values` if none changes."""
        new_values = [self(value) for value in values]
        if all(map(is_, new_values, values)):
            return values
        # A named tuple takes its items as separate arguments.
        return tuple(new_values) if type(values) is tuple else type(values)(*new_values)

    def mesh(self, mesh: Mesh) -> Mesh:
        """Return the mesh with axis sizes replaced by `number`; equal meshes give the same one."""
        if mesh not in self.meshes:
            sizes = {name: self(size) for name, size in mesh.axes}
            same = all(sizes[name] is size for name, size in mesh.axes)
            self.meshes[mesh] = mesh if same else mesh.resized(sizes)
        return self.meshes[mesh]

    def record(self, value: Any) -> Any:
        """Return a dataclass with its numbers replaced, or `value` itself if nothing changes."""
        names = _field_names(type(value))  # type: ignore[arg-type]
        parts = [getattr(value, name) for name in names]
        new_parts = [self(part) for part in parts]
        # Without a change, the same object is returned, so that equal values stay shared.
        if all(map(is_, new_parts, parts)):
            return value
        return type(value)(**dict(zip(names, new_parts, strict=True)))


class Guards:
    """Check whether a recorded run of planning has the same result at other sizes.

    Attributes:
      traced: facts about the traced program. If one is false, only a new trace can show whether the
        function is the same program there.
      beside: computations after the run (`asked_again`), which must have the same result too.
      calls: the records of all calls, inner ones first; the last is the run itself.
      asked: for each fact, the calls that depend on it.
      facts: all facts, for a fast check at one point.
    """

    def __init__(
        self,
        whole: Recorder,
        more: Iterable[Fact] = (),
        traced: Iterable[Fact] = (),
        beside: Iterable[DecidedCall] = (),
    ) -> None:
        """Collect the records of a run of planning and of the memoised calls inside of it.

        Args:
          whole: the recorder of the run.
          more: additional facts that the result of the run depends on.
          traced: facts about the traced program.
          beside: computations after the run, which must have the same result too.
        """
        host: _Host = whole.host
        host.call.facts = {**dict.fromkeys(more), **whole.facts}
        self.traced = tuple(traced)
        self.beside = tuple(beside)
        # A call is recorded after the calls inside it, so inner calls come first. The run is last.
        self.calls = (*host.calls.found.values(), *self.beside, host.call)
        self.asked: dict[Fact, list[DecidedCall]] = {}
        for call in self.calls:
            for fact in call.facts:
                self.asked.setdefault(fact, []).append(call)
        self.facts = Facts(self.asked)

    @property
    def whole(self) -> DecidedCall:
        """The record of the whole run of planning; the other records are of calls inside it."""
        return self.calls[-1]

    def hold(self, values: Mapping[str, int]) -> bool:
        """Return whether planning would decide the same at given sizes as in the recorded run.

        If facts about the trace (`traced`) are false, the result is False, although a new trace
        might give the same program.

        Args:
          values: a number for each named size.
        """
        if not all(fact.holds(values) for fact in self.traced):
            return False
        failing = self.facts.failing(values)
        if not failing:
            return True
        # A failing fact of the run itself is decisive. One of a call may still give its old result.
        doubtful = {call for fact in failing for call in self.asked[fact]}
        return self.whole not in doubtful and not self._other(values, doubtful)

    def _other(self, values: Mapping[str, int], doubtful: set[DecidedCall]) -> bool:
        """Return whether a call that planning reads has another result at given sizes.

        Planning calls functions whose comparisons of sizes were recorded. Calls in which a
        comparison changed are repeated with the given numbers, and then calls that read a changed
        result. Computations after planning (`beside`) must have the same result, too.

        Args:
          doubtful: the calls of which some comparison (fact) is false at these sizes.
        """
        there = _PointCalls(values)
        changed: set[DecidedCall] = set()
        # Inner calls come first, so that a call whose inner results changed is called again. The
        # last call is the whole run of planning, which is not repeated.
        for call in self.calls[:-1]:
            if (call in doubtful or not changed.isdisjoint(call.uses)) and not there.same(call):
                changed.add(call)
        return not changed.isdisjoint({*self.whole.uses, *self.beside})

    def holding(
        self,
        points: Sequence[Mapping[str, int]],
        *,
        attempts: int | None = None,
        with_memory: bool = True,
    ) -> np.ndarray:
        """Return, per point, whether the recorded run of planning has the same result there.

        This is `hold` at each point, computed for all points together. The facts of the run itself
        must be true at a point. A memoised call inside of the run may have false facts, and is then
        compared again at these points: its result may be the same for other reasons.

        Args:
          points: a number for each named size, per point.
          attempts: how often each call is made again at most. Points that still have no answer are
            False. None makes it as often as needed. Computations after the run have no limit.
          with_memory: whether computations after the run, such as that of the memory peak, must
            have the same result too.
        """
        exact = ExactPoints(points)
        arrays = {name: exact.of(symbol(name)) for name in points[0]}
        holds = {fact: Checked([fact], {}).hold(arrays) for fact in (*self.asked, *self.traced)}
        holding_points = np.ones(len(points), bool)
        # `whole` is the record of the run, and `traced` has facts about the traced program. These
        # facts are decisive at every point.
        for fact in (*self.whole.facts, *self.traced):
            holding_points &= holds[fact]
        # A call is doubtful where one of its facts fails, or where an inner call has another
        # result. Inner calls come first, so that their masks are complete.
        changed: dict[DecidedCall, np.ndarray] = {}
        beside = self.beside if with_memory else ()
        for call in self.calls[:-1]:
            if call in self.beside and not with_memory:
                continue
            doubtful = np.zeros(len(points), bool)
            for places in (*(~holds[f] for f in call.facts), *(changed[c] for c in call.uses)):
                doubtful |= places
            doubtful &= holding_points
            same, unknown = self._same(call, exact, doubtful, attempts)
            changed[call] = doubtful & ~same
            holding_points &= ~unknown
        for call in (*self.whole.uses, *beside):
            holding_points &= ~changed[call]
        return holding_points

    def alternatives(
        self, points: Sequence[Mapping[str, int]], attempts: int = 3
    ) -> dict[DecidedCall, list[list[Fact]]]:
        """Return, per call, other lists of facts under which it has its recorded result.

        Where all facts of a list are true, the result is the recorded one, although a fact of the
        call itself is false. Calls without such a list are left out.

        Args:
          points: points at which calls are recorded again, a number for each named size.
          attempts: how often each call is recorded again at most.
        """
        exact = ExactPoints(points)
        arrays = {name: exact.of(symbol(name)) for name in points[0]}
        # Elsewhere planning differs in any case.
        possible = Checked([*self.whole.facts, *self.traced], {}).hold(arrays)
        found: dict[DecidedCall, list[list[Fact]]] = {}
        for call in self.calls[:-1]:
            if call in self.beside:
                continue
            waiting = possible & ~Checked(call.facts, {}).hold(arrays)
            for _ in range(attempts):
                if not waiting.any():
                    break
                again = _record_again(call, exact.points[int(np.argmax(waiting))])
                if again is None:
                    break
                result, facts = again
                waiting &= ~Checked(facts, {}).hold(arrays, waiting)
                pairs: list[tuple[Any, Any]] = []
                if _same_except_sizes(call.result, result, pairs):
                    gaps = (formula_of(one) - formula_of(other) for one, other in pairs)
                    equal = [Fact(gap, ZERO) for gap in dict.fromkeys(gaps) if gap]
                    found.setdefault(call, []).append([*facts, *equal])
        return found

    def _same(
        self, call: DecidedCall, exact: ExactPoints, places: np.ndarray, attempts: int | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return two masks: where a call has its recorded result, and where that is not known.

        A call is a memoised decision of the planner. It is recorded again at the first point that
        waits. That record, result and facts, is valid at all points at which its facts are true, so
        these points are decided together. The remaining points are treated in the same way.

        Args:
          exact: the points.
          places: the points that are checked, as a mask; both results are False at all others.
          attempts: as in `holding`.
        """
        same, waiting = np.zeros(len(places), bool), places.copy()
        if attempts is None or call in self.beside:
            attempts = len(places)
        num_narrow = 0
        for _ in range(attempts):
            if not waiting.any():
                break
            first = int(np.argmax(waiting))
            point = exact.points[first]
            # A computation after the run (`beside`), or a call that cannot be recorded again, is
            # repeated with the numbers of this point, and decides this point alone.
            is_plain = call in self.beside or num_narrow >= NARROW
            record = None if is_plain else _record_again(call, point)
            if record is None:
                same[first], waiting[first] = _PointCalls(point).same(call), False
                continue
            result, facts = record
            # Points at which all facts of the new record hold have the same result as this one.
            arrays = {name: exact.of(symbol(name)) for name in point}
            holds_here = Checked(facts, {}).hold(arrays, waiting)
            assert holds_here[first], "the facts of a record hold at its own point"
            # A new record takes longer than a call on numbers, and pays only if it is valid at
            # several points. Count the records in a row that are valid at one point only. After
            # `NARROW` of them, the function is called on plain numbers at all further points.
            num_narrow = 0 if holds_here.sum() > 1 else num_narrow + 1
            waiting &= ~holds_here
            pairs: list[tuple[Any, Any]] = []
            if _same_except_sizes(call.result, result, pairs):
                for recorded, size in pairs:
                    holds_here &= exact.of(recorded) == exact.of(size)
                same |= holds_here
        return same, waiting

    @property
    def decisive(self) -> list[Fact]:
        """The facts on which the planned program depends.

        A fact is a comparison of sizes. Facts that only computations after planning asked for, such
        as the memory peak (`beside`), are left out.
        """
        apart = {*self.beside, *(used for call in self.beside for used in call.uses)}
        return [fact for fact, calls in self.asked.items() if not apart.issuperset(calls)]


NARROW = 4
"""Records of one call in a row that are valid at one point only, before it is called on numbers."""


class _PointCalls:
    """Repetition of calls of planning at other sizes, to see whether their results are the same.

    Args:
      values: the sizes: a number for each named size.
    """

    def __init__(self, values: Mapping[str, int]) -> None:
        self.values = values
        self.known: dict[Formula, Number] = {}
        self.replaced = Replaced(Recorded, self.number)

    def number(self, size: Recorded) -> Number:
        """Return the number that a recorded size has at the sizes in `values`."""
        found = self.known.get(size.formula)
        if found is None:
            found = self.known[size.formula] = size.formula.at(self.values)
        return found

    def same(self, call: DecidedCall) -> bool:
        """Return whether a recorded call has the same result with the numbers of the point.

        The recorded function is called to compare.
        """
        assert call.function is not None  # the whole run alone has none
        return self.agree(call.result, call.function(*self.replaced(call.args)))

    def agree(self, recorded: Any, found: Any) -> bool:
        """Return whether a result at the point equals a recorded result with the point's numbers.

        Args:
          recorded: the result of a call on recorded sizes.
          found: the result of the same call on the numbers that the sizes have at the point.
        """
        pairs: list[tuple[Any, Any]] = []
        alike = _same_except_sizes(recorded, found, pairs)
        return alike and all(self.number(size) == number for size, number in pairs)


def _record_again(call: DecidedCall, point: Mapping[str, int]) -> tuple[Any, list[Fact]] | None:
    """Call a function again on recorded sizes whose hints are a point; return result and facts.

    The result is None if the function raises an error on recorded sizes, for example by a division
    that is no formula.
    """
    assert call.function is not None  # the whole run alone has none
    asks = recorder(point)
    try:
        result = call.function(*rerecord(call.args, asks))
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None
    inside = asks.host.calls.found.values()
    return result, [*asks.facts, *(fact for one in inside for fact in one.facts)]


def _same_except_sizes(recorded: Any, found: Any, pairs: list[tuple[Any, Any]]) -> bool:
    """Return whether two nested values are equal except for sizes.

    The pairs of corresponding sizes are appended to `pairs`; the caller compares them.
    """
    kind = type(recorded)
    if kind is Recorded or type(found) is Recorded:
        # Sizes may be numbers on one side and formulas on the other: the caller compares their
        # values.
        pairs.append((recorded, found))
        return isinstance(recorded, _SIZES) and isinstance(found, _SIZES)
    if kind is not type(found):
        return False
    if isinstance(recorded, tuple) or (is_dataclass(kind) and kind is not Mesh):
        if isinstance(recorded, tuple) and len(recorded) != len(found):
            return False
        return all(
            # If both are the same object, no sizes have to be compared. This is the common case,
            # because most parts contain no sizes.
            a is b or _same_except_sizes(a, b, pairs)
            for a, b in zip(_parts(recorded), _parts(found), strict=False)
        )
    # The call at the point got the recorded mesh with other axis sizes, so meshes differ in sizes
    # only.
    return bool(kind is Mesh or recorded is found or recorded == found)


_SIZES = (Recorded, int, Fraction)


def _parts(value: Any) -> Sequence[Any]:
    """Return the items of a tuple, or the values of a dataclass's fields."""
    if isinstance(value, tuple):
        return value
    names = _field_names(type(value))  # type: ignore[arg-type]
    return [getattr(value, name) for name in names]


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    """Return the fields of a dataclass that its constructor takes."""
    return tuple(field.name for field in fields(kind) if field.init)
