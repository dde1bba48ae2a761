"""Shardings: which digits of the device position partition which dimension of a tensor."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from shardalg.algebra.digits import Digit, Digits, canonical, overlap, parts
from shardalg.algebra.mesh import Mesh
from shardalg.errors import ShardingError


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
                f"a sharding of shape {self.shape} needs {len(self.shape)} dimensions, got {len(self.dims)}: {self.dims}."
            )
        used = [*(d for digits in self.dims for d in digits), *self.unreduced, *self.replicated, *self.manual]
        if len(used) > 1:
            self._check_disjoint(used)
        fields = (self.mesh, self.shape, self.dims, self.unspecified_dims, self.unreduced)
        object.__setattr__(self, "_hash", hash((*fields, self.replicated, self.manual)))

    def _check_disjoint(self, used: list[Digit]) -> None:
        for i, first in enumerate(used):
            for second in used[:i]:
                if first.size > 1 and second.size > 1 and overlap(first, second):
                    raise ShardingError(
                        f"axis {self.mesh.axis_ref(first)!r} is used twice in {self.text()} of shape {self.shape} on {self.mesh!r}: "
                        "an axis partitions one dimension of a tensor. Remove it from one of the dimensions."
                    )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """Per dimension, the number of partitions."""
        return tuple(parts(digits) for digits in self.dims)

    @cached_property
    def shard_shape(self) -> tuple[int, ...]:
        """Shape of every device's block, padding included: `ceil(size / parts)` per dimension."""
        return tuple(-(-size // n) for size, n in zip(self.shape, self.parts, strict=True))

    @cached_property
    def key(self) -> tuple[object, ...]:
        """The layout alone: canonical digits of each dimension, then of the other classes."""
        rest = (self.unreduced, self.manual)
        return (self.shape, *(canonical(d) for d in self.dims), *(tuple(sorted(canonical(d))) for d in rest))

    @property
    def is_replicated(self) -> bool:
        """Whether no dimension is partitioned and nothing is unreduced."""
        return not self.unreduced and all(n == 1 for n in self.parts)

    @property
    def is_even(self) -> bool:
        """Whether every dimension divides into its partitions."""
        return all(size % n == 0 for size, n in zip(self.shape, self.parts, strict=True))

    def with_dims(self, dims: tuple[Digits, ...]) -> Sharding:
        """The same tensor with other digits on its dimensions."""
        return replace(self, dims=dims)

    def text(self) -> str:
        """Axes per dimension as `[X, None, (Y, Z)]`, `?` for an open dimension, `{U:Y}` unreduced."""
        names = [_dim_text(self.mesh, d, i in self.unspecified_dims) for i, d in enumerate(self.dims)]
        tail = "".join(
            f"{{{mark}:{','.join(repr(self.mesh.axis_ref(d)) for d in digits)}}}"
            for mark, digits in (("U", self.unreduced), ("R", self.replicated), ("M", self.manual))
            if digits
        )
        return f"[{', '.join(names)}]{tail}"

    def __repr__(self) -> str:
        return f"Sharding({self.text()}, shape={self.shape}, {self.mesh!r})"


def _dim_text(mesh: Mesh, digits: Digits, is_open: bool) -> str:
    names = [repr(mesh.axis_ref(d)) for d in digits]
    if is_open:
        names.append("?")
    if not names:
        return "None"
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def replicated(shape: tuple[int, ...], mesh: Mesh) -> Sharding:
    """The sharding that keeps the whole tensor on every device."""
    return Sharding(mesh, shape, ((),) * len(shape))
