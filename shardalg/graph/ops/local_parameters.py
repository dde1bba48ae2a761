"""How a primitive spells its local configuration: one function per family, placing numbers only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from shardalg.algebra.affine import Index
from shardalg.errors import RuleError
from shardalg.graph.ir import Params, Signature
from shardalg.graph.ops.families.indexing import numbers, scatter_mode
from shardalg.graph.ops.loops import dim_loops, moved
from shardalg.graph.ops.rule import CLIP, DROP, PRODUCT, SUM, USER, Access, Guard, Rule, Symbol
from shardalg.graph.ops.windows import OperandDim, WindowBlock, local_params, windowed

Blocks = Mapping[str, int]
NO_SPANS: Mapping[OperandDim, WindowBlock] = MappingProxyType({})


@dataclass(frozen=True)
class IndexShift:
    """Add `sign * p * block + more` to run-time numbers, `p` and `block` of `loop`.

    Attributes:
      operand: whose numbers; None for the result.
      component: of the index vector (the last dimension); None for all numbers.
      sign: 0 where numbers are clamped and not shifted.
      clamp: what they are clamped to before; within: those outside of it select nothing.
    """

    operand: int | None
    component: int | None
    loop: str
    sign: int
    clamp: tuple[int, int] | None = None
    more: int = 0
    within: tuple[int, int] | None = None


@dataclass(frozen=True)
class Emission:
    """What a device binds in place of the global operator.

    Attributes:
      params: parameters of the primitive that differ from the global ones.
      shifts: numbers that depend on the partition id.
      owned: (component, loop, number of starts): the gathered value counts only where that shifted
        index is in the block, and the global one is a start; zero elsewhere, then summed. The loop
        is "" where the dimension is whole.
      margins: (dimension of operand 0, loop, places) around its block, where windows overlap it.
      batch_dims: dimensions of that value which the indices span.
      fill: what a globally missing index gives, on one member; None: none can miss.
      first_member: operand that enters the combination on one member only.
      chosen: (result dimension, size of each operand along it) where every place is that of one
        operand.
      boxed: whether a box is read from, or written to, what is cut (`boxes` says where).
    """

    params: Params = ()
    shifts: tuple[IndexShift, ...] = ()
    owned: tuple[tuple[int, str, int], ...] = ()
    margins: tuple[tuple[int, str, int], ...] = ()
    batch_dims: tuple[int, ...] = ()
    fill: complex | None = None
    first_member: int | None = None
    chosen: tuple[int, tuple[int, ...]] | None = None
    boxed: bool = False


PLAIN = Emission()
"""The operator as it is, on blocks."""


def emit(
    signature: Signature,
    rule: Rule,
    blocks: Blocks,
    spans: Mapping[OperandDim, WindowBlock] = NO_SPANS,
) -> Emission:
    """Local configuration of the operator when loop `l` runs over `blocks[l]` on each device.

    Args:
      blocks: local extent of every loop: `ceil(extent / parts)`, the extent where not sharded.
      spans: what a device has of the dimensions that it reads through windows.

    Raises:
      RuleError: a loop of `unsupported_loops(rule)` is sharded.

    >>> from shardalg.graph.ir import ValueType
    >>> from shardalg.graph.ops.rows import rules
    >>> s = Signature("iota", (("dimension", 1),), (), (ValueType((4, 8), "int32"),))
    >>> emission = emit(s, rules(s)[0], {"d0": 4, "d1": 2})
    >>> emission.params, [(shift.loop, shift.sign) for shift in emission.shifts]
    ((('shape', (4, 2)),), [('d1', 1)])
    """
    split = sharded(rule, blocks)
    bad = sorted(split & unsupported_loops(rule))
    if bad:
        raise RuleError(
            f"{rule} cannot be partitioned on loop {', '.join(bad)}: nothing emits it yet. "
            "Gather the operand along it."
        )
    emission = EMITTERS[rule.family](signature, rule, blocks)
    if not split and not spans:
        return emission
    placed = dict(emission.params) | dict(local_params(signature, rule, blocks, spans))
    if not placed:
        return emission
    own = tuple((name, v) for name, v in placed.items() if v != signature.param(name))
    return replace(emission, params=own)


def sharded(rule: Rule, blocks: Blocks) -> frozenset[str]:
    """Loops that a device runs only a part of."""
    return frozenset(name for name, extent in rule.loops if blocks.get(name, extent) != extent)


@lru_cache(maxsize=1 << 14)
def unsupported_loops(rule: Rule) -> frozenset[str]:
    """Loops that stay whole on every device: the row says so, or nothing emits them yet."""
    windows = {
        name
        for guard in rule.guards
        if not guard.index.variables or any(v in rule.extents for v in guard.index.variables)
        for index in (guard.index, *(() if _starts_at_run_time(rule, guard) else (guard.loop,)))
        for name in index.variables
        if name in rule.extents
    }
    return rule.whole | rule.local | windows | UNSUPPORTED.get(rule.family, moved)(rule)


def _starts_at_run_time(rule: Rule, guard: Guard) -> bool:
    return any(symbol.name in guard.index.variables for symbol in rule.symbols)


def _divided(rule: Rule) -> frozenset[str]:
    """Loops under a floor or a modulo: a reshape whose factors do not nest."""
    maps = [index for tensor in rule.tensors for index in rule.indices(tensor)]
    return frozenset(v for i in maps if i.div > 1 or i.mod for v in i.variables)


def _unreachable(rule: Rule) -> frozenset[str]:
    """Loops in an index that neither is made of loops nor read through a window.

    Where a combination of the user's has nothing to fill places with: all its moved loops.
    """
    if rule.combine == USER and not rule.vacant and rule.filler(0) is None:
        return moved(rule)
    places = ((t, d) for t in rule.tensors for d in range(len(rule.indices(t))))
    barred = [rule.indices(t)[d] for t, d in places if not _reachable(rule, t, d)]
    return frozenset(v for index in barred for v in index.variables if v in rule.extents)


def _reachable(rule: Rule, tensor: int, dim: int) -> bool:
    return bool(dim_loops(rule, tensor, dim)) or windowed(rule, tensor, dim)


def _added_once(rule: Rule) -> frozenset[str]:
    """A combined loop of one iteration: its block does not tell whether it is split."""
    return moved(rule) | {name for name in rule.reduced if rule.extents[name] <= 1}


# Family to the loops that its emission does not split; otherwise those in no plain index.
UNSUPPORTED: dict[str, Callable[[Rule], frozenset[str]]] = {
    "scatter": _added_once,
    "selection": _unreachable,
    "shape": _divided,
    "terms": _unreachable,
    "tile": _divided,
    "window": _unreachable,
}


def local_shape(rule: Rule, result: int, blocks: Blocks) -> tuple[int, ...]:
    """Shape of a result when every loop runs over its block."""
    dims, shape = rule.results[result], rule.result_shapes[result]
    return tuple(_span(i, blocks) if i.terms else n for i, n in zip(dims, shape, strict=True))


def _span(index: Index, blocks: Blocks) -> int:
    if any(blocks[name] == 0 for name in index.variables):
        return 0
    total = sum(abs(c) * (blocks[name] - 1) for name, c in index.terms) + 1
    return index.mod or -(-total // index.div)


def _same(signature: Signature, rule: Rule, blocks: Blocks) -> Emission:
    """Nothing in the parameters depends on a size."""
    return PLAIN


def _shape(signature: Signature, rule: Rule, blocks: Blocks) -> Emission:
    name = "new_sizes" if signature.param("new_sizes") is not None else "shape"
    params = ((name, local_shape(rule, 0, blocks)),)
    return Emission(params if sharded(rule, blocks) else ())


def _tile(signature: Signature, rule: Rule, blocks: Blocks) -> Emission:
    """A device repeats what it has as often as its block of the repetitions says."""
    repeated = tuple(blocks.get(f"r{d}", 1) for d in range(len(signature.results[0].shape)))
    return Emission((("reps", repeated),) if sharded(rule, blocks) else ())


def _iota(signature: Signature, rule: Rule, blocks: Blocks) -> Emission:
    split = sharded(rule, blocks)
    loop = f"d{signature.param('dimension')}"
    shifts = (IndexShift(None, None, loop, 1),) if loop in split else ()
    return Emission((("shape", local_shape(rule, 0, blocks)),), shifts) if split else Emission()


def _positions(signature: Signature, rule: Rule, blocks: Blocks) -> Emission:
    """Every dimension starts where the device's block does."""
    split = sharded(rule, blocks)
    names = (index.loop for index in rule.results[0])
    shifts = tuple(IndexShift(d, None, n, 1) for d, n in enumerate(names) if n in split)
    return Emission((("shape", local_shape(rule, 0, blocks)),), shifts) if split else Emission()


