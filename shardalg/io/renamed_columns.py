"""Old names of the columns of public tables, each with the name that it has now."""

from __future__ import annotations

from collections.abc import Collection

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
