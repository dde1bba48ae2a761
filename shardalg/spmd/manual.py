"""The user's own collectives in a manual region, as instructions, and the region's borders."""

from __future__ import annotations

from collections.abc import Callable

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Node, Signature, ValueType
from shardalg.graph.ops.families.building import BALANCED, LOAD
from shardalg.spmd import instructions as spmd
from shardalg.spmd.host.blocks import groups
from shardalg.spmd.instruction import Attributes

Layouts = tuple[Sharding, ...]


def user_collective(signature: Signature, mesh: Mesh) -> Attributes | None:
    """Return the instruction for a collective of the user's, or None for any other operator.

    A device's place in a group is its partition id along the collective's axes, in the order in
    which they are named (`jax.lax.axis_index`). Permutes leave zeros where nothing arrives.

    >>> from shardalg.graph.ir import ValueType
    >>> x, params = ValueType((4, 8), "float32"), (("axes", ("Y",)), ("axis_index_groups", None))
    >>> user_collective(Signature("psum", params, (x,), (x,)), Mesh({"X": 2, "Y": 4}))
    AllReduce(digits=(Digit(stride=1, size=4),), combine='sum')
    """
    build = _USER_COLLECTIVES.get(signature.primitive)
    if build is None:
        return None
    axes = signature.param("axes", signature.param("axis_name"))
    # Axes of size 1 have no digit; a collective over them alone moves nothing.
    digits = mesh.digits((axes,) if isinstance(axes, str) else axes)
    return build(signature, tuple(digit for digit in digits if digit.size > 1), mesh)


def _permute(signature: Signature, digits: Digits, mesh: Mesh) -> spmd.CollectivePermute:
    """Return the permute between positions of the mesh for a `jax.lax.ppermute`."""
    perm = signature.param("perm")
    # The user's permutation counts members of one group, but the instruction counts positions of
    # the mesh. So the user's pairs are repeated for every group.
    pairs = (
        (group[source], group[target])
        for group in groups(digits, mesh.size)
        for source, target in perm
    )
    return spmd.CollectivePermute(digits, tuple(sorted(pairs)))


_USER_COLLECTIVES: dict[str, Callable[[Signature, Digits, Mesh], Attributes]] = {
    "all_gather": lambda s, d, mesh: spmd.AllGather(s.param("all_gather_dimension"), d),
    "all_gather_invariant": lambda s, d, mesh: spmd.AllGather(s.param("all_gather_dimension"), d),
    "all_to_all": lambda s, d, mesh: spmd.AllToAll(
        s.param("split_axis"), s.param("concat_axis"), d
    ),
    "axis_index": lambda s, d, mesh: spmd.Offset(d, 1),
    "pmax": lambda s, d, mesh: spmd.AllReduce(d, "max"),
    "pmin": lambda s, d, mesh: spmd.AllReduce(d, "min"),
    "ppermute": _permute,
    "psum": lambda s, d, mesh: spmd.AllReduce(d),
    "psum_invariant": lambda s, d, mesh: spmd.AllReduce(d),
    "ragged_all_to_all": lambda s, d, mesh: spmd.RaggedAllToAll(d, s.param(LOAD, BALANCED)),
    "reduce_scatter": lambda s, d, mesh: spmd.ReduceScatter(s.param("scatter_dimension"), d),
}
USER_COLLECTIVES = frozenset(_USER_COLLECTIVES)
"""Primitives that are collectives of the user's."""


def manual_layouts(node: Node, mesh: Mesh) -> tuple[Layouts, Layouts]:
    """Return the shardings of a manual region's operands and results, according to its specs."""

    def layout(kind: ValueType, axes: tuple[tuple[str, ...], ...]) -> Sharding:
        # A spec may be shorter than the rank: the other dimensions are replicated.
        """Return the sharding of a value by the axes in its spec, for each dimension."""
        axes_of_dims = (*axes, *[()] * (len(kind.shape) - len(axes)))
        dims = tuple(tuple(d for d in mesh.digits(names) if d.size > 1) for names in axes_of_dims)
        return Sharding(mesh, kind.shape, dims)

    signature = node.signature
    operands = zip(signature.operands, signature.param("in_axes"), strict=True)
    results = zip(signature.results, signature.param("out_axes"), strict=True)
    return tuple(layout(*pair) for pair in operands), tuple(layout(*pair) for pair in results)
