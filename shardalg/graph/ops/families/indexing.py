"""Rows of gathers, scatters and dynamic slices, which select elements at run-time indices.

Docstrings show a row as `operand indices -> result indices where guards`. A guard
`loop == $t + w` states that only these iterations exist. `$t` is a number that is read at run time,
`w` the position in the window that starts there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardalg.algebra.affine import Index
from shardalg.graph.ir import Plain, Signature
from shardalg.graph.ops.families.building import (
    Builder,
    access,
    indices,
    is_number,
    letters,
    record,
)
from shardalg.graph.ops.rule import CLIP, DROP, MAX, MIN, PICK, PRODUCT, SUM, Guard, Rule, Symbol
from shardalg.graph.plain import number

GATHER = (
    "offset_dims collapsed_slice_dims start_index_map operand_batching_dims "
    "start_indices_batching_dims"
)
SCATTER = (
    "update_window_dims inserted_window_dims scatter_dims_to_operand_dims operand_batching_dims "
    "scatter_indices_batching_dims"
)
COMBINE = {
    "scatter": PICK,
    "scatter-add": SUM,
    "scatter-sub": SUM,
    "scatter-mul": PRODUCT,
    "scatter-min": MIN,
    "scatter-max": MAX,
}
# One object for all rows: tuples compare elements by identity first, so that equal rows are equal.
NAN = float("nan")


@dataclass(frozen=True)
class Numbers:
    """Dimension numbers of a gather or scatter, with the same names for both.

    The value is the result of a gather, or the update of a scatter.

    Attributes:
      window: dimensions of the value that index into the window.
      dropped: operand dimensions of window size 1 that the value lacks.
      selected: operand dimension of each component of the index vector.
      operand_batching, index_batching: paired dimensions of operand and indices.
    """

    window: tuple[int, ...]
    dropped: tuple[int, ...]
    selected: tuple[int, ...]
    operand_batching: tuple[int, ...]
    index_batching: tuple[int, ...]

    def window_of(self, rank: int) -> dict[int, int]:
        """Return, for each operand dimension that the value has too, the value's dimension for it.

        The value's index along this dimension is the position inside of the window.

        Args:
          rank: the operand's number of dimensions.
        """
        window_dims = [
            d for d in range(rank) if d not in self.dropped and d not in self.operand_batching
        ]
        return dict(zip(window_dims, self.window, strict=True))


def numbers(signature: Signature) -> Numbers:
    """Return the dimension numbers of a gather or scatter, with the names of `Numbers`."""
    fields = GATHER if signature.primitive == "gather" else SCATTER
    value = record(signature.param("dimension_numbers"), fields)
    return Numbers(*(tuple(value[name]) for name in fields.split()))


def mode(value: Plain) -> str:
    """Return the mode of a gather from its parameter: CLIP or DROP.

    CLIP moves an index out of range into the range; DROP gives a fill value instead.
    """
    return DROP if "FILL" in str(value).upper() else CLIP


def scatter_mode(value: Plain) -> str:
    """Return the mode of a scatter from its parameter: CLIP or DROP.

    CLIP moves an index out of range into the range; DROP ignores the update.
    """
    return CLIP if "CLIP" in str(value).upper() else DROP


@dataclass(frozen=True)
class Axis:
    """One operand dimension of a gather or scatter.

    Attributes:
      dim: its number.
      full: its size.
      size: the size of its window.
      batch: its batch loop, if it is paired with a dimension of the indices.
      window: its window loop, if the value has a dimension for it.
      component: the component of the index vector with its start; None if it starts at 0.
    """

    dim: int
    full: int
    size: int
    batch: str | None
    window: str | None
    component: int | None

    @property
    def offset(self) -> Index:
        """The index inside the window; 0 in a window of one element."""
        return Index.of(self.window) if self.window and self.size != 1 else Index.of(0)

    @property
    def high(self) -> int:
        """Largest start at which the window is inside the dimension."""
        return self.full - self.size

    def symbol(self, batch: tuple[str, ...], mode: str) -> Symbol | None:
        """Return the run-time start of the window along this dimension.

        None if the start is always 0 and never drops a read or an update.

        Args:
          batch: names of the batch loops.
          mode: CLIP or DROP.
        """
        if self.component is None or (self.high == 0 and mode == CLIP):
            return None
        dims = indices((*batch, self.component))
        return Symbol(f"$t{self.dim}", 1, dims, self.high, mode)

    def selects(self, symbol: Symbol | None, partial: bool) -> bool:
        """Return whether the row needs a loop over all elements of the dimension.

        Args:
          symbol: the run-time start, if there is one.
          partial: whether a window at start 0 that does not cover the dimension needs such a loop.
        """
        moving = symbol is not None and self.high > 0
        return moving or (partial and self.component is None and self.size != self.full)


def axes(signature: Signature, sizes: tuple[int, ...], batch: tuple[str, ...]) -> Iterator[Axis]:
    """Yield the dimensions of the operand of a gather or scatter, in order, with their roles.

    An operand dimension may be paired with a batch loop, be read through a window loop `w<d>`, and
    be selected by a component of the index vector.

    Args:
      sizes: the size of the window in each dimension.
      batch: names of the batch loops.
    """
    roles = numbers(signature)
    shape = signature.operands[0].shape
    windows = roles.window_of(len(shape))
    for d, size in enumerate(shape):
        paired = None
        if d in roles.operand_batching:
            paired = batch[roles.index_batching[roles.operand_batching.index(d)]]
        component = roles.selected.index(d) if d in roles.selected else None
        window = f"w{d}" if d in windows else None
        yield Axis(d, size, sizes[d], paired, window, component)


@dataclass(frozen=True)
class Selection:
    """The indices of a gather's or scatter's operand, and the parts of the row that they need.

    Attributes:
      dims: an index for each dimension of the operand.
      extents: the extent of each loop over a whole operand dimension.
      guards, symbols: see `Rule`.
    """

    dims: tuple[Index, ...]
    extents: dict[str, int]
    guards: tuple[Guard, ...]
    symbols: tuple[Symbol, ...]


def select(found: list[Axis], batch: tuple[str, ...], mode: str, loop: str) -> Selection:
    """Return the index of each operand dimension of a gather or scatter.

    Args:
      found: the operand's dimensions.
      batch: names of the batch loops.
      mode: CLIP or DROP.
      loop: prefix of the loops over full dimensions: "k" for a gather, "o" for a scatter.
    """
    dims, extents, guards, symbols = [], {}, [], []
    for axis in found:
        symbol = axis.symbol(batch, mode)
        index = Index.of(axis.batch) if axis.batch else axis.offset
        start = axis.offset + symbol.name if symbol else axis.offset
        if symbol:
            symbols.append(symbol)
        # A run-time index picks one of all places of the dimension: the row loops over all of them,
        # and a guard keeps the iteration that equals the start.
        if not axis.batch and axis.selects(symbol, loop == "o"):
            index = Index.of(f"{loop}{axis.dim}")
            extents[f"{loop}{axis.dim}"] = axis.full
            guards.append(Guard(index, start))
        # The window covers the dimension: only the validity of the start is left to check.
        elif symbol:
            guards.append(Guard(Index.of(0), Index.of(symbol.name)))
        dims.append(index)
    # Indices that select nothing (full slices) still have the batch loops as their dimensions.
    symbols = symbols or [Symbol("$t", 1, indices((*batch, 0)), 0, CLIP)]
    return Selection(tuple(dims), extents, tuple(guards), tuple(symbols))


def gather(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a gather; for an embedding `[k0, w1] -> [b0, b1, w1] pick [k0]`.

    The row has the guard `k0==$t0`, where `$t0` is the run-time index of a token. Loops b count the
    indices, loops w the elements of a window, and loops k all elements of a selected dimension, of
    which the guard picks one.
    """
    roles, out_of_range_mode = numbers(signature), mode(signature.param("mode"))
    shape = signature.results[0].shape
    # Dimensions of the result that are no window dimensions come from the indices.
    index_dims = [d for d in range(len(shape)) if d not in roles.window]
    batch = letters("b", len(index_dims))
    # `select` gives each selected dimension its loop, guard and run-time number.
    operand_axes = list(axes(signature, signature.param("slice_sizes"), batch))
    chosen = select(operand_axes, batch, out_of_range_mode, "k")
    windows = roles.window_of(len(operand_axes))
    result = dict(zip(index_dims, batch, strict=True)) | {t: f"w{d}" for d, t in windows.items()}
    extents = {name: shape[d] for d, name in sorted(result.items())}
    # A dropped read is an iteration that does not exist, so the result keeps its start value.
    fill = fill_value(signature) if out_of_range_mode == DROP else None
    return (
        Rule(
            signature.primitive,
            loops=tuple((extents | chosen.extents).items()),
            terms=((access(0, chosen.dims),),),
            results=(indices(result[d] for d in range(len(shape))),),
            combine=PICK,
            init=fill,
            guards=chosen.guards,
            symbols=chosen.symbols,
            local=frozenset(chosen.extents if is_whole_along_indices(signature) else ()),
            # A fill value is not linear: each partial sum would contribute it.
            linear=frozenset({0} if not fill and is_number(signature.results[0].dtype) else ()),
            family="gather",
        ),
    )


