"""Check that every field of a program has its declared type: nothing is coerced or guessed.

The declarations are read from the classes, so that a new kind of instruction needs no entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache, reduce
from operator import or_
from types import GenericAlias, NoneType, UnionType
from typing import Any, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

from shardalg.algebra.digits import Digit, Digits
from shardalg.algebra.halos.classes import Runs
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.spmd.instruction import Block, Purpose, Why
from shardalg.spmd.instructions import kinds
from shardalg.spmd.local import Start
from shardalg.spmd.program import SpmdProgram

Test = Callable[[Any], bool]
Parameters = NewType("Parameters", tuple)
_PLAIN = (int, float, bool, str, NoneType)


@cache
def declared_fields(cls: type) -> tuple[tuple[str, Any], ...]:
    """Return the fields that a class takes in its constructor, with their types.

    >>> from shardalg.spmd.instructions import Slice
    >>> declared_fields(Slice)
    (('dim', <class 'int'>), ('start', <class 'int'>), ('size', <class 'int'>))
    """
    # `Params` is recursive plain data, so it gets a test of its own instead of a resolved type.
    hints = get_type_hints(cls, localns={"Params": Parameters})
    # The only type variable is the type of an instruction's attributes: any kind is valid.
    hints = {n: reduce(or_, kinds()) if isinstance(h, TypeVar) else h for n, h in hints.items()}
    return tuple((f.name, hints[f.name]) for f in fields(cls) if f.init)


class FieldTests:
    """Tests of values against declared types, on one mesh.

    A tensor may be sharded on another mesh over the same devices. So digits need not be axes of
    this mesh, but no position may be counted twice.

    >>> fitting = FieldTests(Mesh({"X": 2, "Y": 4}))
    >>> [fitting.fits(value, int | None) for value in (3, None, 3.0, True)]
    [True, True, False, False]
    >>> fitting.fits((Digit(4, 2), Digit(1, 4)), Digits), fitting.fits((Digit(3, 2),), Digits)
    (True, False)
    """

    def __init__(self, mesh: Mesh) -> None:
        """Create the tests of plain types (`int`), and of types whose values have conditions.

        The latter are meshes, digits, parameters and reasons. `fits` makes the tests of unions,
        tuples and dataclasses when they are first needed.

        Args:
          mesh: the mesh to which meshes and digits must belong.
        """
        self.mesh = mesh
        self._tests: dict[Any, Test] = {
            int: lambda value: type(value) is int,
            str: lambda value: type(value) is str,
            bool: lambda value: type(value) is bool,
            float: lambda value: type(value) in (float, int, bool),
            complex: lambda value: type(value) in (complex, float, int, bool),
            NoneType: lambda value: value is None,
            Mesh: lambda value: type(value) is Mesh and (value == mesh or value.is_turned(mesh)),
            Parameters: lambda value: (
                type(value) is tuple
                and all(
                    type(pair) is tuple
                    and len(pair) == 2
                    and type(pair[0]) is str
                    and _is_plain(pair[1])
                    for pair in value
                )
            ),
            Digits: self._is_digits,
            Why: _is_why,
        }
        # Many locals share digits, so each tuple of digits is tested once.
        self._digits: dict[Digits, bool] = {}

    def fits(self, value: object, hint: Any) -> bool:
        """Return whether a value has a declared type, including everything inside it."""
        # Tests are made once per type, because a program has hundreds of thousands of fields.
        if hint not in self._tests:
            self._tests[hint] = self._make_test(hint)
        return self._tests[hint](value)

    def _make_test(self, hint: Any) -> Test:
        """Return the test of values against a declared type that has no test yet.

        A declared type is a union, a tuple, or a dataclass whose fields are tested.
        """
        generic_type, args = get_origin(hint), get_args(hint)
        if generic_type in (Union, UnionType):
            return self._union_test(args)
        # `tuple[int, ...]` has any number of items of one type.
        if generic_type is tuple and args[-1:] == (Ellipsis,):
            return lambda value: type(value) is tuple and all(self.fits(v, args[0]) for v in value)
        # `tuple[int, str]` has one item of each type.
        if generic_type is tuple:
            return lambda value: (
                type(value) is tuple
                and len(value) == len(args)
                and all(map(self.fits, value, args))
            )
        assert isinstance(hint, type) and is_dataclass(hint), (
            f"no test for fields of the type {hint}"
        )
        fields_test = self._fields_test(hint)
        # Two classes have conditions that their types do not express.
        devices = self.mesh.size
        condition_of: dict[type, Test] = {
            # Python and z3 divide by negative numbers differently, so a proof about a start with a
            # negative divisor would not be about the program.
            Start: lambda start: (
                start.index.div > 0 and start.index.mod >= 0 and not start.index.exact
            ),
            # Runs are expanded into pairs later: a run of more devices than exist would take
            # unlimited memory.
            Runs: lambda runs: (
                runs.classes.devices == devices
                and all(run.last - run.first < devices for run in runs.runs)
            ),
        }
        condition = condition_of.get(hint)
        return (
            fields_test
            if condition is None
            else lambda value: fields_test(value) and condition(value)
        )

    def _union_test(self, args: tuple[Any, ...]) -> Test:
        """Return the test for a union of types; the value's own class selects a dataclass."""
        # The union of all kinds of instructions has dozens of classes, of which only the value's
        # own is tested.
        classes: dict[Any, Any] = {arg: arg for arg in args if is_dataclass(arg)}
        others = [arg for arg in args if not is_dataclass(arg)]

        def test(value: Any) -> bool:
            """Return whether a value fits one of the types of the union."""
            # If the value's own class is one of them, no other type needs a test.
            known = classes.get(type(value))
            if known is not None:
                return self.fits(value, known)
            return any(self.fits(value, other) for other in others)

        return test

    def _fields_test(self, cls: type) -> Test:
        """Return the test that a value is of a dataclass and that all its fields are valid."""
        fields = declared_fields(cls)

        # Many locals and instructions share their shardings and attributes. The program keeps these
        # alive during the tests, so an `id` stays unique.
        results: dict[int, bool] = {}

        def test(value: object) -> bool:
            """Return whether a value is of the class, with valid fields."""
            if id(value) not in results:
                results[id(value)] = type(value) is cls and all(
                    self.fits(getattr(value, n), h) for n, h in fields
                )
            return results[id(value)]

        return test

    def _is_digits(self, value: object) -> bool:
        """Return whether a value is a tuple of digits of this mesh, or of a mesh over its devices.

        No two of the digits may overlap.
        """
        if type(value) is not tuple or not all(type(digit) is Digit for digit in value):
            return False
        # True and 1.0 equal the int 1 in Python, but are no valid fields.
        if not all(type(number) is int for digit in value for number in digit):
            return False
        # Many fields have equal digits, so each tuple is tested only once.
        if value not in self._digits:
            self._digits[value] = self._on_mesh(value)
        return self._digits[value]

    def _on_mesh(self, digits: Digits) -> bool:
        """Return whether digits are of this mesh, or of another mesh over its devices."""
        # In the order of their strides, each digit must begin where the one before it ends.
        below = 1
        for stride, size in sorted(digit for digit in digits if digit.size != 1):
            if min(stride, size) < 1 or stride % below:
                return False
            below = stride * size
        return self.mesh.size % below == 0

    def fault(self, value: Any, hint: Any, where: str) -> str:
        """Return a message about the innermost place at which a value has the wrong type, or "".

        Args:
          value: the value of a field, which may contain tuples and dataclasses.
          hint: its declared type.
          where: the path of the value so far, such as "program.locals[2]".

        >>> from shardalg.spmd.instructions import Slice
        >>> slices = Slice(0, 1, 4), Slice(0, "1", 4)
        >>> FieldTests(Mesh({"X": 2})).fault(slices, tuple[Slice, ...], "")
        "[1].start is '1', which is no int"
        """
        kind: type = type(value)
        if self.fits(value, hint):
            return ""
        # A tuple can have thousands of items, so the message names the one that does not fit.
        if type(value) is tuple and type(hint) is GenericAlias and hint != Digits:
            hints = get_args(hint)
            item_hints = (hints[0],) * len(value) if hints[-1:] == (Ellipsis,) else hints
            items = enumerate(zip(value, item_hints, strict=False))
            faults = (self.fault(v, h, f"{where}[{k}]") for k, (v, h) in items)
            # If every item fits, the number of items is wrong.
            return next(filter(None, faults), f"{where} has {len(value)} items, not as {hint}")
        if type(value) in (hint, *get_args(hint)) and is_dataclass(value):
            fields = declared_fields(kind)
            faults = (self.fault(getattr(value, n), h, f"{where}.{n}") for n, h in fields)
            reason = f"no {_type_name(hint)}" if type(value) is not Mesh else f"not {self.mesh!r}"
            return next(filter(None, faults), f"{where} is {value!r:.200}, which is {reason}")
        return f"{where} is {value!r:.200}, which is no {_type_name(hint)}"


