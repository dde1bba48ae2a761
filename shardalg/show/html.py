"""Pages of text, tables and figures, as one HTML file, as Markdown, and as LaTeX tables."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardalg.files import write_whole
from shardalg.tables import Table, latex_text

STYLE = """
:root { --ink: #22262b; --faint: #6b7280; --line: #e2e5e9; --paper: #fff; --head: #f4f6f8;
  --link: #1565c0; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.5rem 6rem; max-width: 76rem; color: var(--ink);
  background: var(--paper); font: 16px/1.55 system-ui, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.9rem; margin: 0 0 .3rem; } .lead { color: var(--faint); margin: 0 0 1.5rem; }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .7rem; padding-top: .8rem;
  border-top: 1px solid var(--line); }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; font-size: .92rem; }
nav a { color: var(--link); text-decoration: none; } nav a:hover { text-decoration: underline; }
p { max-width: 52rem; } code { background: var(--head); padding: .08em .3em; border-radius: 3px; }
code, pre { font: .84em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
pre { background: var(--head); padding: .9rem 1rem; border-radius: 6px; overflow: auto;
  max-height: 32rem; }
pre span[title] { cursor: help; } pre span[title]:hover { background: var(--line); }
.scroll { overflow: auto; max-height: 34rem; border: 1px solid var(--line); border-radius: 6px;
  margin: .8rem 0 1.4rem; width: fit-content; max-width: 100%; }
table { border-collapse: separate; border-spacing: 0; font-size: .86rem; }
th { position: sticky; top: 0; background: var(--head); text-align: left; font-weight: 600;
  border-bottom: 1px solid var(--line); white-space: nowrap; }
th, td { padding: .34rem .75rem; vertical-align: top; } td { white-space: nowrap;
  border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; }
tr:last-child td { border-bottom: 0; } tr:hover td { background: #fafbfc; }
math { font-size: 1.2em; }
td.wide { white-space: normal; min-width: 18rem; max-width: 34rem; } .n { text-align: right; }
figure { margin: 1rem 0 1.6rem; } img { max-width: 100%; height: auto; display: block; }
figcaption { color: var(--faint); font-size: .88rem; margin-top: .4rem; max-width: 52rem; }
@media print { .scroll, pre { max-height: none; } }
"""
WIDE_CELL = 44


@dataclass(frozen=True)
class Picture:
    """A PNG image with its caption; `name` is the file name without the ending."""

    name: str
    png: bytes
    caption: str


@dataclass(frozen=True, repr=False)
class Listing:
    """Text that is shown unchanged, such as a program.

    Attributes:
      titles: pairs of a value's name, such as `%7`, and its tooltip in HTML. Where the name
        occurs again, only the first two lines of the tooltip are shown.
    """

    text: str
    titles: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return _listing(self)


@dataclass(frozen=True)
class Folded:
    """A table that a reader opens with a click on its summary."""

    summary: str
    table: Table


Part = str | Table | Picture | Listing | Folded


@dataclass(frozen=True)
class Section:
    """A heading with paragraphs (with `code` and **bold**), tables and pictures.

    Attributes:
      brief: tables that a terminal shows in place of the parts.
      conclusion: the section's line in the conclusion of the page.
    """

    title: str
    parts: tuple[Part, ...]
    brief: tuple[Table, ...] = ()
    conclusion: str = ""


@dataclass(frozen=True)
class Page:
    """A report. `lead` is a sentence below the title."""

    title: str
    lead: str
    sections: tuple[Section, ...]

    @property
    def conclusion(self) -> str:
        """Conclusions of the sections, a line each."""
        return "\n".join(f"- {s.conclusion}" for s in self.sections if s.conclusion)

    def to_html(self) -> str:
        """Return one self-contained file: images are inside, nothing is loaded.

        From the top: title, lead, links to the sections, the sections, and their conclusions.
        """
        head = f"<title>{html.escape(self.title)}</title><style>{STYLE}</style>"
        lines = "".join(f"<li>{_inline(s.conclusion)}</li>" for s in self.sections if s.conclusion)
        ends = f"\n<h2>Conclusion</h2>\n<ul>{lines}</ul>" if lines else ""
        links = "".join(f'<a href="#s{i}">{_inline(s.title)}</a>' for i, s in self._numbered())
        body = "\n".join(
            f'<h2 id="s{i}">{_inline(section.title)}</h2>\n'
            + "\n".join(_HTML[type(part)](part) for part in section.parts)
            for i, section in self._numbered()
        )
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">{head}</head>\n'
            f'<body><h1>{_inline(self.title)}</h1><p class="lead">{_inline(self.lead)}</p>'
            f"<nav>{links}</nav>\n{body}{ends}\n</body></html>\n"
        )

    def to_markdown(self) -> str:
        """Return the page as Markdown, with the conclusions at the end.

        Pictures are files of their own, which the text names.
        """
        sections = (
            f"## {section.title}\n\n"
            + "\n\n".join(_MARKDOWN[type(part)](part) for part in section.parts)
            for section in self.sections
        )
        ends = (f"## Conclusion\n\n{self.conclusion}",) if self.conclusion else ()
        return "\n\n".join((f"# {self.title}", self.lead, *sections, *ends)) + "\n"

    def pictures(self) -> tuple[Picture, ...]:
        """Return the pictures of all sections, in order."""
        parts = (part for section in self.sections for part in section.parts)
        return tuple(part for part in parts if type(part) is Picture)

    def write(self, folder: Path | str, name: str = "report") -> tuple[Path, ...]:
        """Write `name.html`, `name.md` and the PNG files into `folder`, and return the paths."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        written = [folder / f"{name}.html", folder / f"{name}.md"]
        write_whole(written[0], self.to_html())
        write_whole(written[1], self.to_markdown())
        for picture in self.pictures():
            written.append(folder / f"{picture.name}.png")
            write_whole(written[-1], picture.png)
        return tuple(written)

    def _numbered(self) -> enumerate[Section]:
        return enumerate(self.sections, 1)


def _inline(text: str) -> str:
    """Return escaped text with `code` and **bold**.

    >>> _inline("**a < b** in `f(x)`")
    '<b>a &lt; b</b> in <code>f(x)</code>'
    """
    # Escaped first, so that the tags that are added here stay tags.
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))
    return re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", safe)


