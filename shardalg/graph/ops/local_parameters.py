"""Parameters of the local operator on each device: one function per family of rows.

The functions only write numbers, such as block sizes and index shifts. The row decides what is
partitioned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from shardalg.algebra.affine import Index
from shardalg.errors import RuleError
from shardalg.graph.ir import Params, Signature
from shardalg.graph.ops.families.indexing import numbers, scatter_mode
from shardalg.graph.ops.loops import OperandDim, dim_loops, loops_without_own_dimension
from shardalg.graph.ops.rule import CLIP, DROP, PRODUCT, SUM, USER, Access, Rule, Symbol
from shardalg.graph.ops.windows import WindowBlock, is_windowed, local_params

Blocks = Mapping[str, int]
NO_SPANS: Mapping[OperandDim, WindowBlock] = MappingProxyType({})


@dataclass(frozen=True)
class IndexShift:
    """Change of run-time indices from global to local ones: `sign * p * block + more` is added.

    `p` is the device's partition id of `loop`, and `block` the block size of this loop.

    Attributes:
      operand: the operand whose numbers are shifted; None for the result.
      component: a position in the index vector (the last dimension); None for all numbers.
      loop: see above.
      sign: 1, -1, or 0 for numbers that are clamped but not shifted.
      more: a constant that is added.
      clamp: the range to which the numbers are clamped first.
      within: the range of valid numbers; a number outside of it selects nothing.
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
    """Changes that turn the global operator into the operator that a device runs on its blocks.

    Attributes:
      params: parameters of the primitive that differ from the global ones.
      shifts: additions to numbers that depend on the partition id.
      owned: (component, loop, number of starts). The gathered value is masked with zero unless the
        shifted index is in the block and the global index is a valid start; then it is summed. The
        loop is "" if the dimension is not sharded.
      margins: (dimension of operand 0, loop, number of elements). So many elements are added before
        the device's block, for windows that overlap two blocks.
      batch_dims: dimensions of the gathered value that come from the indices.
      fill: the result of a globally invalid index, on one device of the group; None if no index
        can be invalid.
      first_member: an operand that only one device of the group includes in the combination.
      chosen: (result dimension, size of each operand along it) if every position of the dimension
        is read from one of the operands.
      boxed: whether a box is read from, or written to, a sharded dimension (see `boxes`).
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
"""No changes: many operators have no parameter that depends on a size."""


def emit(
    signature: Signature,
    rule: Rule,
    blocks: Blocks,
    spans: Mapping[OperandDim, WindowBlock] = NO_SPANS,
) -> Emission:
    """Return the changes of an operator's parameters for a device's blocks.

    Args:
      signature, rule: the global operator and its row.
      blocks: the device's extent of every loop: `ceil(extent / num_shards)`.
      spans: the device's interval of each dimension that is read through a window.

    Raises:
      RuleError: a loop of `unsupported_loops(rule)` is sharded.

    >>> from shardalg.graph.ir import ValueType
    >>> from shardalg.graph.ops.rows import rules
    >>> s = Signature("iota", (("dimension", 1),), (), (ValueType((4, 8), "int32"),))
    >>> emission = emit(s, rules(s)[0], {"d0": 4, "d1": 2})
    >>> emission.params, [(shift.loop, shift.sign) for shift in emission.shifts]
    ((('shape', (4, 2)),), [('d1', 1)])
    """
    split = sharded_loops(rule, blocks)
    wrong_loops = sorted(split & unsupported_loops(rule))
    if wrong_loops:
        raise RuleError(
            f"{rule} cannot be partitioned on loop {', '.join(wrong_loops)}: nothing emits it yet. "
            "Gather the operand along it."
        )
    emission = EMITTERS[rule.family](signature, rule, blocks)
    # Windows may need padding of their own even if no loop is sharded (`spans`).
    if not split and not spans:
        return emission
    params = dict(emission.params) | dict(local_params(signature, rule, blocks, spans))
    if not params:
        return emission
    changed = tuple((name, v) for name, v in params.items() if v != signature.param(name))
    return replace(emission, params=changed)


def sharded_loops(rule: Rule, blocks: Blocks) -> frozenset[str]:
    """Return the loops whose block has another size than the whole loop.

    Args:
      blocks: the device's extent of each loop; loops without an entry are whole.
    """
    return frozenset(name for name, extent in rule.loops if blocks.get(name, extent) != extent)


@lru_cache(maxsize=1 << 14)
def unsupported_loops(rule: Rule) -> frozenset[str]:
    """Return the loops along which the operator cannot be partitioned.

    The row forbids it, or `emit` has no local operator for it.
    """
    # A guard `k == start + w` selects a window of a dimension k, as in a dynamic slice:
    #     loop k of the dimension   . . . [ loop w of the window ] . . .
    starts = {symbol.name for symbol in rule.symbols}
    fixed: set[str] = set()
    for guard in rule.guards:
        names = guard.index.variables
        # `k == start` without a loop w selects single elements, which one block of k contains.
        if names and not any(name in rule.extents for name in names):
            continue
        # Every device computes the whole window, so that its loop w has one block.
        fixed.update(names)
        # A device replaces a run-time start by the start in its block of k. A start that is a
        # number of the operator has no such replacement, so k has one block too.
        if not starts.intersection(names):
            fixed.update(guard.loop.variables)
    windows = fixed.intersection(rule.extents)
    return (
        rule.whole
        | rule.local
        | windows
        | UNSUPPORTED.get(rule.family, loops_without_own_dimension)(rule)
    )


def _divided_loops(rule: Rule) -> frozenset[str]:
    """Return the loops in indices with a floor division or a modulo.

    A reshape whose factors do not nest has such indices.
    """
    maps = [index for tensor in rule.tensors for index in rule.indices(tensor)]
    return frozenset(v for i in maps if i.div > 1 or i.mod for v in i.variables)


def _loops_without_window(rule: Rule) -> frozenset[str]:
    """Return the loops in indices that are neither nested loops (`3*i + j`) nor windows.

    Such an index has a floor division, a modulo or a run-time number, or belongs to a result.

    A reduction by a user's function may have no number to fill padding with. Then all loops that
    do not index whole dimensions are returned.
    """
    # Padding would be filled with the start value (`filler`), or with a number that is never
    # selected (`vacant`).
    if rule.combine == USER and not rule.vacant and rule.filler(0) is None:
        return loops_without_own_dimension(rule)
    places = ((t, d) for t in rule.tensors for d in range(len(rule.indices(t))))
    barred = [
        rule.indices(t)[d]
        for t, d in places
        if not dim_loops(rule, t, d) and not is_windowed(rule, t, d)
    ]
    return frozenset(v for index in barred for v in index.variables if v in rule.extents)


UNSUPPORTED: dict[str, Callable[[Rule], frozenset[str]]] = {
    # `sharded_loops` compares extents, so it misses a sharded loop of one iteration. Every device
    # would then add the operand of a scatter-add, and the sum over devices would count it several
    # times.
    "scatter": lambda rule: (
        loops_without_own_dimension(rule) | {n for n in rule.reduced if rule.extents[n] <= 1}
    ),
    "selection": _loops_without_window,
    "shape": _divided_loops,
    "terms": _loops_without_window,
    "tile": _divided_loops,
    "window": _loops_without_window,
}
"""By family of rows, a function that returns the loops along which `emit` has no local operator.

