#!/usr/bin/env python3
"""Check that the texts of this repository are plain English and that its functions are whole.

`python tools/language.py` compares each figure with its goal. It exits with 1 if a figure misses
its goal, or, where the goal is not reached yet, if it is worse than the figure reached so far.
`python tools/language.py --list KIND` prints the places: first, clause, furniture, undefined, once,
classes. Only the standard library is used.

Python files count by their docstrings, pages and notebooks by their paragraphs. Names of other
projects (XLA's files, JAX's functions) may stand in backticks if `tools/external_names.txt` lists
them with their source; this is the one difference from a count without such a list.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "shardalg"
EXTERNAL = Path(__file__).with_name("external_names.txt")

# A first word that opens a clause, where a verb or the noun that is returned belongs.
CLAUSE_WORDS = frozenset(
    "what which that those these this it its they of on in where whether how who whose as if by "
    "with without from to for beside and or".split()
)
# A clause in the place of a noun.
CLAUSE = re.compile(
    r"(^|[,;:]\s*|\b(?:of|to|for|by|from|in|with|and|or|is|are)\s+)what\b"
    r"|\bthose (?:of|that|which)\b|\bthat of\b|\bfor want of\b|\bbut (?:for|what|where|of)\b",
    re.IGNORECASE,
)
# Verbs of people and furniture that say something about values.
FURNITURE = re.compile(
    r"\b(stands?|stood|lies?|lay|laid|is had|are had|is told|are told|is said|are said|is handed"
    r"|is asked|asks|hears?|heard|waits?|goes on as|comes out|brought there|served)\b",
    re.IGNORECASE,
)
# Goals that are not reached yet, with the figures reached so far: they may only improve.
REACHED: dict[str, float] = {}
SHORT = 6  # lines of a helper that is better read where it is called
LONGEST = 80  # lines of a function, a table included


@dataclass
class Texts:
    """The texts of some files, and the places at which each kind of fault was found."""

    count: int = 0
    places: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, place: str, text: str) -> None:
        """Read one docstring or paragraph."""
        sentence = re.split(r"(?<=[.!?])\s", " ".join(text.split()))[0]
        if not sentence:
            return
        self.count += 1
        word = re.sub(r"\W", "", sentence.split()[0]).lower()
        found = {
            "first": word in CLAUSE_WORDS,
            "clause": CLAUSE.search(sentence),
            "furniture": FURNITURE.search(sentence),
        }
        for kind, is_found in found.items():
            if is_found:
                self.places[kind].append(f"{place} {sentence[:110]}")

    def share(self, kind: str) -> float:
        """Return the share of the texts with this fault, in per cent."""
        return 100 * len(self.places[kind]) / max(1, self.count)


@dataclass
class Code:
    """The shape of a package: lines, functions, classes and the names that texts mention."""

    lines: int = 0
    comment_lines: int = 0
    documentable: int = 0
    documented: int = 0
    longest: int = 0
    uses: Counter[str] = field(default_factory=Counter)
    known: set[str] = field(default_factory=set)
    private: dict[str, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    classes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    mentions: list[tuple[str, str]] = field(default_factory=list)

    def add(self, path: Path, text: str, nodes: list[ast.AST]) -> None:
        """Read one file, whose syntax tree has these nodes."""
        lines = text.splitlines()
        self.lines += len(lines)
        self.known.update((path.stem, *path.relative_to(ROOT).parts))
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            own_line = token.type == tokenize.COMMENT
            if own_line and lines[token.start[0] - 1].lstrip().startswith("#"):
                self.comment_lines += 1
        for node in nodes:
            self._names(node)
            if isinstance(node, ast.ClassDef):
                self.classes[node.name].append(str(path.relative_to(ROOT)))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._function(path, node)
        for line, docstring in docstrings(nodes):
            for name in re.findall(r"`([A-Za-z_][\w.]*)`", docstring):
                self.mentions.append((f"{path.relative_to(ROOT)}:{line}", name))

    def _function(self, path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.documentable += 1
        docstring = ast.get_docstring(node)
        length = node.end_lineno - node.lineno + 1
        if docstring:
            self.documented += 1
            length -= node.body[0].end_lineno - node.body[0].lineno + 1
        self.longest = max(self.longest, length)
        if node.name.startswith("_") and not node.name.startswith("__"):
            # A decorated function is called by its decorator's table.
            if not node.decorator_list:
                place = f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
                self.private[node.name].append((place, length))

    def _names(self, node: ast.AST) -> None:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                self.uses[name] += 1
                self.known.add(name)
            case ast.arg(arg=name) | ast.keyword(arg=str(name)):
                self.known.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                self.known.add(name)
            case ast.alias(name=name, asname=other):
                self.known.update((*name.split("."), other or name))
            case ast.Constant(value=str(text)) if len(text) < 60:
                self.known.update(re.findall(r"\w+", text))

    def once(self) -> list[str]:
        """Return the short private functions that are called at one place."""
        return [
            f"{places[0][0]} ({places[0][1]} lines)"
            for name, places in self.private.items()
            if len(places) == 1 and self.uses[name] <= 1 and places[0][1] <= SHORT
        ]

    def several(self) -> list[str]:
        """Return the class names that more than one file defines."""
        return [f"{n}: {', '.join(at)}" for n, at in self.classes.items() if len(at) > 1]

    def undefined(self) -> list[str]:
        """Return the names in backticks that neither this repository nor the list defines."""
        external = {line.split("\t")[0] for line in EXTERNAL.read_text().splitlines()}
        return [
            f"{place} `{name}`"
            for place, name in self.mentions
            if name not in external and not set(name.split(".")) & self.known
        ]


def docstrings(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a page, without headings, tables, lists, code and directives."""
    text = re.sub(r"^(```|:::).*?^(```|:::)$", "", text, flags=re.DOTALL | re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n", text):
        if re.match(r"[A-Za-z*`\[]", paragraph):
            yield paragraph


def read(folder: Path, code: Code | None = None) -> Texts:
    """Read the docstrings of a folder's Python files, and into `code` the shape of the files."""
    texts = Texts()
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text()
        nodes = list(ast.walk(ast.parse(text)))
        if code is not None:
            code.add(path, text, nodes)
        for line, docstring in docstrings(nodes):
            texts.add(f"{path.relative_to(ROOT)}:{line}", docstring)
    return texts


def read_pages() -> Texts:
    """Read the pages of the documentation and the prose of the notebooks."""
    texts = Texts()
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        for paragraph in paragraphs(path.read_text()):
            texts.add(str(path.relative_to(ROOT)), paragraph)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for number, cell in enumerate(json.loads(path.read_text())["cells"]):
            if cell["cell_type"] == "markdown":
                for paragraph in paragraphs("".join(cell["source"])):
                    texts.add(f"{path.relative_to(ROOT)} cell {number}", paragraph)
    return texts


def main() -> int:
    """Print the figures with their goals; return 1 if one is worse than allowed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", metavar="KIND", help="print the places of one kind of fault")
    kind = parser.parse_args().list
    code = Code()
    texts = read(PACKAGE, code)
    others = {name: read(ROOT / name) for name in ("tests", "benchmarks")}
    everywhere = {"shardalg": texts, **others, "pages": read_pages()}
    if kind:
        lists = {"once": code.once, "classes": code.several, "undefined": code.undefined}
        rows = lists[kind]() if kind in lists else [
            row for part in everywhere.values() for row in part.places[kind]
        ]  # fmt: skip
        print(*rows, f"{kind}: {len(rows)}", sep="\n")
        return 0

    # Figure, limit, and whether the limit is the least instead of the most.
    rows: list[tuple[str, float, float, bool]] = []
    for name, part in everywhere.items():
        rows += [
            (f"{name}: texts whose first word opens a clause, %", part.share("first"), 1, False),
            (f"{name}: clauses in the first sentence, %", part.share("clause"), 1, False),
            (f"{name}: metaphorical verbs, %", part.share("furniture"), 0.6, False),
        ]
    share = 100 * code.documented / code.documentable
    rows += [
        ("comment lines, %", 100 * code.comment_lines / code.lines, 3, True),
        ("functions with a docstring, %", share, 71, True),
        ("lines of the longest function", code.longest, LONGEST, False),
        ("short private functions that are called once", len(code.once()), 60, False),
        ("class names with several meanings", len(code.several()), 8, False),
        ("names in backticks that nothing defines", len(code.undefined()), 0, False),
    ]
    failed = []
    for name, figure, goal, is_least in rows:

        def misses(limit: float, figure: float = figure, is_least: bool = is_least) -> bool:
            return figure < limit if is_least else figure > limit

        mark = ""
        if misses(goal):
            reached = REACHED.get(name)
            mark = "  <- goal missed" + (f"; reached so far: {reached:g}" if reached else "")
            if reached is None or misses(reached):
                failed.append(name)
        print(f"{name}: {figure:.3g} ({'≥' if is_least else '≤'} {goal:g}){mark}")
    if failed:
        print(f"worse than allowed: {', '.join(failed)}. --list KIND shows the places.")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
