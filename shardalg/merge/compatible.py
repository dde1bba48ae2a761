"""The relations compatible, merge, equal and refines, decided in closed form on digit tuples.

Two shardings are compatible exactly if (A) they give equal offsets on every dimension that both
split, and (B) the partition ids on all split dimensions are *balanced*: every tile is on equally
many devices (GSPMD, arXiv:2105.04663, section 3.5). Equal offsets mean equal canonical digits,
because offset 0 is on `N / n` devices. Two chains of digits are balanced exactly if no digit of one
overlaps a digit of the other (`digits.overlap`). Tables of partition ids (`merged.Rows`) decide the
other cases: device orders that no digits relate, and digits of three or more meshes.
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
from shardalg.merge.places import escape
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
    """Return the coarsest sharding that agrees with all operands, or the reason for a refusal.

    Merging is associative, so several operands are merged from left to right: the merge of the
    first ones with the next one. A refusal names these two. Shardings that merge in pairs do not
    always merge together, for example 2-way splits of 4 devices by bit 0, by bit 1 and by their sum
    modulo 2.

    Args:
      policy: "gspmd": a dimension that both split must have equal offsets. "shardy": the axes of
        one may be the major part of the axes of the other, and the result has the longer ones.
      decide: "closed_form", or "z3": the solver searches the merged sharding by its definition
        alone (`by_definition.search`), device by device; for checks on up to some thousand devices.

    Raises:
      ShardingError: different shapes or devices, or an unknown policy or decider.
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
    # Two operands in closed form are the common case. `_merge` decides it completely, whereas more
    # operands need a last check of their closed dimensions.
    if decide != "closed_form" or others:
        return _merge_many((first, second, *others), policy, decide)
    return _merge(first, second, policy, "merge")


def compatible(
    first: Sharding, second: Sharding, *others: Sharding, policy: str = "gspmd"
) -> Verdict:
    """Return whether `merge` finds a sharding; the verdict also has the sharding."""
    if others:
        return replace(merge(first, second, *others, policy=policy), relation="compatible")
    return _merge(first, second, policy, "compatible")


def equal(first: Sharding, second: Sharding) -> Verdict:
    """Return whether both give every device the same offsets, and the same partial sums.

    Open dimensions and explicitly replicated axes are not compared.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh, swapped = Mesh({"x": 2, "y": 2}), Mesh({"x": 2, "y": 2}, device_ids=[0, 2, 1, 3])
    >>> x, y = Sharding.from_axes(["x"], mesh, (8,)), Sharding.from_axes(["y"], swapped, (8,))
    >>> bool(equal(x, y)), bool(equal(x, Sharding.from_axes(["y"], mesh, (8,))))
    (True, False)
    """
    second = _on_first_mesh(first, second, "gspmd")
    return Verdict("equal", (first, second), failure=_differs(first, second))


def refines(fine: Sharding, coarse: Sharding) -> Verdict:
    """Return whether every device's block of `fine` is inside its block of `coarse`.

    Then a local slice leads from `coarse` to `fine`, and a gather from `fine` to `coarse`. If the
    axes of `coarse` are the major ones, an `n*m`-way split of a dimension `D` nests in the `n`-way
    one exactly if `ceil(D/n) = m * ceil(D/(n*m))`, `n = 1` or `D <= 1`. Empty blocks are inside any
    other block.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh = Mesh({"x": 2, "y": 2})
    >>> both, x = (Sharding.from_axes([e], mesh, (10,)) for e in (("x", "y"), "x"))
    >>> bool(refines(both, x)), refines(both, x).witness
    (False, Witness(device=1, dim=0, offsets=(3, 0), dims=(), tile=(), count=None, expected=None))
    """
    coarse = _on_first_mesh(fine, coarse, "gspmd")
    return Verdict("refines", (fine, coarse), failure=_not_contained(fine, coarse))


def _merge(first: Sharding, second: Sharding, policy: str, relation: str) -> Verdict:
    """Return the verdict on merging two shardings, or on another relation with the same test.

    The digits decide, if both meshes order their devices alike. Otherwise tables of the partition
    ids of all devices are compared.

    Args:
      relation: the name of the relation in the verdict, such as "merge".
    """
    # Digits of one mesh object are comparable as they are, so the checks and the conversion to one
    # mesh are skipped.
    known = type(first) is type(second) is Sharding and policy in POLICIES
    if not known or first.shape != second.shape or first.mesh is not second.mesh:
        second = _on_first_mesh(first, second, policy)
        if not _same_order(first, second):
            return _merge_tables(first, second, policy, relation)
    # Open dimensions and classes are rare: compare them only if there are some.
    dims, failure = _merged_dims(first, second, policy)
    if failure is None:
        failure = (
            _closed((first, second), dims) or _class_mismatch(first, second)
            if first.unspecified_dims or second.unspecified_dims or first.classes != second.classes
            else None
        ) or _overlap(first, second)
    merged = dims if failure is None else None
    return Verdict(relation, (first, second), policy, merged, failure)


