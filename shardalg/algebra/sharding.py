"""Shardings: for each dimension of a tensor, the mesh axes that split it into blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shardalg.algebra import offset
from shardalg.algebra.digits import Digits, canonical, partition_id, parts
from shardalg.algebra.draw_layouts import draw_shardings
from shardalg.algebra.layout import CLASSES, Layout
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.notation import axis_lists, axis_names, hlo, read
from shardalg.algebra.notation.axis_names import Entry
from shardalg.algebra.tile_grids import tile_grid, tile_notes
from shardalg.errors import ShardingError
from shardalg.svg import draw_grids, drawing_card
from shardalg.tables import MOST_ROWS, Table

if TYPE_CHECKING:
    import sympy
    from jax.sharding import PartitionSpec
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Sharding(Layout):
    """The placement of the blocks of a tensor of global `shape` on the devices of `mesh`.

    Attributes:
      dims: for each dimension, the digits of its partition id, major first; () if not partitioned.
      unspecified_dims: dimensions that completion may still refine (open).
      unreduced: digits whose devices hold partial sums of the value.
      replicated: digits that are explicitly kept replicated.
      manual: digits that belong to a manual region.
      priorities: for each dimension, the first round of completion in which it takes part
        (Shardy's `p1`); () means 0 everywhere.

    A *maximal* sharding keeps the whole tensor on one device. Its mesh has no axes and is this
    device (`maximal`), so that no other device has a block.

    `==` compares all fields; `key` is the layout alone, in canonical digits.

    Raises:
      ShardingError: dimensions and shape differ in rank; two digits overlap; a priority is given
        for a closed dimension without axes.

    >>> mesh = Mesh({"x": 2, "y": 4})
    >>> s = Sharding.from_axes([None, ("y", "x"), "?"], mesh, (6, 20, 3))
    >>> s, s.parts, s.shard_shape, s.is_even
    (Sharding([None, (y, x), ?], shape=(6, 20, 3), Mesh(x=2, y=4)), (1, 8, 1), (6, 3, 3), False)
    >>> [(s.shard_offset(device, 1), s.valid_size(device, 1)) for device in range(8)]
    [(0, 3), (6, 3), (12, 3), (18, 2), (3, 3), (9, 3), (15, 3), (21, 0)]
    >>> s.shard_offset_expr(1), s.shard_offset_expr(1, by="coordinates"), s.valid_size_expr(1)
    (3*p, 3*c_x + 6*c_y, Min(3, Max(0, 20 - 3*p)))
    """

    @staticmethod
    def from_axes(
        entries: Iterable[Entry],
        mesh: Mesh,
        shape: Sequence[int],
        *,
        unreduced: Iterable[str] = (),
        replicated: Iterable[str] = (),
    ) -> Sharding:
        """Return the sharding with these axes on each dimension.

        Args:
          entries: for each dimension None, an axis (name or number), or several, major first; "?"
            among them leaves the dimension open. Missing dimensions are not partitioned.
          unreduced: axes whose devices hold partial sums.
          replicated: axes that are explicitly kept replicated.

        Raises:
          MeshError: the mesh has no such axis.
          ShardingError: more entries than dimensions, or an axis used twice.
        """
        classes = {"unreduced": tuple(unreduced), "replicated": tuple(replicated)}
        return _sharding(axis_names.from_axes(tuple(entries), mesh, tuple(shape), classes))

    @property
    def dims_mapping(self) -> tuple[int | tuple[int, ...], ...]:
        """The argument of `mesh_split`: for each dimension its axis number, several, or -1."""
        return axis_names.dims_mapping(self)

    @staticmethod
    def parse(text: str, shape: Sequence[int], mesh: Mesh | None = None) -> Sharding:
        """Return the sharding that text states in HLO, Shardy, PartitionSpec or mapping notation.

        Args:
          mesh: needed for notations that name axes and state no mesh.

        Raises:
          NotationError: the text has no known notation, is malformed, or does not fit shape or
            mesh.

        >>> mesh = Mesh({"x": 2, "y": 4})
        >>> texts = ["P('x', None)", "[x, None]", "[0, -1]", '#sdy.sharding<@mesh, [{"x"}, {}]>',
        ...     "{devices=[2,1,4]<=[8] last_tile_dim_replicate}", "{mesh['x'=2,'y'=4], [{'x'},{}]}"]
        >>> {Sharding.parse(text, (8, 8), mesh).text() for text in texts}
        {'[x, None]'}
        """
        return _sharding(read.parse(text, tuple(shape), mesh))

    @staticmethod
    def from_spec(spec: Any, mesh: Mesh, shape: Sequence[int]) -> Sharding:
        """Return the sharding of a `PartitionSpec`; `P.UNCONSTRAINED` leaves a dimension open.

        Raises:
          ShardingError: `mesh` is no `Mesh`, or the entries do not fit shape or mesh.
        """
        from shardalg.algebra.notation import jax_specs

        if not isinstance(mesh, Mesh):
            raise ShardingError(
                f"the mesh of {spec!r} is {mesh!r:.80}, no Mesh. The order is "
                "Sharding.from_spec(spec, mesh, shape)."
            )
        return _sharding(jax_specs.from_spec(spec, mesh, tuple(shape)))

    def to_spec(self) -> PartitionSpec:
        """Return the `PartitionSpec` of this layout.

        Raises:
          ShardingError: the layout has sub-axes or unnamed axes.
        """
        from shardalg.algebra.notation import jax_specs

        return jax_specs.to_spec(self)

    @staticmethod
    def from_named(named: Any, shape: Sequence[int], mesh: Mesh | None = None) -> Sharding:
        """Return the sharding of a `NamedSharding` on a tensor of `shape`.

        Args:
          mesh: the mesh of the result; by default the mesh of the NamedSharding.

        Raises:
          ShardingError: `named` is another kind of JAX sharding.
        """
        from shardalg.algebra.notation import jax_specs

        jax_specs.check_named(named)
        return Sharding.from_spec(named.spec, mesh or Mesh.from_jax(named.mesh), shape)

    @staticmethod
    def from_hlo(text: str, shape: Sequence[int], mesh: Mesh | None = None) -> Sharding:
        """Return the sharding that HLO text states, `{devices=[2,1,4]<=[8]}`, in any XLA version.

        Without a mesh, positions are device ids and axes have no names.

        Raises:
          NotationError: the text is no HLO sharding, or does not fit shape or mesh.
        """
        return _sharding(hlo.from_hlo(text, tuple(shape), mesh))

    @staticmethod
    def from_hlo_tuple(
        text: str, shapes: Sequence[tuple[int, ...]], mesh: Mesh | None = None
    ) -> tuple[Sharding, ...]:
        """Return the shardings of a tuple's elements, one per shape.

        >>> text = "{{replicated}, {devices=[2]<=[2]}}"
        >>> [s.parts for s in Sharding.from_hlo_tuple(text, [(4,), (4,)])]
        [(1,), (2,)]

        Raises:
          NotationError: see `from_hlo`; or the numbers of elements and shapes differ.
        """
        return tuple(map(_sharding, hlo.from_hlo_tuple(text, shapes, mesh)))

    def to_hlo(self, version: int = 2) -> str:
        """Return this layout as HLO text, in device ids.

        Args:
          version: 1 lists devices; 2 writes the list as a reshape and a transpose if possible; 3
            names mesh and axes.

        Raises:
          ShardingError: this version cannot express the layout, or there is no such version.
        """
        return hlo.to_hlo(self, version)

    @staticmethod
    def from_sdy(text: str, shape: Sequence[int], mesh: Mesh | None = None) -> Sharding:
        """Return the sharding that Shardy's text states, `#sdy.sharding<@mesh, [{"x"}, {?}p1]>`.

        Args:
          mesh: the mesh that `@mesh` means; needed unless the text states its mesh.

        Raises:
          NotationError: the text is no Shardy sharding, or does not fit shape or mesh.
        """
        return _sharding(axis_lists.from_sdy(text, tuple(shape), mesh))

    def to_sdy(self, mesh_name: str | None = "mesh") -> str:
        """Return this sharding as Shardy's text.

        Args:
          mesh_name: the symbol of the mesh; None states the mesh in the text.

        Raises:
          ShardingError: the sharding has manual axes, digits that are no axes, or a mesh without
            axis names.
        """
        return axis_lists.to_sdy(self, mesh_name)

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The sizes of all dimensions of the tensor, then of all axes of the mesh."""
        return (*self.shape, *(n for _, n in self.mesh.axes))

    @cached_property
    def shard_shape(self) -> tuple[int, ...]:
        """Shape of each device's block, padding included: `ceil(size / parts)` per dimension."""
        pairs = zip(self.shape, self.dims, strict=True)
        return tuple([-(-size // parts(digits)) for size, digits in pairs])

    @cached_property
    def canonical_dims(self) -> tuple[Digits, ...]:
        """For each dimension, the shortest tuple of digits with the same partition id."""
        return tuple(canonical(digits) for digits in self.dims)

    @cached_property
    def key(self) -> tuple[object, ...]:
        """The parts that decide which elements are on each device, as a tuple for comparison.

        They are the shape, the canonical digits of each dimension, and the unreduced and manual
        digits. Two shardings on one mesh place the same elements on each device if their keys are
        equal.
        """
        # Digits that are explicitly replicated place no elements, so the key has no third class.
        return (self.shape, *self.canonical_dims, *(self.classes[:2]))

    @cached_property
    def classes(self) -> tuple[Digits, Digits, Digits]:
        """Unreduced, manual and explicitly replicated digits, each tuple sorted and canonical."""
        rows = (self.unreduced, self.manual, self.replicated)
        first, second, third = (canonical(tuple(sorted(d, reverse=True))) for d in rows)
        return first, second, third

    @cached_property
    def split_places(self) -> tuple[tuple[int | str, Digits], ...]:
        """Pairs of a dimension's number, or a name in `CLASSES`, and its canonical digits.

        Dimensions and classes without digits are left out.
        """
        dims = tuple((i, d) for i, d in enumerate(self.canonical_dims) if d)
        # Most shardings have dimensions only: skip sorting the classes.
        if not (self.unreduced or self.manual or self.replicated):
            return dims
        return (*dims, *((c, d) for c, d in zip(CLASSES, self.classes, strict=True) if d))

    @property
    def is_replicated(self) -> bool:
        """True if no dimension is partitioned and no sum is pending."""
        return not self.unreduced and all(n == 1 for n in self.parts)

    @cached_property
    def is_even(self) -> bool:
        """True if the number of partitions divides every dimension, so that there is no padding."""
        return all(size % n == 0 for size, n in zip(self.shape, self.parts, strict=True))

    def __str__(self) -> str:
        """Return the blocks of the tensor as a grid, with the devices that hold each block.

        >>> print(Sharding.from_axes([None, "y"], Mesh({"x": 2, "y": 2}), (4, 6)))
        Sharding([None, y], shape=(4, 6), Mesh(x=2, y=2)): blocks of (4, 3)
             0:3    3:6
            ┌──────┬──────┐
        0:4 │ 0, 2 │ 1, 3 │
            └──────┴──────┘
        Each cell is a block of the tensor, with the devices that hold it.
        """
        grid = tile_grid(self).to_text()
        return f"{self!r}: blocks of {self.shard_shape}\n{grid}\n{tile_notes(self)}"

    def __format__(self, spec: str) -> str:
        # Sentences have the sharding on one line.
        return format(repr(self), spec)

    def _repr_html_(self) -> str:
        """Return a drawing for notebooks: the blocks of the tensor, and a table of devices."""
        devices = tuple(self.mesh.device_ids or range(self.mesh.size))[:MOST_ROWS]
        blocks = (self.shard_slices(device) for device in devices)
        rows = tuple(
            (device, ", ".join(f"{b.start}:{b.stop}" for b in block))
            for device, block in zip(devices, blocks, strict=True)
        )
        shapes = f"shape {self.shape}, blocks of {self.shard_shape}"
        num_hidden = self.mesh.size - len(rows)
        hidden_note = (
            (f"... and {num_hidden} more of {self.mesh.size} devices.",) if num_hidden else ()
        )
        title = f"{self.text()} on {self.mesh!r}: {shapes}."
        canvas = draw_grids((tile_grid(self),))
        table = Table(("device", "holds"), rows)
        return drawing_card(title, canvas, table, *hidden_note, note=tile_notes(self))

    def draw(self) -> Figure:
        r"""Draw the tensor as a plane, divided into the blocks that its devices hold.

        A tensor with more than two dimensions is drawn along the partitioned ones.

        Raises:
          ShardingError: the tensor is a scalar, or more than two dimensions are partitioned.

        >>> mesh = Mesh({"x": 2, "y": 4})
        >>> figure = Sharding.from_axes(["x", None, "y"], mesh, (6, 5, 20)).draw()
        >>> figure.axes[0].get_title()
        'shape (6, 5, 20) on Mesh(x=2, y=4)\n[x, None, y]'
        """
        return self._drawn({f"shape {self.shape} on {self.mesh!r}": self})

    _drawn = staticmethod(draw_shardings)

    def partition_id(self, device: int, dim: int) -> int:
        """Return the partition id of the device with id `device` on dimension `dim`."""
        # Digits are about positions; users name devices by their ids.
        digits = self.dims[self._checked(dim)]
        return partition_id(digits, self.mesh.position(device))

    def shard_offset(self, device: int, dim: int) -> int:
        """Return the first element of dimension `dim` on the device: `p * ceil(D / n)`.

        `device` is a device id. The offset is not clamped: it is larger than the dimension if the
        device holds padding only.
        """
        return self.partition_id(device, dim) * self.shard_shape[dim]

    def valid_size(self, device: int, dim: int) -> int:
        """Return the number of elements of dimension `dim` on the device, without padding."""
        p = self.partition_id(device, dim)
        return offset.valid_size(self.shape[dim], self.shard_shape[dim], p)

    def shard_slices(self, device: int) -> tuple[slice, ...]:
        """Return the device's part of the tensor as slices of the global array, without padding."""
        starts = [self.shard_offset(device, dim) for dim in range(len(self.shape))]
        stops = [start + self.valid_size(device, dim) for dim, start in enumerate(starts)]
        # A block of padding alone is an empty slice at the end of the dimension.
        bounds = zip(starts, stops, self.shape, strict=True)
        return tuple(slice(min(start, size), min(stop, size)) for start, stop, size in bounds)

    def partition_expr(self, dim: int, *, by: str = "coordinates") -> sympy.Expr:
        """Return the partition id on dimension `dim` in sympy, as `offset.partition_expr` does.

        `by` is "coordinates", "position" or "partition_id".
        """
        return offset.partition_expr(self.dims[self._checked(dim)], self.mesh, by=by)

    def shard_offset_expr(self, dim: int, *, by: str = "partition_id") -> sympy.Expr:
        """Return `shard_offset` in sympy; `by` is as in `partition_expr`."""
        p = self.partition_expr(dim, by=by)
        return offset.offset_expr(self.shape[dim], self.parts[dim], p)

    def valid_size_expr(self, dim: int, *, by: str = "partition_id") -> sympy.Expr:
        """Return `valid_size` in sympy; `by` is as in `partition_expr`."""
        p = self.partition_expr(dim, by=by)
        return offset.valid_size_expr(self.shape[dim], self.parts[dim], p)

    def padding_expr(self, dim: int, *, by: str = "partition_id") -> sympy.Expr:
        """Return the number of padding elements of a block along a dimension, in sympy.

        Args:
          by: "partition_id" or "coordinates", the symbols of the expression (see `partition_expr`).
        """
        p = self.partition_expr(dim, by=by)
        return offset.padding_expr(self.shape[dim], self.parts[dim], p)

    def with_dims(self, dims: tuple[Digits, ...]) -> Sharding:
        """Return the sharding of the same tensor with other digits on its dimensions."""
        return replace(self, dims=dims)

    def _checked(self, dim: int) -> int:
        """Return the number of a dimension; raise ShardingError if the tensor does not have it."""
        if not 0 <= dim < len(self.shape):
            raise ShardingError(
                f"dimension {dim} is not a dimension of shape {self.shape}, whose dimensions are "
                f"numbered from 0 to {len(self.shape) - 1}."
            )
        return dim


def _sharding(layout: Layout) -> Sharding:
    """Return a `Sharding` with the fields of a `Layout`."""
    # Fields that `__init__` does not take, such as the hash, are computed again.
    values = {f.name: getattr(layout, f.name) for f in fields(layout) if f.init}
    return Sharding(**values)


def replicated(shape: Sequence[int], mesh: Mesh) -> Sharding:
    """Return the sharding that keeps the whole tensor on every device.

    >>> replicated((4, 2), Mesh({"x": 2}))
    Sharding([None, None], shape=(4, 2), Mesh(x=2))
    """
    return Sharding(mesh, tuple(shape), ((),) * len(shape))


def maximal(shape: Sequence[int], device: int) -> Sharding:
    """Return the sharding that keeps the whole tensor on one device, and nothing on any other.

    >>> maximal((4,), 3), maximal((4,), 3).to_hlo()
    (Sharding([None], shape=(4,), Mesh(device_ids=[3])), '{maximal device=3}')
    """
    return replicated(shape, Mesh({}, [device]))
