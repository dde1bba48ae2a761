"""`sa.Table`, the type of every public table: named columns and rows of plain values.

A `Table` prints aligned in a terminal, renders as HTML (formulas as MathML) in a notebook, and
exports Markdown and LaTeX without any third party. It has the attributes of a pandas DataFrame;
pandas is loaded when one of them, or `.df`, is used. A method that returns a DataFrame returns a
`Frame` (`shardalg.dataframe`), which is a `Table` and a DataFrame.

`bytes_text`, `flops_text` and `seconds_text` print amounts with three digits and a unit. `Answer`
is the base of everything that a plan answers: text in a terminal, HTML in a notebook, a DataFrame.
"""

from __future__ import annotations

import csv
import html
import io
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.errors import TableError
from shardalg.files import write_whole
from shardalg.palette import NEUTRAL, OK, REFUSED
from shardalg.renamed import new_name

if TYPE_CHECKING:
    from shardalg.dataframe import Frame

    DataFrame = Frame

_LATEX_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
    }
)


class TableType(type):
    """The metaclass of `Table`: a `Frame` is an instance of `Table`, too."""

    def __instancecheck__(cls, value: object) -> bool:
        """Return whether a value is a `Table` or a `Frame`."""
        # By a flag of the type, so that pandas is not imported for the check.
        return super().__instancecheck__(value) or getattr(type(value), "is_table", False)


