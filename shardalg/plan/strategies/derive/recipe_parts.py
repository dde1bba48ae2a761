"""The parts, pins and bans of a recipe, and the layout of one array while they are applied."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from shardalg.errors import StrategyError
from shardalg.graph.weights import words

Axes = tuple[str, ...]
Dims = tuple[Axes, ...]


@dataclass(frozen=True)
class Part:
    """One part of a recipe.

    Attributes:
      kind: "data", "fsdp", "zero", "tensor", "sequence", "expert" or "two_d".
      axes: mesh axes, major first. level: of `zero`, 1 or 2; 0 for other kinds.
    """

    kind: str
    axes: Axes
    level: int = 0

    def __repr__(self) -> str:
        given = ", ".join(map(repr, ((self.level,) if self.level else ()) + self.axes))
        return f"sa.recipes.{self.kind}({given})"


class Wishes(NamedTuple):
    """The pins (path, axes per dimension) and bans (path, axis) of a recipe or a family."""

    pins: tuple[tuple[str, Dims], ...] = ()
    bans: tuple[tuple[str, str], ...] = ()

    def with_pin(self, path: str, spec: Any) -> Wishes:
        """Return the wishes with one more pin: a layout for the arguments that a glob names.

        Args:
          path: a glob on paths, such as "params/embed*".
          spec: a `PartitionSpec`, or a tuple with an axis, a tuple of axes or None per dimension.

        Raises:
          StrategyError: the layout is no `PartitionSpec` or tuple of axes.
        """
        if isinstance(spec, str) or not hasattr(spec, "__iter__"):
            raise StrategyError(f"the pin of {path!r} is {spec!r:.60}: give a PartitionSpec.")
        # Each entry becomes a tuple of axes: "x" -> ("x",), None -> ().
        dims: list[Axes] = []
        for entry in tuple(spec):
            axes = () if entry is None else (entry,) if isinstance(entry, str) else entry
            if not isinstance(axes, tuple | list) or not all(isinstance(a, str) for a in axes):
                raise StrategyError(
                    f"the pin of {path!r} has the entry {entry!r:.40}: an entry is an axis, a "
                    "tuple of axes, or None."
                )
            dims.append(tuple(axes))
        return self._replace(pins=(*self.pins, (path, tuple(dims))))

    def with_ban(self, path: str, axis: str) -> Wishes:
        """Return the wishes with an axis that must not shard the arguments that a glob names."""
        return self._replace(bans=(*self.bans, (path, axis)))

    def check(self) -> None:
        """Check that paths are texts, and that pins do not contradict each other or themselves.

        A pin is a layout that the user demands for the arguments that a glob names.

        Raises:
          StrategyError: a path is no text, two pins of one path differ, or a pin has an axis twice.
        """
        for path, _ in (*self.pins, *self.bans):
            if not isinstance(path, str):
                raise StrategyError(
                    f"a pin or ban names {path!r:.60}: give the path of an argument as text, as in "
                    "'params/embed*'."
                )
        # Only equal paths are compared here. Whether two globs overlap depends on the function.
        pinned: dict[str, Dims] = {}
        for path, dims in self.pins:
            if pinned.setdefault(path, dims) != dims:
                raise StrategyError(
                    f"two pins of {path!r} conflict: {spec_text(pinned[path])} and "
                    f"{spec_text(dims)}. Leave one out."
                )
            named = [axis for axes in dims for axis in axes]
            twice = sorted({axis for axis in named if named.count(axis) > 1})
            if twice:
                raise StrategyError(
                    f"the pin of {path!r}, {spec_text(dims)}, uses {', '.join(twice)} twice: an "
                    "axis shards one dimension of an array."
                )


def spec_text(dims: Dims) -> str:
    """Return the sharding that a user fixed by `pin`, in the form of the call: `('data', None)`."""
    return repr(tuple(axes[0] if len(axes) == 1 else axes or None for axes in dims))


@dataclass(eq=False)
class ArrayLayout:
    """The layout of one argument while a recipe is applied.

    Attributes:
      place: the position among the flat arguments. dims: the axes per dimension, major first.
      reasons: why each axis was placed. refused: why an axis was not.
      pinned: whether the user gave the layout.
    """

    place: int
    path: str
    role: str | None
    type: str
    dims: list[Axes]
    reasons: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    pinned: bool = False

    @property
    def axes(self) -> set[str]:
        """All axes of the layout."""
        return {axis for axes in self.dims for axis in axes}

    def put(self, dim: int, axes: Axes, reason: str) -> None:
        """Add axes to a dimension, minor to the axes that it has already, and record the reason."""
        self.dims[dim] = (*self.dims[dim], *axes)
        self.reasons.append(f"dimension {dim} on {', '.join(axes)}: {reason}")

    def refuse(self, axes: Axes, reason: str) -> None:
        """Record why axes were not placed."""
        self.refused.append(f"{', '.join(axes)}: {reason}")


def path_text(path: str) -> str:
    """Return an argument's path with slashes, as the globs of pins and bans match it.

    >>> path_text("params['layers'][0]['w_in']"), path_text("model.mlp.kernel")
    ('params/layers/0/w_in', 'model/mlp/kernel')
    """
    root, below = words(path)
    return "/".join((root, *below))


def matches(pattern: str, path: str) -> bool:
    """Return whether a pattern names the argument with the given path.

    A glob such as `params/layers/*` must match the path written with slashes. A pattern that is
    equal to the path as JAX prints it, `params['layers'][0]`, matches too.
    """
    return fnmatchcase(path_text(path), pattern) or path == pattern