def is_whole_along_indices(signature: Signature) -> bool:
    """Return whether a gather cannot be partitioned along the dimensions that its indices select.

    There are two cases. Indices of an unsigned type would wrap around when a device subtracts the
    start of its block. An empty window is outside of every block.
    """
    return "uint" in signature.operands[1].dtype or 0 in signature.results[0].shape


def applies_code(signature: Signature) -> bool:
    """Return whether a scatter applies a function to the selected elements: `x.at[i].apply(f)`."""
    return signature.primitive == "scatter" and signature.param("update_jaxpr") is not None


def fill_value(signature: Signature) -> complex:
    """Return the result of a gather where its index is out of range and the read is dropped.

    The default is NaN, the lowest signed or highest unsigned integer, or True, by type.

    Source: `jax.lax.GatherScatterMode`, `fill_value`.
    """
    given_number, dtype = number(signature.param("fill_value")), signature.operands[0].dtype
    # NaN is not equal to itself, so a NaN that was given is handled as the default of the type.
    if given_number is not None and given_number == given_number:
        return given_number
    if dtype.startswith(("int", "uint")):
        bits = int(dtype.lstrip("uint"))
        return 2**bits - 1 if dtype.startswith("u") else -(2 ** (bits - 1))
    return 1 if dtype == "bool" else NAN