In a family without an entry, these are the loops that `loops_without_own_dimension` returns.
"""


def local_shape(rule: Rule, result: int, blocks: Blocks) -> tuple[int, ...]:
    """Return the shape of a device's block of a result.

    Args:
      result: the number of the result.
      blocks: the device's extent of each loop.
    """

    def size(index: Index) -> int:
        # An empty block of a loop leaves no elements, also if the index has further loops.
        if any(blocks[name] == 0 for name in index.variables):
            return 0
        # A term c*loop spans |c|*(block - 1) values beyond its first one, whatever the sign of c.
        total = sum(abs(c) * (blocks[name] - 1) for name, c in index.terms) + 1
        return index.mod or -(-total // index.div)

    dims, shape = rule.results[result], rule.result_shapes[result]
    return tuple(size(i) if i.terms else n for i, n in zip(dims, shape, strict=True))


def _no_changes(signature: Signature, rule: Rule, blocks: Blocks) -> Emission:
    """Return no changes: none of the operator's parameters depends on a size."""
    return PLAIN


def _shape(signature: Signature, rule: Rule, blocks: Blocks) -> Emission:
    """Return the changed parameters of an operator with a shape as a parameter, or of a tile.

    The shape, as of a reshape, becomes the shape of the device's block. The repetitions of a tile
    become the ones in the device's block.
    """
    if not sharded_loops(rule, blocks):
        return PLAIN
    # A tile has no shape parameter: it repeats the device's block `reps` times per dimension. The
    # loops r0, r1, ... count the repetitions.
    if rule.family == "tile":
        rank = len(signature.results[0].shape)
        return Emission((("reps", tuple(blocks.get(f"r{d}", 1) for d in range(rank))),))
    name = "new_sizes" if signature.param("new_sizes") is not None else "shape"
    return Emission(((name, local_shape(rule, 0, blocks)),))