def field_fault(program: SpmdProgram, mesh: Mesh) -> str:
    """Return why the program is not a valid one on `mesh`, in words, or "".

    Its fields must have their types, its locals must be numbered, and all named locals must exist.
    """
    fault = FieldTests(mesh).fault(program, SpmdProgram, "program")
    if not fault and program.mesh != mesh:
        fault = f"program.mesh is {program.mesh!r}, not {mesh!r}"
    return fault or next(_number_faults(program), "")


def _number_faults(program: SpmdProgram) -> Iterator[str]:
    """Yield a message for each local with a wrong number or shape, and for each unknown number.

    A local is a value of the program, such as %3; its number is its place in `program.locals`.
    """
    for number, local in enumerate(program.locals):
        if local.index != number:
            yield f"program.locals[{number}] has the index %{local.index}"
        if min(local.shape, default=0) < 0:
            yield f"%{number} has the shape {local.shape}"
    # Negative numbers would be valid Python indices, but they name no local.
    numbers = range(len(program.locals))
    constants = [("constants", [local for local, _ in program.constants])]
    for words, locals_ in (*constants, *_named_locals(program.block, "program")):
        unknown = [local for local in locals_ if local not in numbers]
        if unknown:
            yield f"{words} names %{unknown[0]}, but the program has {len(numbers)} locals"


