"""A parsed module as a function of arrays: every operator calls what its table says."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardalg.algebra.mesh import Mesh
from shardalg.errors import TraceError
from shardalg.planning.stablehlo.called import OPERATORS
from shardalg.planning.stablehlo.text_layouts import named
from shardalg.planning.stablehlo.text_places import called_from, frames, scoped, shown
from shardalg.planning.stablehlo.text_step import COMPOSITE, Step

Env = MutableMapping[Any, Any]
_CALLS = {"func.call": "callee", COMPOSITE: "decomposition"}
_MESH = re.compile(r"<@(\w+)")
_RETURNS = ("func.return", "stablehlo.return", "sdy.return")


@dataclass(frozen=True, eq=False)
class Program:
    """A module's functions, and the mesh on which its shardings are said.

    Attributes:
      functions: by name, of the parser.
      mesh: ours; None where the text has no shardings. path: of the text, for places.
      without_axes: names of meshes that have none (of random keys, where no mesh is set).
    """

    functions: dict[str, Any]
    mesh: Mesh | None
    path: str
    without_axes: frozenset[str] = frozenset()

    def layout(self, said: Any, shape: Sequence[int]) -> Any:
        """A sharding of the text on its mesh; None of one on a mesh without axes: it says nothing.

        Raises:
          NotationError, ShardingError: it does not fit.
        """
        if self.without_axes.intersection(_MESH.findall(str(said))):
            return None
        if self.mesh is None:
            raise TraceError(f"{self.path}: the sharding {said} stands in a text without a mesh.")
        return named(said, shape, self.mesh)

    def call(self, name: str, *args: Any) -> tuple[Any, ...]:
        """What a function of the module returns.

        Raises:
          TraceError: an operator that no table has.
        """
        return self._block(self.functions[name].regions[0].blocks[0], {}, args)

    def _block(self, block: Any, env: Env, args: Sequence[Any]) -> tuple[Any, ...]:
        env = ChainMap(dict(zip(block.arguments, args, strict=True)), env)
        for op in block.operations:
            operands = [env[value] for value in op.operands]
            if op.operation.name in _RETURNS:
                return tuple(operands)
            results = self._operator(op.operation, env, operands)
            env.update(zip(op.operation.results, results, strict=True))
        return ()

    def _operator(self, op: Any, env: Env, operands: Sequence[Any]) -> tuple[Any, ...]:
        """What is called is written out, in the scopes and below the lines of the call."""
        location = str(op.location)
        run, step = self._found(op, env, location)
        with scoped(location):
            made = called_from(frames(location, self.path), run, step, *operands)
        return made if isinstance(made, tuple) else (made,)

    def _found(self, op: Any, env: Env, location: str) -> tuple[Callable[..., Any], Any]:
        """What an operator calls, and its first argument; a composite is the operator it names."""
        name = op.attributes["name"].value if op.name == COMPOSITE else op.name
        if op.name in _CALLS and name not in OPERATORS:
            return self.call, op.attributes[_CALLS[op.name]].value
        sizes = {} if self.mesh is None else self.mesh.shape
        step = Step(op, self._region(op, env), self.layout, sizes, shown(location, self.path))
        if name not in OPERATORS:
            raise step.refused("")
        return OPERATORS[name], step

    def _region(self, op: Any, env: Env) -> Callable[[int], Callable[..., tuple[Any, ...]]]:
        def region(number: int) -> Callable[..., tuple[Any, ...]]:
            return lambda *args: self._block(op.regions[number].blocks[0], env, args)

        return region
