"""How a user's call reaches an executable that takes arrays, and how its results come back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

Inner = Callable[..., Any]


class UserCall(Protocol):
    """The way between a function as its user calls it and a function of arrays."""

    @property
    def through(self) -> Callable[[Inner, tuple[Any, ...], Mapping[str, Any]], Any]:
        """(inner, args, kwargs) -> what the user's function returns, `inner` called on arrays."""

    def inside(self, work: Inner, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What `work` makes of the arrays of a call, which ends there."""


class _OnArrays:
    """A function that takes pytrees of arrays by position."""

    def through(self, inner: Inner, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The function itself."""
        return inner(*args, **kwargs)

    inside = through


ON_ARRAYS: UserCall = _OnArrays()
