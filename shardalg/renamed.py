"""Old names of the public interface: each works for one version more, with a warning.

Old names of the columns of public tables, each with the name that it has now.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

RENAMED = {
    "axes": ("mesh_axes",),
    "count": ("executions", "claims", "arrays"),
    "xla_count": ("xla_executions",),
    "other_count": ("other_executions",),
    "wire_bytes": ("wire_bytes_per_step",),
    "xla_wire_bytes": ("xla_wire_bytes_per_step",),
    "other_wire_bytes": ("other_wire_bytes_per_step",),
    "shape": ("global_shape",),
    "size": ("dimension", "devices"),
    "where": ("place",),
    "values": ("num_values",),
}
"""Most of the old names are attributes of a pandas DataFrame, which hide the column."""


def new_name(key: object, columns: Collection[object]) -> str | None:
    """Return the new name of a column that a table had under the name `key`, or None.

    >>> new_name("axes", ("kind", "mesh_axes"))
    'mesh_axes'
    >>> new_name("wire_bytes", ("wire_bytes", "wire_bytes_per_step")) is None
    True
    """
    if not isinstance(key, str) or key in columns:
        return None
    return next((new for new in RENAMED.get(key, ()) if new in columns), None)


_Method = TypeVar("_Method", bound=Callable[..., Any])


class RenamedWarning(DeprecationWarning):
    """An old name of something that has another one now; it works for one version more."""


def warn_renamed(old: str, new: str) -> None:
    """Warn, where the caller of the calling function stands, that a name has another one now.

    >>> with warnings.catch_warnings(record=True) as seen:
    ...     warnings.simplefilter("always")
    ...     warn_renamed("parts", "num_shards")
    >>> print(seen[0].message)
    parts is an old name, which the next version drops; use num_shards.
    """
    words = f"{old} is an old name, which the next version drops; use {new}."
    warnings.warn(words, RenamedWarning, stacklevel=3)


if TYPE_CHECKING:

    def also_without_call(method: _Method) -> _Method:
        """To a checker a method like others: what is written without the call is old."""
        return method

else:

    def also_without_call(method: _Method) -> property:
        """Return a property of a method: a public table is the result of calling it, too.

        >>> from shardalg.tables import Table
        >>> class Plan:
        ...     @also_without_call
        ...     def conditions(self):
        ...         return Table(("margin",), ((3,),)).df
        >>> len(Plan().conditions()), Plan().conditions["margin"].tolist()
        (1, [3])
        """

        @wraps(method)
        def table(self: Any) -> Any:
            return method(self)

        return property(table)
