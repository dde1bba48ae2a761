"""Sphinx: the guides, the notebooks as they are committed, and a page per public name.

`make docs` builds it offline with warnings as errors. The pages of the API are made here, from what
`shardalg` exports, so that a new public name has its page at once.
"""

import base64
import inspect
import json
import re
from pathlib import Path
from typing import Any

import shardalg

HERE = Path(__file__).parent
NOTEBOOK_LINK = r"\[([^\]\[]+)\]\((\d\d_\w+)\.ipynb\)"
"""A link from a notebook to another one, with its text and the name of the file."""
SECTIONS = {"Args:", "Attributes:", "Raises:", "Returns:"}

project = "shardalg"
version = release = shardalg.__version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_nb"]
html_theme = "furo"
html_title = "shardalg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
# Sphinx has a page of its own with the name `search`: ours is built from a copy with another name.
exclude_patterns = ["examples", "search.md"]
nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
# Notebooks have our own tables next to HTML and text; Sphinx uses the HTML.
suppress_warnings = ["mystnb.unknown_mime_type"]
# Setup and checks of a notebook are folded: their cells have tags.
nb_code_prompt_show = "Show {type}"
nb_code_prompt_hide = "Hide {type}"

QUESTIONS = {
    "Plan a function": """plan Plan Strategy Options Switches Mesh AxisRef annotate mesh_split
        manual load_plan""",
    "Which strategy is the best?": "compare search family strategies Ranking recipes",
    "What does it cost?": """Cost Hardware Topology KernelPrice calibrate measure_hardware
        rank_device_orders""",
    "Which rules do I already have?": "logical_rules LogicalRules rules_of Finding Findings",
    "What must stay true?": """contract Contract load_contract no some at_most sharded
        no_idle_devices unchanged""",
    "Is XLA's program correct?": "audit audit_hlo Audit AuditedInstruction read_stablehlo",
    "How do shardings relate?": """Sharding merge compatible equal refines Verdict prove Proof
        lemma lemmas""",
    "How is a tensor moved?": "reshard Reshard exchange Exchange",
    "What do neighbours send?": """halo Halo Window pad_window slice_window Interval
        reshape_interval reverse_interval""",
    "How are layers pipelined?": "pipeline Pipeline unequal_pipeline UnequalPipeline Stage",
    "What if sizes have names?": "dims",
    "How do I run and show it?": "host_devices Lowered read_trace draw Table",
    "Models and the paper": "models paper examples",
}
"""The public names by the question that they answer. Errors have an entry of their own."""


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


def by_question() -> dict[str, list[str]]:
    """Return every public name once, under its question. Errors and unlisted names are last."""
    groups = {question: names.split() for question, names in QUESTIONS.items()}
    listed = {name for names in groups.values() for name in names}
    rest = [name for name in shardalg.__all__ if name not in listed]
    errors = [name for name in rest if name.endswith("Error")]
    return {**groups, "More": [name for name in rest if name not in errors], "Errors": errors}


def first_line(name: str) -> str:
    """Return the first line of the docstring of a public name."""
    return (inspect.getdoc(getattr(shardalg, name)) or "").splitlines()[0].replace("*", r"\*")


def write_api(folder: Path) -> None:
    """Write a page per public name, and their index by question."""
    folder.mkdir(exist_ok=True)
    for name in shardalg.__all__:
        (folder / f"{name}.rst").write_text(page(name))
    parts = ["Every public name, by question", "=" * 30, ""]
    for question, names in by_question().items():
        if not names:
            continue
        parts += ["", question, "-" * len(question), "", ".. list-table::", "   :widths: 1 3", ""]
        for name in names:
            parts += [f"   * - :doc:`sa.{name} <{name}>`", f"     - {first_line(name)}"]
    listed = [f"   {name}" for name in shardalg.__all__]
    parts += ["", ".. toctree::", "   :hidden:", "", *listed, ""]
    (folder / "index.rst").write_text("\n".join(parts))


def first_picture(notebook: dict[str, Any]) -> tuple[str, bytes] | None:
    """Return the ending and the bytes of the first picture that a notebook shows."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                return "png", base64.b64decode(data["image/png"])
            shown = "".join(data.get("text/html", ""))
            if "<svg" in shown:
                drawn = shown[shown.index("<svg") : shown.index("</svg>") + 6]
                return "svg", drawn.replace("currentColor", "#1b1f24").encode()
    return None


def write_gallery(folder: Path, notebooks: Path) -> None:
    """Write a page with a card per notebook: its picture, and its title as a link."""
    folder.mkdir(exist_ok=True)
    parts = ["# Gallery", "", "Every notebook by its first picture.", ""]
    parts += ["`````{container} cards gallery"]
    for path in sorted(notebooks.glob("*.ipynb")):
        notebook = json.loads(path.read_text())
        title = notebook["cells"][0]["source"][0].lstrip("# ").strip()
        parts += ["````{container} card", f"{{doc}}`{title} </notebooks/{path.stem}>`", ""]
        if (found := first_picture(notebook)) is not None:
            ending, content = found
            (folder / f"{path.stem}.{ending}").write_bytes(content)
            parts += [f"![{title}]({path.stem}.{ending})"]
        parts += ["````"]
    (folder / "index.md").write_text("\n".join([*parts, "`````", ""]))


def own_links(_app: Any, _name: str, source: list[str]) -> None:
    """Lead links to pages whose files Sphinx does not find by their paths.

    `search.md` is built from a copy. Notebooks are behind a symbolic link, which Sphinx resolves.
    """
    text = source[0].replace("search.md)", "layout_search.md)")
    source[0] = re.sub(NOTEBOOK_LINK, r"{doc}`\1 </notebooks/\2>`", text)


def setup(app: Any) -> None:
    """Sphinx calls this before it looks for sources."""
    write_api(HERE / "api")
    (HERE / "layout_search.md").write_text((HERE / "search.md").read_text())
    app.connect("source-read", own_links)
    write_gallery(HERE / "gallery", HERE / "notebooks")
    # before napoleon (500), which turns sections into fields
    app.connect("autodoc-process-docstring", as_written, priority=100)
