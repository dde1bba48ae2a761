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
from shardalg.errors import ShardingError

if TYPE_CHECKING:
    import sympy

# What stands beside the dimensions, in the order of `Sharding.classes`.
CLASSES = ("unreduced", "manual", "replicated")

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
      priorities: per dimension, the round of completion from which on it takes part (Shardy's
        `p1`); () is 0 everywhere.

    A *maximal* sharding keeps the whole tensor on one device: it stands on the mesh without axes
    that is this device (`maximal`), so that no other device has a block of it.

    `==` compares all of it; `key` is the layout alone, in canonical digits.

    Raises:
      ShardingError: dimensions and shape differ in rank, one place of the device position is used
        twice, or a priority stands on a dimension without axes that is closed.

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

    @staticmethod
    def from_axes(
        entries: Iterable[Entry],
        mesh: Mesh,
        shape: Sequence[int],
        *,
        unreduced: Iterable[str] = (),
        replicated: Iterable[str] = (),
    ) -> Sharding:
        """The sharding that names axes per dimension; missing dimensions are not partitioned.

        Args:
          entries: per dimension None, an axis (name or number), or several, major first; "?"
            among them leaves the dimension open.
          unreduced: axes whose devices hold partial sums.
          replicated: axes that are explicitly kept replicated.

        Raises:
          MeshError: an axis that the mesh does not have.
          ShardingError: more entries than dimensions, or an axis used twice.
        """
        held = {"unreduced": tuple(unreduced), "replicated": tuple(replicated)}
        return _module("entries").from_axes(tuple(entries), mesh, tuple(shape), held)

    @property
    def dims_mapping(self) -> tuple[int | tuple[int, ...], ...]:
        """Per dimension what `mesh_split` takes: the number of its axis, several, or -1."""
        return _module("entries").dims_mapping(self)

    @staticmethod
    def parse(text: str, shape: Sequence[int], mesh: Mesh | None = None) -> Sharding:
        """The sharding that text states in any notation: HLO, Shardy, PartitionSpec, mapping.

        Args:
          mesh: needed by notations that name axes and state no mesh.

        Raises:
          NotationError: text of no notation, malformed text, or text that does not fit.

        >>> mesh = Mesh({"x": 2, "y": 4})
        >>> texts = ["P('x', None)", "[x, None]", "[0, -1]", '#sdy.sharding<@mesh, [{"x"}, {}]>',
        ...     "{devices=[2,1,4]<=[8] last_tile_dim_replicate}", "{mesh['x'=2,'y'=4], [{'x'},{}]}"]
        >>> {Sharding.parse(text, (8, 8), mesh).text() for text in texts}
        {'[x, None]'}
        """
        return _module("notation.read").parse(text, tuple(shape), mesh)

    @staticmethod
    def from_spec(spec: Any, mesh: Mesh, shape: Sequence[int]) -> Sharding:
        """The sharding of a `PartitionSpec`; `P.UNCONSTRAINED` leaves a dimension open."""
        return _module("jax_types").from_spec(spec, mesh, tuple(shape))

    def to_spec(self) -> Any:
        """The `PartitionSpec` of this layout; sub-axes and unnamed axes are a ShardingError."""
        return _module("jax_types").to_spec(self)

    @staticmethod
    def from_hlo(text: str, shape: Sequence[int], mesh: Mesh | None = None) -> Sharding:
        """The sharding that HLO text states, `{devices=[2,1,4]<=[8]}`; all of XLA's versions.

        Without a mesh, positions are device ids and axes have no names.

        Raises:
          NotationError: text that is no HLO sharding, or that does not fit shape or mesh.
        """
        return _module("notation.hlo").from_hlo(text, tuple(shape), mesh)

    def to_hlo(self, version: int = 2) -> str:
        """This layout as HLO text, in device ids.

        Args:
          version: 1 lists devices, 2 says the list as reshape and transpose where it can, 3 names
            mesh and axes.

        Raises:
          ShardingError: a layout that this version has no word for, or another version.
        """
        return _module("notation.hlo").to_hlo(self, version)

    @staticmethod
    def from_sdy(text: str, shape: Sequence[int], mesh: Mesh | None = None) -> Sharding:
        """The sharding that Shardy's text states, `#sdy.sharding<@mesh, [{"x"}, {?}p1]>`.

        Args:
          mesh: the mesh that `@mesh` stands for; needed unless the text states its mesh.

        Raises:
          NotationError: text that is no Shardy sharding, or that does not fit shape or mesh.
        """
        return _module("notation.sdy").from_sdy(text, tuple(shape), mesh)

    def to_sdy(self, mesh_name: str | None = "mesh") -> str:
        """This sharding as Shardy's text.

        Args:
          mesh_name: the symbol of the mesh; None states the mesh in the text.

        Raises:
          ShardingError: manual axes, digits that are no axes, or a mesh without axis names.
        """
        return _module("notation.sdy").to_sdy(self, mesh_name)

    def __eq__(self, other: object) -> bool:
        """Equal in every field; identity first: planning compares interned layouts."""
        if self is other:
            return True
        if not isinstance(other, Sharding) or self._hash != other._hash:
            return False
        return self._fields == other._fields

    @property
    def _fields(self) -> tuple[object, ...]:
        layout = (self.shape, self.dims, self.unspecified_dims, self.unreduced)
        return (*layout, self.replicated, self.manual, self.priorities, self.mesh)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
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
        pairs = zip(self.shape, self.dims, strict=True)
        return tuple([-(-size // parts(digits)) for size, digits in pairs])

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

    @cached_property
    def split_places(self) -> tuple[tuple[int | str, Digits], ...]:
        """Each dimension, and class in `CLASSES`, that has digits, with these in canonical form."""
        dims = tuple((i, d) for i, d in enumerate(self.canonical_dims) if d)
        if not (self.unreduced or self.manual or self.replicated):
            return dims
        return (*dims, *((c, d) for c, d in zip(CLASSES, self.classes, strict=True) if d))

    @property
    def is_replicated(self) -> bool:
        """Whether no dimension is partitioned and nothing is unreduced."""
        return not self.unreduced and all(n == 1 for n in self.parts)

    @property
    def is_maximal(self) -> bool:
        """Whether the whole tensor lies on one named device."""
        return self.mesh.is_device

    @cached_property
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


def _module(name: str) -> Any:
    """A notation of shardings. It builds shardings itself, so it is looked up when called."""
    return importlib.import_module(f"shardalg.algebra.{name}")


def _dim_text(names: list[str], priority: int) -> str:
    if priority:
        return f"({', '.join(names)})p{priority}"
    if not names:
        return "None"
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def replicated(shape: Sequence[int], mesh: Mesh) -> Sharding:
    """The sharding that keeps the whole tensor on every device.

    >>> replicated((4, 2), Mesh({"x": 2}))
    Sharding([None, None], shape=(4, 2), Mesh(x=2))
    """
    return Sharding(mesh, tuple(shape), ((),) * len(shape))


def maximal(shape: Sequence[int], device: int) -> Sharding:
    """The sharding that keeps the whole tensor on one device, and nothing on any other.

    >>> maximal((4,), 3), maximal((4,), 3).to_hlo()
    (Sharding([None], shape=(4,), Mesh(device_ids=[3])), '{maximal device=3}')
    """
    return replicated(shape, Mesh({}, [device]))
