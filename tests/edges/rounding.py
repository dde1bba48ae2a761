"""Bounds of results whose sums are added in another order than on one device.

The running forward error bound (Higham, Accuracy and Stability of Numerical Algorithms, 3.3), for a
graph, node by node: beside each value, computed in its own type, stands a bound of its distance
from the exact one in every order of every sum. With `u` the unit roundoff of the result's type:
    copies (layout, selection): that of what is copied; extremes: the largest of what they are of
    sums and products: f(|a| + e) - f(|a|) + n*u*f(|a| + e), n addends or factors of an element
    pointwise and monotone functions: the farthest of f(a + e), f(a - e), and `ULPS` of f(a).
Every rounding may also lose the smallest normal number. Sums of whole numbers below 1/u are exact.
Unbounded is what goes by the order: a decision (a comparison, a floor) that the error may turn, and
a sum that overflows in some order. So is what a kernel that is not finite meets beside its image:
XLA multiplies padding or leaves it out, by the number of features. (Taps that meet no element at
any position are no part of a planned graph, if the kernel is larger than the image.)
"""

import itertools
from dataclasses import dataclass
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np

from shardalg.errors import TraceError
from shardalg.graph.evaluate import apply
from shardalg.graph.ops.families import pointwise
from shardalg.graph.ops.families.building import record
from shardalg.graph.plain import SCATTERS
from tests.edges.logs import of_running_log

ULPS = 8
"""What elementary functions of XLA may be off, in units in the last place."""
COPIES = {
    *pointwise.COPIES.split(),
    *"broadcast_in_dim concatenate dynamic_slice dynamic_update_slice expand_dims gather join_ends "
    "pad reshape rev scatter select_n slice split squeeze transpose reduce_precision neg abs real "
    "imag conj scatter-max scatter-min".split(),
}
SUMS = {
    *"add add_any sub complex dot_general conv_general_dilated reduce_sum cumsum reduce_window_sum "
    "scatter-add scatter-sub grouped_dot ragged_dot_general select_and_scatter_add".split()
}
PRODUCTS = {"mul", "reduce_prod", "cumprod", "scatter-mul", "square"}
WITHOUT_ROUNDING = {
    *"max min clamp floor ceil round sign rem sort reduce_max reduce_min cummax cummin "
    "reduce_window_max reduce_window_min".split()
}
POINTWISE = {*pointwise.UNARY.split(), *pointwise.MANY.split()}
MONOTONE = WITHOUT_ROUNDING - POINTWISE | {"cumlogsumexp"}
MAGNITUDES = {
    **dict.fromkeys("neg abs real imag conj".split(), "copy"),
    **dict.fromkeys(("sub", "complex"), "add"),
    "scatter-sub": "scatter-add",
    "scatter-min": "scatter-max",
}
"""Of moduli, where numbers are complex; the larger of two errors is that of either extreme."""
REORDERED = SUMS - {"add", "add_any", "sub", "complex"} | PRODUCTS - {"mul", "square"}
COMPLEX = 4
"""Roundings of a product of complex numbers, and more than in a sum of two."""
TYPED = {"dot_general", "conv_general_dilated", "grouped_dot", "ragged_dot_general"}
DECIDING = {"select_and_scatter_add": 1}
"""The operand by which is decided what is added."""
CONVERTED = {"convert_element_type", "reduce_precision"}


@dataclass(frozen=True)
class Rounded:
    """A value in its own type, and a bound of its distance from the exact one (inf: none)."""

    value: np.ndarray
    error: np.ndarray

    @property
    def magnitude(self):
        """The largest modulus that it may have; whole numbers as they are, to be indices."""
        return self.bare + self.error if _is_inexact(self.value) else self.value

    @property
    def bare(self):
        """The modulus without what it may be off; 0 where it is not finite, in every order."""
        if not _is_inexact(self.value):
            return self.value
        return np.where(np.isfinite(self.wide), abs(self.wide), 0)

    @property
    def wide(self):
        return _wide(self.value)

    def moved(self, sign):
        return self.wide + sign * self.error if sign else self.wide

    @property
    def is_decided(self):
        return bool(np.isfinite(self.error).all())


def bounds(graph, arrays):
    """Return a `Rounded` per result of a graph on flat arguments; None without a rule.

    >>> from shardalg.graph.tracing.trace import trace
    >>> x = np.full(4, 0.1, np.float32)
    >>> (total,) = bounds(trace(lambda x: x.sum(), x), [x])
    >>> 4 * 0.4 * 2**-24 <= total.error <= 4.1 * 0.4 * 2**-24
    np.True_
    """
    constants = {index: exact(array) for index, array in graph.constants}
    try:
        return _Run(graph, constants).region(0, [*map(exact, arrays)])
    except (TraceError, TypeError, ValueError, NotImplementedError, KeyError):
        return None