def _terms(signature: Signature, rule: Rule, blocks: Blocks) -> Emission:
    """Along the dimension in which the operands follow one another, a place has one of them."""
    dim = signature.param("dimension")
    sizes = signature.param("sizes") or tuple(v.shape[dim] for v in signature.operands)
    chosen = len(sizes) > 1 and rule.results[0][dim].loop in sharded(rule, blocks)
    return Emission(chosen=(dim, sizes) if chosen else None)


def _window(signature: Signature, rule: Rule, blocks: Blocks) -> Emission:
    """Groups of a depthwise convolution; `local_params` places the rest."""
    split = sharded(rule, blocks)
    grouped = [name for name in GROUPS if signature.param(name, 1) > 1]
    return Emission(tuple((name, blocks["g"]) for name in grouped if "g" in split))


GROUPS = ("feature_group_count", "batch_group_count")


def _dynamic(signature: Signature, rule: Rule, blocks: Blocks) -> Emission:
    split = sharded(rule, blocks)
    if any(boxes(rule, split)):
        return Emission(boxed=True)
    has_sizes = signature.param("slice_sizes") is not None and split
    return Emission((("slice_sizes", local_shape(rule, 0, blocks)),)) if has_sizes else Emission()


def boxes(rule: Rule, split: Collection[str]) -> Iterator[tuple[int, str, int]]:
    """(dimension, loop, largest start) where a box is read from, or written to, what is cut."""
    highs = {symbol.name: symbol.high for symbol in rule.symbols}
    for guard in rule.guards:
        loop = guard.loop.loop
        if loop is not None and loop in split:
            (dim,) = [d for d, index in enumerate(rule.operands[0]) if index == guard.loop]
            (start,) = [name for name in guard.index.variables if name in highs]
            yield dim, loop, highs[start]


