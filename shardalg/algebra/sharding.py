"""Shardings: which digits of the device position partition which dimension of a tensor."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shardalg.algebra import offset
from shardalg.algebra.digits import Digit, Digits, canonical, overlap, partition_id, parts
from shardalg.algebra.mesh import Mesh
from shardalg.errors import MeshError, ShardingError

if TYPE_CHECKING:
    import sympy

# What a caller may put on one dimension: nothing, an axis, or several axes, major first.
Entry = str | int | None | Sequence[str | int]


@dataclass(frozen=True)
class Sharding:
    """How a tensor of global `shape` is laid out over the devices of `mesh`.

    Attributes:
      dims: per dimension, the digits of its partition id, major first; () is not partitioned.
      unspecified_dims: dimensions that completion may still refine (open).
      unreduced: digits whose devices hold partial sums of the value.
      replicated: digits that are explicitly kept replicated.
      manual: digits that belong to a manual region.

    `==` compares all of it; `key` is the layout alone, in canonical digits.

    Raises:
      ShardingError: dimensions and shape differ in rank, or one place of the device position is
        used twice.

    >>> mesh = Mesh({"x": 2, "y": 4})
    >>> s = Sharding.from_axes([None, ("y", "x"), "?"], mesh, (6, 20, 3))
    >>> s, s.parts, s.shard_shape, s.is_even
    (Sharding([None, (y, x), ?], shape=(6, 20, 3), Mesh(x=2, y=4)), (1, 8, 1), (6, 3, 3), False)
    >>> [(s.shard_offset(device, 1), s.valid_size(device, 1)) for device in range(8)]
    [(0, 3), (6, 3), (12, 3), (18, 2), (3, 3), (9, 3), (15, 3), (21, 0)]
    >>> s.shard_offset_expr(1), s.shard_offset_expr(1, by="coordinates"), s.valid_size_expr(1)
    (3*p, 3*c_x + 6*c_y, Min(3, Max(0, 20 - 3*p)))
    """

    mesh: Mesh
    shape: tuple[int, ...]
    dims: tuple[Digits, ...]
    unspecified_dims: tuple[int, ...] = ()
    unreduced: Digits = ()
    replicated: Digits = ()
    manual: Digits = ()
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
        fields = (self.mesh, self.shape, self.dims, self.unspecified_dims, self.unreduced)
        object.__setattr__(self, "_hash", hash((*fields, self.replicated, self.manual)))

    @staticmethod
    def from_axes(
        entries: Iterable[Entry], mesh: Mesh, shape: Sequence[int], *, unreduced: Iterable[str] = ()
    ) -> Sharding:
        """The sharding that names axes per dimension; missing dimensions are not partitioned.

        Args:
          entries: per dimension None, an axis (name or number), or several, major first; "?"
            among them leaves the dimension open.
          unreduced: axes whose devices hold partial sums.

        Raises:
          MeshError: an axis that the mesh does not have.
          ShardingError: more entries than dimensions, or an axis used twice.
        """
        return _from_axes(tuple(entries), mesh, tuple(shape), tuple(unreduced))

    @staticmethod
    def from_spec(spec: Any, mesh: Mesh, shape: Sequence[int]) -> Sharding:
        """The sharding of a `jax.sharding.PartitionSpec`; `P.UNCONSTRAINED` leaves it open."""
        return _module("jax_types").from_spec(spec, mesh, tuple(shape))

    def to_spec(self) -> Any:
        """The `jax.sharding.PartitionSpec` of this layout.

        Raises:
          ShardingError: sub-axes, or a mesh without axis names.
        """
        return _module("jax_types").to_spec(self)

    @staticmethod
    def from_hlo(text: str, shape: Sequence[int], mesh: Mesh | None = None) -> Sharding:
        """The sharding that HLO text states, `{devices=[2,1,4]<=[8]}`.

        Without a mesh, positions are device ids and axes have no names.

        Raises:
          NotationError: text that is no HLO sharding, or that does not fit shape or mesh.
        """
        return _module("notation").from_hlo(text, tuple(shape), mesh)

    def to_hlo(self) -> str:
        """This layout as HLO text, in device ids."""
        return _module("notation").to_hlo(self)

    def __eq__(self, other: object) -> bool:
        """Equal in every field; planning compares interned layouts, so identity is tried first."""
        if self is other:
            return True
        if not isinstance(other, Sharding) or self._hash != other._hash:
            return False
        return self._fields == other._fields

    @property
    def _fields(self) -> tuple[object, ...]:
        layout = (self.shape, self.dims, self.unspecified_dims, self.unreduced)
        return (*layout, self.replicated, self.manual, self.mesh)

    def __hash__(self) -> int:
        return self._hash

    @property
    def numbers(self) -> tuple[int, ...]:
        """All that is no structure: the sizes of dimensions and of mesh axes."""
        return (*self.shape, *(n for _, n in self.mesh.axes))

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """Per dimension, the number of partitions."""
        return tuple(parts(digits) for digits in self.dims)

    @cached_property
    def shard_shape(self) -> tuple[int, ...]:
        """Shape of every device's block, padding included: `ceil(size / parts)` per dimension."""
        return tuple(-(-size // n) for size, n in zip(self.shape, self.parts, strict=True))

    @cached_property
    def canonical_dims(self) -> tuple[Digits, ...]:
        """Per dimension, the shortest digits with the same partition id."""
        return tuple(canonical(digits) for digits in self.dims)

    @cached_property
    def key(self) -> tuple[object, ...]:
        """The layout alone: canonical digits of each dimension, then of the other classes."""
        return (self.shape, *self.canonical_dims, *(self.classes[:2]))

    @cached_property
    def classes(self) -> tuple[Digits, Digits, Digits]:
        """Unreduced, manual and explicitly replicated digits as canonical sets, major first."""
        held = (self.unreduced, self.manual, self.replicated)
        first, second, third = (canonical(tuple(sorted(d, reverse=True))) for d in held)
        return first, second, third

    @property
    def is_replicated(self) -> bool:
        """Whether no dimension is partitioned and nothing is unreduced."""
        return not self.unreduced and all(n == 1 for n in self.parts)

    @property
    def is_even(self) -> bool:
        """Whether every dimension divides into its partitions."""
        return all(size % n == 0 for size, n in zip(self.shape, self.parts, strict=True))

    def partition_id(self, device: int, dim: int) -> int:
        """Partition id of the device with id `device` on dimension `dim`."""
        digits = self.dims[self._checked(dim)]
        return partition_id(digits, self.mesh.position(device))

    def shard_offset(self, device: int, dim: int) -> int:
        """First element of dimension `dim` on the device with id `device`: `p * ceil(D / n)`.

        Not clamped: it lies beyond the dimension where the device holds padding only.
        """
        return self.partition_id(device, dim) * self.shard_shape[dim]

    def valid_size(self, device: int, dim: int) -> int:
        """Elements of dimension `dim` that the device holds, padding not counted."""
        p = self.partition_id(device, dim)
        return offset.valid_size(self.shape[dim], self.shard_shape[dim], p)

    def shard_slices(self, device: int) -> tuple[slice, ...]:
        """What the device holds of the tensor, as slices of the global array (no padding)."""
        starts = [self.shard_offset(device, dim) for dim in range(len(self.shape))]
        stops = [start + self.valid_size(device, dim) for dim, start in enumerate(starts)]
        bounds = zip(starts, stops, self.shape, strict=True)
        return tuple(slice(min(start, size), min(stop, size)) for start, stop, size in bounds)

    def partition_expr(self, dim: int, *, by: str = "coordinates") -> sympy.Expr:
        """Partition id on dimension `dim`, as `offset.partition_expr` writes it."""
        return offset.partition_expr(self.dims[self._checked(dim)], self.mesh, by=by)

    def shard_offset_expr(self, dim: int, *, by: str = "partition_id") -> sympy.Expr:
        """`shard_offset` in sympy: in the partition id `p`, in axis coordinates or positions."""
        p = self.partition_expr(dim, by=by)
        return offset.offset_expr(self.shape[dim], self.parts[dim], p)

    def valid_size_expr(self, dim: int, *, by: str = "partition_id") -> sympy.Expr:
        """`valid_size` in sympy: in the partition id `p`, in axis coordinates or positions."""
        p = self.partition_expr(dim, by=by)
        return offset.valid_size_expr(self.shape[dim], self.parts[dim], p)

    def padding_expr(self, dim: int, *, by: str = "partition_id") -> sympy.Expr:
        """Padding elements of the block in sympy: `block - valid size`."""
        p = self.partition_expr(dim, by=by)
        return offset.padding_expr(self.shape[dim], self.parts[dim], p)

    def with_dims(self, dims: tuple[Digits, ...]) -> Sharding:
        """The same tensor with other digits on its dimensions."""
        return replace(self, dims=dims)

    def text(self) -> str:
        """Axes per dimension as `[X, None, (Y, Z)]`, `?` where open, `{U:Y}` unreduced."""
        opened = set(self.unspecified_dims)
        names = [_dim_text(self.mesh, d, i in opened) for i, d in enumerate(self.dims)]
        tail = "".join(
            f"{{{mark}:{','.join(_digit_names(self.mesh, digits))}}}"
            for mark, digits in (("U", self.unreduced), ("R", self.replicated), ("M", self.manual))
            if digits
        )
        return f"[{', '.join(names)}]{tail}"

    def __repr__(self) -> str:
        return f"Sharding({self.text()}, shape={self.shape}, {self.mesh!r})"

    def _checked(self, dim: int) -> int:
        if not 0 <= dim < len(self.shape):
            raise ShardingError(
                f"dimension {dim} is not a dimension of shape {self.shape}, whose dimensions are "
                f"numbered from 0 to {len(self.shape) - 1}."
            )
        return dim

    def _uses(self) -> Iterator[tuple[str, Digit]]:
        """Every digit with the words for its place."""
        for i, digits in enumerate(self.dims):
            yield from ((f"dimension {i}", d) for d in digits)
        for name in ("unreduced", "replicated", "manual"):
            yield from ((f"the {name} digits", d) for d in getattr(self, name))

    def _used_twice(self) -> str:
        """The message for two uses of one place of the device position, all of them listed."""
        uses = [(place, d) for place, d in self._uses() if d.size > 1]
        faults = [
            f"  {_digit_names(self.mesh, (a,))[0]} on {here} meets "
            f"{_digit_names(self.mesh, (b,))[0]} on {there}"
            for i, (here, a) in enumerate(uses)
            for there, b in uses[i + 1 :]
            if overlap(a, b)
        ]
        return (
            f"an axis is used twice in {self.text()} of shape {self.shape} on {self.mesh!r}:\n"
            + "\n".join(faults)
            + "\nAn axis partitions one dimension of a tensor: remove it from the other."
        )


def _from_axes(
    entries: tuple[Entry, ...], mesh: Mesh, shape: tuple[int, ...], unreduced: tuple[str, ...]
) -> Sharding:
    if len(entries) > len(shape):
        raise ShardingError(
            f"the spec {_entries_text(entries)} is longer than the shape {shape}: it has "
            f"{len(entries)} entries for {len(shape)} dimensions. Remove the entries beyond "
            "the last dimension."
        )
    names = [_axis_names(entry, mesh) for entry in entries]
    _check_axis_names(names, unreduced, entries=entries, where=(mesh, shape))
    names += [()] * (len(shape) - len(names))
    dims = tuple(mesh.digits(name for name in axes if name != "?") for axes in names)
    unspecified = tuple(i for i, axes in enumerate(names) if "?" in axes)
    return Sharding(mesh, shape, dims, unspecified, unreduced=mesh.digits(unreduced))


def _axis_names(entry: Entry, mesh: Mesh) -> tuple[str, ...]:
    """Names of the axes of one dimension; -1 and None mean none, a number is the axis's place."""
    if entry is None or entry == -1:
        return ()
    several = entry if isinstance(entry, Sequence) and not isinstance(entry, str) else (entry,)
    return tuple(_axis_name(axis, mesh) for axis in several)


def _axis_name(axis: str | int, mesh: Mesh) -> str:
    if isinstance(axis, int):
        if not 0 <= axis < len(mesh.axes):
            raise MeshError(
                f"axis number {axis} is not an axis of {mesh!r}; its axes are numbered from 0 to "
                f"{len(mesh.axes) - 1}, and -1 stands for a dimension that is not partitioned."
            )
        return mesh.axis_names[axis]
    return axis


def _check_axis_names(
    names: list[tuple[str, ...]],
    unreduced: tuple[str, ...],
    *,
    entries: tuple[Entry, ...],
    where: tuple[Mesh, tuple[int, ...]],
) -> None:
    """Every unknown axis, and every axis used twice, in one message."""
    mesh, shape = where
    place = f"the spec {_entries_text(entries)} of shape {shape} on {mesh!r}"
    uses: dict[str, list[str]] = {}
    for i, axes in enumerate(names):
        for name in axes:
            uses.setdefault(name, []).append(f"dimension {i}")
    for name in unreduced:
        uses.setdefault(name, []).append("the unreduced axes")
    uses.pop("?", None)
    unknown = [name for name in uses if name not in mesh.shape]
    if unknown:
        listed = ", ".join(f"{name!r} (on {uses[name][0]})" for name in unknown)
        raise MeshError(
            f"{place} names {listed}, which the mesh does not have. "
            f"Its axes are {list(mesh.axis_names)}."
        )
    twice = {name: places for name, places in uses.items() if len(places) > 1}
    if twice:
        listed = "; ".join(f"{n!r} on {' and on '.join(places)}" for n, places in twice.items())
        raise ShardingError(
            f"an axis is used twice in {place}: {listed}. An axis partitions one dimension of a "
            "tensor: remove it from the other."
        )


def _entries_text(entries: tuple[Entry, ...]) -> str:
    return f"[{', '.join(map(repr, entries))}]"


def _dim_text(mesh: Mesh, digits: Digits, is_open: bool) -> str:
    names = _digit_names(mesh, digits)
    if is_open:
        names.append("?")
    if not names:
        return "None"
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def _digit_names(mesh: Mesh, digits: Digits) -> list[str]:
    """Axes and sub-axes; `floor(d/stride)%size` for a digit of another mesh."""
    names: list[str] = []
    for digit in digits:
        try:
            names += map(repr, mesh.axis_refs(digit))
        except MeshError:
            names.append(f"d//{digit.stride}%{digit.size}")
    return names


def _module(name: str) -> Any:
    """A notation of shardings. It builds shardings itself, so it is looked up when called."""
    return importlib.import_module(f"shardalg.algebra.{name}")


def replicated(shape: Sequence[int], mesh: Mesh) -> Sharding:
    """The sharding that keeps the whole tensor on every device.

    >>> replicated((4, 2), Mesh({"x": 2}))
    Sharding([None, None], shape=(4, 2), Mesh(x=2))
    """
    return Sharding(mesh, tuple(shape), ((),) * len(shape))


def mesh_split(
    shape: Sequence[int],
    mesh: Mesh,
    dims_mapping: Sequence[Entry],
    unspecified_dims: Iterable[int] = (),
) -> Sharding:
    """The paper's `mesh_split` on a shape: dimension `i` is split along axis `dims_mapping[i]`.

    Args:
      dims_mapping: per dimension the number (or name) of a mesh axis, several of them major first,
        or -1 (or None) for a dimension that is not partitioned.
      unspecified_dims: dimensions that completion may still refine.

    Raises:
      MeshError: an axis that the mesh does not have.
      ShardingError: a mapping of another rank than the shape, or an axis used twice.

    >>> mesh_split((64, 1024, 8192), Mesh({"X": 8, "Y": 16}), [0, -1, 1])
    Sharding([X, None, Y], shape=(64, 1024, 8192), Mesh(X=8, Y=16))

    GSPMD (arXiv:2105.04663), section 3.1.
    """
    if len(dims_mapping) != len(shape):
        raise ShardingError(
            f"dims_mapping {_entries_text(tuple(dims_mapping))} has {len(dims_mapping)} entries "
            f"for the {len(shape)} dimensions of shape {tuple(shape)}. Give one axis, or -1, per "
            "dimension."
        )
    closed = Sharding.from_axes(dims_mapping, mesh, shape)
    return replace(closed, unspecified_dims=tuple(sorted(unspecified_dims)))
