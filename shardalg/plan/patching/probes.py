"""Marks at every expression of the user's functions, at which a sharding constraint can be tried.

An expression is marked in the syntax tree, as `mark(number, expression)`. The function is traced
once more with the marks: each array gets named annotations, which are identities. So a set of
constraints is tried by giving shardings to names, without another edit or trace.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shardalg.errors import ShardalgError, StrategyError
from shardalg.graph.annotate import annotate
from shardalg.plan.patching.user_code import UserFile, replaced
from shardalg.planner.propagate.strategy import Annotations, Strategy, resolve
from shardalg.planner.stages import Stages, planned

if TYPE_CHECKING:
    from shardalg.algebra.sharding import Sharding
    from shardalg.plan.plan import Plan
    from shardalg.planner.traced import Traced

MARK = "_shardalg_mark"
_MARKED = (ast.Call, ast.BinOp, ast.UnaryOp, ast.Subscript, ast.Attribute)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
Axes = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Expression:
    """An expression in a function of the user, whose value may get a constraint.

    Attributes:
      file: the file that has it.
      node: its node in the syntax tree of the file.
      statement: the statement that has it, if the whole statement is `name = expression`.
      rebinds: for a name, the statement on lines of its own that gives it another value, such as
        `name += 1` or `name, other = f()`.
    """

    file: UserFile
    node: ast.expr
    statement: ast.Assign | None = None
    rebinds: ast.stmt | None = None

    @property
    def lines(self) -> range:
        """The lines of the file on which the expression is."""
        return range(self.node.lineno, (self.node.end_lineno or self.node.lineno) + 1)

    @property
    def text(self) -> str:
        """The expression as the user wrote it, on one line."""
        return " ".join((ast.get_source_segment(self.file.text, self.node) or "").split())


@dataclass(frozen=True, order=True)
class Constraint:
    """A sharding of the value of an expression.

    Attributes:
      expression: the number of the expression.
      depth: the place among several constraints of one expression, the innermost first.
      spec: the axis names of each dimension.
    """

    expression: int
    depth: int
    spec: tuple[Axes, ...]

    @property
    def name(self) -> str:
        """The name of the annotation that takes the constraint's place."""
        return f"{MARK}{self.expression}.{self.depth}"


BORDER = Constraint(-1, 0, ())
"""The plan's shardings of arguments and results that the user left open, as if it were one line."""


class _Marking(ast.NodeTransformer):
    """Marks the expressions inside of functions, and lists them in the order of their numbers."""

    def __init__(self, file: UserFile, first: int, kinds: tuple[type[ast.expr], ...]) -> None:
        """Mark the expressions of these kinds in a file, with numbers from `first` on.

        `whole` has, for the value of `name = value`, its statement. `plain` has the expressions
        that are no arrays of their own, such as the name of a called function.
        """
        self.file, self.first, self.kinds = file, first, kinds
        self.found: list[Expression] = []
        self.inside = False
        self.whole: dict[int, ast.Assign] = {}
        self.plain: set[int] = set()

    def visit(self, node: ast.AST) -> ast.AST:
        """Return the node, with marks around it and the expressions in it.

        A marked expression is the call `mark(number, expression)`. Expressions outside of functions
        get none: they run at import, before there is a trace.
        """
        if isinstance(node, _FUNCTIONS):
            return self._function(node)
        self._note(node)
        if self.inside and isinstance(node, ast.AugAssign | ast.Assign):
            return self._rebinding(node)
        if not (self.inside and isinstance(node, self.kinds) and id(node) not in self.plain):
            return self.generic_visit(node)
        # Only an expression that is read has a value to constrain.
        if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            return self.generic_visit(node)
        # The children are visited afterwards, so that outer expressions have smaller numbers.
        place = len(self.found)
        self.found.append(Expression(self.file, node, self.whole.get(id(node))))
        copied: Any = self.generic_visit(copy.copy(node))
        number = ast.Constant(self.first + place)
        call = ast.Call(ast.Name(MARK, ast.Load()), [number, copied], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))

    def _rebinding(self, node: ast.AugAssign | ast.Assign) -> Any:
        """Return an assignment, and a marked assignment of each name that it rebinds.

        E.g. `a, b = f()` -> `a, b = f()`, `a = mark(4, a)`, `b = mark(5, b)`. The value of a simple
        `name = value` is marked itself.
        """
        targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets[:1]
        if isinstance(node, ast.Assign) and isinstance(targets[0], ast.Name):
            return self.generic_visit(node)
        # A tuple of targets has the names in `elts`. Attributes and subscripts have no name.
        inner = getattr(targets[0], "elts", targets)
        names = [each for each in inner if isinstance(each, ast.Name)]
        statements: list[ast.AST] = [self.generic_visit(node)]
        # A constraint needs a line of its own, so no other statement may be on the same lines.
        lines = self.file.lines
        before = lines[node.lineno - 1].encode()[: node.col_offset]
        after = lines[(node.end_lineno or node.lineno) - 1].encode()[node.end_col_offset :]
        shares_lines = bool(before.strip() or after.strip())
        for name in () if shares_lines else names:
            number = ast.Constant(self.first + len(self.found))
            self.found.append(Expression(self.file, name, rebinds=node))
            call = ast.Call(ast.Name(MARK, ast.Load()), [number, ast.Name(name.id, ast.Load())], [])
            added = ast.Assign([ast.Name(name.id, ast.Store())], call)
            statements.append(ast.fix_missing_locations(ast.copy_location(added, node)))
        return statements

    def _function(self, node: Any) -> ast.AST:
        """Return a function with marks in its body alone: its defaults run in the definition."""
        outside, self.inside = self.inside, True
        node = copy.copy(node)
        # The body of a lambda is one expression. A marked statement may become several.
        if isinstance(node.body, list):
            block: Any = self.generic_visit(ast.Module(node.body, []))
            node.body = block.body
        else:
            node.body = self.visit(node.body)
        self.inside = outside
        return node

    def _note(self, node: ast.AST) -> None:
        """Record the parts of a node in `plain` (no arrays of their own) or in `whole`.

        `whole` has the statement of a value that is all of `name = value`. The names of called
        functions, indices, annotations of types and parts of f-strings are `plain`.
        """
        # Children are visited after their node, so that these sets are complete for each of them.
        if isinstance(node, ast.Call):
            self.plain.add(id(node.func))
        # An index may itself be a computed array, as in `table[ids + 1]`.
        elif isinstance(node, ast.Subscript):
            self.plain |= {id(part) for part in ast.walk(node.slice) if not _may_be_array(part)}
        elif isinstance(node, ast.Assign) and [type(t) for t in node.targets] == [ast.Name]:
            self.whole[id(node.value)] = node
        elif isinstance(node, ast.AnnAssign):
            self.plain |= {id(part) for part in ast.walk(node.annotation)}
        elif isinstance(node, ast.JoinedStr):
            self.plain |= {id(part) for part in ast.walk(node)}


