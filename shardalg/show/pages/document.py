"""An interactive page as one HTML element or file, with its style, script and data inside."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from shardalg.palette import (
    AXES,
    BLOCKS,
    CLASH,
    COLLECTIVES,
    REFUSED,
    TIME,
    YELLOW,
)

_HERE = Path(__file__).parent
BASE = (_HERE / "base.css", _HERE / "base.js")
CHARTS, FORMULAS = _HERE / "charts.js", _HERE / "formulas.js"
"""Scripts that several pages have."""


@cache
def file_text(path: Path) -> str:
    """Return the text of a style sheet or a script of the package."""
    return path.read_text(encoding="utf-8").strip()


def script_json(data: Any) -> str:
    r"""Return data as JSON that is safe inside of a script element.

    A script ends at the first `</script>`, also inside of a string, so `<` is written as an escape.

    >>> script_json(["</script>"])
    '["\\u003c/script>"]'
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def page_element(
    body: str, data: Any, *, styles: Iterable[Path] = (), scripts: Iterable[Path] = ()
) -> str:
    """Return an interactive page as one HTML element.

    Args:
      body: HTML of the page, in which all names are escaped already.
      data: the data of the script, as for `json.dumps`.
      styles: style sheets after the common one.
      scripts: scripts after the common one; `view` is their element and `data` their data.
    """
    style = "\n".join(map(file_text, (BASE[0], *styles)))
    script = "\n".join(map(file_text, (BASE[1], *scripts)))
    colours = {
        "kinds": {**COLLECTIVES, **TIME},
        "other": YELLOW,
        "refused": REFUSED,
        "clash": CLASH,
        "blocks": BLOCKS,
    }
    # Lines have dark colours on light pages and light colours on dark pages.
    light, dark = (
        "".join(f"--s{i}: {colour}; " for i, colour in enumerate(found[: len(AXES)]))
        for found in (AXES, BLOCKS)
    )
    return (
        f'<div class="sa-page"><style>.sa-page {{ {light}}}\n'
        f"@media (prefers-color-scheme: dark) {{ .sa-page {{ {dark}}} }}\n"
        f"@media print {{ .sa-page {{ {light}}} }}\n{style}</style>{body}"
        f'<div class="tip" role="status" hidden></div>'
        f'<script>\n(function (view, data) {{\n"use strict";\nconst PALETTE = '
        f"{script_json(colours)};\n{script}\n}})"
        f"(document.currentScript.parentElement, {script_json(data)});</script></div>"
    )


def html_document(title: str, element: str) -> str:
    """Return a complete HTML file that loads nothing, with an element as its body."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title>"
        f"<style>html {{ color-scheme: light dark; }} body {{ margin: 0; }} "
        f"@media screen and (prefers-color-scheme: dark) {{ body {{ background: #14181d; }} }}"
        f"</style></head>\n<body>{element}</body></html>\n"
    )
