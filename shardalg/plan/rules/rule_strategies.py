"""`sa.rules_of`: the logical-axis rules that give a strategy's layouts of arrays with names."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

from shardalg.algebra.mesh import Mesh
from shardalg.errors import ShardingError, StrategyError
from shardalg.plan.rules.logical_rules import Axes, LogicalRules, mesh_from
from shardalg.plan.rules.named_arrays import (
    EXAMPLE_ARGUMENTS,
    NamedArray,
    Names,
    arguments_of,
    named_site,
    named_tree,
    specs_by_path,
)
from shardalg.plan.rules.ordered_rules import STYLES, Conflict, Wanted, conflicts
from shardalg.planner.propagate.strategy import PerLeaf, Strategy

MOST_CONFLICTS = 5
"""Arrays in the message of an error."""


def rules_of(
    strategy: Strategy,
    arrays: Any,
    *,
    style: str = "linen",
    results: Any = None,
    sites: Mapping[str, Any] | None = None,
    leave_out: bool = False,
) -> LogicalRules:
    """Return the fewest logical-axis rules that give a strategy's layouts of named arrays.

    The library `style` reads the rules back as the same layouts, by its own semantics. In linen and
    MaxText, a name may have several rules, tried in order. In nnx and haliax it has one. Arrays
    without names, and those that the strategy leaves to completion, have no influence.

    Args:
      arrays: a tuple with an entry per argument of the function. An entry is None, or a pytree
        whose leaves are names of dimensions, boxes of flax linen, variables of nnx, named arrays of
        haliax, (shape, names), or arrays without names.
      style: "linen", "nnx", "haliax" or "maxtext".
      results: the names of the function's result, as a pytree like an entry of `arrays`. None: the
        layouts of the result have no influence.
      sites: by the name of a site of the strategy, the names of its dimensions.
      leave_out: whether arrays without rules are named by a warning, not by the error. The rules
        give the layouts of all other arrays.

    Raises:
      StrategyError: no rules give the layouts; the error names the arrays, and those that forbid
        them. An unknown style or site, or a layout that is no `PartitionSpec` of the mesh's axes.

    >>> import shardalg as sa
    >>> from jax.sharding import PartitionSpec as P
    >>> names = {"up": ("embed", "mlp"), "down": ("mlp", "embed"), "scale": ("embed",)}
    >>> specs = {"up": P("data", "model"), "down": P("model", "data"), "scale": P("data")}
    >>> mesh = sa.Mesh({"data": 4, "model": 2})
    >>> found = sa.rules_of(sa.Strategy(mesh, (specs,)), (names,))
    >>> found.linen()
    (('mlp', 'model'), ('embed', 'data'))
    >>> found.strategy((names,)).in_shardings[0] == specs
    True
    >>> specs["scale"] = P()
    >>> sa.rules_of(sa.Strategy(mesh, (specs,)), (names,))
    Traceback (most recent call last):
      ...
    shardalg.errors.StrategyError: no rules of linen give these layouts:
      0/scale: 'embed' whole
        against 0/down: 'mlp' on model, 'embed' on data
        because the same rule for 'embed' applies to both
    Give the dimensions different names, or the arrays layouts that agree. leave_out=True ...
    """
    if style not in STYLES:
        near = get_close_matches(str(style), list(STYLES), 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise StrategyError(f"style is {style!r:.40}: it is one of {', '.join(STYLES)}.{hint}")
    if not isinstance(strategy, Strategy):
        raise StrategyError(
            f"{strategy!r:.60} is no Strategy. Of a recipe, give recipe.strategy(fn, *args, "
            "mesh=mesh); of a comparison, call row.rules(arrays)."
        )
    mesh = mesh_from(strategy.mesh)
    if not isinstance(sites, Mapping | None):
        raise StrategyError(
            f"sites is {sites!r:.60}: give the names of the dimensions of each site, as in "
            '{"activations": ("batch", "embed")}.'
        )
    named = [one for tree in arguments_of(arrays) for one in tree.arrays]
    layouts = [
        *_layouts(strategy.in_shardings, named, mesh, ARGUMENTS),
        *_layouts(strategy.out_shardings, named_tree(results, RESULT).arrays, mesh, RESULTS),
        *_site_layouts(strategy, sites or {}, mesh),
    ]
    # Axes of size 1 split nothing. They are written only if the layouts have no rules without them:
    # in linen, an axis of size 1 on one dimension prevents a rule with that axis on another one.
    live_layouts = _grouped((one, tuple(map(partial(_live, mesh), axes))) for one, axes in layouts)
    layouts_to_give, conflicts_found = live_layouts, conflicts(live_layouts, style)
    if conflicts_found and not conflicts(all_layouts := _grouped(layouts), style):
        layouts_to_give, conflicts_found = all_layouts, ()
    if conflicts_found and not leave_out:
        raise StrategyError(
            f"no rules of {style} give these layouts:\n{_listed(conflicts_found)}\nGive the "
            "dimensions different names, or the arrays layouts that agree. leave_out=True writes "
            "the rules of the other arrays."
        )
    if conflicts_found:
        warnings.warn(
            f"the rules leave these layouts out:\n{_listed(conflicts_found)}", stacklevel=2
        )
    arrays_left_out = [one.arrays for one in conflicts_found]
    rules = STYLES[style]([one for one in layouts_to_give if one not in arrays_left_out])
    assert rules is not None, "arrays without conflicts have rules"
    return LogicalRules(rules, mesh)


def _grouped(layouts: Iterable[tuple[NamedArray, tuple[Axes, ...]]]) -> list[Wanted]:
    """Return arrays with their mesh axes, one entry for equal names and axes.

    Args:
      layouts: pairs of an array and the mesh axes of each of its dimensions.
    """
    # Rules see only names and axes, so arrays with equal ones need the same rules.
    keys_by_layout: dict[tuple[Names, tuple[Axes, ...]], list[str]] = {}
    for one, axes in layouts:
        keys_by_layout.setdefault((one.names or (), axes), []).append(one.key)
    return [Wanted(tuple(keys), names, axes) for (names, axes), keys in keys_by_layout.items()]


def _live(mesh: Mesh, axes: Axes) -> Axes:
    """Return the mesh axes whose size is not 1."""
    return tuple(axis for axis in axes if mesh.shape[axis] != 1)


def _listed(conflicts_found: Sequence[Conflict]) -> str:
    """Return the arrays without rules as text, with the arrays that forbid them and the reason.

    At most `MOST_CONFLICTS` of them are listed; a last line counts the others.
    """
    lines = []
    for conflict in conflicts_found[:MOST_CONFLICTS]:
        lines.append(f"  {conflict.arrays}")
        lines += [f"    against {other}" for other in conflict.others]
        lines.append(f"    because {conflict.why}")
    if len(conflicts_found) > MOST_CONFLICTS:
        lines.append(f"  and {len(conflicts_found) - MOST_CONFLICTS} more")
    return "\n".join(lines)


@dataclass(frozen=True)
class _Side:
    """The arguments or the results of a strategy.

    Attributes:
      root: the path with which the keys of its arrays begin.
      what: its name for messages.
      remedy: the sentence that says how its arrays are given.
    """

    root: str
    what: str
    remedy: str


RESULT = "result"
ARGUMENTS = _Side(
    "", "arrays", f"Give `arrays` as the function's arguments, as in {EXAMPLE_ARGUMENTS}."
)
RESULTS = _Side(RESULT, "results", "Give `results` as the function's result, with the same tree.")


def _layouts(
    given: Any, every: Sequence[NamedArray], mesh: Mesh, side: _Side
) -> Iterator[tuple[NamedArray, tuple[Axes, ...]]]:
    """Yield the named arrays that a strategy shards, with the mesh axes of each dimension.

    Args:
      given: the strategy's layouts of the arguments, or of the results.
      every: the arrays of that side.

    Raises:
      StrategyError: an array has no place in the strategy, or a layout that cannot be read.
    """
    if not any(one.names for one in every):
        return
    # A strategy has either a flat list with a layout per array, or a pytree of layouts. A layout in
    # the pytree may be that of all arrays below it.
    if isinstance(given, PerLeaf):
        if len(given) != len(every):
            raise StrategyError(
                f"the strategy has layouts for {len(given)} arrays, and `{side.what}` has "
                f"{len(every)}. {side.remedy}"
            )
        by_key = {one.key: spec for one, spec in zip(every, given, strict=True)}
    else:
        found = specs_by_path(given)
        by_key = {"/".join(part for part in (side.root, p) if part): s for p, s in found.items()}
    for one in every:
        if one.names is not None:
            spec = _spec_of(one.key, by_key, side)
            if spec is not None:
                yield one, _axes(spec, one, mesh)


def _spec_of(key: str, by_key: Mapping[str, Any], side: _Side) -> Any:
    """Return the spec of an array: that of the array itself, or of a tree that contains it.

    Args:
      by_key: the specs by the paths of a prefix of the tree of arguments.

    Raises:
      StrategyError: there is none.
    """
    parts = key.split("/")
    for end in range(len(parts), -1, -1):
        path = "/".join(parts[:end])
        if path in by_key:
            return by_key[path]
    near = get_close_matches(key, list(by_key), 2) or sorted(by_key)[:2]
    raise StrategyError(
        f"the strategy has no layout for array {key!r}; near: {', '.join(near)}. {side.remedy}"
    )


def _site_layouts(
    strategy: Strategy, sites: Mapping[str, Any], mesh: Mesh
) -> Iterator[tuple[NamedArray, tuple[Axes, ...]]]:
    """Yield the named sites with the mesh axes of each dimension.

    A site is a place in the function that `sa.annotate(x, name)` marks.

    Args:
      sites: by the name of a site, the names of its dimensions.

    Raises:
      StrategyError: the strategy has no such site.
    """
    for site, names in sites.items():
        if site not in strategy.sites:
            near = get_close_matches(site, list(strategy.sites), 2) or list(strategy.sites)[:4]
            raise StrategyError(
                f"the strategy has no site {site!r}; its sites are {', '.join(near) or 'none'}."
            )
        one = named_site(site, names)
        yield one, _axes(strategy.sites[site], one, mesh)


def _axes(spec: Any, one: NamedArray, mesh: Mesh) -> tuple[Axes, ...]:
    """Return the mesh axes of each dimension of an array, () for a dimension that is not sharded.

    Args:
      spec: a `PartitionSpec`, a sharding of JAX or of shardalg, or a tuple of entries.
      one: the array with the names of its dimensions.

    Raises:
      StrategyError: the spec is no `PartitionSpec` or sharding with named axes, has more entries
        than the array has names, names an axis twice, or one that the mesh does not have.
    """
    try:
        plain = spec.to_spec() if hasattr(spec, "to_spec") else getattr(spec, "spec", spec)
    except ShardingError as error:
        raise StrategyError(
            f"array {one.key!r}: rules name whole mesh axes, and its layout does not. {error}"
        ) from None
    names = one.names or ()
    if isinstance(plain, str) or not isinstance(plain, Iterable):
        raise StrategyError(f"array {one.key!r} has the layout {spec!r:.80}: give a PartitionSpec.")
    plain = tuple(plain)
    if len(plain) > len(names):
        raise StrategyError(
            f"array {one.key!r} has the names {list(names)}, and its layout {spec!r:.80} has "
            f"{len(plain)} entries. Give a name or None per dimension."
        )
    dims = []
    # A spec may leave out dimensions at the end, which are not sharded.
    for entry in (*plain, *(None,) * (len(names) - len(plain))):
        # An entry is an axis, a tuple of axes, or None.
        axes = () if entry is None else (entry,) if isinstance(entry, str) else entry
        if not isinstance(axes, tuple | list):
            raise StrategyError(
                f"array {one.key!r} has the layout {spec!r:.80}: an unconstrained dimension has no "
                "rule. Give its axes, or None."
            )
        for axis in axes:
            if axis not in mesh.shape:
                near = get_close_matches(str(axis), list(mesh.axis_names), 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise StrategyError(
                    f"array {one.key!r} has the axis {axis!r}, and the mesh only "
                    f"{', '.join(mesh.axis_names)}{hint}"
                )
        dims.append(tuple(axes))
    used = [axis for axes in dims for axis in axes]
    if repeated := sorted({axis for axis in used if used.count(axis) > 1}):
        raise StrategyError(
            f"array {one.key!r} has the layout {spec!r:.80}, which names {repeated[0]!r} twice: an "
            "axis splits one dimension at most."
        )
    return tuple(dims)