def of_operator(run):
    """Return the bounds of one operator from its operands and its results on one device."""
    node = _Node(run.signature, run.binding, list(map(exact, run.operands)), run.results)
    try:
        return _rounded(node)
    except (TraceError, TypeError, ValueError, NotImplementedError):
        return None


def exact(array):
    array = np.asarray(array)
    return Rounded(array, np.zeros(array.shape))


def within(ours, rounded):
    """Return True if each element is within twice its bound, because both were rounded."""
    if not _is_inexact(ours):
        return np.zeros(ours.shape, bool)
    near = abs(_wide(ours) - rounded.wide) <= 2 * rounded.error
    return near & np.isfinite(rounded.error)


def possible(ours, rounded):
    """Return True if the values are equal, or if the order of a sum decides."""
    return within(ours, rounded) | np.isinf(rounded.error)


@dataclass(frozen=True)
class _Run:
    graph: object
    constants: dict

    def region(self, index, arguments):
        """Return the results of a body."""
        region = self.graph.regions[index]
        given = self.graph.arguments if index == 0 else region.arguments
        env = {**self.constants, **dict(zip(given, arguments, strict=True))}
        for number in region.nodes:
            node = self.graph.nodes[number]
            operands = [env[value] for value in node.operands]
            made = _CALLS.get(node.primitive, _of_node)(self, node, operands)
            env.update(zip(node.results, made, strict=True))
        return [env[v] for v in (self.graph.results if index == 0 else region.results)]


def _scan(run, node, operands):
    param = node.signature.param
    first, last = param("num_consts"), param("num_consts") + param("num_carry")
    carry, rows = operands[first:last], []
    for k in sorted(range(param("length")), reverse=param("reverse")):
        xs = [Rounded(x.value[k], x.error[k]) for x in operands[last:]]
        made = run.region(node.bodies[0], [*operands[:first], *carry, *xs])
        carry, rows = made[: len(carry)], [*rows, made[len(carry) :]]
    if not rows:
        empty = (run.graph.values[v].type for v in node.results[len(carry) :])
        return [*carry, *(exact(np.zeros(t.shape, jnp.dtype(t.dtype))) for t in empty)]
    rows = rows[::-1] if param("reverse") else rows
    stacked = (
        Rounded(np.stack([x.value for x in column]), np.stack([x.error for x in column]))
        for column in zip(*rows, strict=True)
    )
    return [*carry, *stacked]


def _while(run, node, operands):
    condition, body = node.bodies
    first = node.signature.param("cond_nconsts")
    both = first + node.signature.param("body_nconsts")
    carry = operands[both:]
    while _decided(run.region(condition, [*operands[:first], *carry])[0]):
        carry = run.region(body, [*operands[first:both], *carry])
    return carry


def _branches(run, node, operands):
    which = int(np.clip(_decided(operands[0]), 0, len(node.bodies) - 1))
    return run.region(node.bodies[which], operands[1:])


def _decided(rounded):
    if not rounded.is_decided:
        raise ValueError("what a loop or a branch goes by may turn")
    return rounded.value


_CALLS = {"scan": _scan, "while": _while, "cond": _branches}


def _of_node(run, node, operands):
    binding, signature = run.graph.bindings[node.index], node.signature
    said = signature.params if binding is None else ()
    made = apply(node.primitive, binding, said, [jnp.asarray(x.value) for x in operands])
    made = [np.asarray(value) for value in made]
    return _rounded(_Node(signature, binding, operands, made))


def _rounded(node):
    with jax.enable_x64(True), np.errstate(all="ignore"):
        errors = _errors(node)
    # What is infinite or NaN and not by its order is not rounded.
    pairs = zip(node.made, errors, strict=True)
    return [Rounded(x, np.where(np.isfinite(x) | np.isinf(e), e, 0)) for x, e in pairs]


def _errors(node):
    is_exact = not any(x.error.any() for x in node.operands)
    if is_exact and not any(map(_is_inexact, node.made)):
        return [np.zeros(x.shape) for x in node.made]
    if node.name in COPIES and node.is_certain_but_for_floats:
        return node.of_copies()
    if node.name in SUMS | PRODUCTS and node.is_certain_but_for_floats:
        return node.of_magnitudes()
    if not node.is_decided and node.name not in POINTWISE:
        return [np.full(x.shape, np.inf) for x in node.made]
    is_real = not any(_is_complex(x) for x in (*node.made, *(x.value for x in node.operands)))
    if is_real and (node.name in POINTWISE or (node.name in MONOTONE and len(node.operands) == 1)):
        return node.of_corners()
    if node.name == "cumlogsumexp":
        return node.of_logs()
    if node.name == "triangular_solve":
        return node.of_a_solve()
    if node.name in POINTWISE:
        return node.of_complex()
    raise NotImplementedError(node.name)


