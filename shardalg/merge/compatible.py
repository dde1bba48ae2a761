"""Compatible, merge, refines: decided in closed form by integers on digit tuples.

Two shardings are compatible exactly if (A) they give equal offsets on every dimension that both
split, and (B) the partition ids on all split dimensions are *balanced*: every tile is held by
equally many devices (GSPMD, arXiv:2105.04663, section 3.5). Equal offsets mean equal canonical
digits, since offset 0 stands on `N / n` devices; and two chains of digits are balanced exactly if
no digit of one overlaps a digit of the other (`digits.overlap`).
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from shardalg.algebra.digits import Digit, Digits, Table, canonical, nested, overlap, split_prefix
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import ShardingError
from shardalg.merge.verdict import CLASSES, Failure, Verdict, escape, placed

POLICIES = ("gspmd", "shardy")


def merge(first: Sharding, second: Sharding, *, policy: str = "gspmd") -> Verdict:
    """The coarsest sharding that agrees with both, or why there is none.

    Args:
      policy: "gspmd": a dimension that both split must lie alike. "shardy": the axes of one may
        be the major part of the axes of the other, and the longer ones are taken.

    Raises:
      ShardingError: different shapes or numbers of devices, or an unknown policy.

    >>> mesh = Mesh({"x": 2, "y": 4})
    >>> a, b, c = (Sharding.from_axes(e, mesh, (8, 8)) for e in (["x"], [None, "y"], [None, "x"]))
    >>> merge(a, b).sharding
    Sharding([x, y], shape=(8, 8), Mesh(x=2, y=4))
    >>> bool(merge(a, c)), merge(a, c).witness.tile, merge(a, c).witness.count
    (False, (0, 1), 0)
    """
    return _merge(first, _placed_alike(first, second, policy), policy, "merge")


def compatible(first: Sharding, second: Sharding, *, policy: str = "gspmd") -> Verdict:
    """Whether `merge` finds a sharding; the verdict carries it too."""
    return _merge(first, _placed_alike(first, second, policy), policy, "compatible")


def refines(fine: Sharding, coarse: Sharding) -> Verdict:
    """Whether every device's block of `fine` lies inside its block of `coarse`.

    Then `fine` is reached by slicing locally, and `coarse` by gathering. With the axes of
    `coarse` the major ones, an `n*m`-way split of a dimension `D` nests in the `n`-way one exactly
    if `ceil(D/n) = m * ceil(D/(n*m))`, `n = 1` or `D <= 1`; empty blocks lie in any other.

    >>> mesh = Mesh({"x": 2, "y": 2})
    >>> both, x = (Sharding.from_axes([e], mesh, (10,)) for e in (("x", "y"), "x"))
    >>> bool(refines(both, x)), refines(both, x).witness
    (False, Witness(device=1, dim=0, offsets=(3, 0), dims=(), tile=(), count=None, expected=None))
    """
    coarse = _placed_alike(fine, coarse, "gspmd")
    return Verdict("refines", (fine, coarse), failure=_not_contained(fine, coarse))


def _merge(first: Sharding, second: Sharding, policy: str, relation: str) -> Verdict:
    operands = (first, second)
    if not _one_order(first, second):
        return _merge_tables(first, second, policy, relation)
    dims, failure = _joined(first, second, policy)
    failure = (
        failure or _closed(operands, dims) or _class_mismatch(first, second) or _overlap(*operands)
    )
    if failure is not None:
        return Verdict(relation, operands, policy, None, failure)
    return Verdict(relation, operands, policy, _result(first, second, dims))


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


def _closed(operands: tuple[Sharding, Sharding], dims: tuple[Digits, ...]) -> Failure | None:
    """The first dimension that would be refined although an operand leaves only others open."""
    for sharding in operands:
        if sharding.unspecified_dims:
            for i, (held, merged) in enumerate(zip(sharding.canonical_dims, dims, strict=True)):
                if i not in sharding.unspecified_dims and held != canonical(merged):
                    return Failure("closed", (i,))
    return None


def _class_mismatch(first: Sharding, second: Sharding) -> Failure | None:
    """Partial sums, or a manual region, on one side only: the values are not the same."""
    if first.classes == second.classes:
        return None
    for name, a, b in zip(CLASSES[:2], first.classes, second.classes, strict=False):
        if a != b:
            return Failure("class", (name,))
    return None


def _overlap(first: Sharding, second: Sharding) -> Failure | None:
    """Two places that the same devices would split: condition (B)."""
    held = list(placed(first))
    taken = [(place, digits) for place, digits in placed(second) if (place, digits) not in held]
    crossing = False
    for here, digits in held:
        for there, others in taken:
            if here == there:
                continue
            for a in digits:
                for b in others:
                    if overlap(a, b):
                        return Failure("overlap", (here, there))
                    crossing = crossing or not nested(a, b)
    if crossing and not (_is_chain(first) and _is_chain(second)):
        return _unbalanced(held, taken, first.mesh.size)
    return None


def _is_chain(sharding: Sharding) -> bool:
    digits = [d for _, held in placed(sharding) for d in held]
    return all(nested(a, b) for i, a in enumerate(digits) for b in digits[:i])


def _unbalanced(
    held: list[tuple[int | str, Digits]], taken: list[tuple[int | str, Digits]], size: int
) -> Failure | None:
    """Digits of three meshes: pairs do not decide, so the tiles are counted."""
    places = dict(held) | dict(taken)
    if Table.of(tuple(places.values()), size).is_balanced:
        return None
    return Failure("joint", tuple(places))


def _result(first: Sharding, second: Sharding, dims: tuple[Digits, ...]) -> Sharding:
    """The merged sharding; an operand itself where it already is the result."""
    kept = _union(first.replicated, second.replicated)
    opened = _open_dims(first, second)
    for operand in (first, second):
        if (dims, kept, opened) == (operand.dims, operand.replicated, operand.unspecified_dims):
            return operand
    return replace(first, dims=dims, replicated=kept, unspecified_dims=opened)


def _union(first: Digits, second: Digits) -> Digits:
    """Explicitly replicated digits of both; what overlaps is held once, whole."""
    if not second or first == second:
        return first
    more = tuple(d for d in second if not any(overlap(d, e) and d.size <= e.size for e in first))
    return (*(d for d in first if not any(overlap(d, e) for e in more)), *more)


def _open_dims(first: Sharding, second: Sharding) -> tuple[int, ...]:
    """Open dimensions stay open unless the other operand, open elsewhere, holds them closed."""
    a, b = first.unspecified_dims, second.unspecified_dims
    return tuple(i for i in a if i in b) if a and b else a or b


def _not_contained(fine: Sharding, coarse: Sharding) -> Failure | None:
    differs = _class_mismatch(fine, coarse)
    if differs is not None or (_one_order(fine, coarse) and _nests(fine, coarse)):
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
        return replace(second, mesh=first.mesh)
    return _translated(second, first.mesh)


def _translated(sharding: Sharding, mesh: Mesh) -> Sharding:
    """The sharding in positions of `mesh`; itself where those are no digits."""
    held = (sharding.unreduced, sharding.replicated, sharding.manual)
    rows = (*sharding.dims, *((d,) for digits in held for d in digits))
    found = moved(Table.of(rows, mesh.size), sharding.mesh, mesh).recognize()
    if found is None:
        return sharding
    rank, counts = len(sharding.dims), [len(digits) for digits in held]
    flat = found[rank:]
    starts = [sum(counts[:k]) for k in range(4)]
    classes: list[Digits] = [
        tuple(d for digits in flat[a:b] for d in digits)
        for a, b in itertools.pairwise(starts)
    ]
    return Sharding(mesh, sharding.shape, found[:rank], sharding.unspecified_dims, *classes)


def moved(table: Table, source: Mesh, target: Mesh) -> Table:
    """A table over positions of `source`, over positions of `target`: devices keep their ids."""
    return table.permuted(tuple(source.position(device) for device in target.order))


def _merge_tables(first: Sharding, second: Sharding, policy: str, relation: str) -> Verdict:
    """Two device orders that no digits join: compared device by device."""
    if any(d for s in (first, second) for d in (*s.classes, s.unspecified_dims)) or (
        policy != "gspmd"
    ):
        raise ShardingError(
            f"{first!r} and {second!r} order their devices differently, and no digits of either "
            "mesh write both; such shardings merge only without unreduced, manual, replicated or "
            "unspecified parts and under the gspmd policy. Put both on one mesh."
        )
    table = Table.of(first.dims, first.mesh.size)
    other = moved(Table.of(second.dims, first.mesh.size), second.mesh, first.mesh)
    pairs = list(zip(table.parts, other.parts, table.ids, other.ids, strict=True))
    for dim, (n, m, a, b) in enumerate(pairs):
        if n > 1 and m > 1 and (n, a) != (m, b):
            return Verdict(relation, (first, second), policy, None, Failure("order", (dim,)))
    joint = Table(
        tuple(max(n, m) for n, m, _, _ in pairs), tuple(a if n > 1 else b for n, _, a, b in pairs)
    )
    if not joint.is_balanced:
        dims = tuple(dim for dim, n in enumerate(joint.parts) if n > 1)
        return Verdict(relation, (first, second), policy, None, Failure("joint", dims))
    return Verdict(relation, (first, second), policy, _from_table(joint, first, second))


def _from_table(table: Table, first: Sharding, second: Sharding) -> Sharding:
    """The sharding that a balanced table is: on either mesh, or on an order made for it."""
    for like in (first, second):
        found = moved(table, first.mesh, like.mesh).recognize()
        if found is not None:
            return replace(like, dims=found)
    size, tiles = first.mesh.size, list(zip(*table.ids, strict=True))
    order = sorted(range(size), key=lambda position: (tiles[position], position))
    dims, stride = [], size
    for n in table.parts:
        stride //= n
        dims.append((Digit(stride, n),) if n > 1 else ())
    mesh = Mesh.unnamed(size, [first.mesh.order[i] for i in order])
    return Sharding(mesh, first.shape, tuple(dims))
