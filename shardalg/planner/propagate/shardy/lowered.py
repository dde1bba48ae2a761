"""The operators that XLA hands to Shardy for one operator of JAX.

The module also finds products that Shardy computes in another sharding than their result has for
its readers. Source: `insert_explicit_reshards.cc`, processDot, which runs after the propagation. It
applies if the operands agree, and one dimension of the result has exactly the digits over which the
product is summed. The product is then computed as the operands have this dimension, and is moved
afterwards. So one all-reduce sums it, and the larger operand is not moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardalg.algebra.digits import Digits, overlap
from shardalg.graph.ir import Node
from shardalg.planner.propagate.gspmd import image
from shardalg.planner.propagate.gspmd.index import SweepIndex
from shardalg.planner.propagate.layouts import Layouts, Map
from shardalg.planner.propagate.operator_classes import OperatorClass, pass_through
from shardalg.planner.propagate.shardy.factors import Numbers, Tensor, joined, split

Shape = tuple[int, ...]
NOTHING = frozenset(("stop_gradient", "copy", "pvary", "name"))
"""Operators for which XLA has no instruction."""
NUMBERS_THROUGH = frozenset(("broadcast_in_dim", "reshape", "squeeze", "slice"))
"""Operators of constants that give constants, besides pointwise ones (`isConstantPreserving`)."""
LATER = frozenset(
    ("slice", "split", "pad", "rev", "concatenate", "gather", "scatter", "scatter-add", "sort",
     "reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax",
     "argmin", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "dot_general", "erf")
)  # fmt: skip
"""Operators that propagate in the stages of products; an `erf` is a custom call to XLA."""


def keeps_numbers(node: Node, kind: OperatorClass | None) -> bool:
    """Return whether the results of a node are constants to Shardy if all operands are.

    Shardy copies constants for each reader, so that they get no common sharding.

    Args:
      kind: the node's operator class, None if no sharding passes through it.
    """
    if node.bodies:
        return False
    # Of the nodes without operands, random bits for example are no constants.
    if not node.operands:
        return node.primitive == "iota"
    is_pointwise = kind is not None and kind.role == image.POINTWISE
    # Shardy copies scalars for each reader, as it copies constants
    # (`constant_or_scalar_splitter.cc`).
    is_scalar = not node.results or all(not t.shape for t in node.signature.results)
    return node.primitive in NUMBERS_THROUGH or is_pointwise or is_scalar


def shardy_class(node: Node, kind: OperatorClass) -> OperatorClass:
    """Return the operator class of a node for Shardy.

    It has the role by which Shardy orders propagation, and its operands are in XLA's order.

    Args:
      kind: the class of the node for GSPMD.
    """
    # Shardy shards the image of a convolution as if a reshape had split its spatial dimensions into
    # the loops of the window, the longer one major (ConvolutionOp in its rule registry).
    if kind.image is not None:
        kind = replace(kind, maps=kind.image.nested(kind.maps))
    if node.primitive in ("dynamic_slice", "dynamic_update_slice"):
        return replace(kind, role=image.DYNAMIC_SLICE)
    # Loops along which elements move are no pass-through factors, so they act in the last stages.
    if node.primitive in LATER and kind.role in (image.POINTWISE, image.LAYOUT):
        kept = kind.through - _moved(node, kind)
        return replace(kind, role=image.WINDOW, through=kept)
    # JAX's `select_n` has (which, false, true), XLA's `select` (which, true, false).
    if node.primitive == "select_n" and len(node.operands) == 3:
        (a, b, c, *maps), (d, e, f, *shapes) = kind.maps, kind.shapes
        return replace(kind, maps=(a, c, b, *maps), shapes=(d, f, e, *shapes))
    return kind


def _moved(node: Node, kind: OperatorClass) -> frozenset[str]:
    """Return the loops along which elements move, so that a device reads others' elements.

    For example, a slice of rows moves elements along the loop of the rows only.

    Args:
      kind: the node's operator class; its `maps` have, per tensor and dimension, (loop, position)
        pairs.
    """
    # A slice or a pad shifts the borders of blocks only along dimensions whose size it changes.
    if node.primitive in ("slice", "split", "pad"):
        dims = zip(kind.shapes[0], kind.shapes[-1], kind.maps[-1], strict=True)
        return frozenset(loop for old, new, loops in dims if old != new for loop, _ in loops)
    # A concatenation moves along the joined dimension, a reversal along the reversed ones.
    if node.primitive == "concatenate":
        return frozenset(loop for loop, _ in kind.maps[-1][node.signature.param("dimension")])
    if node.primitive == "rev":
        dims = node.signature.param("dimensions")
        return frozenset(loop for dim in dims for loop, _ in kind.maps[-1][dim])
    return frozenset()


def power_products(node: Node) -> list[tuple[int, int]]:
    """Return the products that compute a power, each as the numbers of two factors.

    Number 0 is the operand, number n the n-th product.
    Source: `jax/_src/lax/lax.py`, `_integer_pow` and its lowering.
    """
    # The number and order of products decide which values Shardy visits, so they follow JAX's
    # lowering exactly: a cube has two products, any other power squares the operand repeatedly.
    power = 2 if node.primitive == "square" else node.signature.param("y", 0)
    if node.primitive not in ("square", "integer_pow") or power in (-1, 0, 1):
        return []
    if power == 3:
        return [(0, 0), (1, 0)]
    found: list[tuple[int, int]] = []
    # JAX multiplies the squares whose bit of the power is set, in this order. `total` is their
    # product so far; it is -1 before the first one.
    base, total, rest = 0, -1, abs(power)
    while rest:
        if rest & 1 and total >= 0:
            found.append((total, base))
        if rest & 1:
            total = len(found) if total >= 0 else base
        rest >>= 1
        if rest:
            found.append((base, base))
            base = len(found)
    return found


def slice_class(shape: Shape) -> OperatorClass:
    """Return the class of one trip's slice of a stack, with a first dimension of size 1."""
    inner: Map = ((), *(((f"d{i}", 0),) for i in range(1, len(shape))))
    kind = replace(pass_through(shape, False), role=image.DYNAMIC_SLICE)
    return with_all_passing(replace(kind, maps=(inner, inner), shapes=(shape, (1, *shape[1:]))))


