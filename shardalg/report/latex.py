"""The tables of a report for a LaTeX document."""

from __future__ import annotations

from shardalg.io.table import Table, latex_text
from shardalg.report.html import Page

# Columns of sentences, source lines and proofs: too wide for paper.
WORDY = frozenset({"why", "smt2", "source", "op", "remedy"})
HEAD = r"""% \usepackage{booktabs,graphicx}
% A table that is wider than the line shrinks to it.
\newsavebox{\tablebox}
\newcommand{\fit}[1]{\sbox{\tablebox}{#1}\ifdim\wd\tablebox>\linewidth
  \resizebox{\linewidth}{!}{\usebox{\tablebox}}\else\usebox{\tablebox}\fi}"""


def tables_tex(page: Page) -> str:
    r"""Every table of the page in booktabs rules, without columns of sentences, for `\input`.

    Formulas are mathematics; the caption is the section's title.

    >>> from shardalg.report.html import Section
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
    made = (
        _table(part, section.title)
        for section in page.sections
        for part in section.parts
        if type(part) is Table
    )
    return "\n\n".join((HEAD, *made)) + "\n"


def _table(table: Table, caption: str) -> str:
    kept = table.select(*(name for name in table.columns if name not in WORDY))
    lines = (
        r"\begin{table}",
        r"\centering",
        rf"\fit{{{kept.to_latex()}}}",
        rf"\caption{{{latex_text(caption)}}}",
        r"\end{table}",
    )
    return "\n".join(lines)
