"""The fields of a sharding and their checks; the class `Sharding` adds its methods.

`restate` converts a sharding to another mesh with the same devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self, TypeVar

from shardalg.algebra.digits import (
    Digits,
    PositionTable,
    canonical,
    overlap,
    partition_ids,
    parts,
)
from shardalg.algebra.mesh import Mesh
from shardalg.errors import MeshError, ShardingError

CLASSES = ("unreduced", "manual", "replicated")
"""The kinds of digits that split no dimension, in the order of `Sharding.classes`.

Their devices hold partial sums, belong to a manual region, or are explicitly kept replicated.
"""


@dataclass(frozen=True)
class Layout:
    """The fields of a `Sharding`, checked. Functions that read or print text use this class.

    It prints as a Sharding, because messages to users name shardings. `Sharding` describes the
    fields.

    Raises:
      ShardingError: dimensions and shape differ in rank; two digits overlap; a priority is given
        for a closed dimension without axes.
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
        """Raise ShardingError if the fields contradict each other; compute the hash once."""
        if len(self.dims) != len(self.shape):
            raise ShardingError(
                f"a sharding of shape {self.shape} needs {len(self.shape)} dimensions, got "
                f"{len(self.dims)}: {self.dims}. Give one tuple of digits per dimension."
            )
        # If two digits overlap, some tile is on no device.
        used = [d for digits in self.dims for d in digits if d.size > 1]
        used += [d for d in (*self.unreduced, *self.replicated, *self.manual) if d.size > 1]
        # Compare each digit with those before it.
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
        # Layouts are keys of many caches, so the hash is computed once.
        fields = (self.mesh, self.shape, self.dims, self.unspecified_dims, self.unreduced)
        rest = (self.replicated, self.manual, self.priorities)
        object.__setattr__(self, "_hash", hash((*fields, *rest)))

    def __eq__(self, other: object) -> bool:
        """Return whether the other object is a layout with equal fields."""
        # Identity and hash first: planning compares interned layouts.
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
        """The number of blocks into which each dimension is split."""
        return tuple(parts(digits) for digits in self.dims)

    @property
    def is_maximal(self) -> bool:
        """True if the whole tensor is on one device with an id."""
        return self.mesh.is_device

    def holding(self, held: Mapping[str, Digits]) -> Self:
        """Return the layout with other unreduced, manual or replicated digits.

        Args:
          held: the new digits of some kinds of `CLASSES`; other kinds keep theirs.
        """
        digits = {kind: held.get(kind, getattr(self, kind)) for kind in CLASSES}
        unreduced, manual, replicated = (digits[kind] for kind in CLASSES)
        return replace(self, unreduced=unreduced, manual=manual, replicated=replicated)

    def text(self) -> str:
        """Return the layout as text, as in `[X, None, (Y, Z)]{U:W}`.

        `?` marks an open dimension, `(X, ?)p1` priority 1. The classes are unreduced `{U:...}`,
        replicated `{R:...}` and manual `{M:...}`. `Sharding.parse` reads all of it.
        """
        priorities = self.priorities or (0,) * len(self.dims)
        dims = []
        for i, digits in enumerate(self.dims):
            names = [*self.mesh.texts(digits), *(["?"] if i in self.unspecified_dims else [])]
            # A priority needs the brackets, as in `(X)p1`, and so do several names.
            if priorities[i]:
                dims.append(f"({', '.join(names)})p{priorities[i]}")
            elif len(names) > 1:
                dims.append(f"({', '.join(names)})")
            else:
                dims.append(names[0] if names else "None")
        tail = "".join(
            f"{{{mark}:{','.join(self.mesh.texts(digits))}}}"
            for mark, digits in (("U", self.unreduced), ("R", self.replicated), ("M", self.manual))
            if digits
        )
        return f"[{', '.join(dims)}]{tail}"

    def __repr__(self) -> str:
        return f"Sharding({self.text()}, shape={self.shape}, {self.mesh!r})"

    def _check_priorities(self) -> None:
        """Raise ShardingError for an invalid priority; replace priorities that are all 0 by ()."""
        # `type` and not isinstance: True is an int in Python, but no priority.
        wrong = [n for n in self.priorities if type(n) is not int or n < 0]
        if wrong or len(self.priorities) != len(self.shape):
            raise ShardingError(
                f"priorities {self.priorities} of shape {self.shape} must be one integer of at "
                "least 0 per dimension."
            )
        for dim, priority in enumerate(self.priorities):
            if priority and not self.dims[dim] and dim not in self.unspecified_dims:
                raise ShardingError(
                    f"dimension {dim} has priority {priority}, but it has no axes and is not open: "
                    "completion cannot change it. Leave its priority at 0."
                )
        # One form for "no priorities", so that equal layouts are equal values.
        if not any(self.priorities):
            object.__setattr__(self, "priorities", ())

    def _used_twice(self) -> str:
        """Return the error message that lists every axis that is used twice."""
        # All faults at once: a user who removes one of several would meet the next one.
        digit_places = [(f"dimension {i}", d) for i, digits in enumerate(self.dims) for d in digits]
        for name in ("unreduced", "replicated", "manual"):
            digit_places += [(f"the {name} digits", d) for d in getattr(self, name)]
        digit_places = [(place, d) for place, d in digit_places if d.size > 1]
        faults = [
            f"  {self.mesh.texts((a,))[0]} on {here} meets {self.mesh.texts((b,))[0]} on {there}"
            for i, (here, a) in enumerate(digit_places)
            for there, b in digit_places[i + 1 :]
            if overlap(a, b)
        ]
        return (
            f"an axis is used twice in {self.text()} of shape {self.shape} on {self.mesh!r}:\n"
            + "\n".join(faults)
            + "\nAn axis partitions one dimension of a tensor: remove it from the other."
        )


