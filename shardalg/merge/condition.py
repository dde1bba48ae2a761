"""Conditions on mesh sizes, for answers that are not the same for all sizes.

Digits of one mesh need no condition: the answer is the same for all sizes. Digits of two meshes
over the same devices are independent exactly if `gcd(s*n, t*m)` divides `s` or `t`
(`digits.overlap`), which is a statement about the sizes. Also on one mesh, the sizes decide whether
uneven blocks nest. `refinement.py` has the theorem; its conditions use names of axes even if the
sizes of the mesh are numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from shardalg.algebra.digits import split_prefix
from shardalg.algebra.sharding import Sharding
from shardalg.errors import ShardingError
from shardalg.merge.places import (
    ONE,
    DimOrClass,
    Monomial,
    NamedDigit,
    device_count,
    named_places,
    product,
)
from shardalg.merge.refinement import Inside, apart_along, cuts_of


@dataclass(frozen=True)
class SizeStatement:
    """One statement about sizes.

    Attributes:
      kind: "equal" (a = b), "divides" (a divides b), "either" (one divides the other), "coprime"
        (gcd(a, b) = 1), "independent" (gcd(a, b) divides c or d), "nests" (ceil(a/b) =
        c*ceil(a/(b*c))).
    """

    kind: str
    terms: tuple[Monomial, ...]

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the statement is true at given sizes."""
        return _HOLDS[self.kind](*(term.at(sizes) for term in self.terms))

    def __repr__(self) -> str:
        return _TEXT[self.kind].format(*self.terms)


