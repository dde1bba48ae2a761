"""Shardings that a function needs on a mesh with explicit axes, where JAX infers none itself.

On explicit axes the sharding of a value is part of its type, and an operator whose result JAX
cannot infer raises a ShardingTypeError. The plan has a sharding for every result, so each error is
answered from it, until JAX traces the function:

    x @ w, jnp.einsum(...)    becomes  jnp.matmul(x, w, out_sharding=P("data"))
    table[ids]                becomes  table.at[ids].get(out_sharding=P("data"))
    x + y                     becomes  x + jax.reshard(y, P("data"))
"""

from __future__ import annotations

import ast
import copy
import inspect
import io
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.errors import PatchError
from shardalg.plan.patching.edits import Edit, SourceNames, imported
from shardalg.plan.patching.probes import Axes, Expression, MarkedPlan, marked_plan
from shardalg.plan.patching.source_patch import SourcePatch
from shardalg.plan.patching.user_code import UserFile, replaced
from shardalg.tables import Parts, Table

if TYPE_CHECKING:
    from shardalg.plan.plan import Plan

LINE_COLUMNS = ("place", "expression", "sharding", "error")
MOST_FIXES = 200
"""Errors that are answered before the search gives up."""
Spec = tuple[Axes, ...]
Span = tuple[int, int, int, int]


@dataclass(frozen=True)
class Fix:
    """The sharding of one expression on explicit axes.

    Attributes:
      number: the number of the expression.
      kind: "out_sharding" of a call, "matmul", "gather", or "reshard" of the expression itself.
      spec: the axis names of each dimension of the result.
      error: the message of JAX that it answers.
    """

    number: int
    kind: str
    spec: Spec
    error: str


@dataclass(frozen=True, eq=False, repr=False)
class ExplicitPatch(SourcePatch):
    """The edits under which JAX types a function on a mesh with explicit axes.

    Attributes:
      fixes: the edits, in the order in which JAX asked for them.
      left: JAX's last error if no edit answers it; "" if the function is typed.
    """

    fixes: tuple[Fix, ...]
    left: str

    @property
    def is_typed(self) -> bool:
        """True if JAX traces the patched function on explicit axes."""
        return not self.left

    @property
    def table(self) -> Table:
        """A row per edit: its place, the expression, the sharding, and the error it answers."""
        rows = []
        # The sharding is written with the names that the expression's file has for JAX's classes.
        for fix in self.fixes:
            expression = self.expressions[fix.number]
            names = SourceNames.of(expression.file, self.axes, explicit=True)
            sharding = names.sharding(fix.spec)
            rows.append((self.place(fix.number), expression.text, sharding, fix.error))
        return Table(LINE_COLUMNS, tuple(rows))

    def edits_of(self, file: UserFile) -> list[Edit]:
        """Return the edits of a file's text, with its new imports; [] if it does not change."""
        file_fixes = [fix for fix in self.fixes if self.expressions[fix.number].file is file]
        if not file_fixes:
            return []
        names = SourceNames.of(file, self.axes, explicit=True)
        # `names` collects the imports that the new text needs, so these come last.
        new_edits: list[Edit] = []
        for fix in file_fixes:
            new_edits += _edits(self.expressions[fix.number], fix, names)
        return new_edits + names.import_edits(file)

    @property
    def conclusion(self) -> str:
        """One sentence: whether JAX types the function, and with how many edits.

        JAX types a function if it can infer the sharding of each result on explicit axes.
        """
        count = f"{len(self.fixes)} edit{'' if len(self.fixes) == 1 else 's'}"
        if self.left:
            return f"After {count} JAX still refuses the function on explicit axes: {self.left}"
        if not self.fixes:
            return "Nothing to add: JAX types the function on explicit axes as it is."
        return (
            f"{count}: with them, JAX types the function on explicit axes by the plan's shardings."
        )

    def parts(self) -> Parts:
        """Return the conclusion, the edits with the errors that they answer, and the diff."""
        if not self.fixes:
            return (self.conclusion,)
        note = (
            "Call the function under jax.set_mesh(mesh), with axes of AxisType.Explicit. Results "
            "have the shardings that JAX infers. For the plan's, give jax.jit out_shardings: "
            "NamedSharding(mesh, each.spec) for each of plan.named_shardings()[1]."
        )
        return (self.conclusion, self.table, self.diff, note)

    def write(self, path: str | Path) -> Path:
        """Write the diff to a file, and return its path.

        Raises:
          PatchError: there is nothing to add, or JAX still refuses the function with the edits.
          OSError: as in `SourcePatch.write`.
        """
        if self.left:
            raise PatchError(self.conclusion)
        return super().write(path)