@dataclass(frozen=True)
class _Node:
    """A primitive with its parameters, operands and results."""

    signature: object
    binding: object
    operands: list
    made: list

    @property
    def name(self):
        return self.signature.primitive

    @property
    def is_decided(self):
        return all(x.is_decided for x in self.operands)

    @property
    def is_certain_but_for_floats(self):
        is_certain = all(_is_inexact(x.value) or x.is_decided for x in self.operands)
        return is_certain and (self.name not in CONVERTED or _is_inexact(self.made[0]))

    def of_copies(self):
        """Errors go where their numbers go; a conversion rounds."""
        is_number = self.name in CONVERTED
        numbers = [x.error if is_number or _is_inexact(x.value) else x.value for x in self.operands]
        moved = [np.nan_to_num(e, posinf=np.inf) for e in self.applied(numbers, MAGNITUDES)]
        if self.name not in CONVERTED and self.name != "abs":
            return moved
        made = [x.astype(np.float64) for x in map(abs, self.made)]
        return [
            e + self._lost(x, abs_, 1) for e, x, abs_ in zip(moved, self.made, made, strict=True)
        ]

    def of_magnitudes(self):
        """Return bounds from magnitudes: nonfinite, or unbounded if an order overflows."""
        largest = self.applied(self._numbers([x.magnitude for x in self.operands]), MAGNITUDES)
        before = self.applied(self._numbers([x.bare for x in self.operands]), MAGNITUDES)
        errors = list(map(self._of_magnitude, self.made, largest, before))
        if self.name == "conv_general_dilated":
            errors[0] = np.where(self._meets_padding(), np.inf, errors[0])
        if self.name not in PRODUCTS & REORDERED:
            return errors
        # Of some of the factors: those above 1 alone, or those below. One that is infinite makes of
        # others that vanish together a NaN, of each alone an infinity.
        factors = [np.where(np.isfinite(x.wide), x.magnitude, 1) for x in self.operands]
        ends = [[limit(x, 1) for x in factors] for limit in (np.maximum, np.minimum)]
        ends.append([np.float64(x != 0) for x in factors])
        high, low, nonzero = (self.applied(self._as_they_are(end))[0] for end in ends)
        info = jnp.finfo(self.made[0].dtype)
        is_between = (high <= float(info.max)) & ((low >= float(info.tiny)) | (nonzero == 0))
        return [np.where(is_between, errors[0], np.inf)]

    def _meets_padding(self):
        """Return places where an infinite or NaN kernel number meets no element of the image."""
        dims = record(self.signature.param("dimension_numbers"), "image kernel result").values()
        _, (_, *summed), (batch, _, *places) = dims
        image, kernel = (np.isfinite(x.value) for x in self.operands)
        met, odd = self.applied([np.ones(image.shape), 1.0 - kernel])[0], ~kernel
        return met < np.expand_dims(odd.sum(tuple(summed)), (batch, *places))

    def _numbers(self, numbers):
        """Return the numbers, with deciding operands unchanged."""
        kept = DECIDING.get(self.name)
        if kept is None:
            return numbers
        if self.operands[kept].error.any():
            raise NotImplementedError(self.name)
        return [self.operands[k].wide if k == kept else x for k, x in enumerate(numbers)]

    def _as_they_are(self, numbers):
        """Return the operands, with indices unchanged."""
        pairs = zip(numbers, self.operands, strict=True)
        return [x if _is_inexact(o.value) else o.value for x, o in pairs]

    def _of_magnitude(self, value, upper, lower):
        error = upper - lower + self._lost(value, upper, self._roundings())
        error = np.where(np.isnan(error), np.inf, error)
        largest = float(jnp.finfo(value.dtype).max)
        if self.name in REORDERED:
            return np.where(upper + error > largest, np.inf, error)
        return _at_the_end(lower, error, value)

    def _lost(self, value, upper, count):
        """Return the loss of so many roundings; none if integers are added."""
        unit, tiny = _unit(value)
        is_whole = self.name in COPIES | SUMS | PRODUCTS
        is_whole &= all((x.wide == np.round(x.wide)).all() for x in self.operands)
        is_whole &= not any(x.error.any() for x in self.operands)
        each = COMPLEX if _is_complex(value) else 1
        upper = np.where(np.isfinite(upper), upper, 0)
        return np.where(is_whole & (upper * unit <= 1), 0, each * count * (unit * upper + tiny))

    def _roundings(self):
        """Return each element's number of roundings: its addends or factors."""
        if self.name in PRODUCTS:
            return float(max(np.prod([max(n, 1) for n in x.value.shape]) for x in self.operands))
        ones = [np.ones(x.value.shape) if _is_inexact(x.value) else x.value for x in self.operands]
        return self.applied(self._numbers(ones), MAGNITUDES)[0]

    def of_logs(self):
        (x,), (made,), param = self.operands, self.made, self.signature.param
        return [of_running_log((x.value, x.error), made, param("axis"), reverse=param("reverse"))]

    def of_a_solve(self):
        """Unbounded where a system has no finite solution: LAPACK's answer goes by its blocks.

        Raises:
          NotImplementedError: of numbers that are rounded already.
        """
        if any(x.error.any() for x in self.operands):
            raise NotImplementedError(self.name)
        matrix, right = (x.wide for x in self.operands)
        is_plain = np.isfinite(matrix).all((-2, -1)) & np.isfinite(right).all((-2, -1))
        is_plain &= (np.diagonal(matrix, axis1=-2, axis2=-1) != 0).all(-1)
        return [np.where(is_plain[..., None, None], 0, np.full(right.shape, np.inf))]

    def of_complex(self):
        """Return the error of elementary functions of exact numbers; of others it is unbounded."""
        is_rounded = np.any(np.broadcast_arrays(*(x.error > 0 for x in self.operands)), axis=0)
        ends = [self._lost(x, np.abs(x).astype(np.float64), ULPS) for x in self.made]
        return [np.where(is_rounded, np.inf, end) for end in ends]

    def of_corners(self):
        signs = itertools.product(*(_signs(x) for x in self.operands))
        middle = self.applied([x.wide for x in self.operands])
        far = [np.zeros(x.shape) for x in self.made]
        for corner in signs:
            made = self.applied([x.moved(s) for s, x in zip(corner, self.operands, strict=True)])
            far = [
                np.fmax(old, _distance(a, b)) for old, a, b in zip(far, made, middle, strict=True)
            ]
        for x in self.operands if self.name in POINTWISE else ():
            far = [np.where(np.isinf(x.error), np.inf, old) for old in far]
        if not all(map(_is_float, self.made)):  # a decision
            return [np.where(distance > 0, np.inf, 0) for distance in far]
        ulps = 0 if self.name in WITHOUT_ROUNDING else ULPS
        return [
            _at_the_end(m, error + self._lost(value, abs(m), ulps), value)
            for error, m, value in zip(far, middle, self.made, strict=True)
        ]

    def applied(self, operands, instead=MappingProxyType({})):
        """Apply the primitive to f64 operands, whatever types it was written for."""
        name, binding = instead.get(self.name, self.name), self.binding
        if self.name in CONVERTED and _is_inexact(self.made[0]):
            name, operands = "copy", [np.asarray(x, np.float64) for x in operands]
        if name != self.name or name in SCATTERS:  # whose code has the type of what it joins
            binding = None
        said = dict(self.signature.params) if binding is None and name != "copy" else {}
        if self.name in TYPED:
            said["preferred_element_type"] = "float64"
        made = apply(name, binding, tuple(said.items()), [jnp.asarray(x) for x in operands])
        return [np.asarray(x) for x in made]


def _at_the_end(middle, error, value):
    """Unbounded where a number may be rounded to the largest of its type or to infinity."""
    largest = float(jnp.finfo(value.dtype).max)
    either = (abs(middle) - error <= largest) & (abs(middle) + error > largest)
    return np.where(either & (error > 0), np.inf, error)


def _signs(rounded):
    return (-1, 1) if _is_float(rounded.value) and rounded.error.any() else (0,)


def _distance(a, b):
    """Elementwise, 0 between equal infinities or NaN, unbounded between a NaN and a number."""
    apart = abs(a.astype(np.float64) - b.astype(np.float64))
    is_same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(is_same, 0, np.where(np.isnan(apart), np.inf, apart))


def _is_float(array):
    return jnp.issubdtype(array.dtype, jnp.floating)


def _is_complex(array):
    return jnp.issubdtype(array.dtype, jnp.complexfloating)


def _is_inexact(array):
    return _is_float(array) or _is_complex(array)


def _wide(array):
    if not _is_inexact(array):
        return array
    return array.astype(np.complex128 if _is_complex(array) else np.float64)


def _unit(array):
    """Return the unit roundoff and the smallest normal number of a type."""
    info = jnp.finfo(array.dtype)
    return float(info.eps) / 2, float(info.tiny)
