"""The data of a sharding: what every notation reads and prints, below the class that users meet.

One layout stated in positions of another mesh over the same devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self, TypeVar

from shardalg.algebra.digits import (
    Digit,
    Digits,
    PositionTable,
    canonical,
    overlap,
    partition_ids,
    parts,
)
from shardalg.algebra.mesh import Mesh
from shardalg.errors import MeshError, ShardingError

# What stands beside the dimensions, in the order of `Sharding.classes`.
CLASSES = ("unreduced", "manual", "replicated")


@dataclass(frozen=True)
class Layout:
    """The fields of a `Sharding`, checked: notations are functions between text and these.

    It prints as the sharding that it is the data of, since messages speak of shardings.

    Raises:
      ShardingError: dimensions and shape differ in rank, one place of the device position is used
        twice, or a priority stands on a dimension without axes that is closed.
    """

    mesh: Mesh
    shape: tuple[int, ...]
    dims: tuple[Digits, ...]
    unspecified_dims: tuple[int, ...] = ()
    unreduced: Digits = ()
    replicated: Digits = ()
    manual: Digits = ()
    priorities: tuple[int, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.dims) != len(self.shape):
            raise ShardingError(
                f"a sharding of shape {self.shape} needs {len(self.shape)} dimensions, got "
                f"{len(self.dims)}: {self.dims}. Give one tuple of digits per dimension."
            )
        used = [d for digits in self.dims for d in digits if d.size > 1]
        used += [d for d in (*self.unreduced, *self.replicated, *self.manual) if d.size > 1]
        if len(used) > 1:
            for i, first in enumerate(used):
                if any(overlap(first, second) for second in used[:i]):
                    raise ShardingError(self._used_twice())
        if self.unspecified_dims and not set(self.unspecified_dims) <= set(range(len(self.shape))):
            raise ShardingError(
                f"unspecified_dims {self.unspecified_dims} are not all dimensions of shape "
                f"{self.shape}; these are numbered from 0."
            )
        if self.priorities:
            self._check_priorities()
        fields = (self.mesh, self.shape, self.dims, self.unspecified_dims, self.unreduced)
        held = (self.replicated, self.manual, self.priorities)
        object.__setattr__(self, "_hash", hash((*fields, *held)))

    def __eq__(self, other: object) -> bool:
        """Equal in every field; identity first: planning compares interned layouts."""
        if self is other:
            return True
        if not isinstance(other, Layout) or self._hash != other._hash:
            return False
        return self._fields == other._fields

    @property
    def _fields(self) -> tuple[object, ...]:
        layout = (self.shape, self.dims, self.unspecified_dims, self.unreduced)
        return (*layout, self.replicated, self.manual, self.priorities, self.mesh)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """Per dimension, the number of partitions."""
        return tuple(parts(digits) for digits in self.dims)

    @property
    def is_maximal(self) -> bool:
        """Whether the whole tensor lies on one named device."""
        return self.mesh.is_device

    def holding(self, held: Mapping[str, Digits]) -> Self:
        """The same with other digits in the classes that `held` names, of `CLASSES`."""
        now = {kind: held.get(kind, getattr(self, kind)) for kind in CLASSES}
        unreduced, manual, kept = (now[kind] for kind in CLASSES)
        return replace(self, unreduced=unreduced, manual=manual, replicated=kept)

    def text(self) -> str:
        """Axes per dimension as `[X, None, (Y, Z)]`, `?` where open, `{U:Y}` unreduced.

        `(X, ?)p1` has priority 1. `Sharding.parse` reads all of it.
        """
        opened, rounds = set(self.unspecified_dims), self.priorities or (0,) * len(self.dims)
        dims = [
            _dim_text([*self.mesh.texts(digits), *(["?"] if i in opened else [])], rounds[i])
            for i, digits in enumerate(self.dims)
        ]
        tail = "".join(
            f"{{{mark}:{','.join(self.mesh.texts(digits))}}}"
            for mark, digits in (("U", self.unreduced), ("R", self.replicated), ("M", self.manual))
            if digits
        )
        return f"[{', '.join(dims)}]{tail}"

    def __repr__(self) -> str:
        return f"Sharding({self.text()}, shape={self.shape}, {self.mesh!r})"

    def _uses(self) -> Iterator[tuple[str, Digit]]:
        """Every digit with the words for its place."""
        for i, digits in enumerate(self.dims):
            yield from ((f"dimension {i}", d) for d in digits)
        for name in ("unreduced", "replicated", "manual"):
            yield from ((f"the {name} digits", d) for d in getattr(self, name))

    def _check_priorities(self) -> None:
        """One per dimension; 0 everywhere is held as ()."""
        wrong = [n for n in self.priorities if type(n) is not int or n < 0]
        if wrong or len(self.priorities) != len(self.shape):
            raise ShardingError(
                f"priorities {self.priorities} of shape {self.shape} must be one integer of at "
                "least 0 per dimension."
            )
        for dim, priority in enumerate(self.priorities):
            if priority and not self.dims[dim] and dim not in self.unspecified_dims:
                raise ShardingError(
                    f"dimension {dim} has priority {priority} and neither axes nor is it open: "
                    "there is nothing to take part in completion. Leave its priority at 0."
                )
        if not any(self.priorities):
            object.__setattr__(self, "priorities", ())

    def _used_twice(self) -> str:
        """The message for two uses of one place of the device position, all of them listed."""
        uses = [(place, d) for place, d in self._uses() if d.size > 1]
        faults = [
            f"  {self.mesh.texts((a,))[0]} on {here} meets {self.mesh.texts((b,))[0]} on {there}"
            for i, (here, a) in enumerate(uses)
            for there, b in uses[i + 1 :]
            if overlap(a, b)
        ]
        return (
            f"an axis is used twice in {self.text()} of shape {self.shape} on {self.mesh!r}:\n"
            + "\n".join(faults)
            + "\nAn axis partitions one dimension of a tensor: remove it from the other."
        )


def _dim_text(names: list[str], priority: int) -> str:
    if priority:
        return f"({', '.join(names)})p{priority}"
    if not names:
        return "None"
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


L = TypeVar("L", bound=Layout)


def restate(sharding: L, mesh: Mesh) -> L | None:
    """The sharding in positions of `mesh`; None where it is no digits there, or other devices.

    Digits come back as axes and sub-axes of `mesh` where they are made of them.

    >>> from shardalg.algebra.sharding import Sharding
    >>> listed = Sharding.from_hlo("{devices=[2,2]0,1,3,2}", (4, 4))
    >>> restate(listed, Mesh({"x": 2, "y": 2}, [0, 3, 1, 2]))
    Sharding([y, x], shape=(4, 4), Mesh(x=2, y=2, device_ids=[0, 3, 1, 2]))
    >>> restate(listed, Mesh({"x": 2, "y": 2})) is None
    True
    """
    if sharding.mesh == mesh:
        return sharding
    rows = (*sharding.dims, *(getattr(sharding, kind) for kind in CLASSES))
    found = _positions(rows, sharding.mesh, mesh)
    if found is None:
        return None
    rank = len(sharding.dims)
    there = tuple(spelled(digits, mesh) for digits in found)
    unreduced, manual, kept = there[rank:]
    return replace(
        sharding,
        mesh=mesh,
        dims=there[:rank],
        unreduced=unreduced,
        manual=manual,
        replicated=kept,
    )


def in_order(sharding: L, mesh: Mesh) -> L | None:
    """The sharding on `mesh`, or on its axes in the sharding's own order of devices.

    The second where no digits of `mesh` write it; None over other devices.

    >>> from shardalg.algebra.sharding import Sharding
    >>> ring = Sharding.from_spec(("x",), Mesh({"x": 4}, [3, 2, 1, 0]), (8,))
    >>> in_order(ring, Mesh({"y": 4}))
    Sharding([y], shape=(8,), Mesh(y=4, device_ids=[3, 2, 1, 0]))
    """
    if sorted(sharding.mesh.order) != sorted(mesh.order):
        return None
    return restate(sharding, mesh) or restate(sharding, Mesh(mesh.axes, sharding.mesh.order))


def _positions(rows: tuple[Digits, ...], source: Mesh, target: Mesh) -> tuple[Digits, ...] | None:
    """The digits of each row in positions of `target`."""
    if source.size != target.size:
        return None
    if source.device_ids == target.device_ids:
        return rows
    if sorted(source.order) != sorted(target.order):
        return None
    places = target.places(source)
    ids = tuple(partition_ids(row, places) for row in rows)
    return PositionTable(tuple(parts(row) for row in rows), ids).recognize()


def spelled(digits: Digits, mesh: Mesh) -> Digits:
    """The digits as axes and sub-axes of the mesh, where they are made of them.

    >>> mesh = Mesh({"x": 2, "y": 4})
    >>> spelled((mesh.digit("x"), mesh.digit("y")), mesh) == mesh.digits("xy")
    True
    >>> spelled(Mesh.unnamed(8).digits([""]), mesh) == mesh.digits("xy")
    True
    """
    try:
        return tuple(mesh.ref_digit(ref) for ref in mesh.refs(canonical(digits)))
    except MeshError:
        return canonical(digits)
