"""Instructions that combine the devices' results along a sharded loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.graph.ir import Params
from shardalg.spmd.instruction import Along, Collective, Shape
from shardalg.spmd.local import axes_text, common_shape, resize_dim


@dataclass(frozen=True, slots=True)
class ExclusiveScan(Along, Collective):
    """Combination of the totals of all blocks before the device's own.

    It is an exclusive scan over the members of a group in the order of their partition ids, or from
    the last to the first in `reverse`. The first of them gets the identity. The operand has one
    place along `dim`, the dimension that the blocks shard.
    """

    dim: int
    digits: Digits
    combine: str
    reverse: bool
    # JAX has no collective for a scan: each device gathers all totals and combines the earlier
    # ones.
    sent_as = "all_gather"

    def text(self, mesh: Mesh) -> str:
        axes, order = axes_text(mesh, self.digits), " in reverse" if self.reverse else ""
        return f"exclusive_scan {self.combine} dim={self.dim} axes={axes}{order}"


@dataclass(frozen=True, slots=True)
class Join(Along):
    """Combine two operands elementwise; the second has size 1 along `dim` and is broadcast."""

    dim: int
    combine: str
    of_one_type = True

    def text(self, mesh: Mesh) -> str:
        return f"join {self.combine} dim={self.dim}"

    def arity(self, rank: int, count: int) -> int:
        return 2

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        return first if (resize_dim(first, self.dim, 1),) == more else None


@dataclass(frozen=True, slots=True)
class ArgReduce(Along, Collective):
    """Position of the best element of a sharded dimension, from the best of every block.

    The operands are the best value of the device's block and its place in the block. The member
    with the lowest partition id wins a tie, and the first NaN wins over all numbers.

    Attributes:
      dim: dimension of the tensor, which the results lack; block: places per block.
      combine: "argmax" or "argmin".
    """

    dim: int
    digits: Digits
    block: int
    combine: str
    sent_as = "all_gather"
    lacks_dim = True

    def text(self, mesh: Mesh) -> str:
        axes = axes_text(mesh, self.digits)
        return f"arg_reduce {self.combine} axes={axes} in blocks of {self.block}"

    def arity(self, rank: int, count: int) -> int:
        return 2

    def followed(self, count: int) -> Sequence[int]:
        return (1,)

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        return common_shape((first, *more))


@dataclass(frozen=True, slots=True)
class ValueAt(Along):
    """The second operand's element at the place along `dim` that the first operand names."""

    dim: int
    lacks_dim = True

    def text(self, mesh: Mesh) -> str:
        return f"value_at dim={self.dim}"

    def arity(self, rank: int, count: int) -> int:
        return 2

    def followed(self, count: int) -> Sequence[int]:
        return (1,)

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        # The places lack the dimension: compare with the block's shape where it has size 1.
        with_dim = (*first[: self.dim], 1, *first[self.dim :])
        return first if resize_dim(more[0], self.dim, 1) == with_dim else None


@dataclass(frozen=True, slots=True)
class Top(Along, Collective):
    """The best elements of a sharded dimension, from the best of every block.

    The operands are the best values of the device's block, best first, and their places in the
    block. The results are the best of all, and their places in the dimension. For equal values, the
    lower place comes first. Values are in total order (a positive NaN before all numbers, a
    negative one after).

    Attributes:
      dim: dimension of operands and results; block: places per block.
    """

    dim: int
    digits: Digits
    block: int
    sent_as = "all_gather"

    def text(self, mesh: Mesh) -> str:
        axes = axes_text(mesh, self.digits)
        return f"top dim={self.dim} axes={axes} in blocks of {self.block}"

    def arity(self, rank: int, count: int) -> int:
        return 2

    def followed(self, count: int) -> Sequence[int]:
        return (0, 1)

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        return common_shape((first, *more))


@dataclass(frozen=True, slots=True)
class Fold(Collective):
    """Partial results of a reduction by a function of the user, combined by that function.

    The operands are the partial results, then the start values of the reduction, which are neutral.
    Members are combined in the order of their partition ids.

    Attributes:
      params: parameters of the same reduction, over the members.
    """

    digits: Digits
    params: Params = (("dimensions", (0,)),)
    sent_as = "all_gather"

    def text(self, mesh: Mesh) -> str:
        return f"fold axes={axes_text(mesh, self.digits)}"

    def arity(self, rank: int, count: int) -> int:
        # Every partial result has a start value, so the number of operands is even.
        return max(count // 2, 1) * 2

    def followed(self, count: int) -> Sequence[int]:
        return range(count // 2)

    def moving(self, results: int) -> int:
        return results

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        return common_shape((first, *more)[: (1 + len(more)) // 2])