@dataclass(frozen=True)
class SelectedDimension:
    """A dimension in which run-time starts select, along a sharded loop.

    Attributes:
      component: of the index vector; width: of the window, 0 if it is a single element.
    """

    dim: int
    loop: str
    symbol: Symbol
    component: int
    width: int

    def shift(self, *, drops: bool) -> IndexShift:
        """From the global start to that in the block, and in the margin before it."""
        valid = (0, self.symbol.high)
        clamp = valid if self.symbol.mode == CLIP else None
        within = valid if drops and clamp is None and self.width else None
        return IndexShift(1, self.component, self.loop, -1, clamp, self.width, within)


def selections(
    rule: Rule, components: tuple[int, ...], split: Collection[str]
) -> tuple[SelectedDimension, ...]:
    """The selected dimensions that are cut.

    Args:
      components: operand dimension of each component of the index vector.
    """
    symbols = {symbol.name: symbol for symbol in rule.symbols}
    found = []
    for guard in rule.guards:
        loop = guard.loop.loop
        if loop is not None and loop in split:
            names = guard.index.variables
            (symbol,) = (symbols[name] for name in names if name in symbols)
            width = max((rule.extents[name] for name in names if name in rule.extents), default=0)
            dim = int(symbol.name[2:])
            found.append(SelectedDimension(dim, loop, symbol, components.index(dim), width))
    return tuple(found)