def _picture(picture: Picture) -> str:
    """Return a picture with its caption as HTML."""
    # Inside of the page, so that the page is one file that loads nothing.
    data = base64.b64encode(picture.png).decode("ascii")
    caption = html.escape(picture.caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/png;base64,{data}">'
        f"<figcaption>{_inline(picture.caption)}</figcaption></figure>"
    )


def _listing(listing: Listing) -> str:
    """Return a program's text as HTML; `%3` has a tooltip with the title of the local value 3.

    The tooltip is complete at the first place, and has two lines at all later ones.
    """
    titles, seen = dict(listing.titles), set()

    def with_tooltip(found: re.Match[str]) -> str:
        """Return a value's name as HTML with its tooltip; the name alone if it has none."""
        name = found[0]
        if name not in titles:
            return name
        # Complete only once, so that the page stays small.
        lines = titles[name].split("\n")[: 2 if name in seen else None]
        seen.add(name)
        return f'<span title="{"&#10;".join(map(html.escape, lines))}">{name}</span>'

    return f"<pre>{re.sub(r'%[0-9]+', with_tooltip, html.escape(listing.text, quote=False))}</pre>"


def _table(table: Table) -> str:
    """Return a table in a scrolling frame, numbers flush right with thousands separated."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.columns)
    body = "\n".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in table.rows)
    return f'<div class="scroll"><table><tr>{head}</tr>\n{body}</table></div>'


def _cell(value: Any) -> str:
    """Return a table's cell as HTML, with a CSS class for numbers and for long texts."""
    # A bool is an int in Python, but it is a word in a table.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number:
        text = number_text(value)
    else:
        # `Table.to_html` already formats formulas and escapes text, and only whole tables have it.
        # A table of one cell is therefore made, and the HTML around its cell is cut off.
        shown = Table(("x",), ((value,),)).to_html()
        text = shown.split("<td>", 1)[1].rsplit("</td>", 1)[0]
    wide = isinstance(value, str) and len(value) > WIDE_CELL
    kind = ' class="n"' if is_number else ' class="wide"' if wide else ""
    return f"<td{kind}>{text}</td>"


def number_text(value: float) -> str:
    """Return a number for reading: integers with separators, floats with four digits.

    >>> number_text(134217728), number_text(0.00123456), number_text(12.0)
    ('134,217,728', '0.001235', '12')
    """
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


_HTML: dict[type, Callable[[Any], str]] = {
    str: lambda text: f"<p>{_inline(text)}</p>",
    Table: _table,
    Picture: _picture,
    Listing: _listing,
    Folded: lambda part: (
        f"<details><summary>{_inline(part.summary)}</summary>{_table(part.table)}</details>"
    ),
}
_MARKDOWN: dict[type, Callable[[Any], str]] = {
    str: str,
    Table: lambda table: table.to_markdown(),
    Picture: lambda picture: f"![{picture.caption}]({picture.name}.png)\n\n*{picture.caption}*",
    Listing: lambda listing: f"```\n{listing.text}\n```",
    Folded: lambda part: f"{part.summary}\n\n{part.table.to_markdown()}",
}


WORDY = frozenset({"why", "smt2", "source", "op", "remedy"})
"""Columns that LaTeX tables leave out: sentences, source lines and proofs are too wide."""
HEAD = r"""% \usepackage{booktabs,graphicx}
% A table that is wider than the line shrinks to it.
\newsavebox{\tablebox}
\newcommand{\fit}[1]{\sbox{\tablebox}{#1}\ifdim\wd\tablebox>\linewidth
  \resizebox{\linewidth}{!}{\usebox{\tablebox}}\else\usebox{\tablebox}\fi}"""


def tables_tex(page: Page) -> str:
    r"""Return every table of the page in booktabs style, for a LaTeX document.

    Columns of sentences are left out. Formulas are in mathematics. The caption is the section's
    title.

    >>> from shardalg.show.html import Section
    >>> section = Section("Bytes of a_1", (Table(("n", "why"), ((3, "because"),)),))
    >>> print(tables_tex(Page("", "", (section,))).split("\n\n")[1])
    \begin{table}
    \centering
    \fit{\begin{tabular}{r}
    \toprule
    n \\
    \midrule
    3 \\
    \bottomrule
    \end{tabular}}
    \caption{Bytes of a\_1}
    \end{table}
    """
    made = []
    for section in page.sections:
        for part in section.parts:
            if type(part) is not Table:
                continue
            kept = part.select(*(name for name in part.columns if name not in WORDY))
            lines = (
                r"\begin{table}",
                r"\centering",
                rf"\fit{{{kept.to_latex()}}}",
                rf"\caption{{{latex_text(section.title)}}}",
                r"\end{table}",
            )
            made.append("\n".join(lines))
    return "\n\n".join((HEAD, *made)) + "\n"