def _iota(signature: Signature, rule: Rule, blocks: Blocks) -> Emission:
    """Return the changed parameters of an `iota` that computes only the device's block.

    They are the block's shape, and a shift of the numbers to the block's first index.
    """
    split = sharded_loops(rule, blocks)
    loop = f"d{signature.param('dimension')}"
    # A device adds `p * block`, the first index of its block, to all numbers of the result.
    shift = IndexShift(operand=None, component=None, loop=loop, sign=1)
    shifts = (shift,) if loop in split else ()
    return Emission((("shape", local_shape(rule, 0, blocks)),), shifts) if split else PLAIN


def _positions(signature: Signature, rule: Rule, blocks: Blocks) -> Emission:
    """Return the changes by which the operator `positions` computes only a device's block.

    They are the shape of the block, and shifts of the start numbers to the block's first elements.
    """
    split = sharded_loops(rule, blocks)
    # Operand d has the start along result dimension d. A device adds the first index of its block.
    loops = (index.loop for index in rule.results[0])
    shifts = tuple(
        IndexShift(operand=dim, component=None, loop=loop, sign=1)
        for dim, loop in enumerate(loops)
        if loop in split
    )
    return Emission((("shape", local_shape(rule, 0, blocks)),), shifts) if split else PLAIN


def _terms(signature: Signature, rule: Rule, blocks: Blocks) -> Emission:
    """Return what a device does for its block of a concatenation.

    If the concatenated dimension is sharded, `chosen` is set: each position of a device's block is
    read from the operand that contains it. Otherwise nothing changes.
    """
    dim = signature.param("dimension")
    sizes = signature.param("sizes") or tuple(v.shape[dim] for v in signature.operands)
    chosen = len(sizes) > 1 and rule.results[0][dim].loop in sharded_loops(rule, blocks)
    return Emission(chosen=(dim, sizes) if chosen else None)


def _window(signature: Signature, rule: Rule, blocks: Blocks) -> Emission:
    """Return the changed parameters of a windowed operator, except padding and dilation.

    They are the device's number of groups of a grouped convolution. `local_params` changes padding
    and dilation.
    """
    split = sharded_loops(rule, blocks)
    grouped = [name for name in GROUPS if signature.param(name, 1) > 1]
    return Emission(tuple((name, blocks["g"]) for name in grouped if "g" in split))


GROUPS = ("feature_group_count", "batch_group_count")


def _dynamic(signature: Signature, rule: Rule, blocks: Blocks) -> Emission:
    """Return the changes of a dynamic slice or dynamic update on one device.

    If the operator selects along a sharded dimension, `boxed` is set: other instructions read or
    write the box. Otherwise the slice sizes become the sizes of the device's block.
    """
    split = sharded_loops(rule, blocks)
    if any(boxes(rule, split)):
        return Emission(boxed=True)
    has_sizes = signature.param("slice_sizes") is not None and split
    return Emission((("slice_sizes", local_shape(rule, 0, blocks)),)) if has_sizes else Emission()


def boxes(rule: Rule, split: Collection[str]) -> Iterator[tuple[int, str, int]]:
    """Yield (dimension, loop, largest start) for each sharded dimension with a run-time start.

    Args:
      rule: the row of a dynamic slice or update.
      split: the sharded loops.
    """
    # A guard is `loop == window loop + start`; its loop indexes one dimension of the operand.
    largest_of = {symbol.name: symbol.high for symbol in rule.symbols}
    for guard in rule.guards:
        loop = guard.loop.loop
        if loop is not None and loop in split:
            (dim,) = [d for d, index in enumerate(rule.operands[0]) if index == guard.loop]
            (start,) = [name for name in guard.index.variables if name in largest_of]
            yield dim, loop, largest_of[start]