def explicit_patch(plan: Plan, files: tuple[UserFile, ...]) -> ExplicitPatch:
    """Return the edits that a plan's function needs on a mesh with explicit axes.

    Args:
      files: the user's files.

    Raises:
      PatchError: an argument's sharding has no PartitionSpec, or does not divide its dimension.
    """
    marked = marked_plan(plan, files, names=True)
    search = _ExplicitSearch(plan, files, marked)
    left = search.run()
    axes = dict(plan.mesh.axes)
    return ExplicitPatch(files, marked.expressions, axes, tuple(search.fixes.values()), left)


@dataclass(eq=False)
class _ExplicitSearch:
    """Answers JAX's sharding errors one after the other.

    Attributes:
      fixes: the edits so far, by the number of their expression.
    """

    plan: Plan
    files: tuple[UserFile, ...]
    marked: MarkedPlan
    fixes: dict[int, Fix] = field(default_factory=dict)

    def run(self) -> str:
        """Add the edits that answer JAX's error and trace again, until JAX types the function.

        Return "" then, else the text of the error that no edit answers.
        """
        # Each trace shows one error. Every round adds an edit, so that the limit ends the search.
        while len(self.fixes) < MOST_FIXES:
            error = self.error()
            if error is None:
                self.reduce()
                return ""
            text = " ".join(str(error).split())
            new_fixes = self.answers(error, text)
            if not new_fixes:
                return text
            self.fixes |= {fix.number: fix for fix in new_fixes}
        return f"more than {MOST_FIXES} errors"

    def reduce(self) -> None:
        """Leave out each edit without which JAX still types the function."""
        # An error is answered at both operands, although one may have the sharding already.
        for number, fix in list(self.fixes.items()):
            if fix.kind == "reshard":
                del self.fixes[number]
                if self.error() is not None:
                    self.fixes[number] = fix

    @cached_property
    def specs(self) -> dict[int, Spec]:
        """The last form of each expression in the plan: its sharding after all reshards."""
        return {each.expression: each.spec for each in self.marked.constraints()}

    @cached_property
    def spans(self) -> dict[tuple[str, Span], int]:
        """The number of each expression by its file and place."""
        return {(e.file.path, _span(e.node)): n for n, e in self.marked.expressions.items()}

    def error(self) -> Exception | None:
        """Trace the function with the edits so far, and return JAX's sharding error, or None.

        The user's files do not change: the edited functions replace the user's for this trace.
        """
        from shardalg.plan.patching.explicit_trace import explicit_error

        trees = [
            _Fixing(file, self.marked.expressions, self.fixes, dict(self.plan.mesh.axes)).tree()
            for file in self.files
        ]
        with replaced(self.files, trees, imported()):
            return explicit_error(self.plan)

    def answers(self, error: Exception, text: str) -> list[Fix]:
        """Return the edits that answer an error; [] if none does.

        An operator that can take the sharding of its result gets it from the plan. For any other
        one, the operands are resharded first.

        Args:
          text: the message of the error, for the edits' `error`.
        """
        number = self.place(error)
        # The error comes from no line of the user, or from a line without a marked expression.
        if number is None:
            return []
        expression = self.marked.expressions[number]
        node, spec = expression.node, self.specs.get(number)
        # An edit of this expression did not help before, so the next attempt is at its operands.
        if number not in self.fixes and spec is not None:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
                return [Fix(number, "matmul", spec, text)]
            if isinstance(node, ast.Subscript):
                return [Fix(number, "gather", spec, text)]
            if isinstance(node, ast.Call) and _takes_out_sharding(expression):
                return [Fix(number, "out_sharding", spec, text)]
        # Otherwise the operands get the sharding of the result, in the dimensions that they have.
        fixes = []
        for operand in _operands(node):
            inner = self.spans.get((expression.file.path, _span(operand)))
            shape = None if inner is None else self.marked.shapes.get(inner)
            # Only arrays with dimensions have a sharding, and each operand is resharded once.
            if inner is None or not shape or inner in self.fixes:
                continue
            result_spec = spec or self.specs.get(inner)
            if result_spec is not None and len(shape) <= len(result_spec):
                # Broadcasting aligns the last dimensions, and repeats a dimension of size 1, which
                # stays whole. E.g. shape (1, 8) with the result's (X, Y, Z) -> ((), Z).
                last_axes = result_spec[len(result_spec) - len(shape) :]
                pairs = zip(shape, last_axes, strict=True)
                operand_spec = tuple(() if size == 1 else axes for size, axes in pairs)
                fixes.append(Fix(inner, "reshard", operand_spec, text))
        return fixes

    def place(self, error: Exception) -> int | None:
        """Return the number of the innermost marked expression of the user in a traceback.

        None if the traceback has no marked expression in a file of the user.
        """
        found: int | None = None
        paths = {file.path for file in self.files}
        link = error.__traceback__
        while link is not None:
            code = link.tb_frame.f_code
            if code.co_filename in paths:
                # The offset of the instruction that raised gives its place in the source. Offsets
                # count bytes, and `co_positions` has an entry per two bytes.
                first, last, start, end = [*code.co_positions()][link.tb_lasti // 2]
                span: Any = (first, start, last, end)
                # Frames go from the outermost call inwards, so the last expression found counts.
                found = self.spans.get((code.co_filename, span), found)
            link = link.tb_next
        return found


def _span(node: Any) -> Span:
    """Return the first line and column, and the last line and column, of a node."""
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _operands(node: ast.expr) -> list[ast.expr]:
    """Return the parts of an expression that may be its operands; [] for another expression.

    E.g. `x + y` -> x, y; `x.dot(y)` -> x, y; `jnp.concatenate([x, y])` -> jnp, x, y; `x[i]` -> x.
    """
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.Call):
        # A list of arrays, as of jnp.concatenate, has one operand per item.
        groups = [a.elts if isinstance(a, ast.List | ast.Tuple) else [a] for a in node.args]
        # The text before the dot is the array of a method, or a module, which no mark has.
        method = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return [*method, *(operand for group in groups for operand in group)]
    return [node.value] if isinstance(node, ast.Subscript | ast.Attribute) else []