def _named_locals(block: Block, where: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield (place in the program in words, locals that it names) for a block and its bodies."""
    yield from ((f"{where}.arguments", block.arguments), (f"{where}.results", block.results))
    # Local -1 never exists, so this is reported as a fault.
    if len(set(block.arguments)) < len(block.arguments):
        yield f"{where}.arguments, one of them twice,", (-1,)
    for number, step in enumerate(block.instructions):
        yield f"{where}.instructions[{number}]", (*step.operands, *step.results)
        for body in step.attributes.bodies:
            yield from _named_locals(body, f"{where}.instructions[{number}]")


def _type_name(hint: Any) -> str:
    """Return the name of a type for messages, such as "int" or "tuple[int, ...]"."""
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def _is_plain(value: object) -> bool:
    """Return whether a value is a number, a text or a similar constant, or a tuple of these."""
    return type(value) in _PLAIN or (type(value) is tuple and all(map(_is_plain, value)))


def _is_why(value: object) -> bool:
    """Return whether a value is a `Why` (an instruction's reason) with fields of correct types.

    A reason has a purpose, an operator's name, a chain number, and a path of shardings. The meshes
    of these shardings are not checked, because no device runs a reason.
    """
    if type(value) is not Why or type(value.purpose) is not Purpose:
        return False
    path, chain = value.path, value.chain
    return (
        type(value.operator) is str
        and (chain is None or type(chain) is int)
        and (path is None or (type(path) is tuple and all(type(end) is Sharding for end in path)))
    )