def _may_be_array(node: ast.AST) -> bool:
    """Return whether a part of an index may be an array of indices: a call or an operation."""
    return isinstance(node, ast.Call | ast.BinOp | ast.Subscript)


@dataclass(frozen=True, eq=False)
class MarkedPlan:
    """A plan whose function is traced with marks at its expressions.

    Attributes:
      plan: the plan of the user.
      traced: the function with marks.
      expressions: the marked expressions by number.
      shapes: the shape of each expression that is an array.
    """

    plan: Plan
    traced: Traced
    expressions: Mapping[int, Expression]
    shapes: Mapping[int, tuple[int, ...]]

    @cached_property
    def places(self) -> dict[str, list[int]]:
        """Positions in `traced.graph.sites` of the marks with each name."""
        found: dict[str, list[int]] = {}
        for place, site in enumerate(self.traced.graph.sites):
            if site.name is not None and site.name.startswith(MARK):
                found.setdefault(site.name, []).append(place)
        return found

    def annotations(self, constraints: Sequence[Constraint]) -> Annotations:
        """Return the annotations of the plan together with constraints at the marks.

        Raises:
          StrategyError: a constraint does not fit its value.
        """
        sites = {each.name: each.spec for each in constraints if each != BORDER}
        made = own_annotations(self.plan, self.traced, sites)
        return with_border(self.plan, made) if BORDER in constraints else made

    @cached_property
    def stages(self) -> Stages:
        """The plan of the function with marks, without constraints."""
        return planned(self.traced, self.annotations(()), self.plan.options)

    def constraints(self) -> Iterator[Constraint]:
        """Yield a constraint per form in which the plan has the value of a marked expression.

        The forms of a value are its sharding as it is computed, and those after each reshard. The
        first one has depth 0.
        """
        graph, program = self.traced.graph, self.stages.program
        # The shardings of each value of the graph, in the order in which the program makes them.
        shardings_by_value: dict[int, list[Sharding]] = {}
        for local in program.locals:
            if local.origin is not None:
                shardings_by_value.setdefault(local.origin, []).append(local.sharding)
        for number in self.expressions:
            forms: Counter[tuple[tuple[Axes, ...], ...]] = Counter()
            for place in self.places.get(f"{MARK}{number}.0", ()):
                site = graph.sites[place]
                node = graph.nodes[site.node]
                # The mark of a value is also on its gradient, which the user's line does not name.
                if node.phase != "backward":
                    values = (*node.operands, *node.results)
                    shardings = [
                        sharding
                        for value in values
                        for sharding in shardings_by_value.get(value, ())
                    ]
                    forms[tuple(_specs(shardings, site.unspecified_dims))] += 1
            # Layers that share a line share a constraint: the forms that most of them have.
            for depth, spec in enumerate(forms.most_common(1)[0][0] if forms else ()):
                yield Constraint(number, depth, spec)