def _takes_out_sharding(expression: Expression) -> bool:
    """Return whether the called function has a parameter `out_sharding`.

    The function is looked up by its name, such as `jnp.einsum`, among the globals of the user's
    file. False if the name is unknown, or if the function has no signature.
    """
    node = expression.node
    assert isinstance(node, ast.Call)
    space = expression.file.functions[0].__globals__
    called: Any = None
    if isinstance(node.func, ast.Name):
        called = space.get(node.func.id)
    elif isinstance(node.func, ast.Attribute):
        # Marks are in the tree, not in the text.
        parts = (ast.get_source_segment(expression.file.text, node.func) or "").split(".")
        called = space.get(parts[0].strip())
        for part in parts[1:]:
            called = getattr(called, part, None)
        # A method of an array: only `reshape` takes the sharding of its result.
        if called is None:
            return node.func.attr == "reshape"
    try:
        return "out_sharding" in inspect.signature(called).parameters
    except (TypeError, ValueError):
        return False


class _Fixing(ast.NodeTransformer):
    """Applies edits to a syntax tree, where every new node has the place of its expression."""

    def __init__(
        self,
        file: UserFile,
        expressions: Mapping[int, Expression],
        fixes: Mapping[int, Fix],
        axes: Mapping[str, int],
    ) -> None:
        """Store the edits of one file by the type and the place of their expression.

        Args:
          expressions, fixes: expressions and edits of all files, by the number of the expression.
          axes: sizes of the mesh's axes by name.
        """
        self.file = file
        self.names = SourceNames.of(file, axes, explicit=True)
        # The visited tree is a copy of the file's tree, so nodes are found by type and place.
        self.fixes = {}
        for number, fix in fixes.items():
            if expressions[number].file is file:
                node = expressions[number].node
                self.fixes[type(node), _span(node)] = fix

    def tree(self) -> ast.Module:
        """Return the tree of the file with its edits."""
        made = self.visit(copy.deepcopy(self.file.tree))
        assert isinstance(made, ast.Module)
        return ast.fix_missing_locations(made)

    def visit(self, node: ast.AST) -> ast.AST:
        """Return the edited form of a node, or the node itself if no edit is at its place.

        Forms are `x @ w` -> `jnp.matmul(x, w, out_sharding=...)`, `table[ids]` ->
        `table.at[ids].get(out_sharding=...)`, `y` -> `jax.reshard(y, ...)`, and a call with one
        more keyword `out_sharding`.
        """
        fix = None
        # Only expressions that are read: a target of an assignment has no sharding to ask for.
        if isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            fix = self.fixes.get((type(node), _span(node)))
        # Operands first, because the new node contains their edited forms.
        inner: Any = self.generic_visit(node)
        if fix is None:
            return inner
        sharding = self.names.sharding(fix.spec)
        if fix.kind == "out_sharding":
            inner.keywords.append(ast.keyword("out_sharding", _parsed(sharding, node)))
            return inner
        # The new node is parsed from text in which _0 and _1 are replaced by the node's parts.
        texts = {
            "matmul": f"{self.names.matmul}(_0, _1, out_sharding={sharding})",
            "gather": f"_0.at[_1].get(out_sharding={sharding})",
            "reshard": f"{self.names.reshard}(_0, {sharding})",
        }
        # Each kind reads other attributes of the node, so only the part of its own kind may run.
        parts = {
            "matmul": lambda: {"_0": inner.left, "_1": inner.right},
            "gather": lambda: {"_0": inner.value, "_1": inner.slice},
            "reshard": lambda: {"_0": inner},
        }[fix.kind]()
        return _Filling(parts).visit(_parsed(texts[fix.kind], node))


