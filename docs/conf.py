"""Sphinx: the guides, the notebooks as they are committed, and a page per public name.

`make docs` builds it offline with warnings as errors. The pages of the API are made here, from what
`shardalg` exports, so that a new public name has its page at once.
"""

import inspect
from pathlib import Path
from typing import Any

import shardalg

HERE = Path(__file__).parent
SECTIONS = {"Args:", "Attributes:", "Raises:", "Returns:"}

project = "shardalg"
version = release = shardalg.__version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_nb"]
html_theme = "furo"
html_title = "shardalg"
nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
# Notebooks have our own tables next to HTML and text; Sphinx uses the HTML.
suppress_warnings = ["mystnb.unknown_mime_type"]


def as_written(
    _app: Any, what: str, _name: str, _obj: Any, _options: Any, lines: list[str]
) -> None:
    """Show formulas in a docstring (indented, in no section) as literal blocks."""
    made: list[str] = []
    section = literal = example = False
    for line in lines:
        # What an example prints may be indented, and is literal already.
        example = line.startswith(">>>") or (example and bool(line))
        flush = bool(line) and not line[0].isspace()
        section = line.rstrip() in SECTIONS or (section and not flush)
        formula = line.startswith("    ") and not section and not example
        if formula and not literal:
            made += ["", "::", ""]
        literal = formula or (literal and not flush)
        made.append(line)
    # napoleon reads the text before a colon in a property's first line as its type
    lines[:] = ["", *made] if what == "property" else made


def inherited(kind: type) -> str:
    """Return the option that documents what a class inherits from classes of this package."""
    others = [base.__name__ for base in kind.__mro__ if not base.__module__.startswith("shardalg")]
    return f"\n   :inherited-members: {', '.join(others)}"


def page(name: str) -> str:
    """Return the page of a public name."""
    value = getattr(shardalg, name)
    directive, members = (
        ("autoclass", f"\n   :members:{inherited(value)}")
        if inspect.isclass(value)
        else ("autofunction", "")
    )
    title = f"sa.{name}"
    if inspect.ismodule(value):
        # `sa.paper` and `sa.examples` are one module: the index has its first page only.
        first = next(n for n in shardalg.__all__ if getattr(shardalg, n) is value)
        index = "" if name == first else "   :no-index:\n"
        return f"{title}\n{'=' * len(title)}\n\n.. automodule:: {value.__name__}\n{index}"
    target = f"{value.__module__}.{value.__qualname__}"
    return f"{title}\n{'=' * len(title)}\n\n.. {directive}:: {target}{members}\n"


def write_api(folder: Path) -> None:
    """Write a page per public name, and their index."""
    folder.mkdir(exist_ok=True)
    for name in shardalg.__all__:
        (folder / f"{name}.rst").write_text(page(name))
    listed = "\n".join(f"   {name}" for name in shardalg.__all__)
    title = "Everything public\n=================\n\n"
    (folder / "index.rst").write_text(f"{title}.. toctree::\n\n{listed}\n")


def setup(app: Any) -> None:
    """Sphinx calls this before it looks for sources."""
    write_api(HERE / "api")
    # before napoleon (500), which turns sections into fields
    app.connect("autodoc-process-docstring", as_written, priority=100)