def has_open_border(plan: Plan) -> bool:
    """Return whether the user left the sharding of an argument or a result open."""
    given = plan._annotations
    return any(sharding is None for sharding in (*given.arguments, *given.results))


def with_border(plan: Plan, given: Annotations) -> Annotations:
    """Return annotations with the plan's sharding of every argument and result."""
    program = plan.program
    return replace(given, arguments=program.argument_shardings, results=program.result_shardings)


def own_annotations(
    plan: Plan, traced: Traced, sites: Mapping[str, tuple[Axes, ...]] | None = None
) -> Annotations:
    """Return the annotations of a plan for another trace of its function.

    The trace has the sites of the plan's graph in their order, and perhaps more.

    Args:
      sites: specs of marks, by name.

    Raises:
      StrategyError: a spec does not fit its value.
    """
    graph, given = traced.graph, plan._annotations
    read = resolve(graph, Strategy(given.mesh, sites=sites or {}), traced.first_mesh).sites
    # Sites that the user named have the shardings of the plan's strategy.
    pairs = zip(plan.graph.sites, given.sites, strict=True)
    named = iter([sharding for site, sharding in pairs if site.name is not None])
    merged = tuple(
        next(named) if site.name is not None and not site.name.startswith(MARK) else sharding
        for site, sharding in zip(graph.sites, read, strict=True)
    )
    # More sites change the numbers of values. Their names have a counter per operator and line.
    numbers = {value.name: value.index for value in graph.values}
    values = tuple(
        (numbers[name], sharding)
        for index, sharding in given.values
        if (name := plan.graph.values[index].name) in numbers
    )
    return replace(given, sites=merged, values=values)


def _specs(shardings: Sequence[Sharding], added: tuple[int, ...]) -> Iterator[tuple[Axes, ...]]:
    """Yield the axis names per dimension of shardings, such as (("X",), ()) for [X, None].

    Left out are shardings along sub-axes, which have no names, and those equal to the one before.

    Args:
      added: dimensions that `vmap` added, which the user's constraint does not count.
    """
    before = None
    for sharding in shardings:
        # A constraint cannot say that a sum is pending, so only the dimensions count.
        try:
            entries = tuple(replace(sharding, unreduced=()).to_spec())
        except ShardalgError:
            continue
        # An entry of a PartitionSpec is an axis, a tuple of axes, or None.
        spec = tuple(
            e if isinstance(e, tuple) else (e,) if isinstance(e, str) else () for e in entries
        )
        user_spec = tuple(axes for dim, axes in enumerate(spec) if dim not in added)
        if user_spec != before:
            before = user_spec
            yield user_spec


def marked_plan(
    plan: Plan,
    files: Sequence[UserFile],
    depths: Mapping[int, int] | None = None,
    *,
    names: bool = False,
) -> MarkedPlan:
    """Return a plan whose function is traced with marks at the user's expressions.

    A mark calls `mark(number, value)`, which annotates the value, so that a sharding can be tried
    there without another trace.

    Args:
      files: the user's files.
      depths: the number of marks of each expression; None: one of each.
      names: whether names of values are expressions too.

    Raises:
      StrategyError: the plan was loaded from a file, and has no function.
    """
    import jax

    retrace = plan._traced.changed
    if retrace is None:
        raise StrategyError(
            "a loaded plan has no function to patch: plan the function again with sa.plan."
        )
    expressions: dict[int, Expression] = {}
    trees: list[Any] = []
    for file in files:
        marking = _Marking(file, len(expressions), (*_MARKED, ast.Name) if names else _MARKED)
        # Marking changes a tree in place; expressions keep only places of its nodes.
        trees.append(marking.visit(copy.deepcopy(file.tree)))
        expressions |= dict(enumerate(marking.found, len(expressions)))

    shapes: dict[int, tuple[int, ...]] = {}

    def mark(number: int, value: Any) -> Any:
        """Return the value, with its annotations if it is a traced array; note its shape."""
        if not isinstance(value, jax.core.Tracer) or not value.ndim:
            return value
        shapes[number] = value.shape
        # Inside of `shard_map` a value is a device's own block, which has no constraint.
        kinds = getattr(jax.sharding.get_abstract_mesh(), "axis_types", ())
        if jax.sharding.AxisType.Manual in kinds:
            return value
        for depth in range(1 if depths is None else depths.get(number, 0)):
            value = annotate(value, f"{MARK}{number}.{depth}")
        return value

    with replaced(files, trees, {MARK: mark}):
        traced = retrace(lambda fn: fn)
    traced = replace(traced, first_mesh=plan._traced.first_mesh)
    return MarkedPlan(plan, traced, expressions, shapes)