@dataclass(frozen=True)
class SelectedDimension:
    """A sharded operand dimension of a gather or scatter with a run-time start.

    Attributes:
      dim: the number of the dimension in operand 0.
      loop: the loop that indexes this dimension.
      symbol: the run-time start.
      component: the position of the start in the index vector.
      width: the number of elements that are selected together along the dimension (a window), or
        0 for a single element.
    """

    dim: int
    loop: str
    symbol: Symbol
    component: int
    width: int

    def shift(self, *, drops: bool) -> IndexShift:
        """Return the shift from a start in the tensor to a start in the device's block.

        If windows have several elements, the block has a margin of elements before it, and the
        start counts from there.

        Args:
          drops: whether an invalid start drops the update (scatter).
        """
        # A window of the global operator may begin before the device's block. The block therefore
        # has a margin of `width` elements in front, which starts in the block count too.
        valid = (0, self.symbol.high)
        clamp = valid if self.symbol.mode == CLIP else None
        # After the shift, a start that is globally invalid could look valid in the margin.
        within = valid if drops and clamp is None and self.width else None
        # Operand 1 has the starts. A start in the block is the start in the tensor, minus the first
        # element of the block (sign -1), plus the margin.
        return IndexShift(
            operand=1,
            component=self.component,
            loop=self.loop,
            sign=-1,
            clamp=clamp,
            more=self.width,
            within=within,
        )


def selections(
    rule: Rule, components: tuple[int, ...], split: Collection[str]
) -> tuple[SelectedDimension, ...]:
    """Return the sharded operand dimensions of a gather or scatter that indices select.

    Args:
      split: the sharded loops.
      components: operand dimension of each component of the index vector.
    """
    symbols = {symbol.name: symbol for symbol in rule.symbols}
    selected_dims = []
    for guard in rule.guards:
        loop = guard.loop.loop
        if loop is not None and loop in split:
            names = guard.index.variables
            (symbol,) = (symbols[name] for name in names if name in symbols)
            # The guard of a window has a loop over the window, whose extent is the width. The guard
            # of a single element has no loop, and the width is 0.
            width = max((rule.extents[name] for name in names if name in rule.extents), default=0)
            # The start along operand dimension d is the symbol `$td`.
            dim = int(symbol.name[2:])
            selected_dims.append(SelectedDimension(dim, loop, symbol, components.index(dim), width))
    return tuple(selected_dims)


def _margins(selected: tuple[SelectedDimension, ...]) -> tuple[tuple[int, str, int], ...]:
    """Return (dimension, loop, number of elements) of each margin before a device's block.

    A window that begins in the block before the device's own one may reach into the device's block.
    So the device gets a margin as wide as the window in front of its block. For example, it has
    the elements 8 to 15, and windows have 3 elements: with the margin it has places for 5 to 15.
    A dimension from which single elements are selected has no margin.

    Args:
      selected: the sharded dimensions that indices select.
    """
    return tuple((one.dim, one.loop, one.width) for one in selected if one.width)


UNSORTED: Params = (("indices_are_sorted", False), ("unique_indices", False))


def _gather(signature: Signature, rule: Rule, blocks: Blocks) -> Emission:
    """Return the changed parameters of a gather that reads from the device's block alone.

    For example, a table has 8 rows on 2 devices, so that device 1 has the rows 4 to 7. Its shift
    turns index 6 into 2. Index 3 becomes -1, which is outside of the block: the result is masked
    with zero (`Emission.owned`), and the sum over both devices is right.
    """
    roles, split = numbers(signature), sharded_loops(rule, blocks)
    if not split:
        return Emission()
    windows = roles.window_of(len(signature.operands[0].shape))
    sizes = enumerate(signature.param("slice_sizes"))
    window_sizes = tuple(blocks[f"w{d}"] if d in windows else size for d, size in sizes)
    params: Params = (("slice_sizes", window_sizes), *UNSORTED)
    run_time_dims = selections(rule, roles.selected, split)
    if not run_time_dims:
        return Emission(params)
    # If windows have several elements, the block has a margin in front (`_margins`). A window that
    # overlaps two blocks then reads a part from each device, and zeros elsewhere.
    has_windows = any(selected_dim.width for selected_dim in run_time_dims)
    # Without a fill value, and with windows, invalid indices are clipped to the block here. A mask
    # deletes the elements that such an index reads.
    fill = None if isinstance(rule.init, Access) else rule.init
    if fill is None or has_windows:
        params = (*params, ("mode", "CLIP"))
    rank = len(signature.results[0].shape)
    batch_dims = tuple(d for d in range(rank) if d not in roles.window)
    owned = tuple(
        (selected_dim.component, selected_dim.loop, selected_dim.symbol.high + 1)
        for selected_dim in run_time_dims
    )
    if has_windows:
        # The local gather clips, so starts that drop a read along a whole dimension are masked too.
        split_dims = {selected_dim.dim for selected_dim in run_time_dims}
        # The name `$t1` is the start in dimension 1; `$t` alone has no dimension.
        for symbol in rule.symbols:
            dim = int(symbol.name[2:] or -1)
            if symbol.mode == DROP and dim not in split_dims:
                owned += ((roles.selected.index(dim), "", symbol.high + 1),)
    shifts = tuple(selected_dim.shift(drops=False) for selected_dim in run_time_dims)
    return Emission(
        params=params,
        shifts=shifts,
        owned=owned,
        margins=_margins(run_time_dims),
        batch_dims=batch_dims,
        fill=fill,
    )


