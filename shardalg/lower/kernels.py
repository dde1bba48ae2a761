"""Pallas kernels in a lowered program: interpreted ones run on CPU devices, others do not."""

from __future__ import annotations

from copy import copy
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.extend.core
import numpy as np

from shardalg.errors import LoweringError
from shardalg.graph.evaluate import Binding
from shardalg.graph.ir import Graph
from shardalg.spmd.bound import node_of
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import Apply

KERNEL = "pallas_call"
NO_MESH = jax.sharding.AbstractMesh((), (), axis_types=())
"""Under it JAX traces as it does where no mesh is set."""


def kernel_binding(
    graph: Graph, instruction: Instruction[Apply], binding: Binding, *, on_cpu: bool
) -> Binding:
    """Return the primitive of a kernel with the parameters that it has on a device.

    Each equation of a kernel keeps the mesh that was set where the function was traced. The lowered
    program runs on a mesh of its own, so that the copy here has none, as under `jax.jit`.

    Raises:
      LoweringError: a kernel that is not interpreted, on CPU devices.
    """
    primitive, params = binding
    if on_cpu and not params.get("interpret"):
        raise LoweringError(
            f"the pallas_call at {node_of(graph, instruction).source} cannot run on CPU devices: "
            "JAX compiles kernels for accelerators. Lower to accelerators, or write "
            "pl.pallas_call(..., interpret=True), which CPU devices run too."
        )
    return primitive, {name: _without_mesh(value, {}) for name, value in params.items()}


def _without_mesh(value: Any, known: dict[Any, Any]) -> Any:
    """Return a jaxpr whose equations and values name no mesh; anything else as it is.

    Args:
      known: the values of the jaxpr that have been made, by the values that they replace.
    """
    core = jax.extend.core
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
        items = [_without_mesh(inner, known) for inner in value]
        same = all(a is b for a, b in zip(items, value, strict=True))
        return value if same else type(value)(items)
    # jax 0.11 has one class for both: such a jaxpr is its own.
    if isinstance(value, core.ClosedJaxpr) and value.jaxpr is not value:
        return value.replace(jaxpr=_without_mesh(value.jaxpr, known))
    if isinstance(value, core.Literal):
        return type(value)(np.asarray(value.val), _type_without_mesh(value.aval))
    if isinstance(value, core.Var):
        if value not in known:
            known[value] = copy(value)
            known[value].aval = _type_without_mesh(value.aval)
        return known[value]
    if isinstance(value, jax.core.AbstractValue):
        return _type_without_mesh(value)
    if is_dataclass(value) and not isinstance(value, type):  # blocks and their maps of indices
        mine = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        made = {name: _without_mesh(inner, known) for name, inner in mine.items()}
        return replace(value, **made) if any(made[n] is not mine[n] for n in mine) else value
    if not isinstance(value, core.Jaxpr):
        return value
    lists = ("constvars", "invars", "outvars")
    parts = {name: [_without_mesh(v, known) for v in getattr(value, name)] for name in lists}
    equations = [
        equation.replace(
            ctx=_no_context(),
            invars=[_without_mesh(v, known) for v in equation.invars],
            outvars=[_without_mesh(v, known) for v in equation.outvars],
            params={name: _without_mesh(v, known) for name, v in equation.params.items()},
        )
        for equation in value.eqns
    ]
    return value.replace(eqns=equations, **parts)


def _type_without_mesh(kind: Any) -> Any:
    """Return the type of a value, or of what a reference holds, without a layout."""
    if hasattr(kind, "inner_aval"):
        return kind.update(inner_aval=_type_without_mesh(kind.inner_aval))
    if getattr(kind, "sharding", None) is None:
        return kind
    with jax.sharding.use_abstract_mesh(NO_MESH):
        return kind.update(sharding=jax.core.ShapedArray(kind.shape, kind.dtype).sharding)


@cache
def _no_context() -> Any:
    """Return what an equation keeps of its surroundings where no mesh is set."""
    with jax.sharding.use_abstract_mesh(NO_MESH):
        return jax.make_jaxpr(lambda x: x + 1)(1.0).eqns[0].ctx
