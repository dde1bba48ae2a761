"""Constraints as edits of the user's source, and as a unified diff that `git apply` accepts."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardalg.plan.patching.probes import Constraint, Expression
from shardalg.plan.patching.user_code import UserFile, source_lines

ALIAS = "jax_module"
"""The name of jax in a file whose functions use the name `jax` for something else."""
CONSTRAINT = "with_sharding_constraint"


@dataclass(frozen=True)
class SourceNames:
    """The names by which a file of the user reaches JAX.

    Attributes:
      constraint: the function `with_sharding_constraint`.
      spec: the class `PartitionSpec`.
      mesh: a global mesh of the user with the plan's axes; "" if there is none.
      named: the class `NamedSharding`.
      imports: lines that the file needs in addition.
      matmul, reshard: `jax.numpy.matmul` and `jax.reshard`, for explicit axes; else "".
    """

    constraint: str
    spec: str
    mesh: str
    named: str
    imports: tuple[str, ...]
    matmul: str = ""
    reshard: str = ""

    @staticmethod
    def of(file: UserFile, axes: Mapping[str, int], *, explicit: bool = False) -> SourceNames:
        """Return the names of a file, found in the global names of its functions.

        Args:
          axes: the sizes of the plan's mesh axes.
          explicit: whether the axes are explicit, so that a value needs no constraint, and a spec
            no mesh.
        """
        import jax

        space = file.functions[0].__globals__
        paths = ("jax", "jax.lax", "jax.sharding", "jax.numpy")
        modules = {path: sys.modules[path] for path in paths}
        # The user's own names for modules and classes of JAX. Private names are left out, and names
        # that a function also uses for a local variable. The first of several names wins.
        names_of_user = {
            id(value): name
            for name, value in reversed(space.items())
            if not name.startswith("_") and name not in file.local_names
        }
        is_free = "jax" not in file.local_names and space.get("jax", jax) is jax
        root, line = ("jax", "import jax") if is_free else (ALIAS, f"import jax as {ALIAS}")
        imports: list[str] = []

        def reached(path: str, attribute: str) -> str:
            """Return the expression by which the file can name an attribute of a module of JAX.

            The first of these that the file has: its own name for the attribute, for the module,
            and for `jax`. Else it is the path from `jax`, and `imports` gets an import of jax.
            """
            # E.g. `P` after `from jax.sharding import PartitionSpec as P`.
            target: Any = getattr(modules[path], attribute)
            if id(target) in names_of_user:
                return names_of_user[id(target)]
            # E.g. `jnp.matmul` after `import jax.numpy as jnp`.
            for module_path in (path, "jax"):
                module_name = names_of_user.get(id(modules[module_path]))
                if module_name is not None:
                    rest = path.removeprefix(module_path).removeprefix(".")
                    return ".".join(filter(None, (module_name, rest, attribute)))
            imports.append(line)
            return f"{root}{path.removeprefix('jax')}.{attribute}"

        def is_mesh(value: object) -> bool:
            return isinstance(value, jax.sharding.Mesh) and dict(value.shape) == dict(axes)

        if explicit:
            spec = reached("jax.sharding", "PartitionSpec")
            own = reached("jax.numpy", "matmul"), reached("jax", "reshard")
            return SourceNames("", spec, "", "", tuple(dict.fromkeys(imports)), *own)
        mesh = next((name for name, value in space.items() if is_mesh(value)), "")
        return SourceNames(
            reached("jax.lax", CONSTRAINT),
            reached("jax.sharding", "PartitionSpec"),
            mesh,
            reached("jax.sharding", "NamedSharding") if mesh else "",
            tuple(dict.fromkeys(imports)),
        )

    def import_edits(self, file: UserFile) -> list[Edit]:
        """Return the edit that adds the imports to a file, if there are any."""
        text = "".join(f"{line}{file.line_end}" for line in self.imports)
        return [Edit(_first_import(file), 0, 0, text)] if text else []

    def sharding(self, spec: Sequence[Sequence[str]]) -> str:
        """Return the text of a sharding, such as `P("data", None)`."""
        entries = [_entry(axes) for axes in spec]
        while entries and entries[-1] == "None":
            entries.pop()
        text = f"{self.spec}({', '.join(entries)})"
        return f"{self.named}({self.mesh}, {text})" if self.mesh else text

    def constrained(self, text: str, spec: Sequence[Sequence[str]]) -> str:
        """Return the text of an expression under a constraint."""
        return f"{self.constraint}({text}, {self.sharding(spec)})"


def imported() -> dict[str, Any]:
    """Return the global names that the import lines of an edit define."""
    import jax

    return {"jax": jax, ALIAS: jax}


def _entry(axes: Sequence[str]) -> str:
    """Return the text of one dimension of a spec.

    >>> _entry(()), _entry(("x",)), _entry(("x", "y"))
    ('None', '"x"', '("x", "y")')
    """
    texts = [f'"{axis}"' for axis in axes]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})" if texts else "None"


@dataclass(frozen=True)
class Edit:
    """Text that is inserted into a file.

    Attributes:
      line: the line, from 1 on; the text is inserted before its byte `column`.
      rank: the order of edits at one place: ends of inner expressions, ends of outer ones, starts.
      text: the inserted text.
      removed: number of bytes after the place that the text replaces.
    """

    line: int
    column: int
    rank: int
    text: str
    removed: int = 0


def edits(
    file: UserFile,
    expressions: Mapping[int, Expression],
    constraints: Iterable[Constraint],
    names: SourceNames,
) -> list[Edit]:
    """Return the edits that put constraints on expressions of a file.

    If a statement is `name = expression`, a line after it constrains the name. Otherwise the
    expression is put into parentheses of the constraint.

    Args:
      constraints: shardings of expressions, also of expressions in other files.
    """
    found: list[Edit] = []
    # Sorted, so that several constraints of one expression are in the order of their depth.
    by_expression: dict[int, list[Constraint]] = {}
    for each in sorted(constraints):
        if expressions[each.expression].file is file:
            by_expression.setdefault(each.expression, []).append(each)
    lines = file.lines
    for number, several in by_expression.items():
        node, statement = expressions[number].node, expressions[number].statement
        # A name that a statement on lines of its own rebinds: the new lines follow the statement.
        rebinds = expressions[number].rebinds
        if rebinds is not None:
            last, indent = rebinds.end_lineno or 1, lines[rebinds.lineno - 1][: rebinds.col_offset]
            text = _lines_after(file, last, indent, getattr(node, "id", ""), several, names)
            found.append(Edit(last + 1, 0, 2 * len(expressions), text))
            continue
        end = node.end_lineno or node.lineno
        # New lines can follow only if no other statement is on the same lines. Columns count bytes.
        is_alone = (
            statement is not None
            and not lines[statement.lineno - 1].encode()[: statement.col_offset].strip()
            and not lines[end - 1].encode()[node.end_col_offset :].strip()
        )
        if statement is not None and is_alone:
            indent = lines[statement.lineno - 1][: statement.col_offset]
            (target,) = statement.targets
            name = getattr(target, "id", "")
            text = _lines_after(file, end, indent, name, several, names)
            found.append(Edit(end + 1, 0, 2 * len(expressions), text))
            continue
        opening = "".join(f"{names.constraint}(" for _ in several)
        closing = "".join(f", {names.sharding(each.spec)})" for each in several)
        # An inner expression has a larger number than the outer one. If both begin or end at one
        # place, the rank opens the outer one first, and closes the inner one first.
        found.append(Edit(node.lineno, node.col_offset, len(expressions) + number, opening))
        found.append(Edit(end, node.end_col_offset or 0, len(expressions) - number, closing))
    return found + (names.import_edits(file) if found else [])


def _lines_after(
    file: UserFile,
    line: int,
    indent: str,
    name: str,
    several: Iterable[Constraint],
    names: SourceNames,
) -> str:
    """Return new source lines that constrain a name; they follow a line of the file."""
    # A last line without a newline gets one before the new lines.
    before = "" if file.lines[line - 1].endswith(("\n", "\r")) else file.line_end
    return before + "".join(
        f"{indent}{name} = {names.constrained(name, each.spec)}{file.line_end}" for each in several
    )


def _first_import(file: UserFile) -> int:
    """Return the number of the line before which an import is inserted: the first other import.

    Without one, it is the line after the docstring and imports from `__future__`.
    """
    import ast

    body = file.tree.body
    imports = [s for s in body if isinstance(s, ast.Import | ast.ImportFrom)]
    # Python demands that imports from `__future__` come first.
    imports = [s for s in imports if getattr(s, "module", "") != "__future__"]
    for statement in imports or body:
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        is_future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if not (is_text or is_future):
            return statement.lineno
    return 1


def applied(text: str, several: Iterable[Edit]) -> str:
    """Return a text with edits.

    Lines count from 1, and columns are bytes. Text of a larger rank comes later at the same place.

    >>> applied("y = f(x)", [Edit(1, 4, 2, "g("), Edit(1, 8, 1, ")")])
    'y = g(f(x))'
    """
    lines = [line.encode() for line in source_lines(text)] + [b""]
    # From the end of the text to its start, so that places of earlier edits stay valid.
    for edit in sorted(several, key=lambda e: (e.line, e.column, e.rank), reverse=True):
        line = lines[edit.line - 1]
        rest = line[edit.column + edit.removed :]
        lines[edit.line - 1] = line[: edit.column] + edit.text.encode() + rest
    return b"".join(lines).decode()


def diff(file: UserFile, text: str) -> str:
    """Return the change of a file as a unified diff with paths from the root of its repository."""
    path = _relative(file.path)
    before, after = file.lines, source_lines(text)
    found = difflib.unified_diff(before, after, f"a/{path}", f"b/{path}")
    # `git apply` needs a remark where the last line of a file has no newline.
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in found
    )


def encoded(text: str, files: Iterable[UserFile]) -> bytes:
    """Return a diff in the encoding of its files; UTF-8 if they have several."""
    found = {file.encoding.removesuffix("-sig") for file in files}
    return text.encode(found.pop() if len(found) == 1 else "utf-8")


def _relative(path: str) -> str:
    """Return a path from the root of its git repository, else from the working directory.

    E.g. `repo/src/model.py` becomes `src/model.py`. A file outside of both is its name alone.
    """
    whole = Path(path).absolute()
    # The innermost repository comes first.
    roots = [parent for parent in whole.parents if (parent / ".git").exists()]
    for root in (*roots[:1], Path.cwd()):
        if whole.is_relative_to(root):
            return whole.relative_to(root).as_posix()
    return whole.name