def _margins(found: tuple[SelectedDimension, ...]) -> tuple[tuple[int, str, int], ...]:
    return tuple((one.dim, one.loop, one.width) for one in found if one.width)


UNSORTED: Params = (("indices_are_sorted", False), ("unique_indices", False))


def _gather(signature: Signature, rule: Rule, blocks: Blocks) -> Emission:
    """A miss gives the fill value or a clipped read; `owned` says where it counts."""
    n, split = numbers(signature), sharded(rule, blocks)
    if not split:
        return Emission()
    windows = n.window_of(len(signature.operands[0].shape))
    sizes = enumerate(signature.param("slice_sizes"))
    local = tuple(blocks[f"w{d}"] if d in windows else size for d, size in sizes)
    params: Params = (("slice_sizes", local), *UNSORTED)
    found = selections(rule, n.selected, split)
    if not found:
        return Emission(params)
    # what misses the block is read from a margin of zeros, or masked
    wide = any(one.width for one in found)
    fill = None if isinstance(rule.init, Access) else rule.init
    if fill is None or wide:
        params = (*params, ("mode", "CLIP"))
    rank = len(signature.results[0].shape)
    spans = tuple(d for d in range(rank) if d not in n.window)
    owned = tuple((one.component, one.loop, one.symbol.high + 1) for one in found)
    if wide:  # clipped there: a start that misses along a dimension that is whole is masked, too
        owned += tuple(_whole_starts(rule, n.selected, {one.dim for one in found}))
    shifts = tuple(one.shift(drops=False) for one in found)
    return Emission(params, shifts, owned, _margins(found), spans, fill)


def _whole_starts(
    rule: Rule, components: tuple[int, ...], cut: Collection[int]
) -> Iterator[tuple[int, str, int]]:
    """(component, no loop, number of starts) where a start drops a read and nothing is cut."""
    for symbol in rule.symbols:
        dim = int(symbol.name[2:] or -1)
        if symbol.mode == DROP and dim not in cut:
            yield components.index(dim), "", symbol.high + 1


def _scatter(signature: Signature, rule: Rule, blocks: Blocks) -> Emission:
    """Indices shifted out of the block drop their update; the operand is added once.

    What stands for an update in padding has an index like any other, so that none is promised.
    """
    split = sharded(rule, blocks)
    selected = numbers(signature).selected
    found = selections(rule, selected, split)
    shifts = tuple(one.shift(drops=True) for one in found)
    if shifts and scatter_mode(signature.param("mode")) == CLIP:
        shifts += _clamps(rule, selected, shifts)
    adds = rule.combine in (SUM, PRODUCT) and split & set(rule.reduced)
    params: Params = UNSORTED if shifts or split & set(rule.reduced) else ()
    if shifts:
        params = (*params, ("mode", "FILL_OR_DROP"))
    first = 0 if adds else None
    return Emission(params, shifts, margins=_margins(found), first_member=first)


def _clamps(
    rule: Rule, components: tuple[int, ...], shifts: tuple[IndexShift, ...]
) -> tuple[IndexShift, ...]:
    """What clipping does on the components that are not shifted: shifted ones drop updates."""
    highs = {symbol.name: symbol.high for symbol in rule.symbols}
    done, loop = {shift.component for shift in shifts}, shifts[0].loop
    return tuple(
        IndexShift(1, component, loop, 0, (0, highs.get(f"$t{dim}", 0)))
        for component, dim in enumerate(components)
        if component not in done
    )


EMITTERS: dict[str, Callable[[Signature, Rule, Blocks], Emission]] = {
    "arg": _same,
    "dynamic": _dynamic,
    "gather": _gather,
    "iota": _iota,
    "positions": _positions,
    "prefix": _same,
    "same": _same,
    "scatter": _scatter,
    "selection": _same,
    "shape": _shape,
    "terms": _terms,
    "tile": _tile,
    "user": _same,
    "window": _window,
}
