"""A JAX primitive on local operands."""

from __future__ import annotations

from dataclasses import dataclass

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.graph.ir import Params
from shardalg.spmd.instruction import Operator
from shardalg.spmd.local import axes_text


@dataclass(frozen=True, slots=True)
class Apply(Operator):
    """Run a JAX primitive on local operands.

    Its results are what the primitive makes: the locals say which types those are.

    Attributes:
      primitive: differs from the node's own where an emission needs another.
      params: the parameters that differ from the node's own (local shapes, dropped hints).
      loops: the digits on each sharded loop of the node's rule.
    """

    primitive: str
    params: Params = ()
    loops: tuple[tuple[str, Digits], ...] = ()

    def text(self, mesh: Mesh) -> str:
        loops = ", ".join(f"{name}@{axes_text(mesh, digits)}" for name, digits in self.loops)
        return self.primitive + (f" [{loops}]" if loops else "")