@dataclass(frozen=True, repr=False)
class Table(metaclass=TableType):
    """Named columns and rows of plain values; equal by content.

    Args:
      columns: lower_snake_case names, each with its unit (`wire_bytes`, `step_time_s`).
      rows: one value per column; numbers, text, None (printed empty) or sympy expressions.

    Raises:
      TableError: a repeated column name, or a row of another length than the columns.

    >>> t = Table(("kind", "wire_bytes"), (("all_gather", 3072), ("all_reduce", 6144)))
    >>> t
    kind        wire_bytes
    all_gather        3072
    all_reduce        6144
    >>> t["wire_bytes"], len(t)
    ((3072, 6144), 2)
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...] = ()

    def __post_init__(self) -> None:
        """Check that names of columns differ, and that each row has a value per column.

        Columns and rows that are lists become tuples.
        """
        # Tuples, so that tables are equal by content and a later change of a list has no effect.
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "rows", tuple(tuple(row) for row in self.rows))
        twice = sorted({name for name in self.columns if self.columns.count(name) > 1})
        if twice:
            raise TableError(f"Table: columns named twice: {', '.join(twice)}. Rename them.")
        bad = [(i, len(r)) for i, r in enumerate(self.rows) if len(r) != len(self.columns)]
        if bad:
            found = ", ".join(f"row {i} has {n}" for i, n in bad[:5])
            raise TableError(
                f"Table: {len(self.columns)} columns ({', '.join(self.columns)}), but {found} "
                f"values ({len(bad)} such rows). Give each row one value per column."
            )

    @classmethod
    def from_records(
        cls, records: Iterable[Mapping[str, Any]], columns: Iterable[str] | None = None
    ) -> Table:
        """Return a table of mappings; a missing key is None, and columns default to the keys.

        >>> Table.from_records([{"a": 1}, {"a": 2, "b": 3}]).rows
        ((1, None), (2, 3))
        """
        records = tuple(records)
        names = tuple(columns or dict.fromkeys(key for record in records for key in record))
        return cls(names, tuple(tuple(record.get(n) for n in names) for record in records))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Return an iterator over the rows, each a dict by column."""
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)

    def __getitem__(self, column: str) -> tuple[Any, ...]:
        """Return the values of one column.

        Raises:
          TableError: the column does not exist. The message lists the columns, and the new name if
            the column was renamed.
        """
        if column not in self.columns:
            new = new_name(column, self.columns)
            renamed = f" {column!r} is now named {new!r}." if new else ""
            raise TableError(
                f"Table: no column {column!r}; the columns are {', '.join(self.columns)}.{renamed}"
            )
        at = self.columns.index(column)
        return tuple(row[at] for row in self.rows)

    def select(self, *columns: str) -> Table:
        """Return the same rows with only these columns, in this order."""
        values = [self[name] for name in columns]
        return Table(columns, tuple(zip(*values, strict=True)))

    def where(self, **values: Any) -> Table:
        """Return the rows whose named columns equal these values.

        >>> Table(("kind", "n"), (("a", 1), ("b", 2))).where(kind="b").rows
        (('b', 2),)
        """
        # Per named column, whether each row has the value. An unknown column raises here.
        masks = [[cell == value for cell in self[name]] for name, value in values.items()]
        rows = (row for i, row in enumerate(self.rows) if all(mask[i] for mask in masks))
        return Table(self.columns, tuple(rows))

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of `df`, such as `groupby` or `loc`; pandas is loaded for it.

        >>> Table(("kind", "n"), (("a", 1), ("b", 2))).sort_values("n").iloc[-1]["kind"]
        'b'
        """
        # pandas is slow to import, so it loads only if a DataFrame's attribute is used.
        if not name.startswith("_"):
            from shardalg.dataframe import Frame

            if hasattr(Frame, name):
                return getattr(self.df, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def df(self) -> Frame:
        """The same table as a pandas DataFrame."""
        from shardalg.dataframe import Frame

        return Frame(list(self.rows), columns=list(self.columns))

    @property
    def whole_df(self) -> Frame:
        """The same table as a DataFrame that prints all its rows."""
        made = self.df
        made.has_all_rows = True
        return made

    def __repr__(self) -> str:
        cells = _cells(self, _text)
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        right = [_numeric(self[name]) for name in self.columns]
        return "\n".join(_aligned(line, widths, right) for line in cells)

    def csv(self, path: str | Path | None = None) -> str:
        r"""Return the table as CSV text, and write it to a file if a path is given.

        >>> Table(("kind", "n"), (("a, b", 1),)).csv()
        'kind,n\n"a, b",1\n'
        """
        return exported(self, "csv", path)

    def markdown(self, path: str | Path | None = None) -> str:
        """Return the table as Markdown (`to_markdown`), and write it if a path is given."""
        return exported(self, "markdown", path)

    def latex(self, path: str | Path | None = None) -> str:
        """Return the table as LaTeX (`to_latex`), and write it if a path is given."""
        return exported(self, "latex", path)

    def to_markdown(self) -> str:
        r"""Return a table in GitHub's Markdown; numbers are flush right.

        >>> print(Table(("op", "n"), (("a|b", 1),)).to_markdown())
        | op | n |
        | --- | ---: |
        | a\|b | 1 |
        """

        def escaped(value: object) -> str:
            # A bar would end the cell, and a name such as "<lambda>" would be read as an HTML tag.
            return re.sub(r"<(?=[A-Za-z/!?][^<]*>)", r"\\<", _text(value).replace("|", "\\|"))

        head, *body = _cells(self, escaped)
        rule = ["---:" if _numeric(self[name]) else "---" for name in self.columns]
        return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *body))

    def to_latex(self) -> str:
        r"""Return a LaTeX tabular in booktabs style, special characters escaped, formulas as math.

        >>> print(Table(("wire_bytes",), ((3,),)).to_latex())
        \begin{tabular}{r}
        \toprule
        wire\_bytes \\
        \midrule
        3 \\
        \bottomrule
        \end{tabular}
        """
        head, *body = (" & ".join(line) + r" \\" for line in _cells(self, _latex))
        places = "".join("r" if _numeric(self[name]) else "l" for name in self.columns)
        start = (rf"\begin{{tabular}}{{{places}}}", r"\toprule", head, r"\midrule")
        return "\n".join((*start, *body, r"\bottomrule", r"\end{tabular}"))

    def to_html(self) -> str:
        """Return an HTML table without style or script; formulas are presentation MathML."""
        head, *body = _cells(self, _html)
        lines = (_html_row(head, "th"), *(_html_row(line, "td") for line in body))
        return "\n".join(("<table>", *lines, "</table>"))

    def _repr_html_(self) -> str:
        return self.to_html()


def exported(table: Table, form: str, path: str | Path | None) -> str:
    """Return a table as text in a form: "csv", "markdown" or "latex"; write it to a file if asked.

    The text of Markdown and LaTeX has no line break at its end, but the file has one.

    Args:
      path: a file that is written atomically; None for none.

    Raises:
      OSError: the folder does not exist or is not writable, or the path is a folder.
    """
    if form == "csv":
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows((table.columns, *table.rows))
        text = out.getvalue()
    else:
        text = (table.to_markdown() if form == "markdown" else table.to_latex()) + "\n"
    if path is not None:
        write_whole(Path(path), text)
    return text if form == "csv" else text.removesuffix("\n")


def _is_formula(value: object) -> bool:
    """Return whether a value is a sympy expression."""
    # If sympy is not loaded, there is no expression, and a table of numbers does not load it.
    sympy = sys.modules.get("sympy")
    return sympy is not None and isinstance(value, sympy.Basic)


def _numeric(values: Iterable[Any]) -> bool:
    """Return whether a column has only numbers and gaps, and at least one number."""
    present = [v for v in values if v is not None]
    return bool(present) and all(
        # A bool is an int in Python, but it is printed as a word.
        isinstance(v, (int, float)) and not isinstance(v, bool)
        for v in present
    )


def _cells(table: Table, show: Callable[[object], str]) -> list[list[str]]:
    """Return the header and the rows as lists of text; `show` formats one cell."""
    return [[show(cell) for cell in line] for line in (table.columns, *table.rows)]


def _text(value: object) -> str:
    """Return a cell on one line: None is empty, floats have six digits."""
    if value is None:
        return ""
    shown = f"{value:.6g}" if isinstance(value, float) else f"{value}"
    return " ".join(shown.splitlines()) if "\n" in shown else shown


def _aligned(line: list[str], widths: list[int], right: list[bool]) -> str:
    """Return cells as one line, each padded to its width: on the left side if `right`."""
    columns = zip(line, widths, right, strict=True)
    return "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in columns).rstrip()


def latex_text(text: str) -> str:
    r"""Return text for a LaTeX document, with special characters escaped.

    >>> print(latex_text("wire_bytes & 5 %"))
    wire\_bytes \& 5 \%
    """
    return text.translate(_LATEX_ESCAPES)


def _latex(value: object) -> str:
    """Return a cell as LaTeX: escaped text, or a formula in math mode."""
    if _is_formula(value):
        return f"${sys.modules['sympy'].latex(value)}$"
    return latex_text(_text(value))


def _html(value: object) -> str:
    """Return a cell as HTML: escaped text, or a formula as MathML."""
    if not _is_formula(value):
        return html.escape(_text(value))
    # Imported here, because sympy is slow to import and most tables have no formulas.
    from sympy.printing.mathml import mathml

    return f"<math>{mathml(value, printer='presentation')}</math>"


def _html_row(cells: list[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>"


_BYTES = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def bytes_text(amount: Any) -> str:
    """Return bytes in powers of 1000, with three digits.

    >>> [bytes_text(n) for n in (0, 999, 1500, 20_812_345_678, 999_999)]
    ['0 B', '999 B', '1.5 kB', '20.8 GB', '1 MB']
    """
    # The unit is chosen after rounding: 999,999 B are 1 MB, not 1e+03 kB.
    scaled, unit = float(amount), 0
    while float(f"{scaled:.3g}") >= 1000 and unit < len(_BYTES) - 1:
        scaled, unit = scaled / 1000, unit + 1
    return f"{_three(scaled)} {_BYTES[unit]}"


def counted(amount: int, what: str) -> str:
    """Return a number of things, such as "3 operators".

    >>> counted(1, "operator"), counted(1234, "operator")
    ('1 operator', '1,234 operators')
    """
    return f"{amount:,} {what}{'s' * (amount != 1)}"


def flops_text(amount: Any) -> str:
    """Return floating-point operations with three digits.

    >>> [flops_text(n) for n in (0, 3072, 1_006_632_960)]
    ['0 flop', '3.07 kflop', '1.01 Gflop']
    """
    return bytes_text(amount)[:-1] + "flop"


def seconds_text(amount: Any) -> str:
    """Return seconds in the unit that gives one to three digits before the point.

    >>> [seconds_text(t) for t in (0, 4.2e-8, 0.00123, 0.9999, 12.345, 3600)]
    ['0 s', '42 ns', '1.23 ms', '1 s', '12.3 s', '3600 s']
    """
    seconds = float(amount)
    if not seconds:
        return "0 s"
    # As for bytes, the unit is chosen after rounding: 0.9999 s is 1 s.
    size, unit = next((u for u in _SECONDS if float(f"{abs(seconds):.3g}") >= u[0]), _SECONDS[-1])
    return f"{_three(seconds / size)} {unit}"


_UNITS: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("bytes_per_step", bytes_text), ("bytes", bytes_text), ("flops", flops_text),
    ("_s", seconds_text),
)  # fmt: skip


def with_units(table: Table) -> Table:
    """Return a table whose numbers of bytes, flops and seconds are texts with units.

    The columns are found by the ends of their names.

    >>> with_units(Table(("kind", "wire_bytes", "time_s"), (("all_gather", 3072, 0.0012),)))
    kind        wire_bytes  time_s
    all_gather  3.07 kB     1.2 ms
    """
    # Per column, the function that prints its numbers; None if its name has no unit.
    text_functions = [
        next((function for end, function in _UNITS if name.endswith(end)), None)
        for name in table.columns
    ]

    def cell(value: Any, text: Callable[[Any], str] | None) -> Any:
        """Return a number as text with its unit; other values, such as None, stay as they are."""
        return text(value) if text and isinstance(value, int | float) else value

    rows = (tuple(map(cell, row, text_functions)) for row in table.rows)
    return Table(table.columns, tuple(rows))


def _three(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{float(f'{value:.3g}'):g}"


Parts = tuple[str | Table, ...]
MOST_ROWS = 20
"""Rows of a table that an answer prints; more would push its sentences off the screen."""


class Answer(ABC):
    """Base class of the results of a plan's methods, which print as sentences and tables.

    A subclass defines `table` and `parts`. `df`, iteration and length are those of `table`.
    """

    @property
    @abstractmethod
    def table(self) -> Table:
        """The answer as rows."""

    @abstractmethod
    def parts(self) -> Parts:
        """Return the sentences and tables in printed order; tables without rows are left out."""

    @property
    def df(self) -> DataFrame:
        """The rows as a pandas DataFrame."""
        return self.table.df

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)

    def __repr__(self) -> str:
        return "\n".join(map(repr_part, self._shown()))

    def _repr_html_(self) -> str:
        return "\n".join(map(html_part, self._shown()))

    def _shown(self) -> Iterator[str | Table]:
        """Yield the parts that are printed: texts, and at most `MOST_ROWS` rows of each table.

        A table without rows is left out. A long one is followed by the number of its other rows.
        """
        for part in self.parts():
            if isinstance(part, str):
                yield part
            elif len(part):
                yield Table(part.columns, part.rows[:MOST_ROWS])
                if len(part) > MOST_ROWS:
                    yield f"... and {len(part) - MOST_ROWS} more rows."


def repr_part(part: str | Table) -> str:
    """Return a part of an answer as text for a terminal."""
    return part if isinstance(part, str) else repr(part)


def html_part(part: str | Table) -> str:
    """Return a part of an answer as HTML for a notebook.

    >>> html_part("a < b")
    '<p>a &lt; b</p>'
    """
    return f"<p>{html.escape(part)}</p>" if isinstance(part, str) else part.to_html()


_TONES = {True: OK, False: REFUSED, None: NEUTRAL}


def card(*parts: str | Table, ok: bool | None = None) -> str:
    """Return sentences and tables as HTML with a coloured edge.

    The edge is green if `ok` is True, red if it is False, and grey if it is None.

    >>> card("they merge", ok=True)
    '<div style="border-left:4px solid #2e7d32;padding-left:10px"><p>they merge</p></div>'
    """
    style = f"border-left:4px solid {_TONES[ok]};padding-left:10px"
    return f'<div style="{style}">{"".join(map(html_part, parts))}</div>'
