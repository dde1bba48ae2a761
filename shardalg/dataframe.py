"""A `Table` that is a pandas DataFrame, and refuses the old names of its columns."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.core.groupby import DataFrameGroupBy

from shardalg.errors import TableError
from shardalg.renamed import new_name

_BY_COLUMN = (
    "drop", "eval", "explode", "groupby", "melt", "nlargest", "nsmallest", "pivot", "pivot_table",
    "pop", "query", "set_index", "sort_values", "value_counts",
)  # fmt: skip
"""These methods of a DataFrame take names of columns, so a caller may give them an old name."""


class RenamedColumnError(TableError, KeyError):
    """An old name of a column; the message gives the new one."""

    __str__ = Exception.__str__  # a KeyError shows its message in quotes


def refuse_old_names(keys: Iterable[Any], columns: Iterable[Any]) -> None:
    """Raise an error if a key is an old name of one of the columns.

    Args:
      keys: the column names that a caller asks for; other values are ignored.
      columns: the columns of the table.

    Raises:
      RenamedColumnError: a key is an old name; the message gives the new one.
    """
    here = tuple(columns)
    for key in keys:
        new = new_name(key, here)
        if new is not None:
            raise RenamedColumnError(
                f"The column {key!r} is now named {new!r}: write table[{new!r}]."
            )


class _Grouped(DataFrameGroupBy):
    """The result of `Frame.groupby`; an old column name in brackets raises an error."""

    def __getitem__(self, key: Any) -> Any:
        refuse_old_names(key if isinstance(key, list | tuple) else (key,), self.obj.columns)
        return super().__getitem__(key)


class Frame(pd.DataFrame):
    """A table as a pandas DataFrame; an old name of a column raises an error with the new one.

    No column has the name of an attribute of a DataFrame, so `table.mesh_axes` and
    `table["mesh_axes"]` are the same column. Text in cells is never cut when the table is printed.
    Calling a table returns the table, so that `report.table` and `report.table()` are the same.

    >>> Frame({"mesh_axes": ["X"], "executions": [3]})["count"]
    Traceback (most recent call last):
    ...
    shardalg.dataframe.RenamedColumnError: The column 'count' is now named 'executions': write ...
    """

    _metadata = ["has_all_rows"]  # noqa: RUF012  # pandas copies these attributes to results
    has_all_rows = False
    is_table = True  # `TableType` reads it: a Frame is an instance of `sa.Table` without its base

    @property
    def _constructor(self) -> type[Frame]:
        return Frame

    def __call__(self) -> Frame:
        """Return the table itself."""
        return self

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str | list | tuple):
            refuse_old_names((key,) if isinstance(key, str) else key, self.columns)
        return super().__getitem__(key)

    @property
    def rows(self) -> tuple[tuple[Any, ...], ...]:
        """The rows as tuples, as `sa.Table.rows`."""
        return tuple(self.itertuples(index=False, name=None))

    @property
    def df(self) -> Frame:
        """The table itself, as `sa.Table.df`."""
        return self

    @property
    def whole_df(self) -> Frame:
        """The same table, which prints all of its rows, as `sa.Table.whole_df`."""
        made = self.copy()
        made.has_all_rows = True
        return made

    def select(self, *columns: str) -> Frame:
        """Return the same rows with only these columns, as `sa.Table.select`."""
        return self[list(columns)]

    def where(self, *args: Any, **values: Any) -> Any:
        """Return the rows whose named columns equal these values, as `sa.Table.where`.

        With a positional condition it is `pandas.DataFrame.where`.

        >>> Frame({"kind": ["a", "b"], "n": [1, 2]}).where(kind="b").rows
        (('b', 2),)
        """
        # pandas calls its condition `cond`, so such a call is not one of `sa.Table.where`.
        if args or not values or "cond" in values:
            return super().where(*args, **values)
        refuse_old_names(values, self.columns)
        missing = [name for name in values if name not in self.columns]
        if missing:
            names = ", ".join(map(str, self.columns))
            raise TableError(f"Table: no column {missing[0]!r}; the columns are {names}.")
        records = self.to_dict("records")
        mask = [all(row[name] == value for name, value in values.items()) for row in records]
        return self[mask]

    def csv(self, path: str | Path | None = None) -> str:
        """Return the rows as CSV text without an index, as `sa.Table.csv`."""
        return self._plain().csv(path)

    def markdown(self, path: str | Path | None = None) -> str:
        """Return the rows as Markdown, as `sa.Table.markdown`."""
        return self._plain().markdown(path)

    def latex(self, path: str | Path | None = None) -> str:
        """Return the rows as LaTeX, as `sa.Table.latex`."""
        return self._plain().latex(path)

    def _plain(self) -> Any:
        """Return the same rows as a `sa.Table`."""
        # Tables make all Frames and load this file, so their module is loaded already.
        table = sys.modules["shardalg.tables"].Table
        return table(tuple(map(str, self.columns)), self.rows)

    def groupby(self, *args: Any, **options: Any) -> Any:
        """Group the rows, as `pandas.DataFrame.groupby`; old names of columns are refused."""
        found = super().groupby(*args, **options)
        # pandas always makes its own class. Changing the class of the finished object avoids a
        # second grouping of the rows.
        found.__class__ = _Grouped
        return found

    def __repr__(self) -> str:
        with _uncut(self.has_all_rows):
            return super().__repr__()

    def _repr_html_(self) -> str:
        # A notebook would print a name such as "$x$" as a MathJax formula.
        no_formulas = pd.option_context("display.html.use_mathjax", False)
        with _uncut(self.has_all_rows), no_formulas:
            return super()._repr_html_() or ""  # type: ignore[misc]


def _uncut(has_all_rows: bool) -> Any:
    """Return a context in which pandas prints all columns and whole cells; with True, all rows."""
    whole = ["max_colwidth", "max_columns", "width"] + ["max_rows"] * has_all_rows
    options: list[Any] = [item for name in whole for item in (f"display.{name}", None)]
    return pd.option_context(*options, "display.expand_frame_repr", False)


def _refusing(name: str) -> Any:
    """Return a DataFrame's method, whose error about an old column name has the new name.

    Args:
      name: the name of the method, such as "sort_values".
    """
    method = getattr(Frame, name)

    def called(self: Frame, *args: Any, **options: Any) -> Any:
        """Call the method; if it misses a column, raise an error that has the new name."""
        try:
            return method(self, *args, **options)
        except (KeyError, NameError) as error:
            # pandas quotes a missing name in several forms: 'axes', ['axes'], name 'count'.
            words = str(error).replace("[", "'").replace("]", "'").split("'")
            refuse_old_names(words, self.columns)
            raise

    called.__name__ = name
    return called


for _name in _BY_COLUMN:
    # An old name is looked up only after the method failed, so a correct call costs nothing.
    setattr(Frame, _name, _refusing(_name))
