"""Compatible, merge, equal, refines: decided in closed form by integers on digit tuples.

Two shardings are compatible exactly if (A) they give equal offsets on every dimension that both
split, and (B) the partition ids on all split dimensions are *balanced*: every tile is held by
equally many devices (GSPMD, arXiv:2105.04663, section 3.5). Equal offsets mean equal canonical
digits, since offset 0 stands on `N / n` devices; and two chains of digits are balanced exactly if
no digit of one overlaps a digit of the other (`digits.overlap`). Orders of devices that no digits
join, and digits of three or more meshes, are decided by tables of partition ids (`tables`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardalg.algebra.digits import Digits, nested, overlap, partition_ids, parts, split_prefix
from shardalg.algebra.layout import restate
from shardalg.algebra.sharding import CLASSES, Sharding
from shardalg.errors import ShardingError
from shardalg.merge.merged import Rows, from_table, join, rows_of
from shardalg.merge.places import DimOrClass, escape
from shardalg.merge.verdict import Failure, Verdict

POLICIES = ("gspmd", "shardy")
DECIDERS = ("closed_form", "z3")


def merge(
    first: Sharding,
    second: Sharding,
    *others: Sharding,
    policy: str = "gspmd",
    decide: str = "closed_form",
) -> Verdict:
    """The coarsest sharding that agrees with all operands, or why there is none.

    More than two are merged jointly: merging is associative, so the merge of the first ones meets
    the next one, and the clash that a refusal names is theirs. Pairs that merge do not always merge
    together: on 4 devices, 2-way splits by bit 0, by bit 1 and by their sum modulo 2 do in pairs.

    Args:
      policy: "gspmd": a dimension that both split must lie alike. "shardy": the axes of one may
        be the major part of the axes of the other, and the longer ones are taken.
      decide: "closed_form", or "z3": the solver searches the merged sharding by its definition
        alone (`search`), device by device; for checking, up to some thousand devices.

    Raises:
      ShardingError: different shapes or numbers of devices, or an unknown policy or decider.
      ProofError: z3 gave up.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh = Mesh({"x": 2, "y": 4})
    >>> a, b, c = (Sharding.from_axes(e, mesh, (8, 8)) for e in (["x"], [None, "y"], [None, "x"]))
    >>> merge(a, b).sharding
    Sharding([x, y], shape=(8, 8), Mesh(x=2, y=4))
    >>> bool(merge(a, c)), merge(a, c).witness.tile, merge(a, c).witness.count
    (False, (0, 1), 0)
    >>> merge(a, b, a).sharding == merge(a, b, decide="z3").sharding == merge(a, b).sharding
    True
    """
    if decide != "closed_form" or others:
        return _merge_many((first, second, *others), policy, decide)
    return _merge(first, second, policy, "merge")


def compatible(
    first: Sharding, second: Sharding, *others: Sharding, policy: str = "gspmd"
) -> Verdict:
    """Whether `merge` finds a sharding; the verdict carries it too."""
    if others:
        return replace(merge(first, second, *others, policy=policy), relation="compatible")
    return _merge(first, second, policy, "compatible")


def equal(first: Sharding, second: Sharding) -> Verdict:
    """Whether both give every device the same offsets, and the same partial sums.

    Open dimensions and explicitly replicated axes are no part of a layout.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh, swapped = Mesh({"x": 2, "y": 2}), Mesh({"x": 2, "y": 2}, device_ids=[0, 2, 1, 3])
    >>> x, y = Sharding.from_axes(["x"], mesh, (8,)), Sharding.from_axes(["y"], swapped, (8,))
    >>> bool(equal(x, y)), bool(equal(x, Sharding.from_axes(["y"], mesh, (8,))))
    (True, False)
    """
    second = _placed_alike(first, second, "gspmd")
    return Verdict("equal", (first, second), failure=_differs(first, second))


def refines(fine: Sharding, coarse: Sharding) -> Verdict:
    """Whether every device's block of `fine` lies inside its block of `coarse`.

    Then `fine` is reached by slicing locally, and `coarse` by gathering. With the axes of
    `coarse` the major ones, an `n*m`-way split of a dimension `D` nests in the `n`-way one exactly
    if `ceil(D/n) = m * ceil(D/(n*m))`, `n = 1` or `D <= 1`; empty blocks lie in any other.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh = Mesh({"x": 2, "y": 2})
    >>> both, x = (Sharding.from_axes([e], mesh, (10,)) for e in (("x", "y"), "x"))
    >>> bool(refines(both, x)), refines(both, x).witness
    (False, Witness(device=1, dim=0, offsets=(3, 0), dims=(), tile=(), count=None, expected=None))
    """
    coarse = _placed_alike(fine, coarse, "gspmd")
    return Verdict("refines", (fine, coarse), failure=_not_contained(fine, coarse))


def _merge(first: Sharding, second: Sharding, policy: str, relation: str) -> Verdict:
    known = type(first) is type(second) is Sharding and policy in POLICIES
    if not known or first.shape != second.shape or first.mesh is not second.mesh:
        second = _placed_alike(first, second, policy)
        if not _one_order(first, second):
            return _merge_tables(first, second, policy, relation)
    dims, failure = _joined(first, second, policy)
    if failure is None:
        failure = (
            _closed((first, second), dims) or _class_mismatch(first, second)
            if first.unspecified_dims or second.unspecified_dims or first.classes != second.classes
            else None
        ) or _overlap(first, second)
    merged = dims if failure is None else None
    return Verdict(relation, (first, second), policy, merged, failure)


def _merge_many(operands: tuple[Sharding, ...], policy: str, decide: str) -> Verdict:
    """From left to right; each step is exact, since a merge is the coarsest sharding."""
    if decide not in DECIDERS:
        raise ShardingError(f"decide={decide!r} is not one of {list(DECIDERS)}.")
    merged = operands[0]
    for operand in operands[1:]:
        verdict = _step(merged, operand, policy, decide)
        if verdict.sharding is None:
            clash = None if len(operands) == 2 else verdict.pair
            return replace(verdict, operands=operands, clash=clash) if clash else verdict
        merged = verdict.sharding
    failure = _closed(operands, merged.dims)
    if failure is not None:
        held = next(s for s in operands if _closed((s,), merged.dims))
        return Verdict("merge", operands, policy, None, failure, (held, merged))
    return Verdict("merge", operands, policy, merged)


def _step(first: Sharding, second: Sharding, policy: str, decide: str) -> Verdict:
    if decide == "closed_form":
        return _merge(first, second, policy, "merge")
    from shardalg.merge.by_definition import search

    return search(first, _placed_alike(first, second, policy), policy)


def _one_order(first: Sharding, second: Sharding) -> bool:
    """Whether positions of both meshes are the same devices."""
    return first.mesh is second.mesh or first.mesh.device_ids == second.mesh.device_ids


def _joined(
    first: Sharding, second: Sharding, policy: str
) -> tuple[tuple[Digits, ...], Failure | None]:
    """The digits of the merged dimensions, and the dimension on which the operands differ."""
    dims: list[Digits] = []
    pairs = zip(first.canonical_dims, second.canonical_dims, strict=True)
    for i, (a, b) in enumerate(pairs):
        if a == b or not b:
            dims.append(first.dims[i])
        elif not a or (policy == "shardy" and split_prefix(b, a) is not None):
            dims.append(second.dims[i])
        elif policy == "shardy" and split_prefix(a, b) is not None:
            dims.append(first.dims[i])
        else:
            return (), Failure("offset", (i,))
    return tuple(dims), None


def _closed(operands: Sequence[Sharding], dims: tuple[Digits, ...]) -> Failure | None:
    """The first dimension that would be refined although an operand leaves only others open."""
    for sharding in operands:
        if sharding.unspecified_dims:
            for i, (held, merged) in enumerate(zip(sharding.canonical_dims, dims, strict=True)):
                if i not in sharding.unspecified_dims and parts(held) != parts(merged):
                    return Failure("closed", (i,))
    return None


def _class_mismatch(first: Sharding, second: Sharding) -> Failure | None:
    """Partial sums, or a manual region, on one side only: the values are not the same."""
    for name, a, b in zip(CLASSES[:2], first.classes, second.classes, strict=False):
        if a != b:
            return Failure("class", (name,))
    return None


def _overlap(first: Sharding, second: Sharding) -> Failure | None:
    """Two places that the same devices would split: condition (B)."""
    held = first.split_places
    taken = [place for place in second.split_places if place not in held]
    crossing = False
    for here, digits in held:
        for there, others in taken:
            if here == there:
                continue
            for a in digits:
                for b in others:
                    if not nested(a, b):
                        if overlap(a, b):
                            return Failure("overlap", (here, there))
                        crossing = True
    if crossing and not (_is_chain(first) and _is_chain(second)):
        return _unbalanced(dict(held) | dict(taken))
    return None


def _is_chain(sharding: Sharding) -> bool:
    digits = [d for _, held in sharding.split_places for d in held]
    return all(nested(a, b) for i, a in enumerate(digits) for b in digits[:i])


def _unbalanced(places: dict[DimOrClass, Digits]) -> Failure | None:
    """Digits of three meshes: pairs do not decide, so the tiles are counted over one period."""
    period = math.lcm(*(d.stride * d.size for digits in places.values() for d in digits))
    positions = np.arange(period)
    ids = {place: partition_ids(digits, positions) for place, digits in places.items()}
    counted = Rows(period, {place: parts(digits) for place, digits in places.items()}, ids)
    return None if counted.is_balanced(tuple(places)) else Failure("joint", tuple(places))


def _differs(first: Sharding, second: Sharding) -> Failure | None:
    """The first dimension, or class, that is not the same."""
    if not _one_order(first, second):
        return _differs_by_device(rows_of(first), rows_of(second))
    pairs = zip(first.canonical_dims, second.canonical_dims, strict=True)
    for i, (a, b) in enumerate(pairs):
        if a != b:
            return Failure("offset", (i,))
    return _class_mismatch(first, second)


def _differs_by_device(first: Rows, second: Rows) -> Failure | None:
    for place in {**first.parts, **second.parts}:
        both = place in first.parts and place in second.parts
        alike = both and np.array_equal(first.ids[place], second.ids[place])
        if place != "replicated" and not alike:
            return Failure("class" if place in CLASSES else "offset", (place,))
    return None


def _not_contained(fine: Sharding, coarse: Sharding) -> Failure | None:
    if _one_order(fine, coarse):
        differs = _class_mismatch(fine, coarse)
        if differs is not None or _nests(fine, coarse):
            return differs
    rows = zip(fine.parts, fine.shard_shape, fine.shape, strict=True)
    full = all((n - 1) * block < size for n, block, size in rows)
    if not full or not _one_order(fine, coarse):  # empty blocks lie anywhere: looking decides
        dims = (escape(fine, coarse, device) for device in fine.mesh.order)
        found = next((dim for dim in dims if dim is not None), None)
        return None if found is None else Failure("contained", (found,))
    return Failure("contained", ())


def _nests(fine: Sharding, coarse: Sharding) -> bool:
    """The closed form: axes are a major part, and block borders meet.

    Complete where no block of `fine` is empty: there the partition id of `coarse` is a monotone
    function of that of `fine`, so equal shares of devices make it a division.
    """
    rows = zip(fine.shape, fine.canonical_dims, coarse.canonical_dims, strict=True)
    for dim, (size, a, b) in enumerate(rows):
        if a == b:
            continue
        if split_prefix(a, b) is None:
            return False
        ratio = fine.parts[dim] // coarse.parts[dim]
        # m*ceil(D/(n*m)) >= ceil(D/n); where it is more, the first border of `coarse` is crossed
        block = coarse.shard_shape[dim]
        if size > block and block != ratio * fine.shard_shape[dim]:
            return False
    return True


def _placed_alike(first: Sharding, second: Sharding, policy: str) -> Sharding:
    """The second sharding in positions of the first one's mesh, where digits can say it."""
    wrong = [s for s in (first, second) if not isinstance(s, Sharding)]
    if wrong:
        raise ShardingError(
            f"only shardings can be compared, got {wrong[0]!r}: read text with "
            "Sharding.parse(text, shape, mesh), a PartitionSpec with Sharding.from_spec."
        )
    if policy not in POLICIES:
        raise ShardingError(f"policy {policy!r} is not one of {list(POLICIES)}.")
    if first.shape != second.shape:
        raise ShardingError(
            f"shardings of shapes {first.shape} and {second.shape} cannot be compared: "
            f"{first.text()} and {second.text()} must be of one tensor."
        )
    if first.mesh is second.mesh or first.mesh == second.mesh:
        return second
    if sorted(first.mesh.order) != sorted(second.mesh.order):
        raise ShardingError(
            f"{first.text()} on {first.mesh!r} and {second.text()} on {second.mesh!r} are on "
            "different devices; meshes may differ in axes and order only."
        )
    if first.mesh.device_ids == second.mesh.device_ids:
        return second  # positions are the same; a reason names the axes that the user wrote
    return restate(second, first.mesh) or second


def _merge_tables(first: Sharding, second: Sharding, policy: str, relation: str) -> Verdict:
    """Two device orders that no digits join: compared device by device."""
    pair = (first, second)
    if first.replicated and second.replicated:
        raise ShardingError(
            f"{first!r} and {second!r} order their devices differently, and both keep axes "
            "explicitly replicated, which no one order of devices may have both. Put both on one "
            "mesh, or leave the replicated axes of one of them free."
        )
    joint = join(rows_of(first), rows_of(second), prefixes=policy == "shardy")
    if isinstance(joint, Rows):
        merged = from_table(joint, first, second)
        failure = _closed(pair, merged.dims)
        return Verdict(relation, pair, policy, None if failure else merged, failure)
    return Verdict(relation, pair, policy, None, Failure(*joint))
