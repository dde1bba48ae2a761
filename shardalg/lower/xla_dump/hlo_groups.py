"""Replica groups of HLO text, in all three of its forms, and the mesh axes that they run along."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from shardalg.algebra.digits import Digit, Digits
from shardalg.algebra.mesh import Mesh
from shardalg.errors import MeshError, NotationError
from shardalg.spmd.host.blocks import groups as digit_groups

Groups = list[list[int]]


def parse_groups(text: str, n_devices: int) -> Groups:
    """Lists of partition ids; no groups are one group of all.

    >>> parse_groups("{{0,1},{2,3}}", 4), parse_groups("[2,2]<=[2,2]T(1,0)", 4)
    ([[0, 1], [2, 3]], [[0, 2], [1, 3]])
    >>> parse_groups("mesh['a'=2,'b'=2] {'a'}", 4)
    [[0, 2], [1, 3]]

    Raises:
      NotationError: groups in none of these forms.
    """
    try:
        return _read(text.strip(), n_devices)
    except ValueError as error:
        raise NotationError(
            f"replica groups {text[:120]!r} cannot be read: {error}. XLA writes them as "
            "{{0,1},{2,3}}, [2,2]<=[4] or mesh['a'=2,'b'=2] {'a'}."
        ) from None


def _read(text: str, n_devices: int) -> Groups:
    if text in ("", "{}"):
        return [list(range(n_devices))]
    if text.startswith("{{"):
        return [[int(n) for n in g.split(",")] for g in re.findall(r"\{([\d,]+)\}", text)]
    iota = re.match(r"\[(\d+),(\d+)\]<=(.*)$", text)
    if iota:
        return _iota(iota[3]).reshape(int(iota[1]), int(iota[2])).tolist()
    named = re.match(r"@?mesh\[([^\]]*)\](.*)$", text)
    if not named:
        raise ValueError("the form is unknown")
    return _named(named[1], named[2])


def _iota(text: str) -> np.ndarray:
    """`[2,4]T(1,0)`: the numbers 0, 1, ... in that shape, transposed, flattened."""
    match = re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if not match:
        raise ValueError(f"{text[:40]!r} is no list of devices")
    shape = [int(n) for n in match[1].split(",")]
    numbers = np.arange(np.prod(shape)).reshape(shape)
    order = [int(n) for n in match[2].split(",")] if match[2] else range(len(shape))
    return numbers.transpose(order).reshape(-1)


def _named(axes: str, rest: str) -> Groups:
    """`mesh['a'=2,'b'=4], device_ids=([8]) {'b':(1)2}`: groups along axes and sub-axes."""
    mesh = Mesh([(name, int(size)) for name, size in re.findall(r"'([^']+)'=(\d+)", axes)])
    ids = re.search(r"device_ids=\(?(\[[\d,]+\](?:T\([\d,]+\))?)", rest)
    devices = _iota(ids[1]) if ids else np.arange(mesh.size)
    chosen = re.findall(r"\{([^}]*)\}", rest)[-1]
    digits = []
    for name, pre, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", chosen):
        digit = mesh.digit(name)
        if pre:
            digit = Digit(digit.stride * digit.size // (int(pre) * int(size)), int(size))
        digits.append(digit)
    return [[int(devices[p]) for p in g] for g in digit_groups(tuple(digits), mesh.size)]


def group_axes(groups: Sequence[Sequence[int]], mesh: Mesh) -> tuple[str, ...] | None:
    """The axes, major first, that groups run along; None if they are no axes or sub-axes.

    >>> group_axes([[0, 2], [1, 3]], Mesh({"x": 2, "y": 2}))
    ('x',)
    """
    members = sorted(next((g for g in groups if 0 in g), ()))
    digits = _radix(members)
    same = {frozenset(g) for g in digit_groups(digits, mesh.size)} == set(map(frozenset, groups))
    try:
        found = [repr(mesh.axis_ref(d)) for digit in digits for d in _cut(digit, mesh)]
    except MeshError:
        return None
    return tuple(found) if same else None


def _radix(members: Sequence[int]) -> Digits:
    """The digits, major first, whose positions with all else 0 are `members`, if there are any."""
    digits: list[Digit] = []
    covered = 1
    while covered < len(members):
        stride = members[covered]
        size = 1
        while covered * size < len(members) and members[covered * size] == stride * size:
            size += 1
        digits.append(Digit(stride, size))
        covered *= size
    return tuple(reversed(digits))


def _cut(digit: Digit, mesh: Mesh) -> list[Digit]:
    """`digit` cut at the borders of the mesh axes that it covers, major first."""
    pieces = []
    for name in mesh.axis_names:
        axis = mesh.digit(name)
        low = max(digit.stride, axis.stride)
        high = min(digit.stride * digit.size, axis.stride * axis.size)
        if low < high:
            pieces.append(Digit(low, high // low))
    return pieces


def moved_axes(pairs: Sequence[tuple[int, int]], mesh: Mesh) -> tuple[str, ...]:
    """The axes along which source and target of a permute differ.

    >>> moved_axes([(0, 1), (1, 0)], Mesh({"x": 2, "y": 2}))
    ('y',)
    """
    return tuple(
        name
        for name in mesh.axis_names
        if any(
            mesh.digit(name).at(source) != mesh.digit(name).at(target) for source, target in pairs
        )
    )