def _merge_many(operands: tuple[Sharding, ...], policy: str, decide: str) -> Verdict:
    """Return the verdict on several shardings, merged from left to right."""
    if decide not in DECIDERS:
        raise ShardingError(f"decide={decide!r} is not one of {list(DECIDERS)}.")
    merged = operands[0]
    for operand in operands[1:]:
        # Two at a time lose no solution. A merge is the coarsest sharding that agrees with both, so
        # each sharding that agrees with all operands also agrees with the merge so far.
        if decide == "closed_form":
            verdict = _merge(merged, operand, policy, "merge")
        else:
            from shardalg.merge.by_definition import search

            verdict = search(merged, _on_first_mesh(merged, operand, policy), policy)
        if verdict.sharding is None:
            # Of several operands, the refusal names the two that clash: the merge so far, and the
            # operand that cannot be merged with it.
            clash = None if len(operands) == 2 else verdict.pair
            return replace(verdict, operands=operands, clash=clash) if clash else verdict
        merged = verdict.sharding
    # The merge of two operands with different open dimensions has none, so that it no longer shows
    # which dimensions are closed. Therefore check all operands against the result.
    failure = _closed(operands, merged.dims)
    if failure is not None:
        closed = next(s for s in operands if _closed((s,), merged.dims))
        return Verdict("merge", operands, policy, None, failure, (closed, merged))
    return Verdict("merge", operands, policy, merged)


def _same_order(first: Sharding, second: Sharding) -> bool:
    """Return whether each position is the same device in both meshes."""
    return first.mesh is second.mesh or first.mesh.device_ids == second.mesh.device_ids


def _merged_dims(
    first: Sharding, second: Sharding, policy: str
) -> tuple[tuple[Digits, ...], Failure | None]:
    """Return (the digits of each merged dimension, None), or ((), failure).

    It fails for the first dimension that both operands split in different ways, so that a device
    would need two offsets in it (condition (A) of a merge). With policy "shardy", one operand's
    digits may be the major part of the other's; the result takes the longer ones.
    """
    dims: list[Digits] = []
    pairs = zip(first.canonical_dims, second.canonical_dims, strict=True)
    for i, (a, b) in enumerate(pairs):
        # Canonical digits decide, but the result takes an operand's own digits: these are the axes
        # that the user wrote.
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
    """Return the failure that a merge would refine a closed dimension; None if there is none.

    A dimension is closed in an operand that leaves only other dimensions open. An operand without
    open dimensions has no closed ones.
    """
    for sharding in operands:
        if sharding.unspecified_dims:
            for i, (own, merged) in enumerate(zip(sharding.canonical_dims, dims, strict=True)):
                # A merge only refines, so the same number of blocks means the same blocks.
                if i not in sharding.unspecified_dims and parts(own) != parts(merged):
                    return Failure("closed", (i,))
    return None


def _class_mismatch(first: Sharding, second: Sharding) -> Failure | None:
    """Return the failure that unreduced or manual digits differ; None if they are equal."""
    # Two shardings of one value are compared. If only one of them is a partial sum, or is inside a
    # manual region, the devices have different values, which no slice or gather makes equal.
    for name, a, b in zip(CLASSES[:2], first.classes, second.classes, strict=False):
        if a != b:
            return Failure("class", (name,))
    return None


def _overlap(first: Sharding, second: Sharding) -> Failure | None:
    """Return the failure that some tile would be on too few or too many devices; None if none is.

    A tile is a combination of one block in each dimension. The merged sharding must have every tile
    on equally many devices (condition (B) of a merge). It is checked on the digits: two digits that
    do not vary independently (`overlap`) may not split two dimensions.
    """
    first_places = first.split_places
    second_places = [place for place in second.split_places if place not in first_places]
    crossing = False
    # Digits that nest vary independently. Only pairs of different dimensions matter, because the
    # digits of one dimension were compared before.
    for here, digits in first_places:
        for there, others in second_places:
            if here == there:
                continue
            for a in digits:
                for b in others:
                    if not nested(a, b):
                        if overlap(a, b):
                            return Failure("overlap", (here, there))
                        # Two digits of one mesh nest or overlap: these belong to two meshes.
                        crossing = True
    # Two chains of digits are balanced if no pair overlaps. Digits of three meshes are not, so
    # count the tiles over one period of all digits.
    if not crossing or (_is_chain(first) and _is_chain(second)):
        return None
    places = dict(first_places) | dict(second_places)
    period = math.lcm(*(d.stride * d.size for digits in places.values() for d in digits))
    positions = np.arange(period)
    ids = {place: partition_ids(digits, positions) for place, digits in places.items()}
    table = Rows(period, {place: parts(digits) for place, digits in places.items()}, ids)
    return None if table.is_balanced(tuple(places)) else Failure("joint", tuple(places))


def _is_chain(sharding: Sharding) -> bool:
    """Return whether the digits are nested in pairs, as digits of one mesh are."""
    digits = [d for _, row in sharding.split_places for d in row]
    return all(nested(a, b) for i, a in enumerate(digits) for b in digits[:i])


