"""An HLO program on all devices at once, with floats as elements of a finite field.

Arrays are [devices, ...]. The program before partitioning runs with one device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardalg.lower.xla_dump.hlo_text import HloInstruction, HloModule
from shardalg.xla.audit.hlo_attributes import (
    INTEGERS,
    called,
    combination,
    groups_of,
    integers,
    is_float,
    padding_of,
    pairs_of,
    slices_of,
    wrapped,
)
from shardalg.xla.audit.referee import random_field as f
from shardalg.xla.audit.referee.field_operators import OPERATORS, padded
from shardalg.xla.audit.values.per_device import UnknownError

LONGEST_LOOP = 4096
_SAME = (
    "copy", "bitcast", "opt-barrier", "optimization-barrier", "domain", "async-done",
    "async-update", "add-dependency", "all-reduce-done", "all-gather-done", "all-to-all-done",
    "collective-permute-done", "reduce-scatter-done", "copy-start", "copy-done",
)  # fmt: skip
_INTEGER: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "negate": np.negative,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "abs": np.abs, "sign": np.sign, "maximum": np.maximum, "minimum": np.minimum,
    "remainder": lambda a, b: np.fmod(a, np.where(b == 0, 1, b)),
    "divide": lambda a, b: np.abs(a) // np.maximum(np.abs(b), 1) * np.sign(a) * np.sign(b),
    "shift-left": lambda a, b: np.where(b < 32, a << np.minimum(b, 32), 0),
    "shift-right-arithmetic": lambda a, b: a >> np.minimum(b, 31),
    "shift-right-logical": lambda a, b: np.where(b < 32, (a & 0xFFFFFFFF) >> np.minimum(b, 32), 0),
    "power": lambda a, b: a ** np.maximum(b, 0),
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "popcnt": lambda a: np.vectorize(lambda n: bin(int(n) & 0xFFFFFFFF).count("1"))(a),
}  # fmt: skip
_COMPARE = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater,
    "GE": np.greater_equal,
}  # fmt: skip
_FLOAT: dict[str, Callable[..., np.ndarray]] = {
    "add": f.add, "subtract": f.subtract, "multiply": f.multiply, "negate": f.negative,
    "divide": lambda a, b: f.multiply(a, f.inverse(b)),
    "maximum": lambda a, b: f.unordered(np.maximum(f.ordered(a), f.ordered(b))),
    "minimum": lambda a, b: f.unordered(np.minimum(f.ordered(a), f.ordered(b))),
    "clamp": lambda l, x, h: f.unordered(
        np.minimum(np.maximum(f.ordered(x), f.ordered(l)), f.ordered(h))
    ),
}  # fmt: skip
_HASHED = frozenset({
    "exponential", "log", "tanh", "rsqrt", "sqrt", "cosine", "sine", "logistic", "log-plus-one",
    "cbrt", "erf", "exponential-minus-one", "abs", "sign", "floor", "ceil", "round-nearest-even",
    "round-nearest-afz", "power", "atan2", "tan", "remainder", "reduce-precision",
})  # fmt: skip


@dataclass(eq=False)
class FieldRun:
    """One module on a number of devices.

    Attributes:
      values: the last value of each instruction that ran, by computation and name.
    """

    module: HloModule
    devices: int
    values: dict[tuple[str, str], Any] = field(default_factory=dict)

    def run(self, name: str, arguments: Sequence[Any], *, keep: bool = True) -> Any:
        """Return the result of a computation.

        Raises:
          UnknownError: an operator that this interpreter does not have.
        """
        made: dict[str, Any] = {}
        body = self.module.computations[name]
        for one in body.values():
            # A text that was written by hand may be no valid HLO; it then has no verdict.
            try:
                operands = [made[o] for o in one.operands]
                if one.opcode == "parameter":
                    value = arguments[int(one.literal)]
                else:
                    types = [body[o].leaves[0][0] if body[o].leaves else "" for o in one.operands]
                    value = self._step(one, operands, types)
            except (KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
                why = f"{one.opcode} {one.name}: {type(error).__name__} {error}"
                raise UnknownError(why) from None
            # Scalars of a reduction run as if they were devices, so only their rank is fixed.
            if isinstance(value, np.ndarray) and len(one.leaves) == 1:
                if value.shape[1:] != one.leaves[0][1]:
                    why = (
                        f"{one.opcode} {one.name} has the shape {list(value.shape[1:])}, and its "
                        f"type says {list(one.leaves[0][1])}"
                    )
                    raise UnknownError(why)
            made[one.name] = value
            if keep:
                self.values[name, one.name] = value
        return made[self.module.roots[name].name]

    def combined(self, name: str, first: Any, second: Any) -> Any:
        """Return the result of a reduction's computation for two values."""
        return self.run(name, [first, second], keep=False)

    def _step(self, one: HloInstruction, x: list[Any], types: list[str]) -> Any:
        """Return the value of one instruction on all devices, [devices, ...], or a tuple of values.

        Args:
          x: the values of the operands. types: their item types, e.g. "f32".
        """
        opcode, attributes = one.opcode, one.attributes
        dtype, shape = one.leaves[0] if one.leaves else ("", ())
        if opcode in _SAME or "Sharding" in attributes.get("custom_call_target", ""):
            return x[0]
        if opcode == "tuple":
            return tuple(x)
        if opcode == "get-tuple-element":
            return x[0][int(attributes["index"])] if isinstance(x[0], tuple) else x[0]
        if opcode in _CONTROL:
            return _CONTROL[opcode](self, one, x)
        if opcode in ("constant", "iota", "partition-id", "replica-id"):
            return self._source(one, dtype, shape)
        # An asynchronous collective has its result at its start; the end passes it on (`_SAME`). A
        # collective of several arrays is one collective per array. An all-to-all of several arrays
        # exchanges the arrays themselves.
        plain = opcode.removesuffix("-start")
        if plain in _COLLECTIVES:
            made = (
                tuple(self._collective(one, plain, v, t) for v, t in zip(x, types, strict=True))
                if plain != "all-to-all" or len(x) == 1
                else self._exchange(one, x)
            )
            return made[0] if len(made) == 1 else made
        if opcode in OPERATORS:
            return OPERATORS[opcode](self, one, x, types)
        if opcode in _MOVES:
            return _MOVES[opcode](one, x)
        return self._pointwise(one, x, types)

    def _source(self, one: HloInstruction, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return the value of an instruction without operands: device number, iota or constant.

        Raises:
          UnknownError: the dump left the numbers of the constant out.
        """
        if one.opcode == "partition-id":
            return np.arange(self.devices)
        if one.opcode == "replica-id":
            return np.zeros(self.devices, np.int64)
        if one.opcode == "iota":
            dim = int(one.attributes.get("iota_dimension", 0))
            line = np.arange(shape[dim]).reshape([-1 if k == dim else 1 for k in range(len(shape))])
            return np.broadcast_to(line, (self.devices, *shape))
        # A constant is a nested list in the text; its numbers in order are the elements in order.
        words = re.findall(r"[^\s{},()]+", one.literal)
        if "..." in one.literal:
            raise UnknownError("a constant whose numbers the dump left out")
        if dtype == "pred":
            cells = np.array([word in ("true", "1") for word in words])
        elif is_float(dtype):
            cells = np.array([f.literal(word, dtype) for word in words], np.int64)
        else:
            cells = np.array([int(word) for word in words], np.int64)
        return np.broadcast_to(cells.reshape(shape), (self.devices, *shape))

    def _pointwise(self, one: HloInstruction, x: list[Any], types: list[str]) -> np.ndarray:
        """Return the value of an elementwise operator.

        Floats are elements of the field. Arithmetic is exact there, and a function such as `exp` is
        a random function of its operand: equal operands give equal results. Integers have their own
        arithmetic.

        Raises:
          UnknownError: an operator that this interpreter does not have for the item type.
        """
        opcode, (dtype, shape) = one.opcode, one.leaves[0]
        rank = len(shape)
        # A scalar operand of select or clamp is one for all places.
        x = [v.reshape(len(v), *[1] * rank) if v.ndim == 1 and rank else v for v in x]
        if opcode == "select":
            return np.where(*x)
        if opcode == "compare":
            operands = [f.ordered(v) for v in x] if is_float(types[0]) else x
            return _COMPARE[one.attributes["direction"]](*operands)
        if opcode == "is-finite":
            return ~f.is_special(x[0])
        if opcode in ("convert", "bitcast-convert"):
            return _converted(x[0], dtype, types[0], bits=opcode != "convert")
        if is_float(dtype):
            if opcode in _FLOAT:
                return _FLOAT[opcode](*x)
            if opcode in _HASHED:
                return f.hashed(opcode, *np.broadcast_arrays(*x))
        elif opcode in _INTEGER and (dtype == "pred" or dtype in INTEGERS):
            # Truth values are added and multiplied by "or" and "and".
            if dtype == "pred":
                opcode = {"add": "or", "multiply": "and"}.get(opcode, opcode)
            made = _INTEGER[opcode](*x)
            return made if dtype == "pred" else wrapped(made, dtype)
        raise UnknownError(f"{opcode} of {dtype}")

    # --- collectives --------------------------------------------------------------------------

    def _collective(self, one: HloInstruction, opcode: str, x: np.ndarray, dtype: str) -> Any:
        """Return the result of a collective of one array on all devices, [devices, ...].

        `parts` has an array per member of a group: what the member receives in each of the groups.
        """
        x = np.broadcast_to(x, (self.devices, *x.shape[1:]))
        if opcode == "collective-permute":
            # A device that receives nothing has 0.
            made = np.zeros_like(x)
            for source, target in pairs_of(one):
                made[target] = x[source]
            return made
        groups = groups_of(one, self.devices)
        members = groups.shape[1]
        dims = integers(one.attributes.get("dimensions"))
        axis = 1 + dims[0] if dims else 0
        if opcode in ("all-reduce", "reduce-scatter"):
            # The members are dimension 1 of `x[groups]`; each group has one result.
            reduced = self.reduced(one, x[groups], 1, dtype)
            if opcode == "all-reduce":
                parts = [reduced] * members
            else:
                parts = np.split(reduced, members, axis)
        elif opcode == "all-gather":
            parts = [np.concatenate([x[groups[:, m]] for m in range(members)], axis)] * members
        else:
            # All-to-all: member j receives part j of every member.
            cut = [np.split(x[groups[:, m]], members, axis) for m in range(members)]
            parts = [
                np.concatenate([cut[s][j] for s in range(members)], axis) for j in range(members)
            ]
        made = np.zeros((self.devices, *parts[0].shape[1:]), x.dtype)
        for member, part in enumerate(parts):
            made[groups[:, member]] = part
        return made

    def _exchange(self, one: HloInstruction, x: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Return the results of an all-to-all of several arrays.

        Member j's result s is array j of member s.
        """
        groups = groups_of(one, self.devices)
        full = [np.broadcast_to(v, (self.devices, *v.shape[1:])) for v in x]
        made = [np.zeros_like(v) for v in full]
        for j in range(groups.shape[1]):
            for s in range(groups.shape[1]):
                made[s][groups[:, j]] = full[j][groups[:, s]]
        return tuple(made)

    def reduced(self, one: HloInstruction, x: np.ndarray, axis: int, dtype: str) -> np.ndarray:
        """Return the reduction of an array along an axis by an instruction's computation."""
        opcode = combination(self.module, one)
        real = is_float(dtype)
        if opcode == "add" and dtype != "pred":
            return f.total(x, axis) if real else wrapped(x.sum(axis), dtype)
        if opcode in ("maximum", "minimum"):
            pick = np.max if opcode == "maximum" else np.min
            return f.unordered(pick(f.ordered(x), axis)) if real else pick(x, axis)
        if opcode in ("and", "or") and dtype == "pred":
            return (np.all if opcode == "and" else np.any)(x, axis)
        parts = np.moveaxis(x, axis, 0)
        made = parts[0]
        for part in parts[1:]:
            # The computation is of scalars, so all elements run as if they were devices.
            flat = self.combined(called(one), made.reshape(-1), part.reshape(-1))
            made = flat.reshape(part.shape)
        return made


def _converted(x: np.ndarray, dtype: str, source: str, *, bits: bool) -> np.ndarray:
    """Return a value in another item type."""
    if bits:
        if is_float(dtype) or is_float(source):
            made = f.hashed(f"bits {dtype}", x)
            return made if is_float(dtype) else wrapped(made, dtype)
        return wrapped(x, dtype)
    if is_float(dtype):
        return f.rounded(x, dtype, source) if is_float(source) else x.astype(np.int64) % f.PRIME
    if is_float(source):
        exact, value = f.small_integer(x, 1 << 20)
        x = np.where(exact, value, f.hashed("to integer", x) % 7)
    return x != 0 if dtype == "pred" else wrapped(x.astype(np.int64), dtype)


# --- control flow -----------------------------------------------------------------------------


def _while(run: FieldRun, one: HloInstruction, x: list[Any]) -> Any:
    """Return the state after a loop; it runs until the condition is false on a device.

    Raises:
      UnknownError: the loop has too many iterations.
    """
    state = x[0]
    for _ in range(LONGEST_LOOP):
        if not np.all(run.run(called(one, "condition"), [state])):
            return state
        state = run.run(called(one, "body"), [state])
    raise UnknownError(f"a loop of more than {LONGEST_LOOP} iterations")


def _conditional(run: FieldRun, one: HloInstruction, x: list[Any]) -> Any:
    """Return the result of the branch that all devices choose.

    Raises:
      UnknownError: devices choose different branches.
    """
    names = one.attributes.get("branch_computations", "").strip("{}").split(",")
    if names == [""]:
        # A conditional on a truth value lists its branches as attributes; False is number 0.
        names = [one.attributes["false_computation"], one.attributes["true_computation"]]
        x = [x[0], x[2], x[1]]
    chosen = np.unique(x[0].astype(int))
    if len(chosen) > 1:
        raise UnknownError("a conditional whose branch differs between devices")
    # A number without a branch runs the last one.
    at = int(chosen[0]) if 0 <= chosen[0] < len(names) else len(names) - 1
    return run.run(names[at].strip().lstrip("%"), [x[1 + at]])


def _call(run: FieldRun, one: HloInstruction, x: list[Any]) -> Any:
    return run.run(called(one) or called(one, "calls"), x)


_CONTROL: dict[str, Callable[[FieldRun, HloInstruction, list[Any]], Any]] = {
    "while": _while, "conditional": _conditional, "call": _call, "fusion": _call,
    "async-start": _call,
}  # fmt: skip


# --- moves of data ----------------------------------------------------------------------------


def _broadcast(one: HloInstruction, x: list[Any]) -> np.ndarray:
    """Return the value of a broadcast: the operand's dimensions take their places in the result."""
    shape, dims = one.leaves[0][1], integers(one.attributes.get("dimensions"))
    lengths = [1] * len(shape)
    for k, dim in enumerate(dims):
        lengths[dim] = x[0].shape[1 + k]
    # The operand's dimensions need not be in ascending order in the result.
    order = sorted(range(len(dims)), key=lambda k: dims[k])
    made = x[0].transpose(0, *(1 + k for k in order)).reshape(len(x[0]), *lengths)
    return np.broadcast_to(made, (len(x[0]), *shape))


def _blocks(starts: Sequence[np.ndarray], shape: Sequence[int], sizes: Sequence[int]) -> Any:
    """Return index arrays of a block per device; a start beyond the end is moved back."""
    count = max(len(s) for s in starts) if starts else 1
    index = []
    for dim, (start, n, size) in enumerate(zip(starts, sizes, shape, strict=True)):
        first = np.clip(np.broadcast_to(start, (count,)), 0, size - n)
        at = first.reshape(-1, *[1] * len(sizes)) + np.arange(n).reshape(
            [-1 if k == dim else 1 for k in range(len(sizes))]
        )
        index.append(at)
    return count, index


def _dynamic_slice(one: HloInstruction, x: list[Any]) -> np.ndarray:
    """Return the block of each device; a start beyond the end is moved back."""
    sizes = one.leaves[0][1]
    count, index = _blocks(x[1:], x[0].shape[1:], sizes)
    # The value or the starts may be stored once for all devices.
    count = max(count, len(x[0]))
    device = np.arange(count).reshape(-1, *[1] * len(sizes))
    return np.broadcast_to(x[0], (count, *x[0].shape[1:]))[(device, *index)]


def _dynamic_update(one: HloInstruction, x: list[Any]) -> np.ndarray:
    """Return the operand with the update written at each device's place."""
    count, index = _blocks(x[2:], x[0].shape[1:], x[1].shape[1:])
    # Each of the operands may be stored once for all devices.
    count = max(count, len(x[0]), len(x[1]))
    made = np.array(np.broadcast_to(x[0], (count, *x[0].shape[1:])))
    device = np.arange(count).reshape(-1, *[1] * (x[1].ndim - 1))
    made[(device, *index)] = x[1]
    return made


_MOVES: dict[str, Callable[[HloInstruction, list[Any]], Any]] = {
    "broadcast": _broadcast,
    "reshape": lambda one, x: x[0].reshape(len(x[0]), *one.leaves[0][1]),
    "transpose": lambda one, x: x[0].transpose(
        0, *(1 + d for d in integers(one.attributes["dimensions"]))
    ),
    "slice": lambda one, x: x[0][(slice(None), *slices_of(one))],
    "reverse": lambda one, x: np.flip(
        x[0], tuple(1 + d for d in integers(one.attributes["dimensions"]))
    ),
    "concatenate": lambda one, x: np.concatenate(
        [np.broadcast_to(v, (max(map(len, x)), *v.shape[1:])) for v in x],
        1 + integers(one.attributes["dimensions"])[0],
    ),
    "pad": lambda one, x: padded(x[0], x[1], padding_of(one)),
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update,
}
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