def scatter(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a scatter, such as `[u0, u1, w1] -> [o0, w1] sum [u0, u1] init [o0, w1]`.

    The row has the guard `o0==$t0`, where `$t0` is the run-time index of an update. Loops u count
    the updates, loops w the elements of a window, and loops o all elements of a selected dimension,
    of which the guard picks one.
    """
    roles = numbers(signature)
    out_of_range_mode = scatter_mode(signature.param("mode"))
    shape, updates = signature.operands[0].shape, signature.operands[2].shape
    # The updates' dimensions outside of the window count the updates, by the loops u0, u1, ....
    update_dims = [d for d in range(len(updates)) if d not in roles.window]
    batch = letters("u", len(update_dims))
    windows = roles.window_of(len(shape))
    sizes = tuple(updates[windows[d]] if d in windows else 1 for d in range(len(shape)))
    chosen = select(list(axes(signature, sizes, batch)), batch, out_of_range_mode, "o")
    reads = dict(zip(update_dims, batch, strict=True)) | {t: f"w{d}" for d, t in windows.items()}
    extents = {name: updates[d] for d, name in sorted(reads.items())}
    written = {v for index in chosen.dims for v in index.variables}
    combine = COMBINE[signature.primitive]
    rank = range(len(updates))
    return (
        Rule(
            signature.primitive,
            loops=tuple((extents | chosen.extents).items()),
            terms=((access(2, (reads[d] for d in rank)),),),
            results=(chosen.dims,),
            combine=combine,
            # The operand is the start value: elements that no update selects keep it.
            init=access(0, chosen.dims),
            guards=chosen.guards,
            symbols=chosen.symbols,
            # In `scatter`, the last of several updates of one element wins, so order matters.
            local=frozenset(extents) - written if combine == PICK else frozenset(),
            linear=frozenset({0, 2} if combine == SUM else ()),
            addends=frozenset({0, 2} if combine == SUM else ()),
            flops=int(combine != PICK),
            family="scatter",
        ),
    )


def dynamic_slice(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a dynamic slice: `[o0, k1] -> [o0, o1] pick [k1] where k1==o1+$t1`.

    `$t1` is the start along dimension 1, read at run time. Of all k1, the guard picks the element
    `o1 + $t1` of the operand.
    """
    return (_dynamic(signature, signature.results[0].shape, ("k", "o"), 1),)


def dynamic_update_slice(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a dynamic update: `[o0, v1] -> [o0, o1] pick [v1] init [o0, o1]`.

    The row has the guard `o1==v1+$t1`, where `$t1` is the run-time start.
    """
    return (_dynamic(signature, signature.operands[1].shape, ("o", "v"), 2),)


def _dynamic(
    signature: Signature, window: tuple[int, ...], loops: tuple[str, str], first: int
) -> Rule:
    """Return the rule of a dynamic slice or update: its loops, and the index of each dimension.

    Args:
      window: the size of the window in each dimension.
      loops: the letters with which the names of the operand's and of the window's loops begin.
      first: operand `first + d` is the start in dimension d.
    """
    shape = signature.operands[0].shape
    # If the window covers a whole dimension, its start can only be 0, so one loop indexes both.
    moving = {d for d, n in enumerate(shape) if n != window[d]}
    full = [f"{loops[0]}{d}" if d in moving else f"o{d}" for d in range(len(shape))]
    part = [f"{loops[1]}{d}" if d in moving else f"o{d}" for d in range(len(shape))]
    extents = dict(zip(part, window, strict=True)) | dict(zip(full, shape, strict=True))
    # An update has the starts after the operand and the update, a slice after the operand.
    updates = first == 2
    # Each device contributes its elements, and zeros in place of the others, to a sum. Random keys
    # have no zero, so that the loops over the moving dimensions are local.
    has_zero = is_number(signature.results[0].dtype) or signature.results[0].dtype == "bool"
    addends = frozenset({0, 1} if updates else {0})
    # A guard ties each moving dimension `full[d]` to the window: `full[d] == part[d] + $t`, where
    # the symbol `$t` is the start: the scalar operand `first + d`, clipped to the largest start at
    # which the window is inside the dimension.
    guards = [Guard(Index.of(full[d]), Index.of(part[d]) + f"$t{d}") for d in sorted(moving)]
    starts = [Symbol(f"$t{d}", first + d, (), shape[d] - window[d], CLIP) for d in sorted(moving)]
    return Rule(
        signature.primitive,
        # Loops over whole dimensions come first: their names begin with "o".
        loops=tuple(sorted(extents.items(), key=lambda loop: (loop[0][0] != "o", loop[0]))),
        # An update reads the new elements and writes the tensor; a slice reads the tensor.
        terms=((access(1, part) if updates else access(0, full),),),
        results=(indices(full if updates else part),),
        combine=PICK,
        init=access(0, full) if updates else None,
        guards=tuple(guards),
        symbols=tuple(starts),
        local=frozenset(() if has_zero else (full[d] for d in moving)),
        linear=addends if is_number(signature.results[0].dtype) else frozenset(),
        addends=addends if updates and is_number(signature.results[0].dtype) else frozenset(),
        family="dynamic",
    )


ROWS: dict[str, Builder] = {
    "gather": gather,
    **dict.fromkeys(COMBINE, scatter),
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
}