def _scatter(signature: Signature, rule: Rule, blocks: Blocks) -> Emission:
    """Return the changed parameters of a scatter that writes into the device's block alone.

    Two cases, which can occur together:
    - The operand is sharded. Each index is shifted to the block, and an update outside of the block
      is dropped. For example, device 1 has the rows 4 to 7: index 6 becomes 2, and index 3 becomes
      -1, which is dropped.
    - The updates are sharded. Each device applies its own updates, and the results are combined. In
      a sum or product, only one device starts from the operand, or it would count several times.
    """
    split = sharded_loops(rule, blocks)
    are_updates_sharded = not split.isdisjoint(rule.reduced)
    # Entry c is the operand dimension that component c of an index selects.
    dims_of_components = numbers(signature).selected
    run_time_dims = selections(rule, dims_of_components, split)
    shifts = tuple(one.shift(drops=True) for one in run_time_dims)
    if shifts and scatter_mode(signature.param("mode")) == CLIP:
        # The global scatter clamps all components of an index to their valid starts, but the local
        # one drops an update that misses. So the components without a shift are clamped here:
        # sign 0 adds nothing, and the loop does not matter. Operand 1 has the indices.
        highs = {symbol.name: symbol.high for symbol in rule.symbols}
        shifted = {shift.component for shift in shifts}
        shifts += tuple(
            IndexShift(
                operand=1,
                component=component,
                loop=shifts[0].loop,
                sign=0,
                clamp=(0, highs.get(f"$t{dim}", 0)),
            )
            for component, dim in enumerate(dims_of_components)
            if component not in shifted
        )
    # Shifted indices of other blocks, and the arbitrary indices of updates in padding, are neither
    # sorted nor unique.
    params: Params = UNSORTED if shifts or are_updates_sharded else ()
    if shifts:
        params = (*params, ("mode", "FILL_OR_DROP"))
    # Operand 0 is the tensor into which the updates are added or multiplied.
    counts_once = rule.combine in (SUM, PRODUCT) and are_updates_sharded
    first_member = 0 if counts_once else None
    return Emission(params, shifts, margins=_margins(run_time_dims), first_member=first_member)


def _row_groups(signature: Signature, rule: Rule, blocks: Blocks) -> Emission:
    """Return the changed parameters of a `row_groups` that computes only the device's block.

    They are the block's shape, and a shift of the start operand to the block's first row.
    """
    split = sharded_loops(rule, blocks)
    # Operand 0 is the number of the first row; "m" is the loop over the rows.
    shift = IndexShift(operand=0, component=None, loop="m", sign=1)
    shifts = (shift,) if "m" in split else ()
    return Emission((("shape", local_shape(rule, 0, blocks)),), shifts) if split else PLAIN


def _grouped_dot(signature: Signature, rule: Rule, blocks: Blocks) -> Emission:
    """Return the changed parameters of a `grouped_dot` that multiplies only the device's groups.

    If the groups are sharded, the parameters are the number of the device's groups, and a shift of
    the rows' group numbers, after which the device's first group is 0.
    """
    if "g" not in sharded_loops(rule, blocks):
        return PLAIN
    # A grouped product needs rows that are sorted by group. Subtracting the number of the device's
    # first group from all of them keeps them sorted.
    shift = IndexShift(operand=rule.symbols[0].operand, component=None, loop="g", sign=-1)
    return Emission((("count", blocks["g"]), ("is_shifted", True)), (shift,))


EMITTERS: dict[str, Callable[[Signature, Rule, Blocks], Emission]] = {
    "arg": _no_changes,
    "dynamic": _dynamic,
    "gather": _gather,
    "grouped": _grouped_dot,
    "iota": _iota,
    "positions": _positions,
    "prefix": _no_changes,
    "same": _no_changes,
    "row_groups": _row_groups,
    "scatter": _scatter,
    "selection": _no_changes,
    "shape": _shape,
    "terms": _terms,
    "tile": _shape,
    "user": _no_changes,
    "window": _window,
}