def reshape_class(shape: Shape, drop: tuple[int, int]) -> OperatorClass:
    """Return the class of a reshape that adds or removes a first dimension of size 1.

    Args:
      drop: (1, 0) if the operand has this dimension, (0, 1) if the result has it.
    """
    return with_all_passing(replace(pass_through(shape, False, drop), role=image.LAYOUT))


def stack_class(shape: Shape) -> OperatorClass:
    """Return the operator class of a write of one slice into a stack of slices.

    Its operands are the stack and the slice, its result is the stack after the write.

    Args:
      shape: the shape of the stack; its first dimension counts the slices.
    """
    # The slice has size 1 along the stack's first dimension, so that no digits pass along it.
    whole: Map = tuple(((f"d{i}", 0),) for i in range(len(shape)))
    part: Map = ((), *whole[1:])
    kind = pass_through(shape, False)
    return with_all_passing(
        replace(
            kind,
            role=image.DYNAMIC_SLICE,
            maps=(whole, part, whole),
            shapes=(shape, (1, *shape[1:]), shape),
            bytes=(0, 0, 0),
            num_operands=2,
            first=(0, 1),
        )
    )


def widening_steps(small: Shape, wide: Shape, node: Node) -> list[OperatorClass]:
    """Return the classes of a copy and a squeeze before a broadcast of size-1 dimensions.

    The list is empty if the broadcast widens no dimension.

    Args:
      small, wide: the shapes of the broadcast's operand and result.
    """
    # XLA expands [8, 1] -> [8, 4] to a copy, a squeeze to [8], and a broadcast of [8] to [8, 4].
    at = node.signature.param("broadcast_dimensions")
    kept = [i for i, size in enumerate(small) if not (size == 1 and wide[at[i]] != 1)]
    if len(kept) == len(small):
        return []
    # A copy has equal dimensions on both sides, like a step across a border (`pass_through`).
    copy = with_all_passing(replace(pass_through(small, False), role=image.BROADCAST))
    rest = tuple(small[i] for i in kept)
    whole: Map = tuple(((f"d{i}", 0),) if i in kept else () for i in range(len(small)))
    flat: Map = tuple(((f"d{i}", 0),) for i in kept)
    squeeze = replace(copy, role=image.LAYOUT, maps=(whole, flat), shapes=(small, rest))
    return [copy, squeeze]


