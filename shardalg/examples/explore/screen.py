"""A report on a terminal: two screens of it, and what it comes to; the files have all."""

from __future__ import annotations

import textwrap

from shardalg.report.html import Page

WIDTH = 110


def page_text(page: Page) -> str:
    """Title, the tables that sections show in brief, and the conclusion.

    >>> from shardalg.io.table import Table
    >>> from shardalg.report.html import Section
    >>> few = Table(("n",), ((1,),))
    >>> both = Section("Counted", ("Long words.", few), brief=(few,), conclusion="There is one.")
    >>> print(page_text(Page("A report", "It leads.", (both,))))
    A report
    It leads.
    <BLANKLINE>
    Counted
    n
    1
    <BLANKLINE>
    Conclusion
    - There is one.
    """
    shown = [
        "\n".join((section.title, *map(repr, section.brief)))
        for section in page.sections
        if section.brief
    ]
    lines = [
        textwrap.fill(section.conclusion, WIDTH, initial_indent="- ", subsequent_indent="  ")
        for section in page.sections
        if section.conclusion
    ]
    return "\n\n".join((f"{page.title}\n{page.lead}", *shown, "\n".join(("Conclusion", *lines))))
