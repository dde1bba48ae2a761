"""What one collective puts on the wire, and how long it takes."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from typing import Any, TypeGuard

from shardalg.algebra.digits import Digit, Digits, parts
from shardalg.algebra.mesh import Mesh
from shardalg.costs.hardware import Hardware, over, times
from shardalg.costs.walk import Execution
from shardalg.sizes.formula import Formula
from shardalg.spmd.instruction import Attributes, Collective

# Numerator and denominator of the bytes that one device of a ring of n sends when it holds b bytes
# before the collective; both may be symbols.
RING_BYTES: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "all_gather": lambda b, n: (b * (n - 1), 1),
    "all_reduce": lambda b, n: (2 * b * (n - 1), n),
    "reduce_scatter": lambda b, n: (b * (n - 1), n),
    "all_to_all": lambda b, n: (b * (n - 1), n),
    "collective_permute": lambda b, n: (b, 1),
}
# Messages that follow one another on a ring: what the latency of a link is paid for.
_RING_HOPS: dict[str, Callable[[Any], Any]] = {
    "all_gather": lambda n: n - 1,
    "all_reduce": lambda n: 2 * (n - 1),
    "reduce_scatter": lambda n: n - 1,
    "all_to_all": lambda n: n - 1,
}


# Types tell numbers from formulas that are constant: both are one key otherwise.
@lru_cache(maxsize=1 << 14, typed=True)
def step_wire_bytes(kind: str, *, group_size: Any, local_bytes: Any) -> Any:
    """Bytes that each device sends in one execution of a collective, on a ring.

    With `n = group_size` devices that each hold `b = local_bytes` before it:
    all_gather `b*(n-1)`, reduce_scatter and all_to_all `b*(n-1)/n`, all_reduce `2*b*(n-1)/n`,
    collective_permute `b`; a group of one sends nothing. Exact: an int, or a Fraction where a
    block does not divide; sympy numbers give a sympy formula.

    Args:
      kind: a name of `RING_BYTES`.
      local_bytes: bytes of the operand on one device, padding included.

    >>> step_wire_bytes("all_gather", group_size=4, local_bytes=1024)
    3072
    >>> step_wire_bytes("all_reduce", group_size=4, local_bytes=1024)
    1536
    >>> step_wire_bytes("reduce_scatter", group_size=3, local_bytes=4)
    Fraction(8, 3)

    Source: bandwidth-optimal ring algorithms, Patarasu and Yuan, "Bandwidth optimal all-reduce
    algorithms for clusters of workstations", JPDC 69 (2009).
    """
    if group_size == 1:
        return 0
    above, below = RING_BYTES[kind](local_bytes, group_size)
    return above if below == 1 else quotient(above, below)


def quotient(above: Any, below: Any) -> Any:
    """`above / below` without rounding: an int where it comes out, else a Fraction or a formula.

    >>> quotient(12, 4), quotient(3, 4)
    (3, Fraction(3, 4))
    """
    if type(above) is int and type(below) is int:
        whole, rest = divmod(above, below)
        return Fraction(above, below) if rest else whole
    return above / below


def is_collective(attributes: Attributes) -> TypeGuard[Collective]:
    """Whether an instruction moves bytes between devices: no fetch from nobody, no group of one."""
    return isinstance(attributes, Collective) and attributes.sends > 0


def moves(step: Execution) -> TypeGuard[Execution[Collective]]:
    """Whether a step of a program moves bytes between devices."""
    return is_collective(step.instruction.attributes)


def group_size(attributes: Collective) -> Any:
    """Devices that take part in one group of a collective.

    >>> from shardalg.algebra.digits import Digit
    >>> from shardalg.spmd.instructions import AllReduce
    >>> group_size(AllReduce((Digit(4, 2), Digit(1, 4))))
    8
    """
    return parts(attributes.digits)


def wire_bytes(attributes: Attributes, local_in_bytes: Any) -> Any:
    """Bytes that each device sends in one execution of a collective instruction, on a ring.

    The same price as `step_wire_bytes`, so that the planner chooses by what the program costs.
    0 for an instruction that is no collective, and for a permute that sends to nobody else.

    >>> from shardalg.algebra.digits import Digit
    >>> from shardalg.spmd.instructions import ReduceScatter
    >>> wire_bytes(ReduceScatter(0, (Digit(1, 4),)), 1024)
    768
    """
    if not is_collective(attributes) or attributes.stays:
        return 0
    kind, size = attributes.sent_as, group_size(attributes)
    sent = step_wire_bytes(kind, group_size=size, local_bytes=local_in_bytes)
    if attributes.sends == attributes.choices:
        return sent
    return quotient(sent * attributes.sends, attributes.choices)


def seconds(attributes: Attributes, local_in_bytes: Any, *, mesh: Mesh, hardware: Hardware) -> Any:
    """Seconds of one execution: bytes over the slowest link of its axes, and latency per hop.

    `wire_bytes / link_bytes_per_s + hops * latency_s`. A collective over several axes goes axis by
    axis, which sends as many bytes as one ring of all devices and takes fewer hops: n-1 on each
    axis of n, an all_reduce 2(n-1), a permute one.

    >>> from shardalg.spmd.instructions import AllGather
    >>> mesh = Mesh({"X": 2, "Y": 4})
    >>> slow = Hardware("slow", link_bytes_per_s=1e6, latency_s=1e-3)
    >>> seconds(AllGather(0, mesh.digits("Y")), 1_000_000, mesh=mesh, hardware=slow)
    3.003
    >>> seconds(AllGather(0, mesh.digits("XY")), 1_000_000, mesh=mesh, hardware=slow)
    7.004

    Source: collectives on a torus, one dimension after the other: Sack and Gropp, "Collective
    algorithms for multiported torus networks", ACM TOPC 1 (2015).
    """
    sent = wire_bytes(attributes, local_in_bytes)
    if not sent or not isinstance(attributes, Collective):
        return 0.0
    hops = _hops(attributes.sent_as, attributes.digits, mesh)
    link = hardware.link(axis_names(mesh, attributes.digits))
    return _ring_seconds(sent, hops, link, hardware.latency_s)


def _hops(kind: str, digits: Digits, mesh: Mesh) -> Any:
    """Messages that follow one another where a collective goes axis by axis."""
    if kind == "collective_permute":
        return 1
    sizes: dict[str, Any] = {}
    for name, size in chain.from_iterable(_axis_parts(mesh, d) for d in digits if d.size != 1):
        sizes[name] = sizes[name] * size if name in sizes else size
    first, *rest = [_RING_HOPS[kind](size) for size in sizes.values()]
    return sum(rest, first)


@lru_cache(maxsize=1 << 14, typed=True)
def _ring_seconds(sent: Any, hops: Any, link: float, latency_s: float) -> Any:
    hops = Formula.of(hops) if type(sent) is Formula else hops
    return over(sent, link) + times(hops, latency_s)


def axis_names(mesh: Mesh, digits: Digits) -> tuple[str, ...]:
    """The mesh axes that digits belong to, major first, each once.

    >>> axis_names(Mesh({"X": 2, "Y": 4}), Mesh({"X": 2, "Y": 4}).digits("YX"))
    ('Y', 'X')
    """
    found = chain.from_iterable(_axis_parts(mesh, digit) for digit in digits if digit.size != 1)
    return tuple(dict.fromkeys(name for name, _ in found))


def _axis_parts(mesh: Mesh, digit: Digit) -> tuple[tuple[str, Any], ...]:
    """The axes that a digit joins, major first, each with how many of its parts."""
    if type(digit.size) is int:
        sizes = dict(mesh.axes)
        return tuple((ref.name, ref.size or sizes[ref.name]) for ref in mesh.axis_refs(digit))
    # A digit whose size is a formula is one axis, or a part of it: its stride tells which.
    axes = ((name, mesh.digit(name)) for name, size in mesh.axes if size > 1)
    names = [n for n, a in axes if a.stride <= digit.stride < a.stride * a.size]
    return tuple((name, digit.size) for name in names)