class _Filling(ast.NodeTransformer):
    """Puts expressions in the place of names."""

    def __init__(self, parts: Mapping[str, ast.expr]) -> None:
        """Take the expressions by name."""
        self.parts = parts

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the expression of a name, or the name."""
        return self.parts.get(node.id, node)


def _parsed(text: str, at: ast.AST) -> Any:
    """Return the tree of an expression, every node at the place of another one."""
    made = ast.parse(text, mode="eval").body
    for node in ast.walk(made):
        ast.copy_location(node, at)
    return made


def _edits(expression: Expression, fix: Fix, names: SourceNames) -> list[Edit]:
    """Return the edits of the user's text that give one expression its sharding.

    Lines count from 1 and columns are bytes. Where several edits are at one place, their order
    keeps brackets nested: an inner expression has a larger number than the one around it.
    """
    node: Any = expression.node
    lines = [line.encode() for line in expression.file.lines]
    sharding, most = names.sharding(fix.spec), 1 << 20
    end = (node.end_lineno, node.end_col_offset)
    # Text in front of an expression is written from the outermost to the innermost expression,
    # and text behind it from the innermost to the outermost.
    inwards = most + fix.number
    if fix.kind == "reshard":
        return [
            Edit(node.lineno, node.col_offset, inwards, f"{names.reshard}("),
            Edit(*end, most - fix.number, f", {sharding})"),
        ]
    if fix.kind == "out_sharding":
        line, column, token = _before_end(expression)
        # No comma after an opening parenthesis or after a trailing comma.
        text = f"{'' if token in '(,' else ','}{'' if token == '(' else ' '}out_sharding={sharding}"
        return [Edit(line, column, most - fix.number, text)]
    if fix.kind == "gather":
        line, column = _find(lines, node.value, b"[")
        return [
            Edit(line, column, most - fix.number, ".at"),
            Edit(*end, most - fix.number, f".get(out_sharding={sharding})"),
        ]
    # The operator becomes a comma, so that `x @ w` becomes `matmul(x, w, ...)`: the spaces in
    # front of it are removed, too.
    line, column = _find(lines, node.left, b"@")
    spaces = len(lines[line - 1][:column]) - len(lines[line - 1][:column].rstrip())
    return [
        Edit(node.lineno, node.col_offset, inwards, f"{names.matmul}("),
        Edit(line, column - spaces, most - fix.number, ",", removed=1 + spaces),
        Edit(*end, most - fix.number, f", out_sharding={sharding})"),
    ]


def _before_end(expression: Expression) -> tuple[int, int, str]:
    """Return the (line, column) of the end of a call's last token before ")", and that token.

    Comments and line breaks do not count. E.g. `f(x, y)` in line 1 -> (1, 6, "y"). The column
    counts bytes.
    """
    text, end = expression.file.text, expression.node.end_lineno
    lines = expression.file.lines
    ignored_kinds = (tokenize.COMMENT, tokenize.NL)
    before = (1, 0, "(")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line, column = token.end
        # The syntax tree counts bytes, and tokens count characters.
        column = len(lines[line - 1][:column].encode()) if line <= len(lines) else 0
        if (line, column) == (end, expression.node.end_col_offset) and token.string == ")":
            return before
        if token.type not in ignored_kinds:
            before = (line, column, token.string)
    return before


def _find(lines: Sequence[bytes], before: Any, mark: bytes) -> tuple[int, int]:
    """Return the line (from 1) and the column (in bytes) of the first `mark` after a node."""
    line, column = before.end_lineno, before.end_col_offset
    while (found := lines[line - 1].find(mark, column)) < 0:
        line, column = line + 1, 0
    return line, found