def widening_broadcast(rest: Shape, wide: Shape, node: Node) -> OperatorClass:
    """Return the operator class of a broadcast whose operand has lost its dimensions of size 1.

    XLA computes a broadcast [8, 1] -> [8, 4] in three steps: a copy, a squeeze to [8] (both are
    `widening_steps`), and the broadcast [8] -> [8, 4].

    Args:
      rest: the operand's shape after the squeeze, [8].
      wide: the shape of the result, [8, 4].
      node: the broadcast in the graph.
    """
    small = node.signature.operands[0].shape
    # The result dimension of each operand dimension. Widened dimensions of size 1 are gone.
    result_dims = node.signature.param("broadcast_dimensions")
    sizes = zip(small, result_dims, strict=True)
    kept_dims = [dim for size, dim in sizes if not (size == 1 and wide[dim] != 1)]
    # Each dimension of the result is one loop; the operand has the loops of its own dimensions.
    result_map: Map = tuple(((f"d{dim}", 0),) for dim in range(len(wide)))
    operand_map: Map = tuple(result_map[dim] for dim in kept_dims)
    maps = (operand_map, result_map)
    kind = replace(pass_through(wide, False), role=image.BROADCAST, maps=maps, shapes=(rest, wide))
    return with_all_passing(kind)


def with_all_passing(kind: OperatorClass) -> OperatorClass:
    """Return an operator class all of whose loops pass from operands to results."""
    return replace(kind, through=frozenset(kind.sizes))


def made_as_operands(
    index: SweepIndex, layouts: Layouts, numbers: list[int]
) -> Iterator[tuple[int, int, int]]:
    """Yield (step, value, layout number) for products whose result is computed in another sharding.

    The layout number is that of the sharding in which the operands compute the product `value`. It
    differs from the value's present sharding in `numbers`.

    Args:
      index: the steps (operators) in order, with the tensors of each.
      layouts: the table of layouts by number.
      numbers: the layout number of each value.
    """
    for step, values in enumerate(index.tensors):
        kind = index.kind(step)
        # A product has three tensors: two operands and the result.
        if kind.role == image.CONTRACTION and len(values) == 3:
            current = index.pick[step](numbers)
            # An annotated result keeps its sharding.
            computed = None if layouts.fixed[current[2]] else _made(kind, current, layouts)
            if computed is not None and computed != current[2]:
                yield step, values[2], computed


def _made(kind: OperatorClass, numbers: Numbers, layouts: Layouts) -> int | None:
    """Return the layout number in which Shardy computes a product before it reshards the result.

    None if the product is computed in the sharding of its result.

    Args:
      numbers: the layout numbers of both operands and of the result.
    """
    # Per tensor, a dictionary from its loops to their digits.
    left, right, result = (split(kind, k, layouts, number) for k, number in enumerate(numbers))
    if not _agree(left, right):
        return None
    # The loops of the result whose digits are not those of the operand with this loop.
    moved = [loop for loop in result if _own(left, right, loop) != result[loop].digits]
    if len(moved) != 1:
        return None
    # [i, k@y] x [k@y, j@x] with the result [i, j@y] is computed as [i, j@x] with partial sums over
    # y. One all-reduce adds them up, and the sum is then moved to [i, j@y].
    (loop,) = moved
    digits, result_digits = _own(left, right, loop), result[loop].digits
    summed_loops = [loop for loop in left if loop in right and loop not in result]
    summed = tuple(digit for loop in summed_loops for digit in left[loop].digits)
    if not (digits and result_digits and result_digits == summed):
        return None
    # Shardy does not move a result that is larger than both operands.
    elements = max(kind.elements[k] for k, side in enumerate((left, right)) if loop in side)
    if kind.elements[2] > elements:
        return None
    result[loop] = result[loop]._replace(digits=digits)
    return layouts.number(layouts.shapes[numbers[2]], joined(kind, 2, result, layouts))


def _own(left: Tensor, right: Tensor, loop: str) -> Digits:
    """Return the digits of a loop in the product's left operand, or in the right one.

    The left operand counts if both have the loop; () if neither has it.
    """
    part = left.get(loop) or right.get(loop)
    return part.digits if part is not None else ()


def _agree(left: Tensor, right: Tensor) -> bool:
    """Return whether operands have equal digits on common loops, and disjoint digits on others.

    The product can then be computed without moving the operands.

    Args:
      left, right: the loops of each operand, with their digits.
    """
    common = [loop for loop in left if loop in right]
    if any(left[loop].digits != right[loop].digits for loop in common):
        return False
    # A digit can partition only one loop of the product.
    left_digits, right_digits = (
        [digit for loop, part in tensor.items() if loop not in common for digit in part.digits]
        for tensor in (left, right)
    )
    return not any(overlap(a, b) for a in left_digits for b in right_digits)
