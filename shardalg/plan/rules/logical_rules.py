"""Logical-axis rules of flax, haliax and MaxText: they map names of dimensions to mesh axes.

A rule names the mesh axes along which a dimension is sharded. For an array, the rules are tried in
order. A rule applies under two conditions (flax, `logical_to_mesh_axes`). The array has a dimension
of its name to which no earlier rule applies. None of its mesh axes is used in the array already.

All of these libraries ignore a rule that never applies; `LogicalRules.idle` names it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import PartitionSpec

from shardalg.algebra.mesh import Mesh
from shardalg.errors import StrategyError
from shardalg.tables import Table

if TYPE_CHECKING:
    from shardalg.plan.rules.findings import Findings
    from shardalg.planner.propagate.strategy import Strategy

Axes = tuple[str, ...]
KEY = "logical_axis_rules"
_EXAMPLE = '[("batch", "data"), ("mlp", ("model",)), ("embed", None)]'
_TOKEN = re.compile(r"(?:\s|#[^\n]*)*(?P<token>[\[\],]|'[^']*'|\"[^\"]*\"|[^\s\[\],#'\"]+)")


@dataclass(frozen=True)
class LogicalRule:
    """One rule: dimensions of this name are sharded along these mesh axes.

    Attributes:
      name: the name of a dimension.
      axes: the mesh axes, major first; () if the dimension is not sharded.
    """

    name: str
    axes: Axes

    def __str__(self) -> str:
        shown = self.axes[0] if len(self.axes) == 1 else self.axes or None
        return f"({self.name!r}, {shown!r})"


@dataclass(frozen=True)
class LogicalRules:
    """Logical-axis rules for one mesh; the function `logical_rules` creates them.

    Attributes:
      rules: the rules in the order in which they are tried. Axes that the mesh does not have are
        ignored.
      mesh: the mesh.
    """

    rules: tuple[LogicalRule, ...]
    mesh: Mesh

    def spec(self, names: Sequence[str | None]) -> PartitionSpec:
        """Return the sharding of an array, from the names of its dimensions.

        Args:
          names: a name per dimension; None for a dimension without a name.

        Raises:
          StrategyError: two dimensions have one name.

        >>> rules = logical_rules(
        ...     [("batch", "data"), ("mlp", "model"), ("embed", "model")],
        ...     Mesh({"data": 2, "model": 4}),
        ... )
        >>> tuple(rules.spec(("batch", None, "embed"))), tuple(rules.spec(("embed", "mlp")))
        (('data', None, 'model'), (None, 'model'))
        """
        rule_of = self._applied_rules(names)
        axes = [self.present(rule_of[d]) if d in rule_of else () for d in range(len(names))]
        return PartitionSpec(*(a if len(a) > 1 else a[0] if a else None for a in axes))

    def applied(self, names: Sequence[str | None]) -> dict[int, int]:
        """Return the index of the rule that applies to each dimension, by the dimension's number.

        Dimensions without a rule are absent. Rules are tried in order: the first rule for a name
        whose axes no other dimension has yet applies.

        Raises:
          StrategyError: two dimensions have one name, or an entry is neither a name nor None.

        >>> rules = logical_rules([("mlp", "x"), ("embed", "x")], Mesh({"x": 2}))
        >>> rules.applied(("embed", "mlp")), rules.applied(("embed", None))
        ({1: 0}, {0: 1})
        """
        if isinstance(names, str) or not all(n is None or isinstance(n, str) for n in names):
            raise StrategyError(
                f"logical axes are {names!r:.60}: give a tuple with a name or None per dimension."
            )
        twice = [name for name, count in Counter(names).items() if name and count > 1]
        if twice:
            raise StrategyError(
                f"logical axes {tuple(names)!r} have {twice[0]!r} twice: a rule would split two "
                "dimensions along the same mesh axes. Name them apart."
            )
        rule_by_dim: dict[int, int] = {}
        used_axes: set[str] = set()
        # An earlier rule wins, both for a dimension and for a mesh axis (flax).
        for number, rule in enumerate(self.rules):
            dim = names.index(rule.name) if rule.name in names else None
            axes = self.present(rule)
            if dim is not None and dim not in rule_by_dim and used_axes.isdisjoint(axes):
                rule_by_dim[dim] = number
                used_axes.update(axes)
        return rule_by_dim

    def _applied_rules(self, names: Sequence[str | None]) -> dict[int, LogicalRule]:
        """Return the rule that applies to each dimension, by the dimension's number.

        Raises:
          StrategyError: two dimensions have one name.
        """
        return {at: self.rules[place] for at, place in self.applied(names).items()}

    def lint(self, arrays: Any, mesh: Any = None, fn: Any = None, names: Any = None) -> Findings:
        """Return the rules that are silently wrong for some arrays, with repairs.

        Without a function, the rules are applied to the arrays alone: `shadowed`, `never_applies`,
        `no_array`, `unknown_axis`, `size_one`, `not_divisible`, `collision`, `replicated`. With a
        function, its values are followed through operators that compute element by element:
        `replicated_by_omission`, `axes_differ_from_what_it_meets`. The glossary of kinds is in
        `shardalg.plan.rules.findings`.

        Args:
          arrays: a mapping or a pytree of arrays. A leaf is (shape, dtype, names), (shape, names),
            the names alone, a box of flax linen (`nn.with_logical_partitioning`), a variable of
            nnx with names, or a shape whose names are in `names`.
          mesh: None: the mesh of the rules.
          fn: a function whose parameters are keys of `arrays`. The other keys name its sites
            (`sa.annotate(x, key)`). Then each repair is planned and compiled by XLA for as many
            CPU devices; a repair that does not help in both is left out.
          names: a pytree of names that is parallel to `arrays`.

        Raises:
          StrategyError: arrays without names or with another number of names than dimensions, or a
            parameter of the function that is no key.

        >>> rules = logical_rules([("embed", "x"), ("mpl", "y")], {"x": 2, "y": 4})
        >>> rules.lint({"w": ((64, 256), "float32", ("embed", "mlp"))})
        1 finding in 2 rules for 1 array on Mesh(x=2, y=4).
        kind      rule          array  axis  bytes  repair  why
        no_array  ('mpl', 'y')         y                    no array has a dimension 'mpl'; did ...
        """
        from shardalg.plan.rules.lint import lint

        on = self if mesh is None else replace(self, mesh=mesh_from(mesh))
        return lint(on, arrays, fn, names)

    def present(self, rule: LogicalRule) -> Axes:
        """Return those axes of a rule that the mesh has."""
        return tuple(axis for axis in rule.axes if axis in self.mesh.shape)

    def specs(self, logical: Any) -> Any:
        """Return the shardings of a pytree of arrays, for example as `in_shardings`.

        Args:
          logical: a pytree with the names of each array's dimensions: a tuple of names, or a
            PartitionSpec of names (`nn.get_partition_spec`, `nnx.get_partition_spec`). None is
            returned as None.

        >>> rules = logical_rules({"embed": "model"}, Mesh({"model": 4}))
        >>> tuple(rules.specs({"w": ("embed", "mlp"), "b": None})["w"])
        ('model', None)
        """
        return jax.tree.map(self.spec, logical, is_leaf=_names)

    def strategy(
        self, arrays: Any, *, results: Any = None, sites: Mapping[str, Any] | None = None
    ) -> Strategy:
        """Return the strategy that shards a function's arguments and sites by the rules.

        `sa.plan` and `sa.compare` take it as any strategy. `sa.rules_of` finds the rules that give
        a strategy back.

        Args:
          arrays: a tuple with an entry per argument of the function. An entry is None (complete
            it), or a pytree whose leaves are names of dimensions, boxes of flax linen, variables
            of nnx, (shape, names), or arrays without names.
          results: a pytree of the function's result with names, likewise; None: complete it.
          sites: by the name of a site (`sa.annotate`), the names of its dimensions.

        Raises:
          StrategyError: an entry that cannot be read, or a name that an array has twice.

        >>> import jax, shardalg as sa
        >>> rules = logical_rules([("batch", "data"), ("mlp", "model")], {"data": 4, "model": 2})
        >>> strategy = rules.strategy((("batch", "embed"), {"up": ("embed", "mlp")}))
        >>> x, up = (jax.ShapeDtypeStruct(s, "float32") for s in ((64, 32), (32, 128)))
        >>> plan = sa.plan(lambda x, params: x @ params["up"], x, {"up": up}, strategy=strategy)
        >>> plan.sharded.results[0].text()
        '[data, model]'
        """
        from shardalg.plan.rules.named_arrays import arguments_of, named_site, named_tree
        from shardalg.planner.propagate.strategy import Strategy

        specs = tuple(tree.specs(self) for tree in arguments_of(arrays))
        made = None if results is None else named_tree(results, "result").specs(self)
        names = {site: named_site(site, given).names or () for site, given in (sites or {}).items()}
        return Strategy(self.mesh, specs, made, {site: self.spec(n) for site, n in names.items()})

    def idle(self, logical: Any) -> Table:
        """Return a table of the rules that apply to no array of a pytree, with reasons.

        Rules with an axis that the mesh does not have, and names of dimensions without a rule, are
        listed, too. The table is empty if there is no such rule or name.

        Args:
          logical: as in `specs`.

        >>> rules = logical_rules(
        ...     [("embed", "model"), ("embed", "data"), ("kv", "model"), ("mlp", "tensor")],
        ...     Mesh({"data": 2, "model": 4}),
        ... )
        >>> print(rules.idle({"w": ("embed", "mlp"), "b": ("out",)}))
        rule                why
        ('embed', 'data')   an earlier rule lays out every dimension 'embed': ('embed', 'model')
        ('kv', 'model')     no array has a dimension 'kv'; near: none
        ('mlp', 'tensor')   the mesh has no axis 'tensor', only data, model
        none for 'out'      no rule names it: it is not split
        """
        arrays = [tuple(leaf) for leaf in jax.tree.leaves(logical, is_leaf=_names) if leaf]
        return Table(("rule", "why"), tuple(self._idle(arrays)))

    def _idle(self, arrays: Sequence[Sequence[str | None]]) -> Iterator[tuple[str, str]]:
        """Yield the rows (rule, reason) of the table `idle`: rules and names without effect.

        Args:
          arrays: the names of each array's dimensions.
        """
        applied = [self._applied_rules(names) for names in arrays]
        known = dict.fromkeys(name for names in arrays for name in names if name)
        for place, rule in enumerate(self.rules):
            # Rules are compared by identity, because the same rule may occur twice. A rule with a
            # missing axis is listed even if its other axes apply.
            missing = [axis for axis in rule.axes if axis not in self.mesh.shape]
            if any(rule is one for laid in applied for one in laid.values()) and not missing:
                continue
            reason = self._why(place, known, missing) or self._conflict(place, arrays, applied)
            yield str(rule), reason
        # The other direction: names of dimensions that no rule mentions, perhaps misspelt.
        ruled = {rule.name for rule in self.rules}
        for name in known:
            if name not in ruled:
                yield f"none for {name!r}", "no rule names it: it is not split"

    def _why(self, place: int, known: Iterable[str], missing: Sequence[str]) -> str:
        """Return why a rule can apply to no array: a missing mesh axis, or an unused name.

        Returns "" if neither is the reason.

        Args:
          place: the number of the rule.
          known: the names of all dimensions.
          missing: the axes of the rule that the mesh does not have.
        """
        from difflib import get_close_matches

        rule = self.rules[place]
        if missing:
            axes = ", ".join(map(repr, missing))
            return f"the mesh has no axis {axes}, only {', '.join(self.mesh.axis_names)}"
        if rule.name not in known:
            near = ", ".join(get_close_matches(rule.name, list(known), 2)) or "none"
            return f"no array has a dimension {rule.name!r}; near: {near}"
        return ""

    def _conflict(
        self,
        place: int,
        arrays: Sequence[Sequence[str | None]],
        applied: Sequence[Mapping[int, LogicalRule]],
    ) -> str:
        """Return a text with the earlier rules that prevent a rule from applying to any array.

        Args:
          place: the number of the rule.
          arrays: the names of each array's dimensions.
          applied: per array, the rule that applies to each dimension.
        """
        # Rules are compared by identity, because the same rule may occur twice.
        rule, earlier_ids = self.rules[place], {id(one) for one in self.rules[:place]}
        # In a dict instead of a set, the texts keep their order. Two reasons are possible: an
        # earlier rule shards the dimension itself, or it has the axes in another dimension.
        rules_for_dim: dict[str, None] = {}
        axes_elsewhere: dict[str, None] = {}
        for names, rule_by_dim in zip(arrays, applied, strict=True):
            if rule.name not in names:
                continue
            dim = names.index(rule.name)
            if dim in rule_by_dim and id(rule_by_dim[dim]) in earlier_ids:
                rules_for_dim[str(rule_by_dim[dim])] = None
                continue
            # Rules after this one apply later in flax, so their axes were free at this rule.
            earlier_rules = [one for one in rule_by_dim.values() if id(one) in earlier_ids]
            used_axes = {axis for one in earlier_rules for axis in self.present(one)}
            axes_elsewhere[", ".join(axis for axis in rule.axes if axis in used_axes)] = None
        reasons = []
        if rules_for_dim:
            which = "some dimensions" if axes_elsewhere else "every dimension"
            rules_text = ", ".join(rules_for_dim)
            reasons.append(f"an earlier rule lays out {which} {rule.name!r}: {rules_text}")
        if axes_elsewhere:
            where = "elsewhere" if rules_for_dim else f"wherever {rule.name!r} stands"
            axes = " or ".join(axes_elsewhere)
            reasons.append(f"{where}, another dimension has {axes} by an earlier rule")
        return "; ".join(reasons)

    def check(self, logical: Any) -> LogicalRules:
        """Return the rules unchanged, after checking that `idle(logical)` is empty.

        Raises:
          StrategyError: a rule applies to no array, or a dimension's name has no rule. The message
            has the reasons.
        """
        idle = self.idle(logical)
        if len(idle):
            raise StrategyError(
                f"{len(idle)} logical-axis rules do nothing:\n{idle}\nLeave them out, or correct "
                "their names."
            )
        return self

    def linen(self) -> tuple[tuple[str, str | Axes | None], ...]:
        """Return the rules in the form that `flax.linen.logical_axis_rules` takes.

        >>> logical_rules({"embed": ("data", "model"), "mlp": None}, Mesh({"data": 2})).linen()
        (('embed', ('data', 'model')), ('mlp', None))
        """
        return tuple((rule.name, _short(rule.axes)) for rule in self.rules)

    def nnx(self) -> tuple[tuple[str, str | Axes | None], ...]:
        """Return the rules in the form that nnx takes, which reads the last rule of a name.

        nnx takes a name without a rule for a mesh axis: `sa.rules_of(..., style="nnx")` has a rule
        for every name.

        Raises:
          StrategyError: two rules for one name.
        """
        self._check_one_per_name("nnx reads the last one alone")
        return self.linen()

    def haliax(self) -> dict[str, str | Axes]:
        """Return the rules in the form that `haliax.axis_mapping` takes: a dict from names to axes.

        Names that are not sharded are absent.

        Raises:
          StrategyError: two rules for one name.
        """
        self._check_one_per_name("an axis mapping of haliax has one per name")
        pairs = ((rule.name, _short(rule.axes)) for rule in self.rules)
        # haliax has no rule for a dimension that stays whole: it leaves the name out.
        return {name: axes for name, axes in pairs if axes is not None}

    def text(self, style: str = "linen") -> str:
        """Return the rules as text for a library: Python, or YAML for MaxText.

        Args:
          style: "linen", "nnx", "haliax" or "maxtext".

        Raises:
          StrategyError: an unknown style, or two rules for one name in nnx or haliax.

        >>> rules = logical_rules([("embed", "data"), ("mlp", None)], Mesh({"data": 2}))
        >>> print(rules.text())
        logical_axis_rules = (
            ('embed', 'data'),
            ('mlp', None),
        )
        >>> print(rules.text("haliax"))
        axis_mapping = {
            'embed': 'data',
        }
        """
        if style == "maxtext":
            return self.yaml()
        if style == "haliax":
            lines = (f"    {name!r}: {axes!r},\n" for name, axes in self.haliax().items())
            return f"axis_mapping = {{\n{''.join(lines)}}}"
        if style not in ("linen", "nnx"):
            raise StrategyError(
                f"style is {style!r:.40}: it is one of linen, nnx, haliax, maxtext."
            )
        lines = (f"    {rule!r},\n" for rule in (self.nnx() if style == "nnx" else self.linen()))
        return f"{KEY} = (\n{''.join(lines)})"

    def _check_one_per_name(self, why: str) -> None:
        """Check that each name has at most one rule.

        Args:
          why: the reason, for the message.

        Raises:
          StrategyError: a name has several rules.
        """
        counts = Counter(rule.name for rule in self.rules)
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            raise StrategyError(
                f"there are {counts[twice[0]]} rules for {twice[0]!r}, but {why}. Keep one of them."
            )

    def yaml(self) -> str:
        """Return the rules as YAML text for a configuration of MaxText.

        >>> print(logical_rules({"embed": "data", "mlp": None}, Mesh({"data": 2})).yaml())
        logical_axis_rules: [
          ['embed', ['data']],
          ['mlp', []],
        ]
        """
        lines = (f"  ['{r.name}', [{', '.join(map(repr, r.axes))}]],\n" for r in self.rules)
        return f"{KEY}: [\n{''.join(lines)}]"


def logical_rules(rules: object, mesh: Any) -> LogicalRules:
    """Return `LogicalRules` from rules in the form of flax, haliax or MaxText.

    Args:
      rules: one of three forms. Linen and nnx: (name, mesh axis) pairs, in which a tuple of axes or
        None can replace the axis. Haliax: a dict of these. MaxText: a YAML text with
        `logical_axis_rules: [...]`, or the path of such a file.
      mesh: a `Mesh`, a mesh of JAX, or a dict from the name of an axis to its size.

    Raises:
      StrategyError: `rules` has another form; the message shows the first wrong entry.

    >>> logical_rules("logical_axis_rules: [['embed', ['fsdp']], ['mlp', 'tensor']]", {"fsdp": 4})
    LogicalRules(rules=(LogicalRule(name='embed', axes=('fsdp',)), ...), mesh=Mesh(fsdp=4))
    """
    mesh = mesh_from(mesh)
    if isinstance(rules, str | Path):
        rules = _read(rules)
    pairs: Any = rules.items() if isinstance(rules, Mapping) else rules
    if isinstance(pairs, str) or not isinstance(pairs, Iterable):
        raise StrategyError(f"{rules!r:.80} are no logical-axis rules. Write them as {_EXAMPLE}.")
    return LogicalRules(tuple(map(_rule, pairs)), mesh)


def mesh_from(given: Any) -> Mesh:
    """Return a mesh that is given as a `Mesh`, a mesh of JAX, or a dict from axes to sizes."""
    if isinstance(given, Mapping):
        return Mesh(dict(given))
    return given if isinstance(given, Mesh) else Mesh.from_jax(given)


def _rule(pair: Any) -> LogicalRule:
    """Return the rule that a user's pair of a name and axes describes.

    E.g. ("mlp", "x"), ("mlp", ("x", "y")), or ("mlp", None) for a dimension that stays whole.

    Raises:
      StrategyError: the entry is no such pair.
    """
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        raise StrategyError(f"{pair!r:.80} is no logical-axis rule. Write rules as {_EXAMPLE}.")
    name, axes = pair
    is_list = isinstance(axes, Sequence) and not isinstance(axes, str)
    axis_names = () if axes is None else tuple(axes) if is_list else (axes,)
    if not isinstance(name, str) or not all(isinstance(axis, str) for axis in axis_names):
        raise StrategyError(
            f"the logical-axis rule {pair!r:.80} has a name, and axes of the mesh: write them as "
            f"{_EXAMPLE}."
        )
    return LogicalRule(name, axis_names)


def _names(leaf: object) -> bool:
    """Return whether an entry of a pytree is a tuple, or a PartitionSpec, of dimension names."""
    # A named tuple is a node of the pytree, not a tuple of names.
    named = isinstance(leaf, tuple) and all(n is None or isinstance(n, str) for n in leaf)
    return isinstance(leaf, PartitionSpec) or (named and not hasattr(leaf, "_fields"))


def _short(axes: Axes) -> str | Axes | None:
    """Return mesh axes as flax and haliax write them: one name, a tuple of several, None for ()."""
    return axes[0] if len(axes) == 1 else axes or None


def _read(text: str | Path) -> list[Any]:
    """Return the list after `logical_axis_rules:` in a YAML text or a YAML file.

    Args:
      text: the text, or the path of the file.

    Raises:
      StrategyError: there is no such file, or no rules in the text.
    """
    place = "the text"
    if isinstance(text, Path) or (KEY not in text and "\n" not in text):
        place = str(text)
        try:
            text = Path(text).read_text()
        except OSError as error:
            raise StrategyError(f"{place}: no file of logical-axis rules ({error}).") from None
    # The key begins a line, so a comment or a value that mentions it does not count.
    start = re.search(rf"^\s*{KEY}\s*:", text, re.MULTILINE)
    if start is None:
        raise StrategyError(f"{place} has no `{KEY}: [...]`: pass MaxText's YAML, or {_EXAMPLE}.")
    return _list(text, start.end(), place)


def _list(text: str, at: int, place: str) -> list[Any]:
    """Return the YAML list (`[...]` with strings, nested lists and comments) after a position.

    E.g. `['embed', ['fsdp']]` -> ["embed", ["fsdp"]]. The words null, ~ and None without quotes
    become None.

    Args:
      at: the position in the text.
      place: the name of the text in messages.

    Raises:
      StrategyError: no list begins at the position, or it does not end.
    """
    # PyYAML is no dependency, and only this part of the file is read. `stack` has the open lists,
    # outermost first; the result becomes the only element of `stack[0]`.
    stack: list[list[Any]] = [[]]
    while found := _TOKEN.match(text, at):
        at, token = found.end(), found["token"]
        if token == "[":
            stack.append([])
        elif token == "]":
            closed_list = stack.pop()
            # A bracket that closes no list: the text does not begin with a list.
            if not stack:
                break
            stack[-1].append(closed_list)
            # The outermost list is closed.
            if len(stack) == 1:
                return closed_list
        elif token != ",":
            word = token.strip("'\"")
            stack[-1].append(None if word in ("null", "~", "None") and word == token else word)
            # A word outside of all brackets: the value of the key is no list.
            if len(stack) == 1:
                break
    line = text.count("\n", 0, at) + 1
    raise StrategyError(
        f"{place}, line {line}: `{KEY}` is a list in brackets that ends, such as "
        f"[['embed', ['fsdp']], ['mlp', 'tensor']]."
    )