L = TypeVar("L", bound=Layout)


def restate(sharding: L, mesh: Mesh) -> L | None:
    """Return a sharding on `mesh` that places the same blocks on the same devices, or None.

    None if axes and sub-axes of `mesh` cannot express it, or if `mesh` has other devices.

    >>> from shardalg.algebra.sharding import Sharding
    >>> listed = Sharding.from_hlo("{devices=[2,2]0,1,3,2}", (4, 4))
    >>> restate(listed, Mesh({"x": 2, "y": 2}, [0, 3, 1, 2]))
    Sharding([y, x], shape=(4, 4), Mesh(x=2, y=2, device_ids=[0, 3, 1, 2]))
    >>> restate(listed, Mesh({"x": 2, "y": 2})) is None
    True
    """
    if sharding.mesh == mesh:
        return sharding
    digits_of_dims = (*sharding.dims, *(getattr(sharding, kind) for kind in CLASSES))
    digits_on_mesh = _digits_on(digits_of_dims, sharding.mesh, mesh)
    if digits_on_mesh is None:
        return None
    rank = len(sharding.dims)
    # `spelled` prefers whole axes of the mesh, so that the text has names.
    digits = tuple(spelled(row, mesh) for row in digits_on_mesh)
    unreduced, manual, replicated = digits[rank:]
    return replace(
        sharding,
        mesh=mesh,
        dims=digits[:rank],
        unreduced=unreduced,
        manual=manual,
        replicated=replicated,
    )


def in_order(sharding: L, mesh: Mesh) -> L | None:
    """Return a sharding with the axes of `mesh` that places the same blocks on the same devices.

    If this is impossible in the device order of `mesh`, the result is on a mesh with the same axes
    and the device order of `sharding`. None if `mesh` has other devices.

    >>> from shardalg.algebra.sharding import Sharding
    >>> ring = Sharding.from_spec(("x",), Mesh({"x": 4}, [3, 2, 1, 0]), (8,))
    >>> in_order(ring, Mesh({"y": 4}))
    Sharding([y], shape=(8,), Mesh(y=4, device_ids=[3, 2, 1, 0]))
    """
    if sorted(sharding.mesh.order) != sorted(mesh.order):
        return None
    return restate(sharding, mesh) or restate(sharding, Mesh(mesh.axes, sharding.mesh.order))


def _digits_on(
    digits_of_dims: tuple[Digits, ...], source: Mesh, target: Mesh
) -> tuple[Digits, ...] | None:
    """Return digits on `target` that give each device the same partition ids as digits on `source`.

    None if there are no such digits.

    Args:
      digits_of_dims: tuples of digits on `source`, one per tensor dimension or class.
    """
    if source.size != target.size:
        return None
    # Equal orders have equal positions, whatever the axes are.
    if source.device_ids == target.device_ids:
        return digits_of_dims
    if sorted(source.order) != sorted(target.order):
        return None
    # `places` has, for each position on the target, the position of the same device on the source.
    # So each device keeps its partition id, and `recognize` finds digits with these ids.
    places = target.places(source)
    ids_of_dims = tuple(partition_ids(row, places) for row in digits_of_dims)
    return PositionTable(tuple(parts(row) for row in digits_of_dims), ids_of_dims).recognize()


def spelled(digits: Digits, mesh: Mesh) -> Digits:
    """Return digits with the same partition id, each of which is an axis or sub-axis of the mesh.

    If this is impossible, return canonical digits.

    >>> mesh = Mesh({"x": 2, "y": 4})
    >>> spelled((mesh.digit("x"), mesh.digit("y")), mesh) == mesh.digits("xy")
    True
    >>> spelled(Mesh.unnamed(8).digits([""]), mesh) == mesh.digits("xy")
    True
    """
    # `canonical` joins adjacent digits, also of several axes. `refs` cuts the result at the borders
    # of axes.
    try:
        return tuple(mesh.ref_digit(ref) for ref in mesh.refs(canonical(digits)))
    except MeshError:
        return canonical(digits)
