"""All values that an index takes over the devices of a mesh, without looking at every device."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digits, canonical, overlap, partition_ids, parts

Ids = tuple[tuple[str, Digits], ...]
"""Digits of every partition id in an index, by name."""


def extremes(index: Index, ids: Ids, devices: int) -> tuple[int, int]:
    """Smallest and largest value over the devices; the index has no remainder.

    >>> from shardalg.algebra.digits import Digit
    >>> extremes(Index.of("p") * -3 + 1, (("p", (Digit(1, 4),)),), 4)
    (-8, 1)
    """
    terms = _independent(index, ids)
    if terms is None:
        found = _everywhere(index, ids, devices)
        return int(found.min()), int(found.max())
    ends = [(0, coefficient * (count - 1)) for coefficient, count in terms]
    low, high = (index.constant + sum(pick(end) for end in ends) for pick in (min, max))
    return low // index.div, high // index.div


def residues(index: Index, modulus: int, ids: Ids, devices: int) -> frozenset[int]:
    """All values modulo a number; a coefficient repeats itself after `cycle` partition ids.

    >>> from shardalg.algebra.digits import Digit
    >>> sorted(residues(Index.of("p") * 6 + 1, 8, (("p", (Digit(1, 1024),)),), 1024))
    [1, 3, 5, 7]
    """
    terms = _independent(index, ids)
    if terms is None:
        return frozenset(np.unique(_everywhere(index, ids, devices) % modulus).tolist())
    period = index.div * math.lcm(modulus, index.mod or 1)
    found = np.array([index.constant % period])
    for coefficient, count in terms:
        cycle = period // math.gcd(coefficient, period)
        steps = coefficient * np.arange(min(count, cycle))
        found = np.unique((found[:, None] + steps) % period)
    numbers = found // index.div
    return frozenset(np.unique((numbers % index.mod if index.mod else numbers) % modulus).tolist())


def _independent(index: Index, ids: Ids) -> list[tuple[int, int]] | None:
    """Coefficient and number of values of each partition id; None where they depend on others."""
    digits, total = dict(ids), dict[Digits, int]()
    for name, coefficient in index.terms:
        key = canonical(digits[name])
        total[key] = total.get(key, 0) + coefficient
    for one, two in combinations(total, 2):
        if any(overlap(a, b) for a in one for b in two):
            return None
    return [(coefficient, parts(key)) for key, coefficient in total.items()]


def _everywhere(index: Index, ids: Ids, devices: int) -> np.ndarray:
    positions = np.arange(devices)
    found = index.at({name: partition_ids(digits, positions) for name, digits in ids})
    return np.broadcast_to(found, (devices,))
