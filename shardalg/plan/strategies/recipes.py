"""`sa.recipes`: strategies for any function, derived from its operators, shapes and roles.

>>> import jax, shardalg as sa
>>> from jax.sharding import PartitionSpec as P
>>> shapes = {"embed": (512, 64), "up": (64, 256), "down": (256, 64)}
>>> params = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in shapes.items()}
>>> tokens = jax.ShapeDtypeStruct((32, 16), "int32")
>>> def loss(params, tokens):
...     x = params["embed"][tokens]
...     x = x + jax.nn.relu(x @ params["up"]) @ params["down"]
...     return jax.nn.logsumexp(x @ params["embed"].T, -1).mean()
>>> recipe = sa.recipes.fsdp("data") | sa.recipes.tensor("model")
>>> found = recipe.strategy(jax.grad(loss), params, tokens, mesh=sa.Mesh({"data": 4, "model": 2}))
>>> for name, spec in found.in_shardings[0].items():
...     print(name, spec)
down P('model', 'data')
embed P('model', 'data')
up P('data', 'model')
>>> found.in_shardings[1] == P("data", None)
True

A recipe names no array. `explain` says per array why its axes are where they are, and which could
not be placed. `pin` gives an array a layout, and `ban` keeps an axis away from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from shardalg.algebra.mesh import Mesh
from shardalg.errors import StrategyError
from shardalg.plan.planning import traced_call
from shardalg.plan.strategies.derive.deriving import Derived, derived
from shardalg.plan.strategies.derive.recipe_parts import Part, Wishes, spec_text
from shardalg.plan.strategies.explanation import RecipeExplanation
from shardalg.planner.propagate.options import Options
from shardalg.planner.propagate.strategy import Strategy
from shardalg.planner.traced import Traced

KINDS = ("data", "fsdp", "tensor", "sequence", "expert", "zero", "two_d")
# Parts that may share an axis: their arrays, or their dimensions, are not the same ones.
_SHARED = (
    {"tensor", "sequence"},
    {"expert", "fsdp"},
    {"expert", "zero"},
    {"expert", "data"},
    {"expert", "two_d"},
)
ZERO_LEVELS = (1, 2, 3)


@dataclass(frozen=True)
class Recipe:
    """A strategy for any function, as a value.

    Attributes:
      parts: the kinds of parallelism, each with its mesh axes. wishes: pins and bans.

    Raises:
      StrategyError: an axis that two parts cannot share, or a part that is given twice.
    """

    parts: tuple[Part, ...]
    wishes: Wishes = field(default=Wishes())

    def __post_init__(self) -> None:
        for number, part in enumerate(self.parts):
            for other in self.parts[:number]:
                _check_pair(other, part)
        self._check_wishes()

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that the recipe uses, in order."""
        return tuple(dict.fromkeys(axis for part in self.parts for axis in part.axes))

    def __or__(self, other: object) -> Recipe:
        """Return a recipe with the parts, pins and bans of both, as `fsdp("data") | tensor("x")`.

        Raises:
          StrategyError: the other value is no recipe, or two parts do not go together.
        """
        if not isinstance(other, Recipe):
            raise StrategyError(
                f"a recipe is combined with a recipe, not with {other!r:.60}: write "
                'sa.recipes.fsdp("data") | sa.recipes.tensor("model").'
            )
        wishes = Wishes(
            (*self.wishes.pins, *other.wishes.pins), (*self.wishes.bans, *other.wishes.bans)
        )
        return Recipe((*self.parts, *other.parts), wishes)

    def __repr__(self) -> str:
        pins = (f".pin({path!r}, {spec_text(dims)})" for path, dims in self.wishes.pins)
        bans = (f".ban({path!r}, {axis!r})" for path, axis in self.wishes.bans)
        text, wishes = " | ".join(map(repr, self.parts)), "".join([*pins, *bans])
        return f"({text}){wishes}" if wishes and len(self.parts) > 1 else text + wishes

    def pin(self, path: str, spec: Any) -> Recipe:
        """Return the recipe with a layout for the arguments that a glob names.

        Args:
          path: a glob on paths with slashes, such as "params/embed*" or "*/bias".
          spec: a `PartitionSpec`, or a tuple with an axis, a tuple of axes or None per dimension.

        >>> recipe = fsdp("data").pin("params/embed*", ("data", None))
        >>> recipe
        sa.recipes.fsdp('data').pin('params/embed*', ('data', None))
        """
        return replace(self, wishes=self.wishes.with_pin(path, spec))

    def ban(self, path: str, axis: str) -> Recipe:
        """Return the recipe with a ban: an axis must not shard the arguments that a glob names.

        Raises:
          StrategyError: the recipe does not use the axis.
        """
        return replace(self, wishes=self.wishes.with_ban(path, axis))

    def strategy(
        self,
        fn: Callable[..., Any],
        *args: Any,
        mesh: Any,
        roles: Any = None,
        kwargs: Mapping[str, Any] | None = None,
        options: Options | None = None,
    ) -> Strategy:
        """Trace a function, and return the strategy of the recipe for it.

        Args:
          fn, args, roles, kwargs, options: as of `sa.plan`.
          mesh: a `Mesh`, or a mesh of JAX, with the axes of the recipe.

        Raises:
          StrategyError: an axis that the mesh does not have, a pin or ban that names no argument,
            a batch that does not divide, or a part that finds nothing to shard.
          RoleError: roles are neither given nor certain.
        """
        found = self._derived(fn, args, mesh, (roles, kwargs, options))
        return found.strategy

    def strategy_of(self, traced: Traced, mesh: Mesh) -> Strategy:
        """Return the strategy of the recipe for a function that is traced already."""
        return self._of(traced, mesh).strategy

    def explain(
        self,
        fn: Callable[..., Any],
        *args: Any,
        mesh: Any,
        roles: Any = None,
        kwargs: Mapping[str, Any] | None = None,
        options: Options | None = None,
    ) -> RecipeExplanation:
        """Return per array what was chosen, why, and which axes could not be placed.

        Args and errors: as of `strategy`.
        """
        return RecipeExplanation(
            repr(self), self._derived(fn, args, mesh, (roles, kwargs, options))
        )

    def _derived(
        self, fn: Callable[..., Any], args: Any, mesh: Any, rest: tuple[Any, ...]
    ) -> Derived:
        """Trace a function and apply the recipe.

        Args:
          rest: roles, keyword arguments and options.
        """
        roles, kwargs, options = rest
        there = mesh if isinstance(mesh, Mesh) else Mesh.from_jax(mesh)
        self._check_mesh(there)
        given = (args, kwargs or {})
        traced, _, _ = traced_call(fn, given, roles, None, Strategy(there), options)
        return self._of(traced, there)

    def _of(self, traced: Traced, mesh: Mesh) -> Derived:
        self._check_mesh(mesh)
        return derived(self.parts, self.wishes, traced, mesh)

    def _check_mesh(self, mesh: Mesh) -> None:
        """Check that a mesh has all axes of the recipe.

        Raises:
          StrategyError: it lacks some; the message names all of them.
        """
        unknown = [axis for axis in self.axes if axis not in mesh.shape]
        if unknown:
            near = get_close_matches(unknown[0], list(mesh.axis_names), 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise StrategyError(
                f"{self!r} uses {', '.join(map(repr, unknown))}, which {mesh!r} does not have: its "
                f"axes are {', '.join(map(repr, mesh.axis_names))}.{hint}"
            )

    def _check_wishes(self) -> None:
        """Check the pins (layouts that the user demands) and bans (axes that the user excludes).

        Raises:
          StrategyError: a ban names an axis that the recipe does not use, or pins and bans
            contradict each other.
        """
        self.wishes.check()
        # A ban of an axis that no part uses has no effect, and is probably misspelt.
        for path, axis in self.wishes.bans:
            if axis not in self.axes:
                near = get_close_matches(str(axis), self.axes, 1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise StrategyError(
                    f"ban({path!r}, {axis!r}): the recipe uses {', '.join(map(repr, self.axes))}."
                    f"{hint}"
                )


def _check_pair(first: Part, second: Part) -> None:
    """Check that two parts of a recipe go together, such as `fsdp("data")` and `tensor("model")`.

    Raises:
      StrategyError: both are of one kind, both shard products, or they use one axis twice.
    """
    kinds = {first.kind, second.kind}
    if first.kind == second.kind:
        raise StrategyError(
            f"{first!r} and {second!r}: a recipe has each part once. Several axes are given to one "
            f"part, major first: sa.recipes.{first.kind}({_names(first.axes + second.axes)})."
        )
    if kinds == {"two_d", "tensor"}:
        raise StrategyError(
            f"{first!r} and {second!r} both shard the products. Leave one out: two_d(x, y) is "
            "tensor(y), with weights and batch along x."
        )
    # An axis shards one dimension of an array, so only parts that shard different arrays or
    # dimensions may have the same axis (`_SHARED`).
    both = [axis for axis in first.axes if axis in second.axes]
    if both and kinds not in _SHARED:
        why = (
            "fsdp and zero shard the batch along their axes as well, so that data is not needed"
            if "data" in kinds
            else "an axis has one use"
        )
        raise StrategyError(
            f"{first!r} and {second!r} use the axis {', '.join(map(repr, both))} twice: {why}."
        )


def _names(axes: tuple[str, ...]) -> str:
    return ", ".join(map(repr, axes))


def _recipe(kind: str, axes: tuple[Any, ...], level: int = 0) -> Recipe:
    """Return a recipe of one part, such as `fsdp("data")`.

    Args:
      kind: one of `KINDS`. level: the stage of `zero`, else 0.

    Raises:
      StrategyError: no axes, an axis that is no name, or one that is given twice.
    """
    shown = ", ".join(map(repr, axes))
    if not axes or not all(isinstance(axis, str) and axis for axis in axes):
        raise StrategyError(f"{kind}({shown}): give the names of mesh axes, as in {kind}('data').")
    if len(set(axes)) < len(axes):
        raise StrategyError(f"{kind}({shown}): an axis is given twice.")
    return Recipe((Part(kind, axes, level),))


def data(*axes: str) -> Recipe:
    """Return data parallelism: the batch of the data is sharded, everything else replicated."""
    return _recipe("data", axes)


def fsdp(*axes: str) -> Recipe:
    """Return fully sharded data parallelism.

    Each parameter and its optimizer state are sharded on their largest dimension that divides and
    that no other part uses. The batch is sharded along the same axes.

    Source: ZeRO stage 3 (arXiv:1910.02054).
    """
    return _recipe("fsdp", axes)


def zero(level: int, *axes: str) -> Recipe:
    """Return ZeRO: optimizer state (1), and gradients (2), and parameters (3) are sharded.

    The batch is sharded along the same axes. `zero(3, axis)` is `fsdp(axis)`. Gradients inside of a
    step have no layout of their own in a strategy: levels 1 and 2 differ for a function that
    returns gradients.

    Source: arXiv:1910.02054.
    """
    if type(level) is not int or level not in ZERO_LEVELS:
        raise StrategyError(f"zero({level!r}, ...): the level is 1, 2 or 3, then the axes follow.")
    return _recipe("fsdp", axes) if level == 3 else _recipe("zero", axes, level)


def tensor(*axes: str) -> Recipe:
    """Return tensor parallelism: columns of products, and rows of the products that follow.

    Source: Megatron-LM (arXiv:1909.08053); `parallel_products` says how products are found.
    """
    return _recipe("tensor", axes)


def sequence(*axes: str) -> Recipe:
    """Return sequence parallelism: data, and sites between products, along the sequence.

    On the axes of `tensor` it is that of Megatron (arXiv:2205.05198): activations between the
    products are sharded along the sequence. On axes of its own it is context parallelism.
    """
    return _recipe("sequence", axes)


def expert(*axes: str) -> Recipe:
    """Return expert parallelism: experts' parameters by expert; the batch along the same axes.

    Source: GShard (arXiv:2006.16668).
    """
    return _recipe("expert", axes)


def two_d(x: str, y: str) -> Recipe:
    """Return the finalized 2D strategy of GSPMD (arXiv:2105.04663), Table 1.

    Heads, hidden features and vocabulary are on `y`. The features of the residual are on `x` in
    parameters, and on `y` in activations (data and sites). The batch is on `x`.
    """
    return _recipe("two_d", (x, y))


def __getattr__(name: str) -> object:
    near = get_close_matches(name, KINDS, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise AttributeError(f"there is no recipe {name!r}: the recipes are {', '.join(KINDS)}.{hint}")


def __dir__() -> Iterator[str]:
    return iter([*KINDS, "Recipe"])
