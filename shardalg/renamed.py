"""Old names of the public interface and of table columns, with their new names.

An old name of the interface works for one more version, with a warning.
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
"""New names by old name. Most old names are attributes of a DataFrame, which hide the column."""


def new_name(key: object, columns: Collection[object]) -> str | None:
    """Return the new name of a column that a table had under the name `key`, or None.

    >>> new_name("axes", ("kind", "mesh_axes"))
    'mesh_axes'
    >>> new_name("wire_bytes", ("wire_bytes", "wire_bytes_per_step")) is None
    True
    """
    # An existing column wins, because some old names are names of other columns now.
    if not isinstance(key, str) or key in columns:
        return None
    return next((new for new in RENAMED.get(key, ()) if new in columns), None)


_Method = TypeVar("_Method", bound=Callable[..., Any])


class RenamedWarning(DeprecationWarning):
    """Use of an old name, which works for one more version."""


def warn_renamed(old: str, new: str) -> None:
    """Warn that `old` is an old name of `new`.

    The warning names the user's line: the one that called the function which warns.

    >>> with warnings.catch_warnings(record=True) as seen:
    ...     warnings.simplefilter("always")
    ...     warn_renamed("parts", "num_shards")
    >>> print(seen[0].message)
    parts is an old name, which the next version drops; use num_shards.
    """
    words = f"{old} is an old name, which the next version drops; use {new}."
    # Level 3 is the line of the user who called the function that warns.
    warnings.warn(words, RenamedWarning, stacklevel=3)


if TYPE_CHECKING:

    def also_without_call(method: _Method) -> _Method:
        """Return the method unchanged: for type checkers, only the form with a call exists."""
        return method

else:

    def also_without_call(method: _Method) -> property:
        """Return a property with the method's table, which returns itself when it is called.

        So the old form `plan.conditions` and the new form `plan.conditions()` are equal.

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