_HOLDS: dict[str, Callable[..., bool]] = {
    "equal": lambda a, b: a == b,
    "divides": lambda a, b: b % a == 0,
    "either": lambda a, b: a % b == 0 or b % a == 0,
    "coprime": lambda a, b: math.gcd(a, b) == 1,
    "independent": lambda a, b, c, d: c % math.gcd(a, b) == 0 or d % math.gcd(a, b) == 0,
    "nests": lambda size, n, m: -(-size // n) == m * -(-size // (n * m)),
}
_TEXT = {
    "equal": "{} = {}",
    "divides": "{} divides {}",
    "either": "{0} divides {1} or {1} divides {0}",
    "coprime": "gcd({}, {}) = 1",
    "independent": "gcd({}, {}) divides {} or {}",
    "nests": "ceil({0}/({1})) = {2}*ceil({0}/({1}*{2}))",
}


@dataclass(frozen=True)
class Condition:
    """The statements about sizes that are all true exactly if the relation holds.

    Attributes:
      counted: True if tiles were counted at the given sizes, because pairs do not decide about
        digits of three or more meshes. The condition then says nothing about other sizes.

    >>> x, y = Monomial.named("X"), Monomial.named("Y")
    >>> condition = Condition((SizeStatement("coprime", (x, y)),))
    >>> condition, condition.holds(X=2, Y=3), condition.holds(X=2, Y=4)
    (gcd(X, Y) = 1, True, False)
    """

    facts: tuple[SizeStatement | Inside, ...]
    counted: bool = False

    def holds(self, **sizes: int) -> bool:
        """Return whether the relation holds at the given sizes of the named axes.

        Raises:
          ShardingError: a necessary size is missing, or tiles were counted.
        """
        size_names = {name for f in self.facts for term in f.terms for name, _ in term.powers}
        if size_names - set(sizes) or self.counted:
            raise ShardingError(
                f"the condition {self!r} is about {sorted(size_names)}, and the sizes given are "
                f"{sizes}: give each of them. If tiles were counted, decide the relation again on "
                "a mesh of those sizes."
            )
        return all(fact.holds(sizes) for fact in self.facts)

    def __repr__(self) -> str:
        counted = ["the tiles counted at these sizes"] if self.counted else []
        return " and ".join([*map(repr, self.facts), *counted])


class _Never(Exception):
    """No sizes of at least 2 make the relation hold."""


def condition_of(operands: tuple[Sharding, ...], relation: str, policy: str) -> Condition | None:
    """Return the condition on the sizes under which the relation holds.

    None if the answer is the same for all sizes. The condition has statements for each pair of
    operands, such as "Y divides X", all of which must be true. If digits have no axis names, or
    statements about pairs are not sufficient (digits of three meshes), `counted` says that the
    answer holds for the given sizes only.

    Args:
      relation: "merge", "compatible", "equal" or "refines". policy: the rule for merges.
    """
    # On one mesh, conditions of refinement use names of axes even if the sizes are numbers. The
    # cuts of all operands give a sub-axis the same name in each of them.
    one_mesh = len({s.mesh.axes for s in operands}) == 1
    by_name = one_mesh and relation == "refines"
    cuts = cuts_of(operands) if one_mesh else ()
    places_of = [named_places(s, cuts, by_name=by_name) for s in operands]
    # Digits that are not made of axes have no names, so the answer is for the given sizes only.
    if any(places is None for places in places_of) or (
        relation == "refines" and len({s.mesh.device_ids for s in operands}) > 1
    ):
        return Condition((), counted=True)
    statements: list[SizeStatement | Inside] = []
    known_places = [places for places in places_of if places is not None]
    try:
        for i, (second, places) in enumerate(zip(operands, known_places, strict=True)):
            for first, earlier in zip(operands[:i], known_places[:i], strict=True):
                statements += _equal(device_count(first.mesh), device_count(second.mesh))
                statements += _RELATIONS[relation](earlier, places, (first, second, policy))
    except _Never:
        return None
    # Pairs of digits of three meshes are necessary statements, but not sufficient ones.
    facts = tuple(dict.fromkeys(statements))
    counted = (
        len(known_places) > 1
        and relation != "refines"
        and not _two_chains(known_places)
        and bool(facts)
    )
    return Condition(facts, counted) if facts else None


Places = Mapping[DimOrClass, tuple[NamedDigit, ...]]
Given = tuple[Sharding, Sharding, str]


def _two_chains(layouts: Iterable[Places]) -> bool:
    """Return whether all digits belong to at most two meshes.

    Digits of one mesh are nested in pairs: the period of one divides the stride of the other, where
    a period is `stride * size`. So they form a chain. With two chains, a condition on the sizes
    needs to look at pairs of digits only.
    """
    # Digits of one mesh are nested in pairs, so each mesh is one chain.
    chains: list[list[NamedDigit]] = []
    for digit in (d for places in layouts for row in places.values() for d in row):
        chain = next((c for c in chains if all(digit.nests(other) for other in c)), None)
        if digit not in (d for c in chains for d in c):
            chains.append([digit]) if chain is None else chain.append(digit)
    return len(chains) <= 2


def _merge_statements(first: Places, second: Places, given: Given) -> Iterator[SizeStatement]:
    """Yield the statements about sizes under which two shardings have a merge.

    Dimensions that both split have equal offsets (A), and all tiles are on equally many devices
    (B); `compatible.py` has the proof.

    Args:
      given: the two shardings and the policy of the merge.
    """
    # (A) Only a dimension that both split can have two offsets on one device.
    agree = _prefixes if given[2] == "shardy" else _same
    for place in first:
        if place in second and isinstance(place, int):
            yield from agree(first[place], second[place])
    # (B) Digits of two places are compared unless `first` has both of them: digits of one sharding
    # are independent already.
    for here, digits in first.items():
        for there, others in second.items():
            if here != there and first.get(there) != others:
                for a in digits:
                    for b in others:
                        yield from _independent(a, b)


def _refine_statements(
    fine: Places, coarse: Places, given: Given
) -> Iterator[SizeStatement | Inside]:
    """Yield the statements about sizes under which `fine` refines `coarse`, per dimension.

    `refinement.py` has the theorem, with its three cases.

    Args:
      given: the two shardings, and the policy, which refinement does not use.
    """
    first, second, _ = given
    one_mesh = first.mesh.axes == second.mesh.axes
    if not math.prod(first.shape):
        return  # no block has elements
    # Some device's block is then outside of its block of the other sharding at all sizes, so that
    # no condition on sizes can make the shardings refine each other.
    if one_mesh and apart_along(first, second):
        raise _Never
    for dim, size in enumerate(first.shape):
        digits, others = fine.get(dim, ()), coarse.get(dim, ())
        if not others or digits == others:
            continue
        if one_mesh and split_prefix(first.dims[dim], second.dims[dim]) is not None:
            # Case 1 of the theorem in `refinement.py`: the axes of `coarse` are the major ones, so
            # the blocks nest exactly if the borders of coarse blocks are borders of fine blocks.
            n = product(digit.size for digit in others)
            total = product(digit.size for digit in digits)
            if size > 1:
                yield SizeStatement("nests", (Monomial(size), n, total.over(n)))
            continue
        # Case 3 of the theorem: no formula decides, so the definition is evaluated at given sizes.
        # Without names of sizes nothing can change, and the statement is not needed.
        every = tuple(fine.get(place, ()) for place in range(len(first.shape)))
        texts = first.text(), second.text()
        devices = device_count(first.mesh, by_name=one_mesh)
        inside = Inside(dim, every, coarse[dim], first.shape, devices, texts)
        if any(term.powers for term in inside.terms):
            yield inside


_RELATIONS: dict[str, Callable[[Places, Places, Given], Iterator[SizeStatement | Inside]]] = {
    "merge": _merge_statements,
    "compatible": _merge_statements,
    # The places of both are visited: one that only one of them splits makes the layouts differ.
    "equal": lambda first, second, _: (
        statement
        for place in {**first, **second}
        for statement in _same(first.get(place, ()), second.get(place, ()))
    ),
    "refines": _refine_statements,
}


def _equal(first: Monomial, second: Monomial) -> Iterator[SizeStatement]:
    """Yield the statement that two products are equal; nothing if they are equal at all sizes.

    Raises:
      _Never: they are equal at no sizes.
    """
    common = first.common(second)
    a, b = first.over(common), second.over(common)
    if a == b:
        return
    # Named sizes are at least 2, so that a product of them is never 1.
    if ONE in (a, b) or not (a.powers or b.powers):
        raise _Never
    yield SizeStatement("equal", (a, b) if (a.powers, a.number) <= (b.powers, b.number) else (b, a))


def _divides(first: Monomial, second: Monomial) -> Iterator[SizeStatement]:
    """Yield the statement that the first product divides the second; nothing if it always does.

    A product is a number times powers of named sizes. For example, 2*X divides 4*Y exactly if X
    divides 2*Y.

    Raises:
      _Never: it divides the second at no sizes.
    """
    common = first.common(second)
    # A common factor of both products does not matter.
    a, b = first.over(common), second.over(common)
    if a == ONE:
        return
    # Nothing except 1 divides 1, and two numbers without sizes are decided already.
    if b == ONE or not (a.powers or b.powers):
        raise _Never
    yield SizeStatement("divides", (a, b))


def _same(first: tuple[NamedDigit, ...], second: tuple[NamedDigit, ...]) -> Iterator[SizeStatement]:
    """Yield the statements that two tuples of digits are equal, digit by digit."""
    # Different numbers of canonical digits are different layouts at all sizes of at least 2.
    if len(first) != len(second):
        raise _Never
    for a, b in zip(first, second, strict=True):
        yield from _equal(a.stride, b.stride)
        yield from _equal(a.size, b.size)


def _prefixes(
    first: tuple[NamedDigit, ...], second: tuple[NamedDigit, ...]
) -> Iterator[SizeStatement]:
    """Yield the statements that one tuple of digits is a major part of the other."""
    if len(first) != len(second):
        yield from _prefix(*sorted((first, second), key=len, reverse=True))
        return
    # With equally many digits the sizes decide which one is the finer one. All digits except the
    # last are equal. The last ones have equal periods (`top`, which is stride * size). One of them
    # is the major part of the other if its stride is a multiple of the other's.
    yield from _same(first[:-1], second[:-1])
    yield from _equal(first[-1].top, second[-1].top)
    a, b = first[-1].stride, second[-1].stride
    common = a.common(b)
    if not (a.divides(b) or b.divides(a)):
        yield SizeStatement("either", (a.over(common), b.over(common)))


def _prefix(
    fine: tuple[NamedDigit, ...], coarse: tuple[NamedDigit, ...]
) -> Iterator[SizeStatement]:
    """Yield the statements that `coarse` is a major part of `fine`.

    The last digit of `coarse` may be the major part of one digit of `fine`.
    """
    # A longer tuple of named digits is never a major part of a shorter one.
    if len(coarse) > len(fine):
        raise _Never
    if not coarse:
        return
    last = len(coarse) - 1
    yield from _same(fine[:last], coarse[:last])
    yield from _equal(fine[last].top, coarse[last].top)
    yield from _divides(fine[last].stride, coarse[last].stride)


def _independent(a: NamedDigit, b: NamedDigit) -> Iterator[SizeStatement]:
    """Yield the statement that two digits do not overlap; nothing if they never do.

    They do not overlap if the greatest common divisor of their periods (`stride * size`, the
    property `top`) divides one of the strides. Common factors are cancelled.

    Raises:
      _Never: the digits overlap at all sizes.
    """
    # Digits of one mesh nest, and vary independently at all sizes.
    if a.nests(b):
        return
    if not (a.top.powers or b.top.powers):
        # Without named sizes: digits of one mesh that overlap do so at any sizes of the mesh.
        borders = sorted(t.number for d in (a, b) for t in (d.stride, d.top))
        if all(high % low == 0 for low, high in itertools.pairwise(borders)):
            raise _Never
    elif a.top.divides(b.top):
        # a.top is the gcd itself. It does not divide a.stride, which is smaller.
        yield from _divides(a.top, b.stride)
        return
    elif b.top.divides(a.top):
        yield from _divides(b.top, a.stride)
        return
    # With strides of 1 the greatest common divisor must be 1, but a size is in both periods.
    elif a.stride == b.stride == ONE and a.top.common(b.top) != ONE:
        raise _Never
    # The relation is symmetric: in one order, (a, b) and (b, a) give the same statement.
    a, b = sorted((a, b), key=lambda d: (d.top.powers, d.top.number))
    if a.stride == b.stride == ONE:
        yield SizeStatement("coprime", (a.top, b.top))
    else:
        yield SizeStatement("independent", (a.top, b.top, a.stride, b.stride))