def _differs(first: Sharding, second: Sharding) -> Failure | None:
    """Return a failure with the first dimension whose offsets differ; None if all are equal.

    Unreduced and manual axes are compared too.
    """
    # Digits number blocks by a device's position in the mesh. If the meshes order their devices
    # differently, a device has two positions, and equal digits do not give it equal blocks. The
    # blocks' numbers (partition ids) are then compared for each device.
    if not _same_order(first, second):
        return _differs_by_device(rows_of(first), rows_of(second))
    pairs = zip(first.canonical_dims, second.canonical_dims, strict=True)
    for i, (a, b) in enumerate(pairs):
        if a != b:
            return Failure("offset", (i,))
    return _class_mismatch(first, second)


def _differs_by_device(first: Rows, second: Rows) -> Failure | None:
    """Return a failure with the first dimension whose partition ids differ on some device.

    The classes "unreduced" and "manual" are compared too. None if all ids are equal.

    Args:
      first, second: tables with the partition id of each device, per dimension or class.
    """
    for place in {**first.parts, **second.parts}:
        is_in_both = place in first.parts and place in second.parts
        equal_ids = is_in_both and np.array_equal(first.ids[place], second.ids[place])
        # Devices along a replicated axis hold equal blocks, so their ids make no difference.
        if place != "replicated" and not equal_ids:
            return Failure("class" if place in CLASSES else "offset", (place,))
    return None


def _not_contained(fine: Sharding, coarse: Sharding) -> Failure | None:
    """Return a failure if a block of `fine` is not inside the same device's block of `coarse`.

    None if all blocks are inside.
    """
    if _same_order(fine, coarse):
        mismatch = _class_mismatch(fine, coarse)
        if mismatch is not None or _nests(fine, coarse):
            return mismatch
    # The closed form is complete only if no block of `fine` is empty, because empty blocks are
    # inside any other block. Otherwise check every device.
    dim_blocks = zip(fine.parts, fine.shard_shape, fine.shape, strict=True)
    has_no_empty_block = all((n - 1) * block < size for n, block, size in dim_blocks)
    if not has_no_empty_block or not _same_order(fine, coarse):
        escaping_dims = (escape(fine, coarse, device) for device in fine.mesh.order)
        escaping_dim = next((dim for dim in escaping_dims if dim is not None), None)
        return None if escaping_dim is None else Failure("contained", (escaping_dim,))
    # No block is empty, so the closed form (`_nests`) decided; it names no dimension.
    return Failure("contained", ())


def _nests(fine: Sharding, coarse: Sharding) -> bool:
    """Return whether axes of `fine` begin with the axes of `coarse`, and block borders meet.

    Then `fine` refines `coarse`. The converse is true if no block of `fine` is empty: the partition
    id of `coarse` is then a monotone function of the one of `fine`, and a division, because equally
    many devices have each id.
    """
    rows = zip(fine.shape, fine.canonical_dims, coarse.canonical_dims, strict=True)
    for dim, (size, a, b) in enumerate(rows):
        if a == b:
            continue
        if split_prefix(a, b) is None:
            return False
        ratio = fine.parts[dim] // coarse.parts[dim]
        # m*ceil(D/(n*m)) >= ceil(D/n). If it is larger, a block of `fine` crosses the first border
        # of `coarse`.
        block = coarse.shard_shape[dim]
        if size > block and block != ratio * fine.shard_shape[dim]:
            return False
    return True


def _on_first_mesh(first: Sharding, second: Sharding, policy: str) -> Sharding:
    """Return the second sharding on the mesh of the first one if axes of that mesh can express it.

    Otherwise return it unchanged.

    Raises:
      ShardingError: the operands are no shardings of one shape on the same devices, or the policy
        is unknown.
    """
    # Users often pass text or a PartitionSpec; the message says how to read these.
    no_shardings = [s for s in (first, second) if not isinstance(s, Sharding)]
    if no_shardings:
        raise ShardingError(
            f"only shardings can be compared, got {no_shardings[0]!r}: read text with "
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
    # Equal positions need no restating, and a reason then names the axes that the user wrote.
    if first.mesh.device_ids == second.mesh.device_ids:
        return second
    return restate(second, first.mesh) or second


def _merge_tables(first: Sharding, second: Sharding, policy: str, relation: str) -> Verdict:
    """Return the verdict on a merge by comparing device by device, for unrelated device orders.

    No digits of one mesh state the other device order, so tables with the partition ids of all
    devices are joined.
    """
    pair = (first, second)
    if first.replicated and second.replicated:
        raise ShardingError(
            f"{first!r} and {second!r} order their devices differently, and both keep axes "
            "explicitly replicated. One device order may be unable to keep both. Put both on one "
            "mesh, or remove the replicated axes from one of them."
        )
    # A table does not show which digits overlap, so its failure of balance is always "joint".
    joint = join(rows_of(first), rows_of(second), prefixes=policy == "shardy")
    # `join` returns the table of the merge, or the parts of a failure.
    if isinstance(joint, Rows):
        merged = from_table(joint, first, second)
        failure = _closed(pair, merged.dims)
        return Verdict(relation, pair, policy, None if failure else merged, failure)
    return Verdict(relation, pair, policy, None, Failure(*joint))
