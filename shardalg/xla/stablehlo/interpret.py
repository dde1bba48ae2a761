"""A parsed module as a function of arrays: every operator calls what its table says."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from shardalg.algebra.mesh import Mesh
from shardalg.errors import NotationError, ShardingError, StrategyError, TraceError
from shardalg.xla.stablehlo.called import OPERATORS
from shardalg.xla.stablehlo.text_layouts import INLINED, SHARDY, constrained, per_value, read_layout
from shardalg.xla.stablehlo.text_places import called_from, frames, scoped, shown
from shardalg.xla.stablehlo.text_step import COMPOSITE, TextStep

Env = MutableMapping[Any, Any]
_CALLS = {"func.call": "callee", COMPOSITE: "decomposition"}
_MESH = re.compile(rf"<(?:@(\w+)|({INLINED}))")
_MAIN = "main"
_RETURNS = ("func.return", "stablehlo.return", "sdy.return")


@dataclass(frozen=True, eq=False)
class StablehloProgram:
    """A module's functions, and the mesh of its shardings.

    Attributes:
      functions: the parsed functions by name.
      mesh: the mesh of the plan; None if the text has no shardings.
      path: path of the text, for messages.
      meshes: meshes that the text states, by name. JAX writes one without axes for random keys if
        no mesh is set; its shardings have no meaning, unless it names one device.
    """

    functions: dict[str, Any]
    mesh: Mesh | None
    path: str
    meshes: Mapping[str, Mesh] = field(default_factory=dict)

    def layout(self, said: Any, shape: Sequence[int]) -> Any:
        """Parse a sharding on the mesh that its text names; None if this mesh has no axes.

        JAX writes shardings on a mesh without axes for random keys; they have no meaning.

        Args:
          said: a sharding of Shardy or of HLO. shape: shape of the value.

        Raises:
          NotationError, ShardingError: the sharding does not fit the shape or the mesh.
          TraceError: the text states no mesh.
        """
        # A sharding of Shardy names its mesh or contains it; one of HLO does neither.
        names = [name or inlined for name, inlined in _MESH.findall(str(said))]
        own = self.meshes.get(names[0]) if names else self.mesh
        if own is not None and not own.axes:
            if own.device_ids is None:
                return None
            raise NotationError(
                f"{said} keeps a value on device {own.device_ids[0]} alone, which no plan does. "
                "Leave the sharding out, or state one on all devices."
            )
        if self.mesh is None or own is None:
            raise TraceError(f"{self.path}: the sharding {said} stands in a text without a mesh.")
        return read_layout(said, shape, own, self.mesh)

    def call(self, name: str, *args: Any) -> tuple[Any, ...]:
        """Return the results of a function of the module.

        Raises:
          TraceError: an operator that no table has.
        """
        function = self.functions[name]
        if name != _MAIN:  # the caller applies the shardings of the border of the program
            args = self._stated(function, "arg_attrs", args)
        results = self._block(function.regions[0].blocks[0], {}, args)
        return results if name == _MAIN else self._stated(function, "res_attrs", results)

    def _stated(self, function: Any, name: str, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Return arrays constrained to the shardings that a function states.

        Args:
          name: "arg_attrs" if the arrays are its arguments, "res_attrs" if they are its results.
        """
        if name not in function.attributes:
            return tuple(arrays)
        pairs = zip(arrays, function.attributes[name], strict=True)
        return tuple(
            constrained(x, self.layout(attributes[SHARDY], jnp.shape(x)))
            if SHARDY in attributes
            else x
            for x, attributes in pairs
        )

    def _block(self, block: Any, env: Env, args: Sequence[Any]) -> tuple[Any, ...]:
        """Run the operators of a block and return its results.

        Args:
          env: arrays of the values outside of the block, which it may read.
        """
        env = ChainMap({}, env)
        # Shardy applies a constraint whose result has no users to the constrained value itself.
        constraints: dict[Any, list[Any]] = {}
        for op in (operation.operation for operation in block.operations):
            if op.name == "sdy.sharding_constraint" and not list(op.result.uses):
                constraints.setdefault(op.operands[0], []).append(op)
        self._define(env, block.arguments, args, constraints)
        for op in block.operations:
            operands = [env[value] for value in op.operands]
            if op.operation.name in _RETURNS:
                return tuple(operands)
            results = self._operator(op.operation, env, operands)
            self._define(env, op.operation.results, results, constraints)
        return ()

    def _define(
        self, env: Env, values: Sequence[Any], arrays: Sequence[Any], unread: Mapping[Any, Any]
    ) -> None:
        """Store the arrays of values in `env`, and constrain them where the program says so.

        Args:
          unread: per value, the sharding constraints whose own results nothing reads. Shardy
            applies these to the value itself.
        """
        env.update(zip(values, arrays, strict=True))
        for value in values:
            for op in unread.get(value, ()):
                (env[value],) = self._operator(op, env, [env[value]])

    def _operator(self, op: Any, env: Env, operands: Sequence[Any]) -> tuple[Any, ...]:
        """Run an operator; called functions are inlined in the scopes and lines of the call.

        The results are constrained to the operator's Shardy shardings, if it has any.

        Raises:
          NotationError, ShardingError, StrategyError: with the line of the text, or the user's
            line.
        """
        # The line of the operator begins every error below.
        location = str(op.location)
        run, step = self._found(op, env, location)
        try:
            with scoped(location):
                returned = called_from(frames(location, self.path), run, step, *operands)
                results = returned if isinstance(returned, tuple) else (returned,)
                if SHARDY not in op.attributes:
                    return results
                shardings = per_value(op.attributes[SHARDY])
                pairs = zip(results, shardings, strict=True)
                return tuple(constrained(x, self.layout(s, jnp.shape(x))) for x, s in pairs)
        except (NotationError, ShardingError, StrategyError) as error:
            place = shown(location, self.path)
            # Errors of an inner operator name its place already, so they pass unchanged.
            if str(error).startswith(f"{place}: "):
                raise
            raise type(error)(f"{place}: {op.name}: {error}") from None

    def _found(self, op: Any, env: Env, location: str) -> tuple[Callable[..., Any], Any]:
        """Return the function of an operator and its first argument; composites are unwrapped.

        A call gets the name of the called function, and any other operator a `TextStep` with its
        attributes, regions and the place for error messages.
        """
        name = op.attributes["name"].value if op.name == COMPOSITE else op.name
        if op.name in _CALLS and name not in OPERATORS:
            return self.call, op.attributes[_CALLS[op.name]].value
        sizes = {} if self.mesh is None else self.mesh.shape
        step = TextStep(op, self._region(op, env), self.layout, sizes, shown(location, self.path))
        if name not in OPERATORS:
            raise step.refused("")
        return OPERATORS[name], step

    def _region(self, op: Any, env: Env) -> Callable[[int], Callable[..., tuple[Any, ...]]]:
        """Return a function from the number of an operator's region to a function that runs it."""

        def region(number: int) -> Callable[..., tuple[Any, ...]]:
            return lambda *args: self._block(op.regions[number].blocks[0], env, args)

        return region
