"""`sa.Table`, the type of every public table: named columns and rows of plain values.

A `Table` prints aligned in a terminal, renders as HTML (formulas as MathML) in a notebook, and
exports Markdown and LaTeX without any third party. It has the attributes of a pandas DataFrame;
pandas is loaded when one of them, or `.df`, is used. A method that returns a DataFrame returns a
`Frame` (`shardalg.io.frame`), which is a `Table` and a DataFrame.
"""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardalg.errors import TableError
from shardalg.io.renamed_columns import new_name

if TYPE_CHECKING:
    from shardalg.io.frame import Frame

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
        """A table of mappings; a missing key is None, and columns default to the keys.

        >>> Table.from_records([{"a": 1}, {"a": 2, "b": 3}]).rows
        ((1, None), (2, 3))
        """
        records = tuple(records)
        names = tuple(columns or dict.fromkeys(key for record in records for key in record))
        return cls(names, tuple(tuple(record.get(n) for n in names) for record in records))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows as mappings from column to value."""
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)

    def __getitem__(self, column: str) -> tuple[Any, ...]:
        """The values of one column.

        Raises:
          TableError: no such column; the message lists those there are, or gives the new name.
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
        """The same rows with only these columns, in this order."""
        values = [self[name] for name in columns]
        return Table(columns, tuple(zip(*values, strict=True)))

    def where(self, **values: Any) -> Table:
        """The rows whose named columns equal these values.

        >>> Table(("kind", "n"), (("a", 1), ("b", 2))).where(kind="b").rows
        (('b', 2),)
        """
        masks = [[cell == value for cell in self[name]] for name, value in values.items()]
        kept = (r for i, r in enumerate(self.rows) if all(mask[i] for mask in masks))
        return Table(self.columns, tuple(kept))

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of `df`, such as `groupby` or `loc`; pandas is loaded for it.

        >>> Table(("kind", "n"), (("a", 1), ("b", 2))).sort_values("n").iloc[-1]["kind"]
        'b'
        """
        if not name.startswith("_"):
            from shardalg.io.frame import Frame

            if hasattr(Frame, name):
                return getattr(self.df, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def df(self) -> Frame:
        """The same table as a pandas DataFrame."""
        from shardalg.io.frame import Frame

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

    def to_markdown(self) -> str:
        r"""A GitHub table; numbers are set flush right.

        >>> print(Table(("op", "n"), (("a|b", 1),)).to_markdown())
        | op | n |
        | --- | ---: |
        | a\|b | 1 |
        """
        head, *body = _cells(self, _markdown)
        rule = ["---:" if _numeric(self[name]) else "---" for name in self.columns]
        return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *body))

    def to_latex(self) -> str:
        r"""A `tabular` in booktabs rules, special characters escaped, formulas as math.

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
        """An HTML table without style or script; formulas as presentation MathML."""
        head, *body = _cells(self, _html)
        lines = (_html_row(head, "th"), *(_html_row(line, "td") for line in body))
        return "\n".join(("<table>", *lines, "</table>"))

    def _repr_html_(self) -> str:
        return self.to_html()


def _is_formula(value: object) -> bool:
    """Whether `value` is a sympy expression; sympy is not loaded to find out that it is not."""
    sympy = sys.modules.get("sympy")
    return sympy is not None and isinstance(value, sympy.Basic)


def _numeric(values: Iterable[Any]) -> bool:
    """Whether a column holds nothing but numbers (and gaps), at least one of them."""
    present = [v for v in values if v is not None]
    return bool(present) and all(
        isinstance(v, (int, float)) and not isinstance(v, bool) for v in present
    )


def _cells(table: Table, show: Callable[[object], str]) -> list[list[str]]:
    """Header and rows, every cell shown."""
    return [[show(cell) for cell in line] for line in (table.columns, *table.rows)]


def _text(value: object) -> str:
    """One cell on one line: None is empty, floats have six digits."""
    if value is None:
        return ""
    shown = f"{value:.6g}" if isinstance(value, float) else str(value)
    return " ".join(shown.splitlines()) if "\n" in shown else shown


def _aligned(line: list[str], widths: list[int], right: list[bool]) -> str:
    """One line of text output, numbers flush right."""
    columns = zip(line, widths, right, strict=True)
    return "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in columns).rstrip()


def _markdown(value: object) -> str:
    """One cell; a tag in a name stays text."""
    return re.sub(r"<(?=[A-Za-z/!?][^<]*>)", r"\\<", _text(value).replace("|", "\\|"))


def latex_text(text: str) -> str:
    r"""Words for a LaTeX document, special characters escaped.

    >>> print(latex_text("wire_bytes & 5 %"))
    wire\_bytes \& 5 \%
    """
    return text.translate(_LATEX_ESCAPES)


def _latex(value: object) -> str:
    if _is_formula(value):
        return f"${sys.modules['sympy'].latex(value)}$"
    return latex_text(_text(value))


def _html(value: object) -> str:
    if not _is_formula(value):
        return html.escape(_text(value))
    from sympy.printing.mathml import mathml

    return f"<math>{mathml(value, printer='presentation')}</math>"


def _html_row(cells: list[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>"
